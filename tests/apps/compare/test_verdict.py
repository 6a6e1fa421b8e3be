"""The words of a comparison, by cases."""

from itertools import combinations

import numpy as np
import pytest

from vidssl.apps.compare.features_and_predictions import ComparedEncoder
from vidssl.apps.compare.verdict import decide, describe_without_labels
from vidssl.evaluation.statistics import Difference, Estimate

CLASSES = [{"name": "run", "videos": 40, "groups": 20}, {"name": "walk", "videos": 40, "groups": 20}]


def encoder(name, value, operations=1.0, floor=False, low=None, network="", seen=0, part=False, **stated):
    """An encoder and its number."""
    overlap = {"not_checked": "gone"} if seen is None else {"videos": seen}
    facts = {"gigaflops_per_video": operations, "features": network or name, "checkpoint": stated, "overlap": overlap}
    return ComparedEncoder(name, floor, facts, None, part), Estimate(value, low)


def verdict(encoders, *arguments):
    return decide([each for each, _ in encoders], [estimate for _, estimate in encoders], *arguments)


def pair(one, other, value, adjusted, half=0.05, reason=""):
    return Difference(one, other, value, value - half, value + half, adjusted, adjusted, reason)


def named(*accuracies, **more):
    return [encoder("ABCDEF"[n], accuracy, low=0.6, **more) for n, accuracy in enumerate(accuracies)]


WORSE, OPEN = 0.001, 0.4  # p


@pytest.mark.parametrize(
    ("tests", "answer"),
    [
        ({"AB": WORSE, "AC": WORSE, "BC": OPEN}, "A is best: 90.0 % by kNN (guessing 50.0)."),
        ({"AB": WORSE, "AC": WORSE, "BC": WORSE}, "A is best: 90.0 % by kNN (guessing 50.0)."),
        ({"AB": OPEN, "AC": WORSE, "BC": WORSE}, "A and B are not told apart; C is worse."),
        ({"AB": OPEN, "AC": WORSE, "BC": OPEN}, "A and B are not told apart; C is worse than A."),
        ({"AB": OPEN, "AC": OPEN, "BC": OPEN}, "A, B and C are not told apart."),
        ({"AB": OPEN, "AC": OPEN, "BC": WORSE}, "A is not told apart from B and C."),
        ({"AB": WORSE, "AC": OPEN, "BC": OPEN}, "A and C are not told apart; B is worse than A."),
    ],
)
def test_words_follow_tests(tests, answer):
    """An encoder is best if every other one is shown to be worse, and worse if that is shown."""
    pairs = [pair(*map("ABC".index, names), 0.1, p, half=0.2) for names, p in tests.items()]
    outcome = verdict(named(0.9, 0.8, 0.7), pairs, CLASSES, 0.5)
    assert outcome["answer"] == answer
    assert outcome["is_clear"] == ("is best" in answer) and outcome["best"] == outcome["cheapest"] == "A"


def test_the_best_is_named_first():
    """Whatever the order of the command; of equal numbers the first one of it."""
    pairs = [pair(*two, -0.02, OPEN, 0.2) for two in combinations(range(4), 2)]
    found = verdict(named(0.7, 0.8, 0.9, 0.8), pairs, CLASSES, 0.5)
    assert found["answer"] == "C, B, D and A are not told apart." and found["best"] == "C"
    pairs = [pair(*two, 0.02, WORSE if 1 in two else OPEN, 0.01) for two in combinations(range(3), 2)]
    pairs[2] = pair(1, 2, -0.1, WORSE)
    pairs[0] = pair(0, 1, 0.1, WORSE)
    found = verdict(named(0.8, 0.5, 0.9), pairs, CLASSES, 0.5)
    assert found["answer"] == "C and A are not told apart; B is worse."


def test_several_are_worse():
    pairs = [pair(*two, 0.1, OPEN if two in ((0, 1), (2, 3)) else WORSE, 0.2) for two in combinations(range(4), 2)]
    outcome = verdict(named(0.9, 0.89, 0.5, 0.4), pairs, CLASSES, 0.25)
    assert outcome["answer"] == "A and B are not told apart; C and D are worse." and not outcome["is_clear"]
    assert verdict(named(0.9), [], CLASSES, 0.5)["answer"] == "A: 90.0 % by kNN (guessing 50.0)."


