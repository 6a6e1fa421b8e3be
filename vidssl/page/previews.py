"""Retrieval results as one image, for print."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vidssl.base.types import Frames, VideoRecord
from vidssl.data.dataset import resolve_span
from vidssl.page.figure import shortened
from vidssl.video.reader import open_video


def middle_frames(record: VideoRecord, fps: float | None = None) -> Frames:
    """Decode up to eight frames of the middle of a video or span, over three seconds at most.

    `fps` is the frame rate for folders of images without an fps column; only spans depend on it.
    """
    with open_video(record.path, fps=record.fps or fps or 25) as video:
        first, part = resolve_span(video.meta, record)
        if part.times is not None:
            half = min(3.0, part.duration) / 2
            times = part.duration / 2 + np.linspace(-half, half, 8, endpoint=False)
            return video.frames(np.unique(first + part.frames_at(times)).tolist())
        length = min(part.num_frames, max(1, round(3 * part.fps)))
        start = first + (part.num_frames - length) // 2
        return video.frames(np.unique(start + np.arange(8) * length // 8).tolist())


if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CELL, _SPACE, _BETWEEN = 1.3, 0.14, 0.3  # inches: width of an image, space between images, space after the query
_CAPTION, _MARGIN, _HEAD = 0.26, 0.18, 0.24
_COLORS = {True: "#14854a", False: "#c92a1e", None: "#c9ccd1"}
_MARKS = {True: "✓ ", False: "✗ ", None: ""}


@dataclass(frozen=True)
class Shot:
    """One video of a retrieval sheet."""

    frames: Frames  # (T, 3, H, W); the middle one is drawn
    caption: str
    hit: bool | None = None  # None: unknown, or a query


def retrieval_sheet(rows: Sequence[Sequence[Shot]], heads: Sequence[str] = ("query", "nearest")) -> "Figure":
    """Draw rows of a query and its nearest videos; hits are framed green (✓), misses red (✗).

    `heads` are the titles of the first columns; the others are numbered.
    """
    from matplotlib.figure import Figure

    # A cell is as high as the highest image needs at the common width.
    aspect = max(shot.frames.shape[2] / shot.frames.shape[3] for row in rows for shot in row)
    high = _CELL * min(1.4, aspect)
    width = 2 * _MARGIN + max(map(len, rows)) * (_CELL + _SPACE) + _BETWEEN - 2 * _SPACE
    height = 1.5 * _MARGIN + _HEAD + len(rows) * (high + _CAPTION)
    figure = Figure(figsize=(width, height), facecolor="white")
    for line, row in enumerate(rows):
        top = _MARGIN + _HEAD + line * (high + _CAPTION)
        for column, shot in enumerate(row):
            x = _MARGIN + column * (_CELL + _SPACE) + (_BETWEEN - _SPACE if column else 0.0)
            axes = figure.add_axes((x / width, 1 - (top + high) / height, _CELL / width, high / height))
            image = shot.frames[len(shot.frames) // 2].transpose(1, 2, 0)
            axes.imshow(image, interpolation="nearest" if len(image) < 100 else "antialiased")
            axes.set_anchor("S")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(color=_COLORS[shot.hit], linewidth=1.0 if shot.hit is None else 2.4)
            if line == 0:
                name = heads[column] if column < len(heads) else f"{column}."
                figure.text(x / width, 1 - (top - 0.1) / height, name, fontsize=8.5, color="#5d636c")
            text = _MARKS[shot.hit] + shortened(shot.caption, 17)
            ink = "#1c1e22" if shot.hit is None else _COLORS[shot.hit]
            y = 1 - (top + high + 0.15) / height
            figure.text(x / width, y, text, fontsize=8, color=ink, parse_math=False)  # may hold a dollar sign
    return figure
