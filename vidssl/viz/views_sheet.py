"""The views of some videos as one image."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from vidssl.types import Frames
from vidssl.viz.figure import COLORS, INK, new_figure, shortened
from vidssl.viz.views_page import Draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE, _LINE = 1.15, 2.6  # inches: side of a view, width of a time line


def views_sheet(rows: Sequence[tuple[str, Draw, Sequence[Frames]]]) -> "Figure":
    """Draw a row for each draw: the time line of its video, and the middle frame of each view (T, 3, S, S).

    A row is the name of the video, the draw, and the frames of its views.
    """
    most = max(len(views) for _, _, views in rows)
    figure = new_figure(_LINE + _SIDE * most, _SIDE * len(rows) + 0.2, padding=0.03)
    grid = figure.subplots(len(rows), most + 1, squeeze=False, width_ratios=[_LINE / _SIDE, *[1] * most])
    for axes_of_row, (name, draw, views) in zip(grid, rows, strict=True):
        line, *others = axes_of_row
        line.set_title(shortened(name, 36), fontsize=8, color=INK, loc="left", parse_math=False)
        for height, clip in enumerate(draw.clips):
            color = COLORS[clip.color]
            line.barh(-height, clip.end - clip.first, left=clip.first, height=0.6, color=color, alpha=0.3)
            line.plot(clip.frames, np.full(len(clip.frames), -height), "|", color=color, markersize=7)
        line.set(xlim=(draw.start, draw.end), ylim=(0.6 - max(len(draw.clips), 2), 0.6), yticks=[])
        line.tick_params(labelsize=7, colors=INK, length=2)
        line.spines[["top", "left", "right"]].set_visible(False)
        for axes in others:
            axes.set_axis_off()
        for axes, frames, view in zip(others, views, draw.views, strict=False):
            axes.imshow(frames[len(frames) // 2].transpose(1, 2, 0), interpolation="nearest")
            axes.set_title(view.name, fontsize=8, color=COLORS[view.color], pad=2)
    grid[-1][0].set_xlabel("seconds", fontsize=7.5, color=INK)
    return figure
