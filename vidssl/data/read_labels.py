"""Labels by name: files with the names of classes for some videos, or for spans of them, and the videos they name."""

import logging
import math
import os
from bisect import bisect, insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from vidssl.base.command_line_and_notices import log_once
from vidssl.base.errors import DataError, first_few
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import TAR_MARK, PathRule, RealPath, existing_path
from vidssl.data.find_same_videos import spans_overlap
from vidssl.data.read_input import VIDEO_SUFFIXES, read_input, without_extension
from vidssl.data.recordings_and_class_folders import labelled_by_folders
from vidssl.data.video_list import Records, VideoList, decimal_number, lines_beside, read_rows, root_beside
from vidssl.video.reader import state_of_video

_log = logging.getLogger(__name__)
_NAMES, _LABELS, _SECONDS = (
    ("path", "file", "filename", "video", "clip", "name"),
    ("label", "class"),
    ("start", "end", "fps"),
)
_UNKNOWN = ("", "-1")  # labels of videos that have none
_FORM = "write path,label[,start,end]"


class NamedLabel(NamedTuple):
    """The label of a video or of a span, as somebody wrote it."""

    name: str  # a path, or the name of a file
    label: str  # name of the class; empty: unknown
    start: float | None = None  # seconds
    end: float | None = None
    place: str = ""  # file and line, for messages
    fps: float | None = None  # of a folder of images


def checked_label(
    name: str, label: str, start: float | None, end: float | None, place: str, fps: float | None = None
) -> NamedLabel:
    """Return a label; a DataError names its place if it has no name, or the span is none."""
    if not name:
        raise DataError(f"{place}: the path is empty")
    if not all(number is None or (math.isfinite(number) and number >= 0) for number in (start, end)):
        raise DataError(f"{place}: start {start} and end {end} must be finite and 0 or more")
    try:
        VideoRecord(name, start=start, end=end, fps=fps)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    return NamedLabel(name, "" if label in _UNKNOWN else label, start, end, place, fps)


def split_column(path: Path) -> tuple[Path, str]:
    """Split `FILE:COLUMN`, the column of a CSV file that has the labels; without one, or of a file of that name, ""."""
    file, _, column = str(path).rpartition(":")
    return (Path(file), column) if Path(file).suffix and "/" not in column and not path.exists() else (path, "")


def separator_of(path: Path) -> str:
    """Return what separates the columns of a file with labels: a comma, or `;` or a tab; of other inputs a comma."""
    if path.is_dir() or path.suffix.lower() == ".json":
        return ","
    _, row = next(read_rows(split_column(path)[0], f"it is a CSV file: {_FORM}"), (1, [""]))
    return next((mark for mark in ";\t" if len(row) == 1 and mark in row[0]), ",")


def read_labels(path: Path, ignored: Sequence[str] = ()) -> list[NamedLabel]:
    """Read a CSV file `path,label[,start,end]`, whose labels are names of classes, or numbers of those in classes.txt.

    The path, or the name of a file, is in the column of such a name, else in that of files, the label in the one that
    `FILE:COLUMN` names, else in that of such a name, else in the only other one. `;` and tabs may separate columns, as
    Excel writes CSV in some countries. Other columns are left out, with a warning but for those in `ignored`, and if
    the column is named.

    Raises:
        DataError: There is no such column, or a row breaks a rule; the message has file and line.
    """
    path, column = split_column(path)
    titles, columns, rows, between = _read_table(path, ignored)
    header = [title.lower() for title in titles]
    labels = [header.index(name) for name in ((column.lower(),) if column else _LABELS) if name in header]
    others = [n for n, name in enumerate(header) if n not in columns.values() and name not in ("", *ignored)]
    labels = labels or (others if len(others) == 1 and not column else [])
    if not labels:
        remedy = "" if column else f": {_FORM}, or name the label's column, labels=FILE:COLUMN"
        raise DataError(f"{path}:1: header {','.join(titles)[:200]!r} has no column {column or 'label'}{remedy}")
    unused = [header[n] for n in others if n != labels[0]]
    if unused and not column:
        log_once(_log, logging.WARNING, f"{path}: columns that are not used: {', '.join(unused)}")
    named = [_label(f"{path}:{line}", row, {**columns, "label": labels[0]}, len(header), between) for line, row in rows]
    classes = lines_beside(path, "classes.txt")
    numbers = {str(n): name for n, name in enumerate(classes)}
    if classes and {label.label for label in named} <= {*numbers, ""}:
        return [label._replace(label=numbers.get(label.label, "")) for label in named]
    return named


