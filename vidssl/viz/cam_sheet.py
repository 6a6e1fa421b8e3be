"""Grad-CAM as one image: videos from top to bottom, their maps of several networks from left to right."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vidssl.types import Frames
from vidssl.viz.figure import INK, new_figure, shortened
from vidssl.viz.heat_maps import side_by_side

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = 3  # frames of each clip: the first, the middle and the last
_FRAME = 1.0  # inches, width of a frame


def cam_sheet(rows: Sequence[Mapping[str, Frames]]) -> "Figure":
    """Draw rows of clips (T, 3, H, W) by the titles of their columns; every row has the same ones."""
    columns, aspect = len(rows[0]), max(clip.shape[2] / clip.shape[3] for row in rows for clip in row.values())
    figure = new_figure(columns * _SHOWN * _FRAME, 0.25 + len(rows) * aspect * _FRAME, padding=0.04)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for row, line in zip(rows, axes, strict=True):
        for (title, clip), cell in zip(row.items(), line, strict=True):
            kept = np.linspace(0, len(clip) - 1, min(_SHOWN, len(clip))).round().astype(int)
            image = side_by_side([clip[[n]] for n in kept])[0].transpose(1, 2, 0)
            cell.imshow(image, interpolation="antialiased")
            cell.set_axis_off()
            if row is rows[0]:
                cell.set_title(shortened(title, 40), fontsize=9.5, color=INK, loc="left", parse_math=False)
    return figure
