"""Average precision against a formula written with loops, and against pycocotools."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from vidssl.apps.detection import average_precision
from vidssl.apps.detection.average_precision import (
    Detections,
    coco_average_precision,
    precision_at_recalls,
    voc_average_precision,
)
from vidssl.apps.detection.coco_lists import read_boxes
from vidssl.apps.detection.config import DetectorSettings
from vidssl.apps.detection.detectors import Detector
from vidssl.base.keyed_generators import generator


@pytest.fixture(scope="module")
def boxes(shapes):
    return read_boxes([shapes / "lists/coco/toy.json"])


def marked(boxes, **columns):
    objects = boxes.objects.copy()
    for name, values in columns.items():
        objects[name] = values
    return replace(boxes, objects=objects)


def numbers_of(actual, boxes):
    return Detector.average_precisions(SimpleNamespace(config=DetectorSettings(name="fpn")), actual, boxes)


def guesses(boxes, seed, wrong=3):
    """Shifted objects, and some boxes at random, with random scores."""
    collected = []
    for index in range(len(boxes)):
        random, rows = generator(seed, index), boxes.rows_of(index)
        shifted = boxes.objects["box"][rows] + random.normal(0, 2.5, (rows.stop - rows.start, 4))
        low = random.uniform(0, 40, (wrong, 2))
        everywhere = np.concatenate([low, low + random.uniform(10, 30, (wrong, 2))], axis=1)
        labels = np.concatenate([boxes.objects["category"][rows], random.integers(0, 2, wrong)])
        corners = np.concatenate([shifted, everywhere]).astype(np.float32)
        collected.append(Detections(index, corners, labels, random.random(len(labels)).astype(np.float32)))
    return collected


def _rows(actual):
    for one in actual:
        for score, box, label in zip(one.scores, one.boxes, one.labels, strict=True):
            yield score, one.index, box, label


def loop(actual, boxes, points):
    """VOC's AP: recall and precision after each detection, the best first; the best precision from each recall on."""
    values = []
    for label in range(len(boxes.classes)):
        rows = [(s, i, b) for s, i, b, k in _rows(actual) if k == label]
        taken, right, curve, count = set(), 0, [], 0
        objects = [(n, i) for i in range(len(boxes)) for n in range(len(boxes.objects))[boxes.rows_of(i)]]
        objects = [(n, i) for n, i in objects if boxes.objects["category"][n] == label]
        total = sum(not boxes.objects["difficult"][n] for n, _ in objects)
        for _, image, b in sorted(rows, key=lambda row: -row[0]):
            best, which = 0.0, None
            for n, i in objects:
                o = boxes.objects["box"][n]
                if i == image:
                    w = min(b[2], o[2]) - max(b[0], o[0])
                    h = min(b[3], o[3]) - max(b[1], o[1])
                    both = max(w, 0) * max(h, 0)
                    iou = both / ((b[2] - b[0]) * (b[3] - b[1]) + (o[2] - o[0]) * (o[3] - o[1]) - both)
                    best, which = max((best, which), (iou, n), key=lambda pair: pair[0])
            if best >= 0.5 and boxes.objects["difficult"][which]:
                continue
            count += 1
            if best >= 0.5 and which not in taken:
                taken.add(which)
                right += 1
            curve.append((right / total, right / count))
        if points:
            recalls = [n / (points - 1) for n in range(points)]
            values.append(sum(max([p for r, p in curve if r >= at], default=0.0) for at in recalls) / points)
        else:
            area, before = 0.0, 0.0
            for recall, _ in curve:
                area += (recall - before) * max(p for r, p in curve if r >= recall)
                before = recall
            values.append(area)
    return sum(values) / len(values)


