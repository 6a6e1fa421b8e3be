"""Recipes: named lists of operations that turn the frames of a clip into views."""

from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import AfterValidator, Field, create_model, model_validator

from vidssl.config import Settings
from vidssl.registry import Registry
from vidssl.transforms import color, crops
from vidssl.transforms.crops import View
from vidssl.transforms.randaugment import LARGEST, rand_augment
from vidssl.types import Frames


class Recipe(Protocol):
    """What every entry of `RECIPES` is: a class with a nested `Config`, built as `Recipe(config)`."""

    def __init__(self, config: Any) -> None: ...

    @property
    def difference(self) -> float:
        """Probability of the RGB difference. The data set applies it: it changes which frames are decoded."""
        ...

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make the views of a clip.

        Args:
            frames: (T, 3, H, W) uint8 of any size, channels last in memory. Not changed.
            generator: Source of random numbers.

        Returns:
            Views (T, 3, size, size) uint8, channels last in memory, each with the part of the given frames that it
            shows, or None where it is no window of them: one, but for `uniform_crops`.
        """
        ...


RECIPES: Registry[type[Recipe]] = Registry("recipe", "vidssl.transforms")


def _rising(pair: tuple[float, float]) -> tuple[float, float]:
    if not 0 < pair[0] <= pair[1]:
        raise ValueError("must be (low, high) with 0 < low <= high")
    return pair


def _share(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[1] > 1:
        raise ValueError("must be shares of the frame, at most 1")
    return pair


def _odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError("must be odd")
    return value


Side = Annotated[int, Field(ge=1)]
Strength = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Range = Annotated[tuple[float, float], AfterValidator(_rising)]
Jitter = tuple[Strength, Strength, Strength, Strength]


class _ColorSettings(Settings):
    """What `color_jitter` needs. The ranges it gets are `color` times `jitter`."""

    color: Strength = 1.0  # the strength s of SimCLR
    jitter: Jitter = (0.8, 0.8, 0.8, 0.2)  # brightness, contrast, saturation, hue at strength 1
    jitter_probability: Probability = 0.8
    gray_probability: Probability = 0.2
    flip_probability: Probability = 0.5

    @model_validator(mode="after")
    def _hue_within_circle(self) -> "_ColorSettings":
        hue = self.color * self.jitter[3]
        if hue > 0.5:
            raise ValueError(f"color times the hue of jitter is {hue:g}, more than 0.5: lower one of them")
        return self

    @property
    def ranges(self) -> Jitter:
        """Brightness, contrast, saturation and hue, as `color_jitter` takes them."""
        brightness, contrast, saturation, hue = (self.color * strength for strength in self.jitter)
        return brightness, contrast, saturation, hue


class ViewRecipe:
    """A view for contrastive learning: crop, colour jitter, gray, blur, solarisation, RandAugment, flip.

    The named ones differ in their defaults only, which are those of Table 1 of SCE (Denize et al., 2023), without
    RandAugment, and those of InfoMin.
    """

    class Config(_ColorSettings):
        """Defaults as in `strong`."""

        size: Side = 224
        # Of the crop; the paper gives no values for video. These are the authors'.
        area: Annotated[Range, AfterValidator(_share)] = (0.2, 0.766)
        ratio: Range = (3 / 4, 4 / 3)  # width / height
        blur_probability: Probability = 0.5
        blur_kernel: Annotated[Side, AfterValidator(_odd)] = 23
        sigma: Range = (0.1, 2.0)  # of the blur, pixels
        solarize_probability: Probability = 0.0
        # RandAugment: operations (0: without), the probability of each, their strength, whether to rotate, shear and
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
        """Probability of the RGB difference, for the data set."""
        return self.config.difference

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view; every draw holds for all frames of the clip."""
        config = self.config
        frames, window = crops.random_resized_crop(frames, config.size, config.area, config.ratio, generator)
        if generator.random() < config.jitter_probability:
            frames = color.color_jitter(frames, config.ranges, generator)
        if generator.random() < config.gray_probability:
            frames = color.grayscale(frames)
        if generator.random() < config.blur_probability:
            frames = color.gaussian_blur(frames, config.blur_kernel, generator.uniform(*config.sigma))
        if generator.random() < config.solarize_probability:
            frames = color.solarize(frames)
        if config.operations:
            drawn = config.operations, config.magnitude, config.geometry
            frames = rand_augment(frames, *drawn, generator, config.operation_probability)
            # Whatever was drawn: that boxes can follow must not be a matter of chance.
            window = None if config.geometry else window
        view = View(frames, window)
        return [crops.mirrored(view) if generator.random() < config.flip_probability else view]


