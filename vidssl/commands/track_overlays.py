"""Draw the tracks of videos as mp4 files."""

from collections.abc import Container, Iterator
from pathlib import Path

import numpy as np

from vidssl.data.dataset import resolve_span
from vidssl.data.track_files import read_tracks, tracks_name
from vidssl.data.video_list import VideoList
from vidssl.progress import progress
from vidssl.types import Tracks, VideoRecord
from vidssl.video.reader import DecodeSettings, Video
from vidssl.viz.track_overlay import Image, draw_pairs, draw_tracks, write_mp4

_CHUNK = 32  # frames that are decoded and drawn at a time
_PAIRS = 24  # pairs of frames that are drawn per video
_PAIRS_PER_SECOND = 4.0


def draw_overlays(
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
            write_mp4(target, _paths(video, offset, tracks), part.fps)


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
