"""Video lists: the CSV files that describe every data set."""

import csv
import hashlib
import io
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import replacing
from vidssl.data.column_store import Records
from vidssl.data.path_rules import PathRule, full_path
from vidssl.errors import DataError
from vidssl.types import VideoRecord

_COLUMNS = ("path", "label", "start", "end", "fps", "mask")
_HEADER = "path[,label][,start][,end][,fps][,mask]"


class Part(NamedTuple):
    """A list that was joined with others."""

    records: int
    samples: int  # in an epoch


@dataclass(frozen=True)
class VideoList:
    """The rows of a list and what lies beside it; `join_lists` makes one of several lists."""

    path: Path
    records: Records  # with full paths
    classes: tuple[str, ...]  # name of class n; empty without classes.txt
    joined: tuple[Part, ...] = ()  # the lists that it was made of

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
    def fingerprint(self) -> str:
        """Hash of names, labels, spans, frame rates, masks and `joined`; `identify` describes the files themselves."""
        rows = [f"{n}\t{r.label}\t{r.start}\t{r.end}" for n, r in zip(self.names, self.records, strict=True)]
        rows += [f"fps\t{n}\t{r.fps}" for n, r in enumerate(self.records) if r.fps is not None]
        rows += [os.path.relpath(r.mask, self.records.root_of(n)) for n, r in enumerate(self.records) if r.mask]
        rows += [f"list\t{part.records}\t{part.samples}" for part in self.joined]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    def rows(self, chosen: Iterable[int]) -> "VideoList":
        """Select rows of the list."""
        records = Records(self.root)
        for n in chosen:
            records.append(self.records.row(n), self.records.root_of(n))
        return replace(self, records=records, joined=())

    def class_name(self, label: int) -> str:
        """Name of a class; its number without classes.txt, `?` for -1."""
        if label < 0:
            return "?"
        return self.classes[label] if self.classes else str(label)


def read_list(path: str | Path, root: str | Path | None = None, allow_external: bool = False) -> VideoList:
    """Read a list, CSV with the header `path[,label][,start][,end][,fps][,mask]`, and `classes.txt` beside it.

    Paths are relative to `root`, by default the folder in `root.txt`, else that of the list; `allow_external` accepts
    absolute paths and paths that leave it. A DataError has `file:line`, the value and the rule of the first wrong row.
    """
    path = Path(path)
    if root is None:
        root = next(iter(_lines_beside(path, "root.txt")), path.parent)
    root = Path(root)
    classes = _lines_beside(path, "classes.txt")
    rows = read_rows(path, "vidssl prepare writes lists")
    line, header = next(rows, (1, []))
    columns = [column.strip() for column in header]
    if "path" not in columns or not {*columns} <= {*_COLUMNS} or len({*columns}) < len(columns):
        text = ",".join(columns)[:200]
        raise DataError(f"{path}:{line}: header {text!r} is not {_HEADER}; vidssl prepare list converts other lists")
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

    Lists of different classes lose their labels. The `path` is for messages. A DataError names a list without masks,
    if others have masks.
    """
    if len(lists) == 1 and weights[0] == 1:
        return lists[0]
    without = [videos.path for videos in lists if videos.records[0].mask is None]
    if 0 < len(without) < len(lists):
        raise DataError(f"{without[0]} has no masks, another list has: train on lists with masks, or on lists without")
    same_classes = len({videos.classes for videos in lists}) == 1
    records = Records(lists[0].root)
    for videos in lists:
        for row in map(videos.records.row, range(len(videos.records))):
            records.append(row if same_classes else replace(row, label=-1), videos.root)
    lengths = [len(videos.records) for videos in lists]
    parts = (Part(n, max(1, round(weight * n))) for n, weight in zip(lengths, weights, strict=True))
    path = Path(" and ".join(str(videos.path) for videos in lists))
    return VideoList(path, records, lists[0].classes if same_classes else (), tuple(parts))


def _lines_beside(path: Path, name: str) -> tuple[str, ...]:
    """Lines of a file beside a list; none without the file."""
    file = path.parent / name
    if not file.exists():
        return ()
    text = read_text(file, "delete it").rstrip("\r\n")
    if not text:
        raise DataError(f"{file} is empty: write it again, or delete it")
    return tuple(text.split("\n"))


def read_rows(path: Path, remedy: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV file that are not blank, header included, with the line number that each ends in."""
    # Universal newlines or splitlines would also split at characters that names may contain.
    with _reading(path, remedy), open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            for row in rows:
                if len(row) > 1 or "".join(row).strip():
                    yield rows.line_num, row
        except csv.Error as error:
            raise DataError(f"{path}:{rows.line_num}: not CSV: {error}; is a quote left open?") from None


def read_text(path: Path, remedy: str) -> str:
    """Read a text file, UTF-8 with or without a byte-order mark; `remedy` ends the error for a missing file."""
    with _reading(path, remedy):
        return path.read_text(encoding="utf-8-sig")


@contextmanager
def _reading(path: Path, remedy: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"cannot read list {path}: {error.strerror}; {remedy}") from None
    except UnicodeDecodeError:
        raise DataError(f"list {path} is not UTF-8: save it as UTF-8") from None


