"""Recipes: named lists of operations that turn the frames of a clip into views."""

from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from vidssl.config import Settings
from vidssl.registry import Registry
from vidssl.transforms import color, crops
from vidssl.transforms.crops import View
from vidssl.transforms.randaugment import LARGEST, rand_augment
from vidssl.types import Frames


class Recipe(Protocol):
    """Interface of the entries of `RECIPES`: classes with a nested `Config`, built as `Recipe(config)`."""

    def __init__(self, config: Any) -> None: ...

    @property
    def difference(self) -> float:
        """Probability of the RGB difference. The dataset applies it, as it changes which frames are decoded."""
        ...

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make the views (T, 3, size, size) of frames (T, 3, H, W), both uint8 and channels last in memory.

        Every random draw holds for all frames. The frames are not changed, and shared with no view.
        """
        ...


RECIPES: Registry[type[Recipe]] = Registry("recipe", "vidssl.transforms")


def _check_range(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 < pair[0] <= pair[1]:
        raise ValueError("must be (low, high) with 0 < low <= high")
    return pair


def _check_fractions(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[1] > 1:
        raise ValueError("must be fractions of the frame, at most 1")
    return pair


def _check_odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd")
    return value


Side = Annotated[int, Field(ge=1)]
Strength = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Range = Annotated[tuple[float, float], AfterValidator(_check_range)]
Area = Annotated[Range, AfterValidator(_check_fractions)]
Jitter = tuple[Strength, Strength, Strength, Strength]


class _ColorSettings(Settings):
    """Colour jitter, grayscale and flip. The ranges of the jitter are `color` times `jitter`."""

    color: Strength = 1.0  # the strength s of SimCLR
    jitter: Jitter = (0.8, 0.8, 0.8, 0.2)  # brightness, contrast, saturation, hue at strength 1
    jitter_probability: Probability = 0.8
    gray_probability: Probability = 0.2
    flip_probability: Probability = 0.5

    @model_validator(mode="after")
    def _check_hue(self) -> "_ColorSettings":
        hue = self.color * self.jitter[3]
        if hue > 0.5:
            raise ValueError(f"color times the hue of jitter is {hue:g}, more than 0.5: lower one of them")
        return self

    @property
    def ranges(self) -> Jitter:
        """Brightness, contrast, saturation and hue, as `color_jitter` takes them."""
        brightness, contrast, saturation, hue = (self.color * strength for strength in self.jitter)
        return brightness, contrast, saturation, hue


def _jitter_and_gray(frames: Frames, config: _ColorSettings, generator: np.random.Generator) -> Frames:
    if generator.random() < config.jitter_probability:
        frames = color.color_jitter(frames, config.ranges, generator)
    if generator.random() < config.gray_probability:
        frames = color.grayscale(frames)
    return frames


def _flip(view: View, config: _ColorSettings, generator: np.random.Generator) -> View:
    return crops.mirrored(view) if generator.random() < config.flip_probability else view


class ViewRecipe:
    """A view for contrastive learning: crop, colour jitter, gray, blur, solarisation, RandAugment, flip.

    Its subclasses differ in their defaults only: those of Table 1 of SCE (Denize et al., 2023), and of InfoMin. The
    table has half of these intensities: it is `color: 0.5`. The paper's best results on video are with `color: 1.0`.
    """

    class Config(_ColorSettings):
        """Settings; the defaults are those of `strong`."""

        size: Side = 224
        area: Area = (0.2, 0.766)  # of the crop; the authors' values, the paper has none for video
        ratio: Range = (3 / 4, 4 / 3)  # width / height
        blur_probability: Probability = 0.5
        blur_kernel: Annotated[Side, AfterValidator(_check_odd)] = 23
        sigma: Range = (0.1, 2.0)  # of the blur, pixels
        solarize_probability: Probability = 0.0
        # RandAugment: number of operations (0: none), probability of each, magnitude, whether to rotate, shear and
        # translate too.
        operations: Annotated[int, Field(ge=0)] = 0
        operation_probability: Probability = 1.0
        magnitude: Annotated[int, Field(ge=0, le=LARGEST)] = 10
        geometry: bool = True
        difference: Probability = 0.0

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def difference(self) -> float:
        """Probability of the RGB difference, for the dataset."""
        return self.config.difference

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view."""
        config = self.config
        frames, window = crops.random_resized_crop(frames, config.size, config.area, config.ratio, generator)
        frames = _jitter_and_gray(frames, config, generator)
        if generator.random() < config.blur_probability:
            frames = color.gaussian_blur(frames, config.blur_kernel, generator.uniform(*config.sigma))
        if generator.random() < config.solarize_probability:
            frames = color.solarize(frames)
        if config.operations:
            settings = config.operations, config.magnitude, config.geometry
            frames = rand_augment(frames, *settings, generator, config.operation_probability)
            # Whatever was drawn: whether boxes can follow must not depend on chance.
            window = None if config.geometry else window
        return [_flip(View(frames, window), config, generator)]


