"""Crops, resizing, flips and affine maps, the same for all frames of a clip; windows keep track of positions."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames


class Box(NamedTuple):
    """A rectangle of a frame, in whole pixels: left, top, width, height."""

    x: int
    y: int
    w: int
    h: int


class Window(NamedTuple):
    """The part of the source frames that a view shows: left, top, width, height in pixels, and whether flipped."""

    x: float
    y: float
    w: float
    h: float
    flipped: bool = False

    def boxes(self, boxes: NDArray[np.float32], size: int) -> NDArray[np.float32]:
        """Convert boxes (N, 4), xyxy in pixels of the source, to pixels of a view of `size` pixels, clipped to it."""
        scale = np.array([size / self.w, size / self.h] * 2)
        converted = (boxes - np.array([self.x, self.y] * 2)) * scale
        if self.flipped:
            converted[:, [0, 2]] = size - converted[:, [2, 0]]
        return np.asarray(np.clip(converted, 0, size), np.float32)

    def cut(self, image: NDArray[np.uint8], size: int, outside: int = 255) -> NDArray[np.uint8]:
        """Crop and resize a label map (H, W) of the source as the view is: (size, size), nearest neighbours.

        Pixels beyond the source, which padded views have, become `outside`.
        """
        # As cv2.INTER_NEAREST_EXACT, so that the map is not shifted against the bilinear frames of the view.
        centres = (np.arange(size) + 0.5) / size
        rows = np.floor(self.y + self.h * centres).astype(int)
        columns = np.floor(self.x + self.w * centres).astype(int)
        high, wide = image.shape
        inside = ((rows >= 0) & (rows < high))[:, None] & (columns >= 0) & (columns < wide)
        labels = image[np.clip(rows, 0, high - 1)[:, None], np.clip(columns, 0, wide - 1)]
        labels = np.where(inside, labels, np.uint8(outside))
        return np.ascontiguousarray(labels[:, ::-1] if self.flipped else labels)

    def visible(self, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the fraction of the area of each box (N, 4) that the view shows: (N,)."""
        low = np.maximum(boxes[:, :2], [self.x, self.y])
        high = np.minimum(boxes[:, 2:], [self.x + self.w, self.y + self.h])
        area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1, dtype=np.float64)
        return np.asarray(np.prod(np.maximum(high - low, 0), axis=1) / np.maximum(area, 1e-9))


class View(NamedTuple):
    """An augmented clip, and the part of the source frames that it shows."""

    frames: Frames  # (T, 3, S, S)
    window: Window | None  # None: rotated or sheared, so that boxes cannot follow