# Table 1 of SCE, at strength 1. The paper lists half of these intensities: color 0.5 gives its table, and
# color 1.0 its best results on video.
_TABLE_1: dict[str, tuple[Jitter, float, float, float, float]] = {
    # name: (brightness, contrast, saturation, hue), probabilities of jitter, gray, blur, solarisation
    "weak": ((0.0, 0.0, 0.0, 0.0), 0.0, 0.0, 0.0, 0.0),
    "strong": ((0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 0.0),
    "strong_alpha": ((0.8, 0.8, 0.4, 0.2), 0.8, 0.2, 1.0, 0.0),
    "strong_beta": ((0.8, 0.8, 0.4, 0.2), 0.8, 0.2, 0.1, 0.2),
    "strong_gamma": ((0.8, 0.8, 0.4, 0.2), 0.8, 0.2, 0.5, 0.2),
}


def _column(name: str) -> type[ViewRecipe]:
    jitter, jitter_probability, gray, blur, solarize = _TABLE_1[name]
    title = name.title().replace("_", "")
    config = create_model(
        "Config",
        __base__=ViewRecipe.Config,
        __module__=__name__,
        jitter=(Jitter, jitter),
        jitter_probability=(Probability, jitter_probability),
        gray_probability=(Probability, gray),
        blur_probability=(Probability, blur),
        solarize_probability=(Probability, solarize),
    )
    # The qualified names let processes send recipes and their configs to each other.
    config.__qualname__ = f"{title}.Config"
    namespace = {"Config": config, "__module__": __name__, "__doc__": f"`{name}` of Table 1 of SCE."}
    recipe = type(title, (ViewRecipe,), namespace)
    RECIPES.register(name)(recipe)
    return recipe


Weak = _column("weak")
Strong = _column("strong")
StrongAlpha = _column("strong_alpha")
StrongBeta = _column("strong_beta")
StrongGamma = _column("strong_gamma")


@RECIPES.register("infomin")
class InfoMin(ViewRecipe):
    """The view of InfoMin (Tian et al., 2020): `strong` of other crops, with RandAugment."""

    class Config(ViewRecipe.Config):
        """Crop and jitter are the best of Figures 5 and 6; RandAugment is as docs/methods/infomin.md says."""

        area: Annotated[Range, AfterValidator(_share)] = (0.2, 1.0)
        operations: Annotated[int, Field(ge=0)] = 2


@RECIPES.register("train_crop")
class TrainCrop:
    """The view of supervised training: shorter side to a random length, padding, random square, maybe colour, flip.

    The defaults are those of the linear evaluation of SCE (the authors' code; the paper has a fixed 256). Its
    finetuning on UCF101 and HMDB51 has color 0.5, that is jitter 0.4, 0.4, 0.4, 0.1.
    """

    class Config(_ColorSettings):
        """Without colour by default."""

        size: Side = 224
        short_side: tuple[Side, Side] = (256, 320)  # pixels, uniform, both ends included
        padding: Annotated[int, Field(ge=0)] = 0  # black pixels on each side before the crop: 4 on CIFAR
        color: Strength = 0.0
        gray_probability: Probability = 0.0

        @model_validator(mode="after")
        def _crop_fits(self) -> "TrainCrop.Config":
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
        """Make one view; every draw holds for all frames of the clip."""
        config = self.config
        resized = crops.short_side(frames, int(generator.integers(*config.short_side, endpoint=True)))
        view = crops.random_crop(resized, config.size, generator, config.padding)
        frames, window = crops.shown_of(view, resized, frames)
        if generator.random() < config.jitter_probability:
            frames = color.color_jitter(frames, config.ranges, generator)
        if generator.random() < config.gray_probability:
            frames = color.grayscale(frames)
        view = View(frames, window)
        return [crops.mirrored(view) if generator.random() < config.flip_probability else view]


class _TestCrop(Settings):
    """What crops of tests have in common. The size is the one at which SCE is tested on video."""

    size: Side = 256
    short_side: Side | None = (
        None  # pixels, before the crop; None: size. 256 with size 224 is the test of ImageNet
    )

    @model_validator(mode="after")
    def _crop_fits(self) -> "_TestCrop":
        check_short_side(self.size, self.short_side)
        return self


def check_short_side(size: int, short_side: int | None) -> None:
    """Raise a ValueError if a crop of `size` is larger than the shorter side that it is cut from."""
    if short_side is not None and short_side < size:
        raise ValueError(f"short_side {short_side} is less than size {size}: raise it, or leave it out")


@RECIPES.register("center_crop")
class CenterCrop:
    """Shorter side to `short_side`, or `size`; central square of `size`. Nothing is random."""

    class Config(_TestCrop):
        """One crop."""

    difference = 0.0

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make one view."""
        return [crops.center_crop(frames, self.config.size, self.config.short_side)]


@RECIPES.register("uniform_crops")
class UniformCrops:
    """Shorter side to `short_side`, or `size`; squares of `size` at even distances along the longer one."""

    class Config(_TestCrop):
        """The number is that of SCE's tests on video."""

        crops: int = Field(default=3, ge=1)

    difference = 0.0

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make `crops` views."""
        config = self.config
        return crops.uniform_crops(frames, config.size, config.crops, config.short_side)
