"""Compression in memory: bit rates that hold, quality that falls, frames in their order."""

import numpy as np
import pytest
from scipy import ndimage

from vidssl.apps.analysis.corrupted_clips import Recompressed, rate_options
from vidssl.base.keyed_generators import generator


@pytest.fixture(scope="module")
def images():
    """A textured scene that moves, 97 x 129 pixels (odd), 50 frames at 25 per second."""
    noise = generator(0).uniform(0, 255, (160, 260, 3))
    scene = np.clip(128 + 2 * (ndimage.gaussian_filter(noise, (1.5, 1.5, 0)) - 128), 0, 255).astype(np.uint8)
    return [np.ascontiguousarray(scene[n : n + 97, 2 * n : 2 * n + 129]) for n in range(50)]


def compressed(images, options, wanted=range(50)):
    compress = Recompressed(options, 25.0)
    return np.stack([*compress(images, wanted)]), compress.bits


def error(actual, images):
    return np.abs(actual.astype(float) - np.stack(images)).mean()


def test_quality_falls_with_the_crf(images):
    results = [compressed(images, {"crf": str(crf)}) for crf in (10, 23, 37, 51)]
    errors, bits = [error(outcome, images) for outcome, _ in results], [size for _, size in results]
    assert errors == sorted(errors) and bits == sorted(bits, reverse=True) and errors[0] < 8 < errors[-1]


@pytest.mark.parametrize("rate", [128_000, 64_000, 32_000])
def test_a_bit_rate_is_kept(images, rate):
    actual, bits = compressed(images, rate_options(rate))
    assert actual.shape == (50, 97, 129, 3)
    assert bits / 2 == pytest.approx(rate, rel=0.2)  # two seconds, of which the first starts with a filled buffer


def test_only_the_wanted_frames_in_their_order(images):
    everything, _ = compressed(images, {"crf": str(23)})
    actual, _ = compressed(images, {"crf": str(23)}, wanted={3, 40, 41})
    np.testing.assert_array_equal(actual, everything[[3, 40, 41]])
    for n in (0, 20, 49):  # each is nearest to its own original
        distances = [np.abs(everything[n].astype(float) - image).mean() for image in images]
        assert int(np.argmin(distances)) == n
    single, _ = compressed(images[:1], {"crf": str(23)})
    assert single.shape == (1, 97, 129, 3)
