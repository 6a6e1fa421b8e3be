"""Track a whole list of videos into a folder: workers decode and search, the network runs here."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from vidssl.atomic import state_of
from vidssl.config import differences
from vidssl.data.dataset import resolve_span
from vidssl.data.samplers import chunk_starts
from vidssl.data.tracks import read_tracks, tracks_file, tracks_name, write_tracks
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.models.backbones import Backbone
from vidssl.progress import progress
from vidssl.tracking.proposals import (
    Boxes,
    Search,
    made_from,
    proposals_file,
    propose,
    read_proposals,
    selective_search,
    whole_frame,
    write_proposals,
)
from vidssl.tracking.tracker import TrackerSettings, no_tracks, track_chunk
from vidssl.transforms.crops import short_side
from vidssl.types import Frames, Tracks, VideoMeta, VideoRecord
from vidssl.video.reader import DecodeSettings
from vidssl.workers import ItemGuard, ordered

_log = logging.getLogger(__name__)

FORMAT = 1  # of what is tracked; a change of the tracker that changes tracks raises it


@dataclass(frozen=True)
class Tracked:
    """What was tracked; `str()` is the report that a tool prints."""

    made: tuple[str, ...]  # names of videos, as their list writes them
    kept: int  # videos whose tracks were there, made in the same way
    left_out: dict[str, str] = field(default_factory=dict)  # by `tracks_name`: what cannot be read, and why
    untracked: tuple[str, ...] = ()  # of those made: videos in which nothing could be tracked far enough
    tracks: int = 0  # of the videos made
    frames: int = 0  # that were looked at
    bare: int = 0  # of these: frames of which the only region is the whole frame
    searching: float = 0.0  # seconds of selective search, of all workers together
    looking: float = 0.0  # seconds of the workers in all
    seconds: float = 0.0  # from beginning to end

    def __str__(self) -> str:
        lines = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        total = len(self.made) + self.kept + len(self.left_out)
        lines.append(
            f"{total} videos: {len(self.made)} tracked, {self.kept} were there, {len(self.left_out)} left out"
        )
        if self.untracked:
            shown = ", ".join(self.untracked[:3]) + (", …" if len(self.untracked) > 3 else "")
            lines.append(
                f"{len(self.untracked)} without a track (too short for the gap, or below the threshold): {shown}"
            )
        if self.made:
            share = self.searching / max(self.looking, 1e-9)
            lines.append(
                f"{self.tracks} tracks in {self.frames} frames, {self.bare} of them without a proposal; "
                f"{self.seconds:.0f} s, {self.frames / self.seconds:.1f} frames/s, "
                f"{share:.0%} of the workers' time in selective search"
            )
        return "\n".join(lines)


def track_list(
    backbone: Backbone,
    videos: VideoList,
    out: Path,
    config: TrackerSettings,
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    made_with: Mapping[str, Any],
    *,
    proposals: Path | None = None,
    reading: DecodeSettings | None = None,
    workers: int = 1,
    timeout: float = 120.0,
    shard: tuple[int, int] = (0, 1),
    check: Callable[[], None] = lambda: None,
    title: str = "track",
) -> Tracked:
    """Track regions through every video of a list; write a file for each, `out/tracks/<name>.npz`.

    Proposals do not depend on the network: they stay in `out/proposals/` and are searched once. A file of tracks that
    was made with the same weights and settings from the same video (size, frame rate) is left as it is, so that a run
    that was stopped goes on where it was; others are made again, and a warning counts them. Modification times are
    ignored, as by `identify`: tracks stay when the videos are copied to another place.

    Args:
        backbone: A ResNet, on the device.
        videos: The list.
        out: Folder for the files.
        config: How.
        device: Where the backbone is.
        mean: Of pixels in [0, 1]; one value, or one for each channel.
        std: As `mean`.
        made_with: Tells which weights these are; plain data, kept in each file beside the settings.
        proposals: Folder in which proposals are kept; None: `out`.
        reading: How videos are read.
        workers: Processes that decode and search; 0: this one, which then does not survive a crash of OpenCV.
        timeout: Seconds that one frame may take.
        shard: (i, n) takes the videos i, i + n, i + 2n, … only.
        check: Called before each video; what it raises ends the work.
        title: Of the progress bar.

    Raises:
        ConfigError: The backbone has no third stage, or OpenCV no selective search.
        DataError: Two videos would share a file, or a file cannot be written.
    """
    started = time.monotonic()
    backbone.check_regions()
    selective_search()
    settings = {
        "format": FORMAT,
        "tracker": config.model_dump(mode="json"),
        "mean": list(mean),
        "std": list(std),
        **made_with,
    }
    reading = reading or DecodeSettings()
    todo, kept = _todo(videos, out, settings, reading, shard)
    plan = _Plan(proposals or out, config, reading)
    seen = ordered(
        lambda task, guard: _look(task, guard, plan),
        todo,
        workers,
        timeout=timeout,
        on_loss=lambda number, reason: None,  # it comes back as the reason why its video is left out
    )
    made: list[str] = []
    left_out: dict[str, str] = {}
    untracked: list[str] = []
    tracks = frames = bare = 0
    searching = looking = 0.0
    with closing(seen):
        bar = progress(seen, title=title, unit="video", total=len(todo), disable=not todo)
        for task, found in zip(todo, _checked(iter(bar), check), strict=True):
            if found.failure is not None:
                left_out[tracks_name(task.name, task.record)] = found.failure
                continue
            parts = [
                (
                    chunk.start,
                    track_chunk(backbone, chunk.frames, chunk.boxes, found.size, config, device, mean, std),
                )
                for chunk in found.chunks
            ]
            whole = _joined(parts)
            path = tracks_file(out, task.name, task.record)
            write_tracks(path, whole, _made_from(settings, task.record, reading))
            made.append(task.name)
            count = len(np.unique(whole.track))
            untracked += [] if count else [task.name]
            tracks, frames, bare = tracks + count, frames + found.frames, bare + found.bare
            searching, looking = searching + found.searching, looking + found.looking
    seconds = time.monotonic() - started
    return Tracked(
        tuple(made),
        kept,
        left_out,
        tuple(untracked),
        tracks,
        frames,
        bare,
        searching,
        looking,
        seconds,
    )


class _Task(NamedTuple):
    number: int
    name: str
    record: VideoRecord


def _todo(
    videos: VideoList, out: Path, settings: Mapping[str, Any], reading: DecodeSettings, shard: tuple[int, int]
) -> tuple[list[_Task], int]:
    """The videos of a shard that are to be tracked, one for each file; and how many are tracked already."""
    tasks: dict[Path, _Task] = {}
    for name, record in zip(videos.names, videos.records, strict=True):
        task = _Task(len(tasks), name, record)
        other = tasks.setdefault(tracks_file(out, name, record), task)
        if other.record.path != record.path:
            raise DataError(
                f"{other.name} and {name} would have one file of tracks: give the videos names of their own"
            )
    mine = list(tasks.items())[shard[0] :: shard[1]]
    todo: list[_Task] = []
    others: list[tuple[Path, str]] = []
    for path, task in mine:
        there = _made_with(path)
        changed = differences(there, _made_from(settings, task.record, reading)) if there else []
        if changed:
            others.append((path, ", ".join(name for name, _, _ in changed)))
        if changed or not there:
            todo.append(task)
    if others:
        _log.warning(
            "%d files of tracks are made again: the first, %s, was made with another %s",
            len(others),
            *others[0],
        )
    return todo, len(mine) - len(todo)


def _made_with(path: Path) -> dict[str, Any]:
    """Read the settings of existing tracks; empty if the file is missing or damaged."""
    try:
        return read_tracks(path)[1] if path.exists() else {}
    except DataError:
        return {}


def _made_from(settings: Mapping[str, Any], record: VideoRecord, reading: DecodeSettings) -> dict[str, Any]:
    """Collect the settings and the file state that determine the tracks of a video."""
    size, _ = state_of(Path(record.path))
    video = {"bytes": size, "fps": record.fps or reading.fps}
    return {**settings, "video": video}


def _checked(seen: Iterator["_Seen"], check: Callable[[], None]) -> Iterator["_Seen"]:
    while True:
        check()
        try:
            yield next(seen)
        except StopIteration:
            return


def _joined(parts: Sequence[tuple[int, Tracks]]) -> Tracks:
    """Put the tracks of chunks into one, frames numbered from the beginning of the record's part."""
    found, count = [no_tracks()], 0
    for start, tracks in parts:
        found.append(Tracks(start + tracks.frames, tracks.boxes, tracks.scores, count + tracks.track))
        count += int(tracks.track.max(initial=-1)) + 1
    return Tracks(
        np.concatenate([each.frames for each in found]),
        np.concatenate([each.boxes for each in found]),
        np.concatenate([each.scores for each in found]),
        np.concatenate([each.track for each in found]),
    )


