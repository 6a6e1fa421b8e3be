"""Invariance scores of one network, from its features of clips and of their transformed versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vidssl.analysis.transformed_clips import TRANSFORMATIONS, Trajectories, TrajectoryFeatures
from vidssl.analysis.unit_invariance import Floats, Invariance, Mask, Population, class_invariance, firing_invariance
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.keyed_generators import generator

_SHUFFLES = 39  # stream of random numbers


@dataclass(frozen=True)
class Measure:
    """What is measured."""

    transformations: Sequence[str] | None = None  # names; None: all that apply
    top_k: int = 10  # number of best units, of each class or of all
    variant: Literal["class", "goodfellow"] = "class"  # `class_invariance` or `firing_invariance`
    population: Population = "all"  # the values from which thresholds are computed
    boxes: Path | None = None  # file of the instances' boxes


def score_features(
    features: TrajectoryFeatures, trajectories: Trajectories, videos: VideoList, measure: Measure
) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
    """Return the scores by name, their details, and the transformations that change no clip, with the reason."""
    x, labels = features.x, videos.labels[features.index]
    by_class = measure.variant == "class"

    def score(labels: NDArray[np.int64], versions: Floats, counted: Mask | None, population: Population) -> Invariance:
        if by_class:
            return class_invariance(x, versions, labels, top_k=measure.top_k, counted=counted, population=population)
        return firing_invariance(x, versions, top_k=measure.top_k, counted=counted, population=population)

    # Each sample is its own version, or another sample is: these do not enter the population.
    order = generator(0, len(labels)).permutation(len(labels))
    unchanged = score(labels, x[:, None], None, "samples")
    shuffled = score(labels[order], x[:, None] if by_class else x[order, None], None, "samples")
    scores: dict[str, float] = {}
    details: dict[str, Any] = {}
    without: dict[str, str] = {}
    for name, place in trajectories.places.items():
        counted = features.changed[:, place]
        if not counted.any():
            without[name] = "it changes no clip: the videos are too small or too short for it, or have no box"
            continue
        found = score(labels, features.versions[:, place], counted, measure.population)
        classes = [videos.class_name(int(label)) for label in found.classes]
        scores[f"invariance_{name}"] = found.score
        details[name] = {
            "amounts_are": TRANSFORMATIONS[name].unit,
            "versions": found.versions,
            "unchanged_versions": counted.size - found.versions,
            "samples": found.samples,
            "ceiling": found.ceiling,
            "per_class": dict(zip(classes, found.of_class.tolist(), strict=True)),
        }
    if not scores:
        raise DataError(f"no transformation changes any clip of {videos.path}: name others")
    numbers = {
        "invariance_mean": float(np.mean([*scores.values()])),
        **scores,
        "invariance_unchanged": unchanged.score,
        "invariance_shuffled": shuffled.score,
        "invariance_ceiling": unchanged.ceiling,
    }
    return numbers, details, without


def shuffled_scores(
    features: TrajectoryFeatures, videos: VideoList, measure: Measure, groups: NDArray[np.int64], count: int
) -> list[float]:
    """Score unchanged clips with shuffled labels, `count` times: what the best units reach by chance.

    Recordings (N of the list) of equal numbers of clips exchange their labels, as their videos are alike.
    """
    x, labels, group = features.x, videos.labels[features.index], groups[features.index]
    members = [np.flatnonzero(group == each) for each in np.unique(group)]
    by_size: dict[int, list[NDArray[np.int64]]] = {}
    for rows in members:
        by_size.setdefault(len(rows), []).append(rows)
    found = []
    for draw in range(count):
        shuffled = labels.copy()
        for size, same in by_size.items():
            order = generator(0, _SHUFFLES, draw, size).permutation(len(same))
            for rows, place in zip(same, order, strict=True):
                shuffled[rows] = labels[same[place]]
        score = class_invariance(x, x[:, None], shuffled, top_k=measure.top_k, population="samples").score
        found.append(score)
    return found
