"""The configs of runs of detectors: of objects in images, and of actions in videos."""

from typing import Any

from pydantic import create_model

from vidssl.config import choice
from vidssl.detection import (
    ActionData,
    ActionDetectorSettings,
    ActionEvaluate,
    DetectionData,
    DetectionEvaluate,
    DetectorSettings,
)
from vidssl.engine.run_settings import RunSettings
from vidssl.models.backbones import BACKBONES


class DetectionRun(RunSettings):
    """A run of a detector on images with boxes: the config has `detector` instead of `method`."""

    data: DetectionData
    detector: DetectorSettings
    evaluate: DetectionEvaluate = DetectionEvaluate()


class ActionRun(RunSettings):
    """A run of a detector of actions on key frames of videos: the config has `action_detector` instead of `method`."""

    data: ActionData
    action_detector: ActionDetectorSettings
    evaluate: ActionEvaluate = ActionEvaluate()


AnyDetectionRun = DetectionRun | ActionRun
KINDS: dict[str, type[DetectionRun] | type[ActionRun]] = {"detector": DetectionRun, "action_detector": ActionRun}


def detection_schema(kind: type[DetectionRun] | type[ActionRun]) -> type[DetectionRun] | type[ActionRun]:
    """Make the type of a run of a detector, with all backbones registered so far."""
    parts: Any = {"backbone": (choice(BACKBONES), ...)}
    return create_model(kind.__name__, __base__=kind, **parts)
