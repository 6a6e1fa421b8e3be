"""Intervals of single numbers over recordings: 95 % for this network on new recordings, not for other training seeds.

Videos of one recording are alike, so what counts is the number of recordings. Below `FEWEST` of them there is no
interval.
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidssl.evaluation.paired_groups import FEWEST, LEVEL, compare_pairs


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float | None = None  # None: too few recordings, or nothing varies
    high: float | None = None
    identical: bool = False  # of a difference: both networks have the same value for each video


def proportion(values: NDArray[np.float64], groups: NDArray[np.int64]) -> Estimate:
    """Estimate the mean of values in [0, 1], such as 1 for a video that is right, by Wilson's interval.

    The number of videos in Wilson's formula is the effective one, p (1 - p) / variance, with the variance between
    recordings, and the quantile is Student's (Dean and Pagano, 2015): so the interval has its level near 0 and 1 too,
    where bootstraps of few recordings are far too narrow. If all videos are right, or none, the effective number is
    that of the recordings; of values that are 0 or 1 it is at most that of the videos.

    Args:
        values: (N,) of the videos.
        groups: (N,) recording of each video.
    """
    _, groups = np.unique(groups, return_inverse=True)
    p, count = float(values.mean()), int(groups.max()) + 1
    if count < FEWEST:
        return Estimate(p)
    residuals = np.bincount(groups, weights=values - p)
    variance = float(residuals @ residuals) * count / (count - 1) / len(values) ** 2
    most = float(len(values)) if np.isin(values, (0, 1)).all() else np.inf
    n = float(count) if p in (0, 1) else min(p * (1 - p) / variance if variance > 0 else np.inf, most)
    t = _student(count)
    middle = (p + t * t / (2 * n)) / (1 + t * t / n)
    half = t / (1 + t * t / n) * sqrt(p * (1 - p) / n + t * t / (4 * n * n))
    return Estimate(p, max(0.0, middle - half), min(1.0, middle + half))


def difference(
    first: NDArray[np.float64], second: NDArray[np.float64], groups: NDArray[np.int64], classes: NDArray[np.int64]
) -> Estimate:
    """Estimate the mean of the first values (N,) minus the second, of the same videos, as `compare_pairs`."""
    (found,) = compare_pairs(np.stack([first, second]), groups, classes)
    return Estimate(found.value, found.low, found.high, found.reason == "identical")


def jackknife(value: float, without: Sequence[float | None]) -> Estimate:
    """Estimate a number by its values without each of the recordings, with Student's quantile.

    It serves numbers of pairs of videos, for which a drawn recording must not be paired with its copy.
    """
    count, replicates = len(without), np.array(without, np.float64)  # None: nan
    if count < FEWEST or not np.isfinite(replicates).all():
        return Estimate(value)
    error = sqrt((count - 1) / count * float(((replicates - replicates.mean()) ** 2).sum()))
    return Estimate(value, value - _student(count) * error, value + _student(count) * error)


def _student(count: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, count - 1))
