"""The training of a detector: what differs from that of a method on videos."""

import logging
from collections.abc import Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from vidssl import distributed
from vidssl.config import Tree
from vidssl.data.box_list import BoxList, KeyFrameList, read_boxes
from vidssl.data.fingerprint import identify
from vidssl.detection.action_detector import ActionDetector
from vidssl.detection.average_precision import check_pycocotools
from vidssl.detection.detector import Detector
from vidssl.detection.images import BoxDataset, TargetDataset, batches
from vidssl.detection.key_frames import KeyFrameDataset
from vidssl.detection.measure import AnyDetector, measure_detector
from vidssl.engine.batch_feed import Feed
from vidssl.engine.detection_schema import ActionRun, AnyDetectionRun
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.setup import Training
from vidssl.errors import ConfigError, DataError, naming
from vidssl.evaluation.overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.evaluation.result_files import complete, write_results
from vidssl.methods.base import Method
from vidssl.models.backbones import Backbone
from vidssl.transforms.recipes import TrainCrop

_log = logging.getLogger(__name__)


class DetectionTraining(Training[AnyDetectionRun]):
    """The training of a detector of objects in images, or of actions in key frames of videos."""

    def read_list(self) -> BoxList:
        """Read the lists of boxes; images without an object are not trained on, as in Detectron2."""
        if not isinstance(self.run, ActionRun):
            check_pycocotools()
        data, evaluate = self.run.data, self.run.evaluate
        self.samples = "key frames" if isinstance(self.run, ActionRun) else "images"
        paths = [data.train] if isinstance(data.train, str) else data.train
        with naming("data.train"):
            self.boxes = boxes = read_list(self.run, paths, data.root).images_with_objects()
        with naming("evaluate.list"):
            self.tested = None if evaluate.list is None else read_evaluation_list(self.run, evaluate.list, data.root)
        if self.tested is not None and self.tested.classes != boxes.classes:
            raise DataError(f"{self.tested.path} has other classes than {boxes.path}: prepare both lists from one set")
        if self.tested is not None:
            trained = TrainingVideos(str(boxes.path), boxes, fingerprint=boxes.fingerprint)
            self.overlap = measure_overlap(self.tested, None, lambda: trained)
            distributed.on_main(partial(report_overlap, self.overlap, self.tested.path))
        return boxes

    def build_method(self, backbone: Backbone) -> Method:
        """Build the detector around its backbone."""
        return build_detector(self.run, backbone, len(self.boxes.classes))

    def clip_sizes(self) -> set[tuple[int, int]]:
        """Return one size for all: those of images differ."""
        return {(self.run.data.frames if isinstance(self.run, ActionRun) else 1, 224)}

    def new_feed(self) -> Feed:
        """Start the batches of the steps from the current one on."""
        return DetectionFeed(batches(training_data(self.run, self.boxes), self.keys(), self.device), self.request)

    def evaluation_is_due(self) -> bool:
        """Whether the current step is the last, or a multiple of `evaluate.every`."""
        step, every = self.state.step, self.run.evaluate.every
        return self.tested is not None and (step == self.steps or (every is not None and step % every == 0))

    def measure(self) -> dict[str, float]:
        """Measure the detector on `evaluate.list`, and write `results.json`."""
        assert self.tested is not None
        run, tested = self.run, self.tested
        dataset = evaluation_data(run, tested, run.evaluate.short_side)
        detector = cast(AnyDetector, self.method)
        numbers = measure_detector(detector, dataset, run.evaluate.batch_size, self.device, self.request.check)
        content = {
            "numbers": numbers,
            "step": self.state.step,
            "list": str(tested.path),
            "fingerprint": tested.fingerprint,
            **tested.counts(),
            "config": run.model_dump(mode="json"),
        }
        weights = {"step": self.state.step, "config": content["config"]}  # the checkpoint of the step comes later
        request = request_of_test(weights, run, tested, run.evaluate.short_side)
        results = complete(content, request=request, overlap=self.overlap, query=tested.fingerprint)
        distributed.on_main(lambda: write_results(Path(run.output), results))
        return numbers

    def describe(self) -> str:
        """Name the detector."""
        if isinstance(self.run, ActionRun):
            return "action detector"
        return f"{'Mask' if self.run.detector.masks else 'Faster'} R-CNN ({self.run.detector.name})"


class DetectionFeed(Feed):
    """The batches of a detector: they are on the device already, and none replaces a broken image."""

    def __init__(self, made: Generator[Any, None, None], request: StopRequest) -> None:
        self._batches, self._request = made, request


def read_list(run: AnyDetectionRun, paths: Sequence[str | Path], root: str | Path | None) -> BoxList:
    """Read lists of boxes; a ConfigError if they do not fit the detector of a run."""
    boxes = read_boxes(paths, root)
    if isinstance(run, ActionRun) != isinstance(boxes, KeyFrameList):
        if isinstance(run, ActionRun):
            raise ConfigError(
                f"{boxes.path} is a list of images: action_detector needs key frames of videos, with `time`, as vidssl "
                "prepare ava writes them"
            )
        raise ConfigError(f"{boxes.path} has key frames of videos (`time`): detector needs a list of images")
    if not isinstance(run, ActionRun) and run.detector.masks and boxes.outlines is None:
        raise ConfigError(f"{boxes.path} has objects without outlines: set detector.masks=false")
    return boxes


def read_evaluation_list(run: AnyDetectionRun, path: str | Path, root: str | Path | None) -> BoxList:
    """Read the list of a test; a DataError if it has no objects, a warning if its ground truth is classified."""
    boxes = read_list(run, [path], root)
    if not boxes.counts()["objects"]:
        raise DataError(f"{path} has no objects to find: choose another list")
    if isinstance(boxes, KeyFrameList) and not boxes.has_proposals and distributed.is_main():
        _log.warning(
            "%s has no proposals: the ground-truth boxes are classified, so AP50 is higher than with detected persons "
            "(vidssl prepare ava --proposals)",
            path,
        )
    return boxes


def request_of_test(weights: Tree, run: AnyDetectionRun, boxes: BoxList, short_side: int) -> Tree:
    """Return what decides the average precisions of a detector on a list; called on all processes."""
    data = distributed.on_main(lambda: identify(boxes))
    decoding = run.data.model_dump(mode="json", include={"backend", "fps"})
    return {
        "weights": weights,
        "command": "test",
        "protocol": {"short_side": short_side, **decoding},
        "list": boxes.fingerprint,
        "data": data,
    }


def build_detector(run: AnyDetectionRun, backbone: Backbone, classes: int) -> AnyDetector:
    """Build the detector of a run."""
    if isinstance(run, ActionRun):
        return ActionDetector(run.action_detector, backbone, classes)
    return Detector(run.detector, backbone, classes)


def training_data(run: AnyDetectionRun, boxes: BoxList) -> TargetDataset:
    """Make the training samples of a list that `read_list` returned."""
    if isinstance(run, ActionRun):
        return KeyFrameDataset(cast(KeyFrameList, boxes), run.data, TrainCrop(run.data.view), run.seed)
    return BoxDataset(boxes, run.data, run.data.short_sides, run.data.flip, run.detector.masks, run.seed)


def evaluation_data(run: AnyDetectionRun, boxes: BoxList, short_side: int) -> TargetDataset:
    """Make the test samples of a list that `read_list` returned; `short_side` in pixels."""
    if isinstance(run, ActionRun):
        return KeyFrameDataset(cast(KeyFrameList, boxes), run.data, short_side)
    return BoxDataset(boxes, run.data, (short_side,))
