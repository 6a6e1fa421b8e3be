"""Intervals of differences over recording groups: coverage in simulated tables, and the cases without an interval."""

import numpy as np
import pytest

from vidssl.evaluation import paired_groups
from vidssl.evaluation.statistics import compare_pairs
from vidssl.keyed_generators import generator


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def draw_table(rng, groups, gap=0.4, classes=6):
    """Correctness of two encoders (2, N), with an effect of each group on both, and one on each of them."""
    sizes = rng.integers(3, 9, groups)
    of_video = np.repeat(np.arange(groups), sizes)
    both = rng.normal(0, 0.8, groups)
    right = np.stack([sigmoid(base + both + rng.normal(0, 0.6, groups)) for base in (0.6 + gap, 0.6)])
    return (
        (rng.random((2, len(of_video))) < right[:, of_video]).astype(float),
        of_video,
        (np.arange(groups) % classes)[of_video],
    )


def expected_difference(gap=0.4):
    rng = generator(0, 0)
    both, own = rng.normal(0, 0.8, 10**6), rng.normal(0, 0.6, (2, 10**6))
    return (sigmoid(0.6 + gap + both + own[0]) - sigmoid(0.6 + both + own[1])).mean()


@pytest.mark.parametrize(("groups", "low", "high"), [(12, 0.91, 0.97), (30, 0.935, 0.965), (150, 0.935, 0.965)])
def test_intervals_hold_the_difference_as_often_as_they_say(monkeypatch, groups, low, high):
    monkeypatch.setattr(paired_groups, "DRAWS", 500)
    rng, wanted = generator(groups, 0), expected_difference()
    tables = (compare_pairs(*draw_table(rng, groups), seed=n)[0] for n in range(2000))
    held = np.mean([pair.low <= wanted <= pair.high for pair in tables])
    assert low <= held <= high


def test_no_difference_is_found_as_often_as_the_level_says(monkeypatch):
    monkeypatch.setattr(paired_groups, "DRAWS", 500)
    rng = generator(1, 0)
    found = np.mean([compare_pairs(*draw_table(rng, 40, gap=0.0), seed=n)[0].p < 0.05 for n in range(1000)])
    assert 0.03 < found < 0.07


@pytest.mark.parametrize(("groups", "low", "high"), [(60, 0.15, 0.3), (150, 0.4, 0.6), (300, 0.68, 0.86)])
def test_a_difference_of_five_points_is_found_as_often_as_docs_say(monkeypatch, groups, low, high):
    """docs/compare.md: 22, 50 and 77 % at 60, 150 and 300 recordings."""
    monkeypatch.setattr(paired_groups, "DRAWS", 500)
    rng, gap = generator(groups, 7), 0.2623
    assert expected_difference(gap) == pytest.approx(0.05, abs=1e-4)
    found = np.mean([compare_pairs(*draw_table(rng, groups, gap), seed=n)[0].p < 0.05 for n in range(300)])
    assert low < found < high


def test_pairs_share_their_draws_and_are_adjusted_together():
    """Holm by hand: the smallest of three p times 3, the next times 2, never below the one before."""
    rng = generator(2, 0)
    correct, groups, classes = draw_table(rng, 60)
    three = np.stack([correct[0], correct[1], correct[1] * (rng.random(correct.shape[1]) < 0.9)])
    pairs = compare_pairs(three, groups, classes)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert pairs[0].p == compare_pairs(three[:2], groups, classes)[0].p
    p = sorted(pair.p for pair in pairs)
    by_hand = np.maximum.accumulate([min(1, 3 * p[0]), min(1, 2 * p[1]), p[2]])
    np.testing.assert_allclose(sorted(pair.adjusted for pair in pairs), by_hand)
    for pair in pairs:
        assert pair.value == pytest.approx((three[pair.first] - three[pair.second]).mean())
        assert pair.low < pair.value < pair.high
    swapped = compare_pairs(three[[1, 0]], groups, classes)[0]
    assert (swapped.value, swapped.low, swapped.high) == pytest.approx((-pairs[0].value, -pairs[0].high, -pairs[0].low))


def test_cases_without_an_interval():
    rng = generator(3, 0)
    correct, groups, classes = draw_table(rng, 9)
    (few,) = compare_pairs(correct, groups, classes)
    assert few.reason == "too few groups" and few.low is None and few.p is None and few.adjusted is None
    (same,) = compare_pairs(correct[[0, 0]], groups, classes)
    assert same.reason == "identical" and same.value == 0


def test_persons_in_several_classes_are_drawn_over_all_classes(monkeypatch):
    """Groups that are not of one class, or too few of a class, are one stratum."""
    seen = []
    draw = paired_groups._draw_groups
    monkeypatch.setattr(paired_groups, "_draw_groups", lambda strata, seed: seen.append(strata) or draw(strata, seed))
    rng = generator(4, 0)
    correct, groups, _ = draw_table(rng, 30)
    compare_pairs(correct, groups, np.arange(len(groups)) % 5)
    compare_pairs(correct, groups, groups % 6)
    compare_pairs(correct, groups, groups % 10)
    assert [len({*strata.tolist()}) for strata in seen] == [1, 6, 1]


def test_floors_do_not_hide_what_encoders_differ_in():
    """Holm's method counts the pairs of encoders, and those with a floor, each by themselves."""
    two, groups, classes = draw_table(generator(3, 0), 40)
    (alone,) = compare_pairs(two, groups, classes)
    floors = [(np.arange(len(classes)) % n == 0).astype(float) for n in (2, 3, 4)]
    five = np.stack([*two, *floors])
    pairs = {(one.first, one.second): one for one in compare_pairs(five, groups, classes, floors=(2, 3, 4))}
    assert pairs[0, 1].adjusted == pairs[0, 1].p == alone.p
    with_floor = sorted((pairs[n, floor].p, pairs[n, floor].adjusted) for n in (0, 1) for floor in (2, 3, 4))
    assert with_floor[0][1] == 6 * with_floor[0][0]
    together = {(one.first, one.second): one for one in compare_pairs(five, groups, classes)}
    assert together[0, 1].adjusted > pairs[0, 1].adjusted
