"""Average precision of detections: COCO's by pycocotools, and VOC's.

Shapes: D detections of one class, G objects of it, M objects and N detections of an image.
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
from numpy.typing import NDArray

from vidssl.apps.detection.coco_lists import BoxList
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError

_Floats = NDArray[np.float64]


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
    columns = (detections.labels.tolist(), _coco_boxes(detections.boxes), detections.scores.tolist())
    rows = [
        {"image_id": detections.index + 1, "category_id": label + 1, "bbox": box, "score": score}
        for label, box, score in zip(*columns, strict=True)
    ]
    if kind == "segm":
        for row, mask in zip(rows, detections.masks, strict=True):
            del row["bbox"]
            row["segmentation"] = mask
    return rows


def _coco_boxes(boxes: NDArray[np.float32]) -> list[list[float]]:
    """Convert boxes (N, 4) xyxy to COCO's: x, y, width, height."""
    corners = boxes.astype(np.float64)
    return [*np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).tolist()]


def _as_coco(boxes: BoxList, kind: str) -> Tree:
    columns = {
        "image_id": np.repeat(np.arange(1, len(boxes) + 1), np.diff(boxes.ends)).tolist(),
        "category_id": (boxes.categories + 1).tolist(),
        "bbox": _coco_boxes(boxes.boxes),
        "area": boxes.areas.tolist(),
        "iscrowd": boxes.crowd.astype(int).tolist(),
        "difficult": boxes.difficult.astype(int).tolist(),
    }
    objects = zip(*columns.values(), strict=True)
    rows = [{"id": number, **dict(zip(columns, values, strict=True))} for number, values in enumerate(objects, 1)]
    if kind == "segm" and boxes.outlines is not None:
        for row, outline in zip(rows, boxes.outlines, strict=True):
            row["segmentation"] = json.loads(outline)
    return {
        "images": [{"id": n + 1, "height": h, "width": w} for n, (h, w) in enumerate(boxes.sizes.tolist())],
        "annotations": rows,
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(boxes.classes)],
    }


def voc_average_precision(detections: Sequence[Detections], boxes: BoxList, points: int | None) -> float:
    """VOC's AP at an overlap of 0.5 or more, the mean over the classes that have objects (Everingham et al., 2010).

    `points` is 11 for the rule of VOC2007: the mean over recalls 0, 0.1, … 1 of the best precision at that recall or a
    higher one; None for the area under the curve (VOC2010 and later).
    """
    nothing = Detections(0, np.empty((0, 4), np.float32), np.empty(0, np.int64), np.empty(0, np.float32))
    parts = [*detections, nothing]  # arrays of the right shape without any
    image = np.repeat([part.index for part in parts], [len(part.labels) for part in parts]).astype(np.int64)
    labels = np.concatenate([part.labels for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    corners = np.concatenate([part.boxes for part in parts])
    values = []
    for label in range(len(boxes.classes)):
        of_class = boxes.categories == label
        objects = int((of_class & ~boxes.difficult & ~boxes.crowd).sum())
        if objects:
            rows = np.flatnonzero(labels == label)
            rows = rows[np.argsort(-scores[rows], kind="stable")]
            hits = _hits(image[rows], corners[rows], boxes, of_class)
            values.append(precision_at_recalls(hits, objects, points))
    return float(np.mean(values)) if values else 0.0


def _hits(
    image: NDArray[np.int64], corners: NDArray[np.float32], boxes: BoxList, of_class: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether the detections of a class are right; those of objects not counted are left out.

    `image` (D,) and `corners` (D, 4) are of the detections, the best first; `of_class` (M,) marks the objects of the
    class.
    """
    objects = np.flatnonzero(of_class)
    shown_in = np.searchsorted(boxes.ends, objects, side="right") - 1
    first, last = (np.searchsorted(shown_in, image, side=side) for side in ("left", "right"))
    # All pairs of a detection and an object in its image.
    count = last - first
    detection = np.repeat(np.arange(len(image)), count)
    candidate = objects[np.arange(len(detection)) + np.repeat(first - np.cumsum(count) + count, count)]
    overlaps = overlap(corners[detection], boxes.boxes[candidate])
    order = np.lexsort((-candidate, overlaps, detection))  # the last pair of a detection has its best object
    order = order[np.flatnonzero(np.diff(detection[order], append=-1))]
    order = order[overlaps[order] >= 0.5]
    matched, best = detection[order], candidate[order]
    right, counted = np.zeros(len(image), np.bool_), np.ones(len(image), np.bool_)
    right[matched[np.unique(best, return_index=True)[1]]] = True  # a second detection of an object is wrong
    counted[matched[boxes.difficult[best] | boxes.crowd[best]]] = False
    return right[counted]


def overlap(boxes: NDArray[Any], others: NDArray[Any]) -> _Floats:
    """Intersection over union of boxes (..., 4) and others (..., 4), all xyxy, one by one."""
    boxes, others = boxes.astype(np.float64), others.astype(np.float64)
    sides = np.minimum(boxes[..., 2:], others[..., 2:]) - np.maximum(boxes[..., :2], others[..., :2])
    common = np.prod(np.maximum(sides, 0), axis=-1)
    areas = np.prod(others[..., 2:] - others[..., :2], axis=-1) + np.prod(boxes[..., 2:] - boxes[..., :2], axis=-1)
    return np.asarray(common / (areas - common), np.float64)


def precision_at_recalls(hits: NDArray[np.bool_], objects: int, points: int | None) -> float:
    """AP of detections (D,), the best first, that are right or wrong; `points` as `voc_average_precision`."""
    right = np.cumsum(hits)
    recall, precision = right / objects, right / np.arange(1, len(hits) + 1)
    # The best precision at each recall or a higher one.
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    if points is None:
        return float((np.diff(recall, prepend=0.0) * best[:-1]).sum())
    return float(np.mean([best[np.searchsorted(recall, n / (points - 1))] for n in range(points)]))
