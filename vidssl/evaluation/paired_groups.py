"""Compare encoders on the same videos: differences of accuracy with intervals over recording groups.

The interval is for these fixed networks on new recordings, not for other training seeds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vidssl.keyed_generators import generator

DRAWS = 10_000
FEWEST = 10  # groups
_FEWEST_OF_CLASS = 5  # to draw them within classes
LEVEL = 0.95
_STREAM = 35  # of random numbers


@dataclass(frozen=True)
class Difference:
    """Accuracy of one encoder minus that of another, both on the same videos, as fractions."""

    first: int
    second: int
    value: float
    low: float | None  # of the interval; None: there is none, for `reason`
    high: float | None
    p: float | None  # of no difference, two-sided
    adjusted: float | None = None  # p by Holm's method over the pairs of its kind
    reason: str = ""  # identical, too few groups


def compare_pairs(
    correct: NDArray[np.float64],
    groups: NDArray[np.int64],
    classes: NDArray[np.int64],
    seed: int = 0,
    floors: Collection[int] = (),
) -> list[Difference]:
    """Compare each pair of encoders.

    Groups are drawn with replacement, the same for all pairs: within classes, if each group is of one class and each
    class has five groups or more. The difference is a ratio of sums over groups, studentised (Davison and Hinkley,
    1997, sections 5.2 and 2.4). Holm's method adjusts p for the number of pairs: those of encoders, of an encoder and
    a floor, and of floors, each by themselves, so that floors beside them do not hide what encoders differ in.

    Args:
        correct: (E, N) 1 where encoder e is right about video n, or a mean of several trials.
        groups: (N,) recording of each video: 0, 1, …
        classes: (N,) class of each video.
        seed: Of the draws.
        floors: Encoders that learned nothing.
    """
    _, groups = np.unique(groups, return_inverse=True)
    count = int(groups.max()) + 1
    sizes = np.bincount(groups, minlength=count).astype(np.float64)
    draws = _draw_groups(_strata(groups, classes), seed) if count >= FEWEST else None
    found = []
    for first, second in combinations(range(len(correct)), 2):
        delta = correct[first] - correct[second]
        value = float(delta.mean())
        if not delta.any():
            found.append(Difference(first, second, value, None, None, None, reason="identical"))
        elif draws is None:
            found.append(Difference(first, second, value, None, None, None, reason="too few groups"))
        else:
            sums = np.bincount(groups, weights=delta, minlength=count).astype(np.float64)
            found.append(Difference(first, second, value, *_interval(sums, sizes, *draws)))
    kinds = [(pair.first in floors) + (pair.second in floors) for pair in found]
    return _holm(found, kinds)


def _strata(groups: NDArray[np.int64], classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the strata of the groups (G,): their classes, if each group is of one and each has enough groups."""
    pairs = np.unique(np.stack([groups, classes]), axis=1)
    count = int(groups.max()) + 1
    _, strata = np.unique(pairs[1], return_inverse=True)
    # Draws of two or three groups often have no spread, which their intervals are divided by.
    if pairs.shape[1] > count or np.bincount(strata).min() < _FEWEST_OF_CLASS:
        return np.zeros(count, np.int64)
    return strata.astype(np.int64)


def _draw_groups(strata: NDArray[np.int64], seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Draw how often each group is taken (DRAWS, G), as many in a stratum as it has."""
    weights = np.zeros((DRAWS, len(strata)))
    for stratum in range(int(strata.max()) + 1):
        members = np.flatnonzero(strata == stratum)
        even = np.full(len(members), 1 / len(members))
        weights[:, members] = generator(seed, _STREAM, stratum).multinomial(len(members), even, size=DRAWS)
    return weights, strata


def _interval(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], weights: NDArray[np.float64], strata: NDArray[np.int64]
) -> tuple[float, float, float]:
    """Return the ends of the interval, and p."""
    once = np.ones((1, len(sums)))
    value, error = (float(each[0]) for each in _ratio(sums, sizes, once, strata))
    if error == 0:  # the same difference in each group
        return value, value, 1 / (DRAWS + 1)
    values, errors = _ratio(sums, sizes, weights, strata)
    # A draw without spread says nothing of it: its error is that of the videos.
    t = (values - value) / np.where(errors > 0, errors, error)
    low, high = np.quantile(t, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    p = (1 + np.count_nonzero(np.abs(t) >= abs(value / error))) / (DRAWS + 1)
    return value - float(high) * error, value - float(low) * error, float(p)


def _ratio(
    sums: NDArray[np.float64], sizes: NDArray[np.float64], weights: NDArray[np.float64], strata: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ratio of sums, and its standard error by linearisation, of each draw."""
    total = weights @ sizes
    values = weights @ sums / total
    squares = np.zeros(len(weights))
    for stratum in range(int(strata.max()) + 1):
        members = np.flatnonzero(strata == stratum)
        count, w = len(members), weights[:, members]
        # Residuals r = sums - value * sizes: their weighted mean and mean square, without a (draws, groups) array of r.
        first, second = w @ sums[members], w @ sizes[members]
        mean = (first - values * second) / count
        square = (
            w @ sums[members] ** 2 - 2 * values * (w @ (sums * sizes)[members]) + values**2 * (w @ sizes[members] ** 2)
        )
        squares += np.maximum(square - count * mean**2, 0) * count / (count - 1)
    return values, np.sqrt(squares) / total


def _holm(pairs: Sequence[Difference], kinds: Sequence[int]) -> list[Difference]:
    """Adjust p for the number of pairs of a kind that are tested."""
    adjusted: dict[int, float] = {}
    for kind in {*kinds}:
        tested = sorted((pair.p, n) for n, pair in enumerate(pairs) if kinds[n] == kind and pair.p is not None)
        largest = 0.0
        for rank, (p, n) in enumerate(tested):
            largest = max(largest, min(1.0, p * (len(tested) - rank)))
            adjusted[n] = largest
    return [replace(pair, adjusted=adjusted.get(n)) for n, pair in enumerate(pairs)]
