"""Columns of a list in a few large buffers, so that a million rows are not a million Python objects.

Python objects hold their reference count, so a forked worker copies each memory page of them that it reads
(https://github.com/pytorch/pytorch/issues/13246). Strings and records are created on access instead.
"""

import math
import operator
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from vidssl.data.list_paths import full_path
from vidssl.types import VideoRecord

Item = TypeVar("Item")


class Column(Sequence[Item]):
    """A sequence that creates its items on access; equal to any sequence of equal items."""

    @abstractmethod
    def item(self, number: int) -> Item:
        """Create item `number` in [0, len)."""

    @abstractmethod
    def take(self, chosen: Sequence[int]) -> "Column[Item]":
        """Select rows."""

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return tuple(self.item(n) for n in range(*index.indices(len(self))))
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"row {number} of {len(self)}")
        return self.item(number % len(self))

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        first = ", ".join(map(repr, self[:3]))
        return f"({first}{', ...' if len(self) > 3 else ''})"


class Strings(Column[str]):
    """Strings as one UTF-8 buffer and the offsets of their ends."""

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])
        for string in strings:
            self.append(string)

    def append(self, string: str) -> None:
        """Add a string at the end."""
        self._text += string.encode()
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def item(self, number: int) -> str:
        """Create a string."""
        return self._text[self._ends[number] : self._ends[number + 1]].decode()

    def take(self, chosen: Sequence[int]) -> "Strings":
        """Select rows."""
        return Strings(self[n] for n in chosen)


class Records(Column[VideoRecord]):
    """Records whose paths are relative to one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names, self._masks = Strings(), Strings()  # no masks, or one in each row
        self._labels = array("q")
        self._numbers = array("d")  # start, end and fps of each row, NaN if missing; empty if all are

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) label of each row."""
        return np.frombuffer(self._labels, np.int64) if self._labels else np.zeros(0, np.int64)

    def append(self, record: VideoRecord) -> None:
        """Add a row, with paths as in the list."""
        numbers = [math.nan if x is None else x for x in (record.start, record.end, record.fps)]
        if self._numbers or not all(map(math.isnan, numbers)):
            before = 3 * len(self) - len(self._numbers)  # of the rows before the first one that has a number
            self._numbers.extend([math.nan] * before + numbers)
        self.names.append(record.path)
        self._labels.append(record.label)
        if record.mask is not None:
            self._masks.append(record.mask)

    def __len__(self) -> int:
        return len(self.names)

    def item(self, number: int) -> VideoRecord:
        """Create a record, with full paths."""
        path, label = full_path(self.root, self.names.item(number)), self._labels[number]
        mask = full_path(self.root, self._masks.item(number)) if len(self._masks) else None
        if not self._numbers:
            return VideoRecord(path, label, mask=mask)
        start, end, fps = (None if x != x else x for x in self._numbers[3 * number : 3 * number + 3])
        return VideoRecord(path, label, start, end, fps, mask)

    def take(self, chosen: Sequence[int]) -> "Records":
        """Select rows."""
        taken = Records(self.root)
        taken.names = self.names.take(chosen)
        taken._masks = self._masks.take(chosen) if len(self._masks) else Strings()
        taken._labels = array("q", (self._labels[n] for n in chosen))
        for n in chosen:
            taken._numbers.extend(self._numbers[3 * n : 3 * n + 3])
        return taken


def take(column: Sequence[Any], chosen: Sequence[int]) -> Sequence[Any]:
    """Select rows of a column or of any other sequence."""
    return column.take(chosen) if isinstance(column, Column) else tuple(column[n] for n in chosen)
