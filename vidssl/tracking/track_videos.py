"""Track regions through all videos of a list: workers decode and search, the network runs in this process."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from vidssl.atomic import state_of
from vidssl.config import differences
from vidssl.data.dataset import resolve_span
from vidssl.data.samplers import chunk_starts
from vidssl.data.track_files import read_tracks, tracks_file, tracks_name, write_tracks
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.models.backbones import Backbone
from vidssl.progress import progress
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
from vidssl.tracking.tracker import TrackerSettings, no_tracks, track_video
from vidssl.transforms.crops import short_side
from vidssl.types import Frames, Tracks, VideoRecord
from vidssl.video.reader import DecodeSettings
from vidssl.workers import ItemGuard, ordered

_log = logging.getLogger(__name__)

FORMAT = 1  # of the tracks; raise it when a change of the tracker changes tracks


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
    search_seconds: float = 0.0  # selective search, over all workers
    worker_seconds: float = 0.0  # all work of the workers
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"left out: {name}: {reason}" for name, reason in self.left_out.items()]
        total = len(self.made) + self.kept + len(self.left_out)
        lines.append(f"{total} videos: {len(self.made)} tracked, {self.kept} kept, {len(self.left_out)} left out")
        if self.untracked:
            shown = ", ".join(self.untracked[:3]) + (", …" if len(self.untracked) > 3 else "")
            lines.append(
                f"{len(self.untracked)} without a track (too short for the gap, or below the threshold): {shown}"
            )
        if self.made:
            fraction = self.search_seconds / max(self.worker_seconds, 1e-9)
            lines.append(
                f"{self.tracks} tracks in {self.frames} frames, {self.bare} of them without a proposal; "
                f"{self.seconds:.0f} s, {self.frames / self.seconds:.1f} frames/s, "
                f"{fraction:.0%} of the workers' time in selective search"
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
    """Track regions through every video of a list; write `out/tracks/<name>.npz` for each.

    Proposals do not depend on the network: they are cached in `out/proposals/`. Tracks that were made with the same
    weights and settings from the same video (bytes, frame rate) are kept, so that an interrupted run continues; others
    are made again, with a warning. Modification times are ignored: tracks stay valid when videos are copied.

    Args:
        backbone: A ResNet, on the device.
        videos: The list.
        out: Folder for the files.
        config: Settings of the tracker.
        device: Device of the backbone.
        mean: Of pixels in [0, 1]; one value, or one per channel.
        std: As `mean`.
        made_with: Identifies the weights; plain data, written to each file with the settings.
        proposals: Folder for the proposals; None: `out`.
        reading: How videos are decoded.
        workers: Processes that decode and search; 0: this one, which then does not survive a crash of OpenCV.
        timeout: Seconds for one frame.
        shard: (i, n) tracks the videos i, i + n, i + 2n, … only.
        check: Called before each video; an exception from it stops the work.
        title: Title of the progress bar.

    Raises:
        ConfigError: The backbone has no third stage, or OpenCV no selective search.
        DataError: Two videos have one file name, or a file cannot be written.
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
    tasks, kept = _tasks(videos, out, settings, reading, shard)
    done = Tracked(kept)
    prepared = ordered(
        lambda task, guard: _prepare(task, guard, proposals or out, config, reading),
        tasks,
        workers,
        timeout=timeout,
        on_failure=lambda number, reason: None,  # `_prepare` returns the reason
    )
    with closing(prepared), progress(title=title, unit="video", total=len(tasks), disable=not tasks) as bar:
        for task in tasks:
            check()
            video = next(prepared)
            bar.update()
            if video.failure is not None:
                done.left_out[tracks_name(task.name, task.record)] = video.failure
                continue
            found = [
                track_video(backbone, chunk.frames, chunk.boxes, config, device, mean, std, size=video.size)
                for chunk in video.chunks
            ]
            tracks = _join(found, [chunk.start for chunk in video.chunks])
            path = tracks_file(out, task.name, task.record)
            write_tracks(path, tracks, _key(settings, task.record, reading))
            count = len(np.unique(tracks.track))
            done.made.append(task.name)
            done.untracked += [] if count else [task.name]
            done.tracks += count
            done.frames += video.searched
            done.bare += video.bare
            done.search_seconds += video.search_seconds
            done.worker_seconds += video.seconds
    done.seconds = time.monotonic() - started
    return done


class _Task(NamedTuple):
    number: int
    name: str
    record: VideoRecord


