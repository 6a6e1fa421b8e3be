"""Selective search: deterministic boxes around the object, and frames without boxes."""

import ctypes
import logging
import sys

import cv2
import numpy as np
import pytest

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta, VideoRecord
from vidssl.tracking import proposals
from vidssl.tracking.proposals import (
    Search,
    choose,
    proposals_file,
    proposals_key,
    propose,
    read_proposals,
    write_proposals,
)


def draw_image(height=96, width=128, seed=0):
    """Smooth noise with a bright ellipse."""
    small = generator(seed).integers(0, 120, (12, 16, 3), dtype=np.uint8)
    image = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    cv2.ellipse(image, (width // 2, height // 2), (width // 8, height // 4), 0, 0, 360, (240, 230, 60), -1)
    return image


def test_the_object_is_among_the_boxes_in_pixels_of_the_frame():
    for height, width in ((96, 128), (180, 240)):  # searched smaller and larger than they are
        actual = propose(draw_image(height, width), Search(short_side=120))
        truth = np.array(
            [width / 2 - width // 8, height / 2 - height // 4, width / 2 + width // 8, height / 2 + height // 4]
        )
        assert np.abs(actual - truth).max(axis=1).min() <= 3
        assert actual.dtype == np.float32 and actual.min() >= 0 and (actual <= [width, height, width, height]).all()


@pytest.mark.parametrize("mode", ["fast", "quality"])
def test_30_the_order_is_canonical(mode):
    image = draw_image()
    engine = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    engine.setBaseImage(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    getattr(engine, f"switchToSelectiveSearch{mode.title()}")()
    first, second = engine.process(), engine.process()
    assert not np.array_equal(first, second)  # what is to be mended: OpenCV's order is random
    search = Search(short_side=96, mode=mode, limit=20)
    proposals = propose(image, search)
    assert len(proposals) == 20
    np.testing.assert_array_equal(proposals, propose(image, search))
    area = np.prod(proposals[:, 2:] - proposals[:, :2], axis=1)
    assert (np.diff(area) <= 0).all() and len(np.unique(proposals, axis=0)) == 20


@pytest.mark.parametrize("size", [(1, 1), (1, 2), (8, 400), (400, 8), (2, 2000)])
def test_30_tiny_or_elongated_frames_have_regions(size):
    image = generator(1).integers(0, 256, (*size, 3), dtype=np.uint8)
    proposals = propose(image, Search())
    assert len(proposals) >= 1 and (proposals[:, 2:] > proposals[:, :2]).all()
    assert (proposals >= 0).all() and (proposals <= [size[1], size[0], size[1], size[0]]).all()
    np.testing.assert_array_equal(propose(np.zeros_like(image), Search()), [[0, 0, size[1], size[0]]])


def test_30_without_boxes_the_frame_is_the_region():
    none = choose(np.zeros((0, 4)), 30, 40, Search())
    np.testing.assert_array_equal(none, np.array([[0, 0, 40, 30]], np.float32))
    thin = choose(np.array([[0, 0, 40, 2.0], [5, 5, 5, 9]]), 30, 40, Search())
    np.testing.assert_array_equal(thin, none)


def test_small_large_thin_and_duplicate_boxes_are_dropped():
    boxes = np.array(
        [
            [0, 0, 10, 10],
            [0, 0, 10, 10],  # twice
            [0, 0, 100, 60],  # more than half of the frame
            [0, 0, 50, 100],  # just half of it
            [0, 0, 3, 10],  # narrower than 4 % of the short side
            [0, 0, 4, 16],
            [0, 0, 4, 17],  # more than four times as long as wide
        ],
        np.float64,
    )
    kept = choose(boxes, 100, 100, Search())
    np.testing.assert_array_equal(kept, [[0, 0, 50, 100], [0, 0, 10, 10], [0, 0, 4, 16]])
    for seed in range(3):
        np.testing.assert_array_equal(choose(generator(seed).permutation(boxes), 100, 100, Search()), kept)


def test_the_limit_keeps_boxes_of_all_sizes():
    boxes = np.array([[0, 0, side, side] for side in range(10, 70)], np.float64)
    kept = choose(boxes, 100, 100, Search(limit=7))
    areas = np.sqrt(np.prod(kept[:, 2:], axis=1))
    assert len(kept) == 7 and areas[0] == 69 and areas[-1] == 10
    assert (np.abs(np.diff(areas) + 59 / 6) < 1).all()


@pytest.mark.parametrize("mode", ["fast", "quality"])
def test_without_adapt_the_boxes_are_those_of_opencv(mode):
    image = draw_image(192, 256, seed=2)
    small = cv2.cvtColor(cv2.resize(image, (128, 96), interpolation=cv2.INTER_AREA), cv2.COLOR_RGB2BGR)
    engine = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    engine.setBaseImage(small)
    getattr(engine, f"switchToSelectiveSearch{mode.title()}")(base_k=120)
    expected = engine.process().astype(np.float32)
    expected[:, 2:] += expected[:, :2]
    every = {"limit": 100_000, "smallest": 0.0, "largest": 1.0, "ratio": None}
    proposals = propose(image, Search(short_side=96, mode=mode, scale=120, adapt=False, **every))
    assert {tuple(box) for box in proposals.tolist()} == {tuple(box) for box in (2 * expected).tolist()}
    assert len(propose(image, Search(short_side=96, mode=mode, scale=120, **every))) > 1.3 * len(proposals)


def test_adapt_finds_small_objects_of_large_frames():
    """Seven by thirteen of the searched pixels are below the 100 pixels of OpenCV's segments."""
    image = draw_image(480, 640, seed=4)
    image[300:348, 400:426] = (20, 200, 230)
    truth = np.array([400, 300, 426, 348])

    def error(**changed):
        return np.abs(propose(image, Search(**changed)) - truth).max(axis=1).min()

    assert error() <= 8 < error(adapt=False)
    searched = cv2.resize(image, (170, 128), interpolation=cv2.INTER_AREA)  # no smaller than it is searched
    np.testing.assert_array_equal(propose(searched, Search()), propose(searched, Search(adapt=False)))


def test_keep_first_is_the_papers_choice():
    """The paper keeps the top 300 proposals and drops none for its size or shape."""
    image, every = draw_image(seed=5), {"smallest": 0.0, "largest": 1.0, "ratio": None}
    whole = {tuple(box) for box in propose(image, Search(short_side=96, limit=10_000, **every)).tolist()}
    engine = cv2.ximgproc.segmentation.createSelectiveSearchSegmentation()
    engine.setBaseImage(cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    engine.switchToSelectiveSearchFast(base_k=150)
    ctypes.CDLL(None).srand(1)
    ranked = engine.process().astype(float)
    ranked[:, 2:] += ranked[:, :2]
    assert len(ranked) > 60 and {tuple(box) for box in ranked.tolist()} == whole
    proposals = propose(image, Search(short_side=96, limit=40, keep="first", **every))
    assert {tuple(box) for box in proposals.tolist()} == {tuple(box) for box in ranked[:40].tolist()}
    np.testing.assert_array_equal(proposals, propose(image, Search(short_side=96, limit=40, keep="first", **every)))
    area = np.prod(proposals[:, 2:] - proposals[:, :2], axis=1)
    assert (np.diff(area) <= 0).all()


def test_a_missing_ximgproc_names_the_wheel(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2.ximgproc.segmentation", None)
    with pytest.raises(ConfigError, match="opencv-contrib-python-headless") as error:
        propose(draw_image(), Search())
    assert "\n" not in str(error.value)


# Files ------------------------------------------------------------------------------------------------------


def write_some(path, key, seed=0):
    rng = generator(seed)
    actual = [rng.uniform(0, 9, (n, 4)).astype(np.float32) for n in (3, 1, 5)]
    write_proposals(path, key, np.array([4, 6, 9]), actual)
    return actual


def test_proposals_are_read_back_from_beside_the_tracks(tmp_path):
    path = proposals_file(tmp_path, "a/b.mp4", VideoRecord("/videos/a/b.mp4", start=1.5, end=4))
    assert path == tmp_path / "proposals" / "a" / "b.mp4@1.500-4.000.npz"
    key = proposals_key(Search(), "none.mp4", VideoMeta(10, 25.0, 48, 64))
    actual = write_some(path, key)
    read = read_proposals(path, key, np.array([4, 6, 9]))
    assert len(read) == 3
    for one, other in zip(actual, read, strict=True):
        np.testing.assert_array_equal(one, other)


def test_proposals_with_another_key_are_ignored(tmp_path, monkeypatch):
    path, numbers = tmp_path / "a.npz", np.array([4, 6, 9])
    meta = VideoMeta(10, 25.0, 48, 64)
    key = proposals_key(Search(), "none.mp4", meta)
    write_some(path, key)
    assert read_proposals(path, key, np.array([4, 6, 8])) is None
    assert read_proposals(path, proposals_key(Search(limit=10), "none.mp4", meta), numbers) is None
    assert read_proposals(path, proposals_key(Search(), "none.mp4", VideoMeta(10, 25.0, 48, 65)), numbers) is None
    assert read_proposals(tmp_path / "none.npz", key, numbers) is None
    monkeypatch.setattr(proposals, "PROPOSALS_FORMAT", proposals.PROPOSALS_FORMAT + 1)
    assert read_proposals(path, proposals_key(Search(), "none.mp4", meta), numbers) is None
    monkeypatch.undo()
    monkeypatch.setattr(cv2, "__version__", "0.1")
    assert read_proposals(path, proposals_key(Search(), "none.mp4", meta), numbers) is None


def test_damaged_proposals_are_searched_again_with_a_warning(tmp_path, caplog):
    path, key = tmp_path / "a.npz", proposals_key(Search(), "none.mp4", VideoMeta(10, 25.0, 48, 64))
    write_some(path, key)
    path.write_bytes(path.read_bytes()[:-40])
    with caplog.at_level(logging.WARNING):
        assert read_proposals(path, key, np.array([4, 6, 9])) is None
    assert "damaged" in caplog.text and str(path) in caplog.text
