"""How detectors of objects in images and of actions in videos are trained, and tested: then, and by the job `test`."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch

from vidssl.apps.detection.average_precision import Detections, check_pycocotools
from vidssl.apps.detection.coco_lists import BoxList, read_boxes
from vidssl.apps.detection.config import ActionRun, AnyDetectionRun, bind_run, bind_stored
from vidssl.apps.detection.detectors import ActionDetector, Detector
from vidssl.apps.detection.images_and_clips import (
    AnyBoxDataset,
    BoxDataset,
    BoxFeed,
    DetectionBatch,
    KeyFrameDataset,
    Target,
    batches,
)
from vidssl.base import distributed
from vidssl.base.atomic import file_hash
from vidssl.base.config import Tree, build
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError, DataError, naming
from vidssl.base.progress import progress
from vidssl.data.list_identity import identify
from vidssl.engine.checkpoint import Bind
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.run_setup import AnyTraining, initial_backbone, log_banner
from vidssl.engine.train import train_on
from vidssl.engine.training_lists import known_lists
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.train_test_overlap import TrainingVideos, measure_overlap, report_overlap
from vidssl.jobs.job import Model, NetworkOptions
from vidssl.jobs.measurement_runner import JobResults, claim_results, format_table
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.eval_mode import eval_mode
from vidssl.models.read_and_write_weights import load_state, read_checkpoint
from vidssl.transforms.recipes import TrainCrop

__all__ = ["bind_run", "bind_stored", "test", "train"]  # of the app: see `vidssl.base.registry`
_log = logging.getLogger(__name__)
AnyDetector = Detector | ActionDetector
Check = Callable[[], None]  # called for each batch; it may raise to stop


def _read(run: AnyDetectionRun, paths: Sequence[str | Path], root: str | Path | None) -> BoxList:
    """Read lists that fit the detector of a run; a ConfigError if they do not, or pycocotools is missing."""
    if isinstance(run, ActionRun):
        boxes = read_boxes(paths, root)
        if not boxes.has_key_frames:
            raise ConfigError(f"{boxes.path} lists images: action_detector needs key frames (vidssl prepare ava)")
        return boxes
    check_pycocotools()
    boxes = read_boxes(paths, root)
    if boxes.has_key_frames:
        raise ConfigError(f"{boxes.path} has key frames of videos (`time`): detector needs a list of images")
    if run.detector.masks and boxes.outlines is None:
        raise ConfigError(f"{boxes.path} has objects without outlines: set detector.masks=false")
    return boxes


def _trained_paths(run: AnyDetectionRun) -> Sequence[str]:
    return [run.data.train] if isinstance(run.data.train, str) else run.data.train


def _build_detector(run: AnyDetectionRun, backbone: Backbone, classes: int) -> AnyDetector:
    if isinstance(run, ActionRun):
        return ActionDetector(run.action_detector, backbone, classes)
    return Detector(run.detector, backbone, classes)


def _dataset(run: AnyDetectionRun, boxes: BoxList, training: bool) -> AnyBoxDataset:
    """The training or test samples of a list."""
    short_side = run.evaluate.short_side
    if isinstance(run, ActionRun):
        return KeyFrameDataset(boxes, run.data, TrainCrop(run.data.view) if training else short_side, run.seed)
    if not training:
        return BoxDataset(boxes, run.data, (short_side,))
    return BoxDataset(boxes, run.data, run.data.short_sides, run.data.flip, run.detector.masks, run.seed)


def train(run: AnyDetectionRun, until: int | None = None) -> Path:
    """Train to the end of the run, or `until` a step, from the newest checkpoint on: as `vidssl.engine.train.train`."""
    with ExitStack() as stack:
        return train_on(DetectorTraining(run, until, stack))


class DetectorTraining(AnyTraining[AnyDetectionRun]):
    """What the training loop works with, for a run of a detector."""

    bind: ClassVar[Bind] = bind_stored
    monitor: BoxList | None  # `evaluate.list`
    videos: BoxList

    def _read_lists(self) -> BoxList:
        run = self.run
        with naming("data.train"):
            trained = _read(run, _trained_paths(run), run.data.root).images_with_objects()
        self.monitor = None
        if run.evaluate.list is not None:
            with naming("evaluate.list"):
                self.monitor = tested = _read_test_list(run, run.evaluate.list, run.data.root)
            if tested.classes != trained.classes:
                raise DataError(f"{tested.path} has other classes than {trained.path}: prepare both lists from one set")
            known = TrainingVideos(str(trained.path), trained, fingerprint=trained.fingerprint)
            self.overlap = measure_overlap(tested, None, lambda: known)
            distributed.on_main(partial(report_overlap, self.overlap, tested.path))
        return trained

    def _build_method(self) -> AnyDetector:
        return _build_detector(self.run, initial_backbone(self.run), len(self.videos.classes))

    def _log_banner(self) -> None:
        run, boxes, samples = self.run, self.videos, f"{self.videos.unit}s"
        steps = f"steps {self.state.step}-{self.steps} of {run.batch_size} {samples}"
        data = f"{len(boxes)} {samples} of {boxes.path}; {steps}"
        log_banner(run, self.device, cast(AnyDetector, self.method).title, self.method, self.norm, data)

    def measure(self) -> dict[str, float]:
        """Measure the average precision on `evaluate.list`, and write `results.json`."""
        assert self.monitor is not None
        run, boxes, step, detector = self.run, self.monitor, self.state.step, cast(AnyDetector, self.method)
        numbers = measure_detector(detector, run, boxes, self.device, self.request.check)
        config = run.model_dump(mode="json")
        # The checkpoint of the step comes later: until then step and config stand for the weights.
        content = {"numbers": numbers, "step": step, "config": config}
        request = _request({"step": step, "config": config}, run, boxes)
        _write(Path(run.output), content, boxes, request, self.overlap)
        return numbers

    def new_feed(self) -> BoxFeed:
        """Start the batches of the steps from the current one on."""
        loader = batches(_dataset(self.run, self.videos, training=True), self._new_keys(), self.device)
        return BoxFeed(loader, self.request)


def measure_detector(
    detector: AnyDetector, run: AnyDetectionRun, boxes: BoxList, device: torch.device, check: Check
) -> dict[str, float]:
    """Detect the objects of all images of a list, divided among the processes, and return the average precisions."""
    with eval_mode(detector):
        outcomes = distributed.gather_outcomes(partial(_detect, detector, run, boxes, device, check))
    detections = sorted(chain(*outcomes), key=lambda detections: detections.index)
    return distributed.on_main(lambda: detector.average_precisions(detections, boxes))


def _detect(
    detector: AnyDetector, run: AnyDetectionRun, boxes: BoxList, device: torch.device, check: Check
) -> list[Detections]:
    """Detect the objects of the images of this process."""
    images, size = range(distributed.rank(), len(boxes), distributed.world()), run.evaluate.batch_size
    keys = [[(0, n) for n in images[first : first + size]] for first in range(0, len(images), size)]
    detections = []
    with progress(title="detect", unit="image", total=len(images), leave=False) as bar:
        for batch in batches(_dataset(run, boxes, training=False), keys, device):
            check()
            detections += _in_files(batch, detector.detect(batch), boxes)
            bar.update(len(batch.index))
    return detections


def _in_files(batch: DetectionBatch, targets: list[Target], boxes: BoxList) -> list[Detections]:
    """Convert detections to the units of the list: pixels of the image files, or fractions of key frames."""
    detections = []
    for index, image, target in zip(batch.index.tolist(), batch.images, targets, strict=True):
        height, width = boxes.sizes[index].tolist()
        scale = target["boxes"].new_tensor([width / image.shape[-1], height / image.shape[-2]] * 2)
        corners = target["boxes"] * scale
        masks = _run_lengths(target["masks"], corners, height, width) if "masks" in target else ()
        labels, scores = target["labels"].cpu().numpy() - 1, target["scores"].cpu().numpy()
        detections.append(Detections(index, corners.cpu().numpy(), labels, scores, masks))
    return detections


def _run_lengths(masks: torch.Tensor, corners: torch.Tensor, height: int, width: int) -> tuple[dict[str, object], ...]:
    """Paste masks (n, 1, M, M) into their boxes in an image, and encode them for pycocotools."""
    from pycocotools import mask as coco_mask
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    pasted = paste_masks_in_image(masks, corners, (height, width)) > 0.5
    return tuple(coco_mask.encode(np.asfortranarray(mask[0].cpu().numpy().astype(np.uint8))) for mask in pasted)


def _read_test_list(run: AnyDetectionRun, path: str | Path, root: str | Path | None) -> BoxList:
    """Read the list of a test; a DataError if it has no objects, a warning if its ground truth is classified."""
    boxes = _read(run, [path], root)
    if not boxes.counted.any():
        raise DataError(f"{path} has no object that counts, {len(boxes.objects)} that do not: choose another list")
    if boxes.has_key_frames and not boxes.has_proposals and distributed.is_main():
        _log.warning(
            "%s has no proposals: the ground-truth boxes are classified, so AP50 is higher than with detected persons "
            "(vidssl prepare ava --proposals)",
            path,
        )
    return boxes


def _request(weights: Tree, run: AnyDetectionRun, boxes: BoxList) -> Tree:
    """Return what decides the average precisions of a detector on a list; called on all processes."""
    data = distributed.on_main(lambda: identify(boxes))
    decoding = run.data.model_dump(mode="json", include={"backend", "fps"})
    protocol = {"short_side": run.evaluate.short_side, **decoding}
    return {"weights": weights, "command": "test", "protocol": protocol, "list": boxes.fingerprint, "data": data}


def _write(out: Path, content: Results, boxes: BoxList, request: Tree, overlap: Tree) -> Results:
    content |= {"list": str(boxes.path), "fingerprint": boxes.fingerprint, **boxes.counts()}
    results = complete(content, request=request, overlap=overlap, query=boxes.fingerprint)
    distributed.on_main(lambda: write_results(out, results))
    return results


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
    data: Tree = {name: value for name, value in options.items() if name == "workers"}
    evaluate: Tree = {name: value for name, value in options.items() if name in ("batch_size", "short_side")}
    parts = {"data": run.data.model_copy(update=data), "evaluate": run.evaluate.model_copy(update=evaluate)}
    run = run.model_copy(update=parts)
    boxes = _read_test_list(run, videos, options.get("root", run.data.root))
    if list(boxes.classes) != stored["classes"]:
        raise ConfigError(f"{videos} has other classes than the detector was trained on: prepare it from that set")
    detector = _build_detector(run, build(BACKBONES, run.backbone), len(boxes.classes))
    load_state(detector, stored["method"], str(checkpoint))
    device, trained = choose_device(options.get("device", "auto")), _trained_paths(run)
    with distributed.joined(device), StopRequest().listening() as stop:
        origin = {"path": str(checkpoint), "sha256": file_hash(checkpoint), "step": stored["step"]}
        request = _request({"sha256": origin["sha256"]}, run, boxes)
        distributed.on_main(lambda: existing_results(out, request, reuse=False))
        read_trained = partial(read_boxes, trained, run.data.root)
        overlap = measure_overlap(
            boxes, None, lambda: known_lists(trained, lambda: read_trained().images_with_objects(), stored)
        )
        distributed.on_main(lambda: report_overlap(overlap, videos))
        numbers = measure_detector(detector.to(device), run, boxes, device, stop.check)
        content = {"numbers": numbers, "short_side": run.evaluate.short_side, "checkpoint": origin}
        return _write(out, content, boxes, request, overlap)
