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
import tarfile
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import no_link, sync, write_whole
from vidssl.base.errors import ConfigError, DataError, DecodeError, too_large
from vidssl.base.types import VideoMeta

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
        encoded = os.fsencode(name)
        row = bisect_left(range(len(self)), encoded, key=self.name)
        return row if row < len(self) and self.name(row) == encoded else None

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


def merge_indices(indices: Sequence[FrameIndex]) -> FrameIndex:
    """Join indices. Of a video in several, the row in the shard of the highest number counts, which is the newest."""
    names = [index.name(row) for index in indices for row in range(len(index))]
    joined = (*OF_VIDEOS, *OF_FRAMES, "times")
    columns = {name: np.concatenate([getattr(index, name) for index in indices]) for name in joined}
    columns["shard_ids"] = np.zeros(max(len(index.shard_ids) for index in indices), np.uint8)
    first_frames, first_times = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    frames = times = 0  # of the indices before
    for index in indices:
        first_frames.append(index.first_frames + frames)
        first_times.append(np.where(index.first_times < 0, -1, index.first_times + times))
        frames += len(index.offsets)
        times += len(index.times)
        columns["shard_ids"][: len(index.shard_ids)] |= index.shard_ids  # each shard is known to one, or equal
    columns |= {"first_frames": np.concatenate(first_frames), "first_times": np.concatenate(first_times)}
    newest: dict[bytes, tuple[int, int]] = {}
    for row, (name, shard) in enumerate(zip(names, columns["shards"].tolist(), strict=True)):
        newest[name] = max(newest.get(name, (-1, 0)), (shard, row))
    return _select(names, columns, [row for _, row in newest.values()])


def _select(names: Sequence[bytes], columns: Mapping[str, NDArray[Any]], rows: Iterable[int]) -> FrameIndex:
    """Make an index of some rows, sorted by name, with the columns of their frames in the same order."""
    order = np.array(sorted(rows, key=names.__getitem__), np.int64)
    of_videos = {name: columns[name][order] for name in OF_VIDEOS}
    counts = of_videos["num_frames"].astype(np.int64)
    first, frames = _runs(columns["first_frames"][order], counts)
    timed = columns["first_times"][order]
    first_times, times = _runs(timed, np.where(timed < 0, 0, counts + 1))
    sorted_names = [names[row] for row in order.tolist()]
    return FrameIndex(
        names=np.frombuffer(b"".join(sorted_names), np.uint8),
        name_ends=np.cumsum([len(name) for name in sorted_names], dtype=np.int64),
        first_frames=first,
        **of_videos,
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

INDEX = "frame_index.safetensors"
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
        self.meta: VideoMeta = index.meta(row)
        if self.meta.height * self.meta.width > max_pixels:
            raise too_large(path, self.meta.width, self.meta.height, max_pixels)
        self._path, self._shard, frames = path, shard_path(folder, int(index.shards[row])), index.frames(row)
        self._offsets, self._sizes = index.offsets[frames], index.sizes[frames]
        self._id = index.shard_id(int(index.shards[row]))
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
        size, offset = int(self._sizes[number]), int(self._offsets[number])
        try:
            if self._file is None:
                self._file = os.open(self._shard, os.O_RDONLY | os.O_NONBLOCK)  # not to wait at a pipe
                if self._id != read_id(self._file):
                    raise ConfigError(
                        f"{self._shard} is not the shard that {INDEX} beside it describes, but one of another packing: "
                        "put the right one back, or run vidssl shrink again into another folder"
                    )
            content = os.pread(self._file, size, offset)
        except OSError as error:
            raise DecodeError(f"{self._path}: cannot read {self._shard}: {error.strerror}") from None
        image = None
        if len(content) == size:
            with suppress(cv2.error):
                image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)
        if image is None or image.shape[:2] != (self.meta.height, self.meta.width):
            raise DecodeError(
                f"{self._path}: frame {number} is not at byte {offset} of {self._shard}: the shard is damaged, or not "
                "the one that was indexed; run vidssl shrink again into another folder"
            )
        return np.asarray(image, np.uint8)


# Writing ----------------------------------------------------------------------------------------------------

FORMATS = {"jpeg": (".jpg", cv2.IMWRITE_JPEG_QUALITY), "webp": (".webp", cv2.IMWRITE_WEBP_QUALITY)}
# Columns of the index that a writer fills, and the type of their values while a shard is written.
_CODES = {name: "d" if name in ("fps", "times") else "q" for name in (*OF_VIDEOS, *OF_FRAMES, "first_times", "times")}
_BLOCK = 512  # bytes; a member of a tar is a header of one block, then its content, filled up to whole blocks


class EncodedVideo(NamedTuple):
    """All frames of a video as images."""

    meta: VideoMeta
    sizes: NDArray[np.uint32]  # (T,) bytes
    content: NDArray[np.uint8]  # (sum of sizes,) the images one after another


