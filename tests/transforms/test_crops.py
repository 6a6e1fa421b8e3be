"""Boxes, crops and mirroring."""

import cv2
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames, Tracks
from vidssl.data.clip_samplers import Center, TrackedPair
from vidssl.data.dataset import ClipDataset
from vidssl.data.track_files import tracks_file, write_tracks
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES
from vidssl.transforms.crops import (
    Box,
    View,
    Window,
    center_crop,
    crop_resize,
    flip,
    random_box,
    random_crop,
    random_resized_crop,
    short_side,
    uniform_crops,
)

AREA, RATIO = (0.2, 0.766), (3 / 4, 4 / 3)


def noise(length: int, height: int, width: int) -> Frames:
    pixels = generator(length, height, width).integers(0, 256, (length, height, width, 3), dtype=np.uint8)
    return pixels.transpose(0, 3, 1, 2)


def ramp(length: int, height: int, width: int) -> Frames:
    """Red is the column, green the row, blue the frame."""
    out = np.zeros((length, height, width, 3), np.uint8)
    out[..., 0], out[..., 1] = np.arange(width), np.arange(height)[:, None]
    out[..., 2] = np.arange(length)[:, None, None]
    return out.transpose(0, 3, 1, 2)


def check(frames: Frames, shape: tuple[int, ...]) -> None:
    assert frames.shape == shape and frames.dtype == np.uint8
    assert frames.transpose(0, 2, 3, 1).flags.c_contiguous


def test_boxes_stay_inside_and_keep_area_and_ratio() -> None:
    rng = generator(0)
    boxes = np.array([random_box(256, 340, AREA, RATIO, rng) for _ in range(20000)])
    x, y, w, h = boxes.T
    assert x.min() == 0 and y.min() == 0 and (x + w).max() == 340 and (y + h).max() == 256
    share, ratio = w * h / (256 * 340), w / h
    assert share.min() > 0.195 and share.max() < 0.771
    assert ratio.min() > 0.74 and ratio.max() < 1.35
    assert {type(value) for value in random_box(256, 340, AREA, RATIO, rng)} == {int}


def test_boxes_are_uniform_in_area_log_ratio_and_place() -> None:
    rng = generator(1)
    # Areas at which every box fits, so that no try is rejected and the distributions are known.
    boxes = np.array([random_box(400, 400, (0.1, 0.5), (0.5, 2.0), rng) for _ in range(20000)])
    x, y, w, h = boxes.T
    uniforms = [
        (w * h / 400**2 - 0.1) / 0.4,
        np.log(w / h) / (2 * np.log(2)) + 0.5,
        (x + 0.5) / (401 - w),
        (y + 0.5) / (401 - h),
    ]
    for values in uniforms:
        # Kolmogorov-Smirnov distance; 1.63 / sqrt(n) is its 1 % quantile, whole pixels add a little.
        distance = np.abs(np.sort(values) - (np.arange(len(values)) + 0.5) / len(values)).max()
        assert distance < 1.63 / np.sqrt(len(values)) + 0.003


def test_boxes_follow_the_same_distribution_as_torchvision() -> None:
    from torchvision.transforms import RandomResizedCrop

    torch.manual_seed(0)
    rng, image = generator(2), torch.zeros(3, 120, 200)
    ours = np.array([random_box(120, 200, AREA, RATIO, rng) for _ in range(8000)])
    rows = [RandomResizedCrop.get_params(image, list(AREA), list(RATIO)) for _ in range(8000)]
    theirs = np.array(rows)[:, [1, 0, 3, 2]]  # (top, left, height, width) there
    # Four standard errors of a difference of means.
    error = 4 * np.sqrt((ours.var(0) + theirs.var(0)) / 8000)
    assert np.all(np.abs(ours.mean(0) - theirs.mean(0)) < error)


@pytest.mark.parametrize(
    ("height", "width", "box"), [(100, 1000, Box(433, 0, 133, 100)), (1000, 90, Box(0, 440, 90, 120))]
)
def test_box_falls_back_to_the_largest_in_the_centre(height: int, width: int, box: Box) -> None:
    assert random_box(height, width, (1.0, 1.0), RATIO, generator(0)) == box


