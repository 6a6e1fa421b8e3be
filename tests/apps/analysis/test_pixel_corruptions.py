"""Corruptions of pixels against scikit-image, SciPy, Pillow and formulas."""

import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import color, util

from vidssl.apps.analysis import corrupted_clips as corruptions
from vidssl.apps.analysis.corrupted_clips import PIXEL_CORRUPTIONS, fog_layer, line_kernel
from vidssl.base.keyed_generators import generator

SIDE = 56  # a quarter of the side that lengths refer to


@pytest.fixture(scope="module")
def frames():
    """Three smooth coloured frames: (3, 3, 56, 56), channels last in memory."""
    noise = generator(0).uniform(-250, 500, (3, SIDE, SIDE, 3))
    smooth = ndimage.gaussian_filter(noise, (0, 2, 2, 0), mode="mirror")
    return np.rint(np.clip(128 + 3 * (smooth - 125), 0, 255)).astype(np.uint8).transpose(0, 3, 1, 2)


def images(frames):
    return frames.transpose(0, 2, 3, 1)


def applied(kind, frames, amount):
    return kind.apply(frames, amount, *([generator(1)] if kind.draws else []))


@pytest.mark.parametrize("name", PIXEL_CORRUPTIONS)
def test_every_corruption_keeps_the_contract(name, frames):
    kind, before, drawn = PIXEL_CORRUPTIONS[name], frames.copy(), []
    for amount in kind.amounts:
        changed = applied(kind, frames, amount)
        assert changed.shape == frames.shape and changed.dtype == np.uint8
        assert np.array_equal(changed, applied(kind, frames, amount))
        assert images(changed).flags.c_contiguous and not np.shares_memory(changed, frames)
        drawn.append(np.abs(changed.astype(float) - frames).mean())
    np.testing.assert_array_equal(frames, before)
    assert all(drawn[1:])  # a blur of a quarter of a pixel changes no value
    # The first severities of saturate lower it, the others raise it; moved patches are as far as other patches.
    assert name in ("saturate", "global_shuffle") or drawn[0] < drawn[-1]


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "motion_blur", "fog", "rain"])
def test_random_ones_differ_between_generators(name, frames):
    kind = PIXEL_CORRUPTIONS[name]
    assert (
        kind.apply(frames, kind.amounts[2], generator(1)) != kind.apply(frames, kind.amounts[2], generator(2))
    ).any()


@pytest.fixture(scope="module")
def large():
    """One gray level in a large frame, for statistics."""
    return np.full((2, 3, 200, 200), 100, np.uint8)


def test_gaussian_noise_is_that_of_skimage(large):
    actual = corruptions.gaussian_noise(large, 0.08, generator(0)) / 255
    expected = util.random_noise(large / 255, "gaussian", var=0.08**2, rng=0)
    assert actual.mean() == pytest.approx(expected.mean(), abs=1e-3) and actual.std() == pytest.approx(
        expected.std(), rel=0.01
    )
    assert (actual[0] != actual[1]).any()  # other noise in each frame


def test_shot_noise_is_poisson(large):
    actual = corruptions.shot_noise(large, 12, generator(0)) / 255
    assert actual.mean() == pytest.approx(100 / 255, abs=2e-3)
    assert actual.var() == pytest.approx(100 / 255 / 12, rel=0.02)  # the variance of photons is their mean
    assert len(np.unique(actual)) <= 13  # whole photons, clipped at white


def test_impulse_noise_is_that_of_skimage(large):
    actual = corruptions.impulse_noise(large, 0.17, generator(0))
    expected = np.rint(255 * util.random_noise(large / 255, "s&p", amount=0.17, rng=0))
    for value in (0, 100, 255):
        assert (actual == value).mean() == pytest.approx((expected == value).mean(), abs=0.004)


def test_gaussian_blur_is_that_of_scipy(frames):
    expected = ndimage.gaussian_filter(frames.astype(float), (0, 0, 1.5, 1.5), mode="mirror", truncate=4)
    assert np.abs(corruptions.blur_corruption(frames, 6) - expected).max() <= 1  # 6 of 224 are 1.5 of 56


def test_defocus_blur_is_a_disk(frames):
    point = np.zeros((1, 3, 57, 57), np.uint8)
    point[:, :, 28, 28] = 255
    spread = corruptions.defocus_blur(point, 8 * 224 / 57)[0, 0].astype(float)
    rows, columns = np.mgrid[-28:29, -28:29]
    inside = np.hypot(rows, columns) <= 7.4
    assert spread[inside].min() >= 1 and spread[np.hypot(rows, columns) > 8.6].max() == 0
    assert spread[inside].max() - spread[inside].min() <= 1  # even
    disk = np.clip(2.5 + 0.5 - np.hypot(*np.mgrid[-3:4, -3:4]), 0, 1)
    expected = ndimage.convolve(frames.astype(float), (disk / disk.sum())[None, None], mode="mirror")
    assert np.abs(corruptions.defocus_blur(frames, 10) - expected).max() <= 1


def test_motion_blur_is_the_mean_of_shifted_frames(frames):
    degrees = generator(5).uniform(-45, 45)
    at = np.linspace(-3.75, 3.75, 41)  # 30 of 224 pixels are 7.5 of 56
    shifts = [(0, 0, t * np.sin(np.radians(degrees)), t * np.cos(np.radians(degrees))) for t in at]
    expected = np.mean([ndimage.shift(frames.astype(float), by, order=1, mode="mirror") for by in shifts], axis=0)
    assert np.abs(corruptions.motion_blur(frames, 30, generator(5)) - expected).max() <= 1.5
    kernel = line_kernel(7.0, 0.0)
    assert np.count_nonzero(kernel.sum(axis=1) > 1e-9) == 1  # horizontal


