"""Colour operations: parity with torchvision on the same bytes."""

from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames
from vidssl.transforms.color import (
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
    adjust_sharpness,
    auto_contrast,
    difference_pairs,
    equalize,
    gaussian_blur,
    grayscale,
    posterize,
    rgb_difference,
    solarize,
)
from vidssl.transforms.recipes import apply, draw_jitter


def noise(height: int = 48, width: int = 64) -> Frames:
    return generator(0).integers(0, 256, (3, height, width, 3), dtype=np.uint8).transpose(0, 3, 1, 2)


def smooth() -> Frames:
    """Frames like nature's: wide blobs of strong colour, lighter from frame to frame, some grain."""
    rng = generator(1)
    images = []
    for frame in range(3):
        blobs = cv2.resize(rng.uniform(-60, 320, (5, 6, 3)), (64, 48), interpolation=cv2.INTER_CUBIC)
        images.append(blobs * (0.4 + 0.3 * frame) + rng.normal(0, 3, blobs.shape))
    return np.stack(images).clip(0, 255).astype(np.uint8).transpose(0, 3, 1, 2)


def extremes() -> Frames:
    """Black, white and all full colours."""
    cube = np.array([[r, g, b] for r in (0, 128, 255) for g in (0, 127, 255) for b in (0, 1, 255)], np.uint8)
    return np.broadcast_to(cube[None, :, None], (2, 27, 9, 3)).transpose(0, 3, 1, 2)


