"""Average precision, logistic regression and SVMs for several labels, against loops and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC

from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation.metrics import average_precision
from vidssl.evaluation.protocols import Logistic, MultilabelLogistic, MultilabelLowShot, MultilabelSVM

NO_PAIRS = torch.empty(0, 2, dtype=torch.int64)
CLASSES = 3


def made(count, seed, several=True, unclear=0.0):
    """Features around the sum of the directions of their classes; `unclear` of the targets are not counted."""
    rng = generator(seed)
    directions = generator(0).normal(size=(CLASSES, 8))
    targets = (rng.random((count, CLASSES)) < 0.4).astype(np.int8)
    label = rng.integers(CLASSES, size=count)
    shown = targets if several else np.eye(CLASSES)[label]
    x = shown @ directions + rng.normal(size=(count, 8))
    targets[rng.random(targets.shape) < unclear] = -1
    labels = torch.from_numpy(targets) if several else None
    return Features(torch.from_numpy(x).float(), torch.from_numpy(label), torch.arange(count), targets=labels)


def by_loop(scores, present, points=None):
    """Precision at each distinct score; VOC's maximum over all recalls from there on."""
    steps = []
    for threshold in sorted({*scores}, reverse=True):
        chosen = [one for score, one in zip(scores, present, strict=True) if score >= threshold]
        steps.append((sum(chosen) / sum(present), sum(chosen) / len(chosen)))
    if points is None:
        total, before = 0.0, 0.0
        for recall, _ in steps:
            total += (recall - before) * max(p for r, p in steps if r >= recall)
            before = recall
        return total
    return sum(max((p for r, p in steps if r >= n / 10 - 1e-12), default=0.0) for n in range(11)) / 11


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("levels", [4, 10_000])  # few: many equal scores
def test_average_precision(seed, levels):
    rng = generator(seed)
    scores, present = rng.integers(levels, size=60) / 7, rng.random(60) < 0.3
    tensors = torch.from_numpy(scores), torch.from_numpy(present)
    assert average_precision(*tensors, "none") == pytest.approx(average_precision_score(present, scores))
    assert average_precision(*tensors, "area") == pytest.approx(by_loop(scores, present))
    assert average_precision(*tensors, "11-point") == pytest.approx(by_loop(scores, present, points=11))


def test_eleven_points_of_an_example():
    """Videos of the class at ranks 1, 3 and 6: recalls 0-0.3 precision 1, 0.4-0.6 2/3, 0.7-1 1/2."""
    scores, present = torch.arange(6).flip(0), torch.tensor([1, 0, 1, 0, 0, 1]).bool()
    assert average_precision(scores, present, "11-point") == pytest.approx((4 * 1 + 3 * 2 / 3 + 4 * 1 / 2) / 11)
    assert average_precision(scores, present, "area") == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)


def unit(features):
    x = features.x.double().numpy()
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def svm(cost):
    return LinearSVC(C=cost, class_weight={0: 1.0, 1: 2.0}, dual="auto", max_iter=20_000, random_state=0)


@pytest.mark.parametrize("unclear", [0.0, 0.2])
def test_multilabel_svm_equals_a_loop_over_classes(unclear):
    gallery, query = made(120, 1, unclear=unclear), made(90, 2, unclear=unclear)
    costs = (0.01, 1.0, 100.0)
    actual = MultilabelSVM(MultilabelSVM.Config(costs=costs, interpolation="none"))(gallery, query, NO_PAIRS)
    precisions, chosen = [], []
    for n in range(CLASSES):
        known, tested = gallery.targets[:, n].numpy() >= 0, query.targets[:, n].numpy() >= 0
        x, y = unit(gallery)[known], gallery.targets[:, n].numpy()[known]
        folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(x, y))
        score = {
            cost: np.mean(
                [
                    average_precision_score(y[test], svm(cost).fit(x[train], y[train]).decision_function(x[test]))
                    for train, test in folds
                ]
            )
            for cost in costs
        }
        chosen.append(max(costs, key=score.get))
        scores = svm(chosen[-1]).fit(x, y).decision_function(unit(query)[tested])
        precisions.append(average_precision_score(query.targets[:, n].numpy()[tested], scores))
    assert actual.details["costs"] == chosen
    assert actual.details["average_precision"] == pytest.approx(precisions)
    assert actual.numbers == {"multilabel_svm": pytest.approx(np.mean(precisions))}
    assert actual.numbers["multilabel_svm"] > 0.6


def test_multilabel_logistic_equals_a_loop_over_classes():
    """On features that are not scaled, with VOC2007's average precision; the cost by the same folds."""
    gallery, query = made(120, 1, unclear=0.2), made(90, 2, unclear=0.2)
    costs = (0.001, 1.0)
    settings = MultilabelLogistic.Config(costs=costs, interpolation="11-point")
    actual = MultilabelLogistic(settings)(gallery, query, NO_PAIRS)
    precisions, chosen = [], []
    for n in range(CLASSES):
        known, tested = gallery.targets[:, n].numpy() >= 0, query.targets[:, n].numpy() >= 0
        x, y = gallery.x.double().numpy()[known], gallery.targets[:, n].numpy()[known]
        score = dict.fromkeys(costs, 0.0)
        for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(x, y):
            for cost in costs:
                model = LogisticRegression(C=cost, max_iter=5000).fit(x[train], y[train])
                score[cost] += by_loop(model.decision_function(x[test]), y[test], points=11)
        chosen.append(max(costs, key=score.get))
        model = LogisticRegression(C=chosen[-1], max_iter=5000).fit(x, y)
        scores = model.decision_function(query.x.double().numpy()[tested])
        precisions.append(by_loop(scores, query.targets[:, n].numpy()[tested], points=11))
    assert actual.details["costs"] == chosen
    assert actual.numbers == {"multilabel_logistic": pytest.approx(np.mean(precisions))}


