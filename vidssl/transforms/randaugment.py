"""RandAugment (Cubuk et al., 2020) of clips: a few operations drawn from fourteen, with one magnitude.

Operations and strengths are those of torchvision's `RandAugment`, but automatic contrast and equalisation use the
statistics of the whole clip. Pixels from outside of the frames are gray, as in the authors' code.
"""

from collections.abc import Callable

import numpy as np

from vidssl.types import Operation

LARGEST = 30  # magnitude

# The operation of a level, from -1 to 1: the magnitude as a fraction of the largest, with a random sign, which
# solarisation and posterisation ignore.
COLOR: dict[str, Callable[[float], list[Operation]]] = {
    "identity": lambda level: [],
    "auto_contrast": lambda level: [Operation("auto_contrast")],
    "equalize": lambda level: [Operation("equalize")],
    "brightness": lambda level: [Operation("brightness", 1 + 0.9 * level)],
    "color": lambda level: [Operation("saturation", 1 + 0.9 * level)],
    "contrast": lambda level: [Operation("contrast", 1 + 0.9 * level)],
    "sharpness": lambda level: [Operation("sharpness", 1 + 0.9 * level)],
    "posterize": lambda level: [Operation("posterize", round(8 - 4 * abs(level)))],
    "solarize": lambda level: [Operation("solarize", 255 - int(255 * abs(level)))],
}
GEOMETRY: dict[str, Callable[[float], list[Operation]]] = {
    "rotate": lambda level: [Operation("rotate", 30 * level)],
    "shear_x": lambda level: [Operation("shear_x", 0.3 * level)],
    "shear_y": lambda level: [Operation("shear_y", 0.3 * level)],
    "translate_x": lambda level: [Operation("translate_x", 150 / 331 * level)],
    "translate_y": lambda level: [Operation("translate_y", 150 / 331 * level)],
}


def draw_randaugment(
    operations: int, magnitude: int, geometry: bool, generator: np.random.Generator, probability: float = 1.0
) -> list[Operation]:
    """Draw `operations` random operations of a magnitude (0 to 30), each applied with `probability`.

    Operation and sign are drawn with repetition; `geometry` adds rotation, shear and translation.
    """
    choices = [*COLOR.values(), *(GEOMETRY.values() if geometry else ())]
    drawn: list[Operation] = []
    for _ in range(operations):
        operation = choices[generator.integers(len(choices))]
        if probability < 1 and generator.random() >= probability:
            continue
        drawn += operation(float(generator.choice((-1, 1))) * magnitude / LARGEST)
    return drawn
