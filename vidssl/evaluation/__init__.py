"""Evaluation: features of videos and the protocols that measure them."""

from vidssl.evaluation.features import TestClips, extract_features
from vidssl.evaluation.protocols import PROTOCOLS

__all__ = ["PROTOCOLS", "TestClips", "extract_features"]
