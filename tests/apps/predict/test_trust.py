"""How far predictions can be trusted: numbers beside scikit-learn and loops, and what is not known."""

import numpy as np
import pytest
import torch
from sklearn.metrics import precision_score, recall_score

from vidssl.apps.predict.trust import measure_trust
from vidssl.evaluation.statistics import proportion


def drawn(seed=0, recordings=12, videos=5, classes=4, dim=12, signal=1.5, between=0.7):
    """Features, classes and recordings: a recording is of one class, and like itself."""
    rng = np.random.RandomState(seed)
    group = np.repeat(np.arange(recordings), videos)
    label = (np.arange(recordings) % classes)[group]
    x = (
        signal * rng.randn(classes, dim)[label]
        + between * rng.randn(recordings, dim)[group]
        + rng.randn(len(group), dim)
    )
    return torch.from_numpy(x.astype(np.float32)), label, group


def trust_of(x, label, group, names="abcd", none=0.05):
    facts = measure_trust(x, label, group, [*names], "video", none)
    return " ".join(facts["sentences"]), facts


def test_numbers_are_those_of_scikit_learn():
    x, label, group = drawn()
    line, facts = trust_of(x, label, group)
    predicted = np.array(facts["predicted"])
    assert facts["recall"]["value"] == pytest.approx(recall_score(label, predicted, average="macro"))
    precision = precision_score(label, predicted, average="macro", zero_division=0)
    assert facts["precision"]["value"] == pytest.approx(precision)
    estimate = proportion((predicted == label).astype(float), group, label)
    assert (facts["recall"]["low"], facts["recall"]["high"]) == (estimate.low, estimate.high)
    # The jackknife of recordings, by a loop.
    without = [
        precision_score(label[group != n], predicted[group != n], average="macro", zero_division=0, labels=range(4))
        for n in range(12)
    ]
    error = np.sqrt(11 / 12 * ((np.array(without) - np.mean(without)) ** 2).sum())
    assert facts["precision"]["low"] == pytest.approx(max(0, precision - 2.200985 * error), abs=1e-5)
    assert facts["guessing"] == 0.25 and facts["majority"] == 0.25 and facts["recordings"] == 12
    assert line.startswith(
        f"{100 * estimate.value:.1f} % ({100 * estimate.low:.1f} to {100 * estimate.high:.1f}) of the"
    )
    assert 0 <= facts["calibration_error"] < 0.5
    for number, row in enumerate(facts["per_class"]):
        assert row["recall"] == (predicted[label == number] == number).mean() and row["examples"] == 15


def test_the_worst_confusions_are_named():
    x, label, group = drawn(signal=4, between=0)
    x[(label == 1) & (group == 1)] = x[label == 2].mean(dim=0)  # a recording of b that looks as c
    line, _ = trust_of(x, label, group)
    assert "Taken for others most often: b for c (5 of 15)" in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda label, group: (label, np.zeros_like(group)), "all 60 videos are of one recording; label others"),
        (lambda label, group: (label, label), "of each class, or each but one, are of one recording"),
        (lambda label, group: (np.where(group < 6, 0, 1 + group), group), "of each class, or each but one, are of one"),
        (lambda label, group: (label, np.where(group < 7, 0, group)), "one recording holds 58 % of the labels"),
        (
            lambda label, group: (np.where(group == 3, 3, label % 3), group),
            "how often it is predicted rightly is not known. Label two more recordings, or leave the class out.",
        ),
        (
            lambda label, group: (np.where(np.isin(group, (3, 7)), 3, label % 3), group),
            "Fewer than 3 recordings of d: the classifier is kNN, not compared with others, and its confidences",
        ),
        (lambda label, group: (label % 2, group % 4), "Not shown to recognise anything, as 4 recordings are too few"),
    ],
)
def test_what_is_said_where_little_is_known(change, words):
    x, label, group = drawn()
    line, facts = trust_of(x, *change(label, group))
    assert words in line and "\n" not in line and ("have two" in str(facts["doubts"])) == ("Not measured" in line)


@pytest.mark.long  # 500 sets: nested choices of 5 folds
def test_nothing_is_recognised_where_labels_are_random():
    said = 0
    for seed in range(500):
        rng = np.random.RandomState(seed)
        x, _, group = drawn(seed, videos=4, dim=8, signal=0)
        line, _ = trust_of(x, rng.randint(0, 3, len(group)), group, "abc")
        said += line.startswith("Nothing is recognised") or line.startswith("Not shown")
    assert said >= 475
