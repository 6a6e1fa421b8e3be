"""Invariances of a representation, measured on the features of transformed clips."""

from vidssl.analysis.firing_invariance import Invariance, class_invariance, firing_invariance
from vidssl.analysis.trajectories import TRANSFORMATIONS

__all__ = ["TRANSFORMATIONS", "Invariance", "class_invariance", "firing_invariance"]
