"""Index of packed frames: where each frame of each video is, in one file that is mapped into memory."""

import hashlib
import json
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import write_whole
from vidssl.errors import ConfigError
from vidssl.types import VideoMeta

_FORMAT = "vidssl packed frames 2"
ID_BYTES = 16  # of the id of a shard, a hash of its content: equal shards have one id, others another


@dataclass(frozen=True)
class FrameIndex:
    """The columns of the videos (V), sorted by name, of their frames (F), and the ids of the shards (S)."""

    names: NDArray[np.uint8]  # all names in UTF-8, one after another
    name_ends: NDArray[np.int64]  # (V,)
    first_frames: NDArray[np.int64]  # (V,) row of frame 0 in the columns of frames; the others follow
    num_frames: NDArray[np.int32]  # (V,)
    fps: NDArray[np.float64]  # (V,)
    heights: NDArray[np.int32]  # (V,) pixels
    widths: NDArray[np.int32]  # (V,)
    changed: NDArray[np.int64]  # (V,) state of the original (`original_state`)
    shards: NDArray[np.int32]  # (V,) number of the shard that holds all frames of the video
    offsets: NDArray[np.int64]  # (F,) bytes from the start of the shard
    sizes: NDArray[np.uint32]  # (F,) bytes
    # (V,) place of frame 0 in `times`; the others follow, then the end of the last one. -1: the frame rate is regular.
    first_times: NDArray[np.int64]
    times: NDArray[np.float64]  # seconds, of the videos with a variable frame rate
    shard_ids: NDArray[np.uint8]  # (S * ID_BYTES,) by number

    def __len__(self) -> int:
        return len(self.name_ends)

    def name(self, row: int) -> bytes:
        """Return the name of a video."""
        start = self.name_ends[row - 1] if row else 0
        return self.names[start : self.name_ends[row]].tobytes()

    def find(self, name: str) -> int | None:
        """Return the row of a video; None if there is none of this name."""
        wanted = os.fsencode(name)
        row = bisect_left(range(len(self)), wanted, key=self.name)
        return row if row < len(self) and self.name(row) == wanted else None

    def frames(self, row: int) -> slice:
        """Return the rows of the frames of a video."""
        first, count = int(self.first_frames[row]), int(self.num_frames[row])
        return slice(first, first + count)

    def meta(self, row: int) -> VideoMeta:
        """Return the metadata of a video."""
        columns = (self.num_frames, self.fps, self.heights, self.widths)
        count, fps, height, width = (column[row].item() for column in columns)
        start = int(self.first_times[row])
        if start < 0:
            return VideoMeta(count, fps, height, width)
        times = self.times[start : start + count]
        return VideoMeta(count, fps, height, width, None, times, float(self.times[start + count]))

    def state(self, row: int) -> tuple[int, int]:
        """Return the bytes of all frames of a video, and the state of its original (`changed`)."""
        return int(self.sizes[self.frames(row)].sum(dtype=np.int64)), int(self.changed[row])

    def shard_id(self, number: int) -> bytes:
        """Return the id of a shard."""
        return self.shard_ids[number * ID_BYTES : (number + 1) * ID_BYTES].tobytes()

    def shard_ends(self) -> NDArray[np.int64]:
        """Return for each shard, by number, where its last frame ends, in bytes; 0 for shards without frames."""
        last = self.first_frames + self.num_frames - 1
        ends = np.zeros(int(self.shards.max(initial=-1)) + 1, np.int64)
        np.maximum.at(ends, self.shards, self.offsets[last] + self.sizes[last])
        return ends


_TYPES: dict[str, np.dtype[np.generic]] = {
    **dict.fromkeys(("names", "shard_ids"), np.dtype("u1")),
    **dict.fromkeys(("name_ends", "first_frames", "changed", "offsets", "first_times"), np.dtype("<i8")),
    **dict.fromkeys(("num_frames", "heights", "widths", "shards"), np.dtype("<i4")),
    **dict.fromkeys(("fps", "times"), np.dtype("<f8")),
    "sizes": np.dtype("<u4"),
}
OF_FRAMES = ("offsets", "sizes")
OF_VIDEOS = ("num_frames", "fps", "heights", "widths", "changed", "shards")


def make_index(names: Sequence[bytes], columns: Mapping[str, Sequence[float] | NDArray[Any]]) -> FrameIndex:
    """Make an index of videos in any order: their names, and all columns that do not follow from these."""
    arrays = {name: np.asarray(column, _TYPES[name]) for name, column in columns.items()}
    counts = arrays["num_frames"]
    return _select(list(names), {**arrays, "first_frames": np.cumsum(counts) - counts}, range(len(names)))


def no_videos() -> FrameIndex:
    """Make an index without videos."""
    return make_index([], dict.fromkeys(_TYPES, ()))


