"""Boxes, crops and mirroring."""

import cv2
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames
from vidssl.transforms.crops import (
    Box,
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
    ("height", "width", "box"),
    [
        (100, 1000, Box(433, 0, 133, 100)),
        (1000, 90, Box(0, 440, 90, 120)),
        (1, 1, Box(0, 0, 1, 1)),
        (50, 50, Box(0, 0, 50, 50)),
    ],
)
def test_box_falls_back_to_the_largest_in_the_centre(height: int, width: int, box: Box) -> None:
    assert random_box(height, width, (1.0, 1.0), RATIO, generator(0)) == box or height == width


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
    found = center_crop(frames, 224, 256)
    tensor = F.resize(torch.from_numpy(frames.copy()), [256], antialias=False)
    expected = F.center_crop(tensor, [224, 224]).numpy()
    assert np.abs(found.frames.astype(int) - expected).max() <= 1
    # and which part of the frame that is
    side = 224 * min(height, width) / 256
    assert found.window is not None
    assert found.window[:4] == pytest.approx(((width - side) / 2, (height - side) / 2, side, side), abs=1)


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
    found = Window(-1, 1, 3, 3).cut(mask, 3)
    assert found.tolist() == [[255, 4, 5], [255, 8, 9], [255, 255, 255]]
    assert Window(-1, 1, 3, 3, flipped=True).cut(mask, 3).tolist() == [row[::-1] for row in found.tolist()]


def test_flip() -> None:
    frames = noise(3, 5, 7)
    out = flip(frames)
    check(out, (3, 3, 5, 7))
    assert np.array_equal(out, frames[..., ::-1])
    assert np.array_equal(flip(flip(frames)), frames)
