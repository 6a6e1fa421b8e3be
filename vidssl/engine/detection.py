"""The training of a detector: what differs from that of a method on videos."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

from vidssl import distributed
from vidssl.atomic import write_json
from vidssl.data.box_list import BoxList, read_boxes
from vidssl.detection.average_precision import check_pycocotools
from vidssl.detection.detector import Detector
from vidssl.detection.images import BoxDataset, batches
from vidssl.detection.measure import measure_detector
from vidssl.engine.batch_feed import Feed
from vidssl.engine.config_schema import DetectionRun
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.setup import Training
from vidssl.errors import ConfigError, DataError
from vidssl.methods.base import Method
from vidssl.models.backbones import Backbone


class DetectionTraining(Training[DetectionRun]):
    """The training of a detector on images with boxes."""

    def read_list(self) -> BoxList:
        """Read the lists of boxes; images without an object are not trained on, as in Detectron2."""
        check_pycocotools()
        data, evaluate = self.run.data, self.run.evaluate
        paths = [data.train] if isinstance(data.train, str) else data.train
        self.boxes = boxes = read_boxes(paths, data.root).images_with_objects()
        self.tested = None if evaluate.list is None else read_boxes([evaluate.list], data.root)
        for each in (boxes, self.tested):
            if each is not None and self.run.detector.masks and each.outlines is None:
                raise ConfigError(f"{each.path} has objects without outlines: set detector.masks=false")
        if self.tested is not None and self.tested.classes != boxes.classes:
            raise DataError(f"{self.tested.path} has other classes than {boxes.path}: prepare both lists from one set")
        if self.tested is not None and not self.tested.counts()["objects"]:
            raise DataError(f"{self.tested.path} has no objects to find: choose another evaluate.list")
        return boxes

    def build_method(self, backbone: Backbone) -> Method:
        """Build the detector around its backbone."""
        return Detector(self.run.detector, backbone, len(self.boxes.classes))

    def new_feed(self) -> Feed:
        """Start the batches of the steps from the current one on."""
        data = self.run.data
        masks = self.run.detector.masks
        dataset = BoxDataset(self.boxes, data, data.short_sides, data.flip, masks, self.run.seed)
        return DetectionFeed(batches(dataset, self.keys(), self.device), self.request)

    def evaluation_is_due(self) -> bool:
        """Whether the current step is the last, or a multiple of `evaluate.every`."""
        step, every = self.state.step, self.run.evaluate.every
        return self.tested is not None and (step == self.steps or (every is not None and step % every == 0))

    def measure(self) -> dict[str, float]:
        """Measure the detector on `evaluate.list`, and write `results.json`."""
        assert self.tested is not None
        run, tested = self.run, self.tested
        dataset = BoxDataset(tested, run.data, (run.evaluate.short_side,))
        detector = cast(Detector, self.method)
        numbers = measure_detector(detector, dataset, run.evaluate.batch_size, self.device, self.request.check)
        content = {
            "numbers": numbers,
            "step": self.state.step,
            "list": str(tested.path),
            "fingerprint": tested.fingerprint,
            **tested.counts(),
            "config": run.model_dump(mode="json"),
        }
        distributed.on_main(lambda: write_json(Path(run.output) / "results.json", content))
        return numbers

    def describe(self) -> str:
        """Name the detector."""
        return f"{'Mask' if self.run.detector.masks else 'Faster'} R-CNN ({self.run.detector.name})"


class DetectionFeed(Feed):
    """The batches of a detector: they are on the device already, and none replaces a broken image."""

    def __init__(self, made: Generator[Any, None, None], request: StopRequest) -> None:
        self._batches, self._request = made, request
