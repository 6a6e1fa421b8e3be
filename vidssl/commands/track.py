"""The command `track`: track the regions of the videos of a list."""

import argparse
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from vidssl.commands.arguments import print_results
from vidssl.commands.extract import shard_of
from vidssl.commands.load import LoadOptions, load_subject, network_options
from vidssl.config import Tree, bind, override
from vidssl.data.dataset import resolve_span
from vidssl.data.read_input import read_input
from vidssl.data.track_files import read_tracks, tracks_name
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.output_folder import check_names, claim, only_run_in
from vidssl.progress import progress
from vidssl.tracking import Tracked, Tracker, TrackerSettings, track_list
from vidssl.types import Tracks, VideoRecord
from vidssl.video.reader import DecodeSettings, Video
from vidssl.video.write import write_mp4
from vidssl.viz.track_overlay import Image, draw_pairs, draw_tracks
from vidssl.worker_pool import usable_cpus

_CHUNK = 32  # frames that are decoded and drawn at a time
_PAIRS = 24  # pairs of frames that are drawn per video
_PAIRS_PER_SECOND = 4.0


def run(parsed: argparse.Namespace, track: Callable[..., Tracked] = track_list) -> None:
    """Track, and exit with 1 if some videos cannot be read."""
    settings = tracker_settings(parsed.tracker)
    rest = {"shard": parsed.shard, "overlays": parsed.overlay, "timeout": parsed.timeout}
    done = track_videos(network_options(parsed), parsed.input, parsed.out, settings, track=track, **rest)
    print_results(parsed, done, done)
    if done.left_out and not parsed.allow_missing:
        sys.exit(1)


def track_videos(
    options: LoadOptions,
    videos: Path,
    out: Path,
    config: TrackerSettings,
    *,
    shard: str | None = None,
    overlays: int = 0,
    timeout: float = 120.0,
    track: Callable[..., Tracked] = track_list,
) -> Tracked:
    """Write the tracks of each video of a list, `out/tracks/<name>.npz`; files of an equal earlier run are kept.

    With a `shard` i/n only the videos i, i + n, i + 2n, … of the list are tracked. The tracks of the first `overlays`
    videos are drawn, `out/overlays/<name>.mp4`. `timeout` is in seconds per frame. `track` does the work.
    """
    part = (0, 1) if shard is None else shard_of(shard)
    listed = read_input(videos, options.root, options.allow_external)
    _claim(out, listed)
    subject = load_subject(options)
    test = subject.test
    with only_run_in(out, shared=shard is not None):  # shards write other files
        done = track(
            Tracker(subject.test.network(subject.backbone), config, subject.device, test.mean, test.std),
            listed,
            test,
            out,
            {"weights": subject.weights},
            workers=usable_cpus() if options.workers is None else options.workers,
            timeout=timeout,
            shard=part,
        )
        _draw_overlays(listed, out, test, part, overlays, done.left_out)
    return done


def _claim(out: Path, listed: VideoList) -> None:
    """Decide that tracks of a list may be written to a folder."""
    names = ("tracks", "proposals", "overlays")
    claim(out, "tracks", names, inputs={"root": listed.root}, read=[listed.path], before=_has_tracks)
    files = [tracks_name(name, record) for name, record in zip(listed.names, listed.records, strict=True)]
    for folder in names:
        check_names(out / folder, [f"{file}.npz" for file in files])


def _has_tracks(out: Path) -> bool:
    """Whether a folder holds tracks of a version that wrote no mark."""
    first = next((out / "tracks").rglob("*.npz"), None)
    with suppress(DataError):
        return first is not None and bool(read_tracks(first))
    return False


def tracker_settings(texts: Sequence[str]) -> TrackerSettings:
    """Parse `KEY=VALUE` texts; other settings have their defaults."""
    tree: Tree = {}
    for text in texts:
        override(tree, text)
    return bind(TrackerSettings, tree, "--tracker")


def _draw_overlays(
    listed: VideoList, out: Path, decoding: DecodeSettings, shard: tuple[int, int], count: int, left_out: Container[str]
) -> None:
    """Draw the tracks of the first `count` videos of a shard, `out/tracks/<name>.npz`, to `out/overlays/<name>.mp4`."""
    records = {tracks_name(name, record): record for name, record in zip(listed.names, listed.records, strict=True)}
    chosen = [name for name in list(records)[shard[0] :: shard[1]] if name not in left_out][:count]
    for name in progress(chosen, title="overlays", unit="video", disable=not chosen):
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
            shown = None if part.times is None else part.times[np.unique(tracks.frames)].tolist()
            write_mp4(target, _paths(video, offset, tracks), part.fps, shown)


def _paths(video: Video, offset: int, tracks: Tracks) -> Iterator[Image]:
    numbers = np.unique(tracks.frames)
    for start in range(0, len(numbers), _CHUNK):
        chunk = numbers[start : start + _CHUNK]
        yield from draw_tracks(video.frames(offset + chunk), chunk.tolist(), tracks)


def _pairs(video: Video, offset: int, tracks: Tracks) -> Iterator[Image]:
    frames = tracks.frames.reshape(-1, 2)
    pairs = np.unique(frames, axis=0)
    for pair in pairs[np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).round().astype(np.int64))]:
        here = (frames == pair).all(axis=1)
        boxes, scores = tracks.boxes.reshape(-1, 2, 4)[here], tracks.scores[::2][here]
        yield draw_pairs(video.frames(offset + pair), boxes, scores)
