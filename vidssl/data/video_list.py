"""Video lists: the CSV files that describe every data set, their rows, and their columns in memory.

The columns of a list are a few large buffers, so that a million rows are not a million Python objects: these hold their
reference count, so a forked worker copies each memory page of them that it reads
(https://github.com/pytorch/pytorch/issues/13246). Strings and records are created on access instead.
"""

import codecs
import csv
import hashlib
import io
import math
import operator
import os
import re
from abc import abstractmethod
from array import array
from bisect import bisect
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.base.config import Settings, in_home
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.registry import APPS
from vidssl.base.safe_parse import parse_json
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import PathRule, existing_path, full_path


def read_lines(path: Path, remedy: str) -> Iterator[tuple[str, str]]:
    """Yield the non-empty lines of a text file, stripped, each with its `file:line`."""
    for number, line in enumerate(read_text(path, remedy).split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line.strip()


def read_official_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return parse_json(read_text(path, "pass an official JSON file"))
    except ValueError as error:
        raise DataError(f"{path} is not JSON: {error}") from None


def read_rows(path: Path, remedy: str, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not blank, header included, with the line number that each ends in."""
    # Universal newlines or splitlines would also split at characters that names may contain.
    with _opened(path, remedy) as file:
        rows = csv.reader(file, strict=True, delimiter=delimiter)
        try:
            for row in rows:
                if "\0" in (text := "".join(row)):
                    raise DataError(f"{path}:{rows.line_num}: a NUL character: save it as UTF-8")
                if text.strip():  # Excel writes empty rows as commas
                    yield rows.line_num, row
        except csv.Error as error:
            is_return = "new-line" in str(error)
            what = "a carriage return in a row: remove it" if is_return else f"{error}; is a quote left open?"
            raise DataError(f"{path}:{rows.line_num}: not CSV: {what}") from None


def read_text(path: Path, remedy: str) -> str:
    """Read a text file, UTF-8, or UTF-16 with a byte-order mark; `remedy` ends the error for a missing file."""
    with _opened(path, remedy) as file:
        return file.read().replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def _opened(path: Path, remedy: str) -> Iterator[io.TextIOWrapper]:
    """Open a text file as Excel saves them: UTF-16 if it begins so, and lines that end in CR if the first one does."""
    try:
        with open(path, "rb") as file:
            start = file.peek()
            encoding = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
            newline = "" if b"\r" in start and b"\n" not in start else "\n"
            with io.TextIOWrapper(file, encoding=encoding, newline=newline) as text:
                yield text
    except OSError as error:
        raise DataError(f"cannot read list {path}: {error.strerror}; {remedy}") from None
    except UnicodeError:
        raise DataError(f'list {path} is not UTF-8: save it as UTF-8, in Excel as "CSV UTF-8"') from None


# Numbers as lists write them: without the forms that only Python reads, such as `1_0` and other digits than 0-9.
_MAX_DIGITS = 4000  # int() refuses more than 4,300
# pandas writes 0.0 in a column that has or had missing values.
_WHOLE = re.compile(rf"([+-]?[0-9]{{1,{_MAX_DIGITS}}})(?:\.0+)?")


def parse_whole_number(text: str) -> int:
    """Read `12`, `-1` or `12.0`; anything else is a ValueError."""
    if len(text) <= _MAX_DIGITS and text.isdecimal() and text.isascii():  # most numbers, in a quarter of the time
        return int(text)
    match = _WHOLE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a whole number")
    return int(match[1])


def decimal_number(text: str) -> float:
    """Read a number with decimals or an exponent; anything else is a ValueError."""
    with suppress(ValueError):
        if "_" not in text and text.isascii():
            return float(text)
    raise ValueError(f"{text[:40]!r} is not a number")


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


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

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self[:3]))}{f', … ({len(self):,} in all)' * (len(self) > 3)}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(operator.eq, self, other))


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


class Records(Column[VideoRecord]):
    """The rows of a list. Items have full paths; the rows that are passed in have those of the file."""

    def __init__(self, root: Path, rows: Iterable[VideoRecord] = ()) -> None:
        self.roots, self._starts = [root], [0]  # several lists: the folder of each, and its first row
        self.names, self._masks, self._label_sets = Strings(), Strings(), Strings()  # masks, sets: in all rows or none
        self._groups, self._labels = Strings(), array("q")  # groups: empty if no row has one
        # Start, end and fps, and the numbers that an app reads, by column: NaN if missing; no column if all are.
        self._numbers: dict[str, array[float]] = {}
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
        numbers = {"start": row.start, "end": row.end, "fps": row.fps, **row.columns}
        for name, number in numbers.items():
            if number is not None and name not in self._numbers:
                self._numbers[name] = array("d", [math.nan]) * len(self)
        for name, column in self._numbers.items():
            number = numbers.get(name)
            column.append(math.nan if number is None else number)
        if row.group and not self._groups:
            self._groups = Strings([""] * len(self))
        if row.group or self._groups:
            self._groups.append(row.group or "")
        self.names.append(row.path)
        self._labels.append(row.label)
        if row.mask is not None:
            self._masks.append(row.mask)
        if row.label_set is not None:
            self._label_sets.append(row.label_set)

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """(N,) numbers of each row that an app reads, by column, NaN where missing."""
        return {name: np.array(column) for name, column in self._numbers.items() if name not in _NUMBERS}

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
        numbers = {name: column[number] for name, column in self._numbers.items() if not math.isnan(column[number])}
        start, end, fps = (numbers.pop(name, None) for name in _NUMBERS)
        group = self._groups.item(number) if self._groups else None
        return VideoRecord(path, label, start, end, fps, mask, labels, numbers, group or None)


# Columns of a list, and the fields of VideoRecord that they fill.
_NUMBERS = ("start", "end", "fps")
COLUMNS = {name: name for name in ("path", "label", "labels", *_NUMBERS, "mask", "group")} | {"labels": "label_set"}
_MAX_CLASSES = 10_000_000  # without classes.txt: a larger label is an id, and results have a number for each class
_HEADER = "path[,label or labels][,start][,end][,fps][,mask][,group]"
_OTHER_LISTS = (
    "vidssl prepare list converts other lists; labels by name are labels=FILE, beside the folder of the videos"
)


class ListPart(NamedTuple):
    """A list that was joined with others."""

    records: int
    samples: int  # in an epoch


@dataclass(frozen=True)
class VideoList:
    """The rows of a list and what lies beside it; `join_lists` makes one of several lists."""

    path: Path
    records: Records  # with full paths
    classes: tuple[str, ...]  # name of class n; empty without classes.txt
    joined: tuple[ListPart, ...] = ()  # the lists that it was made of
    unit: str = "video"  # what a row is, for progress
    label_source: str | Path = "list"  # or a file, folders, cameras (whose folders are no classes), none

    def __len__(self) -> int:
        return len(self.records)

    @property
    def samples_per_epoch(self) -> int:
        """Length of an epoch of training: the number of rows, of several lists each times its weight."""
        return sum(part.samples for part in self.joined) or len(self.records)

    @property
    def root(self) -> Path:
        """The folder that the names are relative to; of several lists the first one's."""
        return self.records.roots[0]

    @property
    def names(self) -> Sequence[str]:
        """Paths as written in the file."""
        return self.records.names

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) label of each row, -1 where unknown."""
        return self.records.labels

    @property
    def targets(self) -> NDArray[np.int8] | None:
        """(N, classes) of a list with several labels per row: 1 present, 0 absent, -1 not counted; else None."""
        if self.records[0].label_set is None:  # in all rows or in none
            return None
        sets = [parse_labels(record.label_set or "") for record in self.records]
        num_classes = len(self.classes) or 1 + max(max(labels, default=-1) for labels in sets)
        targets = np.zeros((len(sets), num_classes), np.int8)
        for row, labels in zip(targets, sets, strict=True):
            row[list(labels)] = list(labels.values())
        return targets

    @property
    def is_test_set(self) -> bool:
        """Whether it is a file of videos with labels: numbers of a part of these videos would be of another test."""
        several = self.records[0].label_set is not None  # in all rows or in none
        has_labels = several or bool(self.columns) or bool((self.labels >= 0).any())
        return has_labels and self.path.suffix.lower() == ".csv"

    @property
    def columns(self) -> dict[str, NDArray[np.float64]]:
        """(N,) numbers of the columns that an app reads, NaN where missing."""
        return self.records.columns

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all columns and `joined`; `identify` describes the files themselves."""
        digest = hashlib.sha256()
        optional: tuple[list[str], ...] = ([], [], [], [])  # lines of the columns that most lists do not have
        separator = ""
        for n, row in enumerate(map(self.records.row, range(len(self.records)))):
            digest.update(f"{separator}{row.path}\t{row.label}\t{row.start}\t{row.end}".encode())
            separator = "\n"
            if row.fps is not None:
                optional[0].append(f"\nfps\t{n}\t{row.fps}")
            if row.label_set is not None:
                optional[1].append(f"\nlabels\t{n}\t{row.label_set}")
            optional[2].extend(f"\n{name}\t{n}\t{number}" for name, number in row.columns.items())
            optional[2].extend([f"\ngroup\t{n}\t{row.group}"] * (row.group is not None))
            if row.mask is not None:
                root = self.records.root_of(n)
                optional[3].append(f"\n{os.path.relpath(full_path(root, row.mask), root)}")
        for line in (*chain(*optional), *(f"\nlist\t{part.records}\t{part.samples}" for part in self.joined)):
            digest.update(line.encode())
        return digest.hexdigest()

    def rows(self, numbers: Iterable[int]) -> "VideoList":
        """Select rows of the list."""
        records = Records(self.root)
        for n in numbers:
            records.append(self.records.row(n), self.records.root_of(n))
        return replace(self, records=records, joined=())

    def labelled_rows(self) -> "VideoList":
        """Select the rows that have labels; all, if none has, or each has several."""
        known = np.flatnonzero(self.labels >= 0).tolist()
        return self.rows(known) if 0 < len(known) < len(self) and self.targets is None else self

    def relabelled(self, labels: Iterable[int], classes: Iterable[str], source: str | Path) -> "VideoList":
        """Return the list with other labels (N,), -1 where unknown, and the names of their classes."""
        records = Records(self.root)
        for n, label in enumerate(labels):
            records.append(replace(self.records.row(n), label=label, label_set=None), self.records.root_of(n))
        return replace(self, records=records, classes=(*classes,), label_source=source)

    def class_name(self, label: int) -> str:
        """Name of a class; its number without classes.txt, `?` for -1."""
        if label < 0:
            return "?"
        return self.classes[label] if self.classes else str(label)


def parse_labels(text: str) -> dict[int, int]:
    """Parse `3 7 12?`: classes 3 and 7 are present (1), 12 is not counted (-1). Anything else is a ValueError."""
    labels = {}
    for word in text.split():
        number = parse_whole_number(word.removesuffix("?"))
        if number < 0 or number in labels:
            raise ValueError(f"labels {text!r}: {number} is negative or given twice")
        labels[number] = -1 if word.endswith("?") else 1
    return labels


def read_list(path: str | Path, root: str | Path | None = None, allow_external: bool = False) -> VideoList:
    """Read a CSV list `path[,label or labels][,start][,end][,fps][,mask][,group]`, and `classes.txt` beside it.

    Projects add columns of numbers, which are kept as they are.

    Paths are relative to `root`, by default the folder in `root.txt`, else that of the list; `allow_external` accepts
    absolute paths and paths that leave it. A DataError has `file:line`, the value and the rule of the first wrong row.
    """
    path = Path(path)
    root = root_beside(path) if root is None else Path(in_home(root))
    classes = lines_beside(path, "classes.txt")
    _check_names(path.parent / "classes.txt", classes)
    rows = read_rows(path, "vidssl prepare writes lists")
    line, header = next(rows, (1, []))
    columns = [column.strip() for column in header]
    known, both = {*columns} <= {*COLUMNS, *APPS["column"]}, {"label", "labels"} <= {*columns}
    if both or "path" not in columns or not known or len({*columns}) < len(columns):
        text = ",".join(columns)[:200]
        raise DataError(f"{path}:{line}: header {text!r} is not {_HEADER}; {_OTHER_LISTS}")
    rule, records = PathRule(root, allow_external), Records(root)
    lines, keys = array("q"), array("q")
    for line, row in rows:
        try:
            record = _parse_row(columns, row, rule, len(classes))
        except ValueError as error:
            raise DataError(f"{path}:{line}: {error}") from None
        records.append(record)
        lines.append(line)
        keys.append(hash(row_key(root, record)))
    if not lines:
        raise DataError(f"list {path} has no rows")
    _check_duplicates(path, lines, np.asarray(keys), records)
    return VideoList(path, records, classes)


def join_lists(lists: Sequence[VideoList], weights: Sequence[float]) -> VideoList:
    """Make one list of several, of which an epoch uses each row as often as the weight of its list, up to rounding.

    Lists of different classes, or of which some have one label per row and some several, lose labels. `path` is for
    messages. A DataError names a list without masks, if others have masks.
    """
    if len(lists) == 1 and weights[0] == 1:
        return lists[0]
    without = [videos.path for videos in lists if videos.records[0].mask is None]
    if 0 < len(without) < len(lists):
        raise DataError(f"{without[0]} has no masks, another list has: train on lists with masks, or on lists without")
    several = {videos.records[0].label_set is not None for videos in lists}
    same_classes = len({videos.classes for videos in lists}) == 1 and len(several) == 1
    records = Records(lists[0].root)
    for videos in lists:
        for row in map(videos.records.row, range(len(videos))):
            records.append(row if same_classes else replace(row, label=-1, label_set=None), videos.root)
    lengths = [len(videos) for videos in lists]
    parts = (ListPart(n, max(1, round(weight * n))) for n, weight in zip(lengths, weights, strict=True))
    path = Path(" and ".join(str(videos.path) for videos in lists))
    return VideoList(path, records, lists[0].classes if same_classes else (), tuple(parts))


def lines_beside(path: Path, name: str) -> tuple[str, ...]:
    """Lines of a file beside a list; none without the file."""
    file = path.parent / name
    if not os.path.lexists(file):
        return ()
    if not os.path.isfile(file):  # noqa: PTH113 - a loop of links is no file; a pipe would wait for a writer
        raise DataError(f"{file} is not a file: remove it")
    text = read_text(file, "delete it").rstrip("\r\n")
    if not text.strip():
        raise DataError(f"{file} is empty: write it again, or delete it")
    return tuple(text.split("\n"))


def root_beside(path: Path) -> Path:
    """The folder that the paths of a list are relative to: that in `root.txt`, else that of the list."""
    lines = lines_beside(path, "root.txt")
    if len(lines) > 1 or not all(map(str.strip, lines)):
        raise DataError(f"{path.parent / 'root.txt'} has {len(lines)} lines: it is one line, the folder of the videos")
    return path.parent.joinpath(*map(in_home, lines))  # a relative one counts from there


def _check_names(path: Path, classes: Sequence[str]) -> None:
    numbers: dict[str, int] = {}
    for number, name in enumerate(classes):
        if not name.strip():
            raise DataError(f"{path}: class {number} has no name: line n names class n, from 0")
        if numbers.setdefault(name, number) != number:
            raise DataError(f"{path}: classes {numbers[name]} and {number} are both {name!r}: rename one of them")


def _parse_row(columns: Sequence[str], row: Sequence[str], rule: PathRule, num_classes: int) -> VideoRecord:
    """Convert a row to a record with the paths of the list; ValueError if it breaks a rule."""
    if len(row) != len(columns):
        raise ValueError(f"{len(row)} fields, the header has {len(columns)}; quote names with commas")
    fields = dict(zip(columns, row, strict=True))
    rule.check(fields["path"], "path")
    if "mask" in fields:  # a list has masks in all rows or in none
        rule.check(fields["mask"], "mask")
    try:
        label = parse_whole_number(fields.get("label", "-1"))
        several = parse_labels(fields["labels"]) if "labels" in fields else {}
    except ValueError as error:
        remedy = "for names of classes give the folder of the videos, and labels=FILE"
        raise ValueError(f"{error}: labels are whole numbers, -1 is unknown; {remedy}") from None
    try:
        start, end, fps = (decimal_number(fields[name]) if fields.get(name) else None for name in _NUMBERS)
        added = {name: decimal_number(fields[name]) for name in APPS["column"] if fields.get(name)}
    except ValueError as error:
        raise ValueError(f"{error}: {', '.join((*_NUMBERS, *APPS['column']))} are numbers") from None
    limit = num_classes or _MAX_CLASSES
    for number in (label, *several):
        if not -1 <= number < limit:
            raise ValueError(f"label {number} is out of range: classes are 0 to {limit - 1}, -1 is unknown")
    if not all(number is None or 0 <= number < float("inf") for number in (start, end, fps)):
        raise ValueError(f"start {start}, end {end} and fps {fps} must be finite and 0 or more")
    if not all(map(math.isfinite, added.values())):
        raise ValueError(f"{' and '.join(f'{name} {number}' for name, number in added.items())} must be finite")
    mask, labels, group = (fields.get(name) for name in ("mask", "labels", "group"))
    return VideoRecord(fields["path"], label, start, end, fps, mask, labels, added, group or None)


def row_key(root: Path, record: VideoRecord) -> tuple[Any, ...]:
    """Key that is unique in a list: the normalised path, the span, the frame rate and the mask."""
    mask = None if record.mask is None else full_path(root, record.mask)
    path = full_path(root, record.path)
    if ".." in record.path and ".." in record.path.split("/"):  # above the target of a link, not beside the link
        folder, name = os.path.split(path)
        path = full_path(root, os.path.relpath(f"{os.path.realpath(folder)}/{name}", os.path.realpath(root)))
    return path, record.start or 0.0, record.end, record.fps, mask


def _check_duplicates(path: Path, lines: Sequence[int], keys: NDArray[np.int64], records: Records) -> None:
    """Check that no row repeats an earlier one; `keys` are hashes, so that a million rows need no dict."""
    _, group, size = np.unique(keys, return_inverse=True, return_counts=True)
    first: dict[tuple[Any, ...], int] = {}
    for row in np.flatnonzero(size[group] > 1).tolist():
        record = records[row]
        earlier = first.setdefault(row_key(records.roots[0], record), row)
        if earlier != row:
            labels = f"label {record.label}, is also in line {lines[earlier]}, label {records[earlier].label}"
            repeated = f"{path}:{lines[row]}: {records.names[row]!r}, {labels}"
            raise DataError(f"{repeated}: delete one; two kinds of labels are two lists")


class Subset(Settings):
    """A class-balanced subset: the same fraction of each class, or the same number of videos."""

    fraction: float | None = Field(default=None, gt=0, le=1)  # of each class, at least one video
    per_class: int | None = Field(default=None, ge=1)  # videos of each class; exactly one of the two
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_size(self) -> "Subset":
        if (self.fraction is None) == (self.per_class is None):
            raise ValueError("set exactly one of fraction and per_class")
        return self


def choose_subset(videos: VideoList, subset: Subset) -> VideoList:
    """Draw a class-balanced subset of a list; larger subsets of the same seed include the smaller ones.

    Raises:
        DataError: The list has no labels, or a class has too few videos.
    """
    rows = rows_by(videos.labels.tolist())
    if -1 in rows:
        raise DataError(f"a subset of {videos.path} is drawn by class, and {len(rows[-1])} videos have no label")
    drawn_rows: list[int] = []
    for label, members in rows.items():
        count = subset.per_class or max(1, int((subset.fraction or 0.0) * len(members) + 0.5))
        if count > len(members):
            counts = f"{len(members)} videos of class {videos.class_name(label)!r}, the subset needs {count}"
            raise DataError(f"{videos.path} has {counts}: lower data.subset.per_class")
        drawn_rows += generator(subset.seed, label).permutation(members)[:count].tolist()
    return videos.rows(sorted(drawn_rows))


def rows_by(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Return the numbers of the rows of each key, ascending; there is a key for each row."""
    rows: dict[Key, list[int]] = {}
    for n, key in enumerate(keys):
        rows.setdefault(key, []).append(n)
    return rows