@pytest.mark.parametrize(
    ("operations", "low", "sentence"),
    [
        ((3.0, 2.0), -0.04, "B needs 67 % of the operations of A, and is not worse by more than 5 points"),
        ((1.0, 0.004), -0.049, "B needs 0.4 % of the operations of A, and is not worse by more than 5 points"),
        ((3.0, 2.1), -0.04, ""),  # not clearly less
        ((3.0, 1.0), -0.051, ""),  # the interval holds a loss of more than 5 points
        ((1.0, 3.0), -0.04, ""),
        ((None, 1.0), -0.04, ""),
        ((3.0, None), -0.04, ""),
        ((0.0, 0.0), -0.04, ""),  # of thumbnails and differences of frames
    ],
)
def test_less_for_the_same_is_said_only_if_a_loss_of_five_points_is_excluded(operations, low, sentence):
    two = [encoder("A", 0.8, operations[0], low=0.6), encoder("B", 0.79, operations[1], low=0.6)]
    outcome = verdict(two, [Difference(0, 1, 0.01, -0.02, -low, OPEN, OPEN)], CLASSES, 0.5)  # A minus B
    assert outcome["cheapest"] == ("B" if sentence else "A") and sentence in outcome["answer"]
    assert ("operations" in outcome["answer"]) == bool(sentence)
    if sentence:
        assert f"(95 % interval of the difference −{-100 * low:.1f} to +2.0)." in outcome["answer"]
    shown = verdict(two, [pair(0, 1, 0.02, WORSE, 0.01)], CLASSES, 0.5)
    assert shown["answer"] == "A is best: 80.0 % by kNN (guessing 50.0)."


def test_what_cannot_be_shown_is_said_of_each_pair():
    few = Difference(0, 1, 0.8, None, None, None, reason="too few recordings")
    outcome = verdict([encoder("A", 0.98, 4.0), encoder("B", 0.1, 1.0)], [few], CLASSES, 0.1)
    assert outcome["answer"] == "A and B are not compared: fewer than 6 recordings." and outcome["cheapest"] == "A"
    differ = pair(0, 1, 0.1, 0.0625, reason="differ in 5 of 10 recordings: not told apart")
    outcome = verdict(named(0.9, 0.8), [differ], CLASSES, 0.5)
    assert outcome["answer"] == "A and B are not told apart."
    assert "A and B differ in 5 of 10 recordings: not told apart." in outcome["doubts"]


def test_equal_encoders():
    """The same predictions, or the same weights under several names."""
    equal = [Difference(*two, 0.0, None, None, None, reason="equal") for two in combinations(range(3), 2)]
    outcome = verdict(named(0.9, 0.9, 0.9), equal, CLASSES, 0.5)
    assert outcome["answer"] == "A, B and C are equal: kNN is right for the same videos." and outcome["cheapest"] == "A"
    assert "A, B and C are right for the same videos by kNN." in outcome["doubts"]
    same = verdict(named(0.9, 0.9, 0.9, network="features/0123"), equal, CLASSES, 0.5)
    assert "A, B and C have the same weights and clips." in same["doubts"]
    pairs = [equal[0], pair(0, 2, 0.2, WORSE), pair(1, 2, 0.2, WORSE)]
    outcome = verdict(named(0.9, 0.9, 0.7), pairs, CLASSES, 0.5)
    assert outcome["answer"] == "A and B are equal: kNN is right for the same videos; C is worse."


@pytest.mark.parametrize(("low", "said"), [(0.26, False), (0.25, True), (0.2, True), (None, True)])
@pytest.mark.parametrize("floor", [False, True])
def test_above_guessing_is_an_interval_above_it(low, said, floor):
    outcome = verdict([encoder("A", 0.258, 1.0, low=low, floor=floor)], [], CLASSES, 0.25)
    assert ("No encoder is shown to be above guessing, 25.0 %." in outcome["doubts"]) == said


def test_what_to_doubt():
    known = {"licence": "MIT", "training": ("K400",)}
    two = [
        encoder("net", 0.6, 1.0, licence="not stated", training=("not stated",), low=0.55),
        encoder("other", 0.6, 1.0, low=0.55, **known),
        encoder("thumbnails", 0.59, 0.1, floor=True),
    ]
    pairs = [pair(0, 1, 0.0, 0.9), pair(0, 2, 0.01, 0.9), pair(1, 2, 0.01, 0.9)]
    outcome = verdict(
        two,
        pairs,
        [{**CLASSES[0], "videos": 9}, {**CLASSES[1], "groups": 1}],
        0.5,
        ["There are only 12 recordings: …"],
        2,
    )
    assert outcome["best"] == "net"
    assert [doubt.partition(":")[0] for doubt in outcome["doubts"]] == [
        "net is not shown to be better than thumbnails, which learned nothing.",
        "There are only 12 recordings",
        "Videos of different recordings show the same footage",
        "Classes of fewer than 10 videos",
        "Classes of one recording are left out of kNN's mean over classes",
        "Numbers are too high for videos that a network was trained on. Training sets",
        "Training sets that are not stated may hold these videos",
        "Licence not stated",
    ]
    few = [Difference(*each, 0.01, None, None, None, reason="too few recordings") for each in ((0, 1), (0, 2), (1, 2))]
    assert "not shown to be better" in " ".join(verdict(two, few, CLASSES, 0.5)["doubts"])


