"""Videos with copies of their frames that were compressed as H.264, each in five severities."""

from collections.abc import Iterator

import numpy as np

from vidssl.analysis.versions_from_one_decode import VersionRequest, version_of
from vidssl.data.clip_samplers import Clip
from vidssl.transforms.graded_changes import Change
from vidssl.types import Frames, VideoMeta
from vidssl.video.compress_in_memory import Image, Recompressed, crf_options, rate_options
from vidssl.video.reader import Video

_RATE_PIXELS = 340 * 256  # a frame of Kinetics as it is usually stored; bit rates refer to it
_AT_A_TIME = 32  # frames that are decoded together, to bound the memory


def _crf(meta: VideoMeta, crf: int) -> dict[str, str]:
    return crf_options(crf)


def _rate(meta: VideoMeta, kilobits: float) -> dict[str, str]:
    # Not lower for smaller frames: x264 would have no bits left for the image, and code it as gray.
    return rate_options(1000 * kilobits * max(1.0, meta.height * meta.width / _RATE_PIXELS))


# Each takes the metadata of a video and an amount, and returns options of the encoder.
COMPRESSIONS = {
    "h264_crf": Change(_crf, (23, 30, 37, 44, 51), "CRF of x264", "compression"),
    "h264_rate": Change(
        _rate, (256, 128, 64, 32, 16), "kbit/s of up to 340x256 pixels, in proportion of more", "compression"
    ),
}
_VERSIONS = [(name, amount) for name, kind in COMPRESSIONS.items() for amount in kind.amounts]


def compressed(clip: Clip, name: str, amount: float) -> Clip:
    """Return the same frames of the version that is compressed by an amount of `COMPRESSIONS`."""
    return version_of(clip, 1 + _VERSIONS.index((name, amount)))


def compress(request: VersionRequest) -> Frames:
    """Make a version (versions_from_one_decode.py), compressed from the first to the last wanted frame."""
    name, amount = _VERSIONS[request.version - 1]
    meta, numbers = request.video.meta, request.numbers.tolist()
    encode = Recompressed(COMPRESSIONS[name].apply(meta, amount), meta.fps)
    wanted = {number - numbers[0] for number in numbers}
    return np.stack([*encode(_run(request.video, numbers[0], numbers[-1]), wanted)]).transpose(0, 3, 1, 2)


def _run(video: Video, first: int, last: int) -> Iterator[Image]:
    """Decode consecutive frames, both ends included."""
    for start in range(first, last + 1, _AT_A_TIME):
        yield from video.frames(range(start, min(start + _AT_A_TIME, last + 1))).transpose(0, 2, 3, 1)
