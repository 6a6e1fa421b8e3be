"""A named change of clips in several amounts: what corruptions, transformations and moves in time have in common."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Change(NamedTuple):
    """An operation, and its amounts, such as those of five severities."""

    apply: Callable[..., Any]  # what it takes is the same for all changes of a table
    amounts: tuple[Any, ...]
    unit: str  # of the amounts
    group: str = ""
    needs_motion: bool = False  # has no meaning for clips of one frame