def test_an_encoder_below_what_learned_nothing():
    """As in a folder of thirty videos."""
    three = [encoder("net", 0.13, 1.0), encoder("other", 0.1, 1.0), encoder("differences", 0.47, 0.1, floor=True)]
    pairs = [pair(0, 1, 0.03, 0.9), pair(0, 2, -0.34, 0.01), pair(1, 2, -0.37, 0.01)]
    outcome = verdict(three, pairs, CLASSES, 0.14)
    said = ", but differences, which learned nothing, is higher: 47.0 %."
    assert outcome["answer"] == f"net and other are not told apart{said}" and not outcome["is_clear"]
    assert outcome["doubts"][0] == "No encoder is shown to be above guessing, 14.0 %."
    assert not any("differences" in doubt for doubt in outcome["doubts"])
    best = verdict(three, [pair(0, 1, 0.03, 0.01), *pairs[1:]], CLASSES, 0.14)
    assert best["answer"] == f"net is best: 13.0 % by kNN (guessing 14.0){said}"


def test_parts_of_a_sum_are_no_answer():
    numbers = {"A+B": 0.8, "A": 0.9, "B": 0.7}
    three = [encoder(name, number, low=0.6, part=name != "A+B") for name, number in numbers.items()]
    outcome = verdict(three, [pair(0, 1, -0.1, OPEN), pair(0, 2, 0.1, OPEN), pair(1, 2, 0.2, WORSE)], CLASSES, 0.5)
    assert outcome["answer"] == "A+B: 80.0 % by kNN (guessing 50.0), but A alone is higher: 90.0 %."
    assert "A+B is not shown to be better than B alone." in outcome["doubts"]


def test_an_interval_without_zero_that_is_not_shown():
    three = [*named(0.9, 0.8), encoder("untrained", 0.5, 1.0, floor=True)]
    pairs = [pair(0, 1, 0.1, 0.06), pair(0, 2, 0.4, 0.001), pair(1, 2, 0.3, 0.001)]
    outcome = verdict(three, pairs, CLASSES, 0.5)
    assert outcome["answer"].startswith("A and B are not told apart.")
    assert outcome["doubts"][0].startswith("For B the interval of the difference to A is without 0")
    doubts = verdict(three, [pairs[0], pair(0, 2, 0.4, 0.06), pairs[2]], CLASSES, 0.5)["doubts"]
    assert doubts[1].startswith("For B and untrained the interval of the difference to A is without 0")
    pairs[0] = pair(0, 1, 0.1, 0.04)
    assert not verdict(three, pairs, CLASSES, 0.5)["doubts"]


def test_an_encoder_whose_training_list_is_not_there():
    two = [encoder("mine", 0.9, 1.0, seen=None, low=0.8), encoder("other", 0.9, 1.0, seen=3, low=0.8)]
    assert verdict(two, [pair(0, 1, 0.0, 1.0)], CLASSES, 0.5)["doubts"] == [
        "other was trained on 3 of these videos.",
        "These videos may be among the training videos of mine, whose lists are not here.",
    ]


def common(**fractions):
    """What pairs have in common: `common(a_b=0.4)`."""
    pairs = [(*pair.split("_"), fraction) for pair, fraction in fractions.items()]
    return [{"first": a, "second": b, "fraction": fraction, "chance": 0.0125} for a, b, fraction in pairs]


def test_what_is_said_without_labels():
    shared = common(
        big_small=0.4, big_thumbnails=0.1, big_differences=0.2, small_thumbnails=0.3, small_differences=0.05
    )
    assert describe_without_labels({"thumbnails", "differences"}, shared, 3, 40) == [
        "Of the 10 nearest videos of a video in common: big and small 40.0 %. By chance 1.2 %.",
        "In common with what learned nothing: big 20.0 % with differences; small 30.0 % with thumbnails.",
        "Near copies that were of different recordings: 3 pairs of videos, named at the end of the page. Each pair "
        "counts as one recording, which leaves 40.",
        "Without labels no encoder is shown to be better: encoders may agree by the background alone.",
    ]


def test_of_many_pairs_the_ends_are_said():
    pairs = {f"net{a}_net{b}": n / 20 for n, (a, b) in enumerate(combinations(range(5), 2))}
    first, last = describe_without_labels((), common(**pairs), 0, 40)
    assert first.startswith("Of the 10 nearest videos of a video in common: net3 and net4 45.0 %; net2 and net4 40.0 %")
    assert "net1 and net2 20.0 % and 4 more" in first and last.startswith("Without labels")


@pytest.mark.parametrize(
    "pairs", [{}, {"net_other": np.nan}, {"net_thumbnails": 0.5}, {"net_other": 1.0, "net_c": 0.0}]
)
def test_nothing_is_called_best_without_labels(pairs):
    text = " ".join(describe_without_labels({"thumbnails"}, common(**pairs), 2, 5))
    assert "best" not in text.lower() and "nan" not in text.lower()
    assert "Without labels no encoder is shown to be better" in text
