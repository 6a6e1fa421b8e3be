"""Numbers of features against formulas written out in loops, and against scikit-learn where it has them."""

import math

import numpy as np
import pytest
import torch

from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation.metrics import accuracy, chance, recall, uniformity_loss, vote
from vidssl.evaluation.search import nearest


def drawn(count, dim, seed):
    return torch.from_numpy(generator(seed).normal(size=(count, dim)).astype(np.float32))


def knn_accuracy(neighbours, query, gallery, k, temperature=0.07):
    return accuracy(vote(neighbours, gallery, k, temperature), query.label)


def features(x, label):
    return Features(torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(label), torch.arange(len(label)))


def clustered(count, classes, seed, spread=1.2):
    """Rows around one centre for each class: neither easy nor hopeless."""
    label = generator(seed, 1).integers(classes, size=count)
    centres = generator(99).normal(size=(classes, 8))
    return features(centres[label] + spread * generator(seed, 2).normal(size=(count, 8)), label)


def cosine(a, b):
    a, b = (np.asarray(v, np.float64) for v in (a, b))
    norms = math.sqrt((a**2).sum()) * math.sqrt((b**2).sum())
    return float((a * b).sum() / norms) if norms else 0.0


def loop_nearest(query, gallery, k, exclude=None):
    rows = []
    for n, q in enumerate(query):
        actual = [(-cosine(q, g), row) for row, g in enumerate(gallery) if [n, row] not in (exclude or [])]
        rows.append(sorted(actual)[:k])  # equal similarities by row
    return [[row for _, row in actual] for actual in rows], [[-s for s, _ in actual] for actual in rows]


def test_fault_29_a_query_has_several_rows_that_it_must_not_find():
    gallery = drawn(9, 4, 5)
    pairs = [[1, n] for n in (0, 2, 3, 4, 5, 6, 7, 8)] + [[0, n] for n in range(9)]
    for chunk in (1, 512):
        hits = nearest(gallery[:3], gallery, 4, torch.tensor(pairs), chunk)
        assert hits.index[1, 0] == 1 and torch.isneginf(hits.similarity[1, 1:]).all()
        assert torch.isneginf(hits.similarity[0]).all() and torch.isfinite(hits.similarity[2]).all()
        label = torch.zeros(9, dtype=torch.int64)
        query = features(gallery[:3], label[:3])
        assert recall(hits, query, features(gallery, label), (1, 4)) == pytest.approx(
            {"R@1": 2 / 3, "R@4": 2 / 3}  # the first query has nobody left, whatever the labels say
        )
        assert knn_accuracy(hits, query, features(gallery, label), 4) == pytest.approx(2 / 3)


def test_fault_29_zero_vectors_everywhere():
    """A network that gives nothing but zeros: every video ties with every other, so rows decide."""
    nothing = features(np.zeros((6, 3)), [0, 1, 0, 1, 0, 1])
    hits = nearest(nothing.x, nothing.x, 6, torch.stack([torch.arange(6)] * 2, dim=1))
    assert hits.index[:, :2].tolist() == [[1, 2], [0, 2], [0, 1], [0, 1], [0, 1], [0, 1]]
    assert recall(hits, nothing, nothing, (1,))["R@1"] == pytest.approx(2 / 6)
    assert knn_accuracy(hits, nothing, nothing, 2) == pytest.approx(3 / 6)  # equal votes: the smaller label
    assert uniformity_loss(nothing.x) == 0
    assert math.isnan(uniformity_loss(nothing.x[:1]))  # there is no pair


@pytest.mark.parametrize("excluding", [False, True])
def test_recall_is_the_loop(excluding):
    gallery, query = clustered(120, 5, 1), clustered(37, 5, 2)
    exclude = torch.empty(0, 2, dtype=torch.int64)
    if excluding:
        gallery = Features(torch.cat([gallery.x, query.x]), torch.cat([gallery.label, query.label]), torch.arange(157))
        exclude = torch.stack([torch.arange(37), torch.arange(120, 157)], dim=1)
    ks = (1, 2, 5, 10, 500)
    actual = recall(nearest(query.x, gallery.x, max(ks), exclude), query, gallery, ks)
    index, _ = loop_nearest(query.x, gallery.x, 500, exclude.tolist())
    expected = {}
    for k in ks:
        hits = 0
        for n, rows in enumerate(index):
            hits += any(gallery.label[row] == query.label[n] for row in rows[:k])
        expected[f"R@{k}"] = hits / 37
    assert actual == pytest.approx(expected, abs=1e-6)
    assert 0.2 < actual["R@1"] < actual["R@5"] <= actual["R@500"] == 1


