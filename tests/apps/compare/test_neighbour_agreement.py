"""Neighbours and disagreements of encoders, against loops and scikit-learn."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics.pairwise import cosine_similarity

from vidssl.apps.compare.neighbour_agreement import common_neighbours, disagreement
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator


def features(x):
    return torch.as_tensor(np.asarray(x, np.float32))


def similar(rng, x, noise):
    return x + noise * rng.normal(size=x.shape)


def neighbours_by_loops(x, groups, k):
    similarity = cosine_similarity(x.astype(np.float64))
    neighbours = []
    for row in range(len(x)):
        others = [other for other in range(len(x)) if groups[other] != groups[row]]
        neighbours.append(sorted(others, key=lambda other: -similarity[row, other])[:k])
    return neighbours


@pytest.mark.parametrize("k", [1, 10, 100])
def test_agreement_is_the_mean_overlap_of_the_neighbours(k):
    rng = generator(0, 0)
    x = [rng.normal(size=(70, 16)).astype(np.float32)]
    x += [similar(rng, x[0], noise).astype(np.float32) for noise in (0.5, 2.0)]
    groups = rng.integers(0, 25, 70) * 3  # numbers with gaps
    pairs = common_neighbours({str(n): features(each) for n, each in enumerate(x)}, groups, k)
    assert [(pair["first"], pair["second"]) for pair in pairs] == [*combinations("012", 2)]
    for pair in pairs:
        one, other = (neighbours_by_loops(x[int(pair[side])], groups, k) for side in ("first", "second"))
        common = [len({*a} & {*b}) / len(a) for a, b in zip(one, other, strict=True)]
        assert pair["fraction"] == pytest.approx(np.mean(common))
    if k < 100:
        assert pairs[0]["fraction"] > pairs[1]["fraction"] > pairs[1]["chance"]


def test_chance_is_what_random_features_have_in_common():
    rng = generator(1, 0)
    groups = np.repeat(np.arange(12), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 15, 15])
    means = []
    for _ in range(100):
        (pair,) = common_neighbours({name: features(rng.normal(size=(60, 30))) for name in "ab"}, groups)
        means.append(pair["fraction"])
    expected = np.mean([10 / (60 - (groups == group).sum()) for group in groups])
    assert pair["chance"] == pytest.approx(expected)
    assert np.mean(means) == pytest.approx(expected, abs=4 * np.std(means) / np.sqrt(100))


def test_few_videos_and_one_group():
    x = features(generator(2, 0).normal(size=(6, 4)))
    (pair,) = common_neighbours({"a": x, "b": x}, np.array([0, 0, 0, 0, 1, 1]))
    assert pair["fraction"] == pair["chance"] == 1  # fewer than k others: all are neighbours
    (pair,) = common_neighbours({"a": x, "b": x}, np.zeros(6, np.int64))
    assert np.isnan(pair["fraction"]) and np.isnan(pair["chance"])
    with pytest.raises(ConfigError, match="k is 0"):
        common_neighbours({"a": x, "b": x}, np.arange(6), k=0)


def margins_by_loops(predicted, labels):
    """The fraction of the votes for the label minus that for the best other class."""
    margins = []
    for votes, label in zip(predicted.T, labels, strict=True):
        counts = Counter(votes.tolist())
        best_other = max((count for name, count in counts.items() if name != label), default=0)
        margins.append((counts[label] - best_other) / len(predicted))
    return margins


def test_disagreement_is_the_entropy_of_the_votes():
    predicted = generator(8, 0).integers(-1, 4, (7, 40))
    labels = generator(9, 0).integers(0, 4, 40)
    order, entropies = disagreement(predicted, labels)
    assert entropies == pytest.approx([entropy([*Counter(votes.tolist()).values()]) for votes in predicted.T])
    keys = zip(-entropies.round(9), np.round(margins_by_loops(predicted, labels), 9), range(40), strict=True)
    assert order.tolist() == [row for *_, row in sorted(keys)]


def test_of_equal_votes_those_that_contradict_the_label_come_first():
    predicted = np.array([[0, 0, 0, 0, 5], [0, 0, 0, 0, 5], [0, 1, 1, 1, 5]])
    assert disagreement(predicted, np.array([0, 0, 1, 2, 4]))[0].tolist() == [3, 2, 1, 4, 0]
    order, entropies = disagreement(np.array([[2, 0, 1]]), np.array([2, 0, 1]))  # one encoder does not disagree
    assert order.tolist() == [0, 1, 2] and not entropies.any()