# One video, in a worker -------------------------------------------------------------------------------------


class _Plan(NamedTuple):
    proposals: Path  # folder of the folder that holds them
    config: TrackerSettings
    reading: DecodeSettings


class _Chunk(NamedTuple):
    start: int  # its first frame, in the part of the video that the record means
    frames: Frames  # (T, C, H, W), as the network sees them
    boxes: list[Boxes]  # of each frame, pixels of the video


class _Seen(NamedTuple):
    """What a worker found in a video."""

    chunks: tuple[_Chunk, ...] = ()
    size: tuple[int, int] = (0, 0)  # height and width of its frames
    frames: int = 0
    bare: int = 0  # frames without a proposal
    searching: float = 0.0  # seconds
    looking: float = 0.0
    failure: str | None = None  # there is nothing, and why


def _look(task: _Task, guard: ItemGuard, plan: _Plan) -> _Seen:
    """Decode the chunks of a video and find the regions of their frames."""
    if task.number in guard.lost:
        return _Seen(failure=guard.lost[task.number])
    guard.at(task.number)
    cv2.setNumThreads(0)  # workers share the cores already; OpenCV's own pool would fight them
    began = time.perf_counter()
    path = proposals_file(plan.proposals, task.name, task.record)
    config = plan.config
    try:
        with plan.reading.open(task.record) as video:
            offset, part = resolve_span(video.meta, task.record)
            starts = _starts(part, config)
            numbers = [
                np.arange(start, min(start + config.frames, part.num_frames), config.stride)
                for start in starts
            ]
            union = np.unique(np.concatenate(numbers))
            key = made_from(config.search, task.record.path, video.meta)
            known = read_proposals(path, key, union)
            boxes = {} if known is None else dict(zip(union.tolist(), known, strict=True))
            chunks, size, searching = [], (0, 0), 0.0
            for start, wanted in zip(starts, numbers, strict=True):
                guard.at(task.number)
                frames = video.frames(offset + wanted)
                size = frames.shape[2], frames.shape[3]
                searching += _search(frames, wanted, boxes, config.search, lambda: guard.at(task.number))
                small = short_side(frames, config.size)
                chunks.append(_Chunk(start, small, [boxes[number] for number in wanted.tolist()]))
    except DataError as error:
        return _Seen(failure=str(error).removeprefix(f"{task.record.path}: "))
    if known is None:
        write_proposals(path, key, union, [boxes[number] for number in union.tolist()])
    bare = sum(np.array_equal(found, whole_frame(*size)) for found in boxes.values())
    return _Seen(tuple(chunks), size, len(union), bare, searching, time.perf_counter() - began)


def _starts(part: VideoMeta, config: TrackerSettings) -> list[int]:
    return chunk_starts(part.num_frames, config.chunks, config.frames)


def _search(
    frames: Frames,
    numbers: NDArray[np.int64],
    boxes: dict[int, Boxes],
    search: Search,
    alive: Callable[[], None],
) -> float:
    """Put the regions of frames that are not among `boxes` there; give the seconds that it took."""
    began = time.perf_counter()
    for number, image in zip(numbers.tolist(), frames.transpose(0, 2, 3, 1), strict=True):
        if number not in boxes:
            alive()
            boxes[number] = propose(np.ascontiguousarray(image), search)
    return time.perf_counter() - began
