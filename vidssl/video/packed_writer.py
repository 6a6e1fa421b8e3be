"""Writing of packed frames: videos are encoded image by image and added to tar files and an index."""

import hashlib
import json
import os
import tarfile
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import no_link, sync
from vidssl.errors import DataError, DecodeError
from vidssl.types import VideoMeta
from vidssl.video.decode import Image
from vidssl.video.encode_key_frames import safe_frames
from vidssl.video.packed_decoder import INDEX, link_field, read_id, shard_path
from vidssl.video.packed_index import (
    ID_BYTES,
    OF_FRAMES,
    OF_VIDEOS,
    FrameIndex,
    keep_rows,
    make_index,
    merge_indices,
    no_videos,
    read_index,
    write_index,
)
from vidssl.video.reader import Video

FORMATS = {"jpeg": (".jpg", cv2.IMWRITE_JPEG_QUALITY), "webp": (".webp", cv2.IMWRITE_WEBP_QUALITY)}
# Columns of the index that a writer fills, and the type of their values while a shard is written.
_CODES = {name: "d" if name in ("fps", "times") else "q" for name in (*OF_VIDEOS, *OF_FRAMES, "first_times", "times")}
_BLOCK = 512  # bytes; a member of a tar is a header of one block, then its content, filled up to whole blocks


class EncodedVideo(NamedTuple):
    """All frames of a video as images."""

    meta: VideoMeta
    sizes: NDArray[np.uint32]  # (T,) bytes
    content: NDArray[np.uint8]  # (sum of sizes,) the images one after another


def encode_frames(video: Video, short_side: int, kind: str, quality: int, alive: Callable[[], None]) -> EncodedVideo:
    """Encode every frame of a video as JPEG or WebP; `alive` is called once per frame.

    Frames with a shorter side above `short_side` pixels are shrunk. `quality` is 1 to 100.
    """
    suffix, setting = FORMATS[kind]
    cv2.setNumThreads(0)  # the caller runs one process per CPU
    content, sizes = bytearray(), array("I")
    height = width = 0
    for image in safe_frames(video):
        alive()
        shrunk = _shrunk(image, short_side)
        height, width = shrunk.shape[:2]
        done, encoded = cv2.imencode(suffix, cv2.cvtColor(shrunk, cv2.COLOR_RGB2BGR), [setting, quality])
        if not done:
            raise DecodeError(f"{width}x{height} cannot be encoded as {kind}")
        content += encoded.data
        sizes.append(len(encoded))
    meta = replace(video.meta, height=height, width=width, tracks=None)
    return EncodedVideo(meta, np.array(sizes, np.uint32), np.frombuffer(content, np.uint8))


def _shrunk(image: Image, short_side: int) -> Image:
    """Shrink an image, unless it is small already."""
    scale = short_side / min(image.shape[:2])
    if scale >= 1:
        return image
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


class ShardWriter:
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

    def __enter__(self) -> "ShardWriter":
        return self

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
        index = merge_indices([read_index(path) for path in files]) if files else no_videos()
        shards = _shards(self._folder)
        ends = index.shard_ends().tolist()
        whole = np.array([_is_whole(shards.get(n), end, index.shard_id(n)) for n, end in enumerate(ends)], bool)
        return keep_rows(index, np.flatnonzero(whole[index.shards]).tolist())

    def _unwritable(self, error: OSError) -> DataError:
        place = shard_path(self._folder, self._number)
        return DataError(f"cannot write {place}: {error.strerror}; free disk space or choose another folder")


def _is_whole(shard: Path | None, end: int, shard_id: bytes) -> bool:
    """Whether a shard is there, is the one that was indexed, and reaches to the end of its last frame."""
    if shard is None or shard.stat().st_size < end:
        return False
    with open(shard, "rb") as file:
        return read_id(file.fileno()) == shard_id


def _shards(folder: Path) -> dict[int, Path]:
    """The shards that are there, by number."""
    return {int(path.stem[-6:]): path for path in folder.glob(f"shard-{'[0-9]' * 6}.tar")}
