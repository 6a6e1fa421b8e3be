"""The formats of shrunk copies: a video file for each video, or packed frames."""

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import av

from vidssl.data.allowed_paths import existing_path
from vidssl.errors import DataError, DecodeError
from vidssl.output_folder import check_names
from vidssl.video.encode_key_frames import encode_frames, encode_key_frames
from vidssl.video.packed_frames import INDEX, EncodedVideo, ShardWriter
from vidssl.video.reader import open_video, state_of_video
from vidssl.video.shrunk_copy_mark import sign, signature_of

SHARD_SIZE = 512  # MB


class Copied(NamedTuple):
    """The result for a video."""

    is_new: bool  # not a copy of an earlier run
    before: int  # bytes of the original
    after: int  # bytes of the copy


class Encoded(NamedTuple):
    """A video that is to be stored."""

    before: int  # bytes of the original
    changed: int  # its modification time, nanoseconds
    video: EncodedVideo


@dataclass(frozen=True)
class ShrinkSettings:
    """The format of the copies in a folder, written to its `shrink.json`: video files."""

    short_side: int = 128  # pixels
    quality: int = 18  # x264's CRF: 0 is lossless, 51 the worst
    fps: float | None = None  # of image folders if the list has no column fps

    qualities: ClassVar[tuple[int, int]] = (0, 51)


@dataclass(frozen=True)
class FrameSettings:
    """The format of the copies in a folder, written to its `shrink.json`: packed frames."""

    short_side: int = 128  # pixels
    quality: int = 90  # of JPEG or WebP: 100 is the best
    fps: float | None = None  # of image folders if the list has no column fps
    format: str = "jpeg"  # or "webp"

    qualities: ClassVar[tuple[int, int]] = (1, 100)


