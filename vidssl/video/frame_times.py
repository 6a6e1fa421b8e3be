"""When the frames of a file are shown: at a regular rate, or each at a time of its own."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Fractions of a frame by which the times of a regular video may differ from multiples of its frame. More than jitter;
# less than a single frame that was dropped, which is half a frame off. The second is for clocks as coarse as that:
# Matroska counts milliseconds.
_JITTER, _ROUNDING = 0.25, 0.4
_SLOWEST = 1e-4  # frames per second: one in three hours


class FrameTimes(NamedTuple):
    """The frame rate of a video, and the times of its frames where it varies."""

    fps: float
    times: NDArray[np.float64] | None = None  # (T,) seconds from the first frame; None: regular


def frame_times(pts: NDArray[np.int64], time_base: float, header: float) -> FrameTimes:
    """Decide from the timestamps of the frames, ascending, whether they are regular, and at which rate.

    The rate is the header's if the timestamps agree with it, else the measured average. A video is regular if no frame
    is further than a quarter of a frame from its place at that rate, with a coarse clock 0.4 frames.
    """
    if len(pts) < 2 or not is_plausible(int(pts[-1]) - int(pts[0]), time_base, len(pts)):
        return FrameTimes(header)
    times = (pts - pts[0]) * time_base
    measured = float((len(pts) - 1) / times[-1])
    for rate in (header, measured):
        if is_regular(times, rate, time_base):
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
