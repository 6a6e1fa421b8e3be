"""Columns of a list in a few large buffers, so that a million rows are not a million Python objects.

Python objects hold their reference count, so a forked worker copies each memory page of them that it reads
(https://github.com/pytorch/pytorch/issues/13246). Strings and records are created on access instead.
"""

import math
import operator
from abc import abstractmethod
from array import array
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from vidssl.data.allowed_paths import existing_path
from vidssl.types import VideoRecord

Item = TypeVar("Item")


class Column(Sequence[Item]):
    """A sequence that creates its items on access; equal to any sequence of equal items."""

    @abstractmethod
    def item(self, number: int) -> Item:
        """Create item `number` in [0, len)."""

    @overload
    def __getitem__(self, index: int) -> Item: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...

    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return tuple(map(self.item, range(len(self))[index]))
        return self.item(range(len(self))[index])

    def __iter__(self) -> Iterator[Item]:
        return map(self.item, range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))


class Strings(Column[str]):
    """Strings as one UTF-8 buffer and the offsets of their ends."""

    def __init__(self) -> None:
        self._text = bytearray()
        self._ends = array("q", [0])

    def append(self, string: str) -> None:
        """Add a string at the end."""
        self._text += string.encode()
        self._ends.append(len(self._text))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def item(self, number: int) -> str:
        """Create a string."""
        return self._text[self._ends[number] : self._ends[number + 1]].decode()


class Records(Column[VideoRecord]):
    """The rows of a list. Items have full paths; the rows that are passed in have those of the file."""

    def __init__(self, root: Path, rows: Iterable[VideoRecord] = ()) -> None:
        self.roots, self._starts = [root], [0]  # several lists: the folder of each, and its first row
        self.names, self._masks, self._label_sets = Strings(), Strings(), Strings()  # masks, sets: in all rows or none
        self._labels = array("q")
        self._numbers = array("d")  # start, end and fps of each row, NaN if missing; empty if all are
        self._columns: dict[str, array[float]] = {}  # numbers that a project reads, NaN if missing
        for row in rows:
            self.append(row)

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) label of each row."""
        return np.asarray(self._labels)

    def root_of(self, number: int) -> Path:
        """Return the folder that the paths of a row are relative to."""
        return self.roots[bisect(self._starts, number) - 1]

    def append(self, row: VideoRecord, root: Path | None = None) -> None:
        """Add a row, with paths as in the list, relative to `root`, or to the folder of the row before."""
        if root is not None and root != self.roots[-1]:
            self.roots.append(root)
            self._starts.append(len(self))
        numbers = [math.nan if number is None else number for number in (row.start, row.end, row.fps)]
        if self._numbers or not all(map(math.isnan, numbers)):
            _append(self._numbers, numbers, 3 * len(self))
        for name in {**self._columns, **row.columns}:
            _append(self._columns.setdefault(name, array("d")), [row.columns.get(name, math.nan)], len(self))
        self.names.append(row.path)
        self._labels.append(row.label)
        if row.mask is not None:
            self._masks.append(row.mask)
        if row.label_set is not None:
            self._label_sets.append(row.label_set)

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """(N,) numbers of each row that a project reads, by column, NaN where missing."""
        return {name: np.array(column) for name, column in self._columns.items()}

    def __len__(self) -> int:
        return len(self.names)

    def item(self, number: int) -> VideoRecord:
        """Create a record, with full paths."""
        return self._record(number, partial(existing_path, self.root_of(number)))

    def row(self, number: int) -> VideoRecord:
        """Create a record, with paths as in the list."""
        return self._record(number, str)

    def _record(self, number: int, locate: Callable[[str], str]) -> VideoRecord:
        path, label = locate(self.names.item(number)), self._labels[number]
        mask = locate(self._masks.item(number)) if self._masks else None
        labels = self._label_sets.item(number) if self._label_sets else None
        found = self._numbers[3 * number : 3 * number + 3] or (math.nan,) * 3
        start, end, fps = (None if math.isnan(each) else each for each in found)
        columns = {name: column[number] for name, column in self._columns.items() if not math.isnan(column[number])}
        return VideoRecord(path, label, start, end, fps, mask, labels, columns)


def _append(column: "array[float]", numbers: Sequence[float], count: int) -> None:
    """Add the numbers of a row to those of the rows before, `count` in all, which may have none."""
    column.extend([math.nan] * (count - len(column)))
    column.extend(numbers)