def together(operation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """What torchvision makes of one tall image of all frames."""
    length, height = len(x), x.shape[2]
    return operation(x.transpose(0, 1).flatten(1, 2)).unflatten(1, (length, height)).transpose(0, 1)


def blur_of_torchvision(x: Tensor, sigma: float, kernel: int = 23) -> Tensor:
    return F.gaussian_blur(x, [kernel, kernel], [sigma, sigma])


FACTORS = (0.0, 0.2, 0.73, 1.0, 1.4, 1.8)
# Ours, torchvision's, and the amounts of each operation; () is one without an amount.
CASES: dict[str, tuple[Callable[..., Frames], Callable[..., Tensor], Sequence[Any]]] = {
    "gray": (grayscale, lambda x: F.rgb_to_grayscale(x, 3), [()]),
    "solarize": (solarize, F.solarize, [(128,), (40,)]),
    "brightness": (adjust_brightness, F.adjust_brightness, [(factor,) for factor in FACTORS]),
    "contrast": (adjust_contrast, F.adjust_contrast, [(factor,) for factor in FACTORS]),
    "saturation": (adjust_saturation, F.adjust_saturation, [(factor,) for factor in FACTORS]),
    "sharpness": (adjust_sharpness, F.adjust_sharpness, [(factor,) for factor in (0.0, 0.1, 0.7, 1.0, 1.3, 1.9)]),
    "hue": (adjust_hue, F.adjust_hue, [(shift,) for shift in (-0.5, -0.2, -0.05, 0.0, 0.1, 0.37, 0.5)]),
    "blur": (lambda x, s: gaussian_blur(x, 23, s), blur_of_torchvision, [(s,) for s in (0.1, 0.5, 1.0, 1.5, 2.0)]),
    "small blur": (lambda x: gaussian_blur(x, 5, 2.0), lambda x: blur_of_torchvision(x, 2.0, 5), [()]),
    "posterize": (posterize, F.posterize, [(bits,) for bits in (0, 1, 4, 7, 8)]),
    "equalize": (equalize, lambda x: together(F.equalize, x), [()]),
    "auto_contrast": (auto_contrast, lambda x: together(F.autocontrast, x), [()]),
}


# Largest and mean difference, of 255. Where a whole frame becomes one value (contrast 0), rounding (OpenCV)
# against cutting off (torchvision) may differ everywhere.
LIMITS = {
    "gray": (1, 0.6),
    "solarize": (0, 0.0),
    "brightness": (1, 0.6),
    "contrast": (2, 1.1),
    "saturation": (2, 0.85),
    "hue": (2, 0.2),
    "blur": (1, 0.01),
    "small blur": (1, 0.01),
    "sharpness": (1, 0.6),
    "posterize": (0, 0.0),
    "equalize": (0, 0.0),
    "auto_contrast": (1, 0.6),
}


def flat() -> Frames:
    """Little contrast: red in few values, green in one, blue in two."""
    red, _, blue = noise().transpose(1, 0, 2, 3)
    channels = [red // 9 + 100, np.full_like(red, 77), np.where(blue > 250, 201, 200).astype(np.uint8)]
    return np.stack(channels, axis=-1).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("make", [noise, smooth, extremes, flat])
@pytest.mark.parametrize("name", CASES)
def test_parity_with_torchvision(name: str, make: Callable[[], Frames]) -> None:
    frames, (ours, theirs, cases) = make(), CASES[name]
    if "blur" in name and make is extremes:
        frames = np.repeat(frames, 3, axis=3)  # torchvision refuses a kernel wider than twice the frame
    before, tensor = frames.copy(), torch.from_numpy(np.ascontiguousarray(frames))
    for amounts in cases:
        out = ours(frames, *amounts)
        assert np.array_equal(frames, before) and not np.shares_memory(out, frames)
        assert out.shape == frames.shape and out.dtype == np.uint8
        assert out.transpose(0, 2, 3, 1).flags.c_contiguous
        error = np.abs(out.astype(int) - theirs(tensor, *amounts).numpy().astype(int))
        largest, mean = LIMITS[name]
        assert error.max() <= largest and error.mean() <= mean, amounts


def test_hue_of_colours_from_the_whole_cube() -> None:
    values = np.arange(0, 256, 15, dtype=np.uint8)
    cube = np.stack(np.meshgrid(values, values, values, indexing="ij"), axis=1)  # (18, 3, 18, 18)
    theirs = torch.from_numpy(cube)
    for shift in np.linspace(-0.5, 0.5, 31):
        out = adjust_hue(cube, shift)
        # The largest and the smallest value of a pixel stay; rounding lifts some of the smallest by one.
        assert np.array_equal(out.max(1), cube.max(1)) and (out.min(1) - cube.min(1)).max() <= 1
        error = np.abs(out.astype(int) - F.adjust_hue(theirs, shift).numpy())
        assert error.max() <= 2 and error.mean() <= 0.2
    assert np.array_equal(adjust_hue(cube, 0.0), cube)
    assert np.array_equal(adjust_hue(cube, 1 / 3), np.roll(cube, 1, axis=1))
    assert np.array_equal(adjust_hue(cube, -1 / 3), np.roll(cube, -1, axis=1))


@pytest.mark.parametrize("factor", [0.0, 0.31, 0.999, 1.0, 1.62])
def test_colours_are_rounded_not_truncated(factor: float) -> None:
    frames = noise()
    exact = frames.astype(float)
    gray = np.tensordot(exact, [0.299, 0.587, 0.114], (1, 0))[:, None]
    mean = gray.mean((2, 3), keepdims=True)
    for out, expected in [
        (adjust_brightness(frames, factor), factor * exact),
        (adjust_contrast(frames, factor), factor * exact + (1 - factor) * mean),
        (adjust_saturation(frames, factor), factor * exact + (1 - factor) * gray),
        (grayscale(frames), np.broadcast_to(gray, exact.shape)),
    ]:
        # Half for the rounding, the rest for weights in steps of 1 / 1024.
        error = out - expected.clip(0, 255)
        assert np.abs(error).max() < 0.9 and abs(error.mean()) < 0.5


def test_memory_layout_does_not_matter() -> None:
    frames = noise()
    cut_out = np.pad(frames, 5, mode="edge")[5:-5, 5:-5, 5:-5, 5:-5]
    for laid_out in (np.ascontiguousarray(frames), frames[::-1][::-1], cut_out):
        for name, (operation, _, cases) in CASES.items():
            assert np.array_equal(operation(laid_out, *cases[-1]), operation(frames, *cases[-1])), name


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 9), (2, 2), (5, 40), (11, 12), (32, 32)])
def test_blur_works_on_frames_smaller_than_the_kernel(height: int, width: int) -> None:
    flat = np.full((2, 3, height, width), 130, np.uint8)
    assert np.array_equal(gaussian_blur(flat, 23, 2.0), flat)
    # By hand: each axis mirrored as often as needed, then the whole kernel.
    frames = noise(height, width)
    weights = np.exp(-0.5 * (np.arange(-11, 12) / 2.0) ** 2)
    padded = np.pad(frames.astype(float), ((0, 0), (0, 0), (11, 11), (11, 11)), mode="reflect")
    rows = np.lib.stride_tricks.sliding_window_view(padded, 23, axis=2) @ (weights / weights.sum())
    both = np.lib.stride_tricks.sliding_window_view(rows, 23, axis=3) @ (weights / weights.sum())
    assert np.abs(gaussian_blur(frames, 23, 2.0) - both).max() <= 1