def test_box_of_extreme_frames_is_never_empty() -> None:
    rng = generator(3)
    for height, width in [(1, 1), (1, 50), (50, 1), (2, 3), (3, 500)]:
        for _ in range(50):
            box = random_box(height, width, (0.01, 1.0), (3.0, 4.0), rng)
            assert 1 <= box.w <= width - box.x and 1 <= box.h <= height - box.y and box.x >= 0 and box.y >= 0


@pytest.mark.parametrize("box", [Box(0, 0, 340, 256), Box(31, 17, 200, 150), Box(5, 6, 70, 80)])
def test_crop_resize_matches_torchvision(box: Box) -> None:
    frames = noise(2, 256, 340)
    ours = crop_resize(frames, box, 140, 140)
    check(ours, (2, 3, 140, 140))
    theirs = F.resized_crop(
        torch.from_numpy(np.ascontiguousarray(frames)), box.y, box.x, box.h, box.w, [140, 140], antialias=False
    )
    assert np.abs(ours.astype(int) - theirs.numpy()).max() <= 1


def test_random_resized_crop_is_one_box_for_all_frames() -> None:
    frames = np.repeat(noise(1, 90, 120), 4, axis=0)
    before = frames.copy()
    out, window = random_resized_crop(frames, 32, AREA, RATIO, generator(4))
    check(out, (4, 3, 32, 32))
    assert np.all(out == out[:1])
    assert np.array_equal(frames, before)
    box = random_box(90, 120, AREA, RATIO, generator(4))
    assert np.array_equal(out, crop_resize(frames, box, 32, 32)) and window == Window(*box)


@pytest.mark.parametrize(
    ("height", "width", "size", "expected"),
    [(256, 340, 128, (128, 170)), (341, 200, 100, (170, 100)), (50, 50, 64, (64, 64)), (30, 41, 60, (60, 82))],
)
def test_short_side(height: int, width: int, size: int, expected: tuple[int, int]) -> None:
    check(short_side(noise(2, height, width), size), (2, 3, *expected))


def test_crops_never_share_memory_with_their_input() -> None:
    frames = noise(2, 64, 64)
    for out in (
        center_crop(frames, 64).frames,
        *(view.frames for view in uniform_crops(frames, 64)),
        random_crop(frames, 64, generator(0)).frames,
        flip(frames),
    ):
        assert not np.shares_memory(out, frames)


def test_random_crop_is_uniform_and_the_same_for_all_frames() -> None:
    frames, rng = ramp(2, 10, 12), generator(5)
    corners = []
    for _ in range(6000):
        out, window = random_crop(frames, 8, rng)
        assert np.array_equal(out[0, :2], out[1, :2])
        corners.append(tuple(int(value) for value in out[0, :2, 0, 0]))
        assert window == (*corners[-1], 8, 8, False)
    check(out, (2, 3, 8, 8))
    counts = np.array([corners.count((x, y)) for x in range(5) for y in range(3)])
    assert counts.sum() == 6000 and np.all(np.abs(counts - 400) < 4 * np.sqrt(400))
    with pytest.raises(ValueError, match="12x10 are smaller than the crop of 11"):
        random_crop(frames, 11, rng)