class ShardWriter(AbstractContextManager["ShardWriter"]):
    """Adds videos to a folder of packed frames. A context manager, whose end completes the last shard and the index.

    A shard gets its name when it is complete; its part of the index is written before. So a killed run loses the shard
    that was being written, no more. `index` has the videos that were there at the start.
    """

    def __init__(self, folder: Path, kind: str, shard_bytes: int) -> None:
        self._folder, self._suffix, self._limit = folder, FORMATS[kind][0], shard_bytes
        self._partial = folder / ".shard.part"  # one name, which the next run overwrites
        self._number = max(_shards(folder), default=-1) + 1
        self.index = self._complete_videos()
        self._added: list[FrameIndex] = []  # of the shards that were completed
        self._file: BinaryIO | None = None
        self._names: list[bytes] = []  # of the videos in the shard that is being written, and their columns
        self._columns: dict[str, array[float]] = {}
        self._digest: Any = None  # the sha256 of its members; a writer without a shard can be sent to other processes
        self._first = tarfile.TarInfo()  # its first member

    def __exit__(self, *_: object) -> None:
        try:
            if self._file is not None:
                self._complete_shard()
            write_index(self._folder / INDEX, merge_indices([self.index, *self._added]))
            for path in self._folder.glob(".shard-*.index"):
                path.unlink()
        except OSError as error:
            raise self._unwritable(error) from None

    def add(self, name: str, changed: int, video: EncodedVideo) -> None:
        """Write a video to the current shard, or to a new one if that would exceed its size.

        `changed` is a number that tells whether the original has changed. A DataError if the disk is full.
        """
        meta = video.meta
        described = {"name": name, "num_frames": meta.num_frames, "fps": meta.fps}
        header = json.dumps({**described, "height": meta.height, "width": meta.width}).encode()
        needed = _BLOCK * int((-(-video.sizes.astype(np.int64) // _BLOCK) + 1).sum()) + 2 * _BLOCK
        try:
            if self._file is not None and self._file.tell() + needed > self._limit:
                self._complete_shard()
            if self._file is None:
                self._file = open(self._partial, "wb", opener=no_link)
                self._names, self._columns = [], {column: array(code) for column, code in _CODES.items()}
                self._digest = hashlib.sha256()
            key = f"{self._number:06d}-{len(self._names):06d}"
            self._write(f"{key}.json", header)
            content, start = video.content.data, 0
            for number, size in enumerate(video.sizes.tolist()):
                offset = self._write(f"{key}.{number:06d}{self._suffix}", content[start : start + size])
                self._columns["offsets"].append(offset)
                self._columns["sizes"].append(size)
                start += size
        except BaseException as error:  # half a video must not get into a shard
            self._discard()
            raise self._unwritable(error) if isinstance(error, OSError) else error from None
        self._names.append(os.fsencode(name))
        values = meta.num_frames, meta.fps, meta.height, meta.width, changed, self._number
        for column, value in zip(OF_VIDEOS, values, strict=True):
            self._columns[column].append(value)
        self._columns["first_times"].append(-1 if meta.times is None else len(self._columns["times"]))
        if meta.times is not None:
            self._columns["times"].extend([*meta.times.tolist(), meta.time_of(meta.num_frames)])

    def _write(self, name: str, content: bytes | memoryview) -> int:
        """Write a member of the tar and return the offset of its content."""
        assert self._file is not None
        member = tarfile.TarInfo(name)  # its times and owners are 0: the same frames are the same bytes
        member.size = len(content)
        header = member.tobuf(tarfile.USTAR_FORMAT)
        self._digest.update(header)
        self._digest.update(content)
        if self._file.tell() == 0:
            self._first = member  # the id is added when it is known
        self._file.write(header)
        offset = self._file.tell()
        self._file.write(content)
        self._file.write(bytes(-len(content) % _BLOCK))
        return offset

    def _complete_shard(self) -> None:
        assert self._file is not None
        self._file.write(bytes(2 * _BLOCK))  # the end of a tar
        shard_id = self._digest.digest()[:ID_BYTES]
        self._first.linkname = link_field(shard_id)
        self._file.seek(0)
        self._file.write(self._first.tobuf(tarfile.USTAR_FORMAT))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None
        ids = np.frombuffer(bytes(self._number * ID_BYTES) + shard_id, np.uint8)
        part = make_index(self._names, {**self._columns, "shard_ids": ids})
        write_index(self._folder / f".shard-{self._number:06d}.index", part)
        os.replace(self._partial, shard_path(self._folder, self._number))
        sync(self._folder)
        self._added.append(part)
        self._number += 1

    def _discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the disk is full: closing writes what is left
                self._file.close()
            self._file = None
            self._partial.unlink(missing_ok=True)

    def _complete_videos(self) -> FrameIndex:
        """The index, and those of shards that an interrupted run completed; without videos whose shard is not whole."""
        parts = sorted(path for path in self._folder.glob(".shard-*.index"))
        files = [path for path in (self._folder / INDEX, *parts) if path.exists()]
        if not files:
            return make_index([], dict.fromkeys(_TYPES, ()))
        index = merge_indices([read_index(path) for path in files])
        names = [index.name(row) for row in range(len(index))]
        shards = _shards(self._folder)
        ends = index.shard_ends().tolist()
        whole = np.array([_is_whole(shards.get(n), end, index.shard_id(n)) for n, end in enumerate(ends)], bool)
        return _select(names, vars(index), np.flatnonzero(whole[index.shards]).tolist())

    def _unwritable(self, error: OSError) -> DataError:
        shard = shard_path(self._folder, self._number)
        return DataError(f"cannot write {shard}: {error.strerror}; free disk space or choose another folder")


def _is_whole(shard: Path | None, end: int, shard_id: bytes) -> bool:
    """Whether a shard is there, is the one that was indexed, and reaches to the end of its last frame."""
    if shard is None or shard.stat().st_size < end:
        return False
    with open(shard, "rb") as file:
        return read_id(file.fileno()) == shard_id


def _shards(folder: Path) -> dict[int, Path]:
    """The shards that are there, by number."""
    return {int(path.stem[-6:]): path for path in folder.glob(f"shard-{'[0-9]' * 6}.tar")}
