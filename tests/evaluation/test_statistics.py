"""Intervals and tests over recordings: by simulation, against loops over their equations, and the cases without one."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import t

from vidssl.base.keyed_generators import generator
from vidssl.evaluation import statistics
from vidssl.evaluation.statistics import (
    FEWEST,
    Estimate,
    beside,
    compare_pairs,
    differences,
    doubts,
    jackknife,
    proportion,
    proportions,
)

# The simulation: in how many of 1,000 sets does an interval hold the value that the generator has? ----------

SETS, OF_SIZES = 1000, 50  # sets, and those that share the sizes of their recordings
ALIKE = 0.3  # correlation within recordings


def sizes_of(kind, count, rng):
    if kind == "3-8":
        return rng.integers(3, 9, count)
    if kind == "lognormal":
        return np.maximum(1, np.exp(rng.normal(np.log(5), 1, count)).round()).astype(int)
    sizes = np.full(count, 5)
    if kind == "one with half":
        sizes[0] = 5 * (count - 1)
    return sizes


def drawn(rng, accuracy, sizes):
    """Draw which videos of each set are right (sets, N): recordings have accuracies of a beta distribution."""
    spread = 1 / ALIKE - 1
    own = rng.beta(accuracy * spread, (1 - accuracy) * spread, (OF_SIZES, len(sizes)))
    own = own.repeat(sizes, axis=1)
    return (rng.random(own.shape) < own).astype(float)


LAYOUTS = {(kind, count): None for kind in ("equal", "3-8", "lognormal", "one with half") for count in (12, 60)}
LAYOUTS |= {("classes", layout): layout for layout in ((10, 2), (2,) * 6, (2,) * 20, (25,) * 6)}


@pytest.mark.parametrize("accuracy", [0.8, 0.97])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_intervals_hold_what_the_generator_has(monkeypatch, layout, accuracy):
    monkeypatch.setattr(statistics, "SIGN_DRAWS", 2000)
    (kind, count), of_classes = layout, LAYOUTS[layout]
    rng = generator(1, len(str(layout)), round(100 * accuracy))
    held, none, ten, rejected = 0, 0, 0, 0
    for _ in range(SETS // OF_SIZES):
        sizes = np.full(sum(of_classes), 5) if of_classes else sizes_of(kind, count, rng)
        recordings = np.arange(len(sizes)).repeat(sizes)
        classes = None if of_classes is None else np.arange(len(of_classes)).repeat(of_classes)[recordings]
        first, second, worse = (drawn(rng, level, sizes) for level in (accuracy, accuracy, accuracy - 0.1))
        held += sum(each.low <= accuracy <= each.high for each in proportions(first, recordings, classes))
        for each in differences(first - second, recordings, classes):
            none += each.identical or each.low <= 0 <= each.high
            rejected += not each.identical and each.p < 0.05
        for each in differences(first - worse, recordings, classes, draws=20):
            ten += not each.identical and each.low <= 0.1 <= each.high
    least = 0.925 if accuracy < 0.9 else 0.88 if kind == "lognormal" else 0.9
    equal = kind == "equal" or (of_classes is not None and len({*of_classes}) == 1)
    assert held / SETS >= least
    assert held / SETS <= 0.985 or not equal or accuracy > 0.9
    assert none / SETS >= 0.9 and ten / SETS >= 0.9
    assert rejected / SETS <= 0.065


@pytest.mark.parametrize("count", [12, 60])
def test_doubts_are_printed_where_sizes_differ_and_never_with_equal_ones(count):
    rng = generator(2, count)
    for kind in ("lognormal", "one with half", "equal"):
        for _ in range(60):
            said = doubts(np.arange(count).repeat(sizes_of(kind, count, rng)))
            assert any("There are only 12 recordings" in each for each in said) == (count < 20)
            unequal = any("unequal size" in each for each in said)
            assert unequal == (kind != "equal") or (kind == "lognormal" and count < 20)
    half = " ".join(doubts(np.arange(60).repeat(sizes_of("one with half", 60, rng))))
    assert "the largest counts 50 %" in half
    assert doubts(np.arange(60), np.arange(60) // 50) == []  # classes of unequal size: the mean over them is none of it
    assert doubts(np.arange(180) // 6, np.arange(180) % 6) == []  # each person in each class


# Equations --------------------------------------------------------------------------------------------------


def by_loops(values, recordings, classes):
    """Mean, variance, degrees of freedom and effective recordings, as docs/compare.md states them."""
    means = {c: values[classes == c].mean() for c in np.unique(classes)}
    contributions, effective, weights = {}, [], {}
    for c in means:
        size, shares = (classes == c).sum(), []
        for r in np.unique(recordings[classes == c]):
            own = (classes == c) & (recordings == r)
            share = own.sum() / size
            shares.append(share)
            residual = (values[own] - means[c]).sum() / size / len(means)
            contributions[r] = contributions.get(r, 0) + residual / np.sqrt(1 - share)
            weights[r] = weights.get(r, 0) + share / len(means)
        effective.append(1 / sum(share**2 for share in shares))
    k = np.array(effective)
    degrees = (1 / k).sum() ** 2 / ((1 / k) ** 2 / (k - 1)).sum()
    whole = 1 / sum(weight**2 for weight in weights.values())
    variance = sum(each**2 for each in contributions.values())
    return np.mean([*means.values()]), variance, max(1, min(degrees, whole - 1)), whole


CASES = {
    "one class": (np.arange(90) // 5, np.zeros(90, int)),
    "nested": (np.arange(90) // 5, (np.arange(90) // 5) % 3),
    "of unequal size": (np.minimum(np.arange(90) // 3, 14), np.minimum(np.arange(90) // 3, 14) // 8),
    "persons in all classes": (np.arange(90) % 9, np.arange(90) // 9 % 5),
}


@pytest.mark.parametrize("case", CASES)
def test_intervals_are_those_of_the_equations(case):
    recordings, classes = CASES[case]
    rng = generator(3)
    first, second = (rng.random((2, 90)) < 0.7).astype(float)
    value, variance, degrees, _ = by_loops(first - second, recordings, classes)
    half = t.ppf(0.975, degrees) * np.sqrt(variance)
    actual = beside(first, second, recordings, classes).difference
    assert actual[:3] == pytest.approx((value, value - half, value + half))
    lacking = np.where(np.arange(97) < 90, np.pad(first, (0, 7)), np.nan)  # videos that one of both lacks
    longer, *places = (np.pad(values, (0, 7), "edge") for values in (second, recordings, classes))
    again = beside(longer, lacking, *places)
    value, variance, degrees, whole = by_loops(first, recordings, classes)
    assert again.value == pytest.approx(value) and again.difference[0] == pytest.approx(-actual.value)
    assert again.difference.low == pytest.approx(-actual.high)
    actual = proportion(first, recordings, classes)
    assert actual.value == pytest.approx(value)
    videos = 1 / sum(1 / (classes == c).sum() for c in np.unique(classes)) * len(np.unique(classes)) ** 2
    n = min(value * (1 - value) / variance, videos / (1 + 0.1 * (videos / whole - 1)))
    for end in (actual.low, actual.high):  # Wilson's ends: as far as `t` standard errors of a fraction `end`
        assert (value - end) ** 2 == pytest.approx(t.ppf(0.975, degrees) ** 2 * end * (1 - end) / n)
    if case == "one class":
        assert proportion(first, recordings) == actual


def test_p_is_that_of_all_flips_or_near_it():
    rng = generator(4)
    for count in (7, 12):
        recordings = np.arange(count).repeat(3)
        delta = rng.integers(-1, 2, 3 * count).astype(float)
        sums = np.bincount(recordings, weights=delta)
        flipped = [abs(sums @ signs) for signs in product((1, -1), repeat=count)]
        actual = beside(delta, 0 * delta, recordings).difference
        assert actual.p == pytest.approx(np.mean(np.array(flipped) >= abs(sums.sum()) - 1e-9))
    delta = (rng.random(40) < 0.5) - 0.3 * (rng.random(40) < 0.5)
    signs = 1 - 2 * generator(5).integers(0, 2, (40, 50_000))
    expected = np.mean(np.abs(delta @ signs) >= abs(delta.sum()) - 1e-9)
    assert beside(delta, 0 * delta, np.arange(40)).difference.p == pytest.approx(expected, abs=0.005)


def test_recordings_count_and_not_their_copies():
    right = np.array([1.0] * 9 + [0.0] * 5)
    once, copied = proportion(right, np.arange(14)), proportion(right.repeat(5), np.arange(14).repeat(5))
    assert copied == pytest.approx(once)
    alone = proportion(right.repeat(5), np.arange(70))
    assert alone.high - alone.low < 0.6 * (once.high - once.low)


# No interval of zero width, and none by rounding -----------------------------------------------------------


def test_all_right_and_none_have_an_interval():
    high, low = (proportion(np.full(20, value), np.arange(20) // 2) for value in (1.0, 0.0))
    assert high.high == 1 and 0.5 < high.low < 0.8
    assert (low.low, low.high) == pytest.approx((1 - high.high, 1 - high.low))
    classes = np.arange(20) // 10  # one class is right, the other wrong: nothing varies within them
    half = proportion(1.0 - classes, np.arange(20) // 2, classes)
    assert 0.1 < half.low < 0.35 and half.high == pytest.approx(1 - half.low)


@pytest.mark.parametrize(("common", "rare"), [(50, 10), (50, 9), (30, 31), (12, 7), (5, 5), (10, 1)])
@pytest.mark.parametrize("videos", [1, 2, 3])
def test_classes_that_are_wrong_as_a_whole(common, rare, videos):
    """One encoder is right everywhere, the other wrong in the whole rare class: residuals are 0 but for rounding."""
    recordings = np.arange(common + rare).repeat(videos)
    classes = (recordings >= common).astype(int)
    first, second = np.ones(len(classes)), 1.0 - classes
    for declared, value in ((classes, 0.5), (None, rare / (common + rare))):
        actual = beside(first, second, recordings, declared).difference
        assert actual.value == pytest.approx(value)
        if declared is not None and rare == 1:
            assert actual.low is None  # nothing is known of the spread of a class of one recording
            continue
        assert -1 <= actual.low < value < actual.high <= 1 and actual.high - actual.low > 0.02
        if rare <= 12:
            assert actual.p == pytest.approx(2 / 2**rare)  # as the sign test (McNemar's)


def test_two_classes_of_five_recordings_show_nothing():
    classes, recordings = np.arange(10) // 5, np.arange(10)
    pairs = compare_pairs(np.stack([np.ones(10), 1.0 - classes]), recordings, classes)
    assert pairs[0].p == pytest.approx(0.0625)
    assert pairs[0].reason == "differ in 5 of 10 recordings: not told apart"


def test_fewer_recordings_have_none():
    right = np.tile([0.0, 1.0], 30)
    assert proportion(right, np.arange(60) % (FEWEST - 1)) == Estimate(0.5)
    assert proportion(right, np.arange(60) % FEWEST + 7).low is not None
    assert jackknife(3.0, [1.0] * (FEWEST - 1)) == Estimate(3.0)
    assert jackknife(3.0, [1.0] * 20 + [None]) == Estimate(3.0)
    (few,) = compare_pairs(np.stack([right, 1 - right]), np.arange(60) % 5)
    assert few.reason == "too few recordings" and few.low is None and few.p is None and few.adjusted is None
    (same,) = compare_pairs(right[None].repeat(2, axis=0), np.arange(60) // 2)
    assert same.reason == "equal" and same.value == 0 and same.adjusted is None
    assert beside(right, right, np.arange(60)).difference == Estimate(0, identical=True)


def test_the_jackknife_of_a_mean_is_students_interval():
    x = generator(0).normal(size=30)
    actual = jackknife(x.mean(), [np.delete(x, n).mean() for n in range(30)])
    assert actual[1:3] == pytest.approx(t.interval(0.95, 29, x.mean(), x.std(ddof=1) / 30**0.5))


# Pairs ------------------------------------------------------------------------------------------------------


def right(levels, count=40, videos=3):
    """Draw which videos encoders of these accuracies (E,) are right about: (E, N), and the recordings (N,)."""
    rng = generator(6, len(levels))
    return (rng.random((len(levels), count * videos)) < np.array(levels)[:, None]).astype(float), np.arange(
        count
    ).repeat(videos)


def test_pairs_are_adjusted_together_and_either_way_round():
    """Holm by hand: the smallest of three p times 3, the next times 2, never below the one before."""
    correct, recordings = right((0.8, 0.7, 0.5))
    pairs = compare_pairs(correct, recordings)
    assert [(pair.first, pair.second) for pair in pairs] == [(0, 1), (0, 2), (1, 2)]
    assert pairs[0].p == compare_pairs(correct[:2], recordings)[0].p
    p = sorted(pair.p for pair in pairs)
    by_hand = np.maximum.accumulate([min(1, 3 * p[0]), min(1, 2 * p[1]), p[2]])
    np.testing.assert_allclose(sorted(pair.adjusted for pair in pairs), by_hand)
    for pair in pairs:
        assert pair.value == pytest.approx((correct[pair.first] - correct[pair.second]).mean())
        assert pair.low < pair.value < pair.high
    swapped = compare_pairs(correct[[1, 0]], recordings)[0]
    assert (swapped.value, swapped.low, swapped.high) == pytest.approx((-pairs[0].value, -pairs[0].high, -pairs[0].low))
    assert swapped.p == pairs[0].p


def test_floors_do_not_hide_what_encoders_differ_in():
    """Holm's method counts the pairs of encoders, and those with a floor, each by themselves."""
    correct, recordings = right((0.75, 0.6, 0.3, 0.3, 0.3))
    (alone,) = compare_pairs(correct[:2], recordings)
    pairs = {(one.first, one.second): one for one in compare_pairs(correct, recordings, floors=(2, 3, 4))}
    assert pairs[0, 1].adjusted == pairs[0, 1].p == alone.p
    with_floor = sorted((pairs[n, floor].p, pairs[n, floor].adjusted) for n in (0, 1) for floor in (2, 3, 4))
    assert with_floor[0][1] == pytest.approx(6 * with_floor[0][0])
    together = {(one.first, one.second): one for one in compare_pairs(correct, recordings)}
    assert together[0, 1].adjusted > pairs[0, 1].adjusted


