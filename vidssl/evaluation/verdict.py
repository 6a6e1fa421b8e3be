"""What a comparison says in words: which encoder is best, which is the cheapest that is not worse, what to doubt."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from vidssl.evaluation.statistics import Difference
from vidssl.evaluation.without_labels import Agreement, Stability

_ALPHA = 0.05  # of p by Holm's method
_CHEAPER = 1.5  # times the seconds of another encoder, from which on it is called cheaper
_FEW_GROUPS = 30
_FEW_VIDEOS = 10  # of a class


@dataclass(frozen=True)
class Candidate:
    """An encoder that was measured."""

    name: str
    accuracy: float  # the primary number, a fraction
    seconds: float | None  # a video; None: not measured
    floor: bool = False  # thumbnails, differences, an untrained network
    licence: str = ""
    training: Sequence[str] = ()
    seen: int | None = 0  # of the videos, those that it was trained on; None: its list is not there


@dataclass(frozen=True)
class Verdict:
    """The sentences of a verdict."""

    best: int  # of the candidates without the floors, the one with the highest number
    is_clear: bool  # whether an encoder is shown to be worse than it
    cheapest: int  # that is not shown to be worse than the best, and is clearly faster; else the best
    answer: str
    doubts: tuple[str, ...]


def is_worse(pairs: Sequence[Difference], one: int, other: int) -> bool:
    """Whether an encoder is shown to be worse than another one."""
    for pair in pairs:
        if {pair.first, pair.second} == {one, other} and pair.adjusted is not None:
            value = pair.value if pair.first == one else -pair.value
            return value < 0 and pair.adjusted < _ALPHA
    return False


def decide(
    candidates: Sequence[Candidate],
    pairs: Sequence[Difference],
    num_groups: int,
    class_counts: Sequence[tuple[str, int, int]],
    chance: float,
    num_copies: int = 0,
) -> Verdict:
    """Decide between encoders by their primary number.

    Args:
        candidates: The encoders, with the floors among them.
        pairs: Their differences in the primary number.
        num_groups: Recording groups of all videos.
        class_counts: Name, videos and groups of each class.
        chance: Of the primary number.
        num_copies: Pairs of near copies in different recording groups.
    """
    trained = [n for n, each in enumerate(candidates) if not each.floor] or [*range(len(candidates))]
    best = max(trained, key=lambda n: candidates[n].accuracy)
    equal = [n for n in trained if n == best or not is_worse(pairs, n, best)]
    timed = [n for n in equal if candidates[n].seconds is not None]
    cheapest = min(timed, key=lambda n: candidates[n].seconds or 0.0) if timed else best
    ratio = (candidates[best].seconds or 0.0) / (candidates[cheapest].seconds or 1e-9)
    if ratio < _CHEAPER:
        cheapest = best
    name, percent = candidates[best].name, 100 * candidates[best].accuracy
    if len(trained) == 1:
        answer = f"{name}: {percent:.1f} % (chance {100 * chance:.1f})."
    elif len(equal) == len(trained):
        answer = f"No difference is visible between {_listed([candidates[n].name for n in equal])}."
    else:
        answer = f"{name} is best: {percent:.1f} % (chance {100 * chance:.1f})."
    if cheapest != best:
        answer += f" {candidates[cheapest].name} is not shown to be worse, and takes 1/{ratio:.0f} of the time."
    return Verdict(
        best,
        len(equal) < len(trained),
        cheapest,
        answer,
        tuple(_doubts(candidates, pairs, best, num_groups, class_counts, chance, num_copies)),
    )


def _doubts(
    candidates: Sequence[Candidate],
    pairs: Sequence[Difference],
    best: int,
    num_groups: int,
    class_counts: Sequence[tuple[str, int, int]],
    chance: float,
    num_copies: int,
) -> list[str]:
    found, of_best = [], candidates[best]
    if of_best.accuracy <= chance:
        found.append(f"No encoder is above chance, {100 * chance:.1f} %: these numbers say nothing about them.")
    for n, each in enumerate(candidates):
        if each.floor and each.accuracy > of_best.accuracy:
            found.append(f"{each.name}, which learned nothing, has a higher number: {100 * each.accuracy:.1f} %.")
        elif each.floor and not is_worse(pairs, n, best):
            found.append(f"{of_best.name} is not shown to be better than {each.name}, which learned nothing.")
    not_shown = [candidates[n].name for n in range(len(candidates)) if _is_adjusted_away(candidates, pairs, n, best)]
    if not_shown:
        found.append(
            f"The difference of {_listed(not_shown)} to {of_best.name} has an interval without 0, but p, adjusted for "
            f"the number of pairs (Holm), is not below {_ALPHA}: it is not shown."
        )
    if num_groups < _FEW_GROUPS:
        found.append(f"There are only {num_groups} recordings: small differences cannot be seen.")
    if num_copies:
        count = _pairs(num_copies)
        found.append(f"Videos of different recordings show the same footage: {count}, named at the end of the page.")
    few = [name for name, videos, _ in class_counts if videos < _FEW_VIDEOS]
    alone = [name for name, _, groups in class_counts if groups < 2]
    if few:
        found.append(f"Classes of fewer than {_FEW_VIDEOS} videos: {_listed(few)}.")
    if alone:
        found.append(f"Classes of one recording, which cannot be recognised with it left out: {_listed(alone)}.")
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


def _is_adjusted_away(candidates: Sequence[Candidate], pairs: Sequence[Difference], one: int, best: int) -> bool:
    """Whether the interval of an encoder lies below 0, and its adjusted p does not say so."""
    if candidates[one].floor or is_worse(pairs, one, best):
        return False
    for pair in pairs:
        if {pair.first, pair.second} == {one, best} and pair.low is not None and pair.high is not None:
            return pair.high < 0 if pair.first == one else pair.low > 0
    return False


def describe_without_labels(
    names: Sequence[str],
    floors: Collection[int],
    agreements: Sequence[Agreement],
    stabilities: Mapping[str, Mapping[int, Stability]],
    num_copies: int,
    num_groups: int,
) -> tuple[str, ...]:
    """Say what was found without labels, and what that does not say; no encoder is preferred.

    Args:
        names: The encoders.
        floors: Those that learned nothing, by their places in `names`.
        agreements: Of pairs of encoders.
        stabilities: By what was changed, a phrase, and by the places of the encoders.
        num_copies: Pairs of near copies that were of different recording groups.
        num_groups: Recording groups, after those of copies were joined.
    """
    found = _describe_agreement(names, floors, [each for each in agreements if not math.isnan(each.mean)])
    for what, stability in stabilities.items():
        parts = [
            f"{names[n]} {100 * each.recall:.1f} % (cosine {each.cosine.mean():.2f}, of different videos "
            f"{each.others:.2f})"
            for n, each in stability.items()
        ]
        found.append(f"How often {what} find their video first: {'; '.join(parts)}.")
    if num_copies:
        found.append(
            f"Near copies that were of different recordings: {_pairs(num_copies)} of videos, named at the end of the "
            f"page. Each pair counts as one recording, which leaves {num_groups}."
        )
    found.append(
        "Without labels no encoder is shown to be better: an encoder may agree with others, and find a video by other "
        "clips of it, by the background alone."
    )
    return tuple(found)


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