def random_box(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> Box:
    """Draw a box of a frame as torchvision's `RandomResizedCrop` does.

    `area` is the range of the fraction of the frame, `ratio` that of width / height. If none of ten boxes fits into the
    frame, the largest central one of an allowed ratio is returned.
    """
    for _ in range(10):
        pixels = height * width * generator.uniform(*area)
        aspect = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            y, x = (int(generator.integers(margin, endpoint=True)) for margin in (height - h, width - w))
            return Box(x, y, w, h)
    # At least one pixel: a frame one pixel wide allows no ratio above 2.
    w = max(1, min(width, round(height * ratio[1])))
    h = max(1, min(height, round(width / ratio[0])))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def crop_resize(frames: Frames, box: Box, height: int, width: int) -> Frames:
    """Crop a box of frames (T, C, H, W) and resize it: (T, C, height, width)."""
    # Bilinear without antialiasing, as the published video pipelines do. Above a factor of two that skips source
    # pixels and the clip flickers: there, area averaging, which is several times slower.
    far = box.h > 2 * height and box.w > 2 * width
    method = cv2.INTER_AREA if far else cv2.INTER_LINEAR
    images = frames.transpose(0, 2, 3, 1)[:, box.y : box.y + box.h, box.x : box.x + box.w]
    return each_image(partial(cv2.resize, dsize=(width, height), interpolation=method), images, (height, width))


def random_resized_crop(
    frames: Frames, size: int, area: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> View:
    """Crop one random box (`random_box`) of frames (T, C, H, W) and resize it to (T, C, size, size)."""
    box = random_box(frames.shape[2], frames.shape[3], area, ratio, generator)
    return View(crop_resize(frames, box, size, size), Window(*box))


def short_side(frames: Frames, size: int) -> Frames:
    """Resize frames (T, C, H, W) so that the shorter side is `size`; the longer one is rounded down."""
    height, width = frames.shape[2:]
    short = min(height, width)
    if short == size:
        return frames
    return crop_resize(frames, Box(0, 0, width, height), size * height // short, size * width // short)


def random_crop(
    frames: Frames, size: int, generator: np.random.Generator, padding: int = 0, short: int | None = None
) -> View:
    """Crop a square of `size` pixels at one uniformly random position: (T, C, size, size).

    Before, the shorter side is resized to `short`, if given, and `padding` black pixels are added on each side, as in
    torchvision's `RandomCrop`; the window can then extend beyond the frames.
    """
    small = frames if short is None else short_side(frames, short)
    high, wide = (side + 2 * padding for side in small.shape[2:])
    if min(high, wide) < size:
        raise ValueError(f"frames of {wide}x{high} are smaller than the crop of {size}: resize them first")
    y, x = (int(generator.integers(side - size, endpoint=True)) - padding for side in (high, wide))
    return _square(small, x, y, size, frames, padding)


def center_crop(frames: Frames, size: int, short: int | None = None) -> View:
    """Resize the shorter side to `short`, or `size`, and crop the central square: (T, C, size, size)."""
    return uniform_crops(frames, size, 1, short)[0]


def uniform_crops(frames: Frames, size: int, count: int = 3, short: int | None = None) -> list[View]:
    """Resize the shorter side to `short`, or `size`, and crop evenly spaced squares along the longer one.

    One square is the central one; of several, the first and the last touch the ends. Three are those of the 30-crop
    test as in SlowFast (Feichtenhofer et al., 2019). Along the shorter side all are centred.
    """
    small = short_side(frames, size if short is None else short)
    margins = small.shape[3] - size, small.shape[2] - size
    longer = int(margins[1] > margins[0])  # 0: x, also for a square frame, as in SlowFast
    views = []
    for n in range(count):
        # Half a pixel is rounded up, as in SlowFast and pytorchvideo.
        corner = [(margin + 1) // 2 for margin in margins]
        if count > 1:
            corner[longer] = (2 * margins[longer] * n + count - 1) // (2 * (count - 1))
        views.append(_square(small, corner[0], corner[1], size, frames))
    return views


def _square(resized: Frames, x: int, y: int, size: int, source: Frames, padding: int = 0) -> View:
    """Cut a square out of `resized` with a black margin of `padding`; the window is in pixels of `source`."""
    horizontal, vertical = source.shape[3] / resized.shape[3], source.shape[2] / resized.shape[2]
    window = Window(x * horizontal, y * vertical, size * horizontal, size * vertical)
    images = resized.transpose(0, 2, 3, 1)
    if padding:
        images = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    square = images[:, y + padding : y + padding + size, x + padding : x + padding + size]
    return View(square.copy().transpose(0, 3, 1, 2), window)  # a copy: views share no memory with their source


def flip(frames: Frames) -> Frames:
    """Flip frames (T, C, H, W) left to right."""
    return unstacked(cv2.flip(stacked(frames), 1), frames)


def rotate(frames: Frames, degrees: float, fill: int | None) -> Frames:
    """Rotate frames (T, C, H, W) anticlockwise about their centre; `fill` as in `warp`."""
    height, width = frames.shape[2:]
    return warp(frames, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0), fill)


def warp(frames: Frames, matrix: NDArray[Any], fill: int | None) -> Frames:
    """Apply an affine map (2, 3) from source to result to frames (T, C, H, W), bilinear; their size stays.

    Centres of pixels are whole numbers. `fill` is the value outside of the source; None: reflected at the border pixel.
    """
    border = cv2.BORDER_REFLECT_101 if fill is None else cv2.BORDER_CONSTANT
    size, value = (frames.shape[3], frames.shape[2]), [fill or 0] * 3
    change = partial(cv2.warpAffine, M=matrix, dsize=size, borderMode=border, borderValue=value)
    return each_image(change, np.ascontiguousarray(frames.transpose(0, 2, 3, 1)))


def shear(frames: Frames, amount: float, axis: int, fill: int) -> Frames:
    """Shift each row left (`axis` 0), or each column up (1), by `amount` times its distance from the first edge."""
    matrix = np.eye(2, 3)
    matrix[axis, 1 - axis] = -amount
    matrix[axis, 2] = -amount / 2  # distances are from the corner of the first pixel, not from its centre
    return warp(frames, matrix, fill)


def translate(frames: Frames, fraction: float, axis: int, fill: int) -> Frames:
    """Shift right (`axis` 0) or down (1) by a fraction of the width or height, truncated to whole pixels."""
    out = np.full_like(frames, fill)
    source, target = frames.swapaxes(2, 3 - axis), out.swapaxes(2, 3 - axis)
    away, end = int(fraction * source.shape[2]), source.shape[2]
    target[:, :, max(away, 0) : end + min(away, 0)] = source[:, :, max(-away, 0) : end - max(away, 0)]
    return out


def each_image(change: Callable[..., object], images: NDArray[np.uint8], size: tuple[int, int] | None = None) -> Frames:
    """Call `change(image, dst=target)` for each image (H, W, C) of a clip: frames (T, C, *size)."""
    out = np.empty((len(images), *(size or images.shape[1:3]), images.shape[3]), np.uint8)
    for image, target in zip(images, out, strict=True):
        change(image, dst=target)
    return out.transpose(0, 3, 1, 2)


def stacked(frames: Frames) -> NDArray[np.uint8]:
    """Reshape (T, C, H, W) to one image (T·H, W, C), so that operations on pixels are one call per clip."""
    return np.ascontiguousarray(frames.transpose(0, 2, 3, 1)).reshape(-1, frames.shape[3], frames.shape[1])


def unstacked(image: NDArray[Any], like: Frames) -> Frames:
    """Reshape an image of `stacked` frames to frames of the shape of `like`."""
    length, channels, height, width = like.shape
    return image.reshape(length, height, width, channels).transpose(0, 3, 1, 2)
