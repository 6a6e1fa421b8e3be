"""RGB difference of clips; colour, blur, sharpness and solarisation, equivalent to torchvision's functions.

All take and return uint8 frames (T, 3, H, W). No value differs from torchvision's by more than 2 of 255: OpenCV rounds
to the nearest value where torchvision's uint8 functions truncate.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames
from vidssl.transforms.crops import each_image, stacked, unstacked

# Red, green, blue (ITU-R BT.601): the gray of torchvision and OpenCV.
_LUMA = np.array([0.299, 0.587, 0.114])
# Not quite diagonal: OpenCV's special case for diagonal matrices is slower.
_IDENTITY = np.eye(3) + 1e-9


def adjust_brightness(frames: Frames, factor: float) -> Frames:
    """Multiply all values by `factor` >= 0: 0 is black, 1 the identity."""
    return _transform(frames, factor * _IDENTITY)


def adjust_contrast(frames: Frames, factor: float) -> Frames:
    """Scale the distance of all values to the mean gray of their frame by `factor` >= 0: 0 is gray, 1 the identity."""
    matrix = np.column_stack([factor * _IDENTITY, np.zeros(3)])

    def change(image: NDArray[np.uint8], dst: NDArray[np.uint8]) -> None:
        matrix[:, 3] = (1 - factor) * (_LUMA @ cv2.mean(image)[:3])
        cv2.transform(image, matrix, dst=dst)

    return each_image(change, frames.transpose(0, 2, 3, 1))


def adjust_saturation(frames: Frames, factor: float) -> Frames:
    """Scale the distance of all pixels to their own gray by `factor` >= 0: 0 is gray, 1 the identity."""
    return _transform(frames, factor * np.eye(3) + (1 - factor) * _LUMA)


def adjust_hue(frames: Frames, shift: float) -> Frames:
    """Rotate the hue by `shift` in [-0.5, 0.5], a fraction of the circle.

    Equal to a rotation in HSV but for rounding, without the conversion. Whole thirds of the circle permute channels.
    The rest, s in [-1, 1] sixths of the circle, is piecewise linear:

        red' = (2 - |s|) · red - s · green + s · blue - (1 - |s|) · middle, clipped to [smallest, largest],

    where smallest, middle and largest are the pixel's own three values; likewise green and blue in cyclic order.
    """
    thirds = round(3 * shift)
    rest = 6 * shift - 2 * thirds
    row = (2 - abs(rest), -rest, rest)
    matrix = np.array([np.roll(row, channel - thirds) for channel in range(3)])
    source = stacked(frames)
    out = np.empty_like(source)
    # In parts of about three frames of 224² and with reused buffers, so that intermediate results stay in the cache.
    parts = np.array_split(source, 1 + source.size // 500_000)
    planes = np.empty((3, *parts[0].shape[:2]), np.uint8)
    triple = np.empty_like(parts[0])
    for image, target in zip(parts, np.array_split(out, len(parts)), strict=True):
        red, green, blue = cv2.split(image, list(planes[:, : len(image)]))
        low, high = cv2.min(red, green), cv2.max(red, green)
        middle = cv2.max(low, cv2.min(high, blue))
        low, high = cv2.min(low, blue), cv2.max(high, blue)
        thrice = partial(cv2.cvtColor, code=cv2.COLOR_GRAY2RGB, dst=triple[: len(image)])
        # The products reach twice 255: their half fits into a byte. The rest is clipped below anyway.
        cv2.transform(image, matrix / 2, dst=target)
        cv2.addWeighted(target, 2, thrice(middle), abs(rest) - 1, 0, dst=target)
        cv2.min(target, thrice(high), dst=target)
        cv2.max(target, thrice(low), dst=target)
    return unstacked(out, frames)


def grayscale(frames: Frames) -> Frames:
    """Replace all three channels by gray."""
    return _transform(frames, np.tile(_LUMA, (3, 1)))


def solarize(frames: Frames, threshold: int = 128) -> Frames:
    """Invert the values that are `threshold` or more."""
    image = stacked(frames)
    _, mask = cv2.threshold(image, threshold - 1, 255, cv2.THRESH_BINARY)
    return unstacked(cv2.bitwise_xor(image, mask), frames)  # 255 - value: all bits inverted


def posterize(frames: Frames, bits: int) -> Frames:
    """Keep the highest `bits` (0-8) of each value; the others become 0."""
    return unstacked(stacked(frames) & np.uint8(256 - 2 ** (8 - bits) & 255), frames)


def auto_contrast(frames: Frames) -> Frames:
    """Stretch each channel to 0-255, by its extremes in the whole clip: per frame, the clip would flicker."""
    return _apply_tables(frames, _stretching)


def _stretching(histogram: NDArray[np.int64]) -> NDArray[Any]:
    low, high = np.flatnonzero(histogram)[[0, -1]]
    values = np.arange(256)
    return np.rint((values - low) * (255 / (high - low))) if high > low else values


def equalize(frames: Frames) -> Frames:
    """Equalise the histogram of each channel over the whole clip."""
    return _apply_tables(frames, _flattening)


def _flattening(histogram: NDArray[np.int64]) -> NDArray[Any]:
    # As in PIL, the pixels of the largest value do not count.
    step = (histogram.sum() - histogram[np.flatnonzero(histogram)[-1]]) // 255
    below = np.cumsum(histogram) - histogram
    return (below + step // 2) // step if step else np.arange(256)


def adjust_sharpness(frames: Frames, factor: float) -> Frames:
    """Scale the distance of all pixels but the border to the smoothed frame by `factor` >= 0: 1 is the identity."""
    smooth = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])
    kernel = (1 - factor) / 13 * smooth
    kernel[1, 1] += factor
    out = unstacked(cv2.filter2D(stacked(frames), -1, kernel), frames)
    # Stacked frames mix at their borders only, and those are restored.
    for border in (np.s_[..., :1, :], np.s_[..., -1:, :], np.s_[..., :1], np.s_[..., -1:]):
        out[border] = frames[border]
    return out


def gaussian_blur(frames: Frames, kernel: int, sigma: float) -> Frames:
    """Blur every frame, reflected at its border; `kernel` (side, odd) and `sigma` (> 0) are in pixels."""
    weights = cv2.getGaussianKernel(cut_kernel(kernel, sigma), sigma, cv2.CV_32F)
    # Not cv2.GaussianBlur: on uint8 it is two to three times slower and less exact.
    blur = partial(cv2.sepFilter2D, ddepth=-1, kernelX=weights, kernelY=weights, borderType=cv2.BORDER_REFLECT_101)
    return each_image(blur, frames.transpose(0, 2, 3, 1))


def cut_kernel(kernel: int, sigma: float) -> int:
    """Cut the kernel of a blur at 3.5 sigma: beyond lies 0.05 % of the weight, 0.1 of a gray level."""
    return min(kernel, 2 * math.ceil(3.5 * sigma) + 1)


def difference_pairs(indices: NDArray[np.int64], first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two native frames of the RGB difference for each frame of a clip: (T,) minuends, (T,) subtrahends.

    Frame t is paired with t + 1, and the last frame of the span `first` to `last` has the pair before it. In a span of
    one frame the pair is (t, t), whose difference is mid-gray. A reversed clip has the forward differences in reverse.
    """
    if indices.size and not first <= indices.min() <= indices.max() <= last:
        raise ValueError(f"frames {indices.min()}-{indices.max()} are not in the span {first}-{last}")
    before = np.maximum(np.minimum(indices, last - 1), first)
    return before, np.minimum(before + 1, last)


