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
    distance_to,
    farthest,
    nested_probabilities,
    unlikeness,
)
from vidssl.evaluation.leave_recording_out import same_group, vote_of_others


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
    actual = StandardLogistic(x, torch.from_numpy(label), classes, 0.3)(x).exp()
    assert np.abs(actual.numpy() - reference.predict_proba(z.numpy())).max() < 2e-3


def test_a_class_without_examples_is_never_predicted():
    x, label, _ = drawn(24, 2)
    for rule in (Rule(), Rule(1.0)):
        probability = CalibratedClassifier(rule, x, torch.from_numpy(np.where(label, 2, 0)), 3).of_many(x)
        assert (probability.argmax(axis=1) != 1).all() and np.isfinite(probability).all()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_no_confidence_of_knn_is_above_the_stated_one(temperature):
    label = torch.arange(24) % 3
    x = torch.eye(8)[label] + 0.001 * torch.arange(24)[:, None]  # all neighbours are of one class
    model = CalibratedClassifier(Rule(None, temperature), x, label, 3)
    assert f"k = 7: no confidence is above {100 * model.of_many(x).max():.1f} %," in str(model)


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
    assert not can_choose(np.where(group == 3, 2, label), np.where(group == 3, group % 2 + 20 + label, group))


def test_a_class_of_one_recording_does_not_decide():
    """The classifier with it is that without it."""
    rng = np.random.RandomState(0)
    group, label = np.repeat(np.arange(12), 8), np.arange(96) % 2
    x = 3 * rng.randn(96, 20)
    x[:, 0] = 2 * label - 1 + 0.3 * rng.randn(96)
    x = torch.from_numpy(x.astype(np.float32))
    with_one = torch.cat([x, x[:1] * 0.9]), np.append(label, 2), np.append(group, 12)
    assert can_choose(*with_one[1:])
    assert choose_rule(*with_one, 3).cost == choose_rule(x, label, group, 2).cost is not None


def test_the_threshold_is_a_quantile_of_other_recordings():
    x, _, group = drawn(40, recordings=20)
    distance, _ = distance_to(x, x, same_group(group))
    unit = torch.nn.functional.normalize(x, dim=1).numpy()
    loop = [min(1 - unit[n] @ unit[m] for m in range(40) if group[m] != group[n]) for n in range(40)]
    assert distance == pytest.approx(np.array(loop), abs=1e-5)
    ordered = np.sort(distance)
    assert farthest(distance, 0.1) == pytest.approx(ordered[35] + 0.9 * (ordered[36] - ordered[35]))  # rank 36.9 of 41
    assert farthest(distance, 0.0) == farthest(distance[:18], 0.05) == np.inf  # nothing is refused; too few to tell


def test_a_new_video_is_compared_as_an_example_is():
    x, _, group = drawn(60)
    label = group % 4
    new = drawn(60, seed=1)[0][:9]
    mean, distance, row = unlikeness(new, x, label, group)
    unit, other = (torch.nn.functional.normalize(part, dim=1).numpy() for part in (x, new))
    loop = 1 - other @ unit.T
    assert row.tolist() == loop.argmin(axis=1).tolist() and distance == pytest.approx(loop.min(axis=1), abs=1e-6)
    for n in range(9):
        own = np.unique(group[label == label[row[n]]])  # three recordings of the nearest class
        left_out = [loop[n, group != recording].min() for recording in own]
        assert len(own) == 3 and mean[n] == pytest.approx(np.mean(left_out), abs=1e-6)


# Sets whose recordings are of each class in turn, or of one that is drawn; the last: the class of a video is drawn.
@pytest.mark.parametrize(
    ("recordings", "kind"), [(12, "turn"), (30, "turn"), (12, "drawn"), (30, "drawn"), (20, "videos")]
)
def test_as_many_of_the_known_are_refused_as_were_asked_for(recordings, kind):
    shares = []
    for seed in range(200):
        rng, total = np.random.RandomState(seed), recordings + 12
        group = np.repeat(np.arange(total), 5)
        label = {"turn": group % 4, "drawn": rng.randint(0, 4, total)[group], "videos": rng.randint(0, 4, 5 * total)}[
            kind
        ]
        x = 1.5 * rng.randn(4, 12)[label] + 0.7 * rng.randn(total, 12)[group] + rng.randn(5 * total, 12)
        x, seen = torch.from_numpy(x.astype(np.float32)), group < recordings
        threshold = farthest(distance_to(x[seen], x[seen], same_group(group[seen]))[0], 0.05)
        shares.append((unlikeness(x[~seen], x[seen], label[seen], group[seen])[0] > threshold).mean())
    assert 0.035 <= np.mean(shares) <= 0.065