def match_rows(path: Path, videos: VideoList) -> tuple[dict[str, int], list[list[str] | None]]:
    """Read a CSV file as `read_labels`, whatever its columns are.

    Returns the number of each column that is not of paths or times, by name, and the row of each video or of its span;
    None without one.

    Raises:
        DataError: As of `read_labels` and `match_labels`, and if the file has no such column.
    """
    titles, columns, rows, between = _read_table(path)
    names = {title: n for n, title in enumerate(titles) if title and n not in columns.values()}
    if not names or len({*titles}) < len(titles):
        raise DataError(f"{path}:1: header {','.join(titles)[:200]!r} needs a column to show, each name once")
    row_at, labels = dict[str, list[str]](), []
    for line, row in rows:
        row_at[f"{path}:{line}"] = row
        label = _label(f"{path}:{line}", row, columns, len(titles), between)
        labels.append(label._replace(label=between.join(row)))  # two rows of one video must be equal
    by_key = {key: row_at[label.place] for key, (_, label) in match_labels({path: labels}, videos).items()}
    return names, [by_key.get(key, by_key.get((key[0], 0.0, None))) for key in span_keys(videos)]


def _read_table(
    path: Path, ignored: Sequence[str] = ()
) -> tuple[list[str], dict[str, int], list[tuple[int, list[str]]], str]:
    """Read header, the columns of paths and times by name, the rows with their lines, and what separates columns."""
    between = separator_of(path)
    rows = [*read_rows(path, "", between)]
    if not rows:
        raise DataError(f"{path} has no rows: {_FORM}")
    titles, root = [title.strip() for title in rows[0][1]], root_beside(path)
    header = [title.lower() for title in titles]
    named = [n for n, name in enumerate(header) if name not in ("", *_SECONDS, *ignored)]
    if len(named) == 2 and not {*header} & {*_NAMES, *_LABELS} and _is_file(root, rows[0][1][named[0]]):
        rows = [(0, []), *rows]  # no header
        titles[named[0]], titles[named[1]] = header[named[0]], header[named[1]] = "path", "label"
    first = rows[1][1] if len(rows) > 1 else []
    paths = [header.index(name) for name in _NAMES if name in header]
    paths = paths or [n for n in named if n < len(first) and _is_file(root, first[n])]
    paths = paths or [n for n in named if header[n] not in _LABELS][:1]
    if not paths:
        raise DataError(f"{path}:1: header {','.join(titles)[:200]!r} names no paths: {_FORM}")
    columns = {"path": paths[0]} | {name: header.index(name) for name in _SECONDS if name in header}
    return titles, columns, rows[1:], between


def _is_file(root: Path, name: str) -> bool:
    """Whether a value of a column names a video."""
    name = name.strip()
    is_video = PurePosixPath(name).suffix.lower() in VIDEO_SUFFIXES
    return is_video or (name != "" and state_of_video(existing_path(root, name)) is not None)


def _label(place: str, row: Sequence[str], columns: Mapping[str, int], width: int, between: str) -> NamedLabel:
    if len(row) != width:
        raise DataError(f"{place}: {len(row)} fields, the header has {width}; quote text with commas")
    values = {name: row[column].strip() for name, column in columns.items()}
    decimal = "," if between == ";" else "."  # where a comma is decimal, lists are separated by semicolons
    try:
        start, end, fps = (
            decimal_number(values[name].replace(decimal, ".")) if values.get(name) else None for name in _SECONDS
        )
    except ValueError as error:
        raise DataError(f"{place}: {error}: start and end are seconds") from None
    return checked_label(values["path"], values.get("label", ""), start, end, place, fps)


def labels_of_folders(folder: Path) -> list[NamedLabel]:
    """Take the folders of a folder as classes."""
    listed = labelled_by_folders(read_input(folder), requested=True)
    return [
        NamedLabel(os.path.abspath(record.path), listed.class_name(record.label), place=str(folder))  # noqa: PTH100
        for record in listed.labelled_rows().records
    ]


def find_labelled(
    labels: Mapping[Path, Sequence[NamedLabel]], among: VideoList | None = None, allow_external: bool = False
) -> VideoList:
    """Find the videos that the labels of files name: among some videos, by path or by the name of the file, or beside.

    Returns:
        A row for each video or span, below the folder above all of them; classes are the names, sorted.

    Raises:
        DataError: As of `match_labels`.
    """
    rows = match_labels(labels, among, allow_external)
    _warn_of_overlaps(rows)
    classes = sorted({label.label for _, label in rows.values()} - {""})
    number = {name: n for n, name in enumerate(classes)} | {"": -1}
    records = [
        replace(record, label=number[label.label], start=label.start, end=label.end, fps=label.fps or record.fps)
        for record, label in rows.values()
    ]
    return below_one_folder(records, next(iter(labels)), classes)


