"""Invariances of a representation, measured on the features of transformed clips."""

from vidssl.analysis.transformed_clips import TRANSFORMATIONS
from vidssl.analysis.unit_invariance import Invariance, class_invariance, firing_invariance

__all__ = ["TRANSFORMATIONS", "Invariance", "class_invariance", "firing_invariance"]
