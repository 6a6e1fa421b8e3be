"""Invariance against plain loops, and on representations with a known score."""

import numpy as np
import pytest

from vidssl.apps.analysis import invariance as module
from vidssl.apps.analysis.invariance import class_invariance, firing_invariance
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator


def fires(value, values, count, sign):
    """By the words of the docstring: above the smallest value above which at most `count` values lie."""
    values = [sign * v for v in values]
    threshold = min(t for t in values if sum(v > t for v in values) <= count)
    return sign * value > threshold


def class_loops(features, versions, labels, top_k, counted, population):
    samples, dim = features.shape
    paths = [[features[n], *(versions[n, v] for v in np.flatnonzero(counted[n]))] for n in range(samples)]
    pool = [(n, x) for n in range(samples) for x in (paths[n] if population == "all" else paths[n][:1])]
    of_class = []
    for y in sorted(set(labels)):
        members = [n for n in range(samples) if labels[n] == y and len(paths[n]) > 1]
        if not members:
            continue
        fired = sum(labels[n] == y for n, _ in pool)
        scores = []
        for unit in range(dim):
            values = [x[unit] for _, x in pool]
            local = [
                np.mean([sum(fires(x[unit], values, fired, sign) for x in paths[n]) / len(paths[n]) for n in members])
                for sign in (1, -1)
            ]
            scores.append(max(local) / (fired / len(pool)))
        of_class.append(sum(sorted(scores)[-top_k:]) / top_k)
    return sum(of_class) / len(of_class), of_class


def firing_loops(features, versions, top_k, counted, population, rate):
    samples, dim = features.shape
    pool = [features[n] for n in range(samples)]
    if population == "all":
        pool += [versions[n, v] for n in range(samples) for v in np.flatnonzero(counted[n])]
    fired = max(1, round(rate * len(pool)))
    scores = []
    for unit in range(dim):
        values, local = [x[unit] for x in pool], []
        for sign in (1, -1):
            shares = [
                np.mean([fires(versions[n, v, unit], values, fired, sign) for v in np.flatnonzero(counted[n])])
                for n in range(samples)
                if counted[n].any() and fires(features[n, unit], values, fired, sign)
            ]
            local.append(np.mean(shares) if shares else 0.0)
        scores.append(max(local) / (fired / len(pool)))
    return sum(sorted(scores)[-top_k:]) / top_k


def drawn(relu, seed=0):
    """17 samples of three unequal classes, 4 versions that are like them; some versions are not there."""
    rng = generator(seed)
    labels = np.array([3] * 8 + [0] * 6 + [7] * 3)[rng.permutation(17)]
    features = rng.normal(size=(17, 6)).astype(np.float32)
    versions = (features[:, None] + 0.7 * rng.normal(size=(17, 4, 6))).astype(np.float32)
    counted = rng.random((17, 4)) < 0.7
    counted[2] = False
    if relu:  # ties at 0, and a unit that is dead
        features, versions = np.maximum(features, 0), np.maximum(versions, 0)
        features[:, 4] = versions[..., 4] = 0
    return features, versions, labels, counted


@pytest.mark.parametrize("population", ["all", "samples"])
@pytest.mark.parametrize("relu", [False, True])
def test_scores_equal_plain_loops(population, relu, monkeypatch):
    features, versions, labels, counted = drawn(relu)
    options = {"counted": counted, "population": population}
    score, of_class = class_loops(features, versions, labels, 2, counted, population)
    firing_score = firing_loops(features, versions, 2, counted, population, 0.2)
    for block in (1 << 24, 200):  # at once, and two units at a time
        monkeypatch.setattr(module, "_BLOCK", block)
        by_class = class_invariance(features, versions, labels, top_k=2, **options)
        np.testing.assert_allclose(by_class.of_class, of_class, rtol=1e-12)
        assert by_class.score == pytest.approx(score, rel=1e-12) and by_class.classes.tolist() == [0, 3, 7]
        assert (by_class.versions, by_class.samples) == (counted.sum(), counted.any(axis=1).sum())
        by_firing = firing_invariance(features, versions, top_k=2, rate=0.2, **options)
        assert by_firing.score == pytest.approx(firing_score, rel=1e-12)


def test_a_class_without_versions_is_left_out():
    features, versions, labels, counted = drawn(relu=False)
    counted[labels == 7] = False
    actual = class_invariance(features, versions, labels, top_k=3, counted=counted)
    assert actual.classes.tolist() == [0, 3]
    expected, _ = class_loops(features, versions, labels, 3, counted, "all")
    assert actual.score == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("population", ["all", "samples"])
def test_perfect_units_score_one_over_the_frequency_of_their_class(population):
    labels = np.repeat([0, 1, 2], [2, 6, 8])
    features = np.eye(3)[labels] + generator(0).random((16, 3)) / 4  # unit y: high for y alone, otherwise any value
    versions = np.eye(3)[labels][:, None] + generator(1).random((16, 4, 3)) / 4
    actual = class_invariance(features, versions, labels, top_k=1, population=population)
    np.testing.assert_allclose(actual.of_class, [8, 16 / 6, 2], rtol=1e-12)
    assert actual.score == pytest.approx(actual.ceiling) == pytest.approx(np.mean([8, 16 / 6, 2]))


def test_invalid_inputs():
    features, versions, labels, counted = drawn(relu=False)
    for top_k in (0, 7):
        with pytest.raises(ConfigError, match=f"top_k {top_k} of 6 units: choose 1 to 6"):
            class_invariance(features, versions, labels, top_k=top_k)
    with pytest.raises(DataError, match="between classes"):
        class_invariance(features, versions, labels * 0, top_k=1)
    with pytest.raises(DataError, match="no sample has a transformed version"):
        class_invariance(features, versions, labels, top_k=1, counted=counted & False)
    with pytest.raises(DataError, match="between samples"):
        firing_invariance(features[:1], versions[:1], top_k=1)
    broken = versions.copy()
    broken[3, 1, 2] = np.nan
    counted[3, 1] = False
    class_invariance(features, broken, labels, top_k=1, counted=counted)  # it is not looked at
    with pytest.raises(DataError, match="not finite"):
        class_invariance(features, broken, labels, top_k=1)
