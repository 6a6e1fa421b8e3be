"""When the frames of a file are shown: at a regular rate, or each at a time of its own."""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Fractions of a frame by which the times of a regular video may differ from multiples of its frame. More than jitter;
# less than a single frame that was dropped, which is half a frame off. The second is for clocks as coarse as that:
# Matroska counts milliseconds.
_JITTER, _ROUNDING = 0.25, 0.4
_REORDERED = 17  # frames; decoders hold back 16 at most, so a longer step back is no matter of their order
_SLOWEST = 1e-4  # frames per second: one in three hours


class FrameTimes(NamedTuple):
    """The frame rate of a video, and the times of its frames where it varies."""

    fps: float
    times: NDArray[np.float64] | None = None  # (T,) seconds from the first frame; None: regular


def sorted_times(pts: Sequence[int | None], restarts: bool) -> NDArray[np.float64]:
    """Sort the timestamps (T,) of frames in the order of display, some of them missing, repeated or out of order.

    A missing one lies between its neighbours, one of two equal ones in the middle of the larger gap beside them. With
    `restarts` a long step back is a new start after one frame, as in joined recordings. Empty without two that differ.
    """
    stored = [(number, stamp) for number, stamp in enumerate(pts) if stamp is not None]
    known = np.array([number for number, _ in stored])
    stamps = np.array([stamp - stored[0][1] for _, stamp in stored], np.float64)
    steps = np.diff(stamps) / np.diff(known)
    if not (steps > 0).any():
        return np.empty(0)
    step = float(np.median(steps[steps > 0]))
    if restarts:
        for place in np.flatnonzero(np.diff(stamps) < -_REORDERED * step).tolist():
            stamps[place + 1 :] += stamps[place] + step - stamps[place + 1]
    numbers = np.arange(len(pts))
    filled = np.interp(numbers, known, stamps)
    filled += step * (np.minimum(numbers - known[0], 0) + np.maximum(numbers - known[-1], 0))
    for _ in range(10):  # of two gaps, the same may be the larger one for both of its ends
        filled.sort()
        values, counts = np.unique(filled, return_counts=True)
        if len(values) == len(filled):
            return filled
        steps = np.diff(filled)
        first, last = (1.999 * float(np.median(part)) for part in (steps[:8], steps[-8:]))  # gaps before and after all
        gaps = np.diff(values, prepend=values[0] - first, append=values[-1] + last)
        before, after = gaps[:-1], gaps[1:]
        spread = np.where(after >= before, after, -before) / counts
        within = numbers - np.repeat(np.cumsum(counts) - counts, counts)  # of those that are equal
        filled = np.repeat(values, counts) + within * np.repeat(spread, counts)
    return np.empty(0)


def frame_times(pts: NDArray[np.int64] | NDArray[np.float64], time_base: float | Fraction, header: float) -> FrameTimes:
    """Decide from the timestamps of the frames, ascending, whether they are regular, and at which rate.

    The rate is the header's if the timestamps agree with it, else the measured average. A video is regular if no frame
    is further than a quarter of a frame from its place at that rate, with a coarse clock 0.4 frames.
    """
    span = int(pts[-1]) - int(pts[0]) if len(pts) else 0
    if not is_plausible(span, float(time_base), len(pts)):
        return FrameTimes(header)
    times = (pts - pts[0]) * float(time_base)
    measured = float((len(pts) - 1) / (span * time_base))
    for rate in (header, measured):
        if is_regular(times, rate, float(time_base)):
            return FrameTimes(rate)
    return FrameTimes(measured, times)


def is_plausible(span: int, time_base: float, count: int) -> bool:
    """Whether a video of `count` frames may span so many ticks: with damaged timestamps it lasts for years."""
    # 2**53: above it floats pass over ticks, and frames would have one time.
    return 0 < span < 2**53 and (count - 1) / (span * time_base) > _SLOWEST


def is_regular(times: NDArray[np.float64], fps: float, tick: float) -> bool:
    """Whether frames begin at multiples of 1 / fps; `tick` is the unit of the container's clock in seconds."""
    return deviation(times, fps) * fps <= max(_JITTER, min(tick * fps, _ROUNDING))


def deviation(times: NDArray[np.float64], fps: float) -> float:
    """Return the largest distance, in seconds, of a frame's time from its place at a constant rate."""
    return float(np.abs(times - np.arange(len(times)) / fps).max())
