"""The training of a detector, in the manner of torchvision's references."""

from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar, cast

from vidssl.apps.detection.coco_lists import BoxList
from vidssl.apps.detection.config import AnyDetectionRun, bind_run, bind_stored
from vidssl.apps.detection.evaluation import AnyDetector, Evaluation, detection_list, task_of
from vidssl.apps.detection.images_and_clips import BoxFeed, batches
from vidssl.engine.checkpoint import Bind
from vidssl.engine.run_setup import AnyTraining, initial_backbone, log_banner
from vidssl.engine.train import train_on

__all__ = ["bind_run", "bind_stored", "train"]  # of the project: see `vidssl.base.registry`


def train(run: AnyDetectionRun, until: int | None = None) -> Path:
    """Train to the end of the run, or `until` a step, from the newest checkpoint on: as `vidssl.engine.train.train`."""
    with ExitStack() as stack:
        return train_on(DetectorTraining(run, until, stack))


class DetectorTraining(AnyTraining[AnyDetectionRun]):
    """What the training loop works with, for a run of a detector."""

    bind: ClassVar[Bind] = bind_stored
    monitor: Evaluation | None
    videos: BoxList

    def _read_lists(self) -> BoxList:
        self.task = task_of(self.run)
        boxes = detection_list(self.task)
        self.monitor = None if self.run.evaluate.list is None else Evaluation(self.task, boxes)
        return boxes

    def _build_method(self) -> AnyDetector:
        return self.task.detector(initial_backbone(self.run), len(self.videos.classes))

    def _log_banner(self) -> None:
        run, boxes, samples = self.run, self.videos, self.task.samples
        steps = f"steps {self.state.step}-{self.steps} of {run.batch_size} {samples}"
        data = f"{len(boxes)} {samples} of {boxes.path}; {steps}"
        log_banner(run, self.device, self.task.title, self.method, self.norm, data)

    def measure(self) -> dict[str, float]:
        """Measure the average precision on `evaluate.list`."""
        assert self.monitor is not None
        return self.monitor.measure(cast(AnyDetector, self.method), self.state.step, self.device, self.request.check)

    def new_feed(self) -> BoxFeed:
        """Start the batches of the steps from the current one on."""
        loader = batches(self.task.training_data(self.videos), self._new_keys(), self.device)
        return BoxFeed(loader, self.request)
