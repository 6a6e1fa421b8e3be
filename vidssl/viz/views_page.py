"""The page of `vidssl show`: videos, the frames that were sampled of them, and the views that were made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidssl.viz.figure import COLORS
from vidssl.viz.pages import Preview, number_previews, render_page


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
class Draw:
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
    draws: tuple[Draw, ...]


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
        "views.html",
        title=title,
        details=details,
        settings=settings,
        videos=videos,
        left_out=left_out,
        colors=COLORS,
        sprites=number_previews(view.clip for video in videos for draw in video.draws for view in draw.views),
    )
