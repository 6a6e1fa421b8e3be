"""What a comparison says in words: which encoder is best, which needs less and is not worse, what to doubt.

Words follow tests: an encoder is best if every other one is shown to be worse, by p after Holm's method; it needs less
and is not worse if the interval of its difference to the best excludes a loss of more than `MARGIN`.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

from vidssl.evaluation.statistics import ALPHA, FEWEST, Difference
from vidssl.evaluation.without_labels import Agreement

MARGIN = 0.05  # of the primary number
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
    doubts: tuple[str, ...]


class _Pairs:
    """The differences of pairs of encoders, either way round."""

    def __init__(self, pairs: Sequence[Difference]) -> None:
        self._found = {(pair.first, pair.second): pair for pair in pairs}

    def reason(self, one: int, other: int) -> str:
        """Why a difference cannot be shown; empty if it could be."""
        return self._found[min(one, other), max(one, other)].reason

    def is_worse(self, one: int, other: int) -> bool:
        """Whether an encoder is shown to be worse than another one."""
        pair = self._found[min(one, other), max(one, other)]
        value = pair.value if pair.first == one else -pair.value
        return value < 0 and pair.adjusted is not None and pair.adjusted < ALPHA

    def interval(self, one: int, other: int) -> tuple[float, float] | None:
        """The interval of the number of an encoder minus that of another one."""
        pair = self._found[min(one, other), max(one, other)]
        if pair.low is None or pair.high is None:
            return None
        return (pair.low, pair.high) if pair.first == one else (-pair.high, -pair.low)


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
    found = _Pairs(pairs)
    trained = [n for n, each in enumerate(candidates) if not each.floor] or [*range(len(candidates))]
    best = max(trained, key=lambda n: candidates[n].accuracy)
    worse = [n for n in trained if n != best and found.is_worse(n, best)]
    rest = [n for n in trained if n not in worse]
    number = f"{100 * candidates[best].accuracy:.1f} % (guessing {100 * chance:.1f})"
    if len(trained) == 1:
        answer = f"{candidates[best].name}: {number}."
    elif len(rest) == 1:
        answer = f"{candidates[best].name} is best: {number}."
    else:
        answer = f"{_not_told_apart(candidates, found, best, rest)}{_worse(candidates, found, best, rest, worse)}."
    cheapest, sentence = _cheapest(candidates, found, best, rest)
    said = _doubts(candidates, found, best, class_counts, chance, doubts, num_copies)
    return Verdict(best, len(trained) > 1 and len(rest) == 1, cheapest, answer + sentence, tuple(said))


def _not_told_apart(candidates: Sequence[Candidate], found: _Pairs, best: int, rest: Sequence[int]) -> str:
    names = _listed([candidates[n].name for n in rest])
    reasons = {found.reason(*pair) for pair in combinations(rest, 2)}
    if reasons == {"equal"}:
        return f"{names} are equal: the same predictions"
    if reasons <= {"equal", "too few recordings"}:
        return f"{names} are not compared: fewer than {FEWEST} recordings"
    if any(found.is_worse(*pair) or found.is_worse(*pair[::-1]) for pair in combinations(rest, 2)):
        return (
            f"{candidates[best].name} is not told apart from {_listed([candidates[n].name for n in rest if n != best])}"
        )
    return f"{names} are not told apart"


def _worse(candidates: Sequence[Candidate], found: _Pairs, best: int, rest: Sequence[int], worse: Sequence[int]) -> str:
    """The end of the answer: the encoders that are shown to be worse than all others, or than the best one."""
    of_all = [n for n in worse if all(found.is_worse(n, other) for other in rest)]
    parts = []
    for some, than in ((of_all, ""), ([n for n in worse if n not in of_all], f" than {candidates[best].name}")):
        if some:
            parts.append(
                f"; {_listed([candidates[n].name for n in some])} {'is' if len(some) == 1 else 'are'} worse{than}"
            )
    return "".join(parts)


def _cheapest(candidates: Sequence[Candidate], found: _Pairs, best: int, rest: Sequence[int]) -> tuple[int, str]:
    """Return the encoder that needs least of those that are not worse than the best by more than the margin."""
    most = candidates[best].operations
    able = {}
    for n in rest:
        interval, own = found.interval(n, best) if n != best else None, candidates[n].operations
        if interval and interval[0] > -MARGIN and own is not None and most is not None and own * _LESS <= most:
            able[n] = (own, interval)
    if not able or not most:
        return best, ""
    cheapest = min(able, key=lambda n: able[n][0])
    own, (low, high) = able[cheapest]
    points = f"{100 * low:+.1f} to {100 * high:+.1f}".replace("-", "−")
    return cheapest, (
        f" {candidates[cheapest].name} needs {_percent(own / most)} of the operations of {candidates[best].name}, and "
        f"is not worse by more than {100 * MARGIN:.0f} points (95 % interval of the difference {points})."
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if fraction >= 0.01 else "less than 1 %"


def _doubts(
    candidates: Sequence[Candidate],
    pairs: _Pairs,
    best: int,
    class_counts: Sequence[tuple[str, int, int]],
    chance: float,
    doubts: Sequence[str],
    num_copies: int,
) -> list[str]:
    found, of_best = _equal_ones(candidates, pairs), candidates[best]
    if all(each.low is None or each.low <= chance for each in candidates if not each.floor):
        found.append(f"No encoder is shown to be above guessing, {100 * chance:.1f} %.")
    for n, each in enumerate(candidates):
        if each.floor and each.accuracy > of_best.accuracy:
            found.append(f"{each.name}, which learned nothing, has a higher number: {100 * each.accuracy:.1f} %.")
        elif each.floor and n != best and not pairs.is_worse(n, best):
            found.append(f"{of_best.name} is not shown to be better than {each.name}, which learned nothing.")
    trained = [n for n, each in enumerate(candidates) if not each.floor]
    for n in trained:
        if n != best and (reason := pairs.reason(n, best)).startswith("differ"):
            found.append(f"{of_best.name} and {candidates[n].name} {reason}.")
    not_shown = [candidates[n].name for n in trained if n != best and _is_adjusted_away(pairs, n, best)]
    if not_shown:
        found.append(
            f"The difference of {_listed(not_shown)} to {of_best.name} has an interval without 0, but p, adjusted for "
            f"the number of pairs (Holm), is not below {ALPHA}: it is not shown."
        )
    found += doubts
    if num_copies:
        count = _pairs(num_copies)
        found.append(f"Videos of different recordings show the same footage: {count}, named at the end of the page.")
    few = [name for name, videos, _ in class_counts if videos < _FEW_VIDEOS]
    alone = [name for name, _, groups in class_counts if groups < 2]
    if few:
        found.append(f"Classes of fewer than {_FEW_VIDEOS} videos: {_listed(few)}.")
    if alone:
        found.append(f"Classes of one recording are left out of kNN's mean over classes: {_listed(alone)}.")
    found += [f"{each.name} was trained on {each.seen} of these videos." for each in candidates if each.seen]
    unread = [each.name for each in candidates if each.seen is None and not each.floor]
    if unread:
        found.append(f"These videos may be among the training videos of {_listed(unread)}, whose lists are not here.")
    learned = [each for each in candidates if not each.floor]
    sets = dict.fromkeys(name for each in learned for name in each.training if name not in ("none", "not stated"))
    if sets:
        of_set = {one: _listed([each.name for each in learned if one in each.training]) for one in sets}
        where = "; ".join(f"{one} ({names})" for one, names in of_set.items())
        found.append(f"Numbers are too high for videos that a network was trained on. Training sets: {where}.")
    unknown = [each.name for each in candidates if not each.floor and "not stated" in each.training]
    if unknown:
        found.append(f"Training sets that are not stated may hold these videos: {_listed(unknown)}.")
    unlicensed = [each.name for each in candidates if not each.floor and each.licence == "not stated"]
    if unlicensed:
        found.append(f"Licence not stated: {_listed(unlicensed)}.")
    return found


def _equal_ones(candidates: Sequence[Candidate], pairs: _Pairs) -> list[str]:
    """Name the encoders that are one network, and those whose predictions are the same."""
    found, left = [], [n for n, each in enumerate(candidates) if not each.floor]
    while left:
        first = left[0]
        same = [n for n in left[1:] if candidates[n].network and candidates[n].network == candidates[first].network]
        equal = same or [n for n in left[1:] if pairs.reason(first, n) == "equal"]
        left = [n for n in left[1:] if n not in equal]
        if equal:
            names = _listed([candidates[n].name for n in (first, *equal)])
            found.append(f"{names} have the same {'weights and clips' if same else 'predictions of all videos'}.")
    return found


def _is_adjusted_away(pairs: _Pairs, one: int, best: int) -> bool:
    """Whether the interval of an encoder lies below 0, and its adjusted p does not say so."""
    interval = pairs.interval(one, best)
    return interval is not None and interval[1] < 0 and not pairs.is_worse(one, best)


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
    found = _describe_agreement(names, floors, [each for each in agreements if not math.isnan(each.mean)])
    if num_copies:
        found.append(
            f"Near copies that were of different recordings: {_pairs(num_copies)} of videos, named at the end of the "
            f"page. Each pair counts as one recording, which leaves {num_groups}."
        )
    found.append("Without labels no encoder is shown to be better: encoders may agree by the background alone.")
    return found


def _describe_agreement(names: Sequence[str], floors: Collection[int], agreements: Sequence[Agreement]) -> list[str]:
    if not agreements:
        return []
    found = []
    k = agreements[0].nearest[0].shape[1]
    trained = [each for each in agreements if not {each.first, each.second} & {*floors}]
    if trained:
        parts = [
            f"{names[each.first]} and {names[each.second]} {100 * each.mean:.1f} %"
            for each in sorted(trained, key=lambda each: -each.mean)
        ]
        found.append(
            f"Of the {k} nearest videos of a video in common: {'; '.join(_shortened(parts))}. By chance "
            f"{100 * trained[0].chance:.1f} %."
        )
    nearest_floor: dict[int, tuple[float, int]] = {}  # of each encoder: the floor with which it has most in common
    for each in agreements:
        for one, other in ((each.first, each.second), (each.second, each.first)):
            if other in floors and one not in floors:
                nearest_floor[one] = max(nearest_floor.get(one, (-1.0, -1)), (each.mean, other))
    if nearest_floor:
        parts = [f"{names[n]} {100 * mean:.1f} % with {names[floor]}" for n, (mean, floor) in nearest_floor.items()]
        found.append(f"In common with what learned nothing: {'; '.join(parts)}.")
    return found


def _shortened(parts: Sequence[str], most: int = 6) -> list[str]:
    """Leave out the middle of a long list."""
    half = most // 2
    return [*parts] if len(parts) <= most else [*parts[:half], f"{len(parts) - most} more between", *parts[-half:]]


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"


def _listed(names: Sequence[str], most: int = 5) -> str:
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
