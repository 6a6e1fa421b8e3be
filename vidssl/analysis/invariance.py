"""The invariance measure of units: do they still fire, and for the same class, when the input is transformed?

A unit fires where its value is above a threshold (sign +), or below one (sign -). The threshold is the smallest value
above which at most the wanted share of all values lies. **Ties**, as a ReLU makes them at 0, do not fire: then the unit
fires more rarely than wanted, and its score is still divided by the wanted rate. So the score of a unit is at most one
over that rate, and a unit that never fires scores 0.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vidssl.errors import ConfigError, DataError

Floats = NDArray[np.floating]
# Whose values a threshold divides: those of samples and versions, or of the samples alone.
Population = Literal["all", "samples"]
_BLOCK = 1 << 24  # values that are compared at a time


@dataclass(frozen=True)
class Invariance:
    """How invariant a representation is, with what bounds it.

    Attributes:
        score: 1 for units that do not care about the sample (and are not chosen by their score), `ceiling` at most.
        ceiling: Of a perfectly invariant and selective representation.
        versions: Transformed versions that were counted.
        samples: Samples that have any.
        classes: Labels that have any, in rising order; empty where classes do not matter.
        of_class: The score of each of these.
    """

    score: float
    ceiling: float
    versions: int
    samples: int
    classes: NDArray[np.int64]
    of_class: NDArray[np.float64]


def class_invariance(
    features: Floats,
    versions: Floats,
    labels: NDArray[np.int64],
    *,
    top_k: int = 10,
    counted: NDArray[np.bool_] | None = None,
    population: Population = "all",
    both_signs: bool = True,
) -> Invariance:
    """Measure invariance that keeps classes apart: Eq. 3 of Purushwalkam and Gupta (2020), supplement, section A.

    The local trajectory of a sample is the sample and its transformed versions. For a class y of share P(y) each unit's
    threshold lets it fire on a share G_y = P(y) of the population. L_y is the share of the trajectories of y on which
    it fires: the mean over a trajectory, then over the samples of y. The score is L_y / G_y, averaged over the `top_k`
    units that are best for y, then over classes.

    With `population` "all" the population is all trajectories, as in the paper, where every sample lies on one. With
    "samples" it is the samples alone: then a unit that the transformation itself drives, whatever the sample shows,
    fires on all versions of all classes and counts as perfectly invariant.

    Args:
        features: (N, D) of the samples.
        versions: (N, V, D) of the transformed versions of each sample; V 0: of none, the score is that of selectivity.
        labels: (N,).
        top_k: Units of each class that count.
        counted: (N, V), which versions there are; None: all. A sample without any has no part in L_y, a class without
            any none in the mean.
        population: As said above.
        both_signs: Take for each unit the better one of both signs; else a unit fires by high values only.

    Raises:
        ConfigError: `top_k` is not in 1 … D.
        DataError: There are fewer than two classes, no versions, or features that are not finite.
    """
    counted = _check(features, versions, counted, top_k)
    if len(labels) != len(features):
        raise ValueError(f"{len(labels)} labels for {len(features)} samples")
    names, number = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise DataError(
            "invariance is measured between classes, and all samples have one: give a list with more"
        )
    has = _has(counted)
    lengths = 1 + counted.sum(axis=1) * (population == "all")  # what each sample adds to the population
    sizes = np.bincount(number, lengths).astype(np.int64)
    rows = [np.flatnonzero((number == y) & has) for y in range(len(names))]
    there = [y for y in range(len(names)) if len(rows[y])]
    best = np.empty((len(there), features.shape[1]))  # of each class and unit
    for block in _blocks(versions):
        own, changed = features[:, block], versions[:, :, block]
        ordered = _ordered(own, changed, counted, population)
        for place, y in enumerate(there):
            path = np.concatenate([own[rows[y], None], changed[rows[y]]], axis=1)  # (n, 1 + V, units)
            on = np.pad(counted[rows[y]], ((0, 0), (1, 0)), constant_values=True)
            weight = on / on.sum(axis=1, keepdims=True) / len(rows[y])
            found = _rates(path > ordered[-sizes[y] - 1], weight)
            if both_signs:
                found = np.maximum(found, _rates(path < ordered[sizes[y]], weight))
            best[place, block] = found * len(ordered) / sizes[y]
    of_class = _top(best, top_k)
    ceiling = float(np.mean(sizes.sum() / sizes[there]))
    return Invariance(
        float(of_class.mean()),
        ceiling,
        int(counted.sum()),
        int(has.sum()),
        names[there].astype(np.int64),
        of_class,
    )


def firing_invariance(
    features: Floats,
    versions: Floats,
    *,
    top_k: int = 10,
    counted: NDArray[np.bool_] | None = None,
    population: Population = "all",
    both_signs: bool = True,
    rate: float = 0.01,
) -> Invariance:
    """Measure invariance without classes, as Goodfellow et al. (2009) do.

    Each unit's threshold lets it fire on a share G = `rate` of the population, at least once. L is the share of the
    versions of those samples on which it fires, on which it still does. The score is L / G, averaged over the `top_k`
    best units.

    Args:
        features: (N, D) of the samples.
        versions: (N, V, D) of the transformed versions of each sample.
        top_k: Units that count.
        counted: (N, V), which versions there are; None: all.
        population: As of `class_invariance`.
        both_signs: As of `class_invariance`.
        rate: Fraction of the population on which a unit fires.

    Raises:
        ConfigError: `top_k` is not in 1 … D.
        DataError: There are no versions, a single sample, or features that are not finite.
    """
    counted = _check(features, versions, counted, top_k)
    total = len(features) + int(counted.sum()) * (population == "all")
    size = min(max(1, round(rate * total)), total - 1)
    if len(features) < 2:
        raise DataError("invariance is measured between samples, and there is one: give a longer list")
    weights, has = counted / np.maximum(counted.sum(axis=1, keepdims=True), 1), _has(counted)
    best = np.empty((1, features.shape[1]))
    for block in _blocks(versions):
        own, changed = features[:, block], versions[:, :, block]
        ordered = _ordered(own, changed, counted, population)
        low, high = ordered[size], ordered[-size - 1]
        found = _still_firing(own > high, changed > high, weights, has)
        if both_signs:
            found = np.maximum(found, _still_firing(own < low, changed < low, weights, has))
        best[0, block] = found * total / size
    none = np.empty(0, np.int64)
    score = float(_top(best, top_k)[0])
    return Invariance(score, total / size, int(counted.sum()), int(has.sum()), none, none.astype(np.float64))


def _check(
    features: Floats, versions: Floats, counted: NDArray[np.bool_] | None, top_k: int
) -> NDArray[np.bool_]:
    """See whether shapes and values fit; give which versions there are."""
    if features.ndim != 2 or versions.shape != (len(features), *versions.shape[1:2], features.shape[1]):
        raise ValueError(
            f"features {features.shape} and versions {versions.shape} are not (N, D) and (N, V, D)"
        )
    if counted is None:
        counted = np.ones(versions.shape[:2], bool)
    if counted.shape != versions.shape[:2]:
        raise ValueError(f"counted {counted.shape} does not fit the versions {versions.shape}")
    if not 1 <= top_k <= features.shape[1]:
        raise ConfigError(f"top_k {top_k} of {features.shape[1]} units: choose 1 to {features.shape[1]}")
    if not _has(counted).any():
        raise DataError("no sample has a transformed version: there is nothing to measure")
    if not (np.isfinite(features).all() and np.isfinite(versions[counted]).all()):
        raise DataError("the network gives features that are not finite: its weights are broken")
    return counted


def _has(counted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(N,): which samples count. Where nobody has versions, because none were asked for, all do."""
    return counted.sum(axis=1) > 0 if counted.shape[1] else np.ones(len(counted), bool)


