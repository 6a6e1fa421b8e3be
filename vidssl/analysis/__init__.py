"""Invariances of a representation, measured on the features of transformed clips."""

from vidssl.analysis.invariance import Invariance, class_invariance, firing_invariance
from vidssl.analysis.transformed_features import (
    TRANSFORMATIONS,
    Trajectories,
    choose_transformations,
    trajectory_features,
)

__all__ = [
    "TRANSFORMATIONS",
    "Invariance",
    "Trajectories",
    "choose_transformations",
    "class_invariance",
    "firing_invariance",
    "trajectory_features",
]
