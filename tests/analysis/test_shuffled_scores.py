"""What units reach by chance: labels that are exchanged between recordings."""

from types import SimpleNamespace

import numpy as np
import pytest

from vidssl.apps.analysis import invariance as score_transformations
from vidssl.apps.analysis.invariance import Measure, TrajectoryFeatures, class_invariance, shuffled_scores
from vidssl.base.keyed_generators import generator

LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 1])
GROUPS = np.array([0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8])  # three of two videos, the others of one
VIDEOS = SimpleNamespace(labels=LABELS)


def clips(x):
    return TrajectoryFeatures(x, x[:, None], np.ones((len(x), 1), bool), np.arange(len(x)))


def test_recordings_exchange_their_labels(monkeypatch):
    seen = []

    def scored(x, versions, labels, **options):
        seen.append(labels.copy())
        return class_invariance(x, versions, labels, **options)

    monkeypatch.setattr(score_transformations, "class_invariance", scored)
    x = generator(0).normal(size=(12, 5)).astype(np.float32)
    found = shuffled_scores(clips(x), VIDEOS, Measure(top_k=2), GROUPS, 20)
    assert len(found) == 20 and len({*found}) > 10
    for labels, score in zip(seen, found, strict=True):
        assert np.bincount(labels).tolist() == [4, 5, 3]  # classes keep their sizes
        pairs = [tuple(labels[group == GROUPS]) for group in (0, 2, 5)]
        assert sorted(pairs) == [(0, 0), (1, 1), (2, 2)]  # recordings stay together
        wanted = class_invariance(x, x[:, None], labels, top_k=2, population="samples").score
        assert score == pytest.approx(wanted)
    assert any(tuple(labels) != tuple(LABELS) for labels in seen)
    assert found == shuffled_scores(clips(x), VIDEOS, Measure(top_k=2), GROUPS, 20)


def test_units_that_know_the_classes_are_above_all_of_them():
    rng = generator(1)
    x = (np.eye(3)[LABELS] + 0.2 * rng.random((12, 3))).astype(np.float32)
    found = shuffled_scores(clips(x), VIDEOS, Measure(top_k=1), np.arange(12), 39)
    own = class_invariance(x, x[:, None], LABELS, top_k=1, population="samples").score
    assert max(found) < own == pytest.approx(np.mean([3, 12 / 5, 4]))
