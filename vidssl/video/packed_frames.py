"""Packed frames: the images of many videos in a few tar files, each read by its offset.

A folder of packed frames holds `shard-000000.tar`, … and `frame_index.safetensors`. A video has the path that it would
have as a file of this folder, so lists work unchanged with another root. The shards are in the layout of WebDataset,
one sample for a video: `000000-000012.000003.jpg` is its frame 3, `000000-000012.json` its name, frame rate and size.
Each shard has an id, a hash of its content, which the index has too: a shard of another packing is refused.
"""

import hashlib
import json
import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import write_whole
from vidssl.base.errors import ConfigError, DecodeError, too_large
from vidssl.base.types import VideoMeta

INDEX = "frame_index.safetensors"
_FORMAT = "vidssl packed frames 2"
_AGAIN = "run vidssl shrink again into another folder"
ID_BYTES = 16  # of the id of a shard, a hash of its content: equal shards have one id, others another


class PackedVideo(NamedTuple):
    """Where the frames (T) of a video are."""

    meta: VideoMeta
    changed: int  # state of the original (`Original.state`)
    shard: int  # number of the one that holds all of them
    offsets: NDArray[np.int64]  # (T,) bytes from the start of the shard
    sizes: NDArray[np.uint32]  # (T,) bytes


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
    changed: NDArray[np.int64]  # (V,)
    shards: NDArray[np.int32]  # (V,)
    offsets: NDArray[np.int64]  # (F,)
    sizes: NDArray[np.uint32]  # (F,)
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
        encoded = os.fsencode(name)
        row = bisect_left(range(len(self)), encoded, key=self.name)
        return row if row < len(self) and self.name(row) == encoded else None

    def video(self, row: int) -> PackedVideo:
        """Return the metadata of a video, and where its frames are."""
        count, first, start = int(self.num_frames[row]), int(self.first_frames[row]), int(self.first_times[row])
        size = float(self.fps[row]), int(self.heights[row]), int(self.widths[row])
        if start < 0:
            meta = VideoMeta(count, *size)
        else:
            meta = VideoMeta(count, *size, None, self.times[start : start + count], float(self.times[start + count]))
        span = slice(first, first + count)
        return PackedVideo(meta, int(self.changed[row]), int(self.shards[row]), self.offsets[span], self.sizes[span])

    def state(self, row: int) -> tuple[int, int]:
        """Return the bytes of all frames of a video, and the state of its original (`changed`)."""
        video = self.video(row)
        return int(video.sizes.sum(dtype=np.int64)), video.changed

    def shard_id(self, number: int) -> bytes:
        """Return the id of a shard."""
        return self.shard_ids[number * ID_BYTES : (number + 1) * ID_BYTES].tobytes()


# The types of the columns, as they are stated above.
_HINTS = {name: get_args(get_args(hint)[1])[0] for name, hint in get_type_hints(FrameIndex).items()}
_TYPES = {name: np.dtype(kind).newbyteorder("<") for name, kind in _HINTS.items()}


def write_index(path: Path, videos: Mapping[bytes, PackedVideo], shard_ids: Mapping[int, bytes]) -> None:
    """Write the index of videos, by name, atomically: a safetensors file with a checksum."""
    from safetensors.numpy import save  # here: readers do not need it

    names = sorted(videos)
    rows = [videos[name] for name in names]
    counts = [len(row.sizes) for row in rows]
    times = [
        [] if row.meta.times is None else [*row.meta.times.tolist(), row.meta.time_of(row.meta.num_frames)]
        for row in rows
    ]
    first_times = accumulate(map(len, times), initial=0)
    ids = [shard_ids.get(number, bytes(ID_BYTES)) for number in range(max(shard_ids, default=-1) + 1)]
    columns = {
        "names": np.frombuffer(b"".join(names), np.uint8),
        "name_ends": np.cumsum([len(name) for name in names]),
        "first_frames": np.cumsum(counts) - counts,
        "num_frames": counts,
        "fps": [row.meta.fps for row in rows],
        "heights": [row.meta.height for row in rows],
        "widths": [row.meta.width for row in rows],
        "changed": [row.changed for row in rows],
        "shards": [row.shard for row in rows],
        "offsets": np.concatenate([row.offsets for row in rows]) if rows else (),
        "sizes": np.concatenate([row.sizes for row in rows]) if rows else (),
        "first_times": [start if of_video else -1 for start, of_video in zip(first_times, times, strict=False)],
        "times": [time for of_video in times for time in of_video],
        "shard_ids": np.frombuffer(b"".join(ids), np.uint8),
    }
    arrays = {name: np.asarray(column, _TYPES[name]) for name, column in columns.items()}
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
        # O_NONBLOCK: no wait at a pipe.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
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