@pytest.mark.parametrize(("height", "width"), [(60, 100), (100, 60), (60, 60), (60, 61)])
def test_three_crops_cover_both_ends(height: int, width: int) -> None:
    frames = ramp(2, height, width)
    crops = [view.frames for view in uniform_crops(frames, 60)]
    axis = 0 if width >= height else 1  # the channel that tells the place along the longer side
    starts = [int(clip[0, axis].min()) for clip in crops]
    stops = [int(clip[0, axis].max()) for clip in crops]
    for clip in crops:
        check(clip, (2, 3, 60, 60))
        assert (clip[0, 1 - axis].min(), clip[0, 1 - axis].max()) == (0, 59)
        assert list(clip[:, 2, 0, 0]) == [0, 1]
    longer = max(height, width)
    assert starts[0] == 0 and stops[2] == longer - 1 and starts[1] == -(-(longer - 60) // 2)
    assert set().union(*(range(a, b + 1) for a, b in zip(starts, stops, strict=True))) == set(range(longer))
    assert np.array_equal(center_crop(frames, 60).frames, crops[1])


def test_three_crops_resize_first() -> None:
    frames = noise(1, 120, 200)
    left, _, right = (view.frames for view in uniform_crops(frames, 60))
    small = cv2.resize(np.ascontiguousarray(frames[0].transpose(1, 2, 0)), (100, 60))
    assert np.array_equal(left[0].transpose(1, 2, 0), small[:, :60])
    assert np.array_equal(right[0].transpose(1, 2, 0), small[:, 40:])


@pytest.mark.parametrize(("height", "width"), [(320, 480), (480, 320), (256, 256), (280, 420)])
def test_imagenet_test_crop_equals_torchvisions(height: int, width: int) -> None:
    """Resize(256), CenterCrop(224). Half a pixel: torchvision takes the even side, SlowFast and this the upper one."""
    frames = noise(1, height, width)
    cut = center_crop(frames, 224, 256)
    tensor = F.resize(torch.from_numpy(frames.copy()), [256], antialias=False)
    expected = F.center_crop(tensor, [224, 224]).numpy()
    assert np.abs(cut.frames.astype(int) - expected).max() <= 1
    # and which part of the frame that is
    side = 224 * min(height, width) / 256
    assert cut.window is not None
    assert cut.window[:4] == pytest.approx(((width - side) / 2, (height - side) / 2, side, side), abs=1)


def test_crops_are_centred_along_the_shorter_side() -> None:
    frames = ramp(1, 48, 90)  # nothing is resized: pixels are their places
    for n, view in enumerate(uniform_crops(frames, 40, 3, 48)):
        assert (view.frames[0, 0, 0, 0], view.frames[0, 1, 0, 0]) == ((0, 25, 50)[n], 4)
        assert view.window == Window((0, 25, 50)[n], 4, 40, 40)
    high = [view.window for view in uniform_crops(ramp(1, 90, 48), 40, 2, 48)]
    assert high == [Window(4, 0, 40, 40), Window(4, 50, 40, 40)]
    for size, count in ((48, 1), (48, 3), (30, 3)):  # the default is as before
        pairs = zip(uniform_crops(frames, size, count), uniform_crops(frames, size, count, size), strict=True)
        assert all(np.array_equal(a.frames, b.frames) and a.window == b.window for a, b in pairs)


def test_padded_random_crops_equal_torchvisions() -> None:
    """RandomCrop(32, padding=4): at each of 9 x 9 places, and never elsewhere."""
    frames, seen = noise(2, 32, 32), set()
    padded = F.pad(torch.from_numpy(frames.copy()), [4])
    for key in range(600):
        view = random_crop(frames, 32, generator(1, key), padding=4)
        assert view.window is not None
        left, top = int(view.window.x), int(view.window.y)
        expected = F.crop(padded, top + 4, left + 4, 32, 32).numpy()
        assert np.array_equal(view.frames, expected) and view.window == Window(left, top, 32, 32)
        seen.add((left, top))
    assert seen == {(left, top) for left in range(-4, 5) for top in range(-4, 5)}


def test_mask_pixels_outside_of_the_frame_are_ignored() -> None:
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    cut = Window(-1, 1, 3, 3).cut(mask, 3)
    assert cut.tolist() == [[255, 4, 5], [255, 8, 9], [255, 255, 255]]
    assert Window(-1, 1, 3, 3, flipped=True).cut(mask, 3).tolist() == [row[::-1] for row in cut.tolist()]


# Windows of views against sampling the source by hand; boxes and masks in views -------------------------------

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
        cut = Window(x, y, w, h, flipped).cut(mask, SIZE)
        part = mask[y : y + h, x : x + w]
        expected = cv2.resize(part, (SIZE, SIZE), interpolation=cv2.INTER_NEAREST_EXACT)
        assert cut.dtype == np.uint8 and cut.shape == (SIZE, SIZE)
        assert np.array_equal(cut, expected[:, ::-1] if flipped else expected)
        assert not np.shares_memory(cut, mask)


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
