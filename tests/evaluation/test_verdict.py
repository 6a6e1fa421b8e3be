"""The words of a comparison, by cases."""

from vidssl.evaluation.paired_groups import Difference
from vidssl.evaluation.verdict import Candidate, decide

CLASSES = [("run", 40, 20), ("walk", 40, 20)]


def pair(one, other, value, adjusted):
    return Difference(one, other, value, value - 0.05, value + 0.05, adjusted, adjusted)


def test_the_best_and_the_cheapest_that_is_not_worse():
    known = {"licence": "MIT", "training": ("K400",)}
    three = [
        Candidate("big", 0.9, 2.0, **known),
        Candidate("small", 0.88, 0.1, **known),
        Candidate("old", 0.7, 0.05, **known),
    ]
    pairs = [pair(0, 1, 0.02, 0.4), pair(0, 2, 0.2, 0.001), pair(1, 2, 0.18, 0.001)]
    found = decide(three, pairs, 40, CLASSES, 0.5)
    assert (found.best, found.cheapest, found.doubts) == (0, 1, ())
    assert found.answer == (
        "big is best: 90.0 % (chance 50.0). small is not shown to be worse, and takes 1/20 of the time."
    )
    same = decide(three[:2], pairs[:1], 40, CLASSES, 0.5)
    assert same.answer.startswith("No difference is visible between big and small.")
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
