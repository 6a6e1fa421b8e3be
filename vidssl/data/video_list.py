"""Video lists: the CSV files that describe every data set."""

import csv
import hashlib
import io
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.atomic import replacing
from vidssl.config import Settings
from vidssl.data.column_store import Records, take
from vidssl.data.list_paths import PathRule
from vidssl.data.rows import COLUMNS, check_duplicates, check_header, parse_row, read_rows, row_key
from vidssl.errors import DataError
from vidssl.randomness import generator
from vidssl.types import VideoRecord


@dataclass(frozen=True)
class VideoList:
    """A list: records with full paths, and the names as written in the file."""

    path: Path
    root: Path  # the folder that the names are relative to
    names: Sequence[str]
    records: Sequence[VideoRecord]
    classes: tuple[str, ...]  # name of class n; empty without classes.txt

    @property
    def fingerprint(self) -> str:
        """Hash of names, labels, spans, frame rates and masks; `identify` describes the files themselves."""
        rows = [f"{n}\t{r.label}\t{r.start}\t{r.end}" for n, r in zip(self.names, self.records, strict=True)]
        rows += [f"fps\t{n}\t{r.fps}" for n, r in enumerate(self.records) if r.fps is not None]
        rows += [os.path.relpath(r.mask, self.root) for r in self.records if r.mask is not None]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) label of each row, -1 where unknown."""
        if isinstance(self.records, Records):
            return self.records.labels
        return np.array([record.label for record in self.records], np.int64)

    def rows(self, chosen: Sequence[int]) -> "VideoList":
        """Select rows of the list."""
        return replace(self, names=take(self.names, chosen), records=take(self.records, chosen))

    def class_name(self, label: int) -> str:
        """Name of a class; its number without classes.txt, `?` for -1."""
        if label < 0:
            return "?"
        return self.classes[label] if self.classes else str(label)


class Subset(Settings):
    """A class-balanced subset: the same fraction of each class, or the same number of videos."""

    share: float | None = Field(default=None, gt=0, le=1)  # fraction of each class, at least one video
    per_class: int | None = Field(default=None, ge=1)  # videos of each class; exactly one of the two
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_size(self) -> "Subset":
        if (self.share is None) == (self.per_class is None):
            raise ValueError("give exactly one of share and per_class")
        return self


def choose(videos: VideoList, subset: Subset) -> VideoList:
    """Draw a class-balanced subset of a list; larger subsets of the same seed include the smaller ones.

    Raises:
        DataError: The list has no labels, or a class has too few videos.
    """
    rows: dict[int, list[int]] = {}
    for n, label in enumerate(videos.labels.tolist()):
        rows.setdefault(label, []).append(n)
    if -1 in rows:
        raise DataError(f"a subset of {videos.path} is drawn by class, and {len(rows[-1])} videos have no label")
    chosen = []
    for label, members in rows.items():
        count = subset.per_class or max(1, int((subset.share or 0.0) * len(members) + 0.5))
        if count > len(members):
            raise DataError(
                f"{videos.path} has {len(members)} videos of class {videos.class_name(label)!r}, the subset needs "
                f"{count}: lower data.subset.per_class"
            )
        chosen += generator(subset.seed, label).permutation(members)[:count].tolist()
    return videos.rows(sorted(chosen))


# Reading -----------------------------------------------------------------------------------------------------


def read_list(path: str | Path, root: str | Path | None = None, allow_external: bool = False) -> VideoList:
    """Read a list: CSV with the header `path[,label][,start][,end][,fps][,mask]`.

    `classes.txt` and `root.txt` are read from the same folder. Paths of videos and masks are relative to `root`, else
    to the folder in root.txt, else to the folder of the list.

    Args:
        path: The list.
        root: Folder that overrides root.txt.
        allow_external: Accept absolute paths and paths that leave the root.

    Raises:
        DataError: `file:line`, the value and the rule, for the first row that breaks one.
    """
    path = Path(path)
    beside = path.parent / "root.txt"
    if root is None:
        root = read_text(beside, "give another root").rstrip("\r\n") if beside.exists() else path.parent
        if not str(root):
            raise DataError(f"{beside} is empty: write the folder of the videos into it, or delete it")
    root = Path(root)
    classes = _read_classes(path.parent / "classes.txt")
    rows = read_rows(path)
    line, header = next(rows, (1, []))
    columns = check_header(f"{path}:{line}", header)
    rule = PathRule(root, allow_external)
    records = Records(root)
    lines, keys = array("q"), array("q")
    for line, row in rows:
        place = f"{path}:{line}"
        if len(row) != len(columns):
            raise DataError(f"{place}: {len(row)} fields, the header has {len(columns)}; quote names with commas")
        record = parse_row(dict(zip(columns, row, strict=True)), place, rule, len(classes))
        records.append(record)
        lines.append(line)
        keys.append(hash(row_key(root, record)))
    if not lines:
        raise DataError(f"list {path} has no rows")
    check_duplicates(path, np.array(lines), np.array(keys), records)
    return VideoList(path, root, records.names, records, classes)


def _read_classes(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    text = read_text(path, "delete it").rstrip("\r\n")
    if not text:
        raise DataError(f"{path} is empty: write the name of class n into line n, from 0, or delete it")
    return tuple(text.split("\n"))


def read_text(path: Path, remedy: str) -> str:
    """Read a text file, UTF-8 with or without a byte-order mark.

    Raises:
        DataError: It cannot be read, with the remedy; or it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"cannot read list {path}: {error.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        raise DataError(f"list {path} is not UTF-8: save it as UTF-8") from None