@RECIPES.register("weak")
class Weak(ViewRecipe):
    """Crop and flip only."""

    class Config(ViewRecipe.Config):
        """Column 1 of Table 1."""

        jitter: Jitter = (0.0, 0.0, 0.0, 0.0)
        jitter_probability: Probability = 0.0
        gray_probability: Probability = 0.0
        blur_probability: Probability = 0.0


@RECIPES.register("strong")
class Strong(ViewRecipe):
    """Crop, colour jitter, gray, blur, flip: column 2 of Table 1, the defaults of `ViewRecipe`."""


@RECIPES.register("strong_alpha")
class StrongAlpha(ViewRecipe):
    """`strong` with less saturation, and always blurred."""

    class Config(ViewRecipe.Config):
        """Column 3 of Table 1."""

        jitter: Jitter = (0.8, 0.8, 0.4, 0.2)
        blur_probability: Probability = 1.0


@RECIPES.register("strong_beta")
class StrongBeta(ViewRecipe):
    """`strong` with less saturation, seldom blurred, and with solarisation."""

    class Config(ViewRecipe.Config):
        """Column 4 of Table 1."""

        jitter: Jitter = (0.8, 0.8, 0.4, 0.2)
        blur_probability: Probability = 0.1
        solarize_probability: Probability = 0.2


@RECIPES.register("strong_gamma")
class StrongGamma(ViewRecipe):
    """`strong` with less saturation, and with solarisation."""

    class Config(ViewRecipe.Config):
        """Column 5 of Table 1."""

        jitter: Jitter = (0.8, 0.8, 0.4, 0.2)
        solarize_probability: Probability = 0.2


@RECIPES.register("infomin")
class InfoMin(ViewRecipe):
    """The view of InfoMin (Tian et al., 2020): `strong` with other crops and with RandAugment."""

    class Config(ViewRecipe.Config):
        """Crop and jitter are the best of Figures 5 and 6; for RandAugment see docs/methods/infomin.md."""

        area: Area = (0.2, 1.0)
        operations: Annotated[int, Field(ge=0)] = 2


@RECIPES.register("train_crop")
class TrainCrop:
    """The view of supervised training: resized shorter side, padding, random square, colour if wanted, flip.

    The defaults are those of SCE's linear evaluation (the authors' code; the paper has a fixed side of 256). Its
    finetuning on UCF101 and HMDB51 has `color: 0.5`, which is jitter 0.4, 0.4, 0.4, 0.1.
    """

    class Config(_ColorSettings):
        """Settings; no colour by default."""

        size: Side = 224
        short_side: tuple[Side, Side] = (256, 320)  # pixels, uniform, both ends included
        padding: Annotated[int, Field(ge=0)] = 0  # black pixels on each side before the crop: 4 on CIFAR
        color: Strength = 0.0
        gray_probability: Probability = 0.0

        @model_validator(mode="after")
        def _check_crop(self) -> "TrainCrop.Config":
            low, high = self.short_side
            if not self.size <= low + 2 * self.padding <= high + 2 * self.padding:
                raise ValueError(
                    f"short_side ({low}, {high}) must rise, and with padding start at size {self.size} or more"
                )
            return self

    difference = 0.0

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view."""
        config = self.config
        resized = crops.short_side(frames, int(generator.integers(*config.short_side, endpoint=True)))
        view = crops.random_crop(resized, config.size, generator, config.padding)
        frames, window = crops.shown_of(view, resized, frames)
        return [_flip(View(_jitter_and_gray(frames, config, generator), window), config, generator)]


def check_short_side(size: int, short_side: int | None) -> None:
    """Raise a ValueError if a crop of `size` is larger than the shorter side that it is cut from."""
    if short_side is not None and short_side < size:
        raise ValueError(f"short_side {short_side} is less than size {size}: raise it, or leave it out")


class _CropSettings(Settings):
    size: Side = 256  # SCE's test on video
    short_side: Side | None = None  # pixels, before the crop; None: size. 256 with size 224 is the ImageNet test

    @model_validator(mode="after")
    def _check_crop(self) -> "_CropSettings":
        check_short_side(self.size, self.short_side)
        return self


@RECIPES.register("uniform_crops")
class UniformCrops:
    """Shorter side to `short_side`, or `size`; evenly spaced squares of `size` along the longer one. Not random."""

    class Config(_CropSettings):
        """Settings; the default number is that of SCE's tests on video."""

        crops: int = Field(default=3, ge=1)

    difference = 0.0

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make `crops` views."""
        config = self.config
        return crops.uniform_crops(frames, config.size, config.crops, config.short_side)


@RECIPES.register("center_crop")
class CenterCrop:
    """`uniform_crops` with one crop: the central square."""

    class Config(_CropSettings):
        """Settings."""

    difference = 0.0

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view."""
        return [crops.center_crop(frames, self.config.size, self.config.short_side)]
