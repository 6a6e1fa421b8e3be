"""What differs between detectors of objects in images and detectors of actions in key frames of videos."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from vidssl.errors import ConfigError, naming
from vidssl.models.backbones import Backbone
from vidssl.projects.detection.action_detector import ActionDetector
from vidssl.projects.detection.average_precision import check_pycocotools
from vidssl.projects.detection.detector import Detector
from vidssl.projects.detection.images import BoxDataset, TargetDataset
from vidssl.projects.detection.key_frames import KeyFrameDataset
from vidssl.projects.detection.lists_with_boxes import BoxList, KeyFrameList, read_boxes
from vidssl.projects.detection.schema import ActionRun, AnyDetectionRun, DetectionRun
from vidssl.transforms.recipes import TrainCrop


@dataclass(frozen=True)
class ObjectTask:
    """The objects in images, by Faster or Mask R-CNN."""

    run: DetectionRun
    samples: ClassVar[str] = "images"

    @property
    def title(self) -> str:
        """Name of the detector, for the log."""
        return f"{'Mask' if self.run.detector.masks else 'Faster'} R-CNN ({self.run.detector.name})"

    @property
    def frames(self) -> int:
        """Frames of a sample."""
        return 1

    def read(self, paths: Sequence[str | Path], root: str | Path | None) -> BoxList:
        """Read lists of boxes; a ConfigError if they do not fit the detector, or pycocotools is missing."""
        check_pycocotools()
        boxes = read_boxes(paths, root)
        if isinstance(boxes, KeyFrameList):
            raise ConfigError(f"{boxes.path} has key frames of videos (`time`): detector needs a list of images")
        if self.run.detector.masks and boxes.outlines is None:
            raise ConfigError(f"{boxes.path} has objects without outlines: set detector.masks=false")
        return boxes

    def detector(self, backbone: Backbone, classes: int) -> Detector:
        """Build the detector."""
        return Detector(self.run.detector, backbone, classes)

    def training_data(self, boxes: BoxList) -> TargetDataset:
        """Make the training samples of a list that `read` returned."""
        data = self.run.data
        return BoxDataset(boxes, data, data.short_sides, data.flip, self.run.detector.masks, self.run.seed)

    def test_data(self, boxes: BoxList, short_side: int) -> TargetDataset:
        """Make the test samples of a list that `read` returned; `short_side` in pixels."""
        return BoxDataset(boxes, self.run.data, (short_side,))


@dataclass(frozen=True)
class ActionTask:
    """The actions of the persons in key frames of videos."""

    run: ActionRun
    samples: ClassVar[str] = "key frames"
    title: ClassVar[str] = "action detector"

    @property
    def frames(self) -> int:
        """Frames of a sample."""
        return self.run.data.frames

    def read(self, paths: Sequence[str | Path], root: str | Path | None) -> BoxList:
        """Read lists of key frames; a ConfigError if they are lists of images."""
        boxes = read_boxes(paths, root)
        if not isinstance(boxes, KeyFrameList):
            raise ConfigError(
                f"{boxes.path} is a list of images: action_detector needs key frames of videos, with `time`, as vidssl "
                "prepare ava writes them"
            )
        return boxes

    def detector(self, backbone: Backbone, classes: int) -> ActionDetector:
        """Build the detector."""
        return ActionDetector(self.run.action_detector, backbone, classes)

    def training_data(self, boxes: BoxList) -> TargetDataset:
        """Make the training samples of a list that `read` returned."""
        crop = TrainCrop(self.run.data.view)
        return KeyFrameDataset(cast(KeyFrameList, boxes), self.run.data, crop, self.run.seed)

    def test_data(self, boxes: BoxList, short_side: int) -> TargetDataset:
        """Make the test samples of a list that `read` returned; `short_side` in pixels."""
        return KeyFrameDataset(cast(KeyFrameList, boxes), self.run.data, short_side)


AnyTask = ObjectTask | ActionTask


def task_of(run: AnyDetectionRun) -> AnyTask:
    """Return what a run detects."""
    return ActionTask(run) if isinstance(run, ActionRun) else ObjectTask(run)


def training_list(task: AnyTask) -> BoxList:
    """Read the lists that a run trains on; images without an object are left out, as in Detectron2."""
    data = task.run.data
    paths = [data.train] if isinstance(data.train, str) else data.train
    with naming("data.train"):
        return task.read(paths, data.root).images_with_objects()