SpanKey = tuple[str, float, float | None]  # the file, with links resolved; start, from 0; end, None: the video's


def span_key(real_path: RealPath, path: str, start: float | None, end: float | None) -> SpanKey:
    """Return what names a span of a file; times count to a microsecond, as files with text round them."""
    return real_path(os.path.abspath(path)), round(start or 0.0, 6), None if end is None else round(end, 6)  # noqa: PTH100


def span_keys(videos: VideoList) -> list[SpanKey]:
    """Return what names the span of each row."""
    real_path = RealPath()
    return [span_key(real_path, record.path, record.start, record.end) for record in videos.records]


def match_labels(
    labels: Mapping[Path, Sequence[NamedLabel]],
    among: VideoList | None = None,
    allow_external: bool = False,
    required: bool = True,
) -> dict[SpanKey, tuple[VideoRecord, NamedLabel]]:
    """Return the video of each label, as `find_labelled`; names that are of none are a warning, if one is `required`.

    Raises:
        DataError: All names of a file are of no video, if one is `required`; a name is of several, or a span has two
            labels.
    """
    rows: dict[SpanKey, tuple[VideoRecord, NamedLabel]] = {}
    real_path = RealPath()
    for path, of_file in labels.items():
        finder, lacking = _Finder(path, among, allow_external, real_path), []
        for label in of_file:
            record = finder.find(label)
            if record is None:
                lacking.append(f"{label.name} ({label.place})")
                continue
            key = span_key(real_path, record.path, label.start, label.end)
            before = rows.setdefault(key, (record, label))[1]
            if before.label and label.label and before.label != label.label:
                there = f"in {before.place} {before.label!r}"
                raise DataError(f"{label.place}: {label.name} has the label {label.label!r}, {there}")
            if label.label:  # an empty one says nothing
                rows[key] = (record, label)
        if required and len(lacking) == len(of_file):
            names = first_few(label.name for label in of_file) or "nothing"
            there = "beside it" if among is None else f"of {among.path}: they are {first_few(among.names)}"
            raise DataError(f"{path} has no label of a video {there}; it names {names}")
        if required and lacking:
            there = "beside it" if among is None else f"of {among.path}"
            text = f"{len(lacking)} of {len(of_file)} names are of no video {there}: {first_few(lacking)}"
            log_once(_log, logging.WARNING, f"{path}: {text}")
    return rows


def _warn_of_overlaps(rows: Mapping[SpanKey, tuple[VideoRecord, NamedLabel]]) -> None:
    """Name spans of one file that overlap and have different labels: they are examples of both."""
    spans = defaultdict(list)
    for (path, start, end), (_, label) in sorted(rows.items(), key=lambda entry: entry[0][:2]):
        if label.label:
            spans[path].append((VideoRecord(path, start=start, end=end), label))
    overlaps = [
        f"{second.name} from {second.start or 0:g} s ({second.place})"
        for of_file in spans.values()
        for (before, first), (after, second) in pairwise(of_file)
        if first.label != second.label and spans_overlap(before, after)
    ]
    if overlaps:
        text = "%d spans overlap with one of another label, and are examples of both: %s"
        _log.warning(text, len(overlaps), first_few(overlaps))


def below_one_folder(records: Sequence[VideoRecord], path: Path, classes: Iterable[str] = ()) -> VideoList:
    """Make a list of records with full paths, below the folder above all of them; `path` is for messages."""
    # A Path for each row is slower.
    paths = [os.path.abspath(record.path) for record in records]  # noqa: PTH100
    root = Path(os.path.commonpath([os.path.dirname(path) for path in paths]))  # noqa: PTH120
    listed = Records(root)
    for full, record in zip(paths, records, strict=True):
        listed.append(replace(record, path=os.path.relpath(full, root), mask=None, label_set=None, columns={}))
    return VideoList(path, listed, (*classes,))


def divide_by_labels(videos: VideoList) -> tuple[list[int], list[int]]:
    """Return the rows that have labels, and those of which nothing has one.

    A whole video has one if a part of it has, a span if one with a label has more than half of it.
    """
    known = np.flatnonzero(videos.labels >= 0).tolist()
    if len({*videos.labels[known].tolist()}) < 2:
        raise DataError(f"{videos.path}: examples of fewer than two classes can be read: repair them, or label others")
    keys = span_keys(videos)
    files, spans = {keys[n][0] for n in known}, LabelledSpans(keys[n] for n in known)
    rest = [
        n
        for n in np.flatnonzero(videos.labels < 0).tolist()
        if keys[n][0] not in files or (keys[n][2] is not None and spans.largest_part(keys[n]) is None)
    ]
    if not rest:
        raise DataError(f"{videos.path}: none of the videos to predict can be read, or all have labels")
    return known, rest