def merge_indices(indices: Sequence[FrameIndex]) -> FrameIndex:
    """Join indices. Of a video in several, the row in the shard of the highest number counts, which is the newest."""
    names = [index.name(row) for index in indices for row in range(len(index))]
    joined = (*OF_VIDEOS, *OF_FRAMES, "times")
    columns = {name: np.concatenate([getattr(index, name) for index in indices]) for name in joined}
    starts = np.cumsum([0, *(len(index.offsets) for index in indices)])  # of the frames of each index
    columns["first_frames"] = np.concatenate(
        [index.first_frames + start for index, start in zip(indices, starts, strict=False)]
    )
    starts = np.cumsum([0, *(len(index.times) for index in indices)])
    columns["first_times"] = np.concatenate(
        [
            np.where(index.first_times < 0, -1, index.first_times + start)
            for index, start in zip(indices, starts, strict=False)
        ]
    )
    columns["shard_ids"] = np.zeros(max((len(index.shard_ids) for index in indices), default=0), np.uint8)
    for index in indices:
        columns["shard_ids"][: len(index.shard_ids)] |= index.shard_ids  # each shard is known to one, or equal
    newest: dict[bytes, tuple[int, int]] = {}
    for row, (name, shard) in enumerate(zip(names, columns["shards"].tolist(), strict=True)):
        newest[name] = max(newest.get(name, (-1, 0)), (shard, row))
    return _select(names, columns, [row for _, row in newest.values()])


def keep_rows(index: FrameIndex, rows: Iterable[int]) -> FrameIndex:
    """Make an index of some of the videos of another one."""
    names = [index.name(row) for row in range(len(index))]
    return _select(names, vars(index), rows)


def _select(names: Sequence[bytes], columns: Mapping[str, NDArray[Any]], rows: Iterable[int]) -> FrameIndex:
    """Make an index of some rows, sorted by name, with the columns of their frames in the same order."""
    order = np.array(sorted(rows, key=names.__getitem__), np.int64)
    chosen = {name: columns[name][order] for name in OF_VIDEOS}
    counts = chosen["num_frames"].astype(np.int64)
    first, frames = _runs(columns["first_frames"][order], counts)
    timed = columns["first_times"][order]
    first_times, times = _runs(timed, np.where(timed < 0, 0, counts + 1))
    sorted_names = [names[row] for row in order.tolist()]
    return FrameIndex(
        names=np.frombuffer(b"".join(sorted_names), np.uint8),
        name_ends=np.cumsum([len(name) for name in sorted_names], dtype=np.int64),
        first_frames=first,
        **chosen,
        **{name: columns[name][frames] for name in OF_FRAMES},
        first_times=np.where(timed < 0, -1, first_times),
        times=columns["times"][times],
        shard_ids=columns["shard_ids"],
    )


def _runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Put runs of rows one after another: where each then starts, and the row that each row of them was before."""
    first = np.cumsum(lengths) - lengths
    return first, np.arange(lengths.sum()) + np.repeat(starts - first, lengths)


def write_index(path: Path, index: FrameIndex) -> None:
    """Write an index atomically, as a safetensors file with a checksum."""
    from safetensors.numpy import save  # here: readers do not need it

    arrays = {field.name: np.ascontiguousarray(getattr(index, field.name)) for field in fields(FrameIndex)}
    content = save(arrays)
    start, header = _header(content)
    checksum = _checksum(header, memoryview(content)[start:])
    # One entry: the library writes several in any order, and equal indices are to be equal files.
    write_whole(path, save(arrays, {"format": f"{_FORMAT}, sha256 {checksum}"}))


def read_index(path: Path) -> FrameIndex:
    """Map an index into memory: processes share its pages. All of it is read once, for the checksum.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: It cannot be read, or is damaged. Not a DataError, which training would count as a broken video.
    """
    try:
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:  # no wait at a pipe
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, header = _header(content)
        kind, _, checksum = header.pop("__metadata__")["format"].partition(", sha256 ")
        if kind != _FORMAT:
            raise ValueError(f"its format is {kind!r}, not {_FORMAT!r}")
        view = memoryview(content)[start:]
        if checksum != _checksum(header, view):
            raise ValueError("it is damaged: its checksum differs")
        spans = {name: header[name]["data_offsets"] for name in _TYPES}
        return FrameIndex(**{name: np.frombuffer(view[a:b], _TYPES[name]) for name, (a, b) in spans.items()})
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__} {error}" if isinstance(error, KeyError | RecursionError) else error
        raise ConfigError(f"cannot read {path}: {reason}; make the packed frames again in another folder") from None


def _header(content: bytes | mmap.mmap) -> tuple[int, Any]:
    """Where the columns start in a safetensors file, and its header."""
    start = 8 + int.from_bytes(content[:8], "little")
    return start, json.loads(content[8:start])


def _checksum(header: Any, columns: memoryview) -> str:
    """The sha256 of the columns of an index and of the header that describes them."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(columns)
    return digest.hexdigest()
