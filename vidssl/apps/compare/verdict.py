"""What a comparison says in words: which encoder is best, which needs less and is not worse, what to doubt.

Words follow tests: an encoder is best if every other one is shown to be worse, by p after Holm's method; it needs less
and is not worse if the interval of its difference to the best excludes a loss of more than `WORSE_MARGIN`.
"""

import math
from collections.abc import Collection, Sequence
from itertools import permutations

from vidssl.apps.compare.features_and_predictions import ComparedEncoder
from vidssl.apps.compare.neighbour_agreement import NEIGHBOURS_COMPARED
from vidssl.base.config import Tree
from vidssl.base.errors import first_few, how_many
from vidssl.evaluation.statistics import ALPHA, FEWEST, Difference, Estimate

WORSE_MARGIN = 0.05  # of the primary number
_LESS = 1.5  # times the operations of another encoder, from which on it needs less
_FEW_VIDEOS = 10  # of a class


class _Ranking:
    """Encoders by their primary number, the highest first; all numbers are places of encoders."""

    def __init__(
        self, encoders: Sequence[ComparedEncoder], means: Sequence[Estimate], differences: Sequence[Difference]
    ):
        self.encoders, self.means = encoders, means
        self.names = [encoder.name for encoder in encoders]
        order = sorted(range(len(encoders)), key=lambda n: -means[n].value)
        self.learned = [n for n in order if not (encoders[n].floor or encoders[n].part)]
        self.ranked = self.learned or order
        self.pairs = {(pair.first, pair.second): pair for half in differences for pair in (half, half.turned())}
        self.best = self.ranked[0]
        self.rest = [n for n in self.ranked if not self.is_worse(n, self.best)]
        self.higher = [n for n, mean in enumerate(means) if mean.value > means[self.best].value]  # not of learned

    def is_worse(self, n: int, than: int) -> bool:
        """Whether an encoder is shown to be worse than another one."""
        return n != than and self.pairs[n, than].is_worse

    def listed(self, numbers: Sequence[int]) -> str:
        """List the names of encoders."""
        return _listed([self.names[n] for n in numbers])

    def answer(self, chance: float) -> str:
        """Say which encoder is best, or which are not told apart."""
        best, rest = self.names[self.best], self.rest
        if len(rest) == 1:
            verdict = " is best" if len(self.learned) != 1 else ""
            return f"{best}{verdict}: {100 * self.means[self.best].value:.1f} % by kNN (guessing {100 * chance:.1f})"
        between = [self.pairs[pair] for pair in permutations(rest, 2)]
        answer = f"{self.listed(rest)} are not told apart"
        if all(pair.reason == "equal" for pair in between):
            answer = f"{self.listed(rest)} are equal: kNN is right for the same videos"
        elif all(pair.reason in ("equal", "too few recordings") for pair in between):
            answer = f"{self.listed(rest)} are not compared: fewer than {FEWEST} recordings"
        elif any(pair.is_worse for pair in between):
            answer = f"{best} is not told apart from {self.listed([n for n in rest if n != self.best])}"
        worse = [n for n in self.ranked if n not in rest]
        than_all = [n for n in worse if all(self.is_worse(n, better) for better in rest)]
        for some, than in ((than_all, ""), ([n for n in worse if n not in than_all], f" than {best}")):
            if some:
                answer += f"; {self.listed(some)} {'is' if len(some) == 1 else 'are'} worse{than}"
        return answer

    def higher_ones(self) -> str:
        """Say which floors and parts of sums have a higher number than the best encoder."""
        said = ""
        for floor, what in ((True, ", which learned nothing,"), (False, " alone")):
            if some := [n for n in self.higher if self.encoders[n].floor == floor]:
                number, are = max(self.means[n].value for n in some), "is" if len(some) == 1 else "are"
                said += f", but {self.listed(some)}{what} {are} higher: {100 * number:.1f} %"
        return said

    def cheapest(self) -> tuple[int, str]:
        """Return the encoder that needs least of those that are not worse than the best by more than the margin."""
        operations = [encoder.facts["gigaflops_per_video"] or 0.0 for encoder in self.encoders]  # None: not counted
        most, able = operations[self.best], []
        for n in self.rest:
            low = None if n == self.best else self.pairs[n, self.best].low
            if low is not None and low > -WORSE_MARGIN and 0 < operations[n] * _LESS <= most:
                able.append(n)
        if not able:
            return self.best, ""
        cheapest = min(able, key=operations.__getitem__)
        pair = self.pairs[cheapest, self.best]
        points = " to ".join(f"{100 * (end or 0):+.1f}".replace("-", "−") for end in (pair.low, pair.high))
        return cheapest, (
            f" {self.names[cheapest]} needs {100 * operations[cheapest] / most:.2g} % of the operations of "
            f"{self.names[self.best]}, and is not worse by more than {100 * WORSE_MARGIN:.0f} points (95 % interval of "
            f"the difference {points})."
        )

    def doubts(self, chance: float) -> list[str]:
        """Say what is not shown: above guessing, above the floors, and why encoders are not told apart."""
        best, said = self.names[self.best], self.equal_ones()
        if all(low is None or low <= chance for low in (self.means[n].low for n in self.ranked)):
            said.append(f"No encoder is shown to be above guessing, {100 * chance:.1f} %.")
        for n, encoder in enumerate(self.encoders):
            what = ", which learned nothing" if encoder.floor else " alone"
            if n not in (*self.learned, self.best, *self.higher) and not self.is_worse(n, self.best):
                said.append(f"{best} is not shown to be better than {encoder.name}{what}.")
        to_best = [self.pairs[n, self.best] for n in range(len(self.encoders)) if n != self.best]
        differ = [pair.first for pair in to_best if "differ" in pair.reason and pair.first in self.ranked]
        said += [f"{best} and {self.names[n]} {self.pairs[n, self.best].reason}." for n in differ]
        unshown = [pair for pair in to_best if not pair.reason and not pair.is_worse]
        if adjusted := [pair.first for pair in unshown if pair.high is not None and pair.high < 0]:
            said.append(
                f"For {self.listed(adjusted)} the interval of the difference to {best} is without 0, but p, adjusted "
                f"for the number of pairs (Holm), is not below {ALPHA}: no difference is shown."
            )
        return said

    def equal_ones(self) -> list[str]:
        """Name the encoders that are one network, and others whose predictions are the same."""
        said, rest = [], [*self.learned]
        while rest:
            first = rest[0]
            equal = [first, *(n for n in rest[1:] if self.pairs[first, n].reason == "equal")]
            rest = [n for n in rest if n not in equal]
            if len(equal) > 1:
                one_network = len({self.encoders[n].facts["features"] for n in equal}) == 1
                what = "have the same weights and clips" if one_network else "are right for the same videos by kNN"
                said.append(f"{self.listed(equal)} {what}.")
        return said


