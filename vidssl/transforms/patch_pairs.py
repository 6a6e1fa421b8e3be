"""Two patches of a frame at a distance (Tian et al., 2020, section B.1)."""

import numpy as np

from vidssl.errors import DataError
from vidssl.transforms.crops import View, Window
from vidssl.transforms.recipes import RECIPES, Count, Recipe, Side, ViewSettings
from vidssl.types import Frames


@RECIPES.register("patches")
class Patches(Recipe):
    """Two squares of `size` pixels, the second one `distance` pixels to the right of and below the first.

    All positions within the frame are equally likely. As the only recipe of a run it makes both views.
    """

    class Config(ViewSettings):
        size: Side = 64
        distance: Count = 64  # pixels, in x and in y; below `size` the patches overlap

    def __call__(self, frames: Frames, generator: np.random.Generator) -> list[View]:
        """Make two views."""
        size, distance = self.config.size, self.config.distance
        height, width = frames.shape[2:]
        extent = size + distance
        if min(height, width) < extent:
            raise DataError(
                f"two patches of {size} at distance {distance} need frames of {extent}x{extent}, got {width}x{height}: "
                "lower data.views.0.distance, or leave such videos out"
            )
        y, x = (int(generator.integers(side - extent, endpoint=True)) for side in (height, width))
        images = frames.transpose(0, 2, 3, 1)
        views = []
        for at in (0, distance):
            patch = images[:, y + at : y + at + size, x + at : x + at + size].copy()  # shared with no view
            views.append(View(patch.transpose(0, 3, 1, 2), Window(x + at, y + at, size, size)))
        return views
