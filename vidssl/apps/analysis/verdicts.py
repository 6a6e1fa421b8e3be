"""What each analysis of a network says in one sentence; all rules are here.

* Below `FEWEST` recordings nothing is said.
* A number is above (below) its reference, if its 95 % interval is. It is equal to it, if the interval holds it and ends
  within `MARGIN` of it on both sides; of a small fraction, such as 1 / many classes or the area of small boxes, within
  that fraction. Otherwise it is open.
* Classes are recognised if an accuracy is above what answers reach that do not depend on the videos: the mean over
  classes above 1 / classes, or the accuracy of all videos above the fraction of the most frequent class. That an
  accuracy of all videos is not above says nothing: answers that are right more often in small classes cost as much.
* What holds for corrupted videos and backgrounds is said only of a network that recognises classes without them.
* Of invariance, a score counts if it is above the highest of `SHUFFLES` scores with shuffled labels, which happens by
  chance in 1 of `SHUFFLES` + 1.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from vidssl.evaluation.statistics import FEWEST, Estimate

CHANGE_MARGIN = 0.10  # of fractions: ten points
RATIO_MARGIN = 0.10  # of a ratio of distances
SHUFFLES = 39
COLLAPSED = 0.05  # uniformity below which all features are nearly alike

Standing = Literal["above", "equal", "below", "open"]


class AnalysisVerdict(NamedTuple):
    """What a section says."""

    text: str
    open: bool = False  # nothing can be said


class ScoreSample(NamedTuple):
    """What was measured."""

    videos: int
    recordings: int
    unit: str = "recordings"  # "files" where each video is one

    @property
    def text(self) -> str:
        """The numbers in words."""
        videos = f"{self.videos} video" + "s" * (self.videos != 1)
        return videos if self.recordings == self.videos else f"{videos} of {self.recordings} {self.unit}"


class ScoreTest(NamedTuple):
    """An accuracy, and what answers reach that do not depend on the videos."""

    right: Estimate
    level: float
    words: str = "where guessing gives"  # between both in a sentence
    exact: bool = True  # all such answers reach the level; otherwise at most

    @property
    def text(self) -> str:
        """The numbers in words."""
        return f"{_percent(self.right.value)} {self.words} {_percent(self.level)}{_interval(self.right)}"


class Beside(NamedTuple):
    """The untrained network's number, and the difference of the trained network to it."""

    value: float
    difference: Estimate


def standing(estimate: Estimate, reference: float, margin: float = CHANGE_MARGIN) -> Standing:
    """Compare a number with a reference."""
    if estimate.low is None or estimate.high is None:
        return "open"
    if estimate.low > reference:
        return "above"
    if estimate.high < reference:
        return "below"
    return "equal" if estimate.low >= reference - margin and estimate.high <= reference + margin else "open"


def recognition(sample: ScoreSample, score: ScoreTest, untrained: Beside | None = None) -> AnalysisVerdict:
    """Whether classes are recognised."""
    words = "Recognises classes", "Does not recognise classes", "whether it recognises classes"
    return _against_level(sample, score, words, untrained)


def order(sample: ScoreSample, right: Estimate, equal: int, untrained: Beside | None = None) -> AnalysisVerdict:
    """Whether clips are separated from the same clips reversed; `equal` videos have the same features both ways."""
    if equal == sample.videos:
        text = "Does not notice reversal: every clip has the same features as its reversal, which gives 50 % exactly"
        return AnalysisVerdict(text + _beside(untrained))
    words = "Notices reversal", "Does not notice reversal", "whether it notices reversal"
    return _against_level(sample, ScoreTest(right, 0.5), words, untrained)


def classes(
    sample: ScoreSample, ratio: Estimate, uniformity: float | None, untrained: tuple[float, Standing] | None = None
) -> AnalysisVerdict:
    """Whether videos of different classes are farther apart than those of one; `ratio` is of the mean distances.

    `untrained` is the ratio of the untrained network, and where the trained one stands to it.
    """
    if sample.recordings < FEWEST:
        return _too_few(sample, f"ratio {ratio.value:.2f}")
    ratio_standing = standing(ratio, 1, RATIO_MARGIN)
    numbers = f"{ratio.value:.2f} times as far apart as videos of one class{_interval(ratio, 1, 2)}"
    words = "Classes are separated", "Classes are not separated", "Classes are mixed", "whether classes are separated"
    text = _judged(sample, ratio_standing, words, f"videos of different classes are {numbers}")
    if untrained is not None:
        compared = {"above": "less separated", "below": "more separated", "equal": "as separated"}
        compared_words = compared.get(untrained[1], "no difference is shown")
        text += f"; untrained network {untrained[0]:.2f} ({compared_words})"
    if uniformity is not None and uniformity < COLLAPSED:
        text += f"; all features are nearly alike (uniformity {uniformity:.2f}, and 0 is collapse)"
    return AnalysisVerdict(f"{text}.", ratio_standing == "open")


