"""Packed frames: the images of many videos in a few tar files, each read by its offset.

A folder of packed frames holds `shard-000000.tar`, … and `frame_index.safetensors`. A video has the path that it would
have as a file of this folder, so lists work unchanged with another root. The shards are in the layout of WebDataset,
one sample for a video: `000000-000012.000003.jpg` is its frame 3, `000000-000012.json` its name, frame rate and size.
Each shard has an id, a hash of its content, which the index has too: a shard of another packing is refused.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.errors import ConfigError, DecodeError, TooLargeError
from vidssl.types import VideoMeta
from vidssl.video.packed_index import ID_BYTES, FrameIndex, read_index

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
                raise DecodeError(
                    f"{path}: not among the {len(index)} videos of {folder}/{INDEX}; vidssl shrink adds it"
                )
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
            size = f"{self.meta.width}x{self.meta.height}"
            raise TooLargeError(f"{path}: {size} is more than {max_pixels} pixels; raise the limit if meant")
        self._path, self._shard, frames = path, shard_path(folder, int(index.shards[row])), index.frames(row)
        self._offsets, self._sizes = index.offsets[frames], index.sizes[frames]
        self._id = index.shard_id(int(index.shards[row]))
        self._file: int | None = None

    def fetch(self, wanted: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield (number, image) of the wanted frames."""
        return ((number, self._read(number)) for number in wanted)

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
