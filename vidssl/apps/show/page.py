"""The page of `vidssl show`: videos, the frames that were sampled of them, and the views of these."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vidssl.base.config import Tree
from vidssl.base.types import Frames, VideoMeta
from vidssl.data.video_list import VideoList
from vidssl.page.figure_style import COLORS
from vidssl.page.previews import number_previews, preview
from vidssl.page.render import render_page


@dataclass(frozen=True)
class ShownView:
    """A view as the network gets it, before normalisation, and the frames that it was made of."""

    frames: Frames  # (T, 3, S, S) uint8 RGB; an encoder that takes any shape: (T, 3, H, W)
    clip: int  # its number: a recipe may make several views of one clip
    indices: NDArray[np.int64]  # (T,) frames of the file
    first: int  # the frames of the file that the clip covers, both ends included
    last: int
    difference: bool  # whether it is an RGB difference
    box: NDArray[np.float32] | None  # (4,) xyxy in pixels of the view: its tracked region. None: a run without tracks


@dataclass(frozen=True)
class ShownSample:
    """What training makes of a row of its list in an epoch, or an evaluation of a row of its list."""

    epoch: int
    row: int  # of the list
    used: int  # the row whose video is used: in training another one, if that of `row` is broken
    replaced: tuple[tuple[str, str], ...]  # path and reason of the broken videos before it
    meta: VideoMeta | None  # of the span of the row that is used; None: there is none, training stops at this row
    offset: int  # first frame of the span in the file
    views: tuple[ShownView, ...]
    start: float = 0.0  # seconds of the file at which the span begins

    def time_of(self, frame: float) -> float:
        """Second of the file at which a frame of the file begins; between two frames if it is not a whole number."""
        assert self.meta is not None
        number = int(frame) - self.offset
        begin, end = self.meta.time_of(number), self.meta.time_of(min(number + 1, self.meta.num_frames))
        return self.start + begin + (frame - int(frame)) * (end - begin)


def write_views_page(
    path: Path,
    title: str,
    details: Sequence[tuple[str, str]],
    settings: Sequence[tuple[str, str]],
    videos: Sequence[Tree],
    left_out: Sequence[str] = (),
) -> None:
    """Write the page of `video_card`s: `details` are names and values at its head, `settings` titles and YAML."""
    views = [view for video in videos for draw in video["draws"] for view in draw["views"]]
    render_page(
        path,
        Path(__file__).with_name("views.html"),
        title=title,
        details=details,
        settings=settings,
        videos=videos,
        left_out=left_out,
        colors=COLORS,
        sprites=number_previews(view["clip"] for view in views),
    )


def video_card(samples: Sequence[ShownSample], listed: VideoList, trains: bool = True) -> Tree:
    """Describe a video and its draws for the page."""
    first = samples[0]
    record, meta = listed.records[first.row], first.meta
    facts = [] if record.label < 0 else [f"class {listed.class_name(record.label)}"]
    if meta is not None and first.used == first.row:
        frames = f"{meta.num_frames:,} frame{'s' * (meta.num_frames > 1)}"
        facts += [f"{frames} of {meta.width} x {meta.height}", f"{meta.fps:.4g} fps"]
        if (record.start, record.end) != (None, None):
            facts.append("a span of its file")
    facts.append(f"row {first.row} of the list")
    draws = [_draw(sample, listed, trains) for sample in samples]
    return {"name": listed.names[first.row], "facts": ", ".join(facts), "draws": draws}


def _draw(sample: ShownSample, listed: VideoList, trains: bool) -> Tree:
    """Place the clips of a sample on the time line, and describe its views; clips of one number have one colour."""
    notice = None
    if sample.replaced:
        reasons = "; ".join(reason for _, reason in sample.replaced)
        what = "training stops here" if sample.meta is None else f"training uses {listed.names[sample.used]} instead"
        notice = f"{reasons}: {what}" if trains else reasons
    clips, views = dict[int, Tree](), []
    for n, view in enumerate(sample.views):
        color = view.clip % len(COLORS)
        first, end = sample.time_of(view.first), sample.time_of(view.last + 1)
        middles = [sample.time_of(frame + 0.5) for frame in view.indices.tolist()]
        clips[view.clip] = {"name": f"clip {view.clip}", "color": color, "first": first, "end": end, "frames": middles}
        drawn = {"name": f"view {n}", "color": color, "clip": preview(view.frames, height=128)}
        views.append({**drawn, "notes": _notes(view, first, end), "box": _box(view)})
    return {
        "title": f"Epoch {sample.epoch}" if trains else "Clips",
        "notice": notice,
        "start": sample.start,
        "end": sample.start + (1.0 if sample.meta is None else sample.meta.duration),
        "clips": [*clips.values()],
        "views": views,
    }


def _notes(view: ShownView, first: float, end: float) -> tuple[str, ...]:
    frames, (height, width) = len(view.frames), view.frames.shape[-2:]
    size = f"{width}²" if height == width else f"{width} x {height}"
    steps, order = np.diff(view.indices), ""
    if (steps < 0).any():
        order = ", reversed" if (steps <= 0).all() else ", looped"
    notes = [(f"{frames} x {size}" if frames > 1 else size) + order, f"{first:.2f}–{end:.2f} s"]
    if view.difference:
        notes.append("RGB difference")
    if view.box is not None:
        notes.append("no common track" if _box(view) is None else "box of the middle frame" if frames > 1 else "box")
    return tuple(notes)


def _box(view: ShownView) -> tuple[float, float, float, float] | None:
    """Left, top, width and height of the tracked region, fractions of the view; None for the whole view."""
    size = view.frames.shape[-1]
    if view.box is None or (view.box == (0, 0, size, size)).all():
        return None
    left, top, right, bottom = (view.box / size).tolist()
    return left, top, right - left, bottom - top