def invariance(
    sample: ScoreSample, unchanged: float, scores: Mapping[str, float], shuffled: float, untrained: str = ""
) -> AnalysisVerdict:
    """Under which changes the units of a class keep responding.

    Args:
        sample: What was measured.
        unchanged: The score of clips as they are.
        scores: Those of clips under changes, by their names.
        shuffled: The highest score with shuffled labels.
        untrained: What is said of the untrained network.
    """
    if sample.recordings < FEWEST:
        return _too_few(sample, f"score {unchanged:.2f} of clips as they are, at most {shuffled:.2f} by chance")
    if unchanged <= shuffled:
        text = (
            f"Nothing can be said with {sample.text}: the best units respond to classes ({unchanged:.2f}) no more than "
            f"chance allows (up to {shuffled:.2f} with shuffled labels)"
        )
        return AnalysisVerdict(f"{text}{untrained}.", open=True)
    lost = sorted((name for name in scores if scores[name] <= shuffled), key=scores.__getitem__)
    kept = len(scores) - len(lost)
    numbers = f"unchanged clips score {unchanged:.2f}, shuffled labels up to {shuffled:.2f}"
    if not lost:
        least = min(scores, key=scores.__getitem__)
        under = f"all {len(scores)} changes, least under {least} ({scores[least]:.2f})"
        text = f"Keeps its classes under {under}: {numbers}"
    elif kept:
        under = ", ".join(f"{name} ({scores[name]:.2f})" for name in lost[:3])
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        text = f"Keeps its classes under {kept} of {len(scores)} changes, not under {under}{more}: {numbers}"
    else:
        text = f"Loses its classes under all {len(scores)} changes: {numbers}"
    return AnalysisVerdict(f"{text}{untrained}.")


def robustness(
    sample: ScoreSample,
    score: ScoreTest,
    clean: Estimate,
    corrupted: Estimate,
    loss: Estimate,
    groups: Mapping[str, float],
    untrained: Beside | None = None,
) -> AnalysisVerdict:
    """How much accuracy corruption costs a network that recognises classes by its `score` without.

    `loss` is `clean` minus `corrupted`, `groups` are those of corruptions.
    """
    if refused := _not_recognised(sample, score):
        return refused
    loss_standing = standing(loss, 0)
    numbers = f"{_percent(clean.value)} without and {_percent(corrupted.value)} with corruption, {_points(loss)}"
    if loss.identical or loss_standing == "equal":
        text = f"Keeps its accuracy on corrupted videos: {numbers}"
    elif loss_standing == "above":
        little = loss.high is not None and loss.high < CHANGE_MARGIN
        text = f"Loses {'little' if little else 'accuracy'} on corrupted videos: {numbers}"
    elif loss_standing == "below":
        text = f"Is better on corrupted videos: {numbers}"
    else:
        text = f"{_unsaid(sample)} what corruption costs: {numbers}"
    if groups:
        worst, best = min(groups, key=groups.__getitem__), max(groups, key=groups.__getitem__)
        text += f"; worst with {worst} ({_percent(groups[worst])}), best with {best} ({_percent(groups[best])})"
    return AnalysisVerdict(text + _beside(untrained), loss_standing == "open" and not loss.identical)


def background(
    sample: ScoreSample,
    score: ScoreTest,
    same: Estimate,
    another: Estimate,
    gap: Estimate,
    untrained: Beside | None = None,
) -> AnalysisVerdict:
    """Whether the background decides: `gap` is `same` minus `another`, by the class of the video of the background.

    It is said of a network that recognises classes by its `score` before backgrounds of the same class.
    """
    if refused := _not_recognised(sample, score):
        return refused
    numbers = (
        f"{_percent(same.value)} right before the background of another video of the class, {_percent(another.value)} "
        f"before one of another class, {_points(gap)}"
    )
    gap_standing = standing(gap, 0)
    words = (
        "Uses the background",
        "Does not depend on the background",
        "Is better before backgrounds of another class",
        "whether it uses the background",
    )
    text = _judged(sample, "equal" if gap.identical else gap_standing, words, numbers)
    return AnalysisVerdict(text + _beside(untrained, "{:.0f} points"), gap_standing == "open" and not gap.identical)