def _parse_row(columns: Sequence[str], row: Sequence[str], rule: PathRule, num_classes: int) -> VideoRecord:
    """Convert a row to a record with the paths of the list; ValueError if it breaks a rule."""
    if len(row) != len(columns):
        raise ValueError(f"{len(row)} fields, the header has {len(columns)}; quote names with commas")
    fields = dict(zip(columns, row, strict=True))
    rule.check(fields["path"], "path")
    if "mask" in fields:  # a list has masks in all rows or in none
        rule.check(fields["mask"], "mask")
    try:
        label = int(fields.get("label", -1))
        start, end, fps = (float(fields[column]) if fields.get(column) else None for column in ("start", "end", "fps"))
    except ValueError as error:
        raise ValueError(f"{error}: labels are whole numbers, start, end and fps are numbers") from None
    limit = num_classes or 2**63  # int64, as in tensors
    if not -1 <= label < limit:
        raise ValueError(f"label {label} is out of range: classes are 0 to {limit - 1}, -1 is unknown")
    if any(number is not None and not 0 <= number < float("inf") for number in (start, end, fps)):
        raise ValueError(f"start {start}, end {end} and fps {fps} must be finite and 0 or more")
    return VideoRecord(fields["path"], label, start, end, fps, fields.get("mask"))


def row_key(root: Path, record: VideoRecord) -> tuple[Any, ...]:
    """Key that is unique in a list: the normalised path, the span, the frame rate and the mask."""
    mask = None if record.mask is None else full_path(root, record.mask)
    return full_path(root, record.path), record.start or 0.0, record.end, record.fps, mask


def _check_duplicates(path: Path, lines: Sequence[int], keys: NDArray[np.int64], records: Records) -> None:
    """Check that no row repeats an earlier one; `keys` are hashes, so that a million rows need no dict."""
    _, group, size = np.unique(keys, return_inverse=True, return_counts=True)
    first: dict[tuple[Any, ...], int] = {}
    for row in np.flatnonzero(size[group] > 1).tolist():
        record = records[row]
        earlier = first.setdefault(row_key(records.roots[0], record), row)
        if earlier != row:
            raise DataError(
                f"{path}:{lines[row]}: {records.names[row]!r}, label {record.label}, is also in line {lines[earlier]}, "
                f"label {records[earlier].label}: delete one; two kinds of labels are two lists"
            )


def write_lists(
    out: Path, root: Path, lists: Mapping[str, Iterable[VideoRecord | tuple[Any, ...]]], classes: Sequence[str]
) -> None:
    """Write `NAME.csv` for each list, `classes.txt` if there are classes, and `root.txt`: all of them or none.

    `lists` has records or tuples of their fields, with paths relative to `root`; columns without a value are left out.
    """
    texts = {f"{name}.csv": _csv(rows) for name, rows in lists.items()} | _beside(root, classes)
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


def _csv(rows: Iterable[VideoRecord | tuple[Any, ...]]) -> str:
    records = [row if isinstance(row, VideoRecord) else VideoRecord(*row) for row in rows]
    default = VideoRecord("")
    columns = [c for c in _COLUMNS if c == "path" or any(getattr(r, c) != getattr(default, c) for r in records)]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        _check_name(record.path)
        writer.writerow([getattr(record, column) for column in columns])
    return text.getvalue()


def _check_name(name: str) -> None:
    """Check that a list or `classes.txt` can hold a name."""
    if re.search("[\r\n\ud800-\udfff]", name):
        raise DataError(f"{name!r} holds a line break or is not UTF-8: rename it")


def copy_list(videos: VideoList, out: Path, root: Path, names: Sequence[str | None]) -> Path:
    """Write a list again under new names, relative to `root`; None leaves a row out. Returns the path of the list."""
    path = place_of_copy(videos, out, root)
    rows = zip(map(videos.records.row, range(len(videos.records))), names, strict=True)
    write_lists(out, root, {path.stem: [replace(row, path=name) for row, name in rows if name]}, videos.classes)
    return path


def place_of_copy(videos: VideoList, out: Path, root: Path) -> Path:
    """Return the path that `copy_list` writes to, or raise DataError if it will not write; call it before long work."""
    if root.resolve() != videos.root.resolve() and any(record.mask for record in videos.records):
        raise DataError(f"masks are not copied: {videos.path} has some, use a list without masks")
    path = out / f"{videos.path.stem}.csv"
    if path.exists() and path.samefile(videos.path):
        raise DataError(f"{path} is the list that is read: choose another folder to write to")
    check_beside(out, root, videos.classes)
    return path


def check_beside(out: Path, root: Path, classes: Sequence[str]) -> None:
    """Raise DataError if `classes.txt` or `root.txt` of a folder belong to other lists than one to be written there."""
    for name, text in _beside(root, classes).items():
        there = out / name
        if there.exists() and read_text(there, "delete it or choose another folder") != text:
            raise DataError(f"{there} belongs to other lists: choose another folder to write to")
    if not classes and (out / "classes.txt").exists():
        raise DataError(f"{out} holds a classes.txt, the list has none: choose another folder to write to")


def _beside(root: Path, classes: Sequence[str]) -> dict[str, str]:
    """The files beside a list and their content."""
    for name in classes:
        _check_name(name)
    named = {"classes.txt": "".join(f"{name}\n" for name in classes)} if classes else {}
    return {**named, "root.txt": f"{root.resolve()}\n"}