def test_recall_does_not_count_the_excluded_row():
    """The only video of its class is the query itself: there is nothing to find."""
    gallery = features([[1.0, 0.0], [0.0, 1.0]], [0, 1])
    query = features([[1.0, 0.0]], [0])
    assert recall(nearest(query.x, gallery.x, 2), query, gallery, (1, 2)) == {"R@1": 1, "R@2": 1}
    own = nearest(query.x, gallery.x, 2, torch.tensor([[0, 0]]))
    assert recall(own, query, gallery, (1, 2)) == {"R@1": 0, "R@2": 0}
    assert knn_accuracy(own, query, gallery, 2) == 0


@pytest.mark.parametrize(("k", "temperature"), [(1, 0.5), (4, 0.001), (500, 0.07)])
def test_knn_is_the_loop(k, temperature):
    gallery, query = clustered(120, 5, 3), clustered(60, 5, 4)
    right = 0
    index, similarity = loop_nearest(query.x, gallery.x, k)
    for n in range(60):
        votes = [0.0] * 5
        for row, s in zip(index[n], similarity[n], strict=True):
            votes[int(gallery.label[row])] += math.exp((s - 1) / temperature)
        right += int(np.argmax(votes)) == int(query.label[n])
    nearer = nearest(query.x, gallery.x, k + 3)  # of which no more than k vote
    actual = knn_accuracy(nearer, query, gallery, k, temperature)
    assert actual == pytest.approx(right / 60, abs=1e-6)
    assert 0.2 < actual < 1


def test_chance_is_what_random_features_reach():
    gallery, query = (features(np.zeros((10, 2)), [0] * 6 + [1] * 3 + [3]), features(np.zeros((4, 2)), [0, 0, 1, 2]))
    assert chance(query, gallery) == pytest.approx((0.6 + 0.6 + 0.3 + 0) / 4)
    assert chance(features(np.zeros((2, 2)), [5, 0]), gallery) == pytest.approx(0.3)  # a class the gallery lacks
    label = torch.from_numpy(generator(7).choice(4, size=400, p=[0.1, 0.2, 0.3, 0.4]))
    hits = []
    for seed in range(30):
        gallery, query = (features(drawn(400, 5, 2 * seed + 20), label), features(drawn(400, 5, 2 * seed + 21), label))
        hits.append(recall(nearest(query.x, gallery.x, 1), query, gallery, (1,))["R@1"])
    assert abs(np.mean(hits) - chance(query, gallery)) < 4 * np.std(hits) / math.sqrt(30)


@pytest.mark.parametrize(("t", "chunk"), [(2.0, 512), (0.5, 7), (2.0, 1)])
def test_uniformity_is_the_formula(t, chunk):
    """In parts it is that of all pairs."""
    x = drawn(25, 6, 8) * 3
    unit = x.double() / x.double().norm(dim=1, keepdim=True)
    total, pairs = 0.0, 0
    for i in range(25):
        for j in range(i):
            total += math.exp(-t * float(((unit[i] - unit[j]) ** 2).sum()))
            pairs += 1
    assert uniformity_loss(x, t, chunk) == pytest.approx(math.log(total / pairs), abs=1e-5)


def test_uniformity_of_extremes():
    assert uniformity_loss(torch.ones(10, 4)) == pytest.approx(0, abs=1e-6)
    many = uniformity_loss(drawn(1500, 256, 9))
    assert many == pytest.approx(-4, abs=0.05)  # squared distances of 2 almost surely, times t = 2


def test_chance_leaves_out_what_a_query_must_not_find():
    every = features(np.zeros((5, 2)), [0, 0, 0, 1, 1])
    itself = torch.stack([torch.arange(5)] * 2, dim=1)
    assert chance(every, every, itself) == pytest.approx((3 * 2 / 4 + 2 * 1 / 4) / 5)
    alone = features(np.zeros((1, 2)), [0])
    assert chance(alone, alone, torch.tensor([[0, 0]])) == 0 and chance(alone, alone) == 1