def test_one_network_under_two_names_counts_once():
    """Only if its values are equal too: other weights of the same sum are another network."""
    correct, recordings = right((0.75, 0.6, 0.3))
    alone = {(one.first, one.second): one for one in compare_pairs(correct, recordings)}
    twice = np.stack([*correct, correct[0], correct[1]])
    names = ["a", "b", "c", "a", "b"]
    pairs = {(one.first, one.second): one for one in compare_pairs(twice, recordings, networks=names)}
    for (first, second), pair in pairs.items():
        same = alone.get((first % 3, second % 3), alone.get((second % 3, first % 3)))
        if same is None:
            assert (pair.reason, pair.p) == ("equal", None)
        else:
            assert (pair.p, pair.adjusted) == (same.p, same.adjusted)
    counted = {(one.first, one.second): one for one in compare_pairs(twice, recordings)}
    assert counted[1, 2].adjusted > pairs[1, 2].adjusted
    changed = twice.copy()
    changed[3] = 1 - changed[3]
    others = {(one.first, one.second): one for one in compare_pairs(changed, recordings, networks=names)}
    assert others[0, 3].reason != "equal" and others[1, 2].adjusted > pairs[1, 2].adjusted


@pytest.mark.parametrize("count", [40])
def test_of_many_encoders_a_clear_difference_is_shown(count):
    """Draws are more than pairs need: 10,000 of them could show nothing from 33 encoders on."""
    correct, recordings = right((1.0, *[0.1] * (count - 1)), count=30, videos=2)
    pairs = [pair for pair in compare_pairs(correct, recordings) if pair.first == 0]
    assert max(pair.adjusted for pair in pairs) < 0.05


def test_a_difference_that_could_not_be_shown_is_named():
    """Two encoders that differ in seven recordings have p of 2 / 2**7 at least, too much for many pairs."""
    ones = np.ones(30)
    seven = (np.arange(30) >= 7).astype(float)
    third = (np.arange(30) % 2).astype(float)
    (alone,) = compare_pairs(np.stack([ones, seven]), np.arange(30))
    assert alone.p == pytest.approx(2 / 2**7) and alone.reason == ""
    many = np.stack([ones, seven, *[np.roll(third, n % 2) for n in range(6)]])
    first = compare_pairs(many, np.arange(30))[0]
    assert first.adjusted > 0.05 and first.reason == "differ in 7 of 30 recordings: not told apart"
