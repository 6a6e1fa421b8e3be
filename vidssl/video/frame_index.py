"""Index of packed frames: where each frame of each video is, in one file that is mapped into memory."""

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
from vidssl.read_files import parse_json
from vidssl.types import VideoMeta

_FORMAT = "vidssl packed frames 1"


@dataclass(frozen=True)
class FrameIndex:
    """The columns of the videos (V), sorted by name, and of their frames (F)."""

    names: NDArray[np.uint8]  # all names in UTF-8, one after another
    name_ends: NDArray[np.int64]  # (V,)
    first_frames: NDArray[np.int64]  # (V,) row of frame 0 in the columns of frames; the others follow
    num_frames: NDArray[np.int32]  # (V,)
    fps: NDArray[np.float64]  # (V,)
    heights: NDArray[np.int32]  # (V,) pixels
    widths: NDArray[np.int32]  # (V,)
    changed: NDArray[np.int64]  # (V,) modification time of the original, nanoseconds
    shards: NDArray[np.int32]  # (V,) number of the shard that holds all frames of the video
    offsets: NDArray[np.int64]  # (F,) bytes from the start of the shard
    sizes: NDArray[np.uint32]  # (F,) bytes

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
        if first < 0 or count < 1 or first + count > len(self.offsets):
            raise ConfigError(
                f"the index of packed frames is damaged: video {row} has {count} frames from {first}, of "
                f"{len(self.offsets)}; make the packed frames again in another folder"
            )
        return slice(first, first + count)

    def meta(self, row: int) -> VideoMeta:
        """Return the metadata of a video."""
        columns = (self.num_frames, self.fps, self.heights, self.widths)
        count, fps, height, width = (column[row].item() for column in columns)
        return VideoMeta(count, fps, height, width)

    def state(self, row: int) -> tuple[int, int]:
        """Return the bytes of all frames of a video, and the modification time of its original in nanoseconds."""
        return int(self.sizes[self.frames(row)].sum(dtype=np.int64)), int(self.changed[row])

    def shard_ends(self) -> NDArray[np.int64]:
        """Return for each shard, by number, where its last frame ends, in bytes; 0 for shards without frames."""
        last = self.first_frames + self.num_frames - 1
        ends = np.zeros(int(self.shards.max(initial=-1)) + 1, np.int64)
        np.maximum.at(ends, self.shards, self.offsets[last] + self.sizes[last])
        return ends


_TYPES: dict[str, np.dtype[np.generic]] = {
    "names": np.dtype("u1"),
    **dict.fromkeys(("name_ends", "first_frames", "changed", "offsets"), np.dtype("<i8")),
    **dict.fromkeys(("num_frames", "heights", "widths", "shards"), np.dtype("<i4")),
    "fps": np.dtype("<f8"),
    "sizes": np.dtype("<u4"),
}
OF_FRAMES = ("offsets", "sizes")
OF_VIDEOS = ("num_frames", "fps", "heights", "widths", "changed", "shards")


def make_index(names: Sequence[bytes], columns: Mapping[str, Sequence[float] | NDArray[Any]]) -> FrameIndex:
    """Make an index of videos in any order: their names, and all columns that do not follow from these."""
    arrays = {name: np.asarray(column, _TYPES[name]) for name, column in columns.items()}
    counts = arrays["num_frames"]
    return _select(list(names), {**arrays, "first_frames": np.cumsum(counts) - counts}, range(len(names)))


def merge_indices(indices: Sequence[FrameIndex]) -> FrameIndex:
    """Join indices. Of a video in several, the row in the shard of the highest number counts, which is the newest."""
    names = [index.name(row) for index in indices for row in range(len(index))]
    columns = {name: np.concatenate([getattr(index, name) for index in indices]) for name in (*OF_VIDEOS, *OF_FRAMES)}
    starts = np.cumsum([0, *(len(index.offsets) for index in indices)])  # of the frames of each index
    columns["first_frames"] = np.concatenate(
        [index.first_frames + start for index, start in zip(indices, starts, strict=False)]
    )
    newest: dict[bytes, tuple[int, int]] = {}
    for row, (name, shard) in enumerate(zip(names, columns["shards"].tolist(), strict=True)):
        newest[name] = max(newest.get(name, (-1, 0)), (shard, row))
    return _select(names, columns, [row for _, row in newest.values()])


def keep_rows(index: FrameIndex, rows: Iterable[int]) -> FrameIndex:
    """Make an index of some of the videos of another one."""
    names = [index.name(row) for row in range(len(index))]
    columns = {name: getattr(index, name) for name in ("first_frames", *OF_VIDEOS, *OF_FRAMES)}
    return _select(names, columns, rows)


def _select(names: Sequence[bytes], columns: Mapping[str, NDArray[Any]], rows: Iterable[int]) -> FrameIndex:
    """Make an index of some rows, sorted by name, with the columns of their frames in the same order."""
    order = np.array(sorted(rows, key=names.__getitem__), np.int64)
    chosen = {name: columns[name][order] for name in OF_VIDEOS}
    counts = chosen["num_frames"].astype(np.int64)
    first = np.cumsum(counts) - counts
    frames = np.arange(counts.sum()) + np.repeat(columns["first_frames"][order] - first, counts)
    sorted_names = [names[row] for row in order.tolist()]
    return FrameIndex(
        names=np.frombuffer(b"".join(sorted_names), np.uint8),
        name_ends=np.cumsum([len(name) for name in sorted_names], dtype=np.int64),
        first_frames=first,
        **chosen,
        **{name: columns[name][frames] for name in OF_FRAMES},
    )


def write_index(path: Path, index: FrameIndex) -> None:
    """Write an index atomically, as a safetensors file."""
    from safetensors.numpy import save  # here: readers do not need it

    arrays = {field.name: np.ascontiguousarray(getattr(index, field.name)) for field in fields(FrameIndex)}
    write_whole(path, save(arrays, {"format": _FORMAT}))


def read_index(path: Path) -> FrameIndex:
    """Map an index into memory: processes share its pages, and only those that are used are read.

    Raises:
        FileNotFoundError: There is none.
        ConfigError: It cannot be read, or is damaged. Not a DataError, which training would count as a broken video.
    """
    try:
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:  # no wait at a pipe
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start = 8 + int.from_bytes(content[:8], "little")
        header = parse_json(content[8:start])
        if header["__metadata__"]["format"] != _FORMAT:
            raise ValueError(f"its format is {header['__metadata__']['format']!r}, not {_FORMAT!r}")
        spans = {name: header[name]["data_offsets"] for name in _TYPES}
        if start + max(end for _, end in spans.values()) > len(content):
            raise ValueError("the file is cut short")
        view = memoryview(content)[start:]
        columns = {name: np.frombuffer(view[first:end], _TYPES[name]) for name, (first, end) in spans.items()}
        videos, frames = len(columns["name_ends"]), len(columns["offsets"])
        if {len(columns[name]) for name in ("first_frames", *OF_VIDEOS)} != {videos} or len(columns["sizes"]) != frames:
            raise ValueError("its columns differ in length")
        return FrameIndex(**columns)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; make the packed frames again in another folder") from None