def original_state(size: int, changed: int) -> int:
    """A number (63 bits) that is another one if the size or the modification time of an original is."""
    digest = hashlib.sha256(f"{size} {changed}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


class KeyFrameVideos:
    """Copies that are H.264 in MP4 with key frames only and without sound, whatever their suffix.

    FFmpeg detects the format by content. An image folder becomes a video file of the folder's name. A copy gets its
    name, its signature and its original's modification time when it is complete.
    """

    files = ()  # of the folder, beside the copies

    def __init__(self, root: Path, out: Path, settings: ShrinkSettings, max_pixels: int) -> None:
        self._root, self._out, self._settings, self._max_pixels = root, out, settings, max_pixels

    def open(self) -> None:
        """Do nothing: the copies are their own index."""

    def __enter__(self) -> "KeyFrameVideos":
        return self

    def __exit__(self, *_: object) -> None:
        pass  # copies are complete one by one

    def copy(self, name: str, fps: float | None, alive: Callable[[], None]) -> Copied | str:
        """Make a copy, unless it is there; called in a worker. Returns the reason if the file cannot be decoded."""
        source, target = Path(existing_path(self._root, name)), self._out / name
        part = _partial(target)
        try:
            size, changed = state_of_video(str(source)) or (0, 0)  # if it is missing, opening it says so
            if target.exists() and self._is_copy_of(target, size, changed):
                return Copied(False, size, target.stat().st_size)
            target.parent.mkdir(parents=True, exist_ok=True)
            if part.is_symlink():  # nothing is written through it
                part.unlink()
            with open_video(source, max_pixels=self._max_pixels, fps=fps) as video:
                short_side, quality = self._settings.short_side, self._settings.quality
                encode_key_frames(video, part, short_side, quality, self._max_pixels, alive)
            with open_video(part) as copy:
                count, wanted = copy.meta.num_frames, video.meta.num_frames
            if count != wanted:
                raise DecodeError(f"its copy has {count} of {wanted} frames")
            sign(part, size, changed)
            os.utime(part, ns=(changed, changed))
            os.replace(part, target)
            return Copied(True, size, target.stat().st_size)
        except DecodeError as error:
            return str(error).removeprefix(f"{source}: ")
        except (OSError, av.FFmpegError) as error:
            raise DataError(f"cannot write {target}: {error.strerror or error}") from None

    def check(self, names: Iterable[str]) -> None:
        """Raise a DataError if a file under the name of a copy is not one: call it before the work."""
        check_names(self._out, names)
        for name in names:
            source, target = Path(existing_path(self._root, name)), self._out / name
            try:
                if not os.path.lexists(target):
                    continue
                if source.exists() and target.samefile(source):
                    raise DataError(f"{target} is the original: choose another folder for the copies")
                if not target.is_file() or signature_of(target) is None:
                    raise DataError(
                        f"{target} is there already and is no copy that vidssl made, or was changed since: choose "
                        "another folder for the copies, or move it away"
                    )
            except OSError as error:
                raise DataError(f"cannot read {target}: {error.strerror}; choose another folder") from None

    def _is_copy_of(self, target: Path, size: int, changed: int) -> bool:
        """Whether a copy is one of the original as it is now."""
        signature = signature_of(target)
        return signature is not None and (signature.size, signature.changed) == (size, changed)

    def clean(self, name: str) -> None:
        """Delete what an attempt to copy has left."""
        with suppress(OSError):  # a complete copy has another name
            _partial(self._out / name).unlink()

    def store(self, name: str, copied: Copied) -> Copied:
        """Return the sizes: the worker has stored the copy."""
        return copied


def _partial(target: Path) -> Path:
    """The path that is written first, short and the same in each run: the next one overwrites what was left."""
    return target.parent / f".{hashlib.sha256(target.name.encode()).hexdigest()[:16]}.part"


class PackedFrames:
    """Copies whose frames are images in tar files with an index.

    Workers encode whole videos in memory, and the main process writes them in the order of the list: the shards do not
    depend on the number of workers. A changed original is added again; the frames of before stay in their shard, where
    the index no longer refers to them.
    """

    files = (INDEX, "shard-*.tar", ".shard-*.index", ".shard.part")  # of the folder

    def __init__(self, root: Path, out: Path, settings: FrameSettings, max_pixels: int, shard_size: int) -> None:
        self._root, self._settings, self._max_pixels = root, settings, max_pixels
        self._out, self._shard_bytes = out, shard_size * 10**6

    def open(self) -> None:
        """Read the index of what is packed already, with the folder locked."""
        self._writer = ShardWriter(self._out, self._settings.format, self._shard_bytes)

    def __enter__(self) -> "PackedFrames":
        self._writer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)

    def copy(self, name: str, fps: float | None, alive: Callable[[], None]) -> Copied | Encoded | str:
        """Encode a video, unless it is packed already; called in a worker. Returns the reason if that is impossible."""
        source = Path(existing_path(self._root, name))
        size, changed = state_of_video(str(source)) or (0, 0)
        row = self._writer.index.find(name)
        if row is not None and self._writer.index.state(row)[1] == original_state(size, changed):
            return Copied(False, size, self._writer.index.state(row)[0])
        try:
            with open_video(source, max_pixels=self._max_pixels, fps=fps) as video:
                settings = self._settings
                encoded = encode_frames(video, settings.short_side, settings.format, settings.quality, alive)
        except DecodeError as error:
            return str(error).removeprefix(f"{source}: ")
        return Encoded(size, changed, encoded)

    def check(self, names: Iterable[str]) -> None:
        """Do nothing: `claim` has checked the files of the folder."""

    def clean(self, name: str) -> None:
        """Do nothing: workers write no files."""

    def store(self, name: str, copied: Copied | Encoded) -> Copied:
        """Write an encoded video to a shard, and return the sizes."""
        if isinstance(copied, Copied):
            return copied
        self._writer.add(name, original_state(copied.before, copied.changed), copied.video)
        return Copied(True, copied.before, len(copied.video.content))