def rgb_difference(frames_a: Frames, frames_b: Frames) -> Frames:
    """Subtract gray values: `(a - b + 255) / 2`, rounded down, in all channels. It shows motion only (SCE)."""
    if frames_a.shape != frames_b.shape:
        raise ValueError(f"cannot subtract frames {frames_b.shape} from {frames_a.shape}")
    gray_a, gray_b = (cv2.cvtColor(stacked(frames), cv2.COLOR_RGB2GRAY) for frames in (frames_a, frames_b))
    difference = np.subtract(gray_a, gray_b, dtype=np.int16)
    difference += 255
    difference >>= 1
    return unstacked(cv2.cvtColor(difference.astype(np.uint8), cv2.COLOR_GRAY2RGB), frames_a)


def _transform(frames: Frames, matrix: NDArray[np.float64]) -> Frames:
    """Multiply every pixel by a matrix (3, 3); round and clip to 0-255."""
    return unstacked(cv2.transform(stacked(frames), matrix), frames)


def _apply_tables(frames: Frames, make_table: Callable[[NDArray[np.int64]], NDArray[Any]]) -> Frames:
    """Replace the values of each channel by the table (256,) made from their histogram (256,) over the clip."""
    image = stacked(frames)
    histograms = [cv2.calcHist([image], [n], None, [256], [0, 256]).ravel().astype(np.int64) for n in range(3)]
    table = np.column_stack([make_table(histogram) for histogram in histograms]).clip(0, 255).astype(np.uint8)
    return unstacked(cv2.LUT(image, table[None]), frames)
