"""Track the regions of the videos of a list."""

import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from vidssl.base.config import bind
from vidssl.base.errors import ConfigError
from vidssl.base.output_folder import check_file_names, claim, only_run_in
from vidssl.base.progress import Report, progress
from vidssl.base.types import Tracks, VideoRecord
from vidssl.base.worker_pool import usable_cpus
from vidssl.data.dataset import resolve_span
from vidssl.data.track_files import read_tracks, tracks_name
from vidssl.data.video_list import VideoList
from vidssl.jobs.extract import shard_of
from vidssl.jobs.job import Count, File, Model, NetworkOptions, Positive, Videos, job, read_videos
from vidssl.jobs.load_network import load_subject, one_network
from vidssl.jobs.train import read_config
from vidssl.tracking import Tracked, Tracker, TrackerSettings, track_list
from vidssl.tracking.overlay import _Image, draw_pairs, draw_tracks
from vidssl.video.reader import DecodeSettings, Video
from vidssl.video.write import write_mp4

_CHUNK = 32  # frames that are decoded and drawn at a time
_PAIRS = 24  # pairs of frames that are drawn per video
_PAIRS_PER_SECOND = 4.0
_OF_CLIPS = ("clips", "crops", "size", "short_side", "batch_size", "layer", "grid", "grid_frames", "precision")
_UNUSED = (*_OF_CLIPS, "labels")


@job
def track(
    model: Model,
    videos: Videos,
    *,
    out: File,
    shard: str | None = None,
    overlay: bool | Count = False,
    tracker: Sequence[str | Mapping[str, Any]] = (),
    timeout: Positive = 120.0,
    tracking: Callable[..., Tracked] = track_list,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> Tracked:
    """Track the regions of the videos of a list, `out/tracks/NAME.npz`; files of an equal earlier run are kept.

    Args:
        model: The network, as in `test`.
        videos: The videos.
        out: Folder for tracks/, proposals/, overlays/.
        shard: Only part i/n of n, from 0: the videos i, i + n, i + 2n, … of the list.
        overlay: Draw the tracks of the first N videos, or of all.
        tracker: Settings of the tracker, as size=128 search.short_side=96; docs/tracking.md lists them.
        timeout: Seconds without a new frame.
        tracking: Does the work, such as on other machines.
        progress: As of `test`.
        options: See `NetworkOptions`; of the clips only `stream` is used.
    """
    if unused := [name for name in _UNUSED if name in options]:
        raise ConfigError(f"tracks are made with the settings of the tracker: leave out {' and '.join(unused)}")
    settings, part = tracker_settings(tracker), (0, 1) if shard is None else shard_of(shard)
    query, folder = read_videos(videos, options), Path(out)
    _claim(folder, query)
    subject = one_network(load_subject(model, options))
    test = subject.test
    with only_run_in(folder, shared=shard is not None):  # shards write other files
        network = subject.test.network(subject.backbone)
        regions = Tracker(network, settings, subject.device, test.mean, test.std)
        weights, workers = {"weights": subject.weights}, options.get("workers", usable_cpus())
        done = tracking(regions, query, test, folder, weights, workers=workers, timeout=timeout, shard=part)
        num_overlays = sys.maxsize if overlay is True else int(overlay)
        _draw_overlays(query, folder, test, part, num_overlays, done.left_out)
    done.complete = options.get("allow_missing", False) or not done.left_out
    return done


def _claim(out: Path, videos: VideoList) -> None:
    """Decide that tracks of a list may be written to a folder."""
    names = ("tracks", "proposals", "overlays")
    claim(out, "tracks", inputs={"root": videos.root}, read=[videos.path])
    files = [tracks_name(name, record) for name, record in zip(videos.names, videos.records, strict=True)]
    for folder in names:
        check_file_names(out / folder, [f"{file}.npz" for file in files])


def tracker_settings(settings: Sequence[str | Mapping[str, Any]]) -> TrackerSettings:
    """Bind settings, `KEY=VALUE` or dictionaries; others have their defaults."""
    return bind(TrackerSettings, read_config({}, settings)[0], "tracker")


def _draw_overlays(
    videos: VideoList, out: Path, decoding: DecodeSettings, shard: tuple[int, int], count: int, left_out: Container[str]
) -> None:
    """Draw the tracks of the first `count` videos of a shard, `out/tracks/<name>.npz`, to `out/overlays/<name>.mp4`."""
    records = {tracks_name(name, record): record for name, record in zip(videos.names, videos.records, strict=True)}
    names = [name for name in list(records)[shard[0] :: shard[1]] if name not in left_out][:count]
    for name in progress(names, title="overlays", unit="video", disable=not names):
        tracks, _ = read_tracks(out / "tracks" / f"{name}.npz")
        if len(tracks.frames):
            target = out / "overlays" / f"{name.removesuffix('.mp4')}.mp4"
            _draw_video(target, records[name], tracks, decoding)


def _draw_video(target: Path, record: VideoRecord, tracks: Tracks, decoding: DecodeSettings) -> None:
    with decoding.open(record) as video:
        offset, part = resolve_span(video.meta, record)
        # Tracks of two frames, which the variant `sum` makes, have no path between the frames.
        if len(tracks.frames) == 2 * len(np.unique(tracks.track)):
            write_mp4(target, _pairs(video, offset, tracks), _PAIRS_PER_SECOND)
        else:
            times = None if part.times is None else part.times[np.unique(tracks.frames)].tolist()
            write_mp4(target, _paths(video, offset, tracks), part.fps, times)


def _paths(video: Video, offset: int, tracks: Tracks) -> Iterator[_Image]:
    numbers = np.unique(tracks.frames)
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        yield from draw_tracks(video.frames(offset + chunk), chunk.tolist(), tracks)


def _pairs(video: Video, offset: int, tracks: Tracks) -> Iterator[_Image]:
    frames = tracks.frames.reshape(-1, 2)
    pairs = np.unique(frames, axis=0)
    for pair in pairs[np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).round().astype(np.int64))]:
        here = (frames == pair).all(axis=1)
        boxes, scores = tracks.boxes.reshape(-1, 2, 4)[here], tracks.scores[::2][here]
        yield draw_pairs(video.frames(offset + pair), boxes, scores)
