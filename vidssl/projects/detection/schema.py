"""The configs of runs of detectors: of objects in images, and of actions in videos."""

from typing import Any, ClassVar

from pydantic import create_model

from vidssl.config import Tree, bind, choice, without_former
from vidssl.engine.config_schema import run_kind
from vidssl.engine.settings_of_all_runs import RunSettings
from vidssl.errors import ConfigError
from vidssl.models.backbones import BACKBONES
from vidssl.plugins import import_modules, modules_of, stored_imports
from vidssl.projects.detection.config_sections import (
    ActionData,
    ActionDetectorSettings,
    ActionEvaluate,
    DetectionData,
    DetectionEvaluate,
    DetectorSettings,
)
from vidssl.registry import load_named


class DetectionRun(RunSettings):
    """A run of a detector on images with boxes: the config has `detector` instead of `method`."""

    outputs: ClassVar[tuple[str, ...]] = (*RunSettings.outputs, "results.json")
    data: DetectionData
    detector: DetectorSettings
    evaluate: DetectionEvaluate = DetectionEvaluate()


class ActionRun(RunSettings):
    """A run of a detector of actions on key frames of videos: the config has `action_detector` instead of `method`."""

    outputs: ClassVar[tuple[str, ...]] = DetectionRun.outputs
    data: ActionData
    action_detector: ActionDetectorSettings
    evaluate: ActionEvaluate = ActionEvaluate()

    @property
    def decoder(self) -> str:
        """What decodes its videos."""
        return self.data.backend


AnyDetectionRun = DetectionRun | ActionRun
_KINDS: dict[str, type[DetectionRun | ActionRun]] = {"detector": DetectionRun, "action_detector": ActionRun}
# Settings of earlier versions, see `without_former`.
_FORMER = {"data.prefetch": ..., "detector.batch_norm": "tuned", "action_detector.dilated": True}


def bind_run(tree: Tree, source: str) -> AnyDetectionRun:
    """Bind a config that a user passes, after importing the modules of `imports`; all mistakes are one ConfigError."""
    import_modules(modules_of(tree, source), f"{source}: imports")
    return _bind(tree, source)


def bind_stored(tree: Any, source: str, trust: bool = False) -> AnyDetectionRun:
    """Bind a config that lies in a file of weights; as `stored_imports`."""
    with stored_imports(tree, source, trust):
        return _bind(without_former(tree, _FORMER), source)


def _bind(tree: Tree, source: str) -> AnyDetectionRun:
    kind = run_kind(tree, source)
    if kind not in _KINDS:
        raise ConfigError(f"{source} has no detector, which a list of boxes needs: choose a checkpoint of one")
    load_named(tree)
    parts: Any = {"backbone": (choice(BACKBONES), ...)}  # all that are registered so far
    schema: type[AnyDetectionRun] = create_model(_KINDS[kind].__name__, __base__=_KINDS[kind], **parts)
    return bind(schema, tree, source)
