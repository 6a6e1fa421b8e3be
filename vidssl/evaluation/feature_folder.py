"""A folder of features: `features.npy`, `rows.csv` and `meta.json`.

`features.npy` is (N, D) float32, for `np.load(mmap_mode="r")`. `rows.csv` has one line per row of it: `path`, as in the
list, `label`, -1 if unknown, `index`, the row of the list, and `start` and `end` in seconds where the list has spans.
`meta.json` describes what the features were computed from. It is written last: a folder without it is incomplete.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import vidssl
from vidssl.atomic import replacing, write_json, write_whole
from vidssl.config import Tree
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.types import Features, VideoRecord

_FORMAT = 1
_ARRAY, _ROWS, _META = "features.npy", "rows.csv", "meta.json"


class DamagedFolderError(DataError):
    """A folder of features is incomplete, or its files changed after they were written."""


@dataclass(frozen=True)
class FeatureFolder:
    """Features of a list of videos, with all that is needed to use them without the list.

    Attributes:
        path: The folder.
        request: What decides the features: weights, list, files and protocol.
        features: `x` is memory-mapped.
        names: (N,) paths as in the list.
        spans: (N,) start and end in seconds; None: those of the video.
        root: Folder that the paths are relative to.
        classes: Class names; empty if the list has none.
    """

    path: Path
    request: Tree
    features: Features
    names: Sequence[str]
    spans: Sequence[tuple[float | None, float | None]]
    root: Path
    classes: tuple[str, ...]

    def videos(self, rows: Sequence[int], root: Path | None = None) -> VideoList:
        """List the videos of some rows; `root` replaces the stored one if the videos were moved."""
        root = self.root if root is None else root
        names = tuple(self.names[row] for row in rows)
        records = tuple(
            VideoRecord(str(root / name), int(self.features.label[row]), *self.spans[row])
            for name, row in zip(names, rows, strict=True)
        )
        return VideoList(self.path, root, names, records, self.classes)


def check_name(path: Path, remedy: str) -> None:
    """Raise an error if a path is, or is named as, a file of features as earlier versions wrote it.

    Raises:
        DataError: It is.
    """
    if path.is_file() or path.suffix == ".npz":
        raise DataError(
            f"{path} is a file, and features are now a folder with {_ARRAY}, {_ROWS}, {_META}: {remedy}"
        )


def write_array(path: Path, shape: tuple[int, int], blocks: Iterable[NDArray[np.float32]]) -> torch.Tensor:
    """Start a folder with its array, whose rows are written block by block; return the array, memory-mapped.

    Raises:
        DataError: It cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / _META).unlink(missing_ok=True)
        with replacing(path / _ARRAY) as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks:
                file.write(np.ascontiguousarray(block, "<f4").data)
        return torch.from_numpy(np.load(path / _ARRAY, mmap_mode="c"))  # "c": torch warns of read-only arrays
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def write_rest(folder: FeatureFolder) -> None:
    """Complete a folder whose array is written: `rows.csv`, then `meta.json`.

    Raises:
        DataError: It cannot be written.
    """
    text, path, features = io.StringIO(), folder.path, folder.features
    writer = csv.writer(text, lineterminator="\n")
    with_spans = any(span != (None, None) for span in folder.spans)
    writer.writerow(["path", "label", "index", *(["start", "end"] if with_spans else [])])
    columns = zip(folder.names, features.label.tolist(), features.index.tolist(), folder.spans, strict=True)
    writer.writerows([*row, *(span if with_spans else ())] for *row, span in columns)
    write_whole(path / _ROWS, text.getvalue().encode())
    meta = {
        "format": _FORMAT,
        "sha256": {name: _sha256(path / name) for name in (_ARRAY, _ROWS)},
        "request": folder.request,
        "root": str(folder.root),
        "classes": folder.classes,
        "missing": [{"path": name, "reason": reason} for name, reason in features.missing],
        "versions": {"vidssl": vidssl.__version__, "torch": torch.__version__},
    }
    write_json(path / _META, meta)


def read_folder(path: Path, remedy: str, verify: bool = True) -> FeatureFolder:
    """Open a folder of features, memory-mapped.

    Args:
        path: The folder.
        remedy: End of the error message if it is something else.
        verify: Also compare the checksums of its files, which reads all of them.

    Raises:
        DamagedFolderError: It is incomplete, or a file was cut or changed.
        DataError: It is not a folder of features.
        OSError: It cannot be read.
    """
    check_name(path, remedy)
    meta = _read_meta(path, remedy)
    try:
        changed = [name for name in meta["sha256"] if verify and _sha256(path / name) != meta["sha256"][name]]
        if changed:
            raise ValueError(f"{changed[0]} was changed")
        x = torch.from_numpy(np.load(path / _ARRAY, mmap_mode="c"))
        with open(path / _ROWS, encoding="utf-8", newline="") as file:
            lines = csv.reader(file)
            width = len(next(lines))
            columns = [*zip(*lines, strict=True)] or [()] * width
        label, index = (torch.tensor([int(text) for text in column]).long() for column in columns[1:3])
        seconds = [[float(text) if text else None for text in column] for column in columns[3:]]
        return FeatureFolder(
            path,
            meta["request"],
            Features(x, label, index, tuple((gap["path"], gap["reason"]) for gap in meta["missing"])),
            columns[0],
            [*zip(*seconds, strict=True)] if seconds else [(None, None)] * len(x),
            Path(meta["root"]),
            tuple(meta["classes"]),
        )
    except (KeyError, TypeError, ValueError, EOFError, StopIteration, csv.Error, FileNotFoundError) as error:
        raise DamagedFolderError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _read_meta(path: Path, remedy: str) -> Any:
    other = DataError(f"{path} is not a folder of features: {remedy}")
    try:
        meta = json.loads((path / _META).read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFolderError(f"{path} is damaged ({_META}: {error})") from None
    except FileNotFoundError:
        if {file.name for file in path.iterdir() if not file.name.startswith(".")} - {_ARRAY, _ROWS}:
            raise other from None
        raise DamagedFolderError(f"{path} is incomplete: it has no {_META}") from None
    if not isinstance(meta, dict) or not {"format", "sha256", "request"} <= {*meta}:
        raise other
    if meta["format"] != _FORMAT:
        raise DataError(f"{path} has format {meta['format']}, this version reads {_FORMAT}: {remedy}")
    return meta


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
