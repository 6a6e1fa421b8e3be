"""Open a video and decode frames by number: frame i is the i-th in presentation order of the first video stream."""

import difflib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DecodeError, FramesOutOfOrderError, SeveralSizesError, why_unreadable
from vidssl.base.types import Frames, VideoMeta, VideoRecord
from vidssl.video.decode import Decoder, Image
from vidssl.video.frame_folder import FrameFolder, frame_number, is_image
from vidssl.video.open_container import open_container
from vidssl.video.other_decoders import BACKENDS
from vidssl.video.packed_frames import PackedFrames, find_frames
from vidssl.video.packet_index import IndexKey, cached_packets, count_frames, read_packets, replace_packets
from vidssl.video.tar_members import find_member

MAX_PIXELS = 4096 * 4096  # of one frame; larger ones are refused from the header, before anything is decoded


class DecodeSettings(Settings):
    """How videos are decoded."""

    backend: Literal["pyav", "decord", "torchcodec", "nvdec"] = "pyav"
    fps: float | None = Field(default=None, gt=0)  # of image folders whose list has no column fps
    cache: str | None = None  # folder for the packet indices of files
    changes_frames: ClassVar[bool] = False  # by record, in an `open` of its own: records of one file share no decode

    def open(self, record: VideoRecord) -> "Video":
        """Open the video of a record, as `open_video` does."""
        return open_video(record.path, self.backend, fps=record.fps or self.fps, cache=self.cache)


