"""The page and the image of `vidssl show`: videos, the frames that were sampled of them, and the views of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vidssl.base.types import Frames
from vidssl.page.figure_style import COLORS, INK, new_figure, shortened
from vidssl.page.previews import Preview, number_previews
from vidssl.page.render import render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class ClipBar:
    """A clip on the time line of its video."""

    name: str
    color: int  # clips that are made of one number have one colour
    first: float  # start and end in seconds
    end: float
    frames: tuple[float, ...]  # seconds of the middles of the frames that are kept


@dataclass(frozen=True)
class DrawnView:
    """A view."""

    name: str
    color: int  # of its clip
    clip: Preview
    notes: tuple[str, ...]
    box: tuple[float, float, float, float] | None = None  # left, top, width and height, fractions of the view


@dataclass(frozen=True)
class DrawViews:
    """What training makes of a video in an epoch."""

    title: str
    start: float  # seconds of the file at the ends of the time line
    end: float
    clips: tuple[ClipBar, ...]
    views: tuple[DrawnView, ...]
    notice: str | None = None  # a broken video


@dataclass(frozen=True)
class VideoCard:
    """A video and its draws."""

    name: str
    facts: str
    draws: tuple[DrawViews, ...]


def write_views_page(
    path: Path,
    *,
    title: str,
    details: Sequence[tuple[str, str]],
    settings: Sequence[tuple[str, str]],
    videos: Sequence[VideoCard],
    left_out: Sequence[str] = (),
) -> None:
    """Write the page: `details` are names and values at its head, `settings` titles and texts (YAML) below them."""
    render_page(
        path,
        Path(__file__).with_name("views.html"),
        title=title,
        details=details,
        settings=settings,
        videos=videos,
        left_out=left_out,
        colors=COLORS,
        sprites=number_previews(view.clip for video in videos for draw in video.draws for view in draw.views),
    )


_SIDE, _LINE = 1.15, 2.6  # inches: side of a view, width of a time line


def views_sheet(rows: Sequence[tuple[str, DrawViews, Sequence[Frames]]]) -> "Figure":
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