# Writing -----------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A row to write; its paths are relative to the root of the list."""

    path: str
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds
    end: float | None = None  # seconds
    fps: float | None = None  # frames per second, of a folder of images
    mask: str | None = None  # a PNG


def write_lists(
    out: Path, root: Path, lists: Mapping[str, Iterable[tuple[str, int] | Row]], classes: Sequence[str]
) -> None:
    """Write `NAME.csv` for each list, `classes.txt` if there are classes, and `root.txt`: all of them or none.

    Args:
        out: Folder for the files; created if missing.
        root: Folder that the paths are relative to.
        lists: The rows of each list; columns without a value are left out.
        classes: Name of class n.

    Raises:
        DataError: They cannot be written; existing files are unchanged.
    """
    texts = {f"{name}.csv": _csv([Row(*row) for row in rows]) for name, rows in lists.items()}
    _write_all(out, {**texts, **_beside(root, classes)})


def copy_list(videos: VideoList, out: Path, root: Path, names: Sequence[str | None]) -> Path:
    """Write a list again under its name, with all its columns, `classes.txt` and `root.txt`.

    Args:
        videos: The list.
        out: Folder for the files; created if missing.
        root: Folder that the new names are relative to.
        names: New name of each row; None leaves the row out.

    Returns:
        The new list.

    Raises:
        DataError: From `place_of_copy`, or the files cannot be written.
    """
    path = place_of_copy(videos, out, root)
    rows = (row for _, row in read_rows(videos.path))
    header = next(rows)
    column = [name.strip() for name in header].index("path")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    for row, new in zip(rows, names, strict=True):
        if new is not None:
            writer.writerow([*row[:column], new, *row[column + 1 :]])
    _write_all(out, {path.name: text.getvalue(), **_beside(root, videos.classes)})
    return path


def place_of_copy(videos: VideoList, out: Path, root: Path) -> Path:
    """Return the path that `copy_list` writes to; call it before long work.

    Raises:
        DataError: The copy would overwrite the list, or join lists with other classes or another root; or the list has
            masks, which would not be copied.
    """
    if root.resolve() != videos.root.resolve() and any(record.mask for record in videos.records):
        raise DataError(f"masks are not copied: {videos.path} has some, use a list without masks")
    path = out / videos.path.name
    if path.exists() and path.samefile(videos.path):
        raise DataError(f"{path} is the list that is read: choose another folder to write to")
    check_beside(out, root, videos.classes)
    return path


def check_beside(out: Path, root: Path, classes: Sequence[str]) -> None:
    """Check that `classes.txt` and `root.txt` of a folder fit a list that is to be written there.

    Raises:
        DataError: They belong to other lists.
    """
    for name, text in _beside(root, classes).items():
        there = out / name
        if there.exists() and read_text(there, "delete it or choose another folder") != text:
            raise DataError(f"{there} belongs to other lists: choose another folder to write to")
    if not classes and (out / "classes.txt").exists():
        raise DataError(f"{out} holds a classes.txt, the list has none: choose another folder to write to")


def _beside(root: Path, classes: Sequence[str]) -> dict[str, str]:
    """The files beside a list and their content."""
    named = {"classes.txt": "".join(f"{name}\n" for name in classes)} if classes else {}
    return {**named, "root.txt": f"{root.resolve()}\n"}


def _csv(rows: Sequence[Row]) -> str:
    if any(row.mask for row in rows) and not all(row.mask for row in rows):
        raise ValueError("some rows have a mask and some have none: a list has masks in all rows or in none")
    missing = Row("")
    used = [n for n in range(len(COLUMNS)) if n == 0 or any(row[n] != missing[n] for row in rows)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS[n] for n in used)
    writer.writerows([row[n] for n in used] for row in rows)
    return text.getvalue()


def _write_all(out: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder: all of them or none."""
    folders = [name for name in texts if (out / name).is_dir()]
    if folders:
        raise DataError(f"cannot write list {out / folders[0]}: it is a folder; choose another folder for the lists")
    try:
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as written:  # the files are renamed when all of them are on disk
            for name, text in texts.items():
                file = written.enter_context(replacing(out / name))
                file.write(text.encode("utf-8"))
                file.flush()
    except OSError as error:
        raise DataError(f"cannot write lists to {out}: {error.strerror}") from None
