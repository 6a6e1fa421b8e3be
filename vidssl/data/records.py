"""Lists of videos: the CSV files that every data set is."""

import csv
import hashlib
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import Field, model_validator

from vidssl.config import Settings
from vidssl.errors import DataError
from vidssl.files import replacing
from vidssl.randomness import generator
from vidssl.types import VideoRecord

Number = TypeVar("Number", int, float)
_COLUMNS = ("path", "label", "start", "end", "fps", "mask")
_HEADER = "path[,label][,start][,end][,fps][,mask]"


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
        """Hash of names, labels, spans and masks: equal for the same data, wherever it lies."""
        rows = [f"{n}\t{r.label}\t{r.start}\t{r.end}" for n, r in zip(self.names, self.records, strict=True)]
        rows += [os.path.relpath(r.mask, self.root) for r in self.records if r.mask is not None]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def rows(self, chosen: Sequence[int]) -> "VideoList":
        """Take some rows of the list."""
        names, records = tuple(self.names[n] for n in chosen), tuple(self.records[n] for n in chosen)
        return replace(self, names=names, records=records)

    def class_name(self, label: int) -> str:
        """Name of a class; its number where there are no names, `?` where the label is unknown."""
        if label < 0:
            return "?"
        return self.classes[label] if self.classes else str(label)


class Subset(Settings):
    """A part of a list that has the same share of, or as many, videos of each class."""

    share: float | None = Field(default=None, gt=0, le=1)  # of each class, rounded, at least one video
    per_class: int | None = Field(default=None, ge=1)  # videos; exactly one of the two
    seed: int = Field(default=0, ge=0)  # decides which

    @model_validator(mode="after")
    def _one_size(self) -> "Subset":
        if (self.share is None) == (self.per_class is None):
            raise ValueError("give exactly one of share and per_class")
        return self


def choose(videos: VideoList, subset: Subset) -> VideoList:
    """Take a class-balanced part of a list; a larger one of the same seed holds the smaller ones.

    Raises:
        DataError: The list has no labels, or a class has fewer videos than are asked for.
    """
    rows: dict[int, list[int]] = {}
    for n, record in enumerate(videos.records):
        rows.setdefault(record.label, []).append(n)
    if -1 in rows:
        raise DataError(
            f"a subset of {videos.path} is drawn by class, and {len(rows[-1])} videos have no label"
        )
    chosen = []
    for label, members in rows.items():
        count = subset.per_class or max(1, int((subset.share or 0.0) * len(members) + 0.5))
        if count > len(members):
            raise DataError(
                f"{videos.path} has {len(members)} videos of class {videos.class_name(label)!r}, the subset asks for "
                f"{count}: lower data.subset.per_class"
            )
        chosen += generator(subset.seed, label).permutation(members)[:count].tolist()
    return videos.rows(sorted(chosen))


def read_list(path: str | Path, root: str | Path | None = None, allow_external: bool = False) -> VideoList:
    """Read a list: CSV with the header `path[,label][,start][,end][,fps][,mask]`.

    `classes.txt` and `root.txt` lie beside it. Paths, of videos and of masks, are relative to `root`, else to the
    folder named in root.txt, else to the list's own folder.

    Args:
        path: The list.
        root: Folder that overrides root.txt.
        allow_external: Accept absolute paths and paths that leave the root.

    Raises:
        DataError: `file:line`, the value and the rule, for the first row that breaks one.
    """
    path = Path(path)
    text = read_text(path, "the scripts in datasets/ write lists")
    if "\0" in text:
        raise DataError(f"list {path} holds a NUL byte: it is no text file")
    beside = path.parent / "root.txt"
    if root is None:
        root = read_text(beside, "name the root otherwise").rstrip("\r\n") if beside.exists() else path.parent
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
        raise DataError(f"{path}:1: header {','.join(header)!r} is not {_HEADER}")
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


class Row(NamedTuple):
    """One row of a list that is written; the path is relative to the list's root."""

    path: str
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds
    end: float | None = None  # seconds
    fps: float | None = None  # frames per second, of a folder of images
    mask: str | None = None  # a PNG, relative to the list's root