# Reading ----------------------------------------------------------------------------------------------------

_known: dict[str, tuple[tuple[int, int, int], FrameIndex]] = {}  # folder to inode, size and time of its index, and it


def shard_path(folder: Path, number: int) -> Path:
    """Return the path of a shard."""
    return folder / f"shard-{number:06d}.tar"


def find_frames(path: str) -> tuple[Path, FrameIndex, int] | None:
    """Find the packed video of a path: its folder, the index and the row there. None if no folder above has an index.

    Raises:
        DecodeError: A folder above has an index, and the video is not in it.
        ConfigError: The index cannot be read.
    """
    if path[:1] != "/":  # a test of strings, as a list may have a million rows
        path = str(Path(path).absolute())
    end = len(path)
    while (end := path.rfind("/", 0, end)) >= 0:
        folder = path[:end] or "/"
        if (index := _index_of(folder)) is not None:
            row = index.find(path[end + 1 :])
            if row is None:
                videos = f"the {len(index)} videos of {folder}/{INDEX}"
                raise DecodeError(f"{path}: not among {videos}; vidssl shrink adds it")
            return Path(folder), index, row
    return None


def _index_of(folder: str) -> FrameIndex | None:
    file = f"{folder}/{INDEX}"
    try:
        status = os.stat(file)
    except (OSError, ValueError):  # none, or not even a folder: unreadable, or no name that a folder can have
        return None
    state = status.st_ino, status.st_size, status.st_mtime_ns
    if folder not in _known or _known[folder][0] != state:
        try:
            _known[folder] = state, read_index(Path(file))
        except FileNotFoundError:
            return None
    return _known[folder][1]


def read_id(shard: int) -> bytes | None:
    """Read the id of a shard, an open file, from the header of its first member; None if it has none."""
    field = os.pread(shard, len(_ID_PREFIX) + 2 * ID_BYTES, _LINK_FIELD)
    with suppress(ValueError):
        if field.startswith(_ID_PREFIX):
            return bytes.fromhex(field[len(_ID_PREFIX) :].decode("ascii"))
    return None


def link_field(shard_id: bytes) -> str:
    """Return what the header of a shard's first member has as the name of a link, which files do not have."""
    return _ID_PREFIX.decode() + shard_id.hex()


_ID_PREFIX = b"vidssl shard "
_LINK_FIELD = 157  # its place in the header of a member of a tar


class PackedFrames:
    """Decoder for a packed video. The shard is opened with the first frame, and only once."""

    def __init__(self, path: str, folder: Path, index: FrameIndex, row: int, max_pixels: int) -> None:
        self._video = index.video(row)
        self.meta: VideoMeta = self._video.meta
        if self.meta.height * self.meta.width > max_pixels:
            raise too_large(path, self.meta.width, self.meta.height, max_pixels)
        self._path, self._shard = path, shard_path(folder, self._video.shard)
        self._id = index.shard_id(self._video.shard)
        self._file: int | None = None

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield (number, image) of the wanted frames."""
        return ((number, self._read(number)) for number in numbers)

    def iter_frames(self) -> Iterator[NDArray[np.uint8]]:
        """Yield all frames."""
        return map(self._read, range(self.meta.num_frames))

    def close(self) -> None:
        """Close the shard."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self, number: int) -> NDArray[np.uint8]:
        size, offset = int(self._video.sizes[number]), int(self._video.offsets[number])
        try:
            if self._file is None:
                self._file = os.open(self._shard, os.O_RDONLY | os.O_NONBLOCK)  # not to wait at a pipe
                if self._id != read_id(self._file):
                    mismatch = f"{self._shard} is not the shard that {INDEX} beside it describes"
                    raise ConfigError(f"{mismatch}, but one of another packing: put the right one back, or {_AGAIN}")
            content = os.pread(self._file, size, offset)
        except OSError as error:
            raise DecodeError(f"{self._path}: cannot read {self._shard}: {error.strerror}") from None
        image = None
        if len(content) == size:
            with suppress(cv2.error):
                image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
        if image is None or image.shape[:2] != (self.meta.height, self.meta.width):
            fault = f"frame {number} is not at byte {offset} of {self._shard}"
            raise DecodeError(f"{self._path}: {fault}: the shard is damaged, or not the one that was indexed; {_AGAIN}")
        return np.asarray(image, np.uint8)
