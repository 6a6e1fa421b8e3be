"""Colour, blur and solarisation of clips, with the meaning of torchvision's functions of the same names.

All take uint8 frames (T, 3, H, W). On the same bytes, torchvision's results differ by at most 7 of 255 for
the hue (0.3 on average: OpenCV keeps hue, saturation and value in 8 bits each), 2 for the saturation, 1 for
the rest (OpenCV rounds where torchvision cuts off).
"""

import math

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.types import Frames

# Red, green, blue (ITU-R BT.601): the luma that torchvision and OpenCV call gray.
_LUMA = np.array([0.299, 0.587, 0.114])
_VALUES = np.arange(256, dtype=np.float32)  # float32: products are then cut off where torchvision cuts them


def adjust_brightness(frames: Frames, factor: float) -> Frames:
    """Multiply all values by `factor` >= 0: 0 gives black, 1 changes nothing."""
    return _frames(_look_up(_tall(frames), _VALUES * factor), frames)


def adjust_contrast(frames: Frames, factor: float) -> Frames:
    """Stretch all values about the mean gray of their frame by `factor` >= 0: 0 gives gray, 1 no change."""
    tall = _tall(frames)
    out = np.empty_like(tall)
    for image, target in zip(np.split(tall, len(frames)), np.split(out, len(frames)), strict=True):
        mean = float(_LUMA @ cv2.mean(image)[:3])
        target[:] = _look_up(image, _VALUES * factor + mean * (1 - factor))
    return _frames(out, frames)


def adjust_saturation(frames: Frames, factor: float) -> Frames:
    """Move all pixels away from their own gray by `factor` >= 0: 0 gives gray, 1 changes nothing."""
    tall = _tall(frames)
    out = np.empty_like(tall)
    # Linear in the pixel, so one matrix: factor · identity + (1 - factor) · gray.
    cv2.transform(tall, factor * np.eye(3) + (1 - factor) * _LUMA, dst=out)
    return _frames(out, frames)


def adjust_hue(frames: Frames, shift: float) -> Frames:
    """Turn the hue by `shift` in [-0.5, 0.5], as a part of the whole circle."""
    tall = _tall(frames)
    hsv, out = np.empty_like(tall), np.empty_like(tall)
    cv2.cvtColor(tall, cv2.COLOR_RGB2HSV_FULL, dst=hsv)
    # OpenCV writes the circle in 256 steps and reads it in 255. One table turns, rescales and rounds once;
    # adding to the hue instead is off by up to 12 of 255.
    hue = np.empty(tall.shape[:2], np.uint8)
    cv2.extractChannel(hsv, 0, dst=hue)
    turned = (_VALUES / 256 + shift) % 1 * 255
    cv2.insertChannel(_look_up(hue, turned.round()), hsv, 0)
    cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB_FULL, dst=out)
    return _frames(out, frames)


def grayscale(frames: Frames) -> Frames:
    """Replace all three channels by the luma."""
    tall = _tall(frames)
    out = np.empty_like(tall)
    cv2.cvtColor(cv2.cvtColor(tall, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB, dst=out)
    return _frames(out, frames)


def solarize(frames: Frames, threshold: int = 128) -> Frames:
    """Invert the values that are `threshold` or more."""
    return _frames(_look_up(_tall(frames), np.where(threshold <= _VALUES, 255 - _VALUES, _VALUES)), frames)


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


def _look_up(image: NDArray[np.uint8], values: NDArray[np.number]) -> NDArray[np.uint8]:
    """Replace each value by an entry of a table (256,), cut to 0-255 and rounded down as torchvision does."""
    out = np.empty_like(image)
    cv2.LUT(image, values.clip(0, 255).astype(np.uint8), dst=out)
    return out


def _tall(frames: Frames) -> NDArray[np.uint8]:
    """(T, 3, H, W) as one image (T·H, W, 3): what works on single pixels is then one call for the clip."""
    return np.ascontiguousarray(frames.transpose(0, 2, 3, 1)).reshape(-1, frames.shape[3], 3)


def _frames(tall: NDArray[np.uint8], like: Frames) -> Frames:
    length, channels, height, width = like.shape
    return tall.reshape(length, height, width, channels).transpose(0, 3, 1, 2)
