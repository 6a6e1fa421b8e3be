"""Recipes: named lists of operations that turn the frames of a clip into views."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.registry import Registry
from vidssl.base.types import Count, Frames, Natural, Operation
from vidssl.transforms import color, crops
from vidssl.transforms.color import cut_kernel
from vidssl.transforms.crops import View, Window
from vidssl.transforms.gamma_and_shuffles import Distortion
from vidssl.transforms.invariance_changes import GRAY

OPERATIONS: dict[str, Callable[[Frames, Operation], Frames]] = {
    "brightness": lambda frames, operation: color.adjust_brightness(frames, operation.amount),
    "contrast": lambda frames, operation: color.adjust_contrast(frames, operation.amount),
    "saturation": lambda frames, operation: color.adjust_saturation(frames, operation.amount),
    "hue": lambda frames, operation: color.adjust_hue(frames, operation.amount),
    "gray": lambda frames, operation: color.grayscale(frames),
    "blur": lambda frames, operation: color.gaussian_blur(frames, operation.kernel, operation.amount),
    "sharpness": lambda frames, operation: color.adjust_sharpness(frames, operation.amount),
    "solarize": lambda frames, operation: color.solarize(frames, int(operation.amount)),
    "posterize": lambda frames, operation: color.posterize(frames, int(operation.amount)),
    "auto_contrast": lambda frames, operation: color.auto_contrast(frames),
    "equalize": lambda frames, operation: color.equalize(frames),
    "rotate": lambda frames, operation: crops.rotate(frames, operation.amount, GRAY),
    "shear_x": lambda frames, operation: crops.shear(frames, operation.amount, 0, GRAY),
    "shear_y": lambda frames, operation: crops.shear(frames, operation.amount, 1, GRAY),
    "translate_x": lambda frames, operation: crops.translate(frames, operation.amount, 0, GRAY),
    "translate_y": lambda frames, operation: crops.translate(frames, operation.amount, 1, GRAY),
    "flip": lambda frames, operation: crops.flip(frames),
}


def apply(frames: Frames, operations: Iterable[Operation]) -> Frames:
    """Apply drawn operations to frames (T, 3, H, W) uint8, one after the other; the frames are not changed."""
    for operation in operations:
        frames = OPERATIONS[operation.name](frames, operation)
    return frames


def draw_jitter(ranges: Sequence[float], generator: np.random.Generator) -> list[Operation]:
    """Draw brightness, contrast, saturation and hue in random order with random amounts.

    `ranges` are those of torchvision's `ColorJitter`, in this order: factors are uniform in [max(0, 1 - b), 1 + b], the
    shift of the hue in [-h, h], h <= 0.5. Range 0 skips an operation.
    """
    *factors, hue = ranges
    amounts = [generator.uniform(max(0.0, 1 - limit), 1 + limit) for limit in factors]
    amounts.append(generator.uniform(-hue, hue))
    names = ("brightness", "contrast", "saturation", "hue")
    return [Operation(names[n], amounts[n]) for n in generator.permutation(4) if ranges[n] > 0]


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
    applied: list[Operation] = []
    for _ in range(operations):
        operation = choices[generator.integers(len(choices))]
        if probability < 1 and generator.random() >= probability:
            continue
        applied += operation(float(generator.choice((-1, 1))) * magnitude / LARGEST)
    return applied


def _check_range(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 < pair[0] <= pair[1]:
        raise ValueError("must be (low, high) with 0 < low <= high")
    return pair


def _check_odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd")
    return value


Strength = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Range = Annotated[tuple[float, float], AfterValidator(_check_range)]
Area = Annotated[tuple[Probability, Probability], AfterValidator(_check_range)]  # fractions of the frame
Jitter = tuple[Strength, Strength, Strength, Strength]  # brightness, contrast, saturation, hue


class ViewSettings(Settings):
    """Settings of a recipe whose views are squares of one size."""

    size: Count
    distortion: Distortion = Distortion()

    @model_validator(mode="after")
    def _check_patches(self) -> "ViewSettings":
        self.distortion.check(self.size)
        return self


class Recipe:
    """Base of the entries of `RECIPES`, which have a nested `Config` and are built as `Recipe(config)`."""

    Config: type[Settings]
    distortion = Distortion()  # of all views; by default none

    def __init__(self, config: Any) -> None:
        self.config = config
        # Probability of the RGB difference. The dataset applies it, as it changes which frames are decoded.
        self.difference: float = getattr(config, "difference", 0.0)
        self.distortion = getattr(config, "distortion", self.distortion)

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make the views (T, 3, size, size) of frames (T, 3, H, W), both uint8 and channels last in memory.

        Every random draw holds for all frames. The frames are not changed, and shared with no view.
        """
        raise ConfigError(f"recipe {type(self).__name__} has no __call__(frames, generator): see docs/extend.md")

    def views(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make the views, and distort them."""
        views = self(frames, generator)
        if not isinstance(views, list) or not all(isinstance(view, View) for view in views):
            raise ConfigError(f"recipe {type(self).__name__} must return a list of View, got {type(views).__name__}")
        for pixels in (view.frames for view in views):
            if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[1] != 3:
                frames_type = f"{pixels.dtype} {pixels.shape}"
                raise ConfigError(f"recipe {type(self).__name__} makes {frames_type}, not uint8 (T, 3, size, size)")
        return [self.distortion.apply(view, generator) for view in views]


RECIPES: Registry[type[Recipe]] = Registry("recipe", "vidssl.transforms")


class _ColorSettings(ViewSettings):
    color: Strength = 1.0  # the strength s of SimCLR: the ranges of the jitter are `color` times `jitter`
    jitter: Jitter = (0.8, 0.8, 0.8, 0.2)
    jitter_probability: Probability = 0.8
    gray_probability: Probability = 0.2
    flip_probability: Probability = 0.5

    @model_validator(mode="after")
    def _check_hue(self) -> "_ColorSettings":
        if self.ranges[3] > 0.5:
            raise ValueError(f"color times the hue of jitter is {self.ranges[3]:g}, more than 0.5: lower one of them")
        return self

    @property
    def ranges(self) -> tuple[float, ...]:
        """Brightness, contrast, saturation and hue, as `color_jitter` takes them."""
        return tuple(self.color * strength for strength in self.jitter)


def _draw_colors(config: _ColorSettings, generator: np.random.Generator) -> list[Operation]:
    """Draw jitter and gray."""
    jitter = draw_jitter(config.ranges, generator) if generator.random() < config.jitter_probability else []
    return [*jitter, Operation("gray")] if generator.random() < config.gray_probability else jitter


class DrawnRecipe(Recipe):
    """Base of recipes that make one view, a crop and operations on it, which `data.augment: device` can apply later."""

    def draw(self, frames: Frames, generator: np.random.Generator) -> tuple[View, list[Operation]]:
        """Crop the view, with its final window, and draw the operations that are still to be applied to it."""
        raise NotImplementedError

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view."""
        view, operations = self.draw(frames, generator)
        return [View(apply(view.frames, operations), view.window)]

    @classmethod
    def leaves_operations(cls) -> bool:
        """Whether `draw` is all that the recipe does: not if a subclass makes something else of the view."""
        return cls.__call__ is DrawnRecipe.__call__


def _flipped(
    view: View, operations: list[Operation], config: _ColorSettings, generator: np.random.Generator
) -> tuple[View, list[Operation]]:
    """Draw the flip, the last operation."""
    if generator.random() >= config.flip_probability:
        return view, operations
    return View(view.frames, view.window and view.window._replace(flipped=True)), [*operations, Operation("flip")]


class ViewRecipe(DrawnRecipe):
    """A view for contrastive learning: crop, colour jitter, gray, blur, solarisation, RandAugment, flip.

    Its subclasses differ in their defaults only: those of Table 1 of SCE (Denize et al., 2023), which has half of these
    intensities, `color: 0.5`, while the paper's best results on video are with `color: 1.0`; and those of InfoMin.
    """

    class Config(_ColorSettings):
        """Settings; the defaults are those of `strong`."""

        size: Count = 224
        area: Area = (0.2, 0.766)  # of the crop; the authors' values, the paper has none for video
        ratio: Range = (3 / 4, 4 / 3)  # width / height
        blur_probability: Probability = 0.5
        blur_kernel: Annotated[Count, AfterValidator(_check_odd)] = 23
        sigma: Range = (0.1, 2.0)  # of the blur, pixels
        solarize_probability: Probability = 0.0
        operations: Natural = 0  # of RandAugment
        operation_probability: Probability = 1.0  # of each
        magnitude: Annotated[Natural, Field(le=LARGEST)] = 10
        geometry: bool = True  # whether RandAugment rotates, shears and translates too
        difference: Probability = 0.0

    config: Config

    def draw(self, frames: Frames, generator: np.random.Generator) -> tuple[View, list[Operation]]:
        """Crop one view, and draw its operations."""
        config = self.config
        view = crops.random_resized_crop(frames, config.size, config.area, config.ratio, generator)
        operations = _draw_colors(config, generator)
        if generator.random() < config.blur_probability:
            sigma = generator.uniform(*config.sigma)
            operations.append(Operation("blur", sigma, cut_kernel(config.blur_kernel, sigma)))
        if generator.random() < config.solarize_probability:
            operations.append(Operation("solarize", 128))
        if config.operations:
            settings = config.operations, config.magnitude, config.geometry
            operations += draw_randaugment(*settings, generator, config.operation_probability)
            # Whatever was drawn: whether boxes can follow must not depend on chance.
            view = view._replace(window=None) if config.geometry else view
        return _flipped(view, operations, config, generator)


@RECIPES.register("weak")
class Weak(ViewRecipe):
    """Crop and flip only: column 1 of Table 1."""

    class Config(ViewRecipe.Config):
        jitter: Jitter = (0.0, 0.0, 0.0, 0.0)
        jitter_probability: Probability = 0.0
        gray_probability: Probability = 0.0
        blur_probability: Probability = 0.0


@RECIPES.register("strong")
class Strong(ViewRecipe):
    """Crop, colour jitter, gray, blur, flip: column 2 of Table 1, the defaults of `ViewRecipe`."""


class _LessSaturation(ViewRecipe.Config):
    jitter: Jitter = (0.8, 0.8, 0.4, 0.2)


@RECIPES.register("strong_alpha")
class StrongAlpha(ViewRecipe):
    """`strong` with less saturation, and always blurred: column 3 of Table 1."""

    class Config(_LessSaturation):
        blur_probability: Probability = 1.0


@RECIPES.register("strong_gamma")
class StrongGamma(ViewRecipe):
    """`strong` with less saturation, and with solarisation: column 5 of Table 1."""

    class Config(_LessSaturation):
        solarize_probability: Probability = 0.2


@RECIPES.register("strong_beta")
class StrongBeta(ViewRecipe):
    """`strong_gamma`, seldom blurred: column 4 of Table 1."""

    class Config(StrongGamma.Config):
        blur_probability: Probability = 0.1


@RECIPES.register("infomin")
class InfoMin(ViewRecipe):
    """The view of InfoMin (Tian et al., 2020), by its Figures 5 and 6; for RandAugment see docs/methods/infomin.md."""

    class Config(ViewRecipe.Config):
        area: Area = (0.2, 1.0)
        operations: Natural = 2


@RECIPES.register("train_crop")
class TrainCrop(DrawnRecipe):
    """The view of supervised training: resized shorter side, padding, random square, colour if wanted, flip.

    The defaults are those of the code of SCE's linear evaluation. Its finetuning on UCF101 and HMDB51 has `color: 0.5`.
    """

    class Config(_ColorSettings):
        """Settings; no colour by default."""

        size: Count = 224
        short_side: tuple[Count, Count] = (256, 320)  # pixels, uniform, both ends included
        padding: Natural = 0  # black pixels on each side before the crop: 4 on CIFAR
        color: Strength = 0.0
        gray_probability: Probability = 0.0

        @model_validator(mode="after")
        def _check_crop(self) -> "TrainCrop.Config":
            low, high = self.short_side
            if not self.size - 2 * self.padding <= low <= high:
                raise ValueError(f"short_side {low, high} must rise and, padded, start at size {self.size} or more")
            return self

    config: Config

    def draw(self, frames: Frames, generator: np.random.Generator) -> tuple[View, list[Operation]]:
        """Crop one view, and draw its operations."""
        config = self.config
        short = int(generator.integers(*config.short_side, endpoint=True))
        view = crops.random_crop(frames, config.size, generator, config.padding, short)
        return _flipped(view, _draw_colors(config, generator), config, generator)


def check_short_side(size: int, short_side: int | None) -> None:
    """Raise a ValueError if a crop of `size` is larger than the shorter side that it is cut from."""
    if short_side is not None and short_side < size:
        raise ValueError(f"short_side {short_side} is less than size {size}: raise it, or leave it out")


@RECIPES.register("center_crop")
class CenterCrop(Recipe):
    """Shorter side to `short_side`, or `size`; the central square of `size`. Not random."""

    class Config(ViewSettings):
        """Settings; the defaults are those of SCE's tests on video."""

        size: Count = 256
        short_side: Count | None = None  # pixels, before the crop; None: size. 256 with size 224 is the ImageNet test

        @model_validator(mode="after")
        def _check_crop(self) -> "CenterCrop.Config":
            check_short_side(self.size, self.short_side)
            return self

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view."""
        return [crops.center_crop(frames, self.config.size, self.config.short_side)]


@RECIPES.register("uniform_crops")
class UniformCrops(CenterCrop):
    """`center_crop` with `crops` evenly spaced squares along the longer side."""

    class Config(CenterCrop.Config):
        """Settings; the default number is that of SCE's tests on video."""

        crops: Count = 3

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make `crops` views."""
        return crops.uniform_crops(frames, self.config.size, self.config.crops, self.config.short_side)


@RECIPES.register("patches")
class Patches(Recipe):
    """Two squares of `size` pixels, the second one `distance` pixels to the right of and below the first.

    All positions within the frame are equally likely. As the only recipe of a run it makes both views.
    """

    class Config(ViewSettings):
        size: Count = 64
        distance: Natural = 64  # pixels, in x and in y; below `size` the patches overlap

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make two views."""
        size, distance = self.config.size, self.config.distance
        height, width = frames.shape[2:]
        extent = size + distance
        if min(height, width) < extent:
            raise DataError(f"distance {distance} needs frames of {extent}x{extent}, got {width}x{height}: lower it")
        y, x = (int(generator.integers(side - extent, endpoint=True)) for side in (height, width))
        images = frames.transpose(0, 2, 3, 1)
        views = []
        for at in (0, distance):
            patch = images[:, y + at : y + at + size, x + at : x + at + size].copy()  # shared with no view
            views.append(View(patch.transpose(0, 3, 1, 2), Window(x + at, y + at, size, size)))
        return views
