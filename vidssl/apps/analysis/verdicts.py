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

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from vidssl.evaluation.statistics import FEWEST, Beside, Estimate

CHANGE_MARGIN = 0.10  # of fractions: ten points
RATIO_MARGIN = 0.10  # of a ratio of distances
SHUFFLES = 39
COLLAPSED = 0.05  # uniformity below which all features are nearly alike

Standing = Literal["above", "equal", "below", "open"]


class AnalysisVerdict(NamedTuple):
    """What a section says."""

    verdict: str
    open: bool = False  # nothing can be said


class ScoreSample(NamedTuple):
    """What was measured."""

    videos: int
    recordings: int

    @property
    def text(self) -> str:
        """The numbers in words."""
        videos = f"{self.videos} video" + "s" * (self.videos != 1)
        return videos if self.recordings == self.videos else f"{videos} of {self.recordings} recordings"


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


def standing(estimate: Estimate, reference: float, margin: float = CHANGE_MARGIN) -> Standing:
    """Compare a number with a reference; a difference of equal values is equal to it."""
    if estimate.identical:
        return "equal"
    if estimate.low is None or estimate.high is None:
        return "open"
    if estimate.low > reference:
        return "above"
    if estimate.high < reference:
        return "below"
    return "equal" if estimate.low >= reference - margin and estimate.high <= reference + margin else "open"


RECOGNITION = ("Recognises classes", *["Does not recognise classes"] * 2, "whether it recognises classes")
_REVERSAL = ("Notices reversal", *["Does not notice reversal"] * 2, "whether it notices reversal")
_APART = ("Classes are separated", "Classes are not separated", "Classes are mixed", "whether classes are separated")
_BACKGROUND = (
    "Uses the background",
    "Does not depend on the background",
    "Is better in front of backgrounds of another class",
    "whether it uses the background",
)
_ATTENTION = (
    "Looks at the instance",
    "Does not look at the instance more than elsewhere",
    "Looks beside the instance",
    "whether it looks at the instance",
)


def recognition(
    sample: ScoreSample, score: ScoreTest, untrained: Beside | None = None, words: Sequence[str] = RECOGNITION
) -> AnalysisVerdict:
    """Whether classes are recognised."""
    if sample.recordings < FEWEST:
        return _too_few(sample, score.text)
    place = standing(score.right, score.level, min(CHANGE_MARGIN, score.level))
    if not score.exact and place != "above":
        place = "open"
    return _judged(sample, place, words, score.text, _beside(untrained))


def order(sample: ScoreSample, right: Estimate, equal: int, untrained: Beside | None = None) -> AnalysisVerdict:
    """Whether clips are separated from the same clips reversed; `equal` videos have the same features both ways."""
    if equal == sample.videos:
        text = "Does not notice reversal: every clip has the same features as its reversal, which gives 50 % exactly"
        return AnalysisVerdict(text + _beside(untrained))
    return recognition(sample, ScoreTest(right, 0.5), untrained, _REVERSAL)


