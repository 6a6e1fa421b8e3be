"""Features of videos, and what they are worth: retrieval, nearest neighbours, uniformity."""

from vidssl.evaluation.features import TestClips, extract
from vidssl.evaluation.protocols import PROTOCOLS

__all__ = ["PROTOCOLS", "TestClips", "extract"]