def _tasks(
    videos: VideoList, out: Path, settings: Mapping[str, Any], reading: DecodeSettings, shard: tuple[int, int]
) -> tuple[list[_Task], int]:
    """Return the videos of a shard that have no valid tracks, and the number of the others."""
    by_file: dict[Path, _Task] = {}
    for name, record in zip(videos.names, videos.records, strict=True):
        task = _Task(len(by_file), name, record)
        other = by_file.setdefault(tracks_file(out, name, record), task)
        if other.record.path != record.path:
            raise DataError(f"{other.name} and {name} would have one file of tracks: rename one of the videos")
    mine = list(by_file.items())[shard[0] :: shard[1]]
    tasks: list[_Task] = []
    stale: list[tuple[Path, str]] = []
    for path, task in mine:
        made_with = _made_with(path)
        changed = differences(made_with, _key(settings, task.record, reading)) if made_with else []
        if changed:
            stale.append((path, ", ".join(name for name, _, _ in changed)))
        if changed or not made_with:
            tasks.append(task)
    if stale:
        _log.warning(
            "%d files of tracks are made again: the first, %s, was made with another %s", len(stale), *stale[0]
        )
    return tasks, len(mine) - len(tasks)


def _made_with(path: Path) -> dict[str, Any]:
    """Read the settings of existing tracks; empty if the file is missing or damaged."""
    try:
        return read_tracks(path)[1] if path.exists() else {}
    except DataError:
        return {}


def _key(settings: Mapping[str, Any], record: VideoRecord, reading: DecodeSettings) -> dict[str, Any]:
    """Return everything that determines the tracks of a video."""
    size, _ = state_of(Path(record.path))
    return {**settings, "video": {"bytes": size, "fps": record.fps or reading.fps}}


def _join(chunks: Sequence[Tracks], starts: Sequence[int]) -> Tracks:
    """Join the tracks of chunks, with frames numbered from the start of the record's part."""
    parts, count = [no_tracks()], 0
    for start, tracks in zip(starts, chunks, strict=True):
        parts.append(Tracks(start + tracks.frames, tracks.boxes, tracks.scores, count + tracks.track))
        count += int(tracks.track.max(initial=-1)) + 1
    return Tracks(
        np.concatenate([part.frames for part in parts]),
        np.concatenate([part.boxes for part in parts]),
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.track for part in parts]),
    )


# One video, in a worker -------------------------------------------------------------------------------------


class _Chunk(NamedTuple):
    start: int  # first frame, in the record's part of the video
    frames: Frames  # (T, C, H, W), at the size of the network's input
    boxes: list[Boxes]  # of each frame, pixels of the video


class _PreparedVideo(NamedTuple):
    """The frames and proposals of a video, or the reason why there are none."""

    chunks: tuple[_Chunk, ...] = ()
    size: tuple[int, int] = (0, 0)  # height and width of the video
    searched: int = 0  # frames
    bare: int = 0  # frames without a proposal
    search_seconds: float = 0.0
    seconds: float = 0.0
    failure: str | None = None


def _prepare(
    task: _Task, guard: ItemGuard, folder: Path, config: TrackerSettings, reading: DecodeSettings
) -> _PreparedVideo:
    """Decode the chunks of a video, and read or search the proposals of their frames."""
    if task.number in guard.failed:
        return _PreparedVideo(failure=guard.failed[task.number])
    guard.at(task.number)
    cv2.setNumThreads(0)  # the workers share the cores already
    began, search_seconds = time.perf_counter(), 0.0
    path = proposals_file(folder, task.name, task.record)
    chunks, size = [], (0, 0)
    try:
        with reading.open(task.record) as video:
            offset, part = resolve_span(video.meta, task.record)
            starts = chunk_starts(part.num_frames, config.chunks, config.frames)
            ends = [min(start + config.frames, part.num_frames) for start in starts]
            numbers = [np.arange(*span, config.stride) for span in zip(starts, ends, strict=True)]
            union = np.unique(np.concatenate(numbers))
            key = proposals_key(config.search, task.record.path, video.meta)
            known = read_proposals(path, key, union)
            boxes = {} if known is None else dict(zip(union.tolist(), known, strict=True))
            for start, wanted in zip(starts, numbers, strict=True):
                guard.at(task.number)
                frames = video.frames(offset + wanted)
                size = frames.shape[2], frames.shape[3]
                search_began = time.perf_counter()
                for number, image in zip(wanted.tolist(), frames.transpose(0, 2, 3, 1), strict=True):
                    if number not in boxes:
                        guard.at(task.number)
                        boxes[number] = propose(np.ascontiguousarray(image), config.search)
                search_seconds += time.perf_counter() - search_began
                small = short_side(frames, config.size)
                chunks.append(_Chunk(start, small, [boxes[number] for number in wanted.tolist()]))
    except DataError as error:
        return _PreparedVideo(failure=str(error).removeprefix(f"{task.record.path}: "))
    if known is None:
        write_proposals(path, key, union, [boxes[number] for number in union.tolist()])
    bare = sum(np.array_equal(found, whole_frame(*size)) for found in boxes.values())
    seconds = time.perf_counter() - began
    return _PreparedVideo(tuple(chunks), size, len(union), bare, search_seconds, seconds)
