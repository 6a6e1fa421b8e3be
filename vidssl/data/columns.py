"""Columns of a list in a few large buffers, so that a million rows are not a million Python objects.

Python objects hold their reference count, so a forked worker copies each memory page of them that it reads
(https://github.com/pytorch/pytorch/issues/13246). Strings and records are created on access instead.
"""

import operator
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from vidssl.data.paths import full_path
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
    """Records whose paths are relative to one folder.

    Args:
        root: The folder.
        names: Paths of the videos.
        labels: (N,)
        numbers: (N, 3) start, end and fps; NaN where missing; None: all are missing.
        masks: Paths of the masks; None: there are none.
    """

    def __init__(
        self,
        root: Path,
        names: Strings,
        labels: NDArray[np.int64],
        numbers: NDArray[np.float64] | None,
        masks: Strings | None,
    ) -> None:
        self.root, self.labels = root, labels
        self._names, self._numbers, self._masks = names, numbers, masks

    def __len__(self) -> int:
        return len(self._names)

    def item(self, number: int) -> VideoRecord:
        """Create a record, with full paths."""
        path, label = full_path(self.root, self._names.item(number)), int(self.labels[number])
        mask = None if self._masks is None else full_path(self.root, self._masks.item(number))
        if self._numbers is None:
            return VideoRecord(path, label, mask=mask)
        start, end, fps = (None if x != x else x for x in self._numbers[number].tolist())
        return VideoRecord(path, label, start, end, fps, mask)

    def take(self, chosen: Sequence[int]) -> "Records":
        """Select rows."""
        numbers = None if self._numbers is None else self._numbers[list(chosen)]
        masks = None if self._masks is None else self._masks.take(chosen)
        return Records(self.root, self._names.take(chosen), self.labels[list(chosen)], numbers, masks)


class RecordsBuilder:
    """Collects the rows of a list whose paths are relative to `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._names, self._masks = Strings(), Strings()
        self._labels, self._numbers = array("q"), array("d")

    def add(self, record: VideoRecord) -> None:
        """Add a row, with paths as in the list."""
        self._names.append(record.path)
        self._labels.append(record.label)
        self._numbers.extend(np.nan if x is None else x for x in (record.start, record.end, record.fps))
        if record.mask is not None:
            self._masks.append(record.mask)

    def build(self) -> tuple[Strings, Records]:
        """Return names and records."""
        numbers = np.array(self._numbers).reshape(-1, 3)
        given = None if np.isnan(numbers).all() else numbers
        masks = self._masks if len(self._masks) else None
        return self._names, Records(self._root, self._names, np.array(self._labels), given, masks)


def take(column: Sequence[Any], chosen: Sequence[int]) -> Sequence[Any]:
    """Select rows of a column or of any other sequence."""
    return column.take(chosen) if isinstance(column, Column) else tuple(column[n] for n in chosen)
