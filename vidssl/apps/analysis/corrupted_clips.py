"""Corruptions of robustness: compression of a video's frames, other frames of a clip, and those of pixels.

Compressions act on frames at the video's own rate and size, corruptions of pixels on the central square of a clip.
These take frames (T, 3, H, W) uint8 and an amount, and if they draw also a generator. Their constants are those of
ImageNet-C (Hendrycks and Dietterich, 2019) or of Mini-Kinetics-C (Yi et al., 2021), and for gamma and shuffles those of
Zhong et al. (2022). Lengths are pixels of a frame whose shorter side is 224, and scaled to others. Noise and rain
differ between the frames of a clip; angles, fog and permutations are drawn once.
"""

import math
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

from vidssl.base.types import Frames, VideoMeta
from vidssl.data.clip_samplers import Clip, ClipSettings
from vidssl.jobs.grad_cam import VersionRequest
from vidssl.transforms import color
from vidssl.transforms import gamma_and_shuffles as distortions
from vidssl.transforms.crops import each_image
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


_Floats = NDArray[np.floating[Any]]
_REFERENCE = 224  # pixels, the shorter side that lengths refer to
_RAIN = 220.0  # gray value of a streak


def gaussian_noise(frames: Frames, sigma: float, generator: _Rng) -> Frames:
    """Add normal noise of standard deviation `sigma`, a fraction of 255."""
    images = _images(frames)
    return _bytes(images + 255 * sigma * generator.standard_normal(images.shape, np.float32))


def shot_noise(frames: Frames, photons: float, generator: _Rng) -> Frames:
    """Draw each value from a Poisson distribution, as if white were `photons` photons."""
    images = _images(frames)
    return _bytes(generator.poisson(images / 255 * photons).astype(np.float32) * (255 / photons))


def impulse_noise(frames: Frames, fraction: float, generator: _Rng) -> Frames:
    """Set a fraction of the values to 0 or 255, equally often."""
    images = frames.transpose(0, 2, 3, 1)
    drawn = generator.random(images.shape, np.float32)
    noisy = np.where(drawn < fraction, np.where(drawn < fraction / 2, np.uint8(0), np.uint8(255)), images)
    return noisy.transpose(0, 3, 1, 2)


def blur_corruption(frames: Frames, sigma: float) -> Frames:
    """Blur with a Gaussian."""
    sigma *= _scale(frames)
    return color.gaussian_blur(frames, 2 * math.ceil(3.5 * sigma) + 1, sigma)


def defocus_blur(frames: Frames, radius: float) -> Frames:
    """Blur with a disk, whose edge is one pixel wide."""
    radius *= _scale(frames)
    reach = math.ceil(radius)
    rows, columns = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    return _filtered(frames, np.clip(radius + 0.5 - np.hypot(rows, columns), 0, 1))


def motion_blur(frames: Frames, length: float, generator: _Rng) -> Frames:
    """Blur along a line, as a camera that moves does; its angle is drawn within 45 degrees of the horizontal."""
    return _filtered(frames, line_kernel(length * _scale(frames), generator.uniform(-45, 45)))


def line_kernel(length: float, degrees: float) -> NDArray[np.float64]:
    """Divide a centred line among the pixels that it passes, bilinearly: (K, K), K odd."""
    reach = math.ceil(length / 2) + 1
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    at = np.linspace(-length / 2, length / 2, 8 * reach + 1)  # points of the line
    x, y = reach + at * math.cos(math.radians(degrees)), reach + at * math.sin(math.radians(degrees))
    left, top = np.floor(x).astype(int), np.floor(y).astype(int)
    for dx, dy in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (1 - np.abs(x - left - dx)) * (1 - np.abs(y - top - dy))
        np.add.at(kernel, (top + dy, left + dx), weight)
    return kernel


def fog(frames: Frames, amount: tuple[float, float], generator: _Rng) -> Frames:
    """Add fog (its thickness, the decay of its details) and scale the clip back to its largest value."""
    thickness, decay = amount
    images = _images(frames)
    largest = float(images.max())
    layer = 255 * thickness * fog_layer(frames.shape[2], frames.shape[3], decay, generator)[..., None]
    return _bytes((images + layer) * (largest / max(largest + 255 * thickness, 1)))


