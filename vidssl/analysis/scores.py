"""Invariance scores of one network, from its features of clips and of their transformed versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vidssl.analysis.invariance import Invariance, Population, class_invariance, firing_invariance
from vidssl.analysis.transformed_features import TRANSFORMATIONS, Trajectories, TrajectoryFeatures
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.randomness import generator

Variant = Literal["class", "goodfellow"]
_RATE = 0.01  # firing rate of the variant goodfellow


@dataclass(frozen=True)
class Measure:
    """What is measured.

    Attributes:
        transformations: Names; None: all that apply.
        top_k: Number of best units, of each class or of all.
        variant: `class_invariance`, or `firing_invariance` of Goodfellow et al.
        population: The values from which thresholds are computed.
        boxes: File of the instances' boxes.
    """

    transformations: Sequence[str] | None = None
    top_k: int = 10
    variant: Variant = "class"
    population: Population = "all"
    boxes: Path | None = None


def score_features(
    features: TrajectoryFeatures, trajectories: Trajectories, videos: VideoList, measure: Measure
) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
    """Return the scores by name, their details, and the transformations that change no clip, with the reason."""
    labels = np.array([videos.records[n].label for n in features.index])
    x, order = features.x, generator(0, len(labels)).permutation(len(labels))

    def score(
        versions: NDArray[np.float32],
        counted: NDArray[np.bool_] | None = None,
        of: NDArray[np.int64] = labels,
        population: Population = measure.population,
    ) -> Invariance:
        top_k = measure.top_k
        if measure.variant == "class":
            return class_invariance(x, versions, of, top_k=top_k, counted=counted, population=population)
        return firing_invariance(x, versions, top_k=top_k, counted=counted, population=population, rate=_RATE)

    # Versions that are the sample itself or another sample do not enter the population.
    if measure.variant == "class":
        nothing = features.versions[:, :0]
        unchanged, shuffled = score(nothing), score(nothing, of=labels[order])
    else:
        unchanged, shuffled = (score(v, population="samples") for v in (x[:, None], x[order, None]))
    scores: dict[str, float] = {}
    details: dict[str, Any] = {}
    without: dict[str, str] = {}
    places = trajectories.places
    for name in trajectories.names:
        counted = features.changed[:, places[name]]
        if not counted.any():
            without[name] = "it changes no clip: the videos are too small or too short for it, or have no box"
            continue
        found = score(features.versions[:, places[name]], counted)
        scores[name] = found.score
        details[name] = {
            "amounts_are": TRANSFORMATIONS[name].unit,
            "versions": found.versions,
            "unchanged_versions": int(counted.size) - found.versions,
            "samples": found.samples,
            "ceiling": found.ceiling,
            "per_class": {
                videos.class_name(int(label)): float(of_class)
                for label, of_class in zip(found.classes, found.of_class, strict=True)
            },
        }
    if not scores:
        raise DataError(f"no transformation changes any clip of {videos.path}: name others")
    numbers = {
        "invariance_mean": float(np.mean([*scores.values()])),
        **{f"invariance_{name}": value for name, value in scores.items()},
        "invariance_unchanged": unchanged.score,
        "invariance_shuffled": shuffled.score,
        "invariance_ceiling": unchanged.ceiling,
    }
    return numbers, details, without
