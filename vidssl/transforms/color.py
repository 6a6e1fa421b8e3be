"""Colour, blur, sharpness and solarisation of clips, with the meaning of torchvision's functions of the same names.

All take uint8 frames (T, 3, H, W). Largest and mean difference from torchvision's results on the same bytes,
of 255, for the worst amounts: hue 2 and 0.2, contrast and saturation 2 and 1.0, brightness, sharpness and automatic
contrast 1 and 1.0, gray 1 and 0.5, blur 1 and 0.004, solarisation, posterisation and equalisation 0. Ours are mostly
the brighter: OpenCV rounds to the nearest value where torchvision's uint8 functions cut off.
"""

import math
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.types import Frames

# Red, green, blue (ITU-R BT.601): the luma that torchvision and OpenCV call gray.
_LUMA = np.array([0.299, 0.587, 0.114])
# Not quite diagonal: OpenCV has a function of its own for diagonal matrices, which is slower.
_IDENTITY = np.eye(3) + 1e-9


def adjust_brightness(frames: Frames, factor: float) -> Frames:
    """Multiply all values by `factor` >= 0: 0 gives black, 1 changes nothing."""
    return _transform(frames, factor * _IDENTITY)


def adjust_contrast(frames: Frames, factor: float) -> Frames:
    """Stretch all values about the mean gray of their frame by `factor` >= 0: 0 gives gray, 1 no change."""
    images = frames.transpose(0, 2, 3, 1)
    out = np.empty(images.shape, np.uint8)
    matrix = np.column_stack([factor * _IDENTITY, np.zeros(3)])
    for image, target in zip(images, out, strict=True):
        matrix[:, 3] = (1 - factor) * (_LUMA @ cv2.mean(image)[:3])
        cv2.transform(image, matrix, dst=target)
    return out.transpose(0, 3, 1, 2)


def adjust_saturation(frames: Frames, factor: float) -> Frames:
    """Move all pixels away from their own gray by `factor` >= 0: 0 gives gray, 1 changes nothing."""
    return _transform(frames, factor * np.eye(3) + (1 - factor) * _LUMA)