def fog_layer(height: int, width: int, decay: float, generator: _Rng) -> _Floats:
    """Sum uniform noise on grids of 2, 4, 8, … cells, each with 1 / decay the amplitude of the one before: [0, 1]."""
    layer = np.zeros((height, width), np.float32)
    for octave in range(1, max(2, int(math.log2(max(height, width))) + 1)):
        coarse = generator.random((2**octave + 1, 2**octave + 1), np.float32)
        layer += decay**-octave * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    low, high = float(layer.min()), float(layer.max())
    return np.asarray((layer - low) / max(high - low, 1e-9), np.float32)


def rain(frames: Frames, amount: tuple[float, float, float], generator: _Rng) -> Frames:
    """Draw streaks (number, length) of one slant, others in each frame, and lower the contrast (factor)."""
    number, length, factor = amount
    height, width = frames.shape[2:]
    length *= _scale(frames)
    slant = generator.uniform(-10, 10) * _scale(frames)
    images = _images(frames)
    for image in images:
        mask = np.zeros((height, width), np.uint8)
        x, y = generator.uniform(0, width, int(number)), generator.uniform(-length, height, int(number))
        ends = np.rint(np.stack([x, y, x + slant, y + length], axis=1)).astype(int).tolist()
        for left, top, right, bottom in ends:
            cv2.line(mask, (left, top), (right, bottom), 255, max(1, round(_scale(frames))), cv2.LINE_AA)
        image += (_RAIN - image) * (mask / np.float32(255))[..., None]
    return _lower_contrast(images, factor)


def contrast(frames: Frames, factor: float) -> Frames:
    """Scale the distance of all values to the mean of their frame and channel."""
    return _lower_contrast(_images(frames), factor)


def brightness(frames: Frames, amount: float) -> Frames:
    """Add to the value of HSV, a fraction."""
    return _change_hsv(frames, 2, 1.0, amount)


def saturate(frames: Frames, amount: tuple[float, float]) -> Frames:
    """Multiply the saturation of HSV, and add to it."""
    return _change_hsv(frames, 1, *amount)


def jpeg(frames: Frames, quality: int) -> Frames:
    """Compress each frame as JPEG."""

    def compress(image: NDArray[np.uint8], dst: NDArray[np.uint8]) -> None:
        _, packed = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), (cv2.IMWRITE_JPEG_QUALITY, quality))
        dst[:] = np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR_RGB))

    return each_image(compress, np.ascontiguousarray(frames.transpose(0, 2, 3, 1)))


def largest_grid(side: int, grid: int) -> int:
    """Return the largest number of patches up to `grid` that divides a side."""
    return max(n for n in range(1, grid + 1) if side % n == 0)


def global_shuffle_corruption(frames: Frames, grid: int, generator: _Rng) -> Frames:
    """Permute n x n patches, n the largest number up to `grid` that divides the side."""
    return distortions.global_shuffle(frames, largest_grid(frames.shape[3], grid), generator)


def local_shuffle_corruption(frames: Frames, grid: int, generator: _Rng) -> Frames:
    """Permute the pixels within each of n x n patches, n the largest number up to `grid` that divides the side."""
    return distortions.local_shuffle(frames, largest_grid(frames.shape[3], grid), generator)


_FOG = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
_RAINS = ((65, 10, 0.8), (65, 30, 0.8), (65, 60, 0.7), (100, 60, 0.6), (125, 80, 0.5))
_SATURATIONS = ((0.3, 0.0), (0.1, 0.0), (2.0, 0.0), (5.0, 0.1), (20.0, 0.2))
_PATCHES = "n: n x n patches"

