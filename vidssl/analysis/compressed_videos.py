"""Videos with copies of their frames that were compressed as H.264, each in five severities."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.data.clip_samplers import Clip
from vidssl.types import Frames, VideoMeta, VideoRecord
from vidssl.video.reader import DecodeSettings, Video
from vidssl.video.recompress import Image, Recompressed, crf_options, rate_options

# Frame n + c * _COPY, c > 0, is frame n of the copy number c: one video gives all of them.
_COPY = 1 << 40
_RATE_PIXELS = 340 * 256  # a frame of Kinetics as it is usually stored; bit rates refer to it
_AT_A_TIME = 32  # frames that are decoded together, to bound the memory


@dataclass(frozen=True)
class Compression:
    """Options of the encoder, and its amounts for the severities 1 to 5."""

    options: Callable[[VideoMeta, Any], dict[str, str]]
    amounts: tuple[float, float, float, float, float]
    unit: str  # of the amounts
    group: str = "compression"


def _crf(meta: VideoMeta, crf: int) -> dict[str, str]:
    return crf_options(crf)


def _rate(meta: VideoMeta, kilobits: float) -> dict[str, str]:
    # Not lower for smaller frames: x264 would have no bits left for the image, and code it as gray.
    return rate_options(1000 * kilobits * max(1.0, meta.height * meta.width / _RATE_PIXELS))


COMPRESSIONS = {
    "h264_crf": Compression(_crf, (23, 30, 37, 44, 51), "CRF of x264"),
    "h264_rate": Compression(_rate, (256, 128, 64, 32, 16), "kbit/s of up to 340x256 pixels, in proportion of more"),
}
_COPIES = [(name, amount) for name, kind in COMPRESSIONS.items() for amount in kind.amounts]


def compressed_clip(clip: Clip, name: str, amount: float) -> Clip:
    """Return the same frames of the copy that is compressed by an amount of `COMPRESSIONS`."""
    first = _COPY * (1 + _COPIES.index((name, amount)))
    return Clip(clip.indices + first, clip.first + first, clip.last + first)


class CompressingSettings(DecodeSettings):
    """Opens videos that have the frames of `compressed_clip` too."""

    def open(self, record: VideoRecord) -> Video:
        """Open the video of a record."""
        return _CompressedVideo(super().open(record))


class _CompressedVideo(Video):
    """A video and its compressed copies, each compressed from the first to the last of its frames that is wanted."""

    def __init__(self, video: Video) -> None:
        super().__init__(video.path, video.meta, video._opened())

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Decode frames by number, in one forward pass for the originals and one for each copy."""
        wanted, rows = np.unique(np.asarray(indices, dtype=np.int64), return_inverse=True)
        copies, numbers = np.divmod(wanted, _COPY)
        parts = []
        for copy in np.unique(copies).tolist():
            own = numbers[copies == copy]
            parts.append(super().frames(own) if copy == 0 else self._compressed(own, *_COPIES[copy - 1]))
        images = np.concatenate([part.transpose(0, 2, 3, 1) for part in parts])
        return images[rows].transpose(0, 3, 1, 2)

    def _compressed(self, numbers: NDArray[np.int64], name: str, amount: float) -> Frames:
        compress = Recompressed(COMPRESSIONS[name].options(self.meta, amount), self.meta.fps)
        first = int(numbers[0])
        wanted = {int(number) - first for number in numbers}
        return np.stack([*compress(self._run(first, int(numbers[-1])), wanted)]).transpose(0, 3, 1, 2)

    def _run(self, first: int, last: int) -> Iterator[Image]:
        """Decode consecutive frames, both ends included."""
        for start in range(first, last + 1, _AT_A_TIME):
            yield from super().frames(range(start, min(start + _AT_A_TIME, last + 1))).transpose(0, 2, 3, 1)
