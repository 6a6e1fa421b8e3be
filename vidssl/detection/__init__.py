"""Object detection from a pre-trained 2D backbone: images with boxes, detectors, average precision."""

from vidssl.detection.detector import Detector
from vidssl.detection.images import DetectionBatch, ImageSettings
from vidssl.detection.measure import measure_detector

__all__ = ["DetectionBatch", "Detector", "ImageSettings", "measure_detector"]
