"""Corruptions against hand-made images, numpy and scipy."""

import cv2
import numpy as np
import pytest
from scipy import ndimage

from vidssl.base.keyed_generators import generator
from vidssl.transforms.color import adjust_brightness, adjust_contrast, adjust_hue
from vidssl.transforms.invariance_changes import CORRUPTIONS, GRAY, blur, light, occlude, zoom


def versions(kind, frames):
    return [kind.apply(frames, amount) for amount in kind.amounts]


@pytest.fixture
def frames():
    """Two smooth frames of 48 pixels: (2, 3, 48, 48), channels last in memory."""
    noise = generator(0).integers(0, 256, (2, 48, 48, 3)).astype(np.uint8)
    return np.stack([cv2.GaussianBlur(image, (9, 9), 2) for image in noise]).transpose(0, 3, 1, 2)


def test_occlusion_is_a_gray_square(frames):
    occluded = occlude(frames, (0.25, 0.5, 0.25))  # 12 pixels about column 24 and row 12
    expected = frames.copy()
    expected[:, :, 6:18, 18:30] = GRAY
    np.testing.assert_array_equal(occluded, expected)
    at_edge = occlude(frames, (0.5, 1.0, 0.0))  # moved inside
    assert (at_edge[:, :, :24, 24:] == GRAY).all() and (at_edge[:, :, 24:] == frames[:, :, 24:]).all()


def test_zoom_enlarges_a_part(frames):
    zoomed = zoom(frames, (0.75, 1.0, 0.0))
    for image, shown in zip(frames, zoomed, strict=True):
        part = np.ascontiguousarray(image.transpose(1, 2, 0)[:36, 12:])
        expected = cv2.resize(part, (48, 48), interpolation=cv2.INTER_LINEAR)
        np.testing.assert_array_equal(shown, expected.transpose(2, 0, 1))


@pytest.mark.parametrize("degrees", [-30.0, 15.0])
def test_rotation_is_that_of_scipy(frames, degrees):
    rotate = CORRUPTIONS["rotation"].apply
    expected = ndimage.rotate(frames.astype(float), degrees, axes=(3, 2), reshape=False, order=1, mode="mirror")
    assert np.abs(rotate(frames, degrees) - expected).max() < 6  # OpenCV works with 32nds of a pixel
    quarter = rotate(frames, 90.0)
    np.testing.assert_array_equal(quarter, np.rot90(frames, axes=(2, 3)))


def test_blur_is_that_of_scipy(frames):
    expected = ndimage.gaussian_filter(frames.astype(float), (0, 0, 1.5, 1.5), mode="mirror", truncate=4)
    assert np.abs(blur(frames, 1.5 / 48) - expected).max() <= 1


def test_light_is_contrast_then_brightness(frames):
    expected = adjust_brightness(adjust_contrast(frames, 0.5), 1.5)
    np.testing.assert_array_equal(light(frames, (0.5, 1.5)), expected)
    np.testing.assert_array_equal(versions(CORRUPTIONS["colour"], frames)[0], adjust_hue(frames, -0.2))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_corruption_keeps_the_contract(name, frames):
    kind, before = CORRUPTIONS[name], frames.copy()
    changed = versions(kind, frames)
    assert len(changed) == len(kind.amounts) >= 3
    for version in changed:
        assert version.shape == frames.shape and version.dtype == np.uint8
        assert version.strides[1] == 1  # channels last
        assert not np.shares_memory(version, frames)
        assert (version != frames).any()
    np.testing.assert_array_equal(frames, before)
    assert len({version.tobytes() for version in changed}) == len(changed)
    for version, again in zip(changed, versions(kind, frames[:1]), strict=True):
        np.testing.assert_array_equal(version[:1], again)  # the same for every frame, whatever the others are


@pytest.mark.parametrize("name", ["occlusion", "viewpoint", "rotation", "blur"])
def test_an_amount_means_the_same_at_every_size(name, frames):
    images = frames.transpose(0, 2, 3, 1)
    large = np.stack([cv2.resize(image, (96, 96), interpolation=cv2.INTER_CUBIC) for image in images])
    for small, big in zip(
        versions(CORRUPTIONS[name], frames), versions(CORRUPTIONS[name], large.transpose(0, 3, 1, 2)), strict=True
    ):
        shrunk = [cv2.resize(b, (48, 48), interpolation=cv2.INTER_AREA) for b in big.transpose(0, 2, 3, 1)]
        assert np.abs(np.stack(shrunk).transpose(0, 3, 1, 2) - small.astype(float)).mean() < 4
