"""Lists of videos: the CSV files that every data set is."""

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vidssl.errors import DataError
from vidssl.types import VideoRecord

Number = TypeVar("Number", int, float)
_COLUMNS = ("path", "label", "start", "end", "fps")


@dataclass(frozen=True)
class VideoList:
    """A list that was read: records with full paths, and the names that the list itself uses."""

    path: Path
    root: Path  # the folder that the names are relative to
    names: tuple[str, ...]  # as the list writes them
    records: tuple[VideoRecord, ...]
    classes: tuple[str, ...]  # name of class n; empty where the list has no classes.txt

    @property
    def fingerprint(self) -> str:
        """Hash of names, labels and spans: equal for the same data, wherever it lies."""
        rows = [f"{n}\t{r.label}\t{r.start}\t{r.end}" for n, r in zip(self.names, self.records, strict=True)]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def class_name(self, label: int) -> str:
        """Name of a class; its number where there are no names, `?` where the label is unknown."""
        if label < 0:
            return "?"
        return self.classes[label] if self.classes else str(label)


def read_list(path: str | Path, root: str | Path | None = None, allow_external: bool = False) -> VideoList:
    """Read a list: CSV with the header `path[,label][,start][,end][,fps]`, `classes.txt` and `root.txt` beside it.

    Paths are relative to `root`, else to the folder named in root.txt, else to the list's own folder.

    Args:
        path: The list.
        root: Folder that overrides root.txt.
        allow_external: Accept absolute paths and paths that leave the root.

    Raises:
        DataError: `file:line`, the value and the rule, for the first row that breaks one.
    """
    path = Path(path)
    text = _text(path, "the scripts in datasets/ write lists")
    if "\0" in text:
        raise DataError(f"list {path} holds a NUL byte: it is no text file")
    beside = path.parent / "root.txt"
    if root is None:
        root = _text(beside, "name the root otherwise").rstrip("\r\n") if beside.exists() else path.parent
        if not str(root):
            raise DataError(f"{beside} is empty: write the folder of the videos into it, or delete it")
    root = Path(root)
    classes = _read_classes(path.parent / "classes.txt")
    rows = _rows(path, text)
    header = [column.strip() for column in next(rows, (0, []))[1]]
    if (
        "path" not in header
        or any(column not in _COLUMNS for column in header)
        or len({*header}) != len(header)
    ):
        raise DataError(f"{path}:1: header {','.join(header)!r} is not path[,label][,start][,end][,fps]")
    names: list[str] = []
    records: list[VideoRecord] = []
    seen: dict[tuple[str, ...], int] = {}
    for line, row in rows:
        place = f"{path}:{line}"
        if not row:
            continue
        if len(row) != len(header):
            raise DataError(
                f"{place}: {len(row)} fields, the header has {len(header)}; quote names with commas"
            )
        if tuple(row) in seen:
            raise DataError(f"{place}: the same row stands in line {seen[tuple(row)]}; delete one")
        seen[tuple(row)] = line
        names.append(row[header.index("path")])
        records.append(
            _record(dict(zip(header, row, strict=True)), root, len(classes), place, allow_external)
        )
    if not records:
        raise DataError(f"list {path} has no rows: there is nothing to read")
    return VideoList(path, root, tuple(names), tuple(records), classes)


