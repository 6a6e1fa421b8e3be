"""Gamma and shuffles of patches: losses of spatial structure (Zhong et al., 2022, section B.2)."""

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.types import Count, Frames
from vidssl.transforms.crops import View, stacked, unstacked


class Distortion(Settings):
    """What a recipe does to its finished views; by default nothing."""

    gamma: float = Field(default=1.0, gt=0)  # exponent; the study has 0.2 and 2.5
    global_shuffle: Count = 1  # n: the n x n patches of a frame are permuted
    local_shuffle: Count | None = None  # pixels are permuted within each of n x n patches

    def check(self, size: int) -> None:
        """Raise a ValueError if the patches of a shuffle do not divide views of `size` pixels."""
        for name in ("global_shuffle", "local_shuffle"):
            if size % (getattr(self, name) or 1):
                raise ValueError(f"distortion.{name} {getattr(self, name)} does not divide size {size}: change one")

    def apply(self, view: View, generator: np.random.Generator) -> View:
        """Distort a view; after a shuffle it has no window, so that boxes and masks cannot follow."""
        frames, window = view
        if self.gamma != 1:
            frames = gamma(frames, self.gamma)
        if self.global_shuffle != 1:
            frames, window = global_shuffle(frames, self.global_shuffle, generator), None
        if self.local_shuffle is not None:
            frames, window = local_shuffle(frames, self.local_shuffle, generator), None
        return View(frames, window)


def gamma(frames: Frames, exponent: float) -> Frames:
    """Raise all values, as fractions of 255, to the power `exponent` > 0: below 1 is brighter."""
    table = np.rint(255 * (np.arange(256) / 255) ** exponent).astype(np.uint8)
    return unstacked(cv2.LUT(stacked(frames), table), frames)


def global_shuffle(frames: Frames, grid: int, generator: np.random.Generator) -> Frames:
    """Permute the patches of a grid x grid division of square frames; 1 is the identity.

    As in `local_shuffle`, all frames of a clip have the same permutation. A grid that does not divide the side is a
    ConfigError.
    """
    patches = _divided(frames, grid)
    order = generator.permutation(grid * grid)
    return _joined(patches[:, order], frames, grid)


def local_shuffle(frames: Frames, grid: int, generator: np.random.Generator) -> Frames:
    """Permute the pixels within each patch of a grid x grid division of square frames, each patch by its own order.

    With patches of one pixel it is the identity, with a grid of 1 it permutes all pixels.
    """
    patches = _divided(frames, grid)
    rows = np.tile(np.arange(patches.shape[2]), (grid * grid, 1))
    order = generator.permuted(rows, axis=1)  # (patches, pixels)
    return _joined(patches[:, np.arange(grid * grid)[:, None], order], frames, grid)


def _divided(frames: Frames, grid: int) -> NDArray[np.uint8]:
    """Divide frames (T, C, S, S) into patches: (T, grid², pixels of a patch, C), row by row."""
    length, channels, height, side = frames.shape
    if height != side or side % grid:
        raise ConfigError(f"{grid}x{grid} patches need square views that {grid} divides, got {side}x{height}")
    step = side // grid
    parts = frames.transpose(0, 2, 3, 1).reshape(length, grid, step, grid, step, channels)
    return parts.transpose(0, 1, 3, 2, 4, 5).reshape(length, grid * grid, step * step, channels)


def _joined(patches: NDArray[np.uint8], like: Frames, grid: int) -> Frames:
    """Join patches to frames of the shape of `like`: the inverse of `_divided`."""
    length, channels, side, _ = like.shape
    step = side // grid
    parts = patches.reshape(length, grid, grid, step, step, channels).transpose(0, 1, 3, 2, 4, 5)
    return np.ascontiguousarray(parts.reshape(length, side, side, channels)).transpose(0, 3, 1, 2)