def decide(
    encoders: Sequence[ComparedEncoder],
    means: Sequence[Estimate],
    differences: Sequence[Difference],
    classes: Sequence[Tree],
    chance: float,
    doubts: Sequence[str] = (),
    num_copies: int = 0,
) -> Tree:
    """Decide between encoders by their primary number.

    Args:
        encoders: The encoders, with the floors among them.
        means: The primary number of each.
        differences: Of all pairs of them in that number.
        classes: Name, videos and groups of each class.
        chance: What guessing gives of the primary number.
        doubts: Of intervals and tests, as `statistics.doubts`.
        num_copies: Pairs of near copies in different recording groups.

    Returns:
        The names of the `best` encoder, which is the one with the highest number that is no floor, and of the
        `cheapest` one that is not worse, or again the best; whether every other encoder is shown to be worse than the
        best, `is_clear`; the sentences `answer` and `doubts`.
    """
    ranking = _Ranking(encoders, means, differences)
    cheapest, needs_less = ranking.cheapest()
    return {
        "best": ranking.names[ranking.best],
        "is_clear": len(ranking.rest) == 1 and len(ranking.learned) != 1,
        "cheapest": ranking.names[cheapest],
        "answer": f"{ranking.answer(chance)}{ranking.higher_ones()}.{needs_less}",
        "doubts": [
            *ranking.doubts(chance),
            *doubts,
            *_doubts_of_videos(classes, num_copies),
            *_doubts_of_training([encoders[n] for n in ranking.learned]),
        ],
    }


