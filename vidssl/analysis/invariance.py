"""Invariance of units: do they still fire, and for the same class, when the input is transformed?

A unit fires where its value is above a threshold (sign +), or below one (sign -). The threshold is the smallest value
with at most the wanted fraction of all values above it. **Ties**, such as the zeros of a ReLU, do not fire: the unit
then fires less often than wanted, and its score is still divided by the wanted rate. So a score is at most one over
that rate, and a unit that never fires scores 0.

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
    both_signs: bool = True,
) -> Invariance:
    """Measure invariance that keeps classes apart: Eq. 3 of Purushwalkam and Gupta (2020), supplement, section A.

    The local trajectory of a sample is the sample and its transformed versions. For a class y with frequency P(y) the
    threshold of each unit lets it fire on a fraction G_y = P(y) of the population. L_y is the fraction of the
    trajectories of y on which it fires: the mean over a trajectory, then over the samples of y. The score is L_y / G_y,
    averaged over the `top_k` best units for y, then over classes.

    With `population="all"` the population is all trajectories, as in the paper, where every sample lies on one. With
    "samples" it is the samples only: then a unit that responds to the transformation itself fires on all versions of
    all classes and counts as perfectly invariant.

    Args:
        features: (N, D), of the samples.
        versions: (N, V, D), of their transformed versions. With V = 0 the score is that of selectivity.
        labels: (N,).
        top_k: Units per class.
        counted: (N, V), which versions exist; None: all. The means leave out samples and classes without versions.
        population: See above.
        both_signs: Take the better sign of each unit; else units fire by high values only.

    Raises:
        ConfigError: `top_k` is not in 1 … D.
        DataError: There are fewer than two classes, no versions, or features that are not finite.
    """
    counted = _check(features, versions, counted, top_k)
    if len(labels) != len(features):
        raise ValueError(f"{len(labels)} labels for {len(features)} samples")
    names, number = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise DataError("invariance is measured between classes, and all samples have one: use a list with more")
    used = _with_versions(counted)
    lengths = 1 + counted.sum(axis=1) * (population == "all")  # values that each sample adds to the population
    sizes = np.bincount(number, lengths).astype(np.int64)
    rows = [np.flatnonzero((number == y) & used) for y in range(len(names))]
    classes = [y for y in range(len(names)) if len(rows[y])]
    best = np.empty((len(classes), features.shape[1]))  # of each class and unit
    for block in _blocks(versions):
        own, changed = features[:, block], versions[:, :, block]
        ordered = _sorted_values(own, changed, counted, population)
        for place, y in enumerate(classes):
            path = np.concatenate([own[rows[y], None], changed[rows[y]]], axis=1)  # (n, 1 + V, units)
            on = np.pad(counted[rows[y]], ((0, 0), (1, 0)), constant_values=True)
            weight = on / on.sum(axis=1, keepdims=True) / len(rows[y])
            rate = _rates(path > ordered[-sizes[y] - 1], weight)
            if both_signs:
                rate = np.maximum(rate, _rates(path < ordered[sizes[y]], weight))
            best[place, block] = rate * len(ordered) / sizes[y]
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
    both_signs: bool = True,
    rate: float = 0.01,
) -> Invariance:
    """Measure invariance without classes, as Goodfellow et al. (2009).

    The threshold of each unit lets it fire on a fraction G = `rate` of the population, at least once. L is the fraction
    of versions on which it still fires, over the samples on which it fires. The score is L / G, averaged over the
    `top_k` best units.

    The arguments and errors are those of `class_invariance`; a single sample is a DataError.
    """
    counted = _check(features, versions, counted, top_k)
    total = len(features) + int(counted.sum()) * (population == "all")
    size = min(max(1, round(rate * total)), total - 1)
    if len(features) < 2:
        raise DataError("invariance is measured between samples, and there is one: use a longer list")
    weights, used = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1), _with_versions(counted)
    best = np.empty((1, features.shape[1]))
    for block in _blocks(versions):
        own, changed = features[:, block], versions[:, :, block]
        ordered = _sorted_values(own, changed, counted, population)
        low, high = ordered[size], ordered[-size - 1]
        still = _still_firing(own > high, changed > high, weights, used)
        if both_signs:
            still = np.maximum(still, _still_firing(own < low, changed < low, weights, used))
        best[0, block] = still * total / size
    none = np.empty(0, np.int64)
    score = float(_top_mean(best, top_k)[0])
    return Invariance(score, total / size, int(counted.sum()), int(used.sum()), none, none.astype(np.float64))


def _check(features: Floats, versions: Floats, counted: Mask | None, top_k: int) -> Mask:
    """Check shapes and values; return which versions exist."""
    if features.ndim != 2 or versions.shape != (len(features), *versions.shape[1:2], features.shape[1]):
        raise ValueError(f"features {features.shape} and versions {versions.shape} are not (N, D) and (N, V, D)")
    if counted is None:
        counted = np.ones(versions.shape[:2], bool)
    if counted.shape != versions.shape[:2]:
        raise ValueError(f"counted {counted.shape} does not fit the versions {versions.shape}")
    if not 1 <= top_k <= features.shape[1]:
        raise ConfigError(f"top_k {top_k} of {features.shape[1]} units: choose 1 to {features.shape[1]}")
    if not _with_versions(counted).any():
        raise DataError("no sample has a transformed version: there is nothing to measure")
    if not (np.isfinite(features).all() and np.isfinite(versions[counted]).all()):
        raise DataError("features are not finite: the weights of the network are broken")
    return counted


def _with_versions(counted: Mask) -> Mask:
    """Return (N,): which samples have versions; all of them if V = 0."""
    return counted.sum(axis=1) > 0 if counted.shape[1] else np.ones(len(counted), bool)


def _blocks(versions: Floats) -> Iterator[slice]:
    """Split the units into blocks, to bound the memory of a comparison."""
    samples, length, dim = versions.shape
    units = max(1, _BLOCK // (samples * (1 + length)))
    for first in range(0, dim, units):
        yield slice(first, min(first + units, dim))


def _sorted_values(own: Floats, changed: Floats, counted: Mask, population: Population) -> Floats:
    """Sort the values of each unit over the population: (M, units)."""
    return np.sort(own if population == "samples" else np.concatenate([own, changed[counted]]), axis=0)


def _rates(fires: Mask, weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average firing (n, L, units) with weights (n, L): (units,)."""
    rates: NDArray[np.float64] = weight.ravel() @ fires.reshape(-1, fires.shape[-1]).astype(np.float64)
    return rates


def _still_firing(fires: Mask, changed: Mask, weights: NDArray[np.float64], used: Mask) -> NDArray[np.float64]:
    """Return (units,): the fraction of versions that fire, over the samples that fire and have versions."""
    fires = fires & used[:, None]
    fractions = np.einsum("nv,nvd->nd", weights, changed)
    rates: NDArray[np.float64] = (fractions * fires).sum(axis=0) / np.maximum(fires.sum(axis=0), 1)
    return rates


def _top_mean(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Average the `count` largest values of each row (C, D): (C,)."""
    means: NDArray[np.float64] = np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1)
    return means
