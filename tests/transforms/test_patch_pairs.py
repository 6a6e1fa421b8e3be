"""Two patches at a distance, against slices of the frames."""

import numpy as np
import pytest

from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.transforms import RECIPES, Window


def frames(height=40, width=50):
    rows, columns = np.mgrid[:height, :width]
    image = np.stack([rows, columns, np.zeros_like(rows)], axis=-1).astype(np.uint8)  # each pixel holds its position
    return np.stack([image, image]).transpose(0, 3, 1, 2)


def patches(size, distance):
    recipe = RECIPES["patches"]
    return recipe(recipe.Config(size=size, distance=distance))


@pytest.mark.parametrize(("size", "distance"), [(8, 0), (8, 5), (16, 24), (10, 30)])
def test_the_second_patch_is_the_distance_from_the_first(size, distance):
    source, places = frames(), set()
    for key in range(60):
        views = patches(size, distance)(source, generator(3, key))
        corners = [view.frames[0, :2, 0, 0].astype(int) for view in views]
        np.testing.assert_array_equal(corners[1] - corners[0], [distance, distance])
        for (y, x), view in zip(corners, views, strict=True):
            np.testing.assert_array_equal(view.frames, source[:, :, y : y + size, x : x + size])
            assert view.window == Window(x, y, size, size) and not np.shares_memory(view.frames, source)
            assert view.frames.transpose(0, 2, 3, 1).flags.c_contiguous
        places.add(tuple(corners[0].tolist()))
    limit = np.array([40, 50]) - size - distance
    low, high = np.min([*places], axis=0), np.max([*places], axis=0)
    assert (low >= 0).all() and (high <= limit).all()
    assert (high - low >= 0.7 * limit).all()  # all over the frame


def test_frames_that_are_too_small_are_refused():
    with pytest.raises(DataError, match=r"two patches of 16 at distance 25 need frames of 41x41, got 50x40"):
        patches(16, 25)(frames(), generator(0))