def _doubts_of_videos(classes: Sequence[Tree], num_copies: int) -> list[str]:
    few = [class_["name"] for class_ in classes if class_["videos"] < _FEW_VIDEOS]
    single = [class_["name"] for class_ in classes if class_["groups"] < 2]
    copies = (
        f"Videos of different recordings show the same footage: {how_many(num_copies, 'pair')}, at the end of the page."
    )
    doubts = (
        (num_copies, copies),
        (few, f"Classes of fewer than {_FEW_VIDEOS} videos: {_listed(few)}."),
        (single, f"Classes of one recording are left out of kNN's mean over classes: {_listed(single)}."),
    )
    return [sentence for holds, sentence in doubts if holds]


def _doubts_of_training(trained: Sequence[ComparedEncoder]) -> list[str]:
    seen = {encoder.name: _seen(encoder) for encoder in trained}
    sets: dict[str, list[str]] = {}  # names of encoders by training set
    for encoder in trained:
        for training_set in dict.fromkeys(encoder.facts["checkpoint"].get("training", ())):
            sets.setdefault(training_set, []).append(encoder.name)
    sets.pop("none", None)
    unknown = sets.pop("not stated", [])
    unread = [name for name, count in seen.items() if count is None]
    unlicensed = [encoder.name for encoder in trained if encoder.facts["checkpoint"].get("licence") == "not stated"]
    stated = "; ".join(f"{training_set} ({_listed(names)})" for training_set, names in sets.items())
    doubts = (
        (unread, f"These videos may be among the training videos of {_listed(unread)}, whose lists are not here."),
        (sets, f"Numbers are too high for videos that a network was trained on. Training sets: {stated}."),
        (unknown, f"Training sets that are not stated may hold these videos: {_listed(unknown)}."),
        (unlicensed, f"Licence not stated: {_listed(unlicensed)}."),
    )
    trained_on = [f"{name} was trained on {count} of these videos." for name, count in seen.items() if count]
    return trained_on + [sentence for holds, sentence in doubts if holds]


def _seen(encoder: ComparedEncoder) -> int | None:
    """How many of the videos a network of vidssl was trained on; None if its list is not there."""
    overlap: Tree = encoder.facts["overlap"] or {}
    if "not_checked" not in overlap:
        return int(overlap.get("videos", 0))
    origin = encoder.facts["checkpoint"]
    stated = all("training" in part for part in origin.get("parts", [origin]))
    return 0 if stated else None  # its training sets are stated, or in doubt


def describe_without_labels(
    floors: Collection[str], pairs: Sequence[Tree], num_copies: int, num_groups: int
) -> list[str]:
    """Say what was measured without labels, and what that does not say; no encoder is preferred.

    Args:
        floors: Names of the encoders that learned nothing.
        pairs: What each pair of encoders has in common, of `common_neighbours`.
        num_copies: Pairs of near copies that were of different recording groups.
        num_groups: Recording groups, after those of copies were joined.
    """
    sentences, nearest_floor = [], dict[str, tuple[float, str]]()  # with which an encoder has most in common
    pairs = [pair for pair in pairs if not math.isnan(pair["fraction"])]
    trained = [pair for pair in pairs if not {pair["first"], pair["second"]} & {*floors}]
    if trained:
        order = sorted(trained, key=lambda pair: -pair["fraction"])
        parts = [f"{pair['first']} and {pair['second']} {100 * pair['fraction']:.1f} %" for pair in order]
        sentences.append(
            f"Of the {NEIGHBOURS_COMPARED} nearest videos of a video in common: {first_few(parts, 6, '; ')}. By chance "
            f"{100 * trained[0]['chance']:.1f} %."
        )
    for pair in pairs:
        for encoder, floor in permutations((pair["first"], pair["second"])):
            most = nearest_floor.get(encoder, (0.0, ""))[0]
            if floor in floors and encoder not in floors and pair["fraction"] >= most:
                nearest_floor[encoder] = pair["fraction"], floor
    if nearest_floor:
        parts = [f"{name} {100 * fraction:.1f} % with {floor}" for name, (fraction, floor) in nearest_floor.items()]
        sentences.append(f"In common with what learned nothing: {'; '.join(parts)}.")
    if num_copies:
        sentences.append(
            f"Near copies that were of different recordings: {how_many(num_copies, 'pair')} of videos, named at the "
            f"end of the page. Each pair counts as one recording, which leaves {num_groups}."
        )
    sentences.append("Without labels no encoder is shown to be better: encoders may agree by the background alone.")
    return sentences


def _listed(names: Sequence[str], most: int = 5) -> str:
    texts = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {''.join(texts[-1:])}"
