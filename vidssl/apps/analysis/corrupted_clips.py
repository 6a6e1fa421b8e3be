"""Corruptions of robustness: compression of a video's frames, other frames of a clip, and those of pixels.

Compressions act on frames at the video's own rate and size, corruptions of pixels on the central square of a clip.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from vidssl.apps.analysis.pixel_corruptions import PIXEL_CORRUPTIONS
from vidssl.base.types import Frames, VideoMeta
from vidssl.data.clip_samplers import Clip, ClipSettings
from vidssl.jobs.grad_cam_of_videos import VersionRequest
from vidssl.transforms.invariance_changes import Change, choose_changes
from vidssl.video.reader import Video

_Image = NDArray[np.uint8]  # (H, W, 3) RGB


def quality_options(meta: VideoMeta, crf: float) -> dict[str, str]:
    """Options of x264 for a constant quality, from 0, lossless, to 51."""
    return {"crf": str(crf)}


def rate_options(bits: float) -> dict[str, str]:
    """Options of x264 for a number of bits per second, over a buffer of one second."""
    rate = str(round(bits))
    return {"b": rate, "maxrate": rate, "bufsize": rate}


class Recompressed:
    """Frames of one size and clip, decoded from H.264; `bits` is the size of the stream so far."""

    def __init__(self, options: dict[str, str], fps: float) -> None:
        self.bits = self._count = 0
        self._reformatter = VideoReformatter()  # one for all: a new one for each frame costs 2-3 ms
        self._options, self._fps = options, Fraction(fps).limit_denominator(100_000)

    def __call__(self, images: Iterable[_Image], needed: Container[int]) -> Iterator[_Image]:
        """Yield the images with the `needed` numbers, from 0, in their order: some frames later than they are read."""
        decoder = av.CodecContext.create("h264", "r")
        decoder.thread_count = 1
        encoder: Any = None
        shape = (0, 0)
        for number, image in enumerate(images):
            if encoder is None:
                shape = image.shape[:2]
                encoder = self._encoder(*shape)
            even: Any = cv2.copyMakeBorder(image, 0, shape[0] % 2, 0, shape[1] % 2, cv2.BORDER_REPLICATE)
            frame = av.VideoFrame.from_ndarray(even, format="rgb24")
            frame.pts = number
            yield from self._decoded(decoder, encoder.encode(frame), shape, needed)
        if encoder is not None:
            yield from self._decoded(decoder, [*encoder.encode(None), None], shape, needed)

    def _encoder(self, height: int, width: int) -> Any:
        encoder: Any = av.CodecContext.create("libx264", "w")
        encoder.height, encoder.width, encoder.pix_fmt = height + height % 2, width + width % 2, "yuv420p"
        encoder.framerate, encoder.time_base = self._fps, 1 / self._fps
        encoder.thread_count = 1  # one per worker; equal bits on every machine
        # Without mbtree: with it the stream of a short clip depends on memory that x264 does not set.
        encoder.options = {"preset": "veryfast", "x264-params": "mbtree=0", **self._options}
        return encoder

    def _decoded(
        self, decoder: Any, packets: Sequence[Any], shape: tuple[int, int], needed: Container[int]
    ) -> Iterator[_Image]:
        for packet in packets:
            self.bits += 0 if packet is None else 8 * packet.size
            for frame in decoder.decode(packet):
                if self._count in needed:
                    rgb: Any = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                    yield rgb[: shape[0], : shape[1]]
                self._count += 1


_RATE_PIXELS = 340 * 256  # a frame of Kinetics as it is usually stored; bit rates refer to it
_AT_A_TIME = 32  # frames that are decoded together, to bound the memory


def bit_rate_options(meta: VideoMeta, kilobits: float) -> dict[str, str]:
    """Options of a rate for frames of up to 340x256 pixels, in proportion of more."""
    # Not lower for smaller frames: x264 would have no bits left for the image, and code it as gray.
    return rate_options(1000 * kilobits * max(1.0, meta.height * meta.width / _RATE_PIXELS))


def _compress(
    options_of: Callable[[VideoMeta, float], dict[str, str]], request: VersionRequest, amount: float
) -> Frames:
    """Make a version, compressed from the first to the last requested frame."""
    meta, numbers = request.video.meta, request.numbers.tolist()
    encode = Recompressed(options_of(meta, amount), meta.fps)
    needed = {number - numbers[0] for number in numbers}
    return np.stack([*encode(_run(request.video, numbers[0], numbers[-1]), needed)]).transpose(0, 3, 1, 2)


def _run(video: Video, first: int, last: int) -> Iterator[_Image]:
    """Decode consecutive frames, both ends included."""
    for start in range(first, last + 1, _AT_A_TIME):
        yield from video.frames(range(start, min(start + _AT_A_TIME, last + 1))).transpose(0, 2, 3, 1)


_Rng = np.random.Generator


def freeze(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: _Rng) -> Clip:
    """Replace a random fraction of the frames after the first by the frame before: at 1, all are the first."""
    length = len(clip.indices)
    frozen = 1 + generator.permutation(length - 1)[: max(1, round(fraction * (length - 1)))]
    order = np.arange(length)
    order[frozen] = 0
    return replace(clip, indices=clip.indices[np.maximum.accumulate(order)])


def drop(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: _Rng) -> Clip:
    """Lose a random fraction of the native frames from the first on: the clip runs on faster, and unevenly.

    The clip keeps its stride, counted in the frames that are left. Where the video ends, the last one is held.
    """
    later = np.arange(clip.first + 1, meta.num_frames)
    remaining = np.concatenate([[clip.first], later[generator.random(len(later)) >= fraction]])
    indices = remaining[np.minimum(clip.indices - clip.first, len(remaining) - 1)]
    return Clip(indices, clip.first, int(indices.max()))


def shuffle(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: _Rng) -> Clip:
    """Displace a random fraction of the frames, at least two: each takes the place of another."""
    length = len(clip.indices)
    places = generator.permutation(length)[: max(2, round(fraction * length))]
    order = np.arange(length)
    order[places] = np.roll(places, 1)
    return replace(clip, indices=clip.indices[order])


def reverse_part(settings: ClipSettings, meta: VideoMeta, clip: Clip, fraction: float, generator: _Rng) -> Clip:
    """Play a stretch of the clip backwards, at a random place; at 1 the whole clip."""
    length = len(clip.indices)
    stretch = max(2, round(fraction * length))
    start = int(generator.integers(length - stretch, endpoint=True))
    order = np.arange(length)
    order[start : start + stretch] = order[start : start + stretch][::-1]
    return replace(clip, indices=clip.indices[order])


def jumble(settings: ClipSettings, meta: VideoMeta, clip: Clip, parts: float, generator: _Rng) -> Clip:
    """Cut the clip into equal parts, at most T, and play them in another order: none stays in its place."""
    pieces = np.array_split(clip.indices, min(round(parts), len(clip.indices)))
    order = generator.permutation(len(pieces))
    pieces_order = np.empty(len(pieces), np.int64)
    pieces_order[order] = np.roll(order, 1)
    return replace(clip, indices=np.concatenate([pieces[n] for n in pieces_order]))


def rate(settings: ClipSettings, meta: VideoMeta, clip: Clip, factor: float) -> Clip:
    """Play at a wrong rate: the clip spans `factor` times its native frames, about the same centre."""
    whole = settings.span(meta) if settings.in_time(meta) else clip.last - clip.first + 1
    span = max(1, round(factor * whole))
    start = settings.later(meta, clip.first, (whole - span) // 2)
    return settings.clip(meta, min(start, max(settings.starts(meta, span) - 1, 0)), span)


_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)

# New ones go to the end: the random numbers of a corruption depend on its position. The amounts are those of the
# severities 1 to 5; clips have two frames or more.
COMPRESSIONS = {
    "h264_crf": Change(
        partial(_compress, quality_options), (23, 30, 37, 44, 51), "CRF of x264", "compression", "frames"
    ),
    "h264_rate": Change(
        partial(_compress, bit_rate_options),
        (256, 128, 64, 32, 16),
        "kbit/s of up to 340x256 pixels, in proportion of more",
        "compression",
        "frames",
    ),
}
TIME_CORRUPTIONS = {
    "freeze": Change(freeze, _FRACTIONS, "fraction of the frames after the first", "time", "clip", draws=True),
    "drop": Change(drop, (0.1, 0.25, 0.5, 0.75, 0.9), "fraction of the native frames", "time", "clip", draws=True),
    "shuffle": Change(shuffle, _FRACTIONS, "fraction of the frames", "time", "clip", draws=True),
    "reverse": Change(reverse_part, _FRACTIONS, "fraction of the frames", "time", "clip", draws=True),
    "jumble": Change(jumble, (2, 3, 4, 6, 8), "parts", "time", "clip", draws=True),
    "rate": Change(rate, (0.8, 0.6, 0.4, 0.2, 0.1), "factor of the span", "time", "clip"),
}
ROBUSTNESS: dict[str, Change] = {**PIXEL_CORRUPTIONS, **COMPRESSIONS, **TIME_CORRUPTIONS}
SEVERITIES = (1, 2, 3, 4, 5)


def choose_corruptions(names: Sequence[str] | None, frames: int, size: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the corruptions that clips of some frames and size can have, as `choose_changes`."""
    excluded = {}
    if frames == 1:
        excluded = dict.fromkeys(TIME_CORRUPTIONS, "a clip of one frame has no order")
    if size % 2:
        excluded["global_shuffle"] = excluded["local_shuffle"] = f"2x2 patches do not divide {size} pixels"
    return choose_changes("corruption", ROBUSTNESS, names, excluded)
