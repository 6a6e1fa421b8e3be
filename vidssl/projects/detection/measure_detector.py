"""A detector's average precision on a list."""

from collections.abc import Callable
from itertools import chain

import numpy as np
import torch

from vidssl import distributed
from vidssl.errors import DataError
from vidssl.models.eval_mode import eval_mode
from vidssl.progress import progress
from vidssl.projects.detection.action_detector import ActionDetector
from vidssl.projects.detection.average_precision import Detections
from vidssl.projects.detection.detector import Detector
from vidssl.projects.detection.images import DetectionBatch, Target, TargetDataset, batches
from vidssl.projects.detection.lists_with_boxes import BoxList

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
    mine = range(distributed.rank(), len(boxes), distributed.world())
    keys = [[(0, n) for n in mine[first : first + batch_size]] for first in range(0, len(mine), batch_size)]

    def detect() -> list[Detections]:
        found = []
        with progress(title="detect", unit="image", total=len(mine), leave=False) as bar:
            for batch in batches(dataset, keys, device):
                check()
                found += _in_files(batch, detector.detect(batch), boxes)
                bar.update(len(batch.index))
        return found

    with eval_mode(detector):
        every = sorted(chain(*distributed.gather_outcomes(detect)), key=lambda one: one.index)
    return distributed.on_main(lambda: detector.average_precisions(every, boxes))


def _in_files(batch: DetectionBatch, found: list[Target], boxes: BoxList) -> list[Detections]:
    """Convert detections to the units of the list: pixels of the image files, or fractions of key frames."""
    made = []
    for index, image, target in zip(batch.index.tolist(), batch.images, found, strict=True):
        height, width = boxes.sizes[index].tolist()
        scale = target["boxes"].new_tensor([width / image.shape[-1], height / image.shape[-2]] * 2)
        corners = target["boxes"] * scale
        made.append(
            Detections(
                index,
                corners.cpu().numpy(),
                target["labels"].cpu().numpy() - 1,
                target["scores"].cpu().numpy(),
                _run_lengths(target["masks"], corners, height, width) if "masks" in target else (),
            )
        )
    return made


def _run_lengths(masks: torch.Tensor, corners: torch.Tensor, height: int, width: int) -> tuple[dict[str, object], ...]:
    """Paste masks (n, 1, M, M) into their boxes in an image, and encode them for pycocotools."""
    from pycocotools import mask as coco_mask
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    pasted = paste_masks_in_image(masks, corners, (height, width)) > 0.5
    return tuple(coco_mask.encode(np.asfortranarray(one[0].cpu().numpy().astype(np.uint8))) for one in pasted)
