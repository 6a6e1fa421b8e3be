"""The decoders to choose from: PyAV, and those of other packages that return the same frames or refuse the file."""

import importlib
import importlib.metadata
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from vidssl.base.errors import ConfigError, DecodeError
from vidssl.video.decode import Decoder, Image, PyAV, orientation
from vidssl.video.open_container import video_stream
from vidssl.video.packet_index import Packets

_T = TypeVar("_T")


class ExternalDecoder(ABC):
    """A decoder of another package, checked against the packet index."""

    name: str  # of the backend

    def __init__(self, path: Path, packets: Packets, container: Any, max_pixels: int) -> None:
        self._path, self._packets, self._package = path, packets, self.load()
        self._num_streams, self._stream = len(container.streams.video), video_stream(container).index
        kind = container.format.name
        container.close()
        # These packages find frames by timestamp, and return wrong ones where timestamps are unreliable.
        if packets.key_times is None or packets.frame_of is None:
            raise self._refusal("its timestamps are unreliable")
        if kind == "avi" and np.any(np.diff(packets.frame_of) < 0):
            raise self._refusal("its timestamps are unreliable (AVI with B-frames)")
        if self.name == "decord" and (kind == "asf" or packets.has_leading_frames):
            raise self._refusal("it does not find the frames beside key frames in files of this kind")
        turned, mirrored = orientation(path, max_pixels)
        if mirrored:  # they turn the picture instead
            raise self._refusal("its display matrix mirrors the picture")
        if turned and self.name == "decord" and not kind.startswith("mov"):  # it reads this from MP4 and MOV only
            raise self._refusal("its display matrix turns the picture")
        self._reader = self._guarded(self._open)
        if (count := len(self._reader)) != packets.meta.num_frames:
            raise self._refusal(f"it finds {count} frames of {packets.meta.num_frames}")

    @staticmethod
    @abstractmethod
    def load() -> Any:
        """Import the package, or raise a ConfigError with the command that installs it."""

    @abstractmethod
    def _open(self) -> Any:
        """Open the file with the package."""

    @abstractmethod
    def _read(self, numbers: list[int]) -> Iterable[Image]:
        """Read frames by their numbers, which ascend."""

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Yield (number, image) of the wanted frames; frames of another size belong to another stream, an error."""
        meta = self._packets.meta
        for number, image in zip(numbers, self._guarded(lambda: self._read(list(numbers))), strict=False):
            if {*image.shape[:2]} != {meta.height, meta.width}:  # upright or rotated by 90 degrees
                raise self._refusal(f"its frames are {image.shape[1]}x{image.shape[0]}")
            yield number, image

    def iter_frames(self) -> Iterator[Image]:
        """Yield all frames in order, decoded 64 at a time."""
        count = self._packets.meta.num_frames
        for start in range(0, count, 64):
            for _, image in self.fetch(range(start, min(start + 64, count))):
                yield image

    def close(self) -> None:
        """Close the file: the reader holds it open."""
        del self._reader

    def _guarded(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except Exception as error:  # each package raises its own classes
            raise self._refusal((str(error).strip() or type(error).__name__).splitlines()[0]) from None

    def _refusal(self, reason: str) -> DecodeError:
        return DecodeError(f"{self._path}: {self.name} cannot return exact frames: {reason}; use data.backend=pyav")


class Decord(ExternalDecoder):
    """Decodes with decord."""

    name = "decord"

    @staticmethod
    def load() -> Any:
        """Import decord."""
        return _package("decord", "pip install decord (Linux on x86-64 only)")

    def _open(self) -> Any:
        if self._num_streams > 1:
            raise ValueError("it has several video streams, and decord may choose another one")
        return self._package.VideoReader(str(self._path.absolute()), ctx=self._package.cpu(0), num_threads=1)

    def _read(self, numbers: list[int]) -> Any:
        return self._reader.get_batch(numbers).asnumpy()


class TorchCodec(ExternalDecoder):
    """Decodes with torchcodec, on the CPU."""

    name = "torchcodec"

    @staticmethod
    def load() -> Any:
        """Import torchcodec's decoders."""
        remedy = "pip install torchcodec, and install FFmpeg for its libraries (apt install ffmpeg)"
        return _package("torchcodec.decoders", remedy, _finds_ffmpeg)

    def _open(self) -> Any:
        return self._open_with(num_ffmpeg_threads=1)

    def _open_with(self, **settings: Any) -> Any:
        path = str(self._path.absolute())
        return self._package.VideoDecoder(path, stream_index=self._stream, dimension_order="NHWC", **settings)

    def _read(self, numbers: list[int]) -> Any:
        return self._reader.get_frames_at(numbers).data.cpu().numpy()


class NVDEC(TorchCodec):
    """Decodes with torchcodec on the video decoder of an NVIDIA GPU, in the main process.

    Frame numbers are exact, pixels are not: the GPU converts to RGB with other roundings than FFmpeg.
    """

    name = "nvdec"

    @staticmethod
    def load() -> Any:
        """Import them; a ConfigError also if there is no GPU, or if they do not say what the GPU cannot decode."""
        if not torch.cuda.is_available():
            raise ConfigError("backend nvdec needs a CUDA device, there is none: use backend pyav")
        package = TorchCodec.load()
        if not hasattr(package.VideoDecoder, "cpu_fallback"):
            version = importlib.metadata.version("torchcodec")
            raise ConfigError(f"backend nvdec needs torchcodec 0.10 or later, not {version}: pip install -U torchcodec")
        if multiprocessing.current_process().daemon:  # workers are forked, and CUDA does not work after a fork
            raise ConfigError("backend nvdec decodes in the main process: set data.workers=0, or use data.backend=pyav")
        return package

    def _open(self) -> Any:
        return self._open_with(device=torch.device("cuda", torch.cuda.current_device()))

    def _read(self, numbers: list[int]) -> Any:
        images = super()._read(numbers)
        if self._reader.cpu_fallback:  # torchcodec decodes what the GPU cannot on the CPU, without an error
            raise ValueError("the GPU cannot decode this kind of video")
        return images


@cache
def _finds_ffmpeg(decoders: Any) -> bool:
    """Whether torchcodec finds FFmpeg's libraries. Releases of 2026 load them with the first video only."""
    try:
        decoders.VideoDecoder(b"")
    except Exception as error:  # with FFmpeg: another error, that this is not a video
        return "libtorchcodec" not in str(error)
    return True


def _package(name: str, remedy: str, works: Callable[[Any], bool] = lambda package: True) -> Any:
    with suppress(ImportError, OSError, RuntimeError):  # the latter two: torchcodec without FFmpeg
        package = importlib.import_module(name)
        if works(package):
            return package
    raise ConfigError(f"backend {name.partition('.')[0]} cannot be loaded: {remedy}; or use backend pyav")


_EXTERNAL: dict[str, type[ExternalDecoder]] = {"decord": Decord, "torchcodec": TorchCodec, "nvdec": NVDEC}
BACKENDS: dict[str, Callable[[Path, Packets, Any, int], Decoder]] = {"pyav": PyAV, **_EXTERNAL}


def backend_version(name: str) -> str:
    """Return the version of a backend's package, or raise a ConfigError with the command that installs it."""
    if name == "pyav":
        return importlib.metadata.version("av")
    package = _EXTERNAL[name].load()
    return str(package.__version__) if name == "decord" else importlib.metadata.version("torchcodec")
