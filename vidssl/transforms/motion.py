"""RGB difference of consecutive native frames, which shows motion only (SCE, Denize et al., 2023)."""

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.transforms.crops import stacked, unstacked
from vidssl.types import Frames


def difference_pairs(indices: NDArray[np.int64], first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two native frames of the difference for each frame of a clip (T,): those to subtract from, and others.

    Frame t is paired with t + 1, and the last frame of the span `first` to `last` has the pair before it. In a span of
    one frame the pair is (t, t), whose difference is mid-gray. A reversed clip has the forward differences in reverse.
    """
    if indices.size and not first <= indices.min() <= indices.max() <= last:
        raise ValueError(f"frames {indices.min()}-{indices.max()} are not in the span {first}-{last}")
    before = np.maximum(np.minimum(indices, last - 1), first)
    return before, np.minimum(before + 1, last)


def rgb_difference(frames_a: Frames, frames_b: Frames) -> Frames:
    """Subtract the gray values of clips (T, 3, H, W): `(a - b + 255) / 2`, rounded down, in all three channels."""
    if frames_a.shape != frames_b.shape:
        raise ValueError(f"cannot subtract frames {frames_b.shape} from {frames_a.shape}")
    gray_a, gray_b = (cv2.cvtColor(stacked(frames), cv2.COLOR_RGB2GRAY) for frames in (frames_a, frames_b))
    difference = np.subtract(gray_a, gray_b, dtype=np.int16)
    difference += 255
    difference >>= 1
    return unstacked(cv2.cvtColor(difference.astype(np.uint8), cv2.COLOR_GRAY2RGB), frames_a)
