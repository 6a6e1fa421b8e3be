"""Intervals over recordings: against their equations, SciPy's, and by how often they hold the truth."""

import numpy as np
import pytest
from scipy.stats import t

from vidssl.evaluation.statistics import FEWEST, Estimate, compare_pairs, difference, jackknife, proportion
from vidssl.keyed_generators import generator


def test_the_ends_of_a_proportion_solve_the_equation_of_wilson():
    """Each end p is as far from the measured fraction as `t` standard errors of a fraction p of n videos."""
    right = np.array([1.0] * 17 + [0.0] * 7)
    found = proportion(right, np.arange(24))
    assert found.value == 17 / 24 and found.low < found.value < found.high
    for end in (found.low, found.high):  # of single videos: n is the unbiased variance's, 23
        assert (found.value - end) ** 2 == pytest.approx(t.ppf(0.975, 23) ** 2 * end * (1 - end) / 23)


def test_recordings_count_and_not_their_copies():
    right = np.array([1.0] * 9 + [0.0] * 5)
    once, copied = proportion(right, np.arange(14)), proportion(right.repeat(5), np.arange(14).repeat(5))
    assert copied == pytest.approx(once)
    alone = proportion(right.repeat(5), np.arange(70))
    assert alone.high - alone.low < 0.6 * (once.high - once.low)


def test_all_right_and_none_have_an_interval():
    high, low = (proportion(np.full(20, value), np.arange(20) // 2) for value in (1.0, 0.0))
    assert high.high == 1 and 0.5 < high.low < 0.8
    assert (low.low, low.high) == pytest.approx((1 - high.high, 1 - high.low))


def test_fewer_recordings_have_none():
    right = np.tile([0.0, 1.0], 20)
    assert proportion(right, np.arange(40) % (FEWEST - 1)) == Estimate(0.5)
    assert proportion(right, np.arange(40) % FEWEST + 7).low is not None
    assert jackknife(3.0, [1.0] * (FEWEST - 1)) == Estimate(3.0)
    assert jackknife(3.0, [1.0] * 20 + [None]) == Estimate(3.0)
    assert difference(right, 1 - right, np.arange(40) % 5, np.zeros(40, int)).low is None


@pytest.mark.parametrize("rate", [0.5, 0.85, 0.97])
@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_the_level_holds_near_one_too(rate, alike):
    """Of 12 and 40 recordings of one to three videos, whose videos are right together or not."""
    rng = generator(0)
    for count in (12, 40):
        held = 0
        for _ in range(300):
            groups = np.arange(count).repeat(rng.integers(1, 4, count))
            own = rng.random(len(groups)) < rate
            shared = (rng.random(count) < rate)[groups]
            right = np.where(rng.random(count)[groups] < alike, shared, own).astype(float)
            found = proportion(right, groups)
            held += found.low <= rate <= found.high
        assert held >= 0.91 * 300


def test_the_jackknife_of_a_mean_is_students_interval():
    x = generator(0).normal(size=30)
    found = jackknife(x.mean(), [np.delete(x, n).mean() for n in range(30)])
    assert (found.low, found.high) == pytest.approx(t.interval(0.95, 29, x.mean(), x.std(ddof=1) / 30**0.5))


def test_differences_are_those_of_a_comparison():
    rng = generator(0)
    groups, classes = np.arange(40) // 2, np.arange(40) // 20
    a, b = (rng.random((2, 40)) < [[0.8], [0.4]]).astype(float)
    (wanted,) = compare_pairs(np.stack([a, b]), groups, classes)
    assert difference(a, b, groups, classes) == (wanted.value, wanted.low, wanted.high, False)
    assert difference(a, a, groups, classes) == Estimate(0, None, None, True)
