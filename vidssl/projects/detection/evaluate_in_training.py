"""The test of a detector: its list, what decides the numbers, and `results.json`."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from vidssl import distributed
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.errors import DataError, naming
from vidssl.evaluation.result_files import complete, write_results
from vidssl.evaluation.train_test_overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.projects.detection.lists_with_boxes import BoxList, KeyFrameList
from vidssl.projects.detection.measure_detector import AnyDetector, measure_detector
from vidssl.projects.detection.tasks import AnyTask

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

    def due(self, step: int, steps: int) -> bool:
        """Whether a step of `steps` is the last, or a multiple of `evaluate.every`."""
        return step == steps or (self.settings.every is not None and step % self.settings.every == 0)

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
