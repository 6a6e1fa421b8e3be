"""RandAugment (Cubuk et al., 2020) of clips: a few operations drawn from fourteen, with one magnitude.

Operations and their strengths are those of torchvision's `RandAugment`, with magnitudes from 0 to 30; pixels from
outside of the frames are gray (128), as in the authors' code. Largest and mean difference from torchvision on the same
bytes, of 255, bilinear: rotation and shear 1 and 0.06, translation 0; for the others see `color`. Unlike torchvision,
automatic contrast and equalisation use the statistics of the whole clip.
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


def shear(frames: Frames, amount: float, axis: int) -> Frames:
    """Shift each row left (`axis` 0), or each column up (1), by `amount` times its distance from the first edge."""
    matrix = np.eye(2, 3)
    matrix[axis, 1 - axis] = -amount
    matrix[axis, 2] = -amount / 2  # distances are from the corner of the first pixel, not from its centre
    return warp(frames, matrix, GRAY)


def translate(frames: Frames, fraction: float, axis: int) -> Frames:
    """Shift right (`axis` 0) or down (1) by a fraction of the width or height, truncated to whole pixels."""
    length, channels, height, width = frames.shape
    out = np.full((length, height, width, channels), GRAY, np.uint8).transpose(0, 3, 1, 2)
    source, target = frames.swapaxes(2, 3 - axis), out.swapaxes(2, 3 - axis)
    away, end = int(fraction * source.shape[2]), source.shape[2]
    target[:, :, max(away, 0) : end + min(away, 0)] = source[:, :, max(-away, 0) : end - max(away, 0)]
    return out


GEOMETRY: dict[str, Callable[[Frames, float], Frames]] = {
    "rotate": lambda frames, level: rotate(frames, 30 * level, GRAY),
    "shear_x": lambda frames, level: shear(frames, 0.3 * level, 0),
    "shear_y": lambda frames, level: shear(frames, 0.3 * level, 1),
    "translate_x": lambda frames, level: translate(frames, 150 / 331 * level, 0),
    "translate_y": lambda frames, level: translate(frames, 150 / 331 * level, 1),
}


def rand_augment(
    frames: Frames,
    operations: int,
    magnitude: int,
    geometry: bool,
    generator: np.random.Generator,
    probability: float = 1.0,
) -> Frames:
    """Apply random operations one after the other; operation and sign are drawn once per clip.

    Args:
        frames: (T, 3, H, W).
        operations: Number of operations, N in the paper; equally likely, with repetition.
        magnitude: M in the paper, 0 to 30.
        geometry: Whether to rotate, shear and translate too.
        generator: Source of random numbers.
        probability: Probability that a drawn operation is applied.
    """
    choices = [*COLOR.values(), *(GEOMETRY.values() if geometry else ())]
    for _ in range(operations):
        operation = choices[generator.integers(len(choices))]
        if probability < 1 and generator.random() >= probability:
            continue
        frames = operation(frames, generator.choice((-1, 1)) * magnitude / LARGEST)
    return frames
