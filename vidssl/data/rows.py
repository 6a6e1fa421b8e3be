"""Rows of a list file: CSV parsing, and the rules for the header and for each row."""

import csv
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vidssl.data.column_store import Records
from vidssl.data.list_paths import PathRule, full_path
from vidssl.errors import DataError
from vidssl.types import VideoRecord

Number = TypeVar("Number", int, float)
RowKey = tuple[str, float, float | None, float | None, str | None]
COLUMNS = ("path", "label", "start", "end", "fps", "mask")
_HEADER = "path[,label][,start][,end][,fps][,mask]"
_MAX_LABEL = 2**63  # int64, as in tensors


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a list that are not blank, header included, with the line number that each ends in.

    Raises:
        DataError: The file cannot be read, or is not CSV in UTF-8.
    """
    line = 0
    try:
        # Universal newlines or splitlines would also split at characters that names may contain.
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_without_nul(path, file))
            for row in rows:
                line = rows.line_num
                if len(row) > 1 or (row and row[0].strip()):
                    yield line, row
    except csv.Error as error:
        raise DataError(f"{path}:{line + 1}: not CSV: {error}; is a quote left open?") from None
    except OSError as error:
        raise DataError(f"cannot read list {path}: {error.strerror}; vidssl prepare writes lists") from None
    except UnicodeDecodeError:
        raise DataError(f"list {path} is not UTF-8: save it as UTF-8") from None


def _without_nul(path: Path, file: Iterable[str]) -> Iterator[str]:
    for line in file:
        if "\0" in line:
            raise DataError(f"list {path} has a NUL byte: it is not a text file")
        yield line


def check_header(place: str, header: Sequence[str]) -> list[str]:
    """Return the names of the columns.

    Raises:
        DataError: They are not those of a list.
    """
    columns = [column.strip() for column in header]
    known = all(column in COLUMNS for column in columns)
    if "path" in columns and known and len({*columns}) == len(columns):
        return columns
    text = ",".join(columns)
    other = "path" not in columns and re.search(r"\S[\s,;]+\d+\s*$", text)
    converter = "; vidssl prepare list converts the lists of SlowFast, pytorchvideo and mmaction2"
    raise DataError(f"{place}: header {text[:200]!r} is not {_HEADER}{converter if other else ''}")


def parse_row(row: Mapping[str, str], place: str, rule: PathRule, num_classes: int) -> VideoRecord:
    """Convert a row to a record, whose paths stay relative to the root.

    Raises:
        DataError: `place`, the value and the rule that it breaks.
    """
    rule.check(row["path"], "path", place)
    if "mask" in row:  # a list has masks in all rows or in none
        rule.check(row["mask"], "mask", place)
    label = _number(row["label"], int, "label", place) if "label" in row else -1
    if not -1 <= label < (num_classes or _MAX_LABEL):
        known = f"classes.txt has {num_classes} classes, from 0" if num_classes else "labels count from 0"
        raise DataError(f"{place}: label {label} is out of range; {known}; -1 is unknown")
    start, end, fps = (_number(row[c], float, c, place) if row.get(c) else None for c in COLUMNS[2:5])
    if any(number is not None and not 0 <= number < math.inf for number in (start, end, fps)):
        raise DataError(f"{place}: start {start}, end {end} and fps {fps} must be finite and 0 or more")
    try:
        return VideoRecord(row["path"], label, start, end, fps, row.get("mask"))
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def _number(text: str, kind: Callable[[str], Number], column: str, place: str) -> Number:
    try:
        return kind(text)
    except ValueError:
        whole = "a whole" if kind is int else "a"
        raise DataError(f"{place}: {column} {text[:60]!r} is not {whole} number") from None


def row_key(root: Path, record: VideoRecord) -> RowKey:
    """Key that is unique in a list: the normalised path, the span, the frame rate and the mask."""
    mask = None if record.mask is None else full_path(root, record.mask)
    return full_path(root, record.path), record.start or 0.0, record.end, record.fps, mask


def check_duplicates(path: Path, lines: NDArray[np.int64], keys: NDArray[np.int64], records: Records) -> None:
    """Check that no row repeats an earlier one; `keys` are hashes, so that a million rows need no dict.

    Raises:
        DataError: The lines of the first two that do.
    """
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    first: dict[RowKey, int] = {}
    for row in sorted({*order[1:][same].tolist(), *order[:-1][same].tolist()}):
        record = records[row]
        earlier = first.setdefault(row_key(records.root, record), row)
        if earlier == row:  # the first of them, or another row with the same hash
            continue
        place, there = f"{path}:{lines[row]}", lines[earlier]
        if record.label != records[earlier].label:
            raise DataError(
                f"{place}: {records.names[row]!r} has label {record.label}, and label {records[earlier].label} in line "
                f"{there}: delete one of the rows; two kinds of labels are two lists"
            )
        raise DataError(f"{place}: duplicate of line {there}: delete one")