class Video(AbstractContextManager["Video"]):
    """An open video, as `open_video` returns it. Close it, or use it as a context manager."""

    def __init__(
        self,
        path: str,
        meta: VideoMeta,
        decoder: Decoder,
        reopen_counted: Callable[[], tuple[VideoMeta, Decoder]] | None = None,
    ) -> None:
        self.path, self.meta = path, meta
        self._decoder: Decoder | None = decoder
        self._reopen_counted = reopen_counted  # without the timestamps of the file; None: they are not used
        self._out_of_order = False

    def __len__(self) -> int:
        """Number of frames."""
        return self.meta.num_frames

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._decoder is not None:
            self._decoder.close()
            self._decoder = None

    @property
    def times(self) -> NDArray[np.float64]:
        """Seconds at which each frame is shown (num_frames,), from the first frame, which is at 0."""
        meta = self.meta
        return np.arange(meta.num_frames) / meta.fps if meta.times is None else meta.times.copy()

    def _opened(self) -> Decoder:
        if self._decoder is None:
            raise ValueError(f"{self.path} is closed: open the video again to read its frames")
        return self._decoder

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Decode frames by number in one forward pass: (T, C, H, W) uint8 RGB, channels last in memory.

        `indices` (T,) are in any order, with repeats. An index beyond the video, or damage before the last wanted frame
        is a DecodeError.
        """
        indices = np.asarray(indices, dtype=np.int64)
        numbers, rows = np.unique(indices, return_inverse=True)
        try:
            images = self._fetched(numbers)
        except FramesOutOfOrderError:
            images = self._fetched(numbers)
        if not np.array_equal(indices, numbers):  # repeats, or another order
            images = images[rows]
        return images.transpose(0, 3, 1, 2)

    def _fetched(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        row_of = {number: row for row, number in enumerate(numbers.tolist())}
        images = np.empty(0, np.uint8)
        for number, image in self.fetch(numbers):
            if not images.size:
                images = np.empty((len(numbers), *image.shape), np.uint8)
            images[row_of[number]] = image
        return images

    def fetch(self, numbers: Sequence[int] | NDArray[np.int64]) -> Iterator[tuple[int, Image]]:
        """Decode the frames of `numbers`, which ascend, and yield (number, image (H, W, 3)) once each.

        The order is that of the decoder, nearly ascending. Errors are those of `frames`, and FramesOutOfOrderError: the
        timestamps of the file turn out to be wrong, and so may be the frames so far; a second call counts frames.
        """
        decoder, limit, numbers = self._opened(), self.meta.num_frames, np.asarray(numbers, np.int64)
        if not numbers.size or numbers[0] < 0 or numbers[-1] >= limit:
            frames = f"frames {numbers[0]}-{numbers[-1]}" if numbers.size else "no frames"
            raise DecodeError(f"{self.path}: {frames} requested, the video has frames 0-{limit - 1}")
        missing = set(numbers.tolist())
        first: Image | None = None
        try:
            for number, image in decoder.fetch(sorted(missing)):
                first = image if first is None else first
                self._check_size(image, first)
                missing.discard(number)
                yield number, image
        except FramesOutOfOrderError:
            self._count_frames()
            raise
        if missing:
            raise DecodeError(f"{self.path}: frame {min(missing)} of {limit} cannot be decoded; the file is damaged")

    def iter_frames(self) -> Iterator[Image]:
        """Decode the whole video in one pass and yield its frames (H, W, 3); any damage is a DecodeError."""
        count, expected = 0, self.meta.num_frames
        decoder = self._opened()
        first: Image | None = None
        for image in decoder.iter_frames():
            first = image if first is None else first
            self._check_size(image, first)
            yield image
            count += 1
        if count != expected:
            raise DecodeError(f"{self.path}: {count} frames decoded from {expected} packets; the file is damaged")
        if self.out_of_order and self._reopen_counted:
            self._count_frames()

    @property
    def out_of_order(self) -> bool:
        """Whether frames decoded so far came in another order than the timestamps that the file stores."""
        return self._out_of_order or getattr(self._decoder, "out_of_order", False)

    def _count_frames(self) -> None:
        """Go on with an index without timestamps."""
        assert self._reopen_counted is not None  # timestamps can only be wrong where there are some
        self._opened().close()
        self.meta, self._decoder = self._reopen_counted()
        self._reopen_counted, self._out_of_order = None, True

    def _check_size(self, image: Image, first: Image) -> None:
        if image.shape != first.shape:
            sizes = " and ".join(f"{width}x{height}" for height, width, _ in (first.shape, image.shape))
            raise SeveralSizesError(f"{self.path}: its frames have several sizes: {sizes}")


def open_video(
    path: str | Path,
    backend: str = "pyav",
    *,
    max_pixels: int = MAX_PIXELS,
    fps: float | None = None,
    cache: str | Path | None = None,
) -> Video:
    """Open a video and read its metadata, without decoding a frame.

    Args:
        path: A local file, an image, a folder of images whose names end in the frame number, `FILE.tar#MEMBER`, or the
            path of a video below a folder of packed frames.
        backend: "pyav", "decord", "torchcodec" or "nvdec"; not used for images and packed frames.
        max_pixels: Largest height x width; larger videos are refused from the header.
        fps: Frames per second of images (default 1 for a single image); video files and packed frames store their own.
        cache: Folder for the packet indices of files, shared by processes and runs.

    Raises:
        DecodeError: The file is no usable video, or the backend cannot return exact frames for it.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"no video backend '{backend}'; there are: {', '.join(BACKENDS)}")
    path = Path(path)
    try:
        status = path.stat()
        size, changed, mode = status.st_size, status.st_mtime_ns, status.st_mode
    except ValueError as error:  # a NUL, or half a surrogate pair
        raise DecodeError(f"{str(path)!r}: no file can have this name: {error}") from None
    except OSError as error:
        member = find_member(str(path))
        if member is None:
            return _open_packed(path, max_pixels, error)
        _check_readable(path, backend)
        size, changed, mode = member.size, member.changed, stat.S_IFREG
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # opening a pipe would wait for a writer
        raise DecodeError(f"{path}: a pipe, socket or device, not a file: write what it gives to a file first")
    if not stat.S_ISDIR(mode) and size == 0:
        raise DecodeError(f"{path}: the file is empty")
    if stat.S_ISDIR(mode) or is_image(path):
        images = FrameFolder(path, fps, max_pixels)
        return Video(str(path), images.meta, images)
    container = open_container(path, max_pixels)
    try:
        key = (str(path.absolute()), size, changed)
        folder = None if cache is None else Path(cache)
        packets = cached_packets(key, folder, lambda: read_packets(container, path, max_pixels))
        decoder = BACKENDS[backend](path, packets, container, max_pixels)
        reopen = partial(_reopen_counted, path, backend, max_pixels, key, folder, packets.meta.fps)
        return Video(str(path), packets.meta, decoder, None if packets.frame_of is None else reopen)
    except BaseException:
        container.close()
        raise


