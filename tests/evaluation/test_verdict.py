"""The words of a comparison, by cases."""

from itertools import combinations

import numpy as np
import pytest

from vidssl.evaluation.statistics import Difference
from vidssl.evaluation.verdict import Candidate, decide, describe_without_labels
from vidssl.evaluation.without_labels import Agreement, Stability

CLASSES = [("run", 40, 20), ("walk", 40, 20)]


def pair(one, other, value, adjusted):
    return Difference(one, other, value, value - 0.05, value + 0.05, adjusted, adjusted)


def test_the_best_and_the_cheapest_that_is_not_worse():
    known = {"licence": "MIT", "training": ("K400",)}
    three = [
        Candidate("big", 0.9, 2.0, **known),
        Candidate("small", 0.88, 0.1, licence="MIT", training=("ImageNet", "K400")),
        Candidate("old", 0.7, 0.05, **known),
    ]
    pairs = [pair(0, 1, 0.02, 0.4), pair(0, 2, 0.2, 0.001), pair(1, 2, 0.18, 0.001)]
    found = decide(three, pairs, 40, CLASSES, 0.5)
    assert (found.best, found.is_clear, found.cheapest, found.doubts) == (
        0,
        True,
        1,
        (
            "Numbers are too high for videos that a network was trained on. Training sets: K400 (big, small and old); "
            "ImageNet (small).",
        ),
    )
    assert found.answer == (
        "big is best: 90.0 % (chance 50.0). small is not shown to be worse, and takes 1/20 of the time."
    )
    same = decide(three[:2], pairs[:1], 40, CLASSES, 0.5)
    assert not same.is_clear and same.answer.startswith("No difference is visible between big and small.")
    assert decide(three[:1], [], 40, CLASSES, 0.5).answer == "big: 90.0 % (chance 50.0)."


def test_what_to_doubt():
    two = [
        Candidate("net", 0.6, 1.0, licence="not stated", training=("not stated",)),
        Candidate("thumbnails", 0.59, 0.1, floor=True),
    ]
    found = decide(two, [pair(0, 1, 0.01, 0.9)], 12, [("run", 9, 4), ("walk", 40, 1)], 0.5)
    assert found.best == 0
    assert [doubt.partition(":")[0] for doubt in found.doubts] == [
        "net is not shown to be better than thumbnails, which learned nothing.",
        "There are only 12 recordings",
        "Classes of fewer than 10 videos",
        "Classes of one recording, which cannot be recognised with it left out",
        "Training sets that are not stated may hold these videos",
        "Licence not stated",
    ]
    few = decide(two, [Difference(0, 1, 0.01, None, None, None, reason="too few groups")], 5, CLASSES, 0.5)
    assert "not shown to be better" in few.doubts[0]


@pytest.mark.parametrize(("seconds", "cheapest"), [(1.4, 0), (1.5, 1), (0.5, 0), (None, 0)])
def test_only_a_clearly_faster_encoder_is_cheaper(seconds, cheapest):
    two = [Candidate("net", 0.6, seconds), Candidate("other", 0.5, 1.0)]
    found = decide(two, [pair(0, 1, 0.1, 0.9)], 40, CLASSES, 0.5)
    assert found.cheapest == cheapest and ("takes" in found.answer) == bool(cheapest)


def test_an_encoder_below_what_learned_nothing():
    """As in a folder of thirty videos."""
    three = [Candidate("net", 0.13, 1.0), Candidate("other", 0.1, 1.0), Candidate("differences", 0.47, 0.1, floor=True)]
    pairs = [pair(0, 1, 0.03, 0.9), pair(0, 2, -0.34, 0.01), pair(1, 2, -0.37, 0.01)]
    found = decide(three, pairs, 28, CLASSES, 0.14)
    assert found.answer.startswith("No difference is visible between net and other.") and not found.is_clear
    assert found.doubts[:2] == (
        "No encoder is above chance, 14.0 %: these numbers say nothing about them.",
        "differences, which learned nothing, has a higher number: 47.0 %.",
    )


