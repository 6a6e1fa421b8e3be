"""Intervals and tests of numbers measured on videos, for these fixed networks on new recordings.

Videos of one recording are alike, so recordings count, not videos. A number is a mean over videos or, with `classes`,
the mean over classes of the means of their videos.

* Variance: the residual of a recording within its class, divided by sqrt(1 - its share of the class): CR2 of Bell and
  McCaffrey (2002, Bias reduction in standard errors for linear regression with multi-stage samples), as in Pustejovsky
  and Tipton (2018). A recording with videos of several classes has the sum of its residuals.
* Quantile: Student's, with the degrees of freedom of Satterthwaite (1946) from the effective number of recordings of
  each class, 1 / (sum of squared shares) (Kish, 1965); estimated variances do not enter.
* Accuracies: the interval of Wilson (1927) with the effective number of videos p (1 - p) / variance (Dean and Pagano,
  2015), which has its level near 0 and 1 too.
* p of a difference: the signs of the differences of recordings are flipped (Fisher, 1935, section 21).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidssl.base.keyed_generators import generator

FEWEST = 6  # recordings: with five, no test of flipped signs has p < 0.05
LEVEL = 0.95
ALPHA = 0.05  # of p by Holm's method
SIGN_DRAWS = 20_000  # of signs, if more than `_ALL_FLIPS` recordings differ
_ALL_FLIPS = 12
# Least correlation within recordings (Kish, 1965): with few errors its estimate is often 0, and intervals too narrow.
_CORRELATION = 0.1
_FEW, _EVEN = 20, 0.8  # recordings, and evenness of their sizes, below which intervals are in doubt
_ROUNDING = 1e-12  # below it a sum of weighted values is 0
_STREAM = 35  # of random numbers

Floats = NDArray[np.float64]
_Rows = NDArray[np.int64]


class Estimate(NamedTuple):
    """A number and its interval."""

    value: float
    low: float | None = None  # None: too few recordings, or nothing varies
    high: float | None = None
    p: float | None = None  # of a difference: that there is none, two-sided
    identical: bool = False  # of a difference: both networks have the same value for each video


@dataclass(frozen=True)
class Difference:
    """A number of one encoder minus that of another, both on the same videos, as fractions."""

    first: int
    second: int
    value: float
    low: float | None  # of the interval; None: there is none, for `reason`
    high: float | None
    p: float | None  # of no difference, two-sided
    adjusted: float | None = None  # p by Holm's method over the pairs of its kind
    reason: str = ""  # why a difference cannot be shown: equal, too few recordings, too few recordings that differ

    @property
    def is_worse(self) -> bool:
        """Whether the first is shown to be worse than the second."""
        return self.value < 0 and self.adjusted is not None and self.adjusted < ALPHA

    def turned(self) -> "Difference":
        """Return the difference of the second to the first."""
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, first=self.second, second=self.first, value=-self.value, low=low, high=high)


class _Design:
    """How videos count: fractions of a recording or class are by the weights of its videos.

    Args:
        recordings: (N,) recording of each video.
        classes: (N,) class of each video; None: all videos count alike.
    """

    def __init__(self, recordings: _Rows, classes: _Rows | None):
        _, self.recording = np.unique(recordings, return_inverse=True)
        classes = np.zeros(len(recordings), np.int64) if classes is None else classes
        _, self.one_class, sizes = np.unique(classes, return_inverse=True, return_counts=True)
        self.num_classes, self.count = len(sizes), int(self.recording.max()) + 1
        self.weights = 1 / (self.num_classes * sizes[self.one_class])  # (N,), their sum is 1
        # A cell: the videos of one recording and class.
        cells, self.cell = np.unique(self.one_class * self.count + self.recording, return_inverse=True)
        shares = np.bincount(self.cell) / sizes[cells // self.count]
        self.of_cells = cells % self.count  # recording of each cell
        self.factors = 1 / np.sqrt(np.where(shares < 1, 1 - shares, np.inf))
        k = 1 / np.bincount(cells // self.count, weights=shares**2)  # effective recordings of each class
        self.has_interval = self.count >= FEWEST and bool((k > 1 + 1e-9).all())
        self.recordings = 1 / float((np.bincount(self.recording, weights=self.weights) ** 2).sum())  # effective
        videos = 1 / float((self.weights**2).sum())  # effective
        self.most_videos = videos / (1 + _CORRELATION * (videos / self.recordings - 1))
        self.evenness = float((1 / np.bincount(cells // self.count)).sum() / (1 / k).sum())  # 1: of equal sizes
        self.largest = float(np.bincount(self.recording, weights=self.weights).max())  # share of a recording
        if self.has_interval:
            nested = float((1 / k).sum() ** 2 / ((1 / k) ** 2 / (k - 1)).sum())
            # Recordings with videos of several classes give each class no recordings of its own.
            self.quantile = _student(max(1.0, min(nested, self.recordings - 1)))

    def sums(self, values: Floats) -> Floats:
        """Return the weighted sums (E, R) of the values (E, N) of each recording."""
        return _sums(values * self.weights, self.recording)

    def variance(self, values: Floats) -> Floats:
        """Return the variances (E,) of the means of values (E, N)."""
        means = _sums(values * self.weights, self.one_class) * self.num_classes
        residuals = _sums((values - means[:, self.one_class]) * self.weights, self.cell) * self.factors
        residuals[np.abs(residuals) < _ROUNDING] = 0  # they are 0 but for rounding
        return np.asarray((_sums(residuals, self.of_cells) ** 2).sum(axis=1))


def _sums(values: Floats, places: _Rows) -> Floats:
    """Sum the columns of values (E, N) that have one place."""
    order = np.argsort(places, kind="stable")
    starts = np.flatnonzero(np.diff(places[order], prepend=-1))
    return np.add.reduceat(values[:, order], starts, axis=1)


def proportions(values: Floats, recordings: _Rows, classes: _Rows | None = None) -> list[Estimate]:
    """Estimate the means of rows of values in [0, 1], such as 1 for a video that is right, by Wilson's interval.

    If nothing varies, the effective number of videos is that of the recordings; it is at most that of videos with a
    correlation of 0.1 within their recordings.

    Args:
        values: (E, N).
        recordings: (N,) recording of each video.
        classes: (N,) class of each video: the mean is one over classes.
    """
    design = _Design(recordings, classes)
    means = values @ design.weights
    if not design.has_interval:
        return [Estimate(float(p)) for p in means]
    estimates = []
    for p, variance in zip(means.tolist(), design.variance(values).tolist(), strict=True):
        p = min(1.0, max(0.0, p))
        n = design.recordings if variance == 0 else min(p * (1 - p) / variance, design.most_videos)
        square = design.quantile**2
        middle = (p + square / (2 * n)) / (1 + square / n)
        half = design.quantile / (1 + square / n) * sqrt(p * (1 - p) / n + square / (4 * n * n))
        estimates.append(Estimate(p, max(0.0, middle - half), min(1.0, middle + half)))
    return estimates


def proportion(values: Floats, recordings: _Rows, classes: _Rows | None = None) -> Estimate:
    """Estimate the mean of values (N,) as `proportions`."""
    return proportions(values[None], recordings, classes)[0]


def differences(
    values: Floats, recordings: _Rows, classes: _Rows | None = None, draws: int | None = None
) -> list[Estimate]:
    """Estimate the means of rows of differences in [-1, 1] between two networks on the same videos.

    The interval is Student's. If all recordings of a class have the same difference, which says nothing of the next
    one, it assumes Wilson's lower limit for the share of recordings that have it, and any other value of the others.

    Args:
        values: (P, N) value of one network minus that of the other.
        recordings: (N,) recording of each video.
        classes: (N,) class of each video: the mean is one over classes.
        draws: Of signs; by default `DRAWS`.
    """
    design, estimates = _Design(recordings, classes), []
    tests = flip_signs(design.sums(values), SIGN_DRAWS if draws is None else draws)
    means, variances = (values @ design.weights).tolist(), design.variance(values).tolist()
    for value, variance, p, row in zip(means, variances, tests, values, strict=True):
        if not row.any() or not design.has_interval:
            estimates.append(Estimate(value, identical=not row.any()))
            continue
        middle, half = value, design.quantile * sqrt(variance)
        if variance == 0:
            share = design.recordings / (design.recordings + design.quantile**2)
            middle, half = share * value, 1 - share
        estimates.append(Estimate(value, max(-1.0, middle - half), min(1.0, middle + half), p))
    return estimates


class Beside(NamedTuple):
    """A number of another network, and how far that of the first is from it."""

    value: float
    difference: Estimate  # the first minus the other


def beside(first: Floats, other: Floats, recordings: _Rows, classes: _Rows | None = None) -> Beside:
    """Compare the mean of the first values (N,) with that of others, of the same videos, as `differences`.

    It answers whether a network is better than what learned nothing. Videos that one of both lacks are nan, and are
    left out.
    """
    both = np.isfinite(first) & np.isfinite(other)
    classes = None if classes is None else classes[both]
    value = float(other[both] @ _Design(recordings[both], classes).weights)
    return Beside(value, differences((first - other)[None, both], recordings[both], classes)[0])


def flip_signs(sums: Floats, draws: int = SIGN_DRAWS) -> list[float]:
    """Return p of the hypothesis that the differences of recordings, rows of sums (P, R), have symmetric distributions.

    Signs are flipped in all ways if up to 12 recordings differ, else in so many random ways, the same for all rows.
    """
    signed = sums.copy()
    signed[np.abs(signed) < _ROUNDING] = 0
    seen = np.abs(signed.sum(axis=1)) - _ROUNDING
    differ = np.count_nonzero(signed, axis=1)
    p = np.ones(len(signed))
    for row in np.flatnonzero(differ <= _ALL_FLIPS):
        part = signed[row, signed[row] != 0]
        p[row] = (np.abs(_all_signs(len(part)) @ part) >= seen[row]).mean()
    rows = np.flatnonzero(differ > _ALL_FLIPS)
    if len(rows):
        rng, count, block = generator(0, _STREAM), np.zeros(len(rows)), max(1, 2**22 // signed.shape[1])
        for start in range(0, draws, block):
            signs = 1.0 - 2 * rng.integers(0, 2, (signed.shape[1], min(block, draws - start)), np.int8)
            count += (np.abs(signed[rows] @ signs) >= seen[rows, None]).sum(axis=1)
        p[rows] = (count + 1) / (draws + 1)
    return [float(value) for value in p]


@cache
def _all_signs(count: int) -> Floats:
    """Return the signs (2^count, count)."""
    return (1 - 2 * (np.arange(2**count)[:, None] >> np.arange(count) & 1)).astype(np.float64)


def compare_pairs(
    values: Floats,
    recordings: _Rows,
    classes: _Rows | None = None,
    floors: Sequence[int] = (),
    networks: Sequence[str] = (),
) -> list[Difference]:
    """Compare each pair of encoders by `differences`.

    Holm's method (1979) adjusts p for the number of pairs: those of encoders, of an encoder and a floor, and of floors,
    each by themselves, so that floors beside them do not hide what encoders differ in. Pairs of equal values are none,
    those of the same two networks one.

    Args:
        values: (E, N) 1 where encoder e is right about video n, or a mean of several trials.
        recordings: (N,) recording of each video.
        classes: (N,) class of each video: what is compared is the mean over classes.
        floors: Encoders that learned nothing.
        networks: Of each encoder: equal ones are one network under several names, if their values are equal too.
    """
    pairs = [*combinations(range(len(values)), 2)]
    keys = [(name, row.tobytes()) for name, row in zip(networks or range(len(values)), values, strict=True)]
    tests = [frozenset((keys[first], keys[second])) for first, second in pairs]
    delta = np.array([values[first] - values[second] for first, second in pairs])
    draws = max(SIGN_DRAWS, 40 * len(pairs))  # with fewer, the least p times the number of pairs is not small
    estimates, design = differences(delta, recordings, classes, draws), _Design(recordings, classes)
    differ = np.count_nonzero(np.abs(design.sums(delta)) > _ROUNDING, axis=1).tolist()
    families: dict[int, dict[object, float]] = {0: {}, 1: {}, 2: {}}  # p of the tests with so many floors
    kinds = [families[len({*pair} & {*floors})] for pair in pairs]
    for n, estimate in enumerate(estimates):
        if estimate.p is not None:
            kinds[n][tests[n]] = estimate.p
    compared = []
    for n, (value, low, high, p, identical) in enumerate(estimates):
        adjusted, reason = None, "equal" if identical else "too few recordings"
        if p is not None:
            adjusted, reason = _holm(kinds[n], tests[n]), ""
            least = max(2.0 ** (1 - differ[n]), 1 / (draws + 1))
            if adjusted >= ALPHA and _holm({**kinds[n], tests[n]: least}, tests[n]) >= ALPHA:
                reason = f"differ in {differ[n]} of {design.count} recordings: not told apart"
        compared.append(Difference(*pairs[n], value, low, high, p, adjusted, reason))
    return compared


def _holm(p: Mapping[object, float], test: object) -> float:
    """Adjust one of several p, that of this test, for how many they are."""
    largest = 0.0
    for rank, n in enumerate(sorted(p, key=p.__getitem__)):
        largest = max(largest, min(1.0, p[n] * (len(p) - rank)))
        if n == test:
            break
    return largest


def doubts(recordings: _Rows, classes: _Rows | None = None, without_single: bool = False) -> list[str]:
    """Say why intervals and tests may be wrong: few recordings, or some that are much larger than others.

    `without_single`: classes of one recording were left out.
    """
    design, reasons = _Design(recordings, classes), []
    if design.count < _FEW:
        counted = f"{design.count} recordings{' of classes that have two or more' * without_single}"
        reasons.append(f"There are only {counted}: small differences cannot be seen.")
    if design.evenness < _EVEN:
        reasons.append(
            f"Recordings are of unequal size, the largest counts {100 * design.largest:.0f} %: {design.count} tell as "
            f"much as {design.evenness * design.count:.0f} equal ones, and intervals may be too narrow."
        )
    return reasons


def jackknife(value: float, without: Sequence[float | None]) -> Estimate:
    """Estimate a number by its values without each of the recordings, with Student's quantile.

    It serves numbers of pairs of videos, for which residuals of recordings are not defined.
    """
    count, replicates = len(without), np.array(without, np.float64)  # None: nan
    if count < FEWEST or not np.isfinite(replicates).all():
        return Estimate(value)
    error = sqrt((count - 1) / count * float(((replicates - replicates.mean()) ** 2).sum()))
    return Estimate(value, value - _student(count - 1) * error, value + _student(count - 1) * error)


def mean_precision(predicted: _Rows, label: _Rows, recordings: _Rows, counted: NDArray[np.bool_]) -> Estimate:
    """Estimate the mean over classes of the precision, 0 of a class that is never predicted, by the jackknife.

    The classes are those of the videos that `counted` (N,) marks.
    """

    def mean_of(rows: NDArray[np.bool_]) -> float:
        named = [label[rows & (predicted == number)] == number for number in np.unique(label[counted])]
        return float(np.mean([right.mean() if len(right) else 0.0 for right in named]))

    estimate = jackknife(mean_of(label >= 0), [mean_of(recordings != number) for number in np.unique(recordings)])
    low, high = (None if end is None else min(1.0, max(0.0, end)) for end in estimate[1:3])
    return Estimate(estimate.value, low, high)


def _student(degrees: float) -> float:
    from scipy.special import stdtrit  # what scipy.stats calls, whose import takes a second

    return float(stdtrit(degrees, (1 + LEVEL) / 2))
