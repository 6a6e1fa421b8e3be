"""What networks see: invariances, robustness, classes, backgrounds and Grad-CAM, on changed versions of clips."""

from vidssl.analysis.transformed_clips import TRANSFORMATIONS
from vidssl.analysis.unit_invariance import Invariance, class_invariance, firing_invariance

__all__ = ["TRANSFORMATIONS", "Invariance", "class_invariance", "firing_invariance"]
