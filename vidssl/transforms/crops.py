"""Where a view looks: boxes, crops, resizing, mirroring and affine maps, the same for all frames of a clip."""

import math
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.types import Frames


class Box(NamedTuple):
    """A part of a frame, in pixels: left, top, width, height."""

    x: int
    y: int
    w: int
    h: int


class Window(NamedTuple):
    """The part of the source frames that a view shows: left, top, width, height in pixels, and whether mirrored."""

    x: float
    y: float
    w: float
    h: float
    flipped: bool = False

    def boxes(self, boxes: NDArray[np.float32], size: int) -> NDArray[np.float32]:
        """Bring boxes (N, 4), xyxy in pixels of the source, into a view of `size` pixels; what lies outside is cut off.

        A box that the view does not show comes out empty: without width or height.
        """
        scale = np.array([size / self.w, size / self.h] * 2)
        placed = (boxes - np.array([self.x, self.y] * 2)) * scale
        if self.flipped:
            placed[:, [0, 2]] = size - placed[:, [2, 0]]
        return np.asarray(np.clip(placed, 0, size), np.float32)

    def scaled(self, x: float, y: float) -> "Window":
        """Give the same part of frames that are `x` times as wide and `y` times as high."""
        return Window(self.x * x, self.y * y, self.w * x, self.h * y, self.flipped)

    def cut(self, image: NDArray[np.uint8], size: int, outside: int = 255) -> NDArray[np.uint8]:
        """Cut an image (H, W) of numbers that must not mix out of the source: (size, size), nearest neighbours.

        `outside` is the number of pixels beyond the source, which padded views show.

        For windows of whole pixels it is the resizing of `cv2.INTER_NEAREST_EXACT`: the source pixel in which the
        centre of a pixel of the view lies. So the picture fits the bilinear frames of the view, without a shift.
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
        """Give the share of each box's area (N, 4) that the view shows: (N,)."""
        low = np.maximum(boxes[:, :2], [self.x, self.y])
        high = np.minimum(boxes[:, 2:], [self.x + self.w, self.y + self.h])
        area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1, dtype=np.float64)
        shares: NDArray[np.float64] = np.prod(np.maximum(high - low, 0), axis=1) / np.maximum(area, 1e-9)
        return shares


class View(NamedTuple):
    """What a recipe makes of a clip, and which part of its frames that is."""

    frames: Frames  # (T, 3, S, S)
    window: Window | None  # None: turned or sheared, so that it is no window of them; boxes cannot follow


