"""The classifier of predictions: beside kNN of a comparison and scikit-learn's regression; chosen and calibrated."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from sklearn.linear_model import LogisticRegression

from vidssl.base.types import Features
from vidssl.evaluation import calibrated_classifier
from vidssl.evaluation.calibrated_classifier import (
    CalibratedClassifier,
    KNearest,
    Rule,
    StandardLogistic,
    can_choose,
    choose_rule,
    nested_probabilities,
)
from vidssl.evaluation.leave_recording_out import vote_of_others


def drawn(count=72, classes=3, recordings=12, dim=8, noise=1.0, seed=0):
    """Features of classes with middles of their own, and of recordings."""
    rng = np.random.RandomState(seed)
    group, label = np.repeat(np.arange(recordings), count // recordings), np.arange(count) % classes
    x = rng.randn(classes, dim)[label] + 0.3 * rng.randn(recordings, dim)[group] + noise * rng.randn(count, dim)
    return torch.from_numpy(x.astype(np.float32)), label, group


def test_knn_predicts_what_a_comparison_does():
    x, label, group = drawn(noise=1.5)
    folds = group  # each recording is left out by itself, as there
    probability = calibrated_classifier.left_out_probabilities(x, label, folds, 3, lambda rest: Rule())
    features = Features(x, torch.from_numpy(label), torch.arange(len(x)))
    voted = vote_of_others(features, group)[0].numpy()
    # The vote of a comparison counts neighbours by the median class of all videos: one fewer here or there.
    assert (probability.argmax(axis=1) == voted).mean() > 0.95
    assert probability.sum(axis=1) == pytest.approx(1)


def test_knn_counts_by_hand():
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8], [0.0, 2.0]])
    label = torch.tensor([0, 0, 1, 1, 1])
    model = KNearest(x, label, 3)
    assert model.k == 1  # the median class has two others, the one without examples none
    query = torch.tensor([[2.0, 0.2]])
    model.k = 3
    similarity = torch.nn.functional.normalize(query, dim=1) @ torch.nn.functional.normalize(x, dim=1).T
    near = similarity[0].argsort(descending=True)[:3].tolist()
    votes = torch.zeros(3)
    for n in near:
        votes[label[n]] += torch.exp((similarity[0, n] - similarity.max()) / 0.07) / (label == label[n]).sum()
    share = votes / votes.sum()
    assert model(query).exp()[0].tolist() == pytest.approx(((3 * share + 1 / 3) / 4).tolist(), abs=1e-6)


@pytest.mark.parametrize(("classes", "count"), [(2, 60), (3, 60), (3, 9)])
def test_logistic_regression_is_that_of_scikit_learn(classes, count):
    x, label, _ = drawn(72, classes, dim=12)
    x, label = x[:count], label[:count]
    z = (x - x.mean(dim=0)) / x.std(dim=0, correction=0)
    reference = LogisticRegression(C=0.3, max_iter=5000, tol=1e-8).fit(z.numpy(), label)
    found = StandardLogistic(x, torch.from_numpy(label), classes, 0.3)(x).exp()
    assert np.abs(found.numpy() - reference.predict_proba(z.numpy())).max() < 2e-3


def test_a_class_without_examples_is_never_predicted():
    x, label, _ = drawn(24, 2)
    for rule in (Rule(), Rule(1.0)):
        probability = CalibratedClassifier(rule, x, torch.from_numpy(np.where(label, 2, 0)), 3).of_many(x)
        assert (probability.argmax(axis=1) != 1).all() and np.isfinite(probability).all()


def test_the_temperature_is_that_of_the_highest_likelihood():
    rng = np.random.RandomState(0)
    label = rng.randint(0, 3, 4000)
    scores = 2.5 * (1.2 * np.eye(3)[label] + rng.gumbel(size=(4000, 3)))  # too sure by 2.5
    scores -= np.logaddexp.reduce(scores, axis=1)[:, None]

    def loss(temperature):
        scaled = scores / temperature
        return (np.logaddexp.reduce(scaled, axis=1) - scaled[np.arange(4000), label]).mean()

    best = minimize_scalar(loss, bounds=(0.1, 10), method="bounded").x
    assert calibrated_classifier._temperature(np.exp(scores), label) == pytest.approx(best, rel=0.1)
    sure = np.full((20, 2), 0.1)
    sure[:, 0] = 0.9
    assert calibrated_classifier._temperature(sure, np.zeros(20, np.int64)) > 0.2  # nothing is wrong: not 0


def test_the_rule_of_a_fold_never_sees_it(monkeypatch):
    x, label, group = drawn()
    seen = []
    monkeypatch.setattr(
        calibrated_classifier, "choose_rule", lambda x, label, group, classes: seen.append({*group}) or Rule()
    )
    nested_probabilities(x, label, group, 3)
    assert len(seen) == 5 and all(len(groups) < 12 for groups in seen)
    left_out = [{*range(12)} - groups for groups in seen]
    assert set.union(*left_out) == {*range(12)} and sum(map(len, left_out)) == 12


def test_the_better_classifier_is_chosen():
    rng = np.random.RandomState(0)
    group, label = np.repeat(np.arange(12), 8), np.arange(96) % 2
    x = 3 * rng.randn(96, 20)  # only the first of many dimensions tells: neighbours do not
    x[:, 0] = 2 * label - 1 + 0.3 * rng.randn(96)
    assert choose_rule(torch.from_numpy(x.astype(np.float32)), label, group, 2).cost is not None
    angle = rng.uniform(0, 2 * np.pi, 96)  # a class around another: no line divides them
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.05 * rng.randn(96, 2)
    ring = (angle * 4 / np.pi).astype(int) % 2
    assert choose_rule(torch.from_numpy(circle.astype(np.float32)), ring, group, 2).cost is None
    assert can_choose(label, group) and not can_choose(label, np.minimum(group, 1))
