"""Crops, resizing, flips and affine maps, the same for all frames of a clip; windows keep track of positions."""

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.types import Frames


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
        """Convert boxes (N, 4), xyxy in pixels of the source, to pixels of a view of `size` pixels, clipped to it.

        A box outside of the view has no width or no height.
        """
        scale = np.array([size / self.w, size / self.h] * 2)
        converted = (boxes - np.array([self.x, self.y] * 2)) * scale
        if self.flipped:
            converted[:, [0, 2]] = size - converted[:, [2, 0]]
        return np.asarray(np.clip(converted, 0, size), np.float32)

    def scaled(self, x: float, y: float) -> "Window":
        """Return the same part of frames that are `x` times as wide and `y` times as high."""
        return Window(self.x * x, self.y * y, self.w * x, self.h * y, self.flipped)

    def cut(self, image: NDArray[np.uint8], size: int, outside: int = 255) -> NDArray[np.uint8]:
        """Crop and resize a label map (H, W) of the source as the view is: (size, size), nearest neighbours.

        Pixels beyond the source, which padded views have, become `outside`. For windows of whole pixels this equals
        `cv2.INTER_NEAREST_EXACT`, so that the map is not shifted against the bilinear frames of the view.
        """
        centres = (np.arange(size) + 0.5) / size
        rows = np.floor(self.y + self.h * centres).astype(int)
        columns = np.floor(self.x + self.w * centres).astype(int)
        high, wide = image.shape
        inside = ((rows >= 0) & (rows < high))[:, None] & (columns >= 0) & (columns < wide)
        found = image[np.clip(rows, 0, high - 1)[:, None], np.clip(columns, 0, wide - 1)]
        found = np.where(inside, found, np.uint8(outside))
        return np.ascontiguousarray(found[:, ::-1] if self.flipped else found)

    def visible(self, boxes: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the fraction of the area of each box (N, 4) that the view shows: (N,)."""
        low = np.maximum(boxes[:, :2], [self.x, self.y])
        high = np.minimum(boxes[:, 2:], [self.x + self.w, self.y + self.h])
        area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1, dtype=np.float64)
        fractions: NDArray[np.float64] = np.prod(np.maximum(high - low, 0), axis=1) / np.maximum(area, 1e-9)
        return fractions


class View(NamedTuple):
    """An augmented clip, and the part of the source frames that it shows."""

    frames: Frames  # (T, 3, S, S)
    window: Window | None  # None: rotated or sheared, so that boxes cannot follow


def random_box(
    height: int, width: int, area: tuple[float, float], ratio: tuple[float, float], generator: np.random.Generator
) -> Box:
    """Draw a box of a frame of `height` x `width` pixels as torchvision's `RandomResizedCrop` does.

    `area` is the range of the fraction of the frame, `ratio` that of width / height, uniform in the logarithm. Ten
    boxes are tried; if none fits into the frame, the largest central one of an allowed ratio is returned.
    """
    for _ in range(10):
        pixels = height * width * generator.uniform(*area)
        aspect = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            y = int(generator.integers(height - h, endpoint=True))
            x = int(generator.integers(width - w, endpoint=True))
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
    out = np.empty((len(images), height, width, images.shape[-1]), np.uint8)
    for image, target in zip(images, out, strict=True):
        cv2.resize(image, (width, height), dst=target, interpolation=method)
    return out.transpose(0, 3, 1, 2)


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


def random_crop(frames: Frames, size: int, generator: np.random.Generator, padding: int = 0) -> View:
    """Crop a square of `size` pixels at one uniformly random position: (T, C, size, size).

    With `padding`, black pixels are added on each side first, as in torchvision's `RandomCrop`; the window can then
    extend beyond the frames.

    Raises:
        ValueError: A side of the frames, padding included, is shorter than `size`.
    """
    high, wide = (side + 2 * padding for side in frames.shape[2:])
    if min(high, wide) < size:
        raise ValueError(f"frames of {wide}x{high} are smaller than the crop of {size}: resize them first")
    y = int(generator.integers(high - size, endpoint=True))
    x = int(generator.integers(wide - size, endpoint=True))
    if padding:
        images, sides = frames.transpose(0, 2, 3, 1), (padding, padding)
        frames = np.pad(images, ((0, 0), sides, sides, (0, 0))).transpose(0, 3, 1, 2)
    return View(_square(frames, x, y, size), Window(x - padding, y - padding, size, size))


def center_crop(frames: Frames, size: int, short: int | None = None) -> View:
    """Resize the shorter side to `short`, or `size`, and crop the central square: (T, C, size, size)."""
    return uniform_crops(frames, size, 1, short)[0]


def uniform_crops(frames: Frames, size: int, count: int = 3, short: int | None = None) -> list[View]:
    """Resize the shorter side to `short` and crop evenly spaced squares along the longer one.

    One square is the central one; of several, the first and the last touch the ends. Three are those of the 30-crop
    test as in SlowFast (Feichtenhofer et al., 2019): left, centre, right of a wide frame; top, centre, bottom of a high
    one. Along the shorter side all are centred. `short` is at least `size`, and `size` by default; 256 with `size` 224
    is the ImageNet test.
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
        x, y = corner
        views.append(shown_of(View(_square(small, x, y, size), Window(x, y, size, size)), small, frames))
    return views


def shown_of(view: View, resized: Frames, frames: Frames) -> View:
    """Convert the window of a view of `resized` to pixels of `frames`, the same frames at another size."""
    (height, width), (high, wide) = frames.shape[2:], resized.shape[2:]
    return View(view.frames, view.window and view.window.scaled(width / wide, height / high))


def flip(frames: Frames) -> Frames:
    """Flip frames (T, C, H, W) left to right."""
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    # One call: the frames on top of each other are one high image.
    flipped = np.asarray(cv2.flip(images.reshape(-1, *images.shape[2:]), 1), np.uint8)
    return flipped.reshape(images.shape).transpose(0, 3, 1, 2)


def mirrored(view: View) -> View:
    """Flip a view and its window left to right."""
    return View(flip(view.frames), view.window and view.window._replace(flipped=True))


def rotate(frames: Frames, degrees: float, fill: int | None) -> Frames:
    """Rotate frames (T, C, H, W) anticlockwise about their centre; `fill` as in `warp`."""
    height, width = frames.shape[2:]
    return warp(frames, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0), fill)


def warp(frames: Frames, matrix: NDArray[Any], fill: int | None) -> Frames:
    """Apply an affine map (2, 3) from source to result to frames (T, C, H, W), bilinear; their size stays.

    Centres of pixels are whole numbers. `fill` is the value outside of the source; None: reflected, without repeating
    the border pixel.
    """
    border = cv2.BORDER_REFLECT_101 if fill is None else cv2.BORDER_CONSTANT
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    out = np.empty_like(images)
    for image, target in zip(images, out, strict=True):
        size = image.shape[1::-1]
        cv2.warpAffine(image, matrix, size, dst=target, borderMode=border, borderValue=[fill or 0] * 3)
    return out.transpose(0, 3, 1, 2)


def _square(frames: Frames, x: int, y: int, size: int) -> Frames:
    # A copy: views share no memory with the caller's frames.
    return frames.transpose(0, 2, 3, 1)[:, y : y + size, x : x + size].copy().transpose(0, 3, 1, 2)
