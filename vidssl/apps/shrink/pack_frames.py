"""Write packed frames (`vidssl.video.packed_frames`): the frames of videos as images, in tar files with an index."""

import hashlib
import json
import os
import tarfile
from array import array
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.apps.shrink.encode_copies import safe_frames
from vidssl.base.atomic import no_link, sync, writing
from vidssl.base.errors import DecodeError
from vidssl.base.types import VideoMeta
from vidssl.video.decode import Image
from vidssl.video.packed_frames import (
    ID_BYTES,
    INDEX,
    PackedVideo,
    link_field,
    read_id,
    read_index,
    shard_path,
    write_index,
)
from vidssl.video.reader import Video

FORMATS = {"jpeg": (".jpg", cv2.IMWRITE_JPEG_QUALITY), "webp": (".webp", cv2.IMWRITE_WEBP_QUALITY)}
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
    """Adds videos to a folder of packed frames; `close` completes the last shard and the index.

    A shard gets its name when it is complete; its part of the index is written before. So a killed run loses the shard
    that was being written, no more. A changed original is added again; the frames of before stay in their shard, where
    the index no longer refers to them.
    """

    def __init__(self, folder: Path, kind: str, shard_bytes: int) -> None:
        self._folder, self._suffix, self._limit = folder, FORMATS[kind][0], shard_bytes
        self._partial = folder / ".shard.part"  # one name, which the next run overwrites
        self._number = max(_shards(folder), default=-1) + 1
        self.videos: dict[bytes, PackedVideo] = {}  # by name: those that are in complete shards
        self._ids: dict[int, bytes] = {}  # of these, by number
        self._read_complete()
        self._file: BinaryIO | None = None
        self._added: dict[bytes, PackedVideo] = {}  # to the shard that is being written
        self._digest: Any = None  # the sha256 of its members; a writer without a shard can be sent to other processes
        self._first = tarfile.TarInfo()  # its first member

    def close(self) -> None:
        """Complete the shard that is being written, and the index."""
        with writing(shard_path(self._folder, self._number)):
            if self._file is not None:
                self._complete_shard()
            write_index(self._folder / INDEX, self.videos, self._ids)
            for path in self._folder.glob(".shard-*.index"):
                path.unlink()

    def add(self, name: str, changed: int, video: EncodedVideo) -> None:
        """Write a video to the current shard, or to a new one if that would exceed its size.

        `changed` is a number that tells whether the original has changed. A DataError if the disk is full.
        """
        meta = video.meta
        described = {"name": name, "num_frames": meta.num_frames, "fps": meta.fps}
        header = json.dumps({**described, "height": meta.height, "width": meta.width}).encode()
        needed = _BLOCK * int((-(-video.sizes.astype(np.int64) // _BLOCK) + 1).sum()) + 2 * _BLOCK
        offsets, start = list[int](), 0
        with writing(shard_path(self._folder, self._number)), ExitStack() as failed:
            failed.callback(self._discard)  # half a video must not get into a shard
            if self._file is not None and self._file.tell() + needed > self._limit:
                self._complete_shard()
            if self._file is None:
                self._file = open(self._partial, "wb", opener=no_link)
                self._added, self._digest = {}, hashlib.sha256()
            key = f"{self._number:06d}-{len(self._added):06d}"
            self._write(f"{key}.json", header)
            for number, size in enumerate(video.sizes.tolist()):
                image = video.content.data[start : start + size]
                offsets.append(self._write(f"{key}.{number:06d}{self._suffix}", image))
                start += size
            failed.pop_all()
        # Copies: the arrays may be views of all that a worker has sent, and these stay until the end of the run.
        meta = replace(meta, times=None if meta.times is None else meta.times.copy())
        place = np.array(offsets, np.int64)
        self._added[os.fsencode(name)] = PackedVideo(meta, changed, self._number, place, video.sizes.copy())

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
        part = self._folder / f".shard-{self._number:06d}.index"
        write_index(part, self._added, {self._number: shard_id})
        os.replace(self._partial, shard_path(self._folder, self._number))
        sync(self._folder)
        self.videos |= self._added
        self._ids[self._number] = shard_id
        self._number += 1

    def _discard(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the disk is full: closing writes what is left
                self._file.close()
            self._file = None
            self._partial.unlink(missing_ok=True)

    def _read_complete(self) -> None:
        """Read the index, and those of shards that an interrupted run completed; without shards that are not whole."""
        files = [self._folder / INDEX, *sorted(self._folder.glob(".shard-*.index"))]
        shards, ends, videos = _shards(self._folder), dict[int, int](), dict[bytes, PackedVideo]()
        for index in (read_index(path) for path in files if path.exists()):
            for row in range(len(index)):
                name, video = index.name(row), index.video(row)
                if name not in videos or videos[name].shard < video.shard:  # the newest
                    videos[name] = video
                ends[video.shard] = max(ends.get(video.shard, 0), int(video.offsets[-1] + video.sizes[-1]))
                self._ids[video.shard] = index.shard_id(video.shard)
        whole = {shard for shard, end in ends.items() if _is_whole(shards.get(shard), end, self._ids[shard])}
        self.videos = {name: video for name, video in videos.items() if video.shard in whole}


def _is_whole(shard: Path | None, end: int, shard_id: bytes) -> bool:
    """Whether a shard is there, is the one that was indexed, and reaches to the end of its last frame."""
    if shard is None or shard.stat().st_size < end:
        return False
    with open(shard, "rb") as file:
        return read_id(file.fileno()) == shard_id


def _shards(folder: Path) -> dict[int, Path]:
    """The shards that are there, by number."""
    return {int(path.stem[-6:]): path for path in folder.glob(f"shard-{'[0-9]' * 6}.tar")}
