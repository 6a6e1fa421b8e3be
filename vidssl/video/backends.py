"""Optional decoders of other packages: they return the same frames as PyAV, or refuse the file with the reason."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vidssl.errors import ConfigError, DecodeError, VidsslError
from vidssl.video.decode import Decoder, Image
from vidssl.video.index import Packets

T = TypeVar("T")
_Read = Callable[[list[int]], list[Image]]


class ExternalDecoder:
    """A decoder of another package, checked against the packet index.

    Args:
        name: Backend, for messages.
        path: Video file.
        packets: Packet index of the file.
        make: Opens the file and returns a function from ascending frame numbers to their images.
    """

    def __init__(self, name: str, path: Path, packets: Packets, make: Callable[[], _Read]) -> None:
        self._name, self._path, self._packets = name, path, packets
        self._read = self._guarded(make)

    def fetch(self, wanted: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Yield (number, image) of the wanted frames.

        Raises:
            DecodeError: The decoder fails, or returns frames of another size, which belong to another stream.
        """
        meta = self._packets.meta
        numbers = iter(wanted)
        for image in self._guarded(lambda: self._read(list(wanted))):
            if {*image.shape[:2]} != {meta.height, meta.width}:  # upright or rotated by 90 degrees
                raise self._refusal(f"its frames are {image.shape[1]}x{image.shape[0]}")
            yield next(numbers), image

    def iter_frames(self) -> Iterator[Image]:
        """Yield all frames in order, decoded 64 at a time."""
        count = self._packets.meta.num_frames
        for start in range(0, count, 64):
            for _, image in self.fetch(range(start, min(start + 64, count))):
                yield image

    def close(self) -> None:
        """Close the file: the reader holds it open."""
        del self._read

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except VidsslError:
            raise
        except Exception as error:  # each package raises its own classes
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise self._refusal(reason) from None

    def _refusal(self, reason: str) -> DecodeError:
        return DecodeError(
            f"{self._path}: {self._name} cannot return exact frames for this file: {reason}; use data.backend=pyav"
        )


def open_decord(path: Path, packets: Packets, container: Any, _: int) -> Decoder:
    """Open a file with decord."""
    decord = decord_package()
    name, streams = container.format.name, len(container.streams.video)
    container.close()

    def make() -> _Read:
        _check_timestamps(name, packets)
        if streams > 1:
            raise ValueError("it has several video streams, and decord may choose another one")
        reader = decord.VideoReader(str(path.absolute()), ctx=decord.cpu(0), num_threads=1)
        _check_count(len(reader), packets)
        return lambda wanted: list(reader.get_batch(wanted).asnumpy())

    return ExternalDecoder("decord", path, packets, make)


def open_torchcodec(path: Path, packets: Packets, container: Any, _: int) -> Decoder:
    """Open a file with torchcodec, on the CPU."""
    decoders = torchcodec_package()
    name, stream = container.format.name, container.streams.video[0].index
    container.close()

    def make() -> _Read:
        _check_timestamps(name, packets)
        reader = decoders.VideoDecoder(
            str(path.absolute()), stream_index=stream, dimension_order="NHWC", num_ffmpeg_threads=1
        )
        _check_count(len(reader), packets)
        return lambda wanted: list(reader.get_frames_at(wanted).data.numpy())

    return ExternalDecoder("torchcodec", path, packets, make)


def _check_timestamps(container: str, packets: Packets) -> None:
    """Refuse files with unreliable timestamps: both packages find frames by timestamp and return wrong ones there."""
    if packets.key_times is None or packets.frame_of is None:
        raise ValueError("its timestamps are unreliable")
    if container == "avi" and np.any(np.diff(packets.frame_of) < 0):
        raise ValueError("its timestamps are unreliable (AVI with B-frames)")


def _check_count(count: int, packets: Packets) -> None:
    if count != packets.meta.num_frames:
        raise ValueError(f"it finds {count} frames of {packets.meta.num_frames}")


def decord_package() -> Any:
    """Import decord, or raise a ConfigError with the command that installs it."""
    return _package("decord", "pip install decord (Linux on x86-64 only)")


def torchcodec_package() -> Any:
    """Import torchcodec's decoders, or raise a ConfigError with the command that installs them."""
    remedy = "pip install torchcodec, and install FFmpeg for its libraries (apt install ffmpeg)"
    decoders = _package("torchcodec.decoders", remedy)
    if not _finds_ffmpeg(decoders):
        raise _missing("torchcodec", remedy)
    return decoders


@cache
def _finds_ffmpeg(decoders: Any) -> bool:
    """Whether torchcodec finds FFmpeg's libraries. Releases of 2026 load them with the first video only."""
    try:
        decoders.VideoDecoder(b"")
    except Exception as error:  # with FFmpeg: another error, that this is not a video
        return "libtorchcodec" not in str(error)
    return True


def _package(name: str, remedy: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError):  # the latter two: torchcodec without FFmpeg
        raise _missing(name.partition(".")[0], remedy) from None


def _missing(backend: str, remedy: str) -> ConfigError:
    return ConfigError(f"backend {backend} cannot be loaded: {remedy}; or use backend pyav")
