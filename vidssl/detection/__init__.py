"""Object detection from a pre-trained 2D backbone: images with boxes, detectors, average precision."""

from vidssl.detection.settings import DetectionData, DetectionEvaluate, DetectorSettings, ImageSettings

__all__ = ["DetectionData", "DetectionEvaluate", "DetectorSettings", "ImageSettings"]
