"""Average precision of detections: COCO's by pycocotools, and VOC's.

Shapes: D detections of one class, G objects of it, M objects and N detections of an image.
"""

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.config import Tree
from vidssl.data.box_list import BoxList
from vidssl.errors import ConfigError

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


def coco_average_precision(found: Sequence[Detections], boxes: BoxList, kind: str) -> dict[str, float]:
    """COCO's AP, the mean over thresholds of 0.5 to 0.95, and AP50 and AP75, of `kind` bbox or segm, as fractions."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    results = [result for one in found for result in _results(one, kind)]
    if not results:  # pycocotools cannot read an empty list
        return dict.fromkeys(("AP", "AP50", "AP75"), 0.0)
    with redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = _as_coco(boxes, kind)
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {name: float(value) for name, value in zip(("AP", "AP50", "AP75"), evaluation.stats, strict=False)}


def _results(one: Detections, kind: str) -> list[Tree]:
    corners = one.boxes.astype(np.float64)
    sides = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).tolist()
    rows = [
        {"image_id": one.index + 1, "category_id": label + 1, "bbox": box, "score": score}
        for label, box, score in zip(one.labels.tolist(), sides, one.scores.tolist(), strict=True)
    ]
    if kind == "segm":
        for row, mask in zip(rows, one.masks, strict=True):
            del row["bbox"]
            row["segmentation"] = mask
    return rows


def _as_coco(boxes: BoxList, kind: str) -> Tree:
    corners = boxes.boxes.astype(np.float64)
    sides = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).tolist()
    ignored = (boxes.crowd | boxes.difficult).tolist()
    image = np.repeat(np.arange(1, len(boxes.records) + 1), np.diff(boxes.ends)).tolist()
    rows: list[dict[str, Any]] = [
        {"id": n + 1, "image_id": image[n], "category_id": label + 1, "bbox": sides[n], "area": area, "iscrowd": crowd}
        for n, (label, area, crowd) in enumerate(
            zip(boxes.categories.tolist(), boxes.areas.tolist(), map(int, ignored), strict=True)
        )
    ]
    if kind == "segm" and boxes.outlines is not None:
        for row, outline in zip(rows, boxes.outlines, strict=True):
            row["segmentation"] = json.loads(outline)
    return {
        "images": [{"id": n + 1, "height": h, "width": w} for n, (h, w) in enumerate(boxes.sizes.tolist())],
        "annotations": rows,
        "categories": [{"id": n + 1, "name": name} for n, name in enumerate(boxes.classes)],
    }


def voc_average_precision(found: Sequence[Detections], boxes: BoxList, points: int | None) -> float:
    """VOC's AP at an overlap above 0.5, the mean over the classes that have objects (Everingham et al., 2010).

    `points` is 11 for the rule of VOC2007: the mean over recalls 0, 0.1, … 1 of the best precision at that recall or a
    higher one; None for the area under the curve (VOC2010 and later).
    """
    values = []
    for label in range(len(boxes.classes)):
        of = boxes.categories == label
        objects = int((of & ~boxes.difficult & ~boxes.crowd).sum())
        if objects:
            hits = _hits(found, boxes, label)
            values.append(precision_at_recalls(hits, objects, points))
    return float(np.mean(values)) if values else 0.0


def _hits(found: Sequence[Detections], boxes: BoxList, label: int) -> NDArray[np.bool_]:
    """Whether the detections of a class (D,), the best first, are right; those of objects not counted are left out."""
    rows = [(float(s), one.index, box) for one in found for s, box in _of_class(one, label)]
    rows.sort(key=lambda row: -row[0])
    taken: set[int] = set()
    hits = []
    for _, image, box in rows:
        objects = np.arange(len(boxes.boxes))[boxes.rows_of(image)]
        objects = objects[boxes.categories[objects] == label]
        overlaps = overlap(box, boxes.boxes[objects])
        best = int(objects[overlaps.argmax()]) if len(objects) else -1
        if best < 0 or overlaps.max() <= 0.5:
            hits.append(False)
        elif not (boxes.difficult[best] or boxes.crowd[best]):
            hits.append(best not in taken)  # a second detection of an object is wrong
            taken.add(best)
    return np.array(hits, np.bool_)


def _of_class(one: Detections, label: int) -> list[tuple[float, NDArray[np.float32]]]:
    chosen = one.labels == label
    return list(zip(one.scores[chosen].tolist(), one.boxes[chosen], strict=True))


def overlap(box: NDArray[Any], others: NDArray[Any]) -> _Floats:
    """Intersection over union of a box (4,) with others (M, 4), all xyxy."""
    box, others = box.astype(np.float64), others.astype(np.float64)
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.prod(np.maximum(sides, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1) + np.prod(box[2:] - box[:2])
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