def random_box(
    height: int,
    width: int,
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: np.random.Generator,
) -> Box:
    """Draw a box by the rule of torchvision's `RandomResizedCrop`.

    Ten boxes are tried; when none fits into the frame, the largest central one of an allowed ratio is taken.

    Args:
        height: Of the frame, pixels.
        width: Of the frame, pixels.
        area: Smallest and largest share of the frame, uniform between them.
        ratio: Smallest and largest width / height, uniform in the logarithm.
        generator: Source of random numbers.
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
    """Cut a box out of every frame and resize it.

    Args:
        frames: (T, C, H, W).
        box: Within the frame.
        height: Of the result, pixels.
        width: Of the result, pixels.

    Returns:
        (T, C, height, width).
    """
    # Bilinear without antialiasing, as the published video pipelines do. Past a factor of two it skips source
    # pixels and the picture flickers: there, area averaging, which is several times slower.
    far = box.h > 2 * height and box.w > 2 * width
    method = cv2.INTER_AREA if far else cv2.INTER_LINEAR
    images = frames.transpose(0, 2, 3, 1)[:, box.y : box.y + box.h, box.x : box.x + box.w]
    out = np.empty((len(images), height, width, images.shape[-1]), np.uint8)
    for image, target in zip(images, out, strict=True):
        cv2.resize(image, (width, height), dst=target, interpolation=method)
    return out.transpose(0, 3, 1, 2)


def random_resized_crop(
    frames: Frames,
    size: int,
    area: tuple[float, float],
    ratio: tuple[float, float],
    generator: np.random.Generator,
) -> View:
    """Cut one random box (`random_box`) out of frames (T, C, H, W) and resize it to (T, C, size, size)."""
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
    """Cut a square of `size` pixels at one uniform place out of all frames: (T, C, size, size).

    With `padding` as many black pixels are added on each side first, as torchvision's `RandomCrop` does; the window can
    reach beyond the frames then.

    Raises:
        ValueError: A side of the frames, padding included, is shorter than `size`.
    """
    high, wide = (side + 2 * padding for side in frames.shape[2:])
    if min(high, wide) < size:
        raise ValueError(f"frames of {wide}x{high} are smaller than the crop of {size}: resize them first")
    y = int(generator.integers(high - size, endpoint=True))
    x = int(generator.integers(wide - size, endpoint=True))
    if not padding:
        return _square(frames, x, y, size)
    images = frames.transpose(0, 2, 3, 1)
    padded = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0))).transpose(0, 3, 1, 2)
    view = _square(padded, x, y, size)
    return View(view.frames, Window(x - padding, y - padding, size, size))


def center_crop(frames: Frames, size: int, short: int | None = None) -> View:
    """Resize the shorter side to `short`, or `size`, and cut the central square: (T, C, size, size)."""
    return uniform_crops(frames, size, 1, short)[0]


def uniform_crops(frames: Frames, size: int, count: int = 3, short: int | None = None) -> list[View]:
    """Resize the shorter side to `short` and cut squares at even distances along the longer one.

    One is the centre. Of more, the first and the last reach the ends. Three are those of the 30-crop test, by the
    convention of SlowFast (Feichtenhofer et al., 2019): left, centre, right of a wide frame; top, centre, bottom of a
    high one; with `short` equal to `size` together they cover frames up to 3:1. They are centred along the shorter
    side.

    Args:
        frames: (T, C, H, W).
        size: Side of the squares, pixels.
        count: Squares, at least 1.
        short: The shorter side, pixels, at least `size`; None: `size`. 256 with `size` 224 is the test of ImageNet.

    Returns:
        `count` views (T, C, size, size).
    """
    small = short_side(frames, size if short is None else short)
    room = small.shape[3] - size, small.shape[2] - size
    longer = int(room[1] > room[0])  # 0: x, also of a square frame, as in SlowFast
    # Half a pixel is rounded up, as in SlowFast and pytorchvideo.
    places = [[(side + 1) // 2 for side in room] for _ in range(count)]
    for n, place in enumerate(places):
        if count > 1:
            place[longer] = (2 * room[longer] * n + count - 1) // (2 * (count - 1))
    return [shown_of(_square(small, x, y, size), small, frames) for x, y in places]


def shown_of(view: View, resized: Frames, frames: Frames) -> View:
    """Say which part of `frames` a view shows that was cut out of `resized`, the same frames at another size."""
    (height, width), (high, wide) = frames.shape[2:], resized.shape[2:]
    return View(view.frames, view.window and view.window.scaled(width / wide, height / high))


def flip(frames: Frames) -> Frames:
    """Mirror all frames (T, C, H, W) left to right."""
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    out = np.empty_like(images)
    # One call: the frames stacked on top of each other are one high image.
    cv2.flip(_stack(images), 1, dst=_stack(out))
    return out.transpose(0, 3, 1, 2)


def mirrored(view: View) -> View:
    """Mirror a view, and say so."""
    return View(flip(view.frames), view.window and view.window._replace(flipped=True))


def rotate(frames: Frames, degrees: float, fill: int | None) -> Frames:
    """Turn all frames (T, C, H, W) about their centre, anticlockwise; `fill` as in `warp`."""
    height, width = frames.shape[2:]
    return warp(frames, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0), fill)


def warp(frames: Frames, matrix: NDArray[Any], fill: int | None) -> Frames:
    """Move all pixels of frames (T, C, H, W) by an affine map, bilinear.

    Args:
        frames: Of any size, which stays.
        matrix: (2, 3), of the source to the result, in pixels with centres at whole numbers.
        fill: Value of what comes in from outside; None: mirrored, without repeating the border pixel.
    """
    border = cv2.BORDER_REFLECT_101 if fill is None else cv2.BORDER_CONSTANT
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    out = np.empty_like(images)
    for image, target in zip(images, out, strict=True):
        size = image.shape[1::-1]
        cv2.warpAffine(image, matrix, size, dst=target, borderMode=border, borderValue=[fill or 0] * 3)
    return out.transpose(0, 3, 1, 2)


def _square(frames: Frames, x: int, y: int, size: int) -> View:
    # A copy: it shares no memory with the caller's frames.
    square = frames.transpose(0, 2, 3, 1)[:, y : y + size, x : x + size].copy().transpose(0, 3, 1, 2)
    return View(square, Window(x, y, size, size))


def _stack(images: Frames) -> Frames:
    return images.reshape(-1, *images.shape[2:])
