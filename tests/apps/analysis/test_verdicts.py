"""The sentences of the page of all analyses, over made-up numbers."""

import pytest

from vidssl.apps.analysis.verdicts import (
    ScoreSample,
    ScoreTest,
    attention,
    background,
    classes,
    invariance,
    order,
    recognition,
    robustness,
    standing,
    without_boxes,
)
from vidssl.evaluation.statistics import Beside, Estimate

MANY, FEW = ScoreSample(48, 30), ScoreSample(8, 5)
HIGH = Estimate(0.71, 0.55, 0.83)
BY_CLASS, OF_ALL = "as a mean over classes, where 1 / classes is", "where the most frequent class gives"


def score(right, level=0.17, exact=True):
    return ScoreTest(right, level, BY_CLASS if exact else OF_ALL, exact)


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.51, 0.9, "above"),
        (0.1, 0.49, "below"),
        (0.41, 0.59, "equal"),
        (0.39, 0.55, "open"),
        (0.45, 0.61, "open"),
        (None, None, "open"),
    ],
)
def test_where_a_number_stands(low, high, wanted):
    assert standing(Estimate(0.5, low, high), 0.5) == wanted


def test_what_is_recognised():
    actual = recognition(MANY, score(HIGH), Beside(0.42, Estimate(0.29, 0.1, 0.48)))
    assert actual.verdict == (
        "Recognises classes: 71 % as a mean over classes, where 1 / classes is 17 %, 95 % interval 55 to 83; "
        "untrained network 42 % (less)."
    )
    assert not actual.open
    equal = recognition(MANY, score(Estimate(0.2, 0.14, 0.26)))
    assert equal.verdict == (
        "Does not recognise classes: 20 % as a mean over classes, where 1 / classes is 17 %, 95 % interval 14 to 26."
    )
    assert not equal.open
    unclear = recognition(MANY, score(Estimate(0.25, 0.12, 0.4)))
    assert unclear.open and unclear.verdict.startswith(
        "With 48 videos of 30 recordings it cannot be said whether it recognises classes: 25 % as"
    )
    assert recognition(MANY, score(Estimate(0.05, 0.005, 0.1), 0.01)).open  # ten times the level is not equal to it
    assert not recognition(MANY, score(Estimate(0.01, 0.005, 0.02), 0.01)).open
    worse = recognition(MANY, score(Estimate(0.02, 0.0, 0.1)))
    assert worse.verdict.startswith("Does not recognise classes: 2 %") and not worse.open


def test_the_most_frequent_class_is_a_level_from_above_only():
    above = recognition(MANY, score(HIGH, 0.5, exact=False))
    assert above.verdict.startswith(
        "Recognises classes: 71 % where the most frequent class gives 50 %, 95 % interval 55"
    )
    for level in (0.6, 0.71, 0.9):
        assert recognition(MANY, score(HIGH, level, exact=False)).open


def test_the_untrained_network():
    def end(difference):
        return recognition(MANY, score(HIGH), Beside(0.6, difference)).verdict.partition("; ")[2]

    assert end(Estimate(-0.1, -0.2, -0.05)) == "untrained network 60 % (more)."
    assert end(Estimate(0.0, -0.05, 0.05)) == "untrained network 60 % (as much)."
    assert end(Estimate(0.0, identical=True)) == "untrained network 60 % (as much)."
    assert end(Estimate(0.1, -0.1, 0.3)) == "untrained network 60 % (no difference is shown)."


def test_too_few_videos_say_nothing():
    right = Estimate(0.9)
    actual = [
        recognition(FEW, score(right)),
        order(FEW, right, 0),
        robustness(FEW, score(right), right, right, Estimate(0.0), {}),
        background(FEW, score(right), right, right, Estimate(0.0)),
        classes(FEW, Estimate(2.0), 1.0),
        invariance(FEW, 5.0, {"blur": 4.9}, 2.0),
        attention(FEW, 0.9, 0.1, Estimate(0.8)),
    ]
    for each in actual:
        assert each.open
        assert each.verdict.startswith(
            "Nothing can be said with 8 videos of 5 recordings, as 6 recordings are needed: "
        )
    alone = recognition(ScoreSample(1, 1), ScoreTest(right, 0.2)).verdict
    assert alone.startswith("Nothing can be said with 1 video, as 6 videos are needed: 90 % where guessing gives 20 %")


def test_reversal():
    brief = order(MANY, Estimate(0.52, 0.47, 0.57), 0)
    assert brief.verdict == "Does not notice reversal: 52 % where guessing gives 50 %, 95 % interval 47 to 57."
    assert order(MANY, HIGH, 0).verdict.startswith("Notices reversal: 71 %")
    assert order(MANY, Estimate(0.5, 0.3, 0.7), 47).open
    exact = order(MANY, Estimate(0.5, 0.5, 0.5), 48)
    assert exact.verdict.startswith("Does not notice reversal: every clip has the same features") and not exact.open
    assert order(FEW, Estimate(0.5), 8).verdict == exact.verdict  # needs no interval