def _blocks(versions: Floats) -> Iterator[slice]:
    """Divide the units so that what is compared at a time stays bounded."""
    samples, length, dim = versions.shape
    units = max(1, _BLOCK // (samples * (1 + length)))
    for first in range(0, dim, units):
        yield slice(first, min(first + units, dim))


def _ordered(own: Floats, changed: Floats, counted: NDArray[np.bool_], population: Population) -> Floats:
    """Sort the values of each unit over the population: (M, units)."""
    return np.sort(own if population == "samples" else np.concatenate([own, changed[counted]]), axis=0)


def _rates(fires: NDArray[np.bool_], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, L, units) and (n, L) to (units,): the weighted share that fires."""
    share: NDArray[np.float64] = weight.ravel() @ fires.reshape(-1, fires.shape[-1]).astype(np.float64)
    return share


def _still_firing(
    fires: NDArray[np.bool_],
    changed: NDArray[np.bool_],
    weights: NDArray[np.float64],
    has: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """(units,): the share of versions that fire, of the samples that fire and have versions."""
    fires = fires & has[:, None]
    share = np.einsum("nv,nvd->nd", weights, changed)
    rates: NDArray[np.float64] = (share * fires).sum(axis=0) / np.maximum(fires.sum(axis=0), 1)
    return rates


def _top(scores: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """(C, D) to (C,): the mean of the `count` largest of each row."""
    found: NDArray[np.float64] = np.partition(scores, -count, axis=1)[:, -count:].mean(axis=1)
    return found
