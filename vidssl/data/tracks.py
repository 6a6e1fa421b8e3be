"""The files of tracks, one a record of a list, and the patch pairs that are drawn from them."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import write_whole
from vidssl.errors import DataError
from vidssl.transforms.crops import Window
from vidssl.types import Tracks, VideoRecord

VISIBLE = 0.5  # share of a box that each view must show
SMALLEST = 1 / 8  # of the side of a view: a smaller box, or what is seen of it, says too little


def tracks_file(folder: Path, name: str, record: VideoRecord) -> Path:
    """Name the file of a record's tracks: that of the video, with the span where the record means a part.

    Args:
        folder: What `tools/track_regions.py --out` named.
        name: Of the video, as its list writes it.
        record: The row.
    """
    return folder / "tracks" / f"{tracks_name(name, record)}.npz"


def tracks_name(name: str, record: VideoRecord) -> str:
    """Name what is tracked: the video, with the span where the record means a part."""
    parts = [
        part for part in name.split("/") if part not in ("", ".", "..")
    ]  # no Path: it would intern them all
    end = "end" if record.end is None else f"{record.end:.3f}"
    span = "" if record.start is None and record.end is None else f"@{record.start or 0:.3f}-{end}"
    return "/".join(parts) + span


def write_tracks(path: Path, tracks: Tracks, made_with: Mapping[str, Any]) -> None:
    """Write tracks and what they were made with, whole or not at all.

    Raises:
        DataError: It cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(
        content,
        frames=tracks.frames.astype(np.int32),
        boxes=tracks.boxes.astype(np.float32),
        scores=tracks.scores.astype(np.float32),
        track=tracks.track.astype(np.int32),
        made_with=np.array(json.dumps(made_with, sort_keys=True)),
    )
    write_whole(path, content.getvalue())


def read_tracks(path: Path) -> tuple[Tracks, dict[str, Any]]:
    """Read tracks, and what they were made with.

    Raises:
        DataError: The file is missing or is no file of tracks.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            tracks = Tracks(
                file["frames"].astype(np.int64),
                file["boxes"].astype(np.float32),
                file["scores"].astype(np.float32),
                file["track"].astype(np.int64),
            )
            return tracks, json.loads(str(file["made_with"]))
    except FileNotFoundError:
        raise DataError(f"{path}: there are no tracks: make them with tools/track_regions.py") from None
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(f"{path} is no file of tracks ({error}): delete it and make it again") from None


def sample_track(
    tracks: Tracks,
    frames: Sequence[int],
    windows: Sequence[Window],
    sizes: Sequence[int],
    generator: np.random.Generator,
    visible: float = VISIBLE,
) -> NDArray[np.float32]:
    """Draw one thing that all views of a sample show, and say where it is in each: a patch pair.

    All tracks are equally likely that have a row in each of the frames, whose box is visible in each view to the share
    `visible` of its area or more, and at least `SMALLEST` of the view's side wide and high there. Without such a track
    the boxes are the whole views, (0, 0, S, S): a pair of frames.

    Args:
        tracks: Of the video.
        frames: The frame that stands for each view, in the numbers of the tracks.
        windows: What each view shows of its frames.
        sizes: Side of each view, pixels.
        generator: Source of random numbers.
        visible: Fraction of a box that each view must show.

    Returns:
        (views, 4) xyxy, pixels of each view.
    """
    shown: list[dict[int, NDArray[np.float32]]] = []  # for each view: number of a track, and its box there
    for frame, window, size in zip(frames, windows, sizes, strict=True):
        rows = np.flatnonzero(tracks.frames == frame)
        boxes = window.boxes(tracks.boxes[rows], size)
        large = (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=size) >= SMALLEST * size
        seen = large & (window.visible(tracks.boxes[rows]) >= visible)
        shown.append(dict(zip(tracks.track[rows[seen]].tolist(), boxes[seen], strict=True)))
    common = sorted(set.intersection(*map(set, shown)))
    if not common:
        return np.array([(0, 0, size, size) for size in sizes], np.float32)
    track = common[generator.integers(len(common))]
    return np.stack([boxes[track] for boxes in shown])