def write_lists(
    out: Path, root: Path, lists: Mapping[str, Iterable[tuple[str, int] | Row]], classes: Sequence[str]
) -> None:
    """Write `NAME.csv` for each list, `classes.txt` where there are classes, and `root.txt`: all of them or none.

    Args:
        out: Folder for the files, made where it is missing.
        root: Folder that the paths are relative to.
        lists: For each name the rows; a column that would say nothing in any of them is left out.
        classes: Name of class n.

    Raises:
        DataError: They cannot be written; the files of before are as they were.
    """
    texts = {f"{name}.csv": _csv([Row(*row) for row in rows]) for name, rows in lists.items()}
    texts.update(_beside(root, classes))
    folders = [name for name in texts if (out / name).is_dir()]
    if folders:
        raise DataError(
            f"cannot write list {out / folders[0]}: it is a folder; choose another folder for the lists"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as written:  # each gets its name when the last one is on disk
            for name, text in texts.items():
                file = written.enter_context(replacing(out / name))
                file.write(text.encode("utf-8"))
                file.flush()
    except OSError as error:
        raise DataError(f"cannot write lists to {out}: {error.strerror}") from None


def _csv(rows: Sequence[Row]) -> str:
    said = {
        "path": True,
        "label": any(row.label >= 0 for row in rows),
        "start": any(row.start is not None for row in rows),
        "end": any(row.end is not None for row in rows),
        "fps": any(row.fps is not None for row in rows),
        "mask": any(row.mask is not None for row in rows),
    }
    if said["mask"] and not all(row.mask for row in rows):
        raise ValueError("some rows have a mask and some have none: a list has masks or has none")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(column for column in _COLUMNS if said[column])
    writer.writerows([getattr(row, column) for column in _COLUMNS if said[column]] for row in rows)
    return text.getvalue()


def place_of_copy(videos: VideoList, out: Path, root: Path) -> Path:
    """Where `copy_list` writes to; to be asked before long work.

    Raises:
        DataError: It would be written over the list itself, or beside lists with other classes or another root; or
            the list has masks, which would be left behind.
    """
    if root.resolve() != videos.root.resolve() and any(record.mask for record in videos.records):
        raise DataError(f"the masks of {videos.path} do not follow to {root}: give a list without them")
    path = out / videos.path.name
    if path.exists() and path.samefile(videos.path):
        raise DataError(f"{path} is the list that is read: choose another folder to write to")
    check_beside(out, root, videos.classes)
    return path


def check_beside(out: Path, root: Path, classes: Sequence[str]) -> None:
    """Refuse a folder whose `classes.txt` or `root.txt` is not that of a list that is to be written there.

    Raises:
        DataError: It holds other ones.
    """
    for name, text in _beside(root, classes).items():
        if (out / name).exists() and (out / name).read_text(encoding="utf-8") != text:
            raise DataError(f"{out / name} belongs to other lists: choose another folder to write to")
    if not classes and (out / "classes.txt").exists():
        raise DataError(f"{out} holds a classes.txt, the list has none: choose another folder to write to")


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
    return tuple(read_text(path, "delete it").rstrip("\r\n").split("\n")) if path.exists() else ()


def read_text(path: Path, remedy: str) -> str:
    """Read a list, or what belongs to one, whole.

    Args:
        path: The file, UTF-8 with or without a byte-order mark.
        remedy: What the error says to do where it cannot be read.

    Raises:
        DataError: It cannot be read or is not UTF-8.
    """
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
    full = _inside(row["path"], "path", root, place, allow_external)
    # A list has masks or has none: no row of it may lack one.
    mask = _inside(row["mask"], "mask", root, place, allow_external) if "mask" in row else None
    label = _number(row.get("label", "-1"), int, "label", place)  # without the column all are unknown
    if label < -1 or (num_classes and label >= num_classes):
        known = f"classes.txt has {num_classes} classes, from 0" if num_classes else "labels count from 0"
        raise DataError(f"{place}: label {label} is out of range; {known}; -1 is unknown")
    start, end, fps = (_number(row[c], float, c, place) if row.get(c) else None for c in _COLUMNS[2:5])
    if any(number is not None and not 0 <= number < math.inf for number in (start, end, fps)):
        raise DataError(f"{place}: start {start}, end {end}, fps {fps}: seconds of the video are 0 or more")
    try:
        return VideoRecord(full, label, start, end, fps, mask)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None


def _inside(name: str, column: str, root: Path, place: str, allow_external: bool) -> str:
    """The full path of a file that a list names, if it may name it."""
    if not name.strip():
        raise DataError(f"{place}: the {column} is empty")
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
    return str(full)


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
