"""Average precision of detections: COCO's by pycocotools, and VOC's.

Shapes: D detections of one class, M objects of a list, N detections of an image.
"""

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.ops import box_iou

from vidssl.apps.detection.coco_lists import BoxList
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError


@dataclass(frozen=True)
class Detections:
    """What a detector found in an image."""

    index: int  # of the image in its list
    boxes: NDArray[np.float32]  # (N, 4) xyxy, pixels of the image file
    labels: NDArray[np.int64]  # (N,) number of the class, from 0
    scores: NDArray[np.float32]  # (N,)
    masks: tuple[Tree, ...] = ()  # run lengths of pycocotools; none: the detector has no masks


def check_pycocotools() -> None:
    """Raise a ConfigError if pycocotools is missing; call it before long work."""
    try:
        import pycocotools  # noqa: F401
    except ImportError:
        raise ConfigError("detection needs pycocotools: pip install 'vidssl[detection]'") from None


def version() -> str:
    """Name the version of pycocotools, for `vidssl doctor`; a ConfigError if it is missing."""
    check_pycocotools()
    return f"pycocotools {metadata.version('pycocotools')}"


def coco_average_precision(detections: Sequence[Detections], boxes: BoxList, kind: str) -> dict[str, float]:
    """COCO's AP, the mean over thresholds of 0.5 to 0.95, and AP50 and AP75, of `kind` bbox or segm, as fractions.

    Without objects that count, such as of a list with difficult ones only, they are 0, as VOC's.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    results = [result for image in detections for result in _results(image, kind)]
    if not results:  # pycocotools cannot read an empty list
        return dict.fromkeys(("AP", "AP50", "AP75"), 0.0)
    with redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = _as_coco(boxes, kind)
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), kind)
        evaluation._prepare = partial(_prepare, evaluation)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    values = zip(("AP", "AP50", "AP75"), evaluation.stats, strict=False)
    return {name: max(float(value), 0.0) for name, value in values}  # pycocotools: -1 without objects


def _prepare(evaluation: Any) -> None:
    """Prepare pycocotools' evaluation so that VOC's difficult objects are not counted, nor the detections on them.

    As crowds, which are not counted either, they would excuse any detection that lies inside of them.
    """
    type(evaluation)._prepare(evaluation)
    for objects in evaluation._gts.values():
        for annotation in objects:
            annotation["ignore"] = annotation["ignore"] or annotation["difficult"]


def _results(detections: Detections, kind: str) -> list[Tree]:
    regions = detections.masks if kind == "segm" else _coco_boxes(detections.boxes)
    key = "segmentation" if kind == "segm" else "bbox"
    return [
        {"image_id": detections.index + 1, "category_id": label + 1, key: region, "score": score}
        for label, region, score in zip(detections.labels.tolist(), regions, detections.scores.tolist(), strict=True)
    ]


def _coco_boxes(boxes: NDArray[np.float32]) -> list[list[float]]:
    """Convert boxes (N, 4) xyxy to COCO's: x, y, width, height."""
    corners = boxes.astype(np.float64)
    return [*np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).tolist()]


def _as_coco(boxes: BoxList, kind: str) -> Tree:
    objects = boxes.objects
    rows: list[Tree] = [
        {
            "id": number,
            "image_id": image + 1,
            "category_id": category + 1,
            "bbox": box,
            "area": area,
            "iscrowd": int(crowd),
            "difficult": int(difficult),
        }
        for number, (box, (image, _, category, area, crowd, difficult)) in enumerate(
            zip(_coco_boxes(objects["box"]), objects.tolist(), strict=True), 1
        )
    ]
    if kind == "segm" and boxes.outlines is not None:
        for row, outline in zip(rows, boxes.outlines, strict=True):
            row["segmentation"] = json.loads(outline)
    return {
        "images": [{"id": n, "height": h, "width": w} for n, (h, w) in enumerate(boxes.sizes.tolist(), 1)],
        "annotations": rows,
        "categories": [{"id": n, "name": name} for n, name in enumerate(boxes.classes, 1)],
    }


def voc_average_precision(detections: Sequence[Detections], boxes: BoxList, points: int | None) -> float:
    """VOC's AP at an overlap of 0.5 or more, the mean over the classes that have objects (Everingham et al., 2010).

    `points` is 11 for the rule of VOC2007: the mean over recalls 0, 0.1, … 1 of the best precision at that recall or a
    higher one; None for the area under the curve (VOC2010 and later).
    """
    if not detections:
        return 0.0
    labels, scores = (np.concatenate([getattr(part, name) for part in detections]) for name in ("labels", "scores"))
    matched = np.concatenate([_matched_objects(part, boxes) for part in detections])
    values = []
    for label in range(len(boxes.classes)):
        objects = int((boxes.counted & (boxes.objects["category"] == label)).sum())
        if objects:
            rows = np.flatnonzero(labels == label)
            of_class = matched[rows[np.argsort(-scores[rows], kind="stable")]]
            right = np.zeros(len(of_class), np.bool_)
            right[np.unique(of_class, return_index=True)[1]] = True  # a second detection of an object is wrong
            right &= of_class >= 0
            excused = (of_class >= 0) & ~boxes.counted[of_class]
            values.append(precision_at_recalls(right[~excused], objects, points))
    return float(np.mean(values)) if values else 0.0


def _matched_objects(detections: Detections, boxes: BoxList) -> NDArray[np.int64]:
    """The object (N,) of its class that each detection of an image overlaps most, by 0.5 or more; -1: there is none."""
    rows = boxes.rows_of(detections.index)
    objects = boxes.objects[rows]
    if not len(objects):
        return np.full(len(detections.labels), -1)
    pair = (torch.from_numpy(xyxy.astype(np.float64)) for xyxy in (detections.boxes, objects["box"]))
    overlaps = box_iou(*pair).numpy()
    overlaps[detections.labels[:, None] != objects["category"]] = 0
    return np.where(overlaps.max(axis=1) >= 0.5, rows.start + overlaps.argmax(axis=1), -1)


def precision_at_recalls(hits: NDArray[np.bool_], objects: int, points: int | None) -> float:
    """AP of detections (D,), the best first, that are right or wrong; `points` as `voc_average_precision`."""
    right = np.cumsum(hits)
    recall, precision = right / objects, right / np.arange(1, len(hits) + 1)
    # The best precision at each recall or a higher one.
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    if points is None:
        return float((np.diff(recall, prepend=0.0) * best[:-1]).sum())
    return float(np.mean([best[np.searchsorted(recall, n / (points - 1))] for n in range(points)]))
