"""Accuracy, mean class accuracy, confusion and calibration, against slow versions in plain Python."""

import math

import numpy as np
import pytest
import torch

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation.metrics import accuracy, calibration_error, confusion, mean_class_accuracy, top_k
from vidssl.evaluation.protocols import Accuracy

NOBODY = torch.empty(0, 2, dtype=torch.int64)


def drawn(count=300, classes=7, seed=0):
    """Probabilities that are right more often than not, and labels of all classes but one."""
    random = generator(seed)
    label = random.choice([n for n in range(classes) if n != 4], size=count)
    logits = random.normal(size=(count, classes)) * 1.5
    logits[np.arange(count), label] += 1.2
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return torch.from_numpy(p.astype(np.float32)), torch.from_numpy(label)


@pytest.mark.parametrize("k", [1, 3, 5, 7, 50])
def test_top_k_is_the_loop(k):
    p, label = drawn()
    right = 0
    for row, true in zip(p.tolist(), label.tolist(), strict=True):
        ranked = sorted(range(len(row)), key=lambda c, row=row: (-row[c], c))
        right += true in ranked[:k]
    assert top_k(p, label, k) == right / 300
    assert top_k(p, label, k) < 1 or k >= 5


def test_equal_scores_go_to_the_smaller_class():
    p = torch.full((3, 4), 0.25)
    assert top_k(p, torch.tensor([0, 1, 3]), 1) == pytest.approx(1 / 3)
    assert top_k(p, torch.tensor([0, 1, 3]), 2) == pytest.approx(2 / 3)


def test_mean_class_accuracy_is_the_loop():
    p, label = drawn()
    predicted = p.argmax(dim=1)
    of_class = []
    for number in range(7):
        rows = [n for n in range(300) if int(label[n]) == number]
        if rows:
            of_class.append(sum(int(predicted[n]) == number for n in rows) / len(rows))
    assert len(of_class) == 6  # a class without a test video has no accuracy
    assert mean_class_accuracy(predicted, label) == pytest.approx(sum(of_class) / 6, abs=1e-12)
    assert mean_class_accuracy(predicted, label) != pytest.approx(accuracy(predicted, label), abs=1e-6)


def test_no_prediction_is_wrong():
    label = torch.tensor([0, 1, 2])
    predicted = torch.tensor([-1, 1, -1])
    assert accuracy(predicted, label) == mean_class_accuracy(predicted, label) == pytest.approx(1 / 3)
    assert confusion(predicted, label, 3).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 1]]


def test_confusion_is_the_loop():
    p, label = drawn()
    predicted = p.argmax(dim=1)
    expected = [[0] * 8 for _ in range(7)]
    for true, guess in zip(label.tolist(), predicted.tolist(), strict=True):
        expected[true][guess] += 1
    assert confusion(predicted, label, 7).tolist() == expected


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_calibration_error_is_the_loop(bins):
    p, label = drawn()
    members = [[] for _ in range(bins)]
    for row, true in zip(p.double().tolist(), label.tolist(), strict=True):
        confidence = max(row)
        place = next(m for m in range(bins) if m / bins < confidence <= (m + 1) / bins)
        members[place].append((confidence, row.index(confidence) == true))
    expected = sum(
        len(inside) / 300 * abs(sum(r for _, r in inside) / len(inside) - sum(c for c, _ in inside) / len(inside))
        for inside in members
        if inside
    )
    assert calibration_error(p, label, bins) == pytest.approx(expected, abs=1e-12)
    assert expected > 0.005


def test_calibration_error_at_its_ends():
    sure = torch.eye(2)[torch.tensor([0, 1, 0, 1])]
    assert calibration_error(sure, torch.tensor([0, 1, 0, 1])) == 0
    assert calibration_error(sure, torch.tensor([1, 0, 1, 0])) == 1
    assert calibration_error(torch.full((4, 2), 0.5), torch.tensor([0, 0, 1, 1])) == 0


def test_protocol():
    p, label = drawn()
    query = Features(p, label, torch.arange(300))
    actual = Accuracy(Accuracy.Config())(query, query, NOBODY)
    assert actual.predicted.tolist() == [row.index(max(row)) for row in p.tolist()]
    assert actual.numbers == {
        "top1": top_k(p, label, 1),
        "top5": top_k(p, label, 5),
        "mean_class": mean_class_accuracy(actual.predicted, label),
        "ece": calibration_error(p, label, 15),
    }
    other = Accuracy(Accuracy.Config(bins=3))(query, query, NOBODY).numbers
    assert other["ece"] != actual.numbers["ece"] and math.isclose(other["top1"], actual.numbers["top1"])


def test_top_5_of_five_classes_says_nothing():
    p, label = drawn(classes=5, count=100)
    assert "top5" not in Accuracy(Accuracy.Config())(None, Features(p, label, torch.arange(100)), NOBODY).numbers
