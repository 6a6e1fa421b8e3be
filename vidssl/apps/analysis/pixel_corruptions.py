"""Corruptions of the pixels of a clip, each in five severities, to measure robustness with.

The constants are those of ImageNet-C (Hendrycks and Dietterich, 2019) or of Mini-Kinetics-C (Yi et al., 2021), and for
gamma and shuffles those of Zhong et al. (2022). Lengths are pixels of a frame whose shorter side is 224, and scaled to
others. Noise and rain differ between the frames of a clip; angles, fog and permutations are drawn once.

All operations take frames (T, 3, H, W) uint8 and an amount, those that draw also a generator.
"""

import math
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames
from vidssl.transforms import color
from vidssl.transforms import gamma_and_shuffles as distortions
from vidssl.transforms.crops import each_image
from vidssl.transforms.invariance_changes import Change

_Floats = NDArray[np.floating[Any]]
_Rng = np.random.Generator
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


def gamma_corruption(frames: Frames, exponent: float) -> Frames:
    """Raise all values in [0, 1] to a power."""
    return distortions.gamma(frames, exponent)


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
    "gamma_bright": Change(gamma_corruption, (0.8, 0.6, 0.4, 0.3, 0.2), "exponent", "light"),
    "gamma_dark": Change(gamma_corruption, (1.25, 1.5, 1.75, 2.0, 2.5), "exponent", "light"),
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
