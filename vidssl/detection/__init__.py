"""Detectors on a pre-trained backbone, of objects in images and of actions in videos, and their average precision."""

from vidssl.detection.settings import (
    ActionData,
    ActionDetectorSettings,
    ActionEvaluate,
    DetectionData,
    DetectionEvaluate,
    DetectorSettings,
    ImageSettings,
)

__all__ = [
    "ActionData",
    "ActionDetectorSettings",
    "ActionEvaluate",
    "DetectionData",
    "DetectionEvaluate",
    "DetectorSettings",
    "ImageSettings",
]
