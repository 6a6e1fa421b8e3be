"""How detectors of objects in images and of actions in videos are measured, in training and by the job `test`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch

from vidssl.apps.detection.average_precision import Detections, check_pycocotools
from vidssl.apps.detection.coco_lists import BoxList, KeyFrameList, read_boxes
from vidssl.apps.detection.config import ActionRun, AnyDetectionRun, DetectionRun, bind_stored
from vidssl.apps.detection.detectors import ActionDetector, Detector
from vidssl.apps.detection.images_and_clips import (
    BoxDataset,
    DetectionBatch,
    KeyFrameDataset,
    Target,
    TargetDataset,
    batches,
)
from vidssl.base import distributed
from vidssl.base.atomic import file_hash
from vidssl.base.config import Tree, build
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError, DataError, naming
from vidssl.base.progress import progress
from vidssl.data.list_identity import identify
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.training_lists import known_lists
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.train_test_overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.jobs.job import Model, NetworkOptions
from vidssl.jobs.measurement_runner import JobResults, claim_results, format_table
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.eval_mode import eval_mode
from vidssl.models.read_and_write_weights import load_state, read_checkpoint
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


def detection_list(task: AnyTask) -> BoxList:
    """Read the lists that a run trains on; images without an object are left out, as in Detectron2."""
    data = task.run.data
    paths = [data.train] if isinstance(data.train, str) else data.train
    with naming("data.train"):
        return task.read(paths, data.root).images_with_objects()


AnyDetector = Detector | ActionDetector


def measure_detector(
    detector: AnyDetector, dataset: TargetDataset, batch_size: int, device: torch.device, check: Callable[[], None]
) -> dict[str, float]:
    """Detect the objects of all images of a list, divided among the processes, and return the average precisions.

    `check` is called for each batch, and may raise to stop. A list without an object that counts is a DataError.
    """
    boxes = dataset.boxes
    if (boxes.crowd | boxes.difficult).all():
        raise DataError(
            f"{boxes.path} has no object that counts ({len(boxes.boxes)} are difficult or crowds): average precision "
            "is undefined; evaluate on a list with objects"
        )
    with eval_mode(detector):
        outcomes = distributed.gather_outcomes(partial(_detect, detector, dataset, batch_size, device, check))
    detections = sorted(chain(*outcomes), key=lambda detections: detections.index)
    return distributed.on_main(lambda: detector.average_precisions(detections, boxes))


def _detect(
    detector: AnyDetector, dataset: TargetDataset, batch_size: int, device: torch.device, check: Callable[[], None]
) -> list[Detections]:
    """Detect the objects of the images of this process."""
    images = range(distributed.rank(), len(dataset.boxes), distributed.world())
    keys = [[(0, n) for n in images[first : first + batch_size]] for first in range(0, len(images), batch_size)]
    detections = []
    with progress(title="detect", unit="image", total=len(images), leave=False) as bar:
        for batch in batches(dataset, keys, device):
            check()
            detections += _in_files(batch, detector.detect(batch), dataset.boxes)
            bar.update(len(batch.index))
    return detections


def _in_files(batch: DetectionBatch, targets: list[Target], boxes: BoxList) -> list[Detections]:
    """Convert detections to the units of the list: pixels of the image files, or fractions of key frames."""
    detections = []
    for index, image, target in zip(batch.index.tolist(), batch.images, targets, strict=True):
        height, width = boxes.sizes[index].tolist()
        scale = target["boxes"].new_tensor([width / image.shape[-1], height / image.shape[-2]] * 2)
        corners = target["boxes"] * scale
        detections.append(
            Detections(
                index,
                corners.cpu().numpy(),
                target["labels"].cpu().numpy() - 1,
                target["scores"].cpu().numpy(),
                _run_lengths(target["masks"], corners, height, width) if "masks" in target else (),
            )
        )
    return detections


def _run_lengths(masks: torch.Tensor, corners: torch.Tensor, height: int, width: int) -> tuple[dict[str, object], ...]:
    """Paste masks (n, 1, M, M) into their boxes in an image, and encode them for pycocotools."""
    from pycocotools import mask as coco_mask
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    pasted = paste_masks_in_image(masks, corners, (height, width)) > 0.5
    return tuple(coco_mask.encode(np.asfortranarray(mask[0].cpu().numpy().astype(np.uint8))) for mask in pasted)


_log = logging.getLogger(__name__)


class Evaluation:
    """The test of a detector on `evaluate.list`, at the end of its training and with `every` also before.

    The list is checked when it is made, against the training list: before hours of training.
    """

    def __init__(self, task: AnyTask, trained: BoxList) -> None:
        self.task, self.settings = task, task.run.evaluate
        assert self.settings.list is not None
        with naming("evaluate.list"):
            self.boxes = boxes = test_list(task, self.settings.list, task.run.data.root)
        if boxes.classes != trained.classes:
            raise DataError(f"{boxes.path} has other classes than {trained.path}: prepare both lists from one set")
        known = TrainingVideos(str(trained.path), trained, fingerprint=trained.fingerprint)
        self.overlap = measure_overlap(boxes, None, lambda: known)
        distributed.on_main(partial(report_overlap, self.overlap, boxes.path))

    def measure(
        self, detector: AnyDetector, step: int, device: torch.device, check: Callable[[], None]
    ) -> dict[str, float]:
        """Measure the detector after a step, and write `results.json`; `check` as in `measure_detector`."""
        run, boxes, short_side = self.task.run, self.boxes, self.settings.short_side
        dataset = self.task.test_data(boxes, short_side)
        numbers = measure_detector(detector, dataset, self.settings.batch_size, device, check)
        config = run.model_dump(mode="json")
        # The checkpoint of the step comes later: until then step and config stand for the weights.
        request = request_of_test({"step": step, "config": config}, self.task, boxes, short_side)
        content = {"numbers": numbers, "step": step, **describe_list(boxes), "config": config}
        results = complete(content, request=request, overlap=self.overlap, query=boxes.fingerprint)
        distributed.on_main(lambda: write_results(Path(run.output), results))
        return numbers


def test_list(task: AnyTask, path: str | Path, root: str | Path | None) -> BoxList:
    """Read the list of a test; a DataError if it has no objects, a warning if its ground truth is classified."""
    boxes = task.read([path], root)
    if not boxes.counts()["objects"]:
        raise DataError(f"{path} has no objects to find: choose another list")
    if isinstance(boxes, KeyFrameList) and not boxes.has_proposals and distributed.is_main():
        _log.warning(
            "%s has no proposals: the ground-truth boxes are classified, so AP50 is higher than with detected persons "
            "(vidssl prepare ava --proposals)",
            path,
        )
    return boxes


def describe_list(boxes: BoxList) -> Tree:
    """Describe a tested list, for `results.json`."""
    return {"list": str(boxes.path), "fingerprint": boxes.fingerprint, **boxes.counts()}


def request_of_test(weights: Tree, task: AnyTask, boxes: BoxList, short_side: int) -> Tree:
    """Return what decides the average precisions of a detector on a list; called on all processes."""
    data = distributed.on_main(lambda: identify(boxes))
    decoding = task.run.data.model_dump(mode="json", include={"backend", "fps"})
    return {
        "weights": weights,
        "command": "test",
        "protocol": {"short_side": short_side, **decoding},
        "list": boxes.fingerprint,
        "data": data,
    }


_USED = ("device", "workers", "batch_size", "short_side", "root", "trust", "imports")  # options of networks


def test(
    model: Model, videos: Path, out: Path | None, options: NetworkOptions, others: Sequence[str] = ()
) -> JobResults:
    """Measure a detector on a list of boxes; return the numbers by name. `others` are arguments of clips, if given."""
    if unused := [*others, *(name for name in options if name not in _USED)]:
        raise ConfigError(f"{unused[0]} does not fit a list of boxes: leave it out")
    if not isinstance(model, str | Path) or out is None:
        raise ConfigError("a detector is measured by its checkpoint, with a folder for the results: give out=FOLDER")
    claim_results(out, "test of a detector", {"list": videos}, [Path(model)])
    results = JobResults(_measure(Path(model), videos, out, options))
    rows = [(name, f"{100 * value:.1f}") for name, value in results["numbers"].items()]
    results.text, results.file = "\n".join(format_table(rows, "<>")), out / "results.json"
    return results


def _measure(checkpoint: Path, videos: Path, out: Path, options: NetworkOptions) -> Results:
    trust = options.get("trust", False)
    stored = read_checkpoint(checkpoint, trust)
    run = bind_stored(stored["config"], f"config of {checkpoint}", trust)
    if "workers" in options:
        data = run.data.model_copy(update={"workers": options["workers"]})
        run = run.model_copy(update={"data": data})
    task = task_of(run)
    boxes = test_list(task, videos, options.get("root", run.data.root))
    if list(boxes.classes) != stored["classes"]:
        raise ConfigError(f"{videos} has other classes than the detector was trained on: prepare it from that set")
    detector = task.detector(build(BACKBONES, run.backbone), len(boxes.classes))
    load_state(detector, stored["method"], str(checkpoint))
    short_side = options.get("short_side", run.evaluate.short_side)
    dataset = task.test_data(boxes, short_side)
    device, size = choose_device(options.get("device", "auto")), options.get("batch_size", run.evaluate.batch_size)
    trained = [run.data.train] if isinstance(run.data.train, str) else run.data.train
    with distributed.joined(device), StopRequest().listening() as stop:
        origin = {"path": str(checkpoint), "sha256": file_hash(checkpoint), "step": stored["step"]}
        request = request_of_test({"sha256": origin["sha256"]}, task, boxes, short_side)
        distributed.on_main(lambda: existing_results(out, request, reuse=False))
        overlap = measure_overlap(
            boxes,
            None,
            lambda: known_lists(trained, lambda: read_boxes(trained, run.data.root).images_with_objects(), stored),
        )
        distributed.on_main(lambda: report_overlap(overlap, videos))
        numbers = measure_detector(detector.to(device), dataset, size, device, stop.check)
        content = {"numbers": numbers, **describe_list(boxes), "short_side": short_side, "checkpoint": origin}
        results = complete(content, request=request, overlap=overlap, query=boxes.fingerprint)
        distributed.on_main(lambda: write_results(out, results))
    return results
