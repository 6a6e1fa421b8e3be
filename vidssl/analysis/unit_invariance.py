"""Invariance of units: do they still fire, and for the same class, when the input is transformed?

A unit fires where its value is above a threshold (sign +), or below one (sign -); the better sign counts. The threshold
is the smallest value with at most the wanted fraction of all values above it. **Ties**, such as the zeros of a ReLU, do
not fire: the unit then fires less often than wanted, and its score is still divided by the wanted rate. So a score is
at most one over that rate, and a unit that never fires scores 0.

Shapes: N samples, V transformed versions of each, D units, C classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vidssl.errors import ConfigError, DataError

Floats = NDArray[np.floating]
Mask = NDArray[np.bool_]
Population = Literal["all", "samples"]  # values that a threshold divides: of samples and versions, or of samples only
_BLOCK = 1 << 24  # values compared at a time


@dataclass(frozen=True)
class Invariance:
    """Invariance of a representation."""

    score: float  # about 1 for units that do not depend on the sample, at most `ceiling`
    ceiling: float  # score of a perfectly invariant and selective representation
    versions: int  # number of transformed versions
    samples: int  # number of samples that have any
    classes: NDArray[np.int64]  # labels with versions, ascending; empty for the measure without classes
    of_class: NDArray[np.float64]  # score of each of these classes


def class_invariance(
    features: Floats,
    versions: Floats,
    labels: NDArray[np.int64],
    *,
    top_k: int = 10,
    counted: Mask | None = None,
    population: Population = "all",
) -> Invariance:
    """Measure invariance that keeps classes apart: Eq. 3 of Purushwalkam and Gupta (2020), supplement, section A.

    The local trajectory of a sample is the sample and its transformed versions. For a class y with frequency P(y) the
    threshold of each unit lets it fire on a fraction G_y = P(y) of the population. L_y is the fraction of the
    trajectories of y on which it fires: the mean over a trajectory, then over the samples of y. The score is L_y / G_y,
    averaged over the `top_k` best units for y, then over classes.

    With `population="all"` the population is all trajectories, as in the paper, where every sample lies on one. With
    "samples" it is the samples only: then a unit that responds to the transformation itself fires on all versions of
    all classes and counts as perfectly invariant.

    `features` (N, D) are those of the samples, `versions` (N, V, D) of their transformed versions, `counted` (N, V) the
    versions that exist. The means leave out samples and classes without versions.

    Raises:
        ConfigError: `top_k` is not in 1 … D.
        DataError: There are fewer than two classes, no versions, or features that are not finite.
    """
    counted, used = _check(features, versions, counted, top_k)
    names, number = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise DataError("invariance is measured between classes, and all samples have one: use a list with more")
    lengths = 1 + counted.sum(axis=1) * (population == "all")  # values that each sample adds to the population
    sizes = np.bincount(number, lengths).astype(np.int64)
    classes = np.unique(number[used])
    best = np.empty((len(classes), features.shape[1]))  # of each class and unit
    for block, ordered in _blocks(features, versions, counted, population):
        for place, y in enumerate(classes):
            rows = np.flatnonzero((number == y) & used)
            path = np.concatenate([features[rows, None, block], versions[rows, :, block]], axis=1)  # (n, 1 + V, units)
            on = np.pad(counted[rows], ((0, 0), (1, 0)), constant_values=True)
            weight = (on / on.sum(axis=1, keepdims=True) / len(rows)).ravel()
            above, below = path > ordered[-sizes[y] - 1], path < ordered[sizes[y]]
            rates = [weight @ fires.reshape(len(weight), -1).astype(np.float64) for fires in (above, below)]
            best[place, block] = np.maximum(*rates) * len(ordered) / sizes[y]
    of_class = _top_mean(best, top_k)
    ceiling = float(np.mean(sizes.sum() / sizes[classes]))
    labels_used = names[classes].astype(np.int64)
    return Invariance(float(of_class.mean()), ceiling, int(counted.sum()), int(used.sum()), labels_used, of_class)


def firing_invariance(
    features: Floats,
    versions: Floats,
    *,
    top_k: int = 10,
    counted: Mask | None = None,
    population: Population = "all",
    rate: float = 0.01,
) -> Invariance:
    """Measure invariance without classes, as Goodfellow et al. (2009).

    The threshold of each unit lets it fire on a fraction G = `rate` of the population, at least once. L is the fraction
    of versions on which it still fires, over the samples on which it fires. The score is L / G, averaged over the
    `top_k` best units. The other arguments and errors are those of `class_invariance`; a single sample is a DataError.
    """
    counted, used = _check(features, versions, counted, top_k)
    if len(features) < 2:
        raise DataError("invariance is measured between samples, and there is one: use a longer list")
    total = len(features) + int(counted.sum()) * (population == "all")
    size = min(max(1, round(rate * total)), total - 1)
    weights = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1)
    best = np.empty((1, features.shape[1]))
    for block, ordered in _blocks(features, versions, counted, population):
        own, changed = features[:, block], versions[:, :, block]
        above, below = ordered[-size - 1], ordered[size]
        rates = []
        for fires, still in ((own > above, changed > above), (own < below, changed < below)):
            fires &= used[:, None]
            fractions = np.einsum("nv,nvd->nd", weights, still)
            rates.append((fractions * fires).sum(axis=0) / np.maximum(fires.sum(axis=0), 1))
        best[0, block] = np.maximum(*rates) * total / size
    none = np.empty(0, np.int64)
    score = float(_top_mean(best, top_k)[0])
    return Invariance(score, total / size, int(counted.sum()), int(used.sum()), none, none.astype(np.float64))


def _check(features: Floats, versions: Floats, counted: Mask | None, top_k: int) -> tuple[Mask, Mask]:
    """Check values; return which versions exist, and which samples have any."""
    if counted is None:
        counted = np.ones(versions.shape[:2], bool)
    if not 1 <= top_k <= features.shape[1]:
        raise ConfigError(f"top_k {top_k} of {features.shape[1]} units: choose 1 to {features.shape[1]}")
    if not counted.any():
        raise DataError("no sample has a transformed version: there is nothing to measure")
    if not (np.isfinite(features).all() and np.isfinite(versions[counted]).all()):
        raise DataError("features are not finite: the weights of the network are broken")
    return counted, np.asarray(counted.any(axis=1))


def _blocks(
    features: Floats, versions: Floats, counted: Mask, population: Population
) -> Iterator[tuple[slice, Floats]]:
    """Split the units into blocks, to bound memory; yield each with the sorted values (M, units) of its population."""
    samples, length, dim = versions.shape
    units = max(1, _BLOCK // (samples * (1 + length)))
    for first in range(0, dim, units):
        block = slice(first, first + units)
        values = features[:, block]
        if population == "all":
            values = np.concatenate([values, versions[:, :, block][counted]])
        yield block, np.sort(values, axis=0)


def _top_mean(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Average the `count` largest values of each row (C, D): (C,)."""
    means: NDArray[np.float64] = np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1)
    return means