def test_classes():
    actual = classes(MANY, Estimate(1.6, 1.3, 2.0), 0.9, (1.1, "above"))
    assert actual.verdict == (
        "Classes are separated: videos of different classes are 1.60 times as far apart as videos of one class, "
        "95 % interval 1.30 to 2.00; untrained network 1.10 (less separated)."
    )
    assert classes(MANY, Estimate(1.01, 0.95, 1.07), 0.9).verdict.startswith("Classes are not separated: ")
    assert classes(MANY, Estimate(0.8, 0.7, 0.9), 0.9).verdict.startswith("Classes are mixed: ")
    assert classes(MANY, Estimate(1.2, 0.8, 1.8), 0.9).open
    collapsed = classes(MANY, Estimate(1.6, 1.3, 2.0), 0.01).verdict
    assert collapsed.endswith("; all features are nearly alike (uniformity 0.01, and 0 is collapse).")


def test_invariance():
    scores = {"blurred": 5.0, "rotated": 3.0, "reversed": 4.2}
    actual = invariance(MANY, 5.9, scores, 4.2, "; untrained network: under 1 of 3")
    assert actual.verdict == (
        "Keeps its classes under 1 of 3 changes, not under rotated (3.00), reversed (4.20): unchanged clips score "
        "5.90, shuffled labels up to 4.20; untrained network: under 1 of 3."
    )
    assert invariance(MANY, 5.9, scores, 2.9).verdict.startswith(
        "Keeps its classes under all 3 changes, least under rotated (3.00): "
    )
    assert invariance(MANY, 5.9, scores, 5.1).verdict.startswith("Loses its classes under all 3 changes: ")
    nothing = invariance(MANY, 5.35, scores, 5.48)
    assert nothing.open and nothing.verdict == (
        "Nothing can be said with 48 videos of 30 recordings: the best units respond to classes (5.35) no more than "
        "chance allows (up to 5.48 with shuffled labels)."
    )
    many = invariance(MANY, 5.9, {f"c{n}": n / 10 for n in range(50)}, 4.2).verdict
    assert "not under c0 (0.00), c1 (0.10), c2 (0.20) and 40 more" in many


def test_robustness():
    groups = {"noise": 0.2, "blur": 0.7}
    lost = robustness(MANY, score(HIGH), HIGH, Estimate(0.45), Estimate(0.26, 0.15, 0.37), groups)
    assert lost.verdict == (
        "Loses accuracy on corrupted videos: 71 % without and 45 % with corruption, a difference of 26 points, 95 % "
        "interval 15 to 37; worst with noise (20 %), best with blur (70 %)."
    )

    def start(*loss):
        return robustness(MANY, score(HIGH), HIGH, Estimate(0.7), Estimate(*loss), {}).verdict.partition(":")[0]

    assert start(0.05, 0.02, 0.08) == "Loses little on corrupted videos"
    assert start(0.01, -0.02, 0.04) == start(0.0, None, None, None, True) == "Keeps its accuracy on corrupted videos"
    assert start(-0.05, -0.08, -0.02) == "Is better on corrupted videos"
    assert start(0.1, -0.1, 0.3) == "With 48 videos of 30 recordings it cannot be said what corruption costs"
    low = Estimate(0.2, 0.1, 0.3)
    guessing = robustness(MANY, score(low), low, Estimate(0.2), Estimate(0.0, -0.01, 0.01), groups)
    assert guessing.open and "even without the change it is not shown that classes are recognised" in guessing.verdict


def test_background():
    gap = Estimate(0.2, 0.05, 0.35)
    actual = background(MANY, score(HIGH), HIGH, Estimate(0.51), gap, Beside(-0.03, Estimate(0.23, 0.1, 0.3)))
    assert actual.verdict == (
        "Uses the background: 71 % right in front of the background of another video of the class, 51 % in front of "
        "one of another class, a difference of 20 points, 95 % interval 5 to 35; untrained network −3 points (less)."
    )

    def start(*gap):
        return background(MANY, score(HIGH), HIGH, HIGH, Estimate(*gap)).verdict.partition(":")[0]

    assert start(0.0, -0.05, 0.05) == start(0.0, None, None, None, True) == "Does not depend on the background"
    assert start(-0.2, -0.3, -0.1) == "Is better in front of backgrounds of another class"
    assert start(0.1, -0.1, 0.3).endswith("it cannot be said whether it uses the background")


def test_attention():
    actual = attention(MANY, 0.42, 0.18, Estimate(0.24, 0.15, 0.33), Beside(0.2, Estimate(0.22, 0.1, 0.3)))
    assert actual.verdict == (
        "Looks at the instance: 42 % of the heat is in the boxes, which cover 18 % of the frame, a difference of 24 "
        "points, 95 % interval 15 to 33; untrained network 20 % (less)."
    )
    assert attention(MANY, 0.2, 0.18, Estimate(0.02, -0.02, 0.05)).verdict.startswith(
        "Does not look at the instance more"
    )
    assert attention(MANY, 0.1, 0.18, Estimate(-0.08, -0.1, -0.05)).verdict.startswith("Looks beside the instance: ")
    assert attention(MANY, 0.3, 0.18, Estimate(0.12, -0.1, 0.3)).open
    assert attention(MANY, 0.08, 0.04, Estimate(0.04, -0.01, 0.09)).open
    assert without_boxes(48, 2).verdict.endswith("measured with boxes=FILE; 2 of 48 maps have no heat.")
    assert without_boxes(48, 0).verdict.endswith("measured with boxes=FILE.")