def adjust_hue(frames: Frames, shift: float) -> Frames:
    """Turn the hue by `shift` in [-0.5, 0.5], as a part of the whole circle.

    This is the turn of HSV, exact but for rounding, without the way to HSV and back. Whole thirds of the circle
    exchange channels. The rest, s in [-1, 1] sixths of the circle, is piecewise linear:

        red' = (2 - |s|) · red - s · green + s · blue - (1 - |s|) · middle, cut to [smallest, largest],

    where smallest, middle and largest are the pixel's own three values; so for green and blue in cyclic order.
    """
    thirds = round(3 * shift)
    rest = 6 * shift - 2 * thirds
    row = (2 - abs(rest), -rest, rest)
    matrix = np.array([np.roll(row, channel - thirds) for channel in range(3)])
    tall = _tall(frames)
    out = np.empty_like(tall)
    # In parts of about three frames of 224² and with buffers that are used again: what is made in between
    # then stays in the cache.
    parts = np.array_split(tall, 1 + tall.size // 500_000)
    planes = np.empty((3, *parts[0].shape[:2]), np.uint8)
    triple = np.empty_like(parts[0])
    for image, target in zip(parts, np.array_split(out, len(parts)), strict=True):
        red, green, blue = cv2.split(image, list(planes[:, : len(image)]))
        low, high = cv2.min(red, green), cv2.max(red, green)
        middle = cv2.max(low, cv2.min(high, blue))
        low, high = cv2.min(low, blue), cv2.max(high, blue)
        thrice = partial(cv2.cvtColor, code=cv2.COLOR_GRAY2RGB, dst=triple[: len(image)])
        # The products reach twice 255: half of them fits into a byte. What does not is cut below anyway.
        cv2.transform(image, matrix / 2, dst=target)
        cv2.addWeighted(target, 2, thrice(middle), abs(rest) - 1, 0, dst=target)
        cv2.min(target, thrice(high), dst=target)
        cv2.max(target, thrice(low), dst=target)
    return _frames(out, frames)


def grayscale(frames: Frames) -> Frames:
    """Replace all three channels by the luma."""
    return _transform(frames, np.tile(_LUMA, (3, 1)))


def solarize(frames: Frames, threshold: int = 128) -> Frames:
    """Invert the values that are `threshold` or more."""
    tall = _tall(frames)
    out = np.empty_like(tall)
    cv2.threshold(tall, threshold - 1, 255, cv2.THRESH_BINARY, dst=out)
    cv2.bitwise_xor(tall, out, dst=out)  # all bits turned: 255 - value
    return _frames(out, frames)


def posterize(frames: Frames, bits: int) -> Frames:
    """Keep the highest `bits` (0-8) of each value; the others become 0."""
    return _frames(_tall(frames) & np.uint8(256 - 2 ** (8 - bits) & 255), frames)


def auto_contrast(frames: Frames) -> Frames:
    """Stretch each channel to 0-255; one that is all of one value stays.

    Smallest and largest value are those of the whole clip: frames by themselves would flicker.
    """
    values = np.arange(256)
    tables = []
    for histogram in _histograms(frames):
        low, high = np.flatnonzero(histogram)[[0, -1]]
        tables.append(np.rint((values - low) * (255 / (high - low))) if high > low else values)
    return _look_up(frames, np.column_stack(tables).clip(0, 255))


def equalize(frames: Frames) -> Frames:
    """Spread the values of each channel so that all are about equally frequent in the clip.

    The histogram is that of the whole clip, as in `auto_contrast`.
    """
    tables = []
    for histogram in _histograms(frames):
        # As PIL does it: the pixels of the largest value do not count.
        step = (histogram.sum() - histogram[np.flatnonzero(histogram)[-1]]) // 255
        below = np.cumsum(histogram) - histogram
        tables.append((below + step // 2) // step if step else np.arange(256))
    return _look_up(frames, np.column_stack(tables).clip(0, 255))


def adjust_sharpness(frames: Frames, factor: float) -> Frames:
    """Move all pixels away from the smoothed frame by `factor` >= 0: 0 gives it, 1 changes nothing.

    A smoothed pixel is the mean of itself five times and its eight neighbours. Pixels at the border stay.
    """
    smooth = np.ones((3, 3))
    smooth[1, 1] = 5
    kernel = (1 - factor) / 13 * smooth
    kernel[1, 1] += factor
    tall = _tall(frames)
    filtered = np.empty_like(tall)
    cv2.filter2D(tall, -1, kernel, dst=filtered)
    out = _frames(filtered, frames)
    # Frames that lie on top of each other mix at their borders only, and those stay.
    for border in (np.s_[..., :1, :], np.s_[..., -1:, :], np.s_[..., :1], np.s_[..., -1:]):
        out[border] = frames[border]
    return out


def gaussian_blur(frames: Frames, kernel: int, sigma: float) -> Frames:
    """Blur every frame, mirrored at its border (without repeating the border pixel).

    Args:
        frames: (T, 3, H, W) of any size: a frame smaller than the kernel is mirrored as often as needed.
        kernel: Side of the kernel, pixels, odd.
        sigma: Standard deviation of the kernel, pixels, > 0.
    """
    # Past 3.5 sigma lies 0.05 % of the weight, 0.1 of a gray level: do not compute it.
    kernel = min(kernel, 2 * math.ceil(3.5 * sigma) + 1)
    weights = cv2.getGaussianKernel(kernel, sigma, cv2.CV_32F)
    images = frames.transpose(0, 2, 3, 1)
    out = np.empty(images.shape, np.uint8)
    for image, target in zip(images, out, strict=True):
        # Not cv2.GaussianBlur: on uint8 it is two to three times slower and less exact.
        cv2.sepFilter2D(image, -1, weights, weights, dst=target, borderType=cv2.BORDER_REFLECT_101)
    return out.transpose(0, 3, 1, 2)


def color_jitter(
    frames: Frames, ranges: tuple[float, float, float, float], generator: np.random.Generator
) -> Frames:
    """Adjust brightness, contrast, saturation and hue in a random order by random amounts, one draw a clip.

    Args:
        frames: (T, 3, H, W).
        ranges: Of brightness b, contrast, saturation and hue h, as torchvision's `ColorJitter` takes them:
            factors are uniform in [max(0, 1 - b), 1 + b], the turn of the hue in [-h, h], h <= 0.5. What has
            range 0 is left out.
        generator: Source of random numbers.
    """
    *factors, hue = ranges
    amounts = [generator.uniform(max(0.0, 1 - factor), 1 + factor) for factor in factors]
    amounts.append(generator.uniform(-hue, hue))
    operations = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
    for operation in generator.permutation(4):
        if ranges[operation] > 0:
            frames = operations[operation](frames, amounts[operation])
    return frames


def _transform(frames: Frames, matrix: NDArray[np.float64]) -> Frames:
    """Multiply every pixel by a matrix (3, 3); results are rounded and cut to 0-255."""
    tall = _tall(frames)
    out = np.empty_like(tall)
    cv2.transform(tall, matrix, dst=out)
    return _frames(out, frames)


def _histograms(frames: Frames) -> list[NDArray[np.int64]]:
    """How often each value occurs in the clip, for each channel."""
    tall = _tall(frames)
    return [cv2.calcHist([tall], [n], None, [256], [0, 256]).ravel().astype(np.int64) for n in range(3)]


def _look_up(frames: Frames, table: NDArray[Any]) -> Frames:
    """Exchange values by a table (256, 3)."""
    tall = _tall(frames)
    out = np.empty_like(tall)
    cv2.LUT(tall, table.astype(np.uint8)[None], dst=out)
    return _frames(out, frames)


def _tall(frames: Frames) -> NDArray[np.uint8]:
    """(T, 3, H, W) as one image (T·H, W, 3): what works on single pixels is then one call for the clip."""
    return np.ascontiguousarray(frames.transpose(0, 2, 3, 1)).reshape(-1, frames.shape[3], 3)


def _frames(tall: NDArray[np.uint8], like: Frames) -> Frames:
    length, channels, height, width = like.shape
    return tall.reshape(length, height, width, channels).transpose(0, 3, 1, 2)
