"""What is compared without labels, against loops and scikit-learn."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics.pairwise import cosine_similarity

from vidssl.apps.compare.neighbour_agreement import compare_neighbours, disagreement, most_changed
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features


def features(x, first=0):
    rows = torch.arange(first, first + len(x))
    return Features(torch.as_tensor(np.asarray(x, np.float32)), torch.full_like(rows, -1), rows)


def similar(rng, x, noise):
    return x + noise * rng.normal(size=x.shape)


def neighbours_by_loops(x, groups, k):
    similarity = cosine_similarity(x.astype(np.float64))
    found = []
    for row in range(len(x)):
        others = [other for other in range(len(x)) if groups[other] != groups[row]]
        found.append(sorted(others, key=lambda other: -similarity[row, other])[:k])
    return found


@pytest.mark.parametrize("k", [1, 10, 100])
def test_agreement_is_the_mean_overlap_of_the_neighbours(k):
    rng = generator(0, 0)
    x = [rng.normal(size=(70, 16)).astype(np.float32)]
    x += [similar(rng, x[0], noise).astype(np.float32) for noise in (0.5, 2.0)]
    groups = rng.integers(0, 25, 70) * 3  # numbers with gaps
    found = compare_neighbours([features(each) for each in x], groups, k)
    assert [(each.first, each.second) for each in found] == [*combinations(range(3), 2)]
    for each in found:
        one, other = (neighbours_by_loops(x[n], groups, k) for n in (each.first, each.second))
        common = [len({*a} & {*b}) / len(a) for a, b in zip(one, other, strict=True)]
        np.testing.assert_allclose(each.common, common)
        assert each.mean == pytest.approx(np.mean(common))
        assert [[n for n in row if n >= 0] for row in each.nearest[0].tolist()] == one
    if k < 100:
        assert found[0].mean > found[1].mean > found[1].chance


def test_chance_is_what_random_features_have_in_common():
    rng = generator(1, 0)
    groups = np.repeat(np.arange(12), [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 15, 15])
    means = []
    for _ in range(100):
        one, other = (features(rng.normal(size=(60, 30))) for _ in range(2))
        (found,) = compare_neighbours([one, other], groups)
        means.append(found.mean)
    expected = np.mean([10 / (60 - (groups == group).sum()) for group in groups])
    assert found.chance == pytest.approx(expected)
    assert np.mean(means) == pytest.approx(expected, abs=4 * np.std(means) / np.sqrt(100))


def test_few_videos_and_one_group():
    x = features(generator(2, 0).normal(size=(6, 4)))
    (found,) = compare_neighbours([x, x], np.array([0, 0, 0, 0, 1, 1]))
    assert (found.common == 1).all() and found.chance == 1  # fewer than k others: all are neighbours
    (found,) = compare_neighbours([x, x], np.zeros(6, np.int64))
    assert np.isnan(found.common).all() and np.isnan(found.mean) and np.isnan(found.chance)
    assert most_changed(found, 3) == []
    with pytest.raises(ConfigError, match="k is 0"):
        compare_neighbours([x, x], np.arange(6), k=0)
    with pytest.raises(DataError, match="not of the same videos"):
        compare_neighbours([x, features(x.x, first=1)], np.arange(6))


def test_the_most_changed_have_the_fewest_common_neighbours():
    rng = generator(3, 0)
    x = rng.normal(size=(80, 8))
    y = similar(rng, x, 1.0)
    groups = np.arange(80) // 2
    (found,) = compare_neighbours([features(x), features(y)], groups, 5)
    changed = most_changed(found, 12)
    assert changed == most_changed(found, 12)
    assert [each.common for each in changed] == sorted(found.common)[:12]
    assert len({each.row for each in changed}) == 12
    one, other = (neighbours_by_loops(each.astype(np.float32), groups, 5) for each in (x, y))
    for each in changed:
        assert (each.first, each.second) == (one[each.row], other[each.row])
        assert each.common == len({*each.first} & {*each.second}) / 5
    assert len(most_changed(found, 1000)) == 80


def test_equally_changed_videos_are_not_the_first_of_the_list():
    (found,) = compare_neighbours([features(np.eye(200)), features(np.eye(200))], np.arange(200))
    rows = [each.row for each in most_changed(found, 20)]  # all have all neighbours in common
    assert max(rows) > 100 and min(rows) < 100


def test_disagreement_is_the_entropy_of_the_votes():
    predicted = generator(8, 0).integers(-1, 4, (7, 40))
    found = disagreement(predicted)
    for n, votes in enumerate(predicted.T):
        counts = np.sort(np.unique(votes, return_counts=True)[1])[::-1]
        assert found.entropy[n] == pytest.approx(entropy(counts))
        assert found.margin[n] == pytest.approx((counts[0] - (counts[1] if len(counts) > 1 else 0)) / 7)
    keys = [(-round(found.entropy[n], 9), round(found.margin[n], 9), n) for n in range(40)]
    assert found.order.tolist() == [n for *_, n in sorted(keys)]


def test_of_equal_votes_those_that_contradict_the_label_come_first():
    predicted = np.array([[0, 0, 0, 0, 5], [0, 0, 0, 0, 5], [0, 1, 1, 1, 5]])
    labels = np.array([0, 0, 1, 2, 4])
    found = disagreement(predicted, labels)
    assert found.margin.tolist() == pytest.approx([1, 1 / 3, -1 / 3, -2 / 3, -1])
    assert found.order.tolist() == [3, 2, 1, 4, 0]
    unknown = disagreement(predicted, np.full(5, -1))
    assert unknown.order.tolist() == disagreement(predicted).order.tolist() == [1, 2, 3, 0, 4]


def test_one_encoder_does_not_disagree():
    found = disagreement(np.array([[2, 0, 1]]))
    assert found.order.tolist() == [0, 1, 2] and not found.entropy.any() and (found.margin == 1).all()
