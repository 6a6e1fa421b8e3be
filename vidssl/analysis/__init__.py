"""Invariances of a representation, measured on the features of transformed clips."""

from vidssl.analysis.invariance import Invariance, class_invariance, firing_invariance
from vidssl.analysis.transformed_features import TRANSFORMATIONS

__all__ = ["TRANSFORMATIONS", "Invariance", "class_invariance", "firing_invariance"]
