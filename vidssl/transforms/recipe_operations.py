"""The operations that recipes draw: their names, how they are drawn, and their functions on the CPU.

A recipe first draws all operations of a view and then applies them, on the CPU with `apply`, or later for a whole batch
on the device (`batched`). So both have the same draws.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vidssl.transforms import color, crops
from vidssl.transforms.invariance_changes import GRAY
from vidssl.types import Frames, Operation

OPERATIONS: dict[str, Callable[[Frames, Operation], Frames]] = {
    "brightness": lambda frames, drawn: color.adjust_brightness(frames, drawn.amount),
    "contrast": lambda frames, drawn: color.adjust_contrast(frames, drawn.amount),
    "saturation": lambda frames, drawn: color.adjust_saturation(frames, drawn.amount),
    "hue": lambda frames, drawn: color.adjust_hue(frames, drawn.amount),
    "gray": lambda frames, drawn: color.grayscale(frames),
    "blur": lambda frames, drawn: color.gaussian_blur(frames, drawn.kernel, drawn.amount),
    "sharpness": lambda frames, drawn: color.adjust_sharpness(frames, drawn.amount),
    "solarize": lambda frames, drawn: color.solarize(frames, int(drawn.amount)),
    "posterize": lambda frames, drawn: color.posterize(frames, int(drawn.amount)),
    "auto_contrast": lambda frames, drawn: color.auto_contrast(frames),
    "equalize": lambda frames, drawn: color.equalize(frames),
    "rotate": lambda frames, drawn: crops.rotate(frames, drawn.amount, GRAY),
    "shear_x": lambda frames, drawn: crops.shear(frames, drawn.amount, 0, GRAY),
    "shear_y": lambda frames, drawn: crops.shear(frames, drawn.amount, 1, GRAY),
    "translate_x": lambda frames, drawn: crops.translate(frames, drawn.amount, 0, GRAY),
    "translate_y": lambda frames, drawn: crops.translate(frames, drawn.amount, 1, GRAY),
    "flip": lambda frames, drawn: crops.flip(frames),
}


def apply(frames: Frames, operations: Iterable[Operation]) -> Frames:
    """Apply drawn operations to frames (T, 3, H, W) uint8, one after the other; the frames are not changed."""
    for drawn in operations:
        frames = OPERATIONS[drawn.name](frames, drawn)
    return frames


def draw_jitter(ranges: Sequence[float], generator: np.random.Generator) -> list[Operation]:
    """Draw brightness, contrast, saturation and hue in random order with random amounts.

    `ranges` are those of torchvision's `ColorJitter`, in this order: factors are uniform in [max(0, 1 - b), 1 + b], the
    shift of the hue in [-h, h], h <= 0.5. Range 0 skips an operation.
    """
    *others, hue = ranges
    amounts = [generator.uniform(max(0.0, 1 - limit), 1 + limit) for limit in others]
    amounts.append(generator.uniform(-hue, hue))
    names = ("brightness", "contrast", "saturation", "hue")
    return [Operation(names[n], amounts[n]) for n in generator.permutation(4) if ranges[n] > 0]