@pytest.mark.parametrize("points", [11, None])
@pytest.mark.parametrize("seed", range(4))
def test_voc_equals_the_loop(boxes, points, seed):
    some = marked(boxes, difficult=generator(seed, 1).random(len(boxes.objects)) < 0.2)
    actual = guesses(some, seed)
    assert voc_average_precision(actual, some, points) == pytest.approx(loop(actual, some, points), abs=1e-12)
    assert 0.1 < voc_average_precision(actual, some, points) < 0.99


@pytest.mark.parametrize("seed", range(3))
def test_voc_equals_pycocotools_at_the_same_recalls(boxes, seed):
    """At 11 recalls exactly, at many recalls the area; objects do not touch, so that both rules match alike."""
    actual = guesses(boxes, seed)
    truth = COCO()
    truth.dataset = average_precision._as_coco(boxes, "bbox")
    truth.createIndex()
    results = [row for one in actual for row in average_precision._results(one, "bbox")]
    for points, count, tolerance in ((11, 11, 1e-9), (None, 20_001, 1e-3)):
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.params.recThrs = np.arange(count) / (count - 1)
        evaluation.params.iouThrs = np.array([0.5])
        evaluation.evaluate()
        evaluation.accumulate()
        precision = evaluation.eval["precision"][0, :, :, 0, -1]  # (recalls, classes)
        assert voc_average_precision(actual, boxes, points) == pytest.approx(float(precision.mean()), abs=tolerance)


def perfect(boxes, keep=None):
    rows = [boxes.objects[boxes.rows_of(n)] for n in range(len(boxes))]
    return [
        Detections(n, r["box"], r["category"], np.full(len(r), 0.9, np.float32))
        for n, r in enumerate(rows)
        if keep is None or n in keep
    ]


def test_perfect_detections_and_none(boxes):
    numbers = numbers_of(perfect(boxes), boxes)
    assert numbers == pytest.approx(dict.fromkeys(numbers, 1.0)) and len(numbers) == 5
    nothing = numbers_of([], boxes)
    assert set(nothing.values()) == {0.0}
    assert coco_average_precision(perfect(boxes, {0, 1, 2, 3}), boxes, "bbox")["AP50"] == pytest.approx(0.505, abs=0.01)


def test_difficult_objects_are_not_counted(boxes):
    some = marked(boxes, difficult=np.arange(len(boxes.objects)) < 4)  # those of images 0 and 1
    for actual in (perfect(some), perfect(some, set(range(2, 8)))):
        numbers = numbers_of(actual, some)
        assert numbers == pytest.approx(dict.fromkeys(numbers, 1.0))


@pytest.mark.parametrize("kind", ["difficult", "crowd"])
def test_a_list_without_an_object_that_counts(boxes, kind):
    some = marked(boxes, **{kind: True})
    assert set(numbers_of(perfect(some), some).values()) == {0.0}  # as VOC's; pycocotools has -1


def test_a_second_detection_of_an_object_is_wrong():
    assert precision_at_recalls(np.array([True, False, True]), 2, None) == pytest.approx((1 + 2 / 3) / 2)
    assert precision_at_recalls(np.array([False, True]), 1, 11) == pytest.approx(0.5)


def test_a_difficult_object_excuses_only_what_matches_it(boxes):
    """A false box inside of a difficult object, scored highest, counts against COCO's AP as against VOC's."""
    some, actual = marked(boxes, difficult=np.arange(len(boxes.objects)) == 0), perfect(boxes)
    assert coco_average_precision(actual, some, "bbox")["AP50"] == pytest.approx(1.0)
    first = actual[0]
    inside = np.float32([[*boxes.objects["box"][0, :2], *(boxes.objects["box"][0, :2] + 2)]])
    actual[0] = Detections(
        0,
        np.concatenate([inside, first.boxes]).astype(np.float32),
        np.concatenate([boxes.objects["category"][:1], first.labels]),
        np.concatenate([np.ones(1, np.float32), first.scores]),
    )
    assert coco_average_precision(actual, some, "bbox")["AP50"] < 0.99
    assert voc_average_precision(actual, some, points=None) < 0.99
