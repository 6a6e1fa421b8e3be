"""A folder of features: `features.npy`, `rows.csv` and `meta.json`.

`features.npy` is (N, D) float32, for `np.load(mmap_mode="r")`. `rows.csv` has one line per row of it: `path`, as in the
list, `label`, -1 if unknown, `index`, the row of the list, or of all its windows, where the list has them `start` and
`end` in seconds, and `fps`, the frame rate of image folders, and the state of the file that was read: `size`, `changed`
and `content`, see `FileState`. `meta.json` describes what the features were computed from. It is written last: a folder
without it is incomplete.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vidssl.atomic import file_hash, replacing, write_json, write_whole
from vidssl.config import Tree
from vidssl.data.allowed_paths import RealPath, full_path
from vidssl.data.column_store import Records
from vidssl.data.fingerprint import identify, state_of_file
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.evaluation.features import describe_network, difference
from vidssl.output_folder import claim
from vidssl.types import Features, VideoRecord
from vidssl.untrusted_files import map_array, read_json
from vidssl.version import __version__
from vidssl.video.content_hash import content_hash

_FORMAT = 1
_ARRAY, _ROWS, _META = "features.npy", "rows.csv", "meta.json"
_SPAN = ("start", "end", "fps")
# What the content of a damaged folder raises.
_DAMAGED = (
    *(AttributeError, EOFError, FileNotFoundError, LookupError, OverflowError, TypeError, ValueError),
    csv.Error,
)
_BLOCK_ROWS = 8192  # rows of the array that are written at a time


class DamagedFolderError(DataError):
    """A folder of features is incomplete, or its files changed after they were written."""


class FileState(NamedTuple):
    """Tells whether a file is still the one that was read."""

    size: int = -1  # bytes; of a folder of images a number that depends on theirs; -1: there is no file
    changed: int = 0  # modification time in nanoseconds; of a folder of images a hash of names, sizes and times
    content: str = ""  # the first 32 digits of `content_hash`; empty: not known


class Files:
    """The files of videos as they are now, by real path: each is inspected once, and read if its content decides."""

    def __init__(self, videos: VideoList, rows: Iterable[int] | None = None) -> None:
        self.real_path = RealPath()
        paths = (videos.records[n].path for n in (range(len(videos)) if rows is None else rows))
        self.states = {path: _state(path) for path in dict.fromkeys(map(self.real_path, paths))}

    def content(self, path: str) -> str:
        """Return the hash of the content of a file, by real path."""
        state = self.states[path]
        if not state.content:
            self.states[path] = state = state._replace(content=(content_hash(path) or "")[:32])
        return state.content

    def have(self, stored: Mapping[str, FileState]) -> bool:
        """Whether all stored files are among these, as they were, or at least with the same content."""
        return all(self._is(self.real_path(path), state) for path, state in stored.items())

    def _is(self, path: str, stored: FileState) -> bool:
        now = self.states.get(path)
        if now is None or now[:2] == stored[:2]:
            return now is not None
        return now.size == stored.size and stored.content == self.content(path) != ""

    def read(self, path: str) -> FileState:
        """Return the state of a file with its content; one that no file has if it changed after it was inspected."""
        path = self.real_path(path)
        self.content(path)
        state = self.states[path]
        return state if _state(path) == (*state[:2], "") else FileState(0)


def _state(path: str) -> FileState:
    try:
        sizes, changed = state_of_file(path)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return FileState()
    return FileState(sum(sizes), changed)


def claim_features(path: Path, read: Sequence[Path | None] = ()) -> None:
    """Decide that features may be written to a folder, which is empty or has features; see `vidssl.output_folder`.

    A complete folder of features is left to those who extract: if it has what they want, it may be read-only.
    """
    with suppress(OSError, ValueError, AttributeError):
        if {"format", "sha256", "request"} <= read_json(path / _META).keys():
            return
    claim(path, "features", ["[!.]*", ".parts"], read=read)


@dataclass(frozen=True)
class FeatureFolder:
    """Features of a list of videos, with all that is needed to use them without the list."""

    path: Path
    request: Tree  # what decides the features: weights, list, files and protocol
    features: Features  # memory-mapped
    names: Sequence[str]  # (N,) paths as in the list
    # (N,) start and end in seconds, None: those of the video; frame rate of image folders, None: not given.
    spans: Sequence[tuple[float | None, float | None, float | None]]
    root: Path  # the folder that the paths are relative to
    classes: tuple[str, ...]  # empty if the list has no class names
    files: Mapping[str, FileState]  # by full path, also of missing videos; empty: not recorded

    def row(self, number: int) -> VideoRecord:
        """Return a row, with the path of the list."""
        return VideoRecord(self.names[number], int(self.features.label[number]), *self.spans[number])

    def videos(self, rows: Sequence[int], root: Path | None = None) -> VideoList:
        """List the videos of some rows; `root` replaces the stored one if the videos were moved."""
        try:
            records = Records(self.root if root is None else root, map(self.row, rows))
            return VideoList(self.path, records, self.classes)
        except ValueError as error:
            raise DamagedFolderError(f"{self.path} is damaged ({_ROWS}: {error})") from None


class Piece(NamedTuple):
    """Some rows of features, and the rows of the list that they are of."""

    x: Tensor  # (n, D), may be memory-mapped
    chosen: Tensor  # (m,) rows of x
    rows: Tensor  # (m,) rows of the list, ascending

    @classmethod
    def of(cls, features: Features) -> "Piece":
        """Return all rows of features."""
        return cls(features.x, torch.arange(len(features)), features.index)


def write_folder(
    path: Path,
    request: Tree,
    listed: Callable[[list[int]], VideoList],
    pieces: Sequence[Piece],
    missing: Iterable[tuple[str, str]],
    state_of: Callable[[str], FileState],
    made_by: Mapping[str, Any],
) -> None:
    """Write the rows of all pieces, sorted by index; `listed` selects rows of the list, `state_of` has their files.

    The arrays of the pieces are read in blocks.
    """
    index, state_of = torch.cat([piece.rows for piece in pieces]).sort().values, cache(state_of)
    videos = listed(index.tolist())
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / _META).unlink(missing_ok=True)
        for name in (_ARRAY, _ROWS, _META):  # of writers that were killed: the lock excludes others
            for left in path.glob(f".{name}.*.tmp"):
                left.unlink(missing_ok=True)
        with replacing(path / _ARRAY) as file:
            shape = len(index), pieces[0].x.shape[1]
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            places = [torch.searchsorted(index, piece.rows) for piece in pieces]  # of their rows, ascending
            for start in range(0, len(index), _BLOCK_ROWS):
                block = torch.empty(min(_BLOCK_ROWS, len(index) - start), shape[1])
                for (x, chosen, _), place in zip(pieces, places, strict=True):
                    first, last = torch.searchsorted(place, torch.tensor([start, start + len(block)])).tolist()
                    block[place[first:last] - start] = x[chosen[first:last]]
                file.write(block.numpy().astype("<f4").data)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    spans = [(record.start, record.end, record.fps) for record in videos.records]
    used = 3 if any(span[2] for span in spans) else 2 if any(span[:2] != (None, None) for span in spans) else 0
    rows = zip(index.tolist(), videos.names, videos.records, spans, strict=True)
    lines = ((name, row.label, n, *span[:used], *state_of(row.path)) for n, name, row, span in rows)
    header = ("path", "label", "index", *_SPAN[:used], *FileState._fields)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *lines])
    write_whole(path / _ROWS, text.getvalue().encode())
    gaps = [(name, reason, state_of(name)) for name, reason in sorted(missing)]
    content = {
        "format": _FORMAT,
        "sha256": {name: file_hash(path / name) for name in (_ARRAY, _ROWS)},
        "request": request,
        "root": str(videos.root.resolve()),
        "classes": videos.classes,
        "network": made_by["network"],
        "made_by": made_by,
        "missing": [{"path": name, "reason": reason, **state._asdict()} for name, reason, state in gaps],
        "versions": {"vidssl": __version__, "torch": torch.__version__},
    }
    write_json(path / _META, content)


def read_folder(path: Path, remedy: str, verify: bool = True) -> FeatureFolder:
    """Open a folder of features, memory-mapped; `verify` compares the checksums of its files, which reads all of them.

    Raises:
        DamagedFolderError: It is incomplete, or a file was cut or changed.
        DataError: It is not a folder of features; the message ends with `remedy`.
        OSError: It cannot be read.
    """
    other = f"{path} is not a folder of features of format {_FORMAT}: {remedy}"
    if not (path / _META).exists():
        if {file.name for file in path.iterdir() if not file.name.startswith(".")} - {_ARRAY, _ROWS}:
            raise DataError(other)
        raise DamagedFolderError(f"{path} is incomplete: it has no {_META}")
    try:
        meta = read_json(path / _META)
        if not isinstance(meta, dict) or meta.get("format") != _FORMAT or "sha256" not in meta:
            raise DataError(other)
        for name, digest in meta["sha256"].items() if verify else ():
            if file_hash(path / name) != digest:
                raise ValueError(f"{name} was changed")
        x = torch.from_numpy(map_array(path / _ARRAY))  # "c": torch warns of read-only arrays
        with open(path / _ROWS, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            columns: dict[str, list[str]] = {name: [] for name in next(lines, [])}
            for line in lines:  # with millions of lines much faster than zip(*lines)
                for column, text in zip(columns.values(), line, strict=True):
                    column.append(text)
        label, index = (torch.from_numpy(np.fromiter(map(int, columns[key]), np.int64)) for key in ("label", "index"))
        missing = tuple((gap["path"], gap["reason"]) for gap in meta["missing"])
        made_by = meta.get("made_by") or describe_network(meta["network"], meta["request"])
        difference(made_by, made_by)  # is complete
        spans = [[float(text) if text else None for text in columns[key]] if key in columns else None for key in _SPAN]
        root, files = Path(meta["root"]), {}
        if "size" in columns:
            files = {gap["path"]: FileState(gap["size"], gap["changed"], gap["content"]) for gap in meta["missing"]}
            states = zip(columns["path"], *(columns[key] for key in FileState._fields), strict=True)
            files |= {full_path(root, name): FileState(int(size), int(time), hash) for name, size, time, hash in states}
        return FeatureFolder(
            path,
            meta["request"],
            Features(x, label, index, missing, made_by=made_by),
            columns["path"],
            [*zip(*(column or [None] * len(x) for column in spans), strict=True)],
            root,
            tuple(meta["classes"]),
            files,
        )
    except _DAMAGED as error:
        raise DamagedFolderError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def with_files(folder: FeatureFolder) -> FeatureFolder:
    """Return a folder with the states of its files.

    Of a folder whose version recorded none they are those of now, if list and sizes of all files are still those that
    it was made from, without those that have changed after it was written.
    """
    if folder.files:
        return folder
    listed = folder.videos(range(len(folder.names)))
    if listed.fingerprint != folder.request["list"] or identify(listed) != folder.request["data"]:
        return folder
    written = (folder.path / _META).stat().st_mtime_ns
    now = Files(listed)
    states = {record.path: now.states[now.real_path(record.path)] for record in listed.records}
    return replace(folder, files={path: state for path, state in states.items() if state.changed < written})


def find_rows(
    stored: Sequence[FeatureFolder], videos: VideoList, rows: Iterable[int], files: Files
) -> dict[int, tuple[int, int]]:
    """Find the features of rows of a list: number of the folder and row there, where file and span are equal."""
    places: dict[tuple[object, ...], tuple[int, int, str]] = {}
    sizes = set()
    for number, folder in enumerate(stored):
        for row, (name, span) in enumerate(zip(folder.names, folder.spans, strict=True)):
            path = full_path(folder.root, name)
            state = folder.files.get(path, FileState())
            place = number, row, state.content
            places[files.real_path(path), state[:2], span] = places[state.content, span] = place
            sizes.add(state.size)
    found = {}
    for n in rows:
        record = videos.records[n]
        path, span = files.real_path(record.path), (record.start, record.end, record.fps)
        now = files.states[path]
        same = places.get((path, now[:2], span))
        if same is None and now.size in sizes and (content := files.content(path)):
            same = places.get((content, span))
        if same is not None and now.size >= 0:
            found[n] = same[:2]
            files.states[path] = now._replace(content=same[2])  # known: it is not read again
    return found
