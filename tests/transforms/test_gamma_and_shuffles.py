"""Gamma and shuffles of patches against scikit-image and loops, and as settings of every recipe."""

import numpy as np
import pytest
from skimage import exposure

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.data.clip_samplers import SAMPLERS
from vidssl.data.dataset import ClipDataset
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES, View, Window
from vidssl.transforms.gamma_and_shuffles import Distortion, gamma, global_shuffle, local_shuffle


@pytest.fixture
def frames():
    """Two different frames of 12 pixels, channels last in memory."""
    return generator(0).integers(0, 256, (2, 12, 12, 3)).astype(np.uint8).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("exponent", [0.2, 2.5])
def test_gamma_is_that_of_skimage(frames, exponent):
    expected = exposure.adjust_gamma(frames / 255, exponent)
    np.testing.assert_array_equal(gamma(frames, exponent), np.rint(255 * expected))


def test_a_global_shuffle_permutes_patches_alike_in_all_frames(frames):
    shuffled = global_shuffle(frames, 3, generator(1))
    order = generator(1).permutation(9)
    for image, shown in zip(frames, shuffled, strict=True):
        for to, source in enumerate(order):
            row, column, y, x = 4 * (to // 3), 4 * (to % 3), 4 * (source // 3), 4 * (source % 3)
            np.testing.assert_array_equal(shown[:, row : row + 4, column : column + 4], image[:, y : y + 4, x : x + 4])
    np.testing.assert_array_equal(global_shuffle(frames, 1, generator(1)), frames)


def test_a_local_shuffle_permutes_the_pixels_of_each_patch(frames):
    shuffled = local_shuffle(frames, 3, generator(1))
    assert (shuffled != frames).any()
    orders = set()
    for row in range(0, 12, 4):
        for column in range(0, 12, 4):
            before, after = (
                f[:, :, row : row + 4, column : column + 4].reshape(6, 16).T.tolist() for f in (frames, shuffled)
            )
            order = [before.index(pixel) for pixel in after]  # a pixel is its six values, of both frames: all differ
            assert sorted(order) == list(range(16))
            orders.add(tuple(order))
    assert len(orders) == 9  # each patch has its own
    np.testing.assert_array_equal(local_shuffle(frames, 12, generator(1)), frames)
    mixed = [
        local_shuffle(frames, 1, generator(1)),
        global_shuffle(frames, 12, generator(1)),
    ]  # both permute all pixels
    for image in mixed:
        assert sorted(image.reshape(6, -1).T.tolist()) == sorted(frames.reshape(6, -1).T.tolist())


def test_a_grid_must_divide_the_side(frames):
    with pytest.raises(ConfigError, match="5x5 patches need square views that 5 divides, got 12x12"):
        global_shuffle(frames, 5, generator(0))
    with pytest.raises(ConfigError, match="global_shuffle 5 does not divide size 32"):
        RECIPES["strong"].Config(size=32, distortion={"global_shuffle": 5})


def test_only_shuffles_lose_the_window(frames):
    view = View(frames, Window(0, 0, 12, 12))
    assert Distortion().apply(view, generator(0)).frames is frames
    assert Distortion(gamma=0.2).apply(view, generator(0)).window == view.window
    assert Distortion(local_shuffle=3).apply(view, generator(0)).window is None


SIZES = {"size": 24, "short_side": (24, 28), "distance": 0, "crops": 2}


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_has_them(name, digits):
    """The views are those without the setting, distorted by the numbers that the generator of the view gives next."""
    config = RECIPES[name].Config
    own = {key: value for key, value in SIZES.items() if key in config.model_fields}
    if name in ("center_crop", "uniform_crops"):
        own["short_side"] = 28
    sampler = SAMPLERS["random"](SAMPLERS["random"].Config(frames=2, sampling_rate=2))
    videos = read_list(digits / "motion/train.csv")

    def views(epoch, **distortion):
        recipe = RECIPES[name](config(**own, distortion=distortion))
        return ClipDataset(videos, sampler, [recipe], seed=3)[epoch, 5].views

    plain, shuffled, again = views(0), views(0, global_shuffle=4), views(0, global_shuffle=4)
    for a, b, c in zip(plain, shuffled, again, strict=True):
        assert (a != b).any() and np.array_equal(b, c)
        parts = [frames.reshape(2, 3, 4, 6, 4, 6).transpose(2, 4, 0, 1, 3, 5).reshape(16, -1) for frames in (a, b)]
        assert sorted(parts[0].tolist()) == sorted(parts[1].tolist())  # the same patches
    bright = views(0, gamma=0.5)
    np.testing.assert_array_equal(bright[0], gamma(plain[0], 0.5))
    assert (views(1, local_shuffle=1)[0] != views(0, local_shuffle=1)[0]).any()