def test_an_interval_without_zero_that_is_not_shown():
    three = [Candidate("big", 0.9, 1.0), Candidate("small", 0.8, 1.0), Candidate("untrained", 0.5, 1.0, floor=True)]
    pairs = [pair(0, 1, 0.1, 0.06), pair(0, 2, 0.4, 0.001), pair(1, 2, 0.3, 0.001)]
    found = decide(three, pairs, 40, CLASSES, 0.5)
    assert found.answer.startswith("No difference is visible between big and small.")
    assert found.doubts[0].startswith("The difference of small to big has an interval without 0")
    pairs[0] = pair(0, 1, 0.1, 0.04)
    assert not decide(three, pairs, 40, CLASSES, 0.5).doubts


def test_an_encoder_whose_training_list_is_not_there():
    two = [Candidate("mine", 0.9, 1.0, seen=None), Candidate("other", 0.9, 1.0, seen=3)]
    assert decide(two, [pair(0, 1, 0.0, 1.0)], 40, CLASSES, 0.5).doubts == (
        "other was trained on 3 of these videos.",
        "These videos may be among the training videos of mine, whose lists are not here.",
    )


def agreement(first, second, mean):
    rows = np.zeros((2, 10), np.int64)
    return Agreement(first, second, np.array([mean, np.nan]), 0.0125, (rows, rows))


def stable(recall):
    return Stability(np.array([0.9, 1.0]), 0.5, np.array([1.0, 2.0]), recall)


def test_what_is_said_without_labels():
    names, floors = ["big", "small", "thumbnails", "differences"], {2, 3}
    shared = {(0, 1): 0.4, (0, 2): 0.1, (0, 3): 0.2, (1, 2): 0.3, (1, 3): 0.05, (2, 3): 0.02}
    agreements = [agreement(*pair, mean) for pair, mean in shared.items()]
    found = describe_without_labels(
        names, floors, agreements, {"other clips": {0: stable(0.98), 1: stable(0.5)}}, 3, 40
    )
    assert found == (
        "Of the 10 nearest videos of a video in common: big and small 40.0 %. By chance 1.2 %.",
        "In common with what learned nothing: big 20.0 % with differences; small 30.0 % with thumbnails.",
        "How often other clips find their video first: big 98.0 % (cosine 0.95, of different videos 0.50); "
        "small 50.0 % (cosine 0.95, of different videos 0.50).",
        "Near copies that were of different recordings: 3 pairs of videos, named at the end of the page. Each pair "
        "counts as one recording, which leaves 40.",
        "Without labels no encoder is shown to be better: an encoder may agree with others, and find a video by other "
        "clips of it, by the background alone.",
    )


def test_of_many_pairs_the_ends_are_said():
    names = [f"net{n}" for n in range(5)]
    agreements = [agreement(*pair, n / 20) for n, pair in enumerate(combinations(range(5), 2))]
    first, last = describe_without_labels(names, (), agreements, {}, 0, 40)
    assert first.startswith("Of the 10 nearest videos of a video in common: net3 and net4 45.0 %; net2 and net4 40.0 %")
    assert "4 more between" in first and "net0 and net1 0.0 %" in first and last.startswith("Without labels")


def test_nothing_is_called_best_without_labels():
    cases = [
        (["net"], (), [], {}, 0, 1),
        (["net"], (), [], {"other clips": {0: stable(1.0)}}, 1, 5),
        (["net", "other"], (), [agreement(0, 1, np.nan)], {}, 0, 1),
        (["net", "thumbnails"], (1,), [agreement(0, 1, 0.5)], {"other clips": {0: stable(0.0), 1: stable(1.0)}}, 2, 5),
        (["net", "other", "third"], (2,), [agreement(0, 1, 1.0), agreement(0, 2, 0.0)], {}, 7, 5),
    ]
    for case in cases:
        text = " ".join(describe_without_labels(*case))
        assert "best" not in text.lower() and "nan" not in text.lower()
        assert "Without labels no encoder is shown to be better" in text