def classes(
    sample: ScoreSample, ratio: Estimate, uniformity: float | None, untrained: tuple[float, Standing] | None = None
) -> AnalysisVerdict:
    """Whether videos of different classes are farther apart than those of one; `ratio` is of the mean distances.

    `untrained` is the ratio of the untrained network, and where the trained one stands to it.
    """
    if sample.recordings < FEWEST:
        return _too_few(sample, f"ratio {ratio.value:.2f}")
    numbers = f"{ratio.value:.2f} times as far apart as videos of one class{_interval(ratio, 1, 2)}"
    end = ""
    if untrained is not None:
        compared = {"above": "less separated", "below": "more separated", "equal": "as separated"}
        end += f"; untrained network {untrained[0]:.2f} ({compared.get(untrained[1], 'no difference is shown')})"
    if uniformity is not None and uniformity < COLLAPSED:
        end += f"; all features are nearly alike (uniformity {uniformity:.2f}, and 0 is collapse)"
    numbers = f"videos of different classes are {numbers}"
    return _judged(sample, standing(ratio, 1, RATIO_MARGIN), _APART, numbers, f"{end}.")


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
    little = loss.high is not None and loss.high < CHANGE_MARGIN
    words = (
        f"Loses {'little' if little else 'accuracy'} on corrupted videos",
        "Keeps its accuracy on corrupted videos",
        "Is better on corrupted videos",
        "what corruption costs",
    )
    numbers = f"{_percent(clean.value)} without and {_percent(corrupted.value)} with corruption, {_points(loss)}"
    if groups:
        worst, best = min(groups, key=groups.__getitem__), max(groups, key=groups.__getitem__)
        numbers += f"; worst with {worst} ({_percent(groups[worst])}), best with {best} ({_percent(groups[best])})"
    return _judged(sample, standing(loss, 0), words, numbers, _beside(untrained))


def background(
    sample: ScoreSample,
    score: ScoreTest,
    same: Estimate,
    another: Estimate,
    gap: Estimate,
    untrained: Beside | None = None,
) -> AnalysisVerdict:
    """Whether the background decides: `gap` is `same` minus `another`, by the class of the video of the background.

    It is said of a network that recognises classes by its `score` in front of backgrounds of the same class.
    """
    if refused := _not_recognised(sample, score):
        return refused
    numbers = (
        f"{_percent(same.value)} right in front of the background of another video of the class, "
        f"{_percent(another.value)} in front of one of another class, {_points(gap)}"
    )
    return _judged(sample, standing(gap, 0), _BACKGROUND, numbers, _beside(untrained, "points"))


def attention(
    sample: ScoreSample, inside: float, area: float, gap: Estimate, untrained: Beside | None = None
) -> AnalysisVerdict:
    """Whether it looks at the instance: `inside` is the fraction of the heat in its box, `gap` that minus its area."""
    if sample.recordings < FEWEST:
        return _too_few(sample, f"{_percent(inside)} of the heat in {_percent(area)} of the frame")
    covered = f"which cover {_percent(area)} of the frame"
    numbers = f"{_percent(inside)} of the heat is in the boxes, {covered}, {_points(gap)}"
    return _judged(sample, standing(gap, 0, min(CHANGE_MARGIN, area)), _ATTENTION, numbers, _beside(untrained))


def without_boxes(maps: int, empty: int) -> AnalysisVerdict:
    """What is said of maps without boxes."""
    some = f"; {empty} of {maps} maps have no heat" if empty else ""
    return AnalysisVerdict(
        f"Not judged: whether the heat lies on the instance is measured with boxes=FILE{some}.", open=True
    )


def _judged(sample: ScoreSample, place: Standing, words: Sequence[str], numbers: str, end: str) -> AnalysisVerdict:
    """Begin a sentence with the words for above, equal or below, or with what cannot be said."""
    above, equal, below, whether = words
    starts = {"above": above, "equal": equal, "below": below, "open": f"With {sample.text} it cannot be said {whether}"}
    return AnalysisVerdict(f"{starts[place]}: {numbers}{end}", place == "open")


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


def _beside(untrained: Beside | None, unit: str = "%") -> str:
    """The end of a sentence."""
    if untrained is None:
        return "."
    words = {"above": "less", "below": "more", "equal": "as much", "open": "no difference is shown"}
    number = f"{100 * untrained.value:.0f} {unit}".replace("-", "−")
    return f"; untrained network {number} ({words[standing(untrained.difference, 0)]})."


def _too_few(sample: ScoreSample, numbers: str) -> AnalysisVerdict:
    what = "videos" if sample.recordings == sample.videos else "recordings"
    return AnalysisVerdict(
        f"Nothing can be said with {sample.text}, as {FEWEST} {what} are needed: {numbers}.", open=True
    )


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
