"""What a comparison says in words: which encoder is best, which needs less and is not worse, what to doubt.

Words follow tests: an encoder is best if every other one is shown to be worse, by p after Holm's method; it needs less
and is not worse if the interval of its difference to the best excludes a loss of more than `MARGIN`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from vidssl.apps.compare.neighbour_agreement import Agreement
from vidssl.base.errors import first_few
from vidssl.evaluation.statistics import ALPHA, FEWEST, Difference

WORSE_MARGIN = 0.05  # of the primary number
_LESS = 1.5  # times the operations of another encoder, from which on it needs less
_FEW_VIDEOS = 10  # of a class


@dataclass(frozen=True)
class Candidate:
    """An encoder that was measured."""

    name: str
    accuracy: float  # the primary number, a fraction
    operations: float | None  # a video; None: not counted
    floor: bool = False  # thumbnails, differences, an untrained network
    licence: str = ""
    training: Sequence[str] = ()
    seen: int | None = 0  # of the videos, those that it was trained on; None: its list is not there
    low: float | None = None  # lower end of the interval of the primary number
    network: str = ""  # equal ones have the same weights and clips; empty: not known


@dataclass(frozen=True)
class Verdict:
    """The sentences of a verdict."""

    best: int  # of the candidates without the floors, the one with the highest number
    is_clear: bool  # whether every other encoder is shown to be worse than it
    cheapest: int  # that is not worse than the best by more than `MARGIN`, and needs less; else the best
    answer: str
    doubts: list[str]


EncoderPairs = Mapping[tuple[int, int], Difference]  # either way round


def decide(
    candidates: Sequence[Candidate],
    pairs: Sequence[Difference],
    class_counts: Sequence[tuple[str, int, int]],
    chance: float,
    doubts: Sequence[str] = (),
    num_copies: int = 0,
) -> Verdict:
    """Decide between encoders by their primary number.

    Args:
        candidates: The encoders, with the floors among them.
        pairs: All of their differences in the primary number.
        class_counts: Name, videos and groups of each class.
        chance: What guessing gives of the primary number.
        doubts: Of intervals and tests, as `statistics.doubts`.
        num_copies: Pairs of near copies in different recording groups.
    """
    pair_of = {(pair.first, pair.second): pair for difference in pairs for pair in (difference, difference.turned())}
    trained = [n for n, candidate in enumerate(candidates) if not candidate.floor] or [*range(len(candidates))]
    best = max(trained, key=lambda n: candidates[n].accuracy)
    rest = [n for n in trained if n == best or not pair_of[n, best].is_worse]
    of_best = candidates[best]
    number = f"{100 * of_best.accuracy:.1f} % (guessing {100 * chance:.1f})"
    if len(trained) == 1:
        answer = f"{of_best.name}: {number}."
    elif len(rest) == 1:
        answer = f"{of_best.name} is best: {number}."
    else:
        answer = _not_told_apart(candidates, pair_of, best, rest)
        worse = [n for n in trained if n not in rest]
        of_all = [n for n in worse if all(pair_of[n, better].is_worse for better in rest)]
        for some, than in ((of_all, ""), ([n for n in worse if n not in of_all], f" than {of_best.name}")):
            if some:
                answer += f"; {_names(candidates, some)} {'is' if len(some) == 1 else 'are'} worse{than}"
        answer += "."
    cheapest, sentence = _cheapest(candidates, pair_of, best, rest)
    said = [*_doubts_of_best(candidates, pair_of, best, chance), *doubts, *_doubts_of_videos(class_counts, num_copies)]
    said += _doubts_of_training([candidate for candidate in candidates if not candidate.floor])
    return Verdict(best, len(trained) > 1 and len(rest) == 1, cheapest, answer + sentence, said)


def _names(candidates: Sequence[Candidate], numbers: Sequence[int]) -> str:
    return _listed([candidates[n].name for n in numbers])


def _not_told_apart(candidates: Sequence[Candidate], pair_of: EncoderPairs, best: int, rest: Sequence[int]) -> str:
    names, pairs = _names(candidates, rest), [pair_of[pair] for pair in permutations(rest, 2)]
    if all(pair.reason == "equal" for pair in pairs):
        return f"{names} are equal: kNN is right for the same videos"
    if all(pair.reason in ("equal", "too few recordings") for pair in pairs):
        return f"{names} are not compared: fewer than {FEWEST} recordings"
    if any(pair.is_worse for pair in pairs):
        return f"{candidates[best].name} is not told apart from {_names(candidates, [n for n in rest if n != best])}"
    return f"{names} are not told apart"


def _cheapest(candidates: Sequence[Candidate], pairs: EncoderPairs, best: int, rest: Sequence[int]) -> tuple[int, str]:
    """Return the encoder that needs least of those that are not worse than the best by more than the margin."""
    most, able = candidates[best].operations or 0.0, {}
    for n in rest:
        low, operations = None if n == best else pairs[n, best].low, candidates[n].operations
        if low is not None and low > -WORSE_MARGIN and operations and operations * _LESS <= most:
            able[n] = operations
    if not able:
        return best, ""
    cheapest = min(able, key=able.__getitem__)
    part, pair = 100 * able[cheapest] / most, pairs[cheapest, best]
    points = " to ".join(f"{100 * (end or 0):+.1f}".replace("-", "−") for end in (pair.low, pair.high))
    return cheapest, (
        f" {candidates[cheapest].name} needs {part:.2g} % of the operations of {candidates[best].name}, and is not "
        f"worse by more than {100 * WORSE_MARGIN:.0f} points (95 % interval of the difference {points})."
    )


def _doubts_of_best(candidates: Sequence[Candidate], pair_of: EncoderPairs, best: int, chance: float) -> list[str]:
    """Say what is not shown: above guessing, above the floors, and why encoders are not told apart."""
    trained, name = [n for n, candidate in enumerate(candidates) if not candidate.floor], candidates[best].name
    said = _equal_ones(candidates, pair_of, trained)
    if all(candidate.low is None or candidate.low <= chance for candidate in candidates if not candidate.floor):
        said.append(f"No encoder is shown to be above guessing, {100 * chance:.1f} %.")
    for n, floor in enumerate(candidates):
        if floor.floor and floor.accuracy > candidates[best].accuracy:
            said.append(f"{floor.name}, which learned nothing, has a higher number: {100 * floor.accuracy:.1f} %.")
        elif floor.floor and n != best and not pair_of[n, best].is_worse:
            said.append(f"{name} is not shown to be better than {floor.name}, which learned nothing.")
    pairs = [pair_of[n, best] for n in trained if n != best]
    said += [f"{name} and {candidates[pair.first].name} {pair.reason}." for pair in pairs if "differ" in pair.reason]
    unshown = [pair for pair in pairs if not pair.reason and not pair.is_worse]
    adjusted = [pair.first for pair in unshown if pair.high is not None and pair.high < 0]
    if adjusted:
        said.append(
            f"The difference of {_names(candidates, adjusted)} to {name} has an interval without 0, but p, adjusted "
            f"for the number of pairs (Holm), is not below {ALPHA}: it is not shown."
        )
    return said


def _equal_ones(candidates: Sequence[Candidate], pair_of: EncoderPairs, trained: Sequence[int]) -> list[str]:
    """Name the encoders that are one network, and others whose predictions are the same."""
    said, rest = [], [*trained]
    while rest:
        first, *rest = rest
        equal = [n for n in rest if pair_of[first, n].reason == "equal"]
        rest = [n for n in rest if n not in equal]
        is_one_network = len({candidates[n].network or str(n) for n in (first, *equal)}) == 1
        if equal:
            what = "have the same weights and clips" if is_one_network else "are right for the same videos by kNN"
            said.append(f"{_names(candidates, [first, *equal])} {what}.")
    return said


def _doubts_of_videos(class_counts: Sequence[tuple[str, int, int]], num_copies: int) -> list[str]:
    said = []
    if num_copies:
        count = _pairs(num_copies)
        said.append(f"Videos of different recordings show the same footage: {count}, named at the end of the page.")
    if few := [name for name, videos, _ in class_counts if videos < _FEW_VIDEOS]:
        said.append(f"Classes of fewer than {_FEW_VIDEOS} videos: {_listed(few)}.")
    if alone := [name for name, _, groups in class_counts if groups < 2]:
        said.append(f"Classes of one recording are left out of kNN's mean over classes: {_listed(alone)}.")
    return said


def _doubts_of_training(trained: Sequence[Candidate]) -> list[str]:
    said = [f"{network.name} was trained on {network.seen} of these videos." for network in trained if network.seen]
    if unread := [candidate.name for candidate in trained if candidate.seen is None]:
        said.append(f"These videos may be among the training videos of {_listed(unread)}, whose lists are not here.")
    sets: dict[str, list[str]] = {}
    for candidate in trained:
        for training_set in dict.fromkeys(candidate.training):
            if training_set not in ("none", "not stated"):
                sets.setdefault(training_set, []).append(candidate.name)
    if sets:
        where = "; ".join(f"{training_set} ({_listed(names)})" for training_set, names in sets.items())
        said.append(f"Numbers are too high for videos that a network was trained on. Training sets: {where}.")
    if unknown := [candidate.name for candidate in trained if "not stated" in candidate.training]:
        said.append(f"Training sets that are not stated may hold these videos: {_listed(unknown)}.")
    if unlicensed := [candidate.name for candidate in trained if candidate.licence == "not stated"]:
        said.append(f"Licence not stated: {_listed(unlicensed)}.")
    return said


def describe_without_labels(
    names: Sequence[str], floors: Collection[int], agreements: Sequence[Agreement], num_copies: int, num_groups: int
) -> list[str]:
    """Say what was found without labels, and what that does not say; no encoder is preferred.

    Args:
        names: The encoders.
        floors: Those that learned nothing, by their places in `names`.
        agreements: Of pairs of encoders.
        num_copies: Pairs of near copies that were of different recording groups.
        num_groups: Recording groups, after those of copies were joined.
    """
    sentences = _describe_agreement(names, floors, [pair for pair in agreements if not math.isnan(pair.mean)])
    if num_copies:
        sentences.append(
            f"Near copies that were of different recordings: {_pairs(num_copies)} of videos, named at the end of the "
            f"page. Each pair counts as one recording, which leaves {num_groups}."
        )
    sentences.append("Without labels no encoder is shown to be better: encoders may agree by the background alone.")
    return sentences


def _describe_agreement(names: Sequence[str], floors: Collection[int], agreements: Sequence[Agreement]) -> list[str]:
    if not agreements:
        return []
    sentences = []
    k = agreements[0].nearest[0].shape[1]
    trained = [agreement for agreement in agreements if not {agreement.first, agreement.second} & {*floors}]
    if trained:
        parts = [
            f"{names[agreement.first]} and {names[agreement.second]} {100 * agreement.mean:.1f} %"
            for agreement in sorted(trained, key=lambda agreement: -agreement.mean)
        ]
        sentences.append(
            f"Of the {k} nearest videos of a video in common: {first_few(parts, 6, '; ')}. By chance "
            f"{100 * trained[0].chance:.1f} %."
        )
    nearest_floor: dict[int, tuple[float, int]] = {}  # of each encoder: the floor with which it has most in common
    for agreement in agreements:
        for encoder, floor in ((agreement.first, agreement.second), (agreement.second, agreement.first)):
            if floor in floors and encoder not in floors:
                nearest_floor[encoder] = max(nearest_floor.get(encoder, (-1.0, -1)), (agreement.mean, floor))
    if nearest_floor:
        parts = [f"{names[n]} {100 * mean:.1f} % with {names[floor]}" for n, (mean, floor) in nearest_floor.items()]
        sentences.append(f"In common with what learned nothing: {'; '.join(parts)}.")
    return sentences


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"


def _listed(names: Sequence[str], most: int = 5) -> str:
    texts = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
