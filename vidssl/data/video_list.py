"""Lists of videos: the CSV files that every data set is."""

import csv
import errno
import hashlib
import io
import math
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from vidssl.atomic import replacing
from vidssl.config import Settings
from vidssl.data.columns import Records, RecordsBuilder, Strings, full_path, take
from vidssl.errors import DataError
from vidssl.randomness import generator
from vidssl.types import VideoRecord

Number = TypeVar("Number", int, float)
RowKey = tuple[str, float, float | None, float | None, str | None]
_COLUMNS = ("path", "label", "start", "end", "fps", "mask")
_MAX_LABEL = 2**63  # int64, as in tensors
_HEADER = "path[,label][,start][,end][,fps][,mask]"


@dataclass(frozen=True)
class VideoList:
    """A list that was read: records with full paths, and the names that the list itself uses."""

    path: Path
    root: Path  # the folder that the names are relative to
    names: Sequence[str]  # as the list writes them
    records: Sequence[VideoRecord]
    classes: tuple[str, ...]  # name of class n; empty where the list has no classes.txt

    @property
    def fingerprint(self) -> str:
        """Hash of names, labels, spans, frame rates and masks; `identify` describes the files themselves."""
        rows = [f"{n}\t{r.label}\t{r.start}\t{r.end}" for n, r in zip(self.names, self.records, strict=True)]
        rows += [f"fps\t{n}\t{r.fps}" for n, r in enumerate(self.records) if r.fps is not None]
        rows += [os.path.relpath(r.mask, self.root) for r in self.records if r.mask is not None]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,) the label of each row, -1 where it is unknown."""
        if isinstance(self.records, Records):
            return self.records.labels
        return np.array([record.label for record in self.records], np.int64)

    def rows(self, chosen: Sequence[int]) -> "VideoList":
        """Take some rows of the list."""
        return replace(self, names=take(self.names, chosen), records=take(self.records, chosen))

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
    for n, label in enumerate(videos.labels.tolist()):
        rows.setdefault(label, []).append(n)
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
    beside = path.parent / "root.txt"
    if root is None:
        root = read_text(beside, "name the root otherwise").rstrip("\r\n") if beside.exists() else path.parent
        if not str(root):
            raise DataError(f"{beside} is empty: write the folder of the videos into it, or delete it")
    root = Path(root)
    classes = _read_classes(path.parent / "classes.txt")
    rows = _rows(path)
    line, header = next(rows, (1, []))
    columns = _columns(f"{path}:{line}", header)
    rule = _Rule(root, len(classes), allow_external)
    found = RecordsBuilder(root)
    lines, keys = array("q"), array("q")
    for line, row in rows:
        place = f"{path}:{line}"
        if len(row) != len(columns):
            raise DataError(
                f"{place}: {len(row)} fields, the header has {len(columns)}; quote names with commas"
            )
        record = rule.record(dict(zip(columns, row, strict=True)), place)
        found.add(record)
        lines.append(line)
        keys.append(hash(row_key(root, record)))
    if not lines:
        raise DataError(f"list {path} has no rows: there is nothing to read")
    names, records = found.build()
    _check_repeats(path, np.array(lines), np.array(keys), names, records)
    return VideoList(path, root, names, records, classes)


def _columns(place: str, header: Sequence[str]) -> list[str]:
    columns = [column.strip() for column in header]
    known = all(column in _COLUMNS for column in columns)
    if "path" in columns and known and len({*columns}) == len(columns):
        return columns
    text = ",".join(columns)
    other = "path" not in columns and re.search(r"\S[\s,;]+\d+\s*$", text)
    converter = "; datasets/prepare_list.py converts the lists of SlowFast, pytorchvideo and mmaction2"
    raise DataError(f"{place}: header {text[:200]!r} is not {_HEADER}{converter if other else ''}")


def row_key(root: Path, record: VideoRecord) -> RowKey:
    """Key that is unique in a list: the file, however its name is spelled, the span, the rate and the mask."""
    mask = None if record.mask is None else full_path(root, record.mask)
    return full_path(root, record.path), record.start or 0.0, record.end, record.fps, mask


def _check_repeats(
    path: Path, lines: NDArray[np.int64], keys: NDArray[np.int64], names: Strings, records: Records
) -> None:
    """Refuse a row that repeats an earlier one; `keys` are hashes, so that a million rows need no table of them."""
    order = np.argsort(keys, kind="stable")
    same = keys[order[1:]] == keys[order[:-1]]
    first: dict[RowKey, int] = {}
    for row in sorted({*order[1:][same].tolist(), *order[:-1][same].tolist()}):
        record = records[row]
        earlier = first.setdefault(row_key(records.root, record), row)
        if earlier == row:
            continue
        place, there = f"{path}:{lines[row]}", lines[earlier]
        if record.label != records[earlier].label:
            raise DataError(
                f"{place}: {names[row]!r} has label {record.label}, and label {records[earlier].label} in line "
                f"{there}: delete one of the rows; two kinds of labels are two lists"
            )
        raise DataError(f"{place}: duplicate of line {there}: delete one")


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
    _write_all(out, {**texts, **_beside(root, classes)})


def _write_all(out: Path, texts: Mapping[str, str]) -> None:
    """Write files into a folder: all of them or none."""
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
        there = out / name
        if there.exists() and read_text(there, "delete it or choose another folder") != text:
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
    rows = (row for _, row in _rows(videos.path))
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


def _beside(root: Path, classes: Sequence[str]) -> dict[str, str]:
    """The files that lie beside a list, and what is in them."""
    named = {"classes.txt": "".join(f"{name}\n" for name in classes)} if classes else {}
    return {**named, "root.txt": f"{root.resolve()}\n"}


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a list that are not blank, the header first, with the number of the line that each ends in."""
    line = 0
    try:
        # Universal newlines or splitlines would also split at what names may hold.
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_text_lines(path, file))
            for row in rows:
                line = rows.line_num
                if len(row) > 1 or (row and row[0].strip()):
                    yield line, row
    except csv.Error as error:
        raise DataError(f"{path}:{line + 1}: not CSV: {error}; is a quote left open?") from None
    except OSError as error:
        raise DataError(
            f"cannot read list {path}: {error.strerror}; the scripts in datasets/ write lists"
        ) from None
    except UnicodeDecodeError:
        raise DataError(f"list {path} is not UTF-8: save it as UTF-8") from None


