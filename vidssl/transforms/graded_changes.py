"""A named change of clips in several amounts: what corruptions, transformations and moves in time have in common."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vidssl.errors import ConfigError
from vidssl.registry import did_you_mean


class Change(NamedTuple):
    """An operation, and its amounts, such as those of five severities."""

    apply: Callable[..., Any]  # what it takes is the same for all changes of a table
    amounts: tuple[Any, ...]
    unit: str  # of the amounts
    group: str = ""
    needs_motion: bool = False  # has no meaning for clips of one frame


def choose_changes(
    kind: str, known: Mapping[str, Change], names: Sequence[str] | None, excluded: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose changes of some kind, those of some names or all, but for the `excluded` ones, which have a reason.

    Returns:
        Their names in the order of `known`, and the reason for each that is left out.

    Raises:
        ConfigError: A name is unknown, or no change is left.
    """
    for name in names or ():
        if name not in known:
            raise ConfigError(f"no {kind} '{name}'{did_you_mean(name, known)}; there are: {', '.join(known)}")
    wanted = [name for name in known if names is None or name in names]
    left_out = {name: why for name, why in excluded.items() if name in wanted}
    chosen = tuple(name for name in wanted if name not in left_out)
    if not chosen:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise ConfigError(f"no {kind} is left to measure ({reasons}); name others")
    return chosen, left_out