def is_whole(key: SpanKey) -> bool:
    """Whether a span is a whole video."""
    return key[1:] == (0.0, None)


class LabelledSpans:
    """Spans of files that have labels, and whole videos."""

    def __init__(self, keys: Iterable[SpanKey]) -> None:
        self._whole: dict[str, SpanKey] = {}
        self._spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for key in keys:
            file, start, end = key
            if is_whole(key):
                self._whole[file] = key
            else:
                insort(self._spans[file], (start, math.inf if end is None else end))
        # The latest end of the spans up to each, so that the search for those at a time ends early.
        self._latest = {file: [*accumulate((end for _, end in spans), max)] for file, spans in self._spans.items()}

    def largest_part(self, key: SpanKey) -> SpanKey | None:
        """Return the span with the largest part of another, more than half of it; of equal ones the shortest.

        It is the whole video if there is none, or None. Of a span without an end it has all.
        """
        file, start, end = key
        spans, latest = self._spans.get(file, []), self._latest.get(file, [])
        # More than half of a span has its middle.
        middle, stop = (start, math.inf) if end is None else ((start + end) / 2, end)
        n, parts = bisect(spans, (middle, math.inf)), []
        while n and latest[n - 1] >= middle:
            n -= 1
            first, last = spans[n]
            part = min(stop, last) - max(start, first)
            if part == math.inf or part > 0.5 * (stop - start):
                parts.append((part, first - last, first, last))
        if not parts:
            return self._whole.get(file)
        _, _, first, last = max(parts)
        return file, first, None if last == math.inf else last


class _Finder:
    """Finds the video that a name of a file with labels is of."""

    def __init__(self, path: Path, among: VideoList | None, allow_external: bool, real_path: RealPath) -> None:
        self._root = path if path.is_dir() else root_beside(path)
        self._rule, self._real_path = PathRule(self._root, allow_external), real_path
        self._by_path: dict[str, VideoRecord] = {}
        self._by_end: dict[tuple[str, ...], dict[str, VideoRecord]] = defaultdict(dict)
        folder = os.path.abspath("." if among is None else among.root)  # noqa: PTH100
        above = os.path.join(os.path.dirname(folder), "")  # noqa: PTH118, PTH120
        for name, record in zip(among.names, among.records, strict=True) if among is not None else ():
            full = os.path.abspath(record.path)  # noqa: PTH100
            whole = VideoRecord(full, fps=record.fps, group=record.group)
            if self._by_path.get(name) == whole:
                continue  # another span of the file
            self._by_path[name] = self._by_path[real_path(full)] = whole
            parts = _parts(full.removeprefix(above))
            for n in range(len(parts)):
                self._by_end[parts[n:]][full] = whole
            self._by_end[("", *parts)][full] = whole  # all of it, which may be the end of another path

    def find(self, label: NamedLabel) -> VideoRecord | None:
        """Return the video, without a span; None if there is none.

        It is looked up by path, as in the list or from the folder of the labels. Else the path may be that of another
        machine: its end is the folder of the videos with a path in it, or all of it is the end of a path here. Then
        the extension may differ, or be left out, and letters may be of the other case.
        """
        if label.name in self._by_path:
            return self._by_path[label.name]
        full = os.path.abspath(existing_path(self._root, label.name))  # noqa: PTH100
        if state_of_video(full) is not None:
            if record := self._by_path.get(self._real_path(full)):
                return record
            try:
                self._rule.check(label.name, "path")
            except ValueError as error:
                raise DataError(f"{label.place}: {error}") from None
            return VideoRecord(full)
        name = label.name.replace("\\", "/")  # as Windows writes paths
        parts = _parts(name)
        same_name = {**self._by_end.get(parts, {})}
        for n in range(len(parts)):
            same_name |= self._by_end.get(("", *parts[n:]), {})
        exact = {path: record for path, record in same_name.items() if path.endswith(f"/{PurePosixPath(name).name}")}
        same_name = exact or same_name
        if len(same_name) > 1:
            files = f"{len(same_name)} files, such as {first_few([*same_name])}"
            raise DataError(f"{label.place}: {label.name} is the name of {files}: write the path")
        return next(iter(same_name.values()), None)


def _parts(path: str) -> tuple[str, ...]:
    """Return the parts of a path without what may differ where somebody else writes it: extension, case, forms of é."""
    plain = without_extension(normalize("NFC", path.replace(TAR_MARK, ".tar/"))).casefold()
    return tuple(part for part in PurePosixPath(os.path.normpath(plain)).parts if part.strip("/") not in ("", ".."))
