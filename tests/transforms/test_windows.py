"""Windows of views against sampling the source by hand; boxes and masks in views."""

import cv2
import numpy as np
import pytest

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Tracks
from vidssl.data.clip_samplers import Center, TrackedPair
from vidssl.data.dataset import ClipDataset
from vidssl.data.track_files import tracks_file, write_tracks
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES, Window
from vidssl.transforms.crops import View

SIZE = 24
PLAIN = {
    "jitter_probability": 0.0,
    "gray_probability": 0.0,
    "blur_probability": 0.0,
    "solarize_probability": 0.0,
    "operations": 0,
}


def plain(name):
    """The recipe at its smallest, without colour."""
    config = RECIPES[name].Config
    settings = {key: value for key, value in PLAIN.items() if key in config.model_fields}
    if name == "train_crop":
        settings["short_side"] = (28, 36)
    if name == "patches":
        settings["distance"] = 0  # they are not larger than the smallest frame
    return RECIPES[name](config(size=SIZE, **settings))


def views_of(name, frames):
    """Views of several draws, mirrored ones among them."""
    recipe = plain(name)
    return [view for key in range(8) for view in recipe(frames, generator(12, key))]


def smooth(height, width):
    """Frames (2, 3, H, W) that a resizing hardly blurs."""
    rng = generator(13)
    images = [
        cv2.resize(rng.uniform(0, 255, (4, 5, 3)), (width, height), interpolation=cv2.INTER_CUBIC) for _ in range(2)
    ]
    return np.stack(images).clip(0, 255).astype(np.uint8).transpose(0, 3, 1, 2)


def sampled(frames, window):
    """The pixels of a window at SIZE x SIZE points, bilinear, in float64."""
    centres = (np.arange(SIZE) + 0.5) / SIZE
    places = []
    for low, length, pixels in ((window.y, window.h, frames.shape[2]), (window.x, window.w, frames.shape[3])):
        place = (low + length * centres - 0.5).clip(0, pixels - 1)
        first = np.minimum(place.astype(int), pixels - 2)
        places.append((first, place - first))
    (y, dy), (x, dx) = places
    rows = frames[:, :, y] * (1 - dy)[:, None] + frames[:, :, y + 1] * dy[:, None]
    out = rows[..., x] * (1 - dx) + rows[..., x + 1] * dx
    return out[..., ::-1] if window.flipped else out


@pytest.mark.parametrize("height, width", [(40, 52), (47, 40), (24, 24)])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_view_shows_its_window(name, height, width):
    frames = smooth(height, width)
    views = views_of(name, frames)
    for view in views:
        assert isinstance(view, View)
        window = view.window
        assert window.x >= 0 and window.y >= 0
        assert window.x + window.w <= width + 1e-9 and window.y + window.h <= height + 1e-9
        # A box that is cut out first knows nothing of the pixels around it: its rim is left out.
        difference = np.abs(view.frames - sampled(frames, window))[..., 2:-2, 2:-2]
        assert difference.max() <= 1.5 and difference.mean() < 0.6
    mirrored = {view.window.flipped for view in views}
    assert mirrored == ({False} if name in ("center_crop", "uniform_crops", "patches") else {False, True})


@pytest.mark.parametrize("flipped", [False, True])
def test_masks_follow_into_the_view(flipped):
    """Against OpenCV, on windows of whole pixels; numbers never mix."""
    rng = generator(15)
    mask = rng.choice(np.array([0, 1, 7, 255], np.uint8), (37, 45))
    for x, y, w, h in [(0, 0, 45, 37), (3, 5, 24, 24), (10, 2, 30, 11), (44, 36, 1, 1), (7, 0, 12, 37)]:
        found = Window(x, y, w, h, flipped).cut(mask, SIZE)
        part = mask[y : y + h, x : x + w]
        expected = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_NEAREST_EXACT)
        assert found.dtype == np.uint8 and found.shape == (SIZE, SIZE)
        assert np.array_equal(found, expected[:, ::-1] if flipped else expected)
        assert not np.shares_memory(found, mask)


def test_a_rotated_or_sheared_view_has_no_window():
    """Whatever is drawn: one that is only moved, or stays, has none either."""
    frames = smooth(40, 52)
    for operations, geometry, there in [(0, True, True), (1, True, False), (2, False, True), (2, True, False)]:
        config = RECIPES["infomin"].Config(size=SIZE, operations=operations, geometry=geometry)
        for key in range(8):
            (view,) = RECIPES["infomin"](config)(frames, generator(16, key))
            assert (view.window is not None) == there


def masked_set(digits, config):
    """Pictures with masks; the flip takes its number last, so it is left out."""
    config = config.model_copy(update={"flip_probability": 0.0, "magnitude": 30})
    sampler = Center(Center.Config(frames=1, sampling_rate=1))
    return ClipDataset(read_list(digits / "parts/train.csv"), sampler, [RECIPES["infomin"](config)])


def test_masks_cannot_follow_rotations(digits, monkeypatch):
    blank = staticmethod(lambda path, height, width: np.zeros((height, width), np.uint8))
    monkeypatch.setattr(ClipDataset, "read_mask", blank)
    with pytest.raises(ConfigError, match=r"^masks cannot follow into view 0, .* InfoMin .* set geometry: false"):
        masked_set(digits, RECIPES["infomin"].Config(size=SIZE))[0, 0]


def test_tracks_cannot_follow_rotations(digits, tmp_path):
    videos = read_list(digits / "motion/train.csv")
    corners = np.repeat(np.array([[10, 10, 30, 30]], np.float32), 24, axis=0)
    tracks = Tracks(np.arange(24), corners, np.ones(24, np.float32), np.zeros(24, np.int64))
    write_tracks(tracks_file(tmp_path, videos.names[3], videos.records[3]), tracks, {"by": "hand"})
    sampler = TrackedPair(TrackedPair.Config(frames=1, sampling_rate=1, min_gap=5))
    for geometry in (False, True):
        names = {"weak": {}, "infomin": {"geometry": geometry}}
        recipes = [RECIPES[name](RECIPES[name].Config(size=SIZE, **more)) for name, more in names.items()]
        dataset = ClipDataset(videos, sampler, recipes, replace=2, tracks=tmp_path)
        if not geometry:
            assert dataset[0, 3].boxes.shape == (2, 4)
            continue
        with pytest.raises(ConfigError, match=r"^tracks cannot follow into view 1, .* InfoMin .* geometry: false"):
            dataset[0, 3]


def test_boxes_by_hand():
    window = Window(10, 20, 40, 80)  # 24 pixels: 0.6 and 0.3 for each
    boxes = np.array([[20, 30, 30, 50], [0, 0, 20, 40], [10, 20, 50, 100], [60, 0, 70, 10]], np.float32)
    expected = [[6, 3, 12, 9], [0, 0, 6, 6], [0, 0, 24, 24]]
    np.testing.assert_allclose(window.boxes(boxes, 24)[:3], expected, rtol=1e-6)
    mirrored = [[12, 3, 18, 9], [18, 0, 24, 6], [0, 0, 24, 24]]
    np.testing.assert_allclose(window._replace(flipped=True).boxes(boxes, 24)[:3], mirrored, rtol=1e-6)
    outside = window.boxes(boxes, 24)[3]
    assert outside[0] == outside[2] and outside[1] == outside[3]
    np.testing.assert_allclose(window.visible(boxes), [1, 0.25, 1, 0])
    assert window.boxes(np.empty((0, 4), np.float32), 24).shape == (0, 4)