def test_jitter_draws_one_order_and_one_set_of_amounts() -> None:
    rng, orders = generator(2), []
    amounts: dict[str, list[float]] = {"brightness": [], "contrast": [], "saturation": [], "hue": []}
    for _ in range(4800):
        drawn = draw_jitter((0.8, 0.4, 1.5, 0.2), rng)
        orders.append(tuple(operation.name for operation in drawn))
        for operation in drawn:
            amounts[operation.name].append(operation.amount)
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and np.all(np.abs(counts - 200) < 4.5 * np.sqrt(200))
    bounds = {"brightness": (0.2, 1.8), "contrast": (0.6, 1.4), "saturation": (0.0, 2.5), "hue": (-0.2, 0.2)}
    for name, (low, high) in bounds.items():
        values = np.array(amounts[name])
        assert low <= values.min() < low + 0.01 * (high - low) and high - 0.01 * (high - low) < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 4 * (high - low) / np.sqrt(12 * len(values))


def test_jitter_treats_all_frames_alike_and_skips_operations_without_a_range() -> None:
    frames = np.repeat(smooth()[1:2], 4, axis=0)
    for seed in range(5):
        out = apply(frames, draw_jitter((0.8, 0.8, 0.8, 0.2), generator(seed)))
        assert np.all(out == out[:1]) and not np.array_equal(out, frames)
    assert draw_jitter((0.0, 0.0, 0.0, 0.0), generator(0)) == []
    assert {operation.name for operation in draw_jitter((0.0, 0.4, 0.0, 0.2), generator(0))} == {"contrast", "hue"}


# The RGB difference, against the formula written as a loop over native frames ---------------------------------


def native(length: int, height: int = 6, width: int = 5) -> Frames:
    pixels = generator(length).integers(0, 256, (length, height, width, 3), dtype=np.uint8)
    return pixels.transpose(0, 3, 1, 2)


def loop(video: Frames, indices: np.ndarray, first: int, last: int) -> np.ndarray:
    """The difference of all native frames of the span, then the frames that are kept."""
    gray = {t: np.floor(np.tensordot([0.299, 0.587, 0.114], video[t], 1) + 0.5) for t in range(first, last + 1)}
    difference = {}
    for t in range(first, last):
        difference[t] = np.floor((gray[t] - gray[t + 1] + 255) / 2)
    difference[last] = difference[last - 1] if last > first else np.full_like(gray[first], 127)
    return np.stack([np.stack([difference[int(t)]] * 3) for t in indices])


@pytest.mark.parametrize(
    ("indices", "first", "last"),
    [
        ([3, 5, 7, 9], 3, 9),
        ([9, 7, 5, 3], 3, 9),  # played backwards
        ([0, 1, 2, 3], 0, 3),
        ([4, 4, 5, 5], 4, 5),
        ([6, 6, 6], 6, 6),  # one frame
        ([11], 2, 11),
        ([0, 1, 2, 0, 1], 0, 2),  # played in a loop
    ],
)
def test_difference_is_the_formula_on_native_frames(indices: list[int], first: int, last: int) -> None:
    video, kept = native(12), np.array(indices)
    a, b = difference_pairs(kept, first, last)
    assert a.dtype == b.dtype == np.int64 and a.shape == b.shape == kept.shape
    # The weights are fixed-point numbers in OpenCV: a gray value that lies on a half may fall to either side.
    error = np.abs(rgb_difference(video[a], video[b]).astype(int) - loop(video, kept, first, last))
    assert error.max() <= 1 and error.mean() < 0.01


def test_difference_of_gray_frames_is_exact() -> None:
    values = np.arange(256, dtype=np.uint8)
    a = np.broadcast_to(values[:, None, None, None], (256, 3, 1, 256))
    b = np.broadcast_to(values, (256, 3, 1, 256))
    expected = (values[:, None].astype(int) - values + 255) // 2
    out = rgb_difference(a, b)
    assert np.array_equal(out[:, 0, 0], expected) and np.array_equal(out[:, 2], out[:, 0])
    assert (expected.min(), expected[7, 7], expected.max()) == (0, 127, 255)


def test_last_frame_repeats_the_pair_before_it_and_stays_in_the_span() -> None:
    a, b = difference_pairs(np.array([2, 8, 9]), 2, 9)
    assert (a.tolist(), b.tolist()) == ([2, 8, 8], [3, 9, 9])
    with pytest.raises(ValueError, match="frames 2-9 are not in the span 3-9"):
        difference_pairs(np.array([2, 9]), 3, 9)
    with pytest.raises(ValueError, match="span 0-8"):
        difference_pairs(np.array([2, 9]), 0, 8)


def test_layout_and_input() -> None:
    a, b = native(4), native(4)[::-1]
    before = a.copy()
    out = rgb_difference(a, b)
    assert out.shape == (4, 3, 6, 5) and out.dtype == np.uint8
    assert out.transpose(0, 2, 3, 1).flags.c_contiguous
    assert np.array_equal(a, before) and np.array_equal(out, rgb_difference(a, b.copy()))  # pixels reversed as a view
    with pytest.raises(ValueError, match="cannot subtract"):
        rgb_difference(a, b[:3])