def attention(
    sample: ScoreSample, inside: float, area: float, gap: Estimate, untrained: Beside | None = None
) -> AnalysisVerdict:
    """Whether it looks at the instance: `inside` is the fraction of the heat in its box, `gap` that minus its area."""
    if sample.recordings < FEWEST:
        return _too_few(sample, f"{_percent(inside)} of the heat in {_percent(area)} of the frame")
    gap_standing = standing(gap, 0, min(CHANGE_MARGIN, area))
    numbers = f"{_percent(inside)} of the heat is in the boxes, which cover {_percent(area)} of the frame, "
    numbers += _points(gap)
    words = (
        "Looks at the instance",
        "Does not look at the instance more than elsewhere",
        "Looks beside the instance",
        "whether it looks at the instance",
    )
    text = _judged(sample, gap_standing, words, numbers)
    return AnalysisVerdict(text + _beside(untrained), gap_standing == "open")


def without_boxes(maps: int, empty: int) -> AnalysisVerdict:
    """What is said of maps without boxes."""
    some = f"; {empty} of {maps} maps have no heat" if empty else ""
    return AnalysisVerdict(
        f"Not judged: whether the heat lies on the instance is measured with boxes=FILE{some}.", open=True
    )


def _against_level(
    sample: ScoreSample, score: ScoreTest, words: tuple[str, str, str], untrained: Beside | None
) -> AnalysisVerdict:
    if sample.recordings < FEWEST:
        return _too_few(sample, score.text)
    yes, no, whether = words
    score_standing = standing(score.right, score.level, min(CHANGE_MARGIN, score.level))
    if not score.exact and score_standing != "above":
        score_standing = "open"
    text = _judged(sample, score_standing, (yes, no, no, whether), score.text)
    return AnalysisVerdict(text + _beside(untrained), score_standing == "open")


def _judged(sample: ScoreSample, judgement: Standing, words: tuple[str, str, str, str], numbers: str) -> str:
    """Begin a sentence with the words for above, equal or below, or with what cannot be said."""
    above, equal, below, whether = words
    starts = {"above": above, "equal": equal, "below": below, "open": f"{_unsaid(sample)} {whether}"}
    return f"{starts[judgement]}: {numbers}"


def _not_recognised(sample: ScoreSample, score: ScoreTest) -> AnalysisVerdict | None:
    if sample.recordings < FEWEST:
        return _too_few(sample, score.text)
    if standing(score.right, score.level) == "above":
        return None
    text = (
        f"Nothing can be said with {sample.text}: even without the change it is not shown that classes are recognised, "
        f"{score.text}."
    )
    return AnalysisVerdict(text, open=True)


def _beside(untrained: Beside | None, form: str = "{:.0f} %") -> str:
    """The end of a sentence."""
    if untrained is None:
        return "."
    words = {"above": "less", "below": "more", "equal": "as much", "open": "no difference is shown"}
    judgement = "equal" if untrained.difference.identical else standing(untrained.difference, 0)
    number = form.format(100 * untrained.value).replace("-", "−")
    return f"; untrained network {number} ({words[judgement]})."


def _too_few(sample: ScoreSample, numbers: str) -> AnalysisVerdict:
    what = "videos" if sample.recordings == sample.videos else sample.unit
    return AnalysisVerdict(
        f"Nothing can be said with {sample.text}, as {FEWEST} {what} are needed: {numbers}.", open=True
    )


def _unsaid(sample: ScoreSample) -> str:
    return f"With {sample.text} it cannot be said"


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _points(gap: Estimate) -> str:
    text = f"a difference of {100 * gap.value:.0f} points".replace("-", "−")
    return f"{text}{_interval(gap)}"


def _interval(estimate: Estimate, scale: float = 100, digits: int = 0) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    low, high = (f"{scale * end:.{digits}f}".replace("-", "−") for end in (estimate.low, estimate.high))
    return f", 95 % interval {low} to {high}"