def test_fog_is_the_formula_of_imagenet_c(frames):
    layer = fog_layer(SIDE, SIDE, 1.5, generator(2))
    assert layer.min() == 0 and layer.max() == 1
    x = images(frames) / 255
    expected = np.clip((x + 2.5 * layer[..., None]) * x.max() / (x.max() + 2.5), 0, 1)
    assert np.abs(images(corruptions.fog(frames, (2.5, 1.5), generator(2))) - 255 * expected).max() <= 1
    details = [np.abs(np.diff(fog_layer(SIDE, SIDE, decay, generator(2)))).mean() for decay in (1.4, 2.0, 3.0)]
    assert details[0] > details[1] > details[2]


def test_the_layer_of_fog_is_a_sum_of_noise_on_finer_and_finer_grids():
    rng, expected = generator(2), np.zeros((40, 56))
    for octave in (1, 2, 3, 4, 5):  # 2 to 32 cells, fewer than the 56 pixels
        cells = 2**octave + 1
        rows, columns = ((np.arange(side) + 0.5) * cells / side - 0.5 for side in expected.shape)  # centres of pixels
        noise = rng.random((cells, cells), np.float32)
        places = np.meshgrid(rows, columns, indexing="ij")
        expected += 1.5**-octave * ndimage.map_coordinates(noise, places, order=1, mode="nearest")
    expected = (expected - expected.min()) / np.ptp(expected)
    np.testing.assert_allclose(fog_layer(40, 56, 1.5, generator(2)), expected, atol=1e-5)


def test_streaks_of_rain_are_where_their_lines_are():
    number, length, side = 12, 60, 224
    actual = images(corruptions.rain(np.zeros((1, 3, side, side), np.uint8), (number, length, 1.0), generator(4)))[
        0, ..., 0
    ]
    rng = generator(4)
    slant = rng.uniform(-10, 10)
    x, y = rng.uniform(0, side, number), rng.uniform(-length, side, number)
    starts, ends = np.rint(np.stack([x, y])), np.rint(np.stack([x + slant, y + length]))
    pixels = np.stack(np.meshgrid(np.arange(side), np.arange(side)), axis=-1)[..., None]  # (H, W, xy, 1)
    along = ((pixels - starts) * (ends - starts)).sum(axis=2) / ((ends - starts) ** 2).sum(axis=0)
    nearest = starts + np.clip(along, 0, 1)[:, :, None] * (ends - starts)
    distance = np.hypot(*np.moveaxis(pixels - nearest, 2, 0)).min(axis=2)
    assert (actual[distance < 0.3] > 110).all() and (actual[distance > 2] == 0).all()


def test_rain_is_bright_streaks_on_lower_contrast():
    black = np.zeros((2, 3, 112, 112), np.uint8)
    actual = images(corruptions.rain(black, (40, 60, 1.0), generator(3)))
    assert 215 <= actual.max() <= 220 and (actual[0] != actual[1]).any() and (actual[..., 0] == actual[..., 2]).all()
    streaks, _ = ndimage.label(actual[0, ..., 0] > 0, np.ones((3, 3)))
    heights = [np.ptp(np.nonzero(streaks == n)[0]) + 1 for n in range(1, streaks.max() + 1)]
    assert streaks.max() <= 40 and np.median(heights) > 20  # 60 of 224 pixels are 30 of 112
    weaker = images(corruptions.rain(black, (40, 60, 0.5), generator(3))).astype(float)
    mean = actual.mean(axis=(1, 2), keepdims=True)
    assert np.abs(weaker - (mean + 0.5 * (actual - mean))).max() <= 1


def test_contrast_is_the_formula(frames):
    x = images(frames).astype(float)
    mean = x.mean(axis=(1, 2), keepdims=True)
    assert np.abs(images(corruptions.contrast(frames, 0.3)) - (mean + 0.3 * (x - mean))).max() <= 0.51


@pytest.mark.parametrize(
    ("change", "amount", "channel", "factor", "offset"),
    [(corruptions.brightness, 0.3, 2, 1.0, 0.3), *((corruptions.saturate, a, 1, *a) for a in ((0.3, 0.0), (5.0, 0.1)))],
)
def test_hsv_is_that_of_skimage(frames, change, amount, channel, factor, offset):
    hsv = color.rgb2hsv(images(frames))
    hsv[..., channel] = np.clip(factor * hsv[..., channel] + offset, 0, 1)
    assert np.abs(images(change(frames, amount)) - 255 * color.hsv2rgb(hsv)).max() <= 1


def test_jpeg_is_that_of_pillow(frames):
    for quality in (25, 7):
        for image, compressed in zip(images(frames), images(corruptions.jpeg(frames, quality)), strict=True):
            packed = io.BytesIO()
            Image.fromarray(np.ascontiguousarray(image)).save(packed, "JPEG", quality=quality)
            expected = np.asarray(Image.open(packed), float)
            assert np.abs(compressed - expected).mean() < 1 < np.abs(image - expected).mean()


def test_shuffles_take_the_largest_grid_that_divides():
    assert [corruptions.largest_grid(*pair) for pair in ((28, 16), (112, 32), (32, 32), (31, 8))] == [14, 28, 32, 1]
    frames = np.arange(28 * 28, dtype=np.uint16).reshape(1, 1, 28, 28) // 4
    small = np.repeat(frames.astype(np.uint8), 3, axis=1)
    for change in (corruptions.global_shuffle_corruption, corruptions.local_shuffle_corruption):
        actual = change(small, 8, generator(0))  # 7 x 7 patches of 4 pixels
        assert (actual != small).any() and sorted(actual.ravel()) == sorted(small.ravel())
