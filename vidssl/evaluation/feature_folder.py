"""A folder of features: `features.npy`, `rows.csv` and `meta.json`.

`features.npy` is (N, D) float32, for `np.load(mmap_mode="r")`. `rows.csv` has one line per row of it: `path`, as in the
list, `label`, -1 if unknown, `index`, the row of the list, or of all its windows, and where the list has them `start`
and `end` in seconds, and `fps`, the frame rate of image folders.
`meta.json` describes what the features were computed from. It is written last: a folder without it is incomplete.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from vidssl.atomic import file_hash, replacing, write_json, write_whole
from vidssl.config import Tree
from vidssl.data.column_store import Records
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.output_folder import claim, json_with
from vidssl.types import Features, VideoRecord
from vidssl.untrusted_files import map_array, read_json
from vidssl.version import __version__

_FORMAT = 1
_ARRAY, _ROWS, _META = "features.npy", "rows.csv", "meta.json"
# What the content of a damaged folder raises.
_DAMAGED = (
    *(AttributeError, EOFError, FileNotFoundError, LookupError, OverflowError, TypeError, ValueError),
    csv.Error,
)
_BLOCK_ROWS = 8192  # rows of the array that are written at a time


class DamagedFolderError(DataError):
    """A folder of features is incomplete, or its files changed after they were written."""


def claim_features(path: Path, read: Sequence[Path | None] = ()) -> None:
    """Decide that features may be written to a folder, which is empty or has features; see `vidssl.output_folder`.

    A complete folder of features is not written to, so it may be read-only: their request decides.
    """
    complete = json_with(_META, "format", "sha256", "request")
    if not complete(path):
        claim(path, "features", ["[!.]*", ".parts"], read=read)


@dataclass(frozen=True)
class FeatureFolder:
    """Features of a list of videos, with all that is needed to use them without the list."""

    path: Path
    request: Tree  # what decides the features: weights, list, files and protocol
    features: Features  # memory-mapped if read from the folder
    names: Sequence[str]  # (N,) paths as in the list
    # (N,) start and end in seconds, None: those of the video; frame rate of image folders, None: not given.
    spans: Sequence[tuple[float | None, float | None, float | None]]
    root: Path  # the folder that the paths are relative to
    classes: tuple[str, ...]  # empty if the list has no class names
    network: str = ""  # what it was loaded from; empty: not known

    def videos(self, rows: Sequence[int], root: Path | None = None) -> VideoList:
        """List the videos of some rows; `root` replaces the stored one if the videos were moved."""
        labels = zip(rows, self.features.label[list(rows)].tolist(), strict=True)
        listed = (VideoRecord(self.names[n], label, *self.spans[n]) for n, label in labels)
        try:
            return VideoList(self.path, Records(self.root if root is None else root, listed), self.classes)
        except ValueError as error:
            raise DamagedFolderError(f"{self.path} is damaged ({_ROWS}: {error})") from None


def write_folder(path: Path, request: Tree, parts: Sequence[FeatureFolder]) -> None:
    """Write the rows of all parts, sorted by index. The arrays of the parts are read in blocks."""
    index, order = torch.cat([part.features.index for part in parts]).sort()
    label = torch.cat([part.features.label for part in parts])[order]
    names, spans = ([*chain.from_iterable(getattr(part, name) for part in parts)] for name in ("names", "spans"))
    missing = sorted(chain.from_iterable(part.features.missing for part in parts))
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / _META).unlink(missing_ok=True)
        for name in (_ARRAY, _ROWS, _META):  # of writers that were killed: the lock excludes others
            for left in path.glob(f".{name}.*.tmp"):
                left.unlink(missing_ok=True)
        with replacing(path / _ARRAY) as file:
            shape = len(index), parts[0].features.x.shape[1]
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            places = [torch.searchsorted(index, part.features.index) for part in parts]  # of their rows, ascending
            for start in range(0, len(index), _BLOCK_ROWS):
                block = torch.empty(min(_BLOCK_ROWS, len(index) - start), shape[1])
                for part, place in zip(parts, places, strict=True):
                    first, last = torch.searchsorted(place, torch.tensor([start, start + len(block)])).tolist()
                    block[place[first:last] - start] = part.features.x[first:last]
                file.write(block.numpy().astype("<f4").data)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    text = io.StringIO()
    columns = 6 if any(span[2] for span in spans) else 5 if any(span[:2] != (None, None) for span in spans) else 3
    numbers = zip(order.tolist(), label.tolist(), index.tolist(), strict=True)
    rows = ((names[n], of, row, *spans[n]) for n, of, row in numbers)
    lines = [("path", "label", "index", "start", "end", "fps"), *rows]
    csv.writer(text, lineterminator="\n").writerows(line[:columns] for line in lines)
    write_whole(path / _ROWS, text.getvalue().encode())
    content = {
        "format": _FORMAT,
        "sha256": {name: file_hash(path / name) for name in (_ARRAY, _ROWS)},
        "request": request,
        "root": str(parts[0].root),
        "classes": parts[0].classes,
        "network": parts[0].network,
        "missing": [{"path": name, "reason": reason} for name, reason in missing],
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
            columns: list[list[str]] = [[] for _ in next(lines, [])]
            for line in lines:  # with millions of lines much faster than zip(*lines)
                for column, text in zip(columns, line, strict=True):
                    column.append(text)
        label, index = (torch.from_numpy(np.fromiter(map(int, column), np.int64)) for column in columns[1:3])
        numbers = [[float(text) if text else None for text in column] for column in columns[3:]]
        numbers += [[None] * len(x)] * (3 - len(numbers))
        return FeatureFolder(
            path,
            meta["request"],
            Features(x, label, index, tuple((gap["path"], gap["reason"]) for gap in meta["missing"])),
            columns[0],
            [*zip(*numbers, strict=True)],
            Path(meta["root"]),
            tuple(meta["classes"]),
            meta.get("network", ""),  # folders of earlier versions do not name it
        )
    except _DAMAGED as error:
        raise DamagedFolderError(f"{path} is damaged ({type(error).__name__}: {error})") from None
