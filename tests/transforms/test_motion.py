"""The RGB difference, against the formula written as a loop over native frames."""

import numpy as np
import pytest

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames
from vidssl.transforms.color import difference_pairs, rgb_difference


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


def test_backwards_is_the_reverse_of_forwards() -> None:
    video, forward = native(10), np.array([1, 4, 7, 9])
    there = rgb_difference(*(video[part] for part in difference_pairs(forward, 1, 9)))
    back = rgb_difference(*(video[part] for part in difference_pairs(forward[::-1], 1, 9)))
    assert np.array_equal(back, there[::-1])
    # Pixels that were taken already may be reversed as a view, too.
    assert np.array_equal(
        rgb_difference(video[1:4][::-1], video[2:5][::-1]), rgb_difference(video[1:4], video[2:5])[::-1]
    )


def test_last_frame_repeats_the_pair_before_it_and_stays_in_the_span() -> None:
    a, b = difference_pairs(np.array([2, 8, 9]), 2, 9)
    assert (a.tolist(), b.tolist()) == ([2, 8, 8], [3, 9, 9])
    with pytest.raises(ValueError, match="frames 2-9 are not in the span 3-9"):
        difference_pairs(np.array([2, 9]), 3, 9)
    with pytest.raises(ValueError, match="span 0-8"):
        difference_pairs(np.array([2, 9]), 0, 8)


def test_one_frame_is_mid_gray() -> None:
    video = native(1)
    a, b = difference_pairs(np.array([0, 0, 0]), 0, 0)
    assert np.all(rgb_difference(video[a], video[b]) == 127)


def test_layout_and_input() -> None:
    a, b = native(4), native(4)[::-1]
    before = a.copy()
    out = rgb_difference(a, b)
    assert out.shape == (4, 3, 6, 5) and out.dtype == np.uint8
    assert out.transpose(0, 2, 3, 1).flags.c_contiguous
    assert np.array_equal(a, before)
    with pytest.raises(ValueError, match="cannot subtract"):
        rgb_difference(a, b[:3])
