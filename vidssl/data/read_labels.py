"""Labels by name: a CSV file with the names of classes for some videos, or for spans of them."""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vidssl.base.errors import DataError, first_few
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import PathRule, existing_path
from vidssl.data.read_input import VIDEO_SUFFIXES, read_input
from vidssl.data.recordings_and_class_folders import labelled_by_folders
from vidssl.data.video_list import Records, VideoList, decimal_number, lines_beside, read_rows, root_beside
from vidssl.video.reader import state_of_video

_log = logging.getLogger(__name__)
_NAMES, _LABELS = ("path", "file", "filename", "video", "name"), ("label", "class")
_UNKNOWN = ("", "-1")  # labels of videos that have none


class NamedLabel(NamedTuple):
    """The label of a video or of a span, as somebody wrote it."""

    name: str  # a path, or the name of a file
    label: str  # name of the class; empty: unknown
    start: float | None = None  # seconds
    end: float | None = None
    place: str = ""  # file and line, for messages


def read_labels(path: Path, ignored: Sequence[str] = ()) -> list[NamedLabel]:
    """Read a CSV file `path,label[,start,end]`, whose labels are names of classes, or numbers of those in classes.txt.

    Any two columns are a path or the name of a file, and a label. Other columns are left out, with a warning but for
    those in `ignored`.

    Raises:
        DataError: There is no such column, or a row breaks a rule; the message has file and line.
    """
    rows = [*read_rows(path, "labels=FILE is a CSV file path,label[,start,end]")]
    if not rows:
        raise DataError(f"{path} has no rows: it is a CSV file path,label[,start,end]")
    header = [name.strip().lower() for name in rows[0][1]]
    if len(header) == 2 and PurePosixPath(header[0]).suffix in VIDEO_SUFFIXES:  # no header
        header, rows = ["path", "label"], [(0, []), *rows]
    elif len(header) == 2 and not ({*header} & {*_NAMES} and {*header} & {*_LABELS}):
        header = ["path", "label"]
    columns: dict[str, int] = {name: header.index(name) for name in ("start", "end") if name in header}
    for name, known in (("path", _NAMES), ("label", _LABELS)):
        there = [alias for alias in known if alias in header]
        if not there:
            text = ",".join(header)[:200]
            raise DataError(f"{path}:1: header {text!r} has no column {name}: it is path,label[,start,end]")
        columns[name] = header.index(there[0])
    others = [name for n, name in enumerate(header) if n not in columns.values() and name not in ignored]
    if others:
        _log.warning("%s: columns that are not used: %s", path, ", ".join(others))
    labels = [_label(path, line, row, columns, len(header)) for line, row in rows[1:]]
    classes = lines_beside(path, "classes.txt")
    numbers = {str(n): name for n, name in enumerate(classes)}
    if classes and {label.label for label in labels} <= {*numbers, ""}:
        return [label._replace(label=numbers.get(label.label, "")) for label in labels]
    return labels


def _label(path: Path, line: int, row: Sequence[str], columns: Mapping[str, int], width: int) -> NamedLabel:
    place = f"{path}:{line}"
    if len(row) != width:
        raise DataError(f"{place}: {len(row)} fields, the header has {width}; quote text with commas")
    values = {name: row[column].strip() for name, column in columns.items()}
    try:
        start, end = (decimal_number(values[name]) if values.get(name) else None for name in ("start", "end"))
        VideoRecord(values["path"], start=start, end=end)
    except ValueError as error:
        raise DataError(f"{place}: {error}: start and end are seconds") from None
    if not values["path"]:
        raise DataError(f"{place}: the path is empty")
    return NamedLabel(values["path"], "" if values["label"] in _UNKNOWN else values["label"], start, end, place)


def labels_of_folders(folder: Path) -> list[NamedLabel]:
    """Take the folders of a folder as classes."""
    listed = labelled_by_folders(read_input(folder))
    if not listed.classes:
        raise DataError(
            f"{folder} has no folders with several videos each: one for each class, or give labels=FILE.csv"
        )
    return [NamedLabel(record.path, listed.class_name(record.label), place=str(folder)) for record in listed.records]


def find_labelled(
    labels: Mapping[Path, Iterable[NamedLabel]], among: VideoList | None = None, allow_external: bool = False
) -> VideoList:
    """Find the videos that the labels of files name: among some videos, by path or by the name of the file, or beside.

    Returns:
        A row for each label, below the folder above all of them; classes are the names, sorted.

    Raises:
        DataError: A name is of no video or of several, or a span has two labels.
    """
    rows: dict[tuple[str, float, float | None], tuple[VideoRecord, NamedLabel]] = {}
    lacking = []
    for path, of_file in labels.items():
        finder = _Finder(path, among, allow_external)
        for label in of_file:
            record = finder.find(label)
            if record is None:
                lacking.append(f"{label.name} ({label.place})")
                continue
            before = rows.setdefault((record.path, label.start or 0.0, label.end), (record, label))[1]
            if before.label != label.label:
                there = f"in {before.place} {before.label!r}"
                raise DataError(f"{label.place}: {label.name} has the label {label.label!r}, {there}")
    if lacking:
        raise DataError(f"{len(lacking)} files with labels are not there: {first_few(lacking)}")
    classes = sorted({label.label for _, label in rows.values()} - {""})
    number = {name: n for n, name in enumerate(classes)} | {"": -1}
    records = [
        VideoRecord(record.path, number[label.label], label.start, label.end, record.fps)
        for record, label in rows.values()
    ]
    if not records:
        raise DataError(f"{next(iter(labels))} has no labels")
    return below_one_folder(records, next(iter(labels)), classes)


def below_one_folder(records: Sequence[VideoRecord], path: Path, classes: Iterable[str] = ()) -> VideoList:
    """Make a list of records with full paths, below the folder above all of them; `path` is for messages."""
    root = Path(os.path.commonpath([os.path.dirname(os.path.abspath(record.path)) for record in records]))  # noqa: PTH100, PTH120
    listed = Records(root)
    for record in records:
        name = os.path.relpath(os.path.abspath(record.path), root)  # noqa: PTH100
        listed.append(VideoRecord(name, record.label, record.start, record.end, record.fps))
    return VideoList(path, listed, (*classes,))


class _Finder:
    """Finds the video that a name is of."""

    def __init__(self, path: Path, among: VideoList | None, allow_external: bool) -> None:
        self._root = path if path.is_dir() else root_beside(path)
        self._rule = PathRule(self._root, allow_external)
        self._by_path: dict[str, VideoRecord] = {}
        self._by_file: dict[str, dict[str, VideoRecord]] = defaultdict(dict)
        for name, record in zip(among.names, among.records, strict=True) if among is not None else ():
            whole = VideoRecord(record.path, fps=record.fps)
            self._by_path[name] = self._by_path[record.path] = whole
            self._by_file[PurePosixPath(name).name][record.path] = whole

    def find(self, label: NamedLabel) -> VideoRecord | None:
        if label.name in self._by_path:
            return self._by_path[label.name]
        full = existing_path(self._root, label.name)
        if state_of_video(full) is not None:
            if full not in self._by_path:
                try:
                    self._rule.check(label.name, "path")
                except ValueError as error:
                    raise DataError(f"{label.place}: {error}") from None
            return self._by_path.get(full, VideoRecord(full))
        same_name = self._by_file.get(label.name, {})
        if len(same_name) > 1:
            raise DataError(
                f"{label.place}: {label.name} is the name of {len(same_name)} files, such as "
                f"{first_few([*same_name])}: write the path"
            )
        return next(iter(same_name.values()), None)
