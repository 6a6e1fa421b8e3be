"""The decoders to choose from: PyAV, and those of other packages that return the same frames or refuse the file."""

import importlib
import importlib.metadata
import multiprocessing
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
_Read = Callable[[list[int]], Iterable[Image]]  # ascending frame numbers to their images


class ExternalDecoder:
    """A decoder of another package, checked against the packet index.

    `make` opens the file and returns the number of frames that the package finds, and the function that reads them.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        packets: Packets,
        container: Any,
        max_pixels: int,
        make: Callable[[], tuple[int, _Read]],
    ) -> None:
        self._name, self._path, self._packets = name, path, packets
        kind = container.format.name
        is_avi, in_mp4 = kind == "avi", kind.startswith("mov")
        container.close()
        # These packages find frames by timestamp, and return wrong ones where timestamps are unreliable.
        if packets.key_times is None or packets.frame_of is None:
            raise self._refusal("its timestamps are unreliable")
        if is_avi and np.any(np.diff(packets.frame_of) < 0):
            raise self._refusal("its timestamps are unreliable (AVI with B-frames)")
        if name == "decord" and (kind == "asf" or packets.has_leading_frames):
            raise self._refusal("it does not find the frames beside key frames in files of this kind")
        turned, mirrored = orientation(path, max_pixels)
        if mirrored:  # they turn the picture instead
            raise self._refusal("its display matrix mirrors the picture")
        if turned and name == "decord" and not in_mp4:  # it reads this from MP4 and MOV only
            raise self._refusal("its display matrix turns the picture")
        count, self._read = self._guarded(make)
        if count != packets.meta.num_frames:
            raise self._refusal(f"it finds {count} frames of {packets.meta.num_frames}")

    def fetch(self, wanted: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Yield (number, image) of the wanted frames; frames of another size belong to another stream, an error."""
        meta = self._packets.meta
        for number, image in zip(wanted, self._guarded(lambda: self._read(list(wanted))), strict=False):
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
        del self._read

    def _guarded(self, action: Callable[[], _T]) -> _T:
        try:
            return action()
        except Exception as error:  # each package raises its own classes
            raise self._refusal((str(error).strip() or type(error).__name__).splitlines()[0]) from None

    def _refusal(self, reason: str) -> DecodeError:
        return DecodeError(f"{self._path}: {self._name} cannot return exact frames: {reason}; use data.backend=pyav")


def open_decord(path: Path, packets: Packets, container: Any, max_pixels: int) -> Decoder:
    """Open a file with decord."""
    decord = decord_package()
    streams = len(container.streams.video)

    def make() -> tuple[int, _Read]:
        if streams > 1:
            raise ValueError("it has several video streams, and decord may choose another one")
        reader = decord.VideoReader(str(path.absolute()), ctx=decord.cpu(0), num_threads=1)
        return len(reader), lambda wanted: reader.get_batch(wanted).asnumpy()

    return ExternalDecoder("decord", path, packets, container, max_pixels, make)


def open_torchcodec(path: Path, packets: Packets, container: Any, max_pixels: int) -> Decoder:
    """Open a file with torchcodec, on the CPU."""
    decoders = torchcodec_package()
    settings = {"stream_index": video_stream(container).index, "dimension_order": "NHWC", "num_ffmpeg_threads": 1}

    def make() -> tuple[int, _Read]:
        reader = decoders.VideoDecoder(str(path.absolute()), **settings)
        return len(reader), lambda wanted: reader.get_frames_at(wanted).data.numpy()

    return ExternalDecoder("torchcodec", path, packets, container, max_pixels, make)


def open_nvdec(path: Path, packets: Packets, container: Any, max_pixels: int) -> Decoder:
    """Open a file with torchcodec on the video decoder of an NVIDIA GPU, in the main process.

    Frame numbers are exact, pixels are not: the GPU converts to RGB with other roundings than FFmpeg.
    """
    nvdec_package()
    if multiprocessing.current_process().daemon:  # workers are forked, and CUDA does not work after a fork
        raise ConfigError("backend nvdec decodes in the main process: set data.workers=0, or use data.backend=pyav")
    decoders, device = torchcodec_package(), torch.device("cuda", torch.cuda.current_device())
    stream = video_stream(container).index

    def make() -> tuple[int, _Read]:
        reader = decoders.VideoDecoder(str(path.absolute()), stream_index=stream, dimension_order="NHWC", device=device)

        def read(wanted: list[int]) -> Iterable[Image]:
            frames = reader.get_frames_at(wanted).data
            if reader.cpu_fallback:  # torchcodec decodes what the GPU cannot on the CPU, without an error
                raise ValueError("the GPU cannot decode this kind of video")
            images: Iterable[Image] = frames.cpu().numpy()
            return images

        return len(reader), read

    return ExternalDecoder("nvdec", path, packets, container, max_pixels, make)


def backend_version(name: str) -> str:
    """Return the version of a backend's package, or raise a ConfigError with the command that installs it."""
    if name == "decord":
        return str(decord_package().__version__)
    if name == "torchcodec":
        torchcodec_package()
    if name == "nvdec":
        nvdec_package()
    return importlib.metadata.version({"pyav": "av", "nvdec": "torchcodec"}.get(name, name))


def nvdec_package() -> None:
    """Raise a ConfigError if there is no GPU, or a torchcodec that does not say what the GPU cannot decode."""
    if not torch.cuda.is_available():
        raise ConfigError("backend nvdec needs a CUDA device, there is none: use backend pyav")
    if not hasattr(torchcodec_package().VideoDecoder, "cpu_fallback"):
        version = importlib.metadata.version("torchcodec")
        raise ConfigError(f"backend nvdec needs torchcodec 0.10 or later, not {version}: pip install -U torchcodec")


def decord_package() -> Any:
    """Import decord, or raise a ConfigError with the command that installs it."""
    return _package("decord", "pip install decord (Linux on x86-64 only)")


def torchcodec_package() -> Any:
    """Import torchcodec's decoders, or raise a ConfigError with the command that installs them."""
    remedy = "pip install torchcodec, and install FFmpeg for its libraries (apt install ffmpeg)"
    return _package("torchcodec.decoders", remedy, _finds_ffmpeg)


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


BACKENDS: dict[str, Callable[[Path, Packets, Any, int], Decoder]] = {
    "pyav": PyAV,
    "decord": open_decord,
    "torchcodec": open_torchcodec,
    "nvdec": open_nvdec,
}