def test_videos_that_are_not_counted_change_nothing():
    gallery, query = made(120, 1), made(90, 2)
    targets, changed = gallery.targets.clone(), gallery.x.clone()
    targets[:20] = -1
    changed[:20] = torch.randn(20, 8, generator=torch.Generator().manual_seed(3))
    protocol = MultilabelSVM(MultilabelSVM.Config(costs=(1.0,)))
    one, other = (Features(x, gallery.label, gallery.index, targets=targets) for x in (gallery.x, changed))
    assert protocol(one, query, NO_PAIRS) == protocol(other, query, NO_PAIRS)
    assert protocol(gallery, query, NO_PAIRS) != protocol(one, query, NO_PAIRS)


def test_more_shots_are_better_and_repeat():
    gallery, query = made(300, 1), made(200, 2)
    protocol = MultilabelLowShot(MultilabelLowShot.Config(shots=(1, 8, 64, 1000), costs=(1.0,), draws=4))
    actual = protocol(gallery, query, NO_PAIRS)
    one, eight, most = (actual.numbers[f"multilabel_lowshot@{k}"] for k in (1, 8, 64))
    assert one < eight < most and actual == protocol(gallery, query, NO_PAIRS)
    assert actual.numbers["multilabel_lowshot@1_spread"] > 0
    assert actual.details["left_out"] == [1000]


def test_shots_of_all_videos_are_the_svm_of_all():
    """Where each video has one of three classes of 20, 20 shots and twice as many others are all videos."""
    targets = torch.eye(3, dtype=torch.int8).repeat(20, 1)
    full = made(60, 1)
    gallery = Features(full.x + 2 * targets.float() @ torch.randn(3, 8), full.label, full.index, targets=targets)
    query = made(50, 2)
    shots = MultilabelLowShot(MultilabelLowShot.Config(shots=(20,), costs=(1.0,)))(gallery, query, NO_PAIRS).numbers
    whole = MultilabelSVM(MultilabelSVM.Config(costs=(1.0,)))(gallery, query, NO_PAIRS).numbers
    assert shots["multilabel_lowshot@20"] == pytest.approx(whole["multilabel_svm"], abs=1e-3)
    assert shots["multilabel_lowshot@20_spread"] < 1e-3


@pytest.mark.parametrize("protocol", [MultilabelSVM, MultilabelLogistic, MultilabelLowShot])
def test_a_class_without_videos(protocol):
    gallery = made(30, 1)
    gallery.targets[:, 1] = 0
    with pytest.raises(DataError, match="training videos with each class and without it, and there are 0 for one"):
        protocol(protocol.Config())(gallery, made(20, 2), NO_PAIRS)


def test_logistic_regression_equals_scikit_learns():
    gallery, query = made(90, 1, several=False), made(60, 2, several=False)
    actual = Logistic(Logistic.Config(costs=(0.001, 0.1, 10.0)))(gallery, query, NO_PAIRS)
    x, y = gallery.x.double().numpy(), gallery.label.numpy()
    folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(x, y))

    def model(cost):
        return LogisticRegression(C=cost, max_iter=5000)

    score = {
        cost: np.mean([model(cost).fit(x[train], y[train]).score(x[test], y[test]) for train, test in folds])
        for cost in (0.001, 0.1, 10.0)
    }
    best = max(score, key=score.get)
    assert actual.details["cost"] == best
    assert actual.numbers["logistic"] == pytest.approx(
        model(best).fit(x, y).score(query.x.double().numpy(), query.label.numpy())
    )
    assert actual.numbers["logistic"] > 0.6 and len(actual.predicted) == 60


@pytest.mark.parametrize("interpolation", ["none", "area", "11-point"])
def test_the_precision_of_a_class_that_is_not_there_is_undefined(interpolation):
    assert np.isnan(average_precision(torch.rand(9), torch.zeros(9, dtype=torch.bool), interpolation))


@pytest.mark.parametrize(
    ("protocol", "interpolation"),
    [(MultilabelSVM, "none"), (MultilabelLogistic, "area"), (MultilabelLowShot, "11-point")],
)
def test_a_class_whose_tested_videos_are_unreadable_is_named_and_not_in_the_mean(protocol, interpolation, caplog):
    few = {"shots": (2,), "draws": 2} if protocol is MultilabelLowShot else {}
    settings = {"costs": (1.0,), "interpolation": interpolation, **few}
    gallery, query = made(40, 1), made(30, 2)
    before = protocol(protocol.Config(**settings))(gallery, query, NO_PAIRS)
    query.targets[:, 1] = 0
    actual = protocol(protocol.Config(**settings))(gallery, query, NO_PAIRS)
    assert actual.details["undefined"] == ["1"] and "no video of 1 could be read" in caplog.text
    assert all(np.isfinite(number) for number in actual.numbers.values())
    if protocol is not MultilabelLowShot:
        expected = [before.details["average_precision"][n] for n in (0, 2)]
        assert actual.details["average_precision"] == [expected[0], None, expected[1]]
        assert [*actual.numbers.values()] == [pytest.approx(np.mean(expected))]
    query.targets[:] = 0
    with pytest.raises(DataError, match="no video of any class could be read"):
        protocol(protocol.Config(**settings))(gallery, query, NO_PAIRS)
