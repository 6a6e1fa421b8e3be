"""Track regions through all videos of a list: workers decode and search, the network runs in this process."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from vidssl.base.config import config_differences
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.progress import progress
from vidssl.base.types import Frames, VideoMeta, VideoRecord
from vidssl.base.worker_pool import ItemGuard, ordered
from vidssl.data.clip_samplers import chunk_starts
from vidssl.data.dataset import resolve_span
from vidssl.data.track_files import check_video_names, read_tracks, tracks_file, tracks_name, write_tracks
from vidssl.data.video_list import VideoList
from vidssl.models.backbones import Backbone
from vidssl.tracking.proposals import (
    Boxes,
    proposals_file,
    proposals_key,
    propose,
    read_proposals,
    selective_search,
    whole_frame,
    write_proposals,
)
from vidssl.tracking.tracker import Tracker, TrackerSettings, join_tracks
from vidssl.transforms.crops import short_side
from vidssl.video.reader import DecodeSettings, is_video_file, state_of_video

_log = logging.getLogger(__name__)

TRACKS_FORMAT = 1  # of the tracks; raise it when a change of the tracker changes tracks


@dataclass
class Tracked:
    """What `track_list` did; `str()` is the report of the command."""

    kept: int  # videos whose tracks existed already, made in the same way
    made: list[str] = field(default_factory=list)  # names of tracked videos
    left_out: dict[str, str] = field(default_factory=dict)  # by `tracks_name`: why a video cannot be tracked
    untracked: list[str] = field(default_factory=list)  # of `made`: videos without a track that is long enough
    tracks: int = 0
    frames: int = 0  # searched frames
    bare: int = 0  # of these: frames without a proposal
    seconds: float = 0.0
    complete: bool = True  # no video was left out that should not be

    def add(self, name: str, tracks: int, video: "_Prepared") -> None:
        """Count a video that was tracked."""
        self.made.append(name)
        self.untracked += [] if tracks else [name]
        self.tracks += tracks
        self.frames += video.searched
        self.bare += video.bare

    def __str__(self) -> str:
        lines = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        total = len(self.made) + self.kept + len(self.left_out)
        lines.append(f"{total} videos: {len(self.made)} tracked, {self.kept} kept, {len(self.left_out)} left out")
        if self.untracked:
            few = first_few(self.untracked)
            lines.append(f"{len(self.untracked)} without a track (too short, or below the threshold): {few}")
        if self.made:
            speed = f"{self.seconds:.0f} s, {self.frames / self.seconds:.1f} frames/s"
            counts = f"{self.tracks} tracks in {self.frames} frames, {self.bare} of them without a proposal"
            lines.append(f"{counts}; {speed}")
        return "\n".join(lines)


def check_tracking(backbone: Backbone) -> None:
    """Raise a ConfigError if regions cannot be tracked with a network here; call it before long work."""
    backbone.check_regions()
    if getattr(backbone, "frame_differences", False):
        raise ConfigError("tracks need a network of frames, this one encodes differences: name a stream such as rgb")
    selective_search()


def track_list(
    tracker: Tracker,
    videos: VideoList,
    reading: DecodeSettings,
    out: Path,
    made_with: Mapping[str, Any],
    *,
    proposals: Path | None = None,
    workers: int = 1,
    timeout: float = 120.0,
    shard: tuple[int, int] = (0, 1),
    check: Callable[[], None] = lambda: None,
) -> Tracked:
    """Track regions through every video of a list; write `out/tracks/<name>.npz` for each.

    Tracks that were made with the same weights and settings from the same video (bytes, frame rate) are kept, so that
    an interrupted run continues; others are made again, with a warning. `made_with` identifies the weights: plain data,
    written to each file. Proposals, which do not depend on the network, are in the folder `proposals`, or in `out`.
    `workers` processes decode and search; with 0 this one, which then does not survive a crash of OpenCV. `timeout` is
    in seconds per frame; `shard` (i, n) tracks only the videos i, i + n, i + 2n, …; `check` is called before each
    video, and may raise an exception to stop the work.
    """
    started = time.monotonic()
    check_tracking(tracker.backbone)
    how = {"tracker": tracker.config.model_dump(mode="json"), "mean": list(tracker.mean), "std": list(tracker.std)}
    tasks, kept = _tasks(videos, reading, out, {"format": TRACKS_FORMAT, **how, **made_with}, shard)
    done = Tracked(kept)
    prepared = ordered(
        lambda task, guard: _prepare(task, guard, proposals or out, tracker.config, reading),
        tasks,
        workers,
        timeout=timeout,
        on_failure=lambda number, reason: None,  # `_prepare` returns the reason
    )
    bar = progress(prepared, title="track", unit="video", total=len(tasks), disable=not tasks)
    with closing(prepared):
        for task, video in zip(tasks, bar, strict=True):
            check()
            if isinstance(video, str):
                done.left_out[tracks_name(task.name, task.record)] = video
                continue
            results = [tracker.track(chunk.frames, chunk.boxes, size=video.size) for chunk in video.chunks]
            starts = [chunk.start for chunk in video.chunks]
            tracks = join_tracks([replace(t, frames=s + t.frames) for s, t in zip(starts, results, strict=True)])
            write_tracks(task.path, tracks, {**task.made_with, "video": task.made_with["video"] | video.variable_rate})
            done.add(task.name, len(np.unique(tracks.track)), video)
    done.seconds = time.monotonic() - started
    return done


def join_parts(parts: Iterable[Tracked], videos: VideoList) -> Tracked:
    """Add up what `track_list` does for all shards of a list; names are in the order of the list.

    The time is that from the first part to the last, which may be made at the same time.
    """
    started = time.monotonic()
    position: dict[str, int] = {}
    for n, (name, record) in enumerate(zip(videos.names, videos.records, strict=True)):
        position.setdefault(name, n)
        position.setdefault(tracks_name(name, record), n)
    whole = Tracked(0)
    for part in parts:
        for name, value in vars(part).items():
            setattr(whole, name, getattr(whole, name) | value if name == "left_out" else getattr(whole, name) + value)
    whole.made.sort(key=position.__getitem__)
    whole.untracked.sort(key=position.__getitem__)
    whole.left_out = {name: whole.left_out[name] for name in sorted(whole.left_out, key=position.__getitem__)}
    whole.seconds = time.monotonic() - started
    return whole


class _Task(NamedTuple):
    number: int
    name: str
    record: VideoRecord
    path: Path  # of the tracks
    made_with: dict[str, Any]  # everything that determines the tracks


def _tasks(
    videos: VideoList, reading: DecodeSettings, out: Path, settings: Mapping[str, Any], shard: tuple[int, int]
) -> tuple[list[_Task], int]:
    """Return the videos of a shard that have no valid tracks, and the number of the others."""
    rows: dict[Path, tuple[str, VideoRecord]] = {}
    check_video_names(videos.names, videos.records)
    for name, record in zip(videos.names, videos.records, strict=True):
        rows.setdefault(tracks_file(out, name, record), (name, record))
    mine = list(rows.items())[shard[0] :: shard[1]]
    tasks: list[_Task] = []
    stale: list[str] = []
    for path, (name, record) in mine:
        size, _ = state_of_video(record.path) or (0, 0)
        needed = {**settings, "video": {"bytes": size, "fps": record.fps or reading.fps}}
        before: dict[str, Any] = {}
        with suppress(DataError):  # missing or damaged
            _, before = read_tracks(path)
        if before and not record.start is record.end is None and is_video_file(Path(record.path)):
            with suppress(DataError), reading.open(record) as video:  # an error is reported when it is tracked
                needed["video"] |= _variable_rate(record, video.meta)
        changed = config_differences(before, needed) if before else []
        if changed:
            stale.append(f"{path}, was made with another {', '.join(name for name, _, _ in changed)}")
        if changed or not before:
            tasks.append(_Task(len(tasks), name, record, path, needed))
    if stale:
        _log.warning("%d files of tracks are made again: the first, %s", len(stale), stale[0])
    return tasks, len(mine) - len(tasks)


def _variable_rate(record: VideoRecord, meta: VideoMeta) -> dict[str, str]:
    """What the frames of a span depend on besides its seconds: the times of the frames, if the rate varies."""
    if meta.times is None or record.start is record.end is None:
        return {}
    return {"times": hashlib.sha256(meta.times.tobytes()).hexdigest()}


# One video, in a worker -------------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    start: int  # first frame, in the record's part of the video
    frames: Frames  # (T, C, H, W), at the size of the network's input
    boxes: list[Boxes]  # of each frame, pixels of the video


class _Prepared(NamedTuple):
    chunks: list[_Chunk]
    size: tuple[int, int]  # height and width of the video
    searched: int  # frames
    bare: int  # frames without a proposal
    variable_rate: dict[str, str]


def _prepare(
    task: _Task, guard: ItemGuard, folder: Path, config: TrackerSettings, reading: DecodeSettings
) -> _Prepared | str:
    """Decode the chunks of a video, and read or search the proposals of their frames; or return why this fails."""
    if task.number in guard.failed:
        return guard.failed[task.number]
    guard.at(task.number)
    cv2.setNumThreads(0)  # the workers share the cores already
    path = proposals_file(folder, task.name, task.record)
    chunks, size = [], (0, 0)
    try:
        with reading.open(task.record) as video:
            offset, part = resolve_span(video.meta, task.record)
            starts = chunk_starts(part.num_frames, config.chunks, config.frames)
            numbers = [np.arange(n, min(n + config.frames, part.num_frames), config.stride) for n in starts]
            union = np.unique(np.concatenate(numbers))
            key = proposals_key(config.search, task.record.path, video.meta)
            known = read_proposals(path, key, union)
            boxes = {} if known is None else dict(zip(union.tolist(), known, strict=True))
            for start, of_chunk in zip(starts, numbers, strict=True):
                guard.at(task.number)
                frames = video.frames(offset + of_chunk)
                size = frames.shape[2], frames.shape[3]
                for number, image in zip(of_chunk.tolist(), frames.transpose(0, 2, 3, 1), strict=True):
                    if number not in boxes:
                        guard.at(task.number)
                        boxes[number] = propose(np.ascontiguousarray(image), config.search)
                small = short_side(frames, config.size)
                chunks.append(_Chunk(start, small, [boxes[number] for number in of_chunk.tolist()]))
            variable_rate = _variable_rate(task.record, video.meta)
    except DataError as error:
        return str(error).removeprefix(f"{task.record.path}: ")
    if known is None:
        write_proposals(path, key, union, [boxes[number] for number in union.tolist()])
    bare = sum(np.array_equal(regions, whole_frame(*size)) for regions in boxes.values())
    return _Prepared(chunks, size, len(union), bare, variable_rate)
