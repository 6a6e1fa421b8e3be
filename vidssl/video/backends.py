"""Decoders of other packages, held to what the packets tell: the same frames as ours, or a refusal with the reason."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np

from vidssl.errors import ConfigError, DecodeError, VidsslError
from vidssl.video.decode import Decoder, Image
from vidssl.video.index import Packets

T = TypeVar("T")
_Read = Callable[[list[int]], list[Image]]


class Borrowed:
    """A reader of another package, held to what the packets tell: it gives their frames or refuses the file.

    Args:
        name: Of the backend.
        path: Of the file.
        packets: What the file holds.
        make: Opens the file and gives a function from frame numbers, which ascend, to their images in order.
    """

    def __init__(self, name: str, path: Path, packets: Packets, make: Callable[[], _Read]) -> None:
        self._name, self._path, self._packets = name, path, packets
        self._read = self._guarded(make)

    def fetch(self, wanted: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Give (number, image) of the wanted frames.

        Raises:
            DecodeError: The reader fails, or shows frames of another size: those of another stream.
        """
        meta = self._packets.meta
        numbers = iter(wanted)
        for image in self._guarded(lambda: self._read(list(wanted))):
            if {*image.shape[:2]} != {meta.height, meta.width}:  # upright or turned
                raise self._refusal(f"its frames are {image.shape[1]}x{image.shape[0]}")
            yield next(numbers), image

    def iter_frames(self) -> Iterator[Image]:
        """Give all frames, some at a time."""
        count = self._packets.meta.num_frames
        for start in range(0, count, 64):
            for _, image in self.fetch(range(start, min(start + 64, count))):
                yield image

    def close(self) -> None:
        """Close the file: what reads it holds it open."""
        del self._read

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except VidsslError:
            raise
        except Exception as error:  # each package has its own
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise self._refusal(reason) from None

    def _refusal(self, reason: str) -> DecodeError:
        return DecodeError(
            f"{self._path}: {self._name} does not give the frames of this file ({reason}); use pyav"
        )


def open_decord(path: Path, packets: Packets, container: Any, _: int) -> Decoder:
    """Open a file with decord."""
    decord = decord_package()
    name, streams = container.format.name, len(container.streams.video)
    container.close()

    def make() -> _Read:
        _named_by_time(name, packets)
        if streams > 1:
            raise ValueError("it may take another of its video streams")
        reader = decord.VideoReader(str(path.absolute()), ctx=decord.cpu(0), num_threads=1)
        _same_number(len(reader), packets)
        return lambda wanted: list(reader.get_batch(wanted).asnumpy())

    return Borrowed("decord", path, packets, make)


def open_torchcodec(path: Path, packets: Packets, container: Any, _: int) -> Decoder:
    """Open a file with torchcodec, on the CPU."""
    decoders = torchcodec_package()
    name, stream = container.format.name, container.streams.video[0].index
    container.close()

    def make() -> _Read:
        _named_by_time(name, packets)
        reader = decoders.VideoDecoder(
            str(path.absolute()), stream_index=stream, dimension_order="NHWC", num_ffmpeg_threads=1
        )
        _same_number(len(reader), packets)
        return lambda wanted: list(reader.get_frames_at(wanted).data.numpy())

    return Borrowed("torchcodec", path, packets, make)


def open_opencv(path: Path, packets: Packets, container: Any, _: int) -> Decoder:
    """Open a file with OpenCV. Its seeks are not exact: it reads from the first frame each time."""
    container.close()

    def read(wanted: list[int]) -> list[Image]:
        capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
        try:
            if not capture.isOpened():
                raise ValueError("it cannot open it")
            images, asked = [], set(wanted)
            for number in range(wanted[-1] + 1):
                if not capture.grab():
                    raise ValueError(f"it ends at frame {number} of {packets.meta.num_frames}")
                if number in asked:
                    image = cv2.cvtColor(capture.retrieve()[1], cv2.COLOR_BGR2RGB)
                    images.append(np.asarray(image, np.uint8))
            return images
        finally:
            capture.release()

    return Borrowed("opencv", path, packets, lambda: read)


def _named_by_time(container: str, packets: Packets) -> None:
    """Refuse files whose time stamps do not name their frames: there, such readers are known to give wrong ones."""
    if packets.stamps is None or packets.frame_of is None:
        raise ValueError("its time stamps do not name its frames")
    if container == "avi" and np.any(np.diff(packets.frame_of) < 0):
        raise ValueError("an AVI file with B-frames: its time stamps do not name its frames")


def _same_number(count: int, packets: Packets) -> None:
    if count != packets.meta.num_frames:
        raise ValueError(f"it sees {count} frames of {packets.meta.num_frames}")


def decord_package() -> Any:
    """Import decord, or raise a ConfigError that says what to do."""
    return _package("decord", "pip install decord (Linux on x86-64 only)")


def torchcodec_package() -> Any:
    """Import torchcodec's decoders, or raise a ConfigError that says what to do."""
    remedy = "pip install torchcodec, and install FFmpeg for its libraries (apt install ffmpeg)"
    decoders = _package("torchcodec.decoders", remedy)
    if not _finds_ffmpeg(decoders):
        raise _missing("torchcodec", remedy)
    return decoders


@cache
def _finds_ffmpeg(decoders: Any) -> bool:
    """Whether torchcodec finds FFmpeg's libraries. Releases of 2026 look for them at the first video only."""
    try:
        decoders.VideoDecoder(b"")
    except Exception as error:  # no video: that is another error
        return "libtorchcodec" not in str(error)
    return True


def _package(name: str, remedy: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # the latter two: torchcodec without FFmpeg
        raise _missing(name.partition(".")[0], remedy) from None


def _missing(backend: str, remedy: str) -> ConfigError:
    return ConfigError(f"backend {backend} cannot be loaded: {remedy}; or use backend pyav")
