"""Files of tracks, one for each record of a list, and the patch pairs that are drawn from them."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import write_whole
from vidssl.base.errors import DataError
from vidssl.base.safe_parse import parse_json, read_arrays
from vidssl.base.types import Tracks, VideoRecord
from vidssl.transforms.crops import Window

VISIBLE = 0.5  # fraction of a box that each view must contain
_STORED = {"frames": np.int32, "boxes": np.float32, "scores": np.float32, "track": np.int32}  # fields of `Tracks`
SMALLEST = 1 / 8  # of the side of a view: smaller visible boxes carry too little information


def tracks_file(folder: Path, name: str, record: VideoRecord) -> Path:
    """Return the file of a record's tracks below the output folder of `vidssl track`."""
    return folder / "tracks" / f"{tracks_name(name, record)}.npz"


def tracks_name(name: str, record: VideoRecord) -> str:
    """Name what is tracked: the video as named in its list, and its span if the record has one."""
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]  # a Path would intern them all
    end = "end" if record.end is None else f"{record.end:.3f}"
    span = "" if record.start is None and record.end is None else f"@{record.start or 0:.3f}-{end}"
    return "/".join(parts) + span


def check_video_names(names: Iterable[str], records: Iterable[VideoRecord]) -> None:
    """Raise a DataError if two rows of a list that show different frames would have one file of tracks.

    Names have milliseconds, and no frame rate.
    """
    seen: dict[str, tuple[str, VideoRecord]] = {}
    for name, record in zip(names, records, strict=True):
        key = tracks_name(name, record)
        earlier_name, earlier = seen.setdefault(key, (name, record))
        if earlier.path != record.path:
            raise DataError(f"{earlier_name} and {name} would have one file of tracks: rename one of the videos")
        spans = [(row.start or 0, row.end, row.fps) for row in (earlier, record)]
        if (record.start, record.end) != (None, None) and spans[0] != spans[1]:
            difference = "they differ by less than a millisecond, or only in their frame rate; keep one of them"
            raise DataError(f"two spans of {name} would have one file of tracks, {key}.npz: {difference} in the list")


def write_tracks(path: Path, tracks: Tracks, made_with: Mapping[str, Any]) -> None:
    """Write tracks and the settings that they were made with, atomically."""
    arrays = {name: getattr(tracks, name).astype(dtype) for name, dtype in _STORED.items()}
    content = io.BytesIO()
    np.savez_compressed(content, **arrays, made_with=np.array(json.dumps(made_with, sort_keys=True)))
    write_whole(path, content.getvalue())


def read_tracks(path: Path) -> tuple[Tracks, dict[str, Any]]:
    """Read tracks, and the settings that they were made with.

    Raises:
        DataError: The file is missing or damaged.
    """
    try:
        file = read_arrays(path)
        if any(file[name].ndim != (2 if name == "boxes" else 1) for name in _STORED):
            raise ValueError("its arrays have other shapes")
        frames, track = file["frames"].astype(np.int64), file["track"].astype(np.int64)
        boxes, scores = file["boxes"].astype(np.float32), file["scores"].astype(np.float32)
        return Tracks(frames, boxes, scores, track), parse_json(str(file["made_with"]))
    except FileNotFoundError:
        raise DataError(f"{path}: no tracks: make them with vidssl track") from None
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is not a file of tracks ({error}): delete it and make it again") from None


def sample_track(
    tracks: Tracks,
    frames: Sequence[int],
    windows: Sequence[Window],
    sizes: Sequence[int],
    generator: np.random.Generator,
    visible: float = VISIBLE,
) -> NDArray[np.float32]:
    """Draw a track that is visible in all views of a sample, and return its boxes (views, 4), pixels: a patch pair.

    A track can be drawn if it has a box in each of the frames, of which each view contains at least the fraction
    `visible`, at least `SMALLEST` of the side of the view wide and high. All such tracks are equally likely. Without
    one, the boxes are the whole views, (0, 0, S, S). `frames` are the middle frames of the views, `windows` their
    crops, and `sizes` their sides in pixels.
    """
    candidates: list[dict[int, NDArray[np.float32]]] = []  # for each view: track number to its box there
    for frame, window, size in zip(frames, windows, sizes, strict=True):
        rows = np.flatnonzero(tracks.frames == frame)
        boxes = window.boxes(tracks.boxes[rows], size)
        large = (boxes[:, 2:] - boxes[:, :2]).min(axis=1, initial=size) >= SMALLEST * size
        seen = large & (window.visible(tracks.boxes[rows]) >= visible)
        candidates.append(dict(zip(tracks.track[rows[seen]].tolist(), boxes[seen], strict=True)))
    common = sorted(set.intersection(*map(set, candidates)))
    if not common:
        return np.array([(0, 0, size, size) for size in sizes], np.float32)
    track = common[generator.integers(len(common))]
    return np.stack([boxes[track] for boxes in candidates])