def write_lists(
    out: Path, root: Path, lists: Mapping[str, Iterable[tuple[str, int]]], classes: Sequence[str]
) -> None:
    """Write `NAME.csv` for each list, `classes.txt` where there are classes, and `root.txt`.

    Args:
        out: Folder for the files, made where it is missing.
        root: Folder that the paths are relative to.
        lists: For each name the rows (path, label); where all labels are -1 the column is left out.
        classes: Name of class n.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, rows in lists.items():
        kept = list(rows)
        labelled = any(label >= 0 for _, label in kept)
        with open(out / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["path", "label"] if labelled else ["path"])
            writer.writerows([video, label] if labelled else [video] for video, label in kept)
    for name, text in _beside(root, classes).items():
        (out / name).write_text(text, encoding="utf-8")


def place_of_copy(videos: VideoList, out: Path, root: Path) -> Path:
    """Where `copy_list` writes to; to be asked before long work.

    Raises:
        DataError: It would be written over the list itself, or beside lists with other classes or another root.
    """
    path = out / videos.path.name
    if path.exists() and path.samefile(videos.path):
        raise DataError(f"{path} is the list that is read: choose another folder to write to")
    for name, text in _beside(root, videos.classes).items():
        if (out / name).exists() and (out / name).read_text(encoding="utf-8") != text:
            raise DataError(f"{out / name} belongs to other lists: choose another folder to write to")
    if not videos.classes and (out / "classes.txt").exists():
        raise DataError(f"{out} holds a classes.txt, the list has none: choose another folder to write to")
    return path


def copy_list(videos: VideoList, out: Path, root: Path, names: Sequence[str | None]) -> Path:
    """Write a list again, with all its columns, and `classes.txt` and `root.txt` beside it.

    Args:
        videos: The list.
        out: Folder for the files, made where it is missing.
        root: Folder that the new names are relative to.
        names: New name of each row; None leaves the row out.

    Returns:
        The list that was written; it is called as the old one.

    Raises:
        DataError: As `place_of_copy` says, or it cannot be written.
    """
    path = place_of_copy(videos, out, root)
    rows = [row for _, row in _rows(videos.path, videos.path.read_text(encoding="utf-8-sig")) if row]
    column = [name.strip() for name in rows[0]].index("path")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in _beside(root, videos.classes).items():
            (out / name).write_text(text, encoding="utf-8")
        with open(path, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(rows[0])
            for row, new in zip(rows[1:], names, strict=True):
                if new is not None:
                    writer.writerow([*row[:column], new, *row[column + 1 :]])
    except OSError as error:
        raise DataError(f"cannot write list {path}: {error.strerror}") from None
    return path


def _beside(root: Path, classes: Sequence[str]) -> dict[str, str]:
    """The files that lie beside a list, and what is in them."""
    named = {"classes.txt": "".join(f"{name}\n" for name in classes)} if classes else {}
    return {**named, "root.txt": f"{root.resolve()}\n"}


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Give the rows of a CSV text with the number of the line that each ends in."""
    rows = csv.reader(io.StringIO(text, newline=""))  # not splitlines: names may hold what it splits at
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not CSV: {error}; is a quote left open?") from None


def _read_classes(path: Path) -> tuple[str, ...]:
    return tuple(_text(path, "delete it").rstrip("\r\n").split("\n")) if path.exists() else ()


def _text(path: Path, remedy: str) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")  # -sig: a byte-order mark is no part of the text
    except OSError as error:
        raise DataError(f"cannot read list {path}: {error.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        raise DataError(f"list {path} is not UTF-8: save it as UTF-8") from None
    return text


def _record(
    row: dict[str, str], root: Path, num_classes: int, place: str, allow_external: bool
) -> VideoRecord:
    name = row["path"]
    if not name.strip():
        raise DataError(f"{place}: the path is empty")
    scheme, colon, _ = name.split("/", 1)[0].partition(":")
    if "://" in name or (colon and (scheme in _PROTOCOLS or scheme.startswith("subfile,"))):
        raise DataError(f"{place}: {name!r} is an address, not a file; only files are read")
    full = root / name
    try:
        inside = allow_external or full.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError) as error:  # a loop of links
        raise DataError(f"{place}: {name[:60]!r} cannot be followed: {error}") from None
    if not inside:
        raise DataError(f"{place}: {name!r} leaves the root {root}; move the file or allow external paths")
    label = _number(row.get("label", "-1"), int, "label", place)  # without the column all are unknown
    if label < -1 or (num_classes and label >= num_classes):
        known = f"classes.txt has {num_classes} classes, from 0" if num_classes else "labels count from 0"
        raise DataError(f"{place}: label {label} is out of range; {known}; -1 is unknown")
    start, end, fps = (_number(row[c], float, c, place) if row.get(c) else None for c in _COLUMNS[2:])
    if any(number is not None and not 0 <= number < math.inf for number in (start, end, fps)):
        raise DataError(f"{place}: start {start}, end {end}, fps {fps}: seconds of the video are 0 or more")
    try:
        return VideoRecord(str(full), label, start, end, fps)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


# What FFmpeg would take for the name of a protocol, not of a file.
_PROTOCOLS = frozenset(
    [
        "async",
        "cache",
        "concat",
        "crypto",
        "data",
        "fd",
        "file",
        "ftp",
        "http",
        "https",
        "pipe",
        "rtmp",
        "rtp",
        "subfile",
        "tcp",
        "tls",
        "udp",
    ]
)


def _number(text: str, kind: type[Number], column: str, place: str) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise DataError(
            f"{place}: {column} {text[:60]!r} is not {'a whole' if kind is int else 'a'} number"
        ) from None
