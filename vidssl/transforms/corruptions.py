"""Changes of a view that leave what it shows as it is: what invariance is measured with. Nothing is random.

Each takes frames (T, 3, S, S), uint8, channels last in memory, and an amount; it treats all frames alike and never
changes its input. Lengths are shares of the side, so that an amount means the same at every size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vidssl.transforms import color, crops
from vidssl.types import Frames

GRAY = 128


def occlude(frames: Frames, amount: tuple[float, float, float]) -> Frames:
    """Put a gray square of side `share` about (x, y), moved so that it lies within the frame; all are shares."""
    share, x, y = amount
    left, top, side = _square(frames.shape[3], share, x, y)
    out = frames.copy(order="K")
    out[:, :, top : top + side, left : left + side] = GRAY
    return out


def zoom(frames: Frames, amount: tuple[float, float, float]) -> Frames:
    """Show only the square of side `share` about (x, y), as large as the whole: nearer, or from elsewhere."""
    share, x, y = amount
    size = frames.shape[3]
    left, top, side = _square(size, share, x, y)
    return crops.crop_resize(frames, crops.Box(left, top, side, side), size, size)


def rotate(frames: Frames, degrees: float) -> Frames:
    """Turn about the centre, anticlockwise; what comes in at the corners is mirrored."""
    return crops.rotate(frames, degrees, fill=None)


def blur(frames: Frames, share: float) -> Frames:
    """Blur by a Gaussian whose standard deviation is a share of the side."""
    sigma = share * frames.shape[3]
    return color.gaussian_blur(frames, 2 * math.ceil(3.5 * sigma) + 1, sigma)


def light(frames: Frames, amount: tuple[float, float]) -> Frames:
    """Change contrast and brightness by two factors."""
    contrast, brightness = amount
    return color.adjust_brightness(color.adjust_contrast(frames, contrast), brightness)


@dataclass(frozen=True)
class Corruption:
    """A change and the amounts of it that make a trajectory, each with a text that says it."""

    change: Callable[[Frames, Any], Frames]
    amounts: tuple[Any, ...]
    says: str  # what the amounts are

    def versions(self, frames: Frames) -> list[Frames]:
        """Make all versions of a view (T, 3, S, S)."""
        return [self.change(frames, amount) for amount in self.amounts]


CORRUPTIONS = {
    "occlusion": Corruption(
        occlude,
        ((1 / 4, 0.25, 0.25), (3 / 8, 0.75, 0.75), (1 / 2, 0.75, 0.25), (5 / 8, 0.25, 0.75)),
        "a gray square: its side and centre, shares of the frame's side",
    ),
    "viewpoint": Corruption(
        zoom,
        ((0.9, 0.5, 0.5), (0.75, 0.5, 0.5), (0.75, 0.0, 0.0), (0.75, 1.0, 1.0), (0.6, 0.5, 0.5)),
        "the part that is seen: its side and centre, shares of the frame's side",
    ),
    "rotation": Corruption(rotate, (-30.0, -15.0, 15.0, 30.0), "degrees"),
    "illumination": Corruption(
        light, ((1.0, 0.5), (1.0, 1.5), (0.5, 1.0), (1.5, 1.0)), "factors of contrast and of brightness"
    ),
    "colour": Corruption(
        color.adjust_hue, (-0.2, -0.1, 0.1, 0.2), "turn of the hue, share of the whole circle"
    ),
    "blur": Corruption(
        blur, (1 / 80, 1 / 40, 1 / 20), "standard deviation of a Gaussian, share of the frame's side"
    ),
}


def _square(size: int, share: float, x: float, y: float) -> tuple[int, int, int]:
    """Left, top and side of a square about (x, y) that lies within the frame, pixels."""
    side = max(1, round(share * size))
    left, top = (min(max(round(place * size - side / 2), 0), size - side) for place in (x, y))
    return left, top, side
