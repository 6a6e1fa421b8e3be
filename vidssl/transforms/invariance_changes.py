"""Deterministic corruptions of a view that keep its content, to measure invariance with.

Each takes frames (T, 3, S, S) and an amount. Lengths are fractions of the side, the same at every size.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from vidssl.base.errors import ConfigError
from vidssl.base.registry import did_you_mean
from vidssl.base.types import Frames
from vidssl.transforms import color, crops

# What a change takes, before an amount: the central square of a clip; the frames of a video (a `VersionRequest`); or
# which frames make a clip: its settings, the metadata of its video, and the clip.
ChangeKind = Literal["square", "frames", "clip"]


class Change(NamedTuple):
    """An operation, and its amounts, such as those of five severities."""

    apply: Callable[..., Any]
    amounts: tuple[Any, ...]
    unit: str  # of the amounts
    group: str = ""
    kind: ChangeKind = "square"
    draws: bool = False  # it also takes a generator, after the amount
    needs_motion: bool = False  # has no meaning for clips of one frame


def choose_changes(
    kind: str, known: Mapping[str, Change], names: Sequence[str] | None, excluded: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose changes of some kind, those of some names or all, but for the `excluded` ones, which have a reason.

    Returns:
        Their names in the order of `known`, and the reason for each that is left out.

    Raises:
        ConfigError: A name is unknown, or no change is left.
    """
    for name in names or ():
        if name not in known:
            raise ConfigError(f"no {kind} '{name}'{did_you_mean(name, known)}; there are: {', '.join(known)}")
    requested = [name for name in known if names is None or name in names]
    left_out = {name: why for name, why in excluded.items() if name in requested}
    changes = tuple(name for name in requested if name not in left_out)
    if not changes:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ConfigError(f"no {kind} is left to measure ({reasons}); name others")
    return changes, left_out


GRAY = 128


def occlude(frames: Frames, amount: tuple[float, float, float]) -> Frames:
    """Cover a square with gray: its side and centre (x, y), shifted into the frame; all are fractions."""
    box = _square(frames.shape[3], *amount)
    out = frames.copy(order="K")
    out[:, :, box.y : box.y + box.h, box.x : box.x + box.w] = GRAY
    return out


def zoom(frames: Frames, amount: tuple[float, float, float]) -> Frames:
    """Enlarge a square to the whole frame: its side and centre (x, y), shifted into the frame; all are fractions."""
    size = frames.shape[3]
    return crops.crop_resize(frames, _square(size, *amount), size, size)


def blur(frames: Frames, fraction: float) -> Frames:
    """Blur with a Gaussian whose standard deviation is a fraction of the side."""
    sigma = fraction * frames.shape[3]
    return color.gaussian_blur(frames, 2 * math.ceil(3.5 * sigma) + 1, sigma)


def light(frames: Frames, amount: tuple[float, float]) -> Frames:
    """Change contrast and brightness by two factors."""
    contrast, brightness = amount
    return color.adjust_brightness(color.adjust_contrast(frames, contrast), brightness)


# Each takes a view (T, 3, S, S) and an amount; the amounts make a trajectory.
CORRUPTIONS = {
    "occlusion": Change(
        occlude,
        ((1 / 4, 0.25, 0.25), (3 / 8, 0.75, 0.75), (1 / 2, 0.75, 0.25), (5 / 8, 0.25, 0.75)),
        "side and centre of the gray square, fractions of the frame's side",
    ),
    "viewpoint": Change(
        zoom,
        ((0.9, 0.5, 0.5), (0.75, 0.5, 0.5), (0.75, 0.0, 0.0), (0.75, 1.0, 1.0), (0.6, 0.5, 0.5)),
        "side and centre of the visible square, fractions of the frame's side",
    ),
    "rotation": Change(partial(crops.rotate, fill=None), (-30.0, -15.0, 15.0, 30.0), "degrees"),
    "illumination": Change(
        light, ((1.0, 0.5), (1.0, 1.5), (0.5, 1.0), (1.5, 1.0)), "factors of contrast and of brightness"
    ),
    "colour": Change(color.adjust_hue, (-0.2, -0.1, 0.1, 0.2), "shift of the hue, fraction of the circle"),
    "blur": Change(blur, (1 / 80, 1 / 40, 1 / 20), "standard deviation of a Gaussian, fraction of the frame's side"),
}


def _square(size: int, fraction: float, x: float, y: float) -> crops.Box:
    """A square about (x, y), shifted into the frame."""
    side = max(1, round(fraction * size))
    corner_x, corner_y = (min(max(round(centre * size - side / 2), 0), size - side) for centre in (x, y))
    return crops.Box(corner_x, corner_y, side, side)