def _open_packed(path: Path, max_pixels: int, missing: OSError) -> Video:
    """Open a packed video; `missing` is the error for its path as that of a file."""
    if packed := find_frames(str(path)):
        frames = PackedFrames(str(path), *packed, max_pixels)
        return Video(str(path), frames.meta, frames)
    raise DecodeError(f"{path}: {why_unreadable(path, missing)}{_similar_name(path)}") from None


def _reopen_counted(
    path: Path, backend: str, max_pixels: int, key: IndexKey, folder: Path | None, fps: float
) -> tuple[VideoMeta, Decoder]:
    """Open a video again and count its frames."""
    packets = count_frames(path, max_pixels, fps)
    replace_packets(key, folder, packets)
    return packets.meta, BACKENDS[backend](path, packets, open_container(path, max_pixels), max_pixels)


def _check_readable(path: Path, backend: str) -> None:
    """Raise an error for members of a tar that cannot be read."""
    if is_image(path):
        remedy = "unpack them, then vidssl shrink --to frames packs them"
        raise DecodeError(f"{path}: images in a tar are not read: {remedy}")
    if backend != "pyav":
        raise ConfigError(f"{path}: {backend} needs a file, and this is a part of one: use data.backend=pyav")


def is_video_file(path: Path) -> bool:
    """Whether a container of packets is read: a video file or a member of a tar; not for images and packed frames."""
    return (os.path.isfile(path) and not is_image(path)) or find_member(str(path)) is not None  # noqa: PTH113 - no error


def state_of_video(path: str) -> tuple[int, int] | None:
    """Return size in bytes and modification time in nanoseconds of what `open_video` opens; None if it is missing.

    The time may be negative: before 1970. (0, 0) is something that cannot be looked at, for want of permission or in a
    loop of links: the error of `open_video` says why.
    """
    try:
        parts = [os.stat(path)]
        if stat.S_ISDIR(parts[0].st_mode):  # of images: what else lies beside them is not of the video
            with os.scandir(path) as entries:
                frames = [entry.path for entry in entries if frame_number(entry.name)]
            parts += [os.stat(frame) for frame in frames if os.path.exists(frame)]  # noqa: PTH110 - no error for loops
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name that no file can have
        return state_in_archive(path)
    except OSError:
        return 0, 0
    return sum(part.st_size for part in parts), max(part.st_mtime_ns for part in parts)


def state_in_archive(path: str) -> tuple[int, int] | None:
    """Return size in bytes and modification time in nanoseconds of a video in a tar or of packed frames, else None.

    The time of a member of a tar is that of the tar; of a packed video it is a number that its original determines.
    """
    with suppress(DecodeError):
        if member := find_member(path):
            return member.size, member.changed
        if packed := find_frames(path):
            _, index, row = packed
            return index.state(row)
    return None


_MAX_COMPARED = 200  # names, about 20 ms: a list may name thousands of missing files


def _similar_name(path: Path) -> str:
    """Suggest the file of a small folder with the most similar name, in upper or lower case."""
    names: dict[str, str] = {}
    with suppress(OSError), os.scandir(path.parent) as entries:
        names = {Path(entry.name).stem.casefold(): entry.name for entry in islice(entries, _MAX_COMPARED + 1)}
    few = len(names) <= _MAX_COMPARED and not os.path.islink(path)  # noqa: PTH114 - names that no file can have
    near = difflib.get_close_matches(path.stem.casefold(), names, n=1, cutoff=0.8) if few else []
    return f"; did you mean {names[near[0]]}?" if near else ""
