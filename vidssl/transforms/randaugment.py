"""RandAugment (Cubuk et al., 2020) of clips: a few operations drawn from fourteen, with one magnitude.

Operations and strengths are those of torchvision's `RandAugment`, but automatic contrast and equalisation use the
statistics of the whole clip. Pixels from outside of the frames are gray, as in the authors' code.
"""

from collections.abc import Callable

import numpy as np

from vidssl.transforms import color
from vidssl.transforms.corruptions import GRAY
from vidssl.transforms.crops import rotate, warp
from vidssl.types import Frames

LARGEST = 30  # magnitude

# Operations of frames and level, from -1 to 1: the magnitude as a fraction of the largest, with a random sign, which
# solarisation and posterisation ignore.
COLOR: dict[str, Callable[[Frames, float], Frames]] = {
    "identity": lambda frames, level: frames,
    "auto_contrast": lambda frames, level: color.auto_contrast(frames),
    "equalize": lambda frames, level: color.equalize(frames),
    "brightness": lambda frames, level: color.adjust_brightness(frames, 1 + 0.9 * level),
    "color": lambda frames, level: color.adjust_saturation(frames, 1 + 0.9 * level),
    "contrast": lambda frames, level: color.adjust_contrast(frames, 1 + 0.9 * level),
    "sharpness": lambda frames, level: color.adjust_sharpness(frames, 1 + 0.9 * level),
    "posterize": lambda frames, level: color.posterize(frames, round(8 - 4 * abs(level))),
    "solarize": lambda frames, level: color.solarize(frames, 255 - int(255 * abs(level))),
}
GEOMETRY: dict[str, Callable[[Frames, float], Frames]] = {
    "rotate": lambda frames, level: rotate(frames, 30 * level, GRAY),
    "shear_x": lambda frames, level: _shear(frames, 0.3 * level, 0),
    "shear_y": lambda frames, level: _shear(frames, 0.3 * level, 1),
    "translate_x": lambda frames, level: _translate(frames, 150 / 331 * level, 0),
    "translate_y": lambda frames, level: _translate(frames, 150 / 331 * level, 1),
}


def rand_augment(
    frames: Frames,
    operations: int,
    magnitude: int,
    geometry: bool,
    generator: np.random.Generator,
    probability: float = 1.0,
) -> Frames:
    """Apply `operations` random operations of a magnitude (0 to 30) one after the other, each with `probability`.

    Operation and sign are drawn once per clip, with repetition; `geometry` adds rotation, shear and translation.
    """
    choices = [*COLOR.values(), *(GEOMETRY.values() if geometry else ())]
    for _ in range(operations):
        operation = choices[generator.integers(len(choices))]
        if probability < 1 and generator.random() >= probability:
            continue
        frames = operation(frames, generator.choice((-1, 1)) * magnitude / LARGEST)
    return frames


def _shear(frames: Frames, amount: float, axis: int) -> Frames:
    """Shift each row left (`axis` 0), or each column up (1), by `amount` times its distance from the first edge."""
    matrix = np.eye(2, 3)
    matrix[axis, 1 - axis] = -amount
    matrix[axis, 2] = -amount / 2  # distances are from the corner of the first pixel, not from its centre
    return warp(frames, matrix, GRAY)


def _translate(frames: Frames, fraction: float, axis: int) -> Frames:
    """Shift right (`axis` 0) or down (1) by a fraction of the width or height, truncated to whole pixels."""
    out = np.full_like(frames, GRAY)
    source, target = frames.swapaxes(2, 3 - axis), out.swapaxes(2, 3 - axis)
    away, end = int(fraction * source.shape[2]), source.shape[2]
    target[:, :, max(away, 0) : end + min(away, 0)] = source[:, :, max(-away, 0) : end - max(away, 0)]
    return out
