"""The HTML page of Grad-CAM: videos and the maps of several networks, playing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames
from vidssl.page.figure_style import INK, new_figure, shortened
from vidssl.page.previews import Preview, number_previews
from vidssl.page.render import TEMPLATES, render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST, _MOST = 0.15, 0.7  # opacity of the colours where the map is 0, and at its maximum
_GAP = 4  # pixels between images that are joined


def draw_heat(frames: Frames, maps: NDArray[np.float32]) -> Frames:
    """Draw maps (T, H, W), not negative, over frames (T, 3, H, W): blue is 0, red the maximum over the whole clip."""
    heat = maps / (float(maps.max()) or 1.0)
    images = []
    for frame, values in zip(frames.transpose(0, 2, 3, 1), heat, strict=True):
        color = cv2.applyColorMap(np.round(255 * values).astype(np.uint8), cv2.COLORMAP_JET)
        opacity = (_LEAST + (_MOST - _LEAST) * values)[..., None]
        images.append((1 - opacity) * frame + opacity * cv2.cvtColor(color, cv2.COLOR_BGR2RGB))
    return np.stack(images).round().astype(np.uint8).transpose(0, 3, 1, 2)


def side_by_side(clips: Sequence[Frames]) -> Frames:
    """Join clips of equal shape (T, 3, H, W) to one, separated by white."""
    gap = np.full((*clips[0].shape[:3], _GAP), 255, np.uint8)
    parts = [part for clip in clips for part in (gap, clip)][1:]
    return np.concatenate(parts, axis=3)


def film_strip(clips: Sequence[Frames]) -> bytes:
    """Encode clips of equal shape (T, 3, H, W) as a PNG file: each is a row, with its frames from left to right."""
    rows = [side_by_side([frame[None] for frame in clip])[0].transpose(1, 2, 0) for clip in clips]
    gap = np.full((_GAP, *rows[0].shape[1:]), 255, np.uint8)
    image = np.concatenate([part for row in rows for part in (gap, row)][1:])
    return cv2.imencode(".png", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1].tobytes()


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


@dataclass(frozen=True)
class CamCell:
    """What one network sees in a video."""

    network: str
    lines: tuple[str, ...]  # the score, and numbers
    clips: tuple[tuple[str, Preview], ...]  # caption and preview of each map
    file: str  # of the overlay, relative to the page


@dataclass(frozen=True)
class CamRow:
    """One video and its maps."""

    video: Preview
    name: str
    label: str  # name of its class, or nothing
    cells: tuple[CamCell, ...]  # one for each network


def write_cam_page(path: Path, rows: Sequence[CamRow], **content: object) -> None:
    """Write the page of these rows, with `title`, `table`, whose first row is its header, and `details` (name, text).

    `left_out` are videos that cannot be read, and why.
    """
    sprites = number_previews(previews_of(rows))
    render_page(path, TEMPLATES / "gradcam.html", rows=rows, sprites=sprites, **content)


def previews_of(rows: Sequence[CamRow]) -> list[Preview]:
    """Return all previews of rows."""
    return [clip for row in rows for clip in (row.video, *(clip for cell in row.cells for _, clip in cell.clips))]
