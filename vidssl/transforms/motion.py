"""RGB difference of consecutive native frames, which shows motion only (SCE, Denize et al., 2023)."""

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.types import Frames


def difference_pairs(indices: NDArray[np.int64], first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the two native frames of the difference for each frame of a clip.

    Frame t is paired with t + 1, and the last frame of the span has the pair before it, (last - 1, last). In a span of
    one frame the pair is (t, t), whose difference is mid-gray. A reversed clip has the forward differences in reverse.

    Args:
        indices: (T,) native frames of the clip, in any order.
        first: First native frame of the clip's span.
        last: Last native frame of the clip's span, included.

    Returns:
        Two arrays (T,) int64: the frames to subtract from, and the frames to subtract.

    Raises:
        ValueError: An index lies outside of the span.
    """
    if indices.size and not first <= indices.min() <= indices.max() <= last:
        raise ValueError(f"frames {indices.min()}-{indices.max()} are not in the span {first}-{last}")
    before = np.maximum(np.minimum(indices, last - 1), first)
    return before, np.minimum(before + 1, last)


def rgb_difference(frames_a: Frames, frames_b: Frames) -> Frames:
    """Subtract the gray values of clips (T, 3, H, W): `(a - b + 255) / 2`, in all three channels.

    Gray is 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601), rounded to the nearest integer; the half is rounded down, so
    that no difference is 127, -255 is 0 and +255 is 255.
    """
    if frames_a.shape != frames_b.shape:
        raise ValueError(f"cannot subtract frames {frames_b.shape} from {frames_a.shape}")
    difference = np.subtract(_gray(frames_a), _gray(frames_b), dtype=np.int16)
    difference += 255
    difference >>= 1
    length, channels, height, width = frames_a.shape
    out = np.asarray(cv2.cvtColor(difference.astype(np.uint8), cv2.COLOR_GRAY2RGB), np.uint8)
    return out.reshape(length, height, width, channels).transpose(0, 3, 1, 2)


def _gray(frames: Frames) -> NDArray[np.uint8]:
    """Convert frames (T, 3, H, W) to gray (T·H, W)."""
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    return np.asarray(cv2.cvtColor(images.reshape(-1, *images.shape[2:]), cv2.COLOR_RGB2GRAY), np.uint8)
