"""Mean and relative performance under corruption (Yi et al., 2021, Mini-Kinetics-C)."""

from collections.abc import Mapping, Sequence
from statistics import mean

Scores = Mapping[str, Mapping[int, float]]  # of one metric, by corruption and severity


def mean_performance(scores: Scores) -> float:
    """Return mPC: the mean over corruptions of the mean over their severities."""
    return mean(mean(of_severity.values()) for of_severity in scores.values())


def relative_performance(scores: Scores, clean: float) -> float | None:
    """Return rPC: mPC as a fraction of the performance on clean videos; None if that is 0."""
    return mean_performance(scores) / clean if clean > 0 else None


def by_group(scores: Scores, group_of: Mapping[str, str]) -> dict[str, float]:
    """Return the mPC of each group of corruptions."""
    groups: dict[str, dict[str, Mapping[int, float]]] = {}
    for name, of_severity in scores.items():
        groups.setdefault(group_of[name], {})[name] = of_severity
    return {group: mean_performance(members) for group, members in groups.items()}


def by_severity(scores: Scores, severities: Sequence[int]) -> dict[int, float]:
    """Return the mean over corruptions for each severity."""
    return {severity: mean(of_severity[severity] for of_severity in scores.values()) for severity in severities}