# New ones go to the end: the random numbers of a corruption depend on its position.
# The amounts are those of the severities 1 to 5.
PIXEL_CORRUPTIONS = {
    "gaussian_noise": Change(
        gaussian_noise, (0.08, 0.12, 0.18, 0.26, 0.38), "standard deviation, fraction of 255", "noise", draws=True
    ),
    "shot_noise": Change(shot_noise, (60, 25, 12, 5, 3), "photons of white", "noise", draws=True),
    "impulse_noise": Change(
        impulse_noise, (0.03, 0.06, 0.09, 0.17, 0.27), "fraction of the values", "noise", draws=True
    ),
    "gaussian_blur": Change(blur_corruption, (1, 2, 3, 4, 6), "standard deviation, pixels of 224", "blur"),
    "defocus_blur": Change(defocus_blur, (3, 4, 6, 8, 10), "radius, pixels of 224", "blur"),
    "motion_blur": Change(motion_blur, (10, 15, 20, 25, 30), "length, pixels of 224", "blur", draws=True),
    "fog": Change(fog, _FOG, "thickness and decay of details", "weather", draws=True),
    "rain": Change(rain, _RAINS, "streaks, their length in pixels of 224, contrast", "weather", draws=True),
    "contrast": Change(contrast, (0.5, 0.4, 0.3, 0.2, 0.1), "factor", "light"),
    "brightness": Change(brightness, (0.1, 0.2, 0.3, 0.4, 0.5), "added to the value of HSV", "light"),
    "saturate": Change(saturate, _SATURATIONS, "factor of the saturation, and added to it", "light"),
    "gamma_bright": Change(distortions.gamma, (0.8, 0.6, 0.4, 0.3, 0.2), "exponent", "light"),
    "gamma_dark": Change(distortions.gamma, (1.25, 1.5, 1.75, 2.0, 2.5), "exponent", "light"),
    "jpeg": Change(jpeg, (25, 18, 15, 10, 7), "quality", "compression"),
    "global_shuffle": Change(global_shuffle_corruption, (2, 4, 8, 16, 32), _PATCHES, "patches", draws=True),
    "local_shuffle": Change(local_shuffle_corruption, (16, 8, 4, 2, 1), _PATCHES, "patches", draws=True),
}


def _scale(frames: Frames) -> float:
    return float(min(frames.shape[2:]) / _REFERENCE)


def _images(frames: Frames) -> _Floats:
    """Copy as floats (T, H, W, 3) in 0-255."""
    return np.asarray(frames.transpose(0, 2, 3, 1), np.float32, copy=True)


def _bytes(images: _Floats) -> Frames:
    """Round floats (T, H, W, 3) to frames."""
    return np.rint(np.clip(images, 0, 255)).astype(np.uint8).transpose(0, 3, 1, 2)


def _filtered(frames: Frames, kernel: NDArray[np.float64]) -> Frames:
    change = partial(cv2.filter2D, ddepth=-1, kernel=kernel / kernel.sum(), borderType=cv2.BORDER_REFLECT_101)
    return each_image(change, frames.transpose(0, 2, 3, 1))


def _lower_contrast(images: _Floats, factor: float) -> Frames:
    mean = images.mean(axis=(1, 2), keepdims=True)
    return _bytes(mean + factor * (images - mean))


def _change_hsv(frames: Frames, channel: int, factor: float, offset: float) -> Frames:
    images = _images(frames) / 255
    for image in images:
        hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
        hsv[..., channel] = np.clip(factor * hsv[..., channel] + offset, 0, 1)
        cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB, dst=image)
    return _bytes(255 * images)


_FRACTIONS = (0.2, 0.4, 0.6, 0.8, 1.0)
_KILOBITS = "kbit/s of up to 340x256 pixels, in proportion of more"

# New ones go to the end: the random numbers of a corruption depend on its position. The amounts are those of the
# severities 1 to 5; clips have two frames or more.
COMPRESSIONS = {
    "h264_crf": Change(
        partial(_compress, quality_options), (23, 30, 37, 44, 51), "CRF of x264", "compression", "frames"
    ),
    "h264_rate": Change(
        partial(_compress, bit_rate_options), (256, 128, 64, 32, 16), _KILOBITS, "compression", "frames"
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