def _text_lines(path: Path, file: Iterable[str]) -> Iterator[str]:
    for line in file:
        if "\0" in line:
            raise DataError(f"list {path} holds a NUL byte: it is not a text file")
        yield line


def _read_classes(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    text = read_text(path, "delete it").rstrip("\r\n")
    if not text:
        raise DataError(f"{path} is empty: write the name of class n into line n, from 0, or delete it")
    return tuple(text.split("\n"))


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


class _Rule:
    """What the rows of a list may say."""

    def __init__(self, root: Path, num_classes: int, allow_external: bool) -> None:
        self._root, self._num_classes = root, num_classes
        self._real_path = None if allow_external else RealPath()
        self._inside = None if allow_external else f"{os.path.realpath(root).rstrip('/')}/"

    def record(self, row: Mapping[str, str], place: str) -> VideoRecord:
        """Read a row; its paths stay relative to the root."""
        self._check_name(row["path"], "path", place)
        if "mask" in row:  # a list has masks or has none: no row of it may lack one
            self._check_name(row["mask"], "mask", place)
        label = _number(row["label"], int, "label", place) if "label" in row else -1
        classes = self._num_classes
        if not -1 <= label < (classes or _MAX_LABEL):
            known = f"classes.txt has {classes} classes, from 0" if classes else "labels count from 0"
            raise DataError(f"{place}: label {label} is out of range; {known}; -1 is unknown")
        start, end, fps = (_number(row[c], float, c, place) if row.get(c) else None for c in _COLUMNS[2:5])
        if any(number is not None and not 0 <= number < math.inf for number in (start, end, fps)):
            raise DataError(
                f"{place}: start {start}, end {end}, fps {fps}: seconds of the video are 0 or more"
            )
        try:
            return VideoRecord(row["path"], label, start, end, fps, row.get("mask"))
        except ValueError as error:
            raise DataError(f"{place}: {error}") from None

    def _check_name(self, name: str, column: str, place: str) -> None:
        """See whether a list may name a file."""
        if not name.strip():
            raise DataError(f"{place}: the {column} is empty")
        scheme, colon, _ = name.split("/", 1)[0].partition(":")
        if "://" in name or (colon and (scheme in _PROTOCOLS or scheme.startswith("subfile,"))):
            raise DataError(f"{place}: {name!r} is an address, not a file; only files are read")
        if self._real_path is None or self._inside is None:
            return
        real = self._real_path(full_path(self._root, name))
        if real is None:
            raise DataError(f"{place}: {name[:60]!r} cannot be followed: its links form a loop")
        if not f"{real}/".startswith(self._inside):
            raise DataError(
                f"{place}: {name!r} leaves the root {self._root}; move the file or allow external paths"
            )


class RealPath:
    """Follows the links in paths, as `os.path.realpath` does; each folder is looked up once."""

    def __init__(self) -> None:
        self._folders: dict[str, str | None] = {}

    def __call__(self, path: str) -> str | None:
        """Path of the file behind all links; None: they form a loop."""
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            return _followed(path)
        if folder not in self._folders:
            self._folders[folder] = _followed(folder)
        real = self._folders[folder]
        if real is None:
            return None
        file = f"{real.rstrip('/')}/{name}"
        return _followed(file) if os.path.islink(file) else file  # noqa: PTH114 - a Path for each row is slower


def _followed(path: str) -> str | None:
    real = os.path.realpath(path)
    try:
        os.stat(real)
    except OSError as error:  # a file may be missing, or its name be too long
        return None if error.errno == errno.ELOOP else real
    return real


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
