"""Track the regions of the videos of a list with a network, and draw the tracks."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vidssl.atomic import check_folder
from vidssl.commands.extract import shard_of
from vidssl.commands.load import LoadOptions as Options
from vidssl.commands.load import load_subject
from vidssl.config import Tree, bind, override
from vidssl.data.dataset import resolve_span
from vidssl.data.tracks import read_tracks, tracks_name
from vidssl.data.video_list import VideoList, read_list
from vidssl.errors import ConfigError
from vidssl.progress import progress
from vidssl.tracking import Tracked, TrackerSettings, track_list
from vidssl.types import Tracks, VideoRecord
from vidssl.video.reader import DecodeSettings, Video
from vidssl.viz.overlay import Image, draw_pairs, draw_tracks, write_mp4
from vidssl.workers import usable_cpus

_TOGETHER = 32  # frames that are decoded and drawn at a time
_PAIRS = 24  # pairs of frames that are shown of a video
_PAIRS_A_SECOND = 4.0


def track(
    options: Options,
    videos: Path,
    out: Path,
    config: TrackerSettings,
    *,
    shard: str | None = None,
    overlays: int = 0,
    timeout: float = 120.0,
) -> Tracked:
    """Write the tracks of each video of a list, `out/tracks/<name>.npz`, and `out/overlays/<name>.mp4` to look at.

    Args:
        options: Which network; `workers`: one per usable CPU where it is None. Clips, crops, size and batch size mean
            nothing.
        videos: The list.
        out: Folder for the files; what is there of the same network and settings is kept.
        config: How regions are found and tracked.
        shard: `i/n`: only the videos i, i + n, i + 2n, … of the list.
        overlays: Videos of which a picture is made, the first ones.
        timeout: Seconds that one frame may take.

    Raises:
        ConfigError: There is no such shard, the network cannot look at regions, or OpenCV has no selective search.
        DataError: The list cannot be read, or a file cannot be written.
    """
    given = [name for name in ("clips", "crops", "size", "batch_size") if getattr(options, name) is not None]
    if given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{names}: of frames that are tracked there is none; see --tracker KEY=VALUE")
    check_folder(out)
    part = (0, 1) if shard is None else shard_of(shard)
    listed = read_list(videos, options.root, options.allow_external)
    subject = load_subject(options)
    test = subject.test
    workers = usable_cpus() if options.workers is None else options.workers
    done = track_list(
        subject.backbone,
        listed,
        out,
        config,
        subject.device,
        test.mean,
        test.std,
        {"weights": subject.weights},
        reading=test,
        workers=workers,
        timeout=timeout,
        shard=part,
    )
    _draw(listed, out, test, part, overlays, done.left_out)
    return done


def settings(texts: Sequence[str]) -> TrackerSettings:
    """Make settings of `KEY=VALUE` texts; what they do not name is as by default.

    Raises:
        ConfigError: Every mistake, at once.
    """
    tree: Tree = {}
    for text in texts:
        override(tree, text)
    return bind(TrackerSettings, tree, "--tracker")


def _draw(
    listed: VideoList,
    out: Path,
    reading: DecodeSettings,
    part: tuple[int, int],
    count: int,
    left_out: dict[str, str],
) -> None:
    records = {
        tracks_name(name, record): record for name, record in zip(listed.names, listed.records, strict=True)
    }
    mine = list(records)[part[0] :: part[1]]
    chosen = [name for name in mine if name not in left_out][:count]
    for name in progress(chosen, title="overlays", unit="video", disable=not chosen):
        tracks, _ = read_tracks(out / "tracks" / f"{name}.npz")
        if len(tracks.frames):
            target, record = out / "overlays" / f"{name.removesuffix('.mp4')}.mp4", records[name]
            _write(target, record, tracks, reading)


def _write(target: Path, record: VideoRecord, tracks: Tracks, reading: DecodeSettings) -> None:
    with reading.open(record) as video:
        offset, part = resolve_span(video.meta, record)
        if len(tracks.frames) == 2 * len(np.unique(tracks.track)):  # sums know no way between two frames
            write_mp4(target, _pairs(video, offset, tracks), _PAIRS_A_SECOND)
        else:
            write_mp4(target, _paths(video, offset, tracks), part.fps)


def _paths(video: Video, offset: int, tracks: Tracks) -> Iterator[Image]:
    numbers = np.unique(tracks.frames)
    for start in range(0, len(numbers), _TOGETHER):
        some = numbers[start : start + _TOGETHER]
        yield from draw_tracks(video.frames(offset + some), some.tolist(), tracks)


def _pairs(video: Video, offset: int, tracks: Tracks) -> Iterator[Image]:
    frames = tracks.frames.reshape(-1, 2)
    pairs = np.unique(frames, axis=0)
    for pair in pairs[np.unique(np.linspace(0, len(pairs) - 1, _PAIRS).round().astype(np.int64))]:
        here = (frames == pair).all(axis=1)
        boxes, scores = tracks.boxes.reshape(-1, 2, 4)[here], tracks.scores[::2][here]
        yield draw_pairs(video.frames(offset + pair), boxes, scores)
