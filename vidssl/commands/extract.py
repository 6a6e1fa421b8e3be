"""Features of a list, into a file: at once, or in parts that are merged."""

import json
import logging
import math
import re
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vidssl import distributed
from vidssl.atomic import replacing
from vidssl.commands.load import Options, Subject, load_subject
from vidssl.config import Tree, differences
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.run_config import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import extract
from vidssl.types import Features, VideoRecord

_log = logging.getLogger(__name__)
Array = NDArray[Any]
_ARRAYS = (
    *("features", "label", "index", "path", "start", "end"),
    *("root", "classes", "missing", "request"),
)
_REMEDY = "delete it, or choose another --out"
Request = dict[str, Any]  # all that decides what is in a file; two files of one request are alike


@dataclass(frozen=True)
class Extracted:
    """What is in a file of features; `str()` is the line that a tool prints."""

    path: Path
    count: int  # videos
    dim: int
    missing: tuple[tuple[str, str], ...]
    was_there: bool  # made from the same request before; nothing was done

    def __str__(self) -> str:
        line = f"{share(self.count, self.missing)} videos x {self.dim} features in {self.path}"
        return f"{line}; they were there, of the same request" if self.was_there else line


@dataclass(frozen=True)
class Index:
    """Features of a list, and what is needed to search in them without it: a file that `extract_features` wrote."""

    path: Path
    request: Request
    features: Features
    names: Array  # (N,) str, as in the list
    start: Array  # (N,) float64, seconds; nan: the video's own start
    end: Array  # (N,) float64, seconds; nan: the video's own end
    root: Path  # the folder that the names are relative to
    classes: tuple[str, ...]

    def videos(self, rows: Sequence[int], root: Path | None = None) -> VideoList:
        """List the videos of some rows of the features; `root` is where they are now, if they were moved."""
        root = self.root if root is None else root
        names = tuple(str(self.names[row]) for row in rows)
        records = tuple(
            VideoRecord(
                str(root / name),
                int(self.features.label[row]),
                _seconds(self.start[row]),
                _seconds(self.end[row]),
            )
            for name, row in zip(names, rows, strict=True)
        )
        return VideoList(self.path, root, names, records, self.classes)


def _seconds(time: float) -> float | None:
    return None if math.isnan(time) else float(time)


def share(found: int, missing: Sequence[object]) -> str:
    """Say how many were found, and of how many where some are missing: `58 of 60 (2 missing)`."""
    return f"{found} of {found + len(missing)} ({len(missing)} missing)" if missing else str(found)


def extract_features(options: Options, videos: Path, out: Path, shard: str | None = None) -> Extracted:
    """Write the features of a list, or of a part of it, as an npz file.

    Its arrays: `features` (N, D) float32, `label` (N,) and `index` (N,) int64, `path` (N,) strings as in the
    list, `start` and `end` (N,) float64 seconds, nan where the list has none, `root`, the folder of the videos,
    `classes` (C,), their names, `missing` (M, 2) strings: path and reason of the videos that were left out, and
    `request`, a JSON text: the weights, the list and its files (`identify`), the clips and the part that they were made
    from.

    A file that was made from the same request is left as it is. One of another request is an error; a damaged
    one is made anew. The file appears under its name when it is complete.

    Args:
        options: Which backbone, which clips.
        videos: The list.
        out: The file; its folder is made.
        shard: `i/n`: only the videos i, i + n, i + 2n, … of the list, into a part beside `out` (out.npz:
            `out.i-of-n.npz`) that `merge` reads.

    Raises:
        ConfigError: There is no such shard.
        DataError: A video cannot be used, the file cannot be written, or one of another request is there.
    """
    part = None if shard is None else shard_of(shard)
    path = out if part is None else _part(out, *part)
    listed = read_list(videos, options.root, options.allow_external)
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        # The main process alone looks at the files, and shares what it found: on a network drive looking costs time.
        data = distributed.on_main(lambda: identify(listed))
        return extract_to(subject, listed, data, path, part or (0, 1))


def extract_to(
    subject: Subject,
    videos: VideoList,
    data: Tree,
    path: Path,
    part: tuple[int, int] = (0, 1),
    title: str = "features",
) -> Extracted:
    """Do what `extract_features` does, among processes that are joined already.

    Args:
        subject: The network.
        videos: The list.
        data: Its files, as `identify` describes them.
        path: The file.
        part: (i, n): only the videos i, i + n, i + 2n, … of the list.
        title: Of the progress bar.

    Raises:
        ConfigError: The processes were asked for different features.
        DataError: As there, or the file that is there has other classes.
    """
    request = _request(subject, videos, data, part)
    if any(other != request for other in distributed.gather_objects(request)):
        raise ConfigError(
            "the processes were started together and asked for different features: give all the same; parts "
            "(--shard) are for commands that are started apart"
        )
    done = distributed.on_main(lambda: _look(path, request, videos.classes))
    if done is None:
        features = extract(subject.backbone, videos, subject.test, subject.device, title, part)
        made = _index(path, request, features, videos)
        done = distributed.on_main(lambda: _write(made))
    return done


def open_index(path: Path, subject: Subject) -> Index:
    """Open the features of a whole list that were made with these weights and clips, to search in them.

    Nothing is read but what the file says of itself: all arrays are memory-mapped. Their sizes are checked, their
    checksums are not: that would read the whole file. `extract_features` does it, when it finds the file there.

    Raises:
        DataError: The file is missing, damaged, a part, of an earlier version, or of other weights or clips.
    """
    try:
        index = _read(path, "choose another --index, or make one with --gallery", whole=False)
    except _DamagedError as error:
        raise DataError(f"{error}: delete it, and make it again with --gallery") from None
    except OSError as error:
        raise DataError(f"cannot read index {path}: {error.strerror}; make it with --gallery") from None
    asked = {**index.request, **subject.made_with, "shard": [0, 1]}  # of any list
    asked["protocol"]["allow_missing"] = index.request["protocol"]["allow_missing"]  # of what is there now
    _agree(path, index.request, asked, "search with what it was made with, or choose another --index")
    return index


def merge(out: Path) -> Extracted:
    """Write the features of a list from its parts, which `extract_features` wrote beside `out`.

    Every video of the list is in one part, as a row or among the missing. The parts are left where they are.

    Raises:
        DataError: Parts are not there, damaged, or of several requests, or `out` is there of another one.
    """
    parts = _read_parts(out)
    request = {**parts[0].request, "shard": [0, 1]}
    done = _look(out, request, parts[0].classes)
    if done is not None:
        return done
    index, order = torch.sort(torch.cat([part.features.index for part in parts]))
    missing = sorted(pair for part in parts for pair in part.features.missing)
    if not len(index):
        raise DataError(f"none of the {len(missing)} videos can be read; the first: {missing[0][1]}")
    x, label = (torch.cat([getattr(part.features, name) for part in parts])[order] for name in ("x", "label"))
    names, start, end = (
        np.concatenate([getattr(part, name) for part in parts])[order.numpy()]
        for name in ("names", "start", "end")
    )
    features = Features(x, label, index, tuple(missing))
    return _write(Index(out, request, features, names, start, end, parts[0].root, parts[0].classes))


def shard_of(text: str) -> tuple[int, int]:
    """Read `i/n`, the i-th of n parts of a list, from 0.

    Raises:
        ConfigError: There is no such part.
    """
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise ConfigError(f"shard {text!r} is not i/n: write 0/4 for the first of 4 parts")
    number, parts = int(found[1]), int(found[2])
    if not parts:
        raise ConfigError(f"shard {text}: there are 1 or more parts, not 0")
    if number >= parts:
        raise ConfigError(f"shard {text}: parts count from 0, the last of {parts} is {parts - 1}/{parts}")
    return number, parts


def _part(out: Path, number: int, parts: int) -> Path:
    return out.with_name(f"{out.stem}.{number}-of-{parts}{out.suffix}")


def _request(subject: Subject, videos: VideoList, data: Tree, part: tuple[int, int]) -> Request:
    """Collect what decides what is in a file; `data` describes the files of the list."""
    asked = {"list": videos.fingerprint, "data": data, "videos": len(videos.records), "shard": list(part)}
    return {**subject.made_with, **asked}


# Files ------------------------------------------------------------------------------------------------------


def _index(path: Path, request: Request, features: Features, videos: VideoList) -> Index:
    rows = features.index.tolist()
    start, end = (
        np.array([getattr(videos.records[n], name) for n in rows], dtype=np.float64)  # None is nan
        for name in ("start", "end")
    )
    names = np.array([videos.names[n] for n in rows], dtype=np.str_)
    return Index(path, request, features, names, start, end, videos.root.resolve(), videos.classes)


def _summary(index: Index, was_there: bool) -> Extracted:
    count, dim = index.features.x.shape
    return Extracted(index.path, count, dim, index.features.missing, was_there)


class _DamagedError(DataError):
    """A file was cut short or changed since it was written."""


def _look(path: Path, request: Request, classes: tuple[str, ...]) -> Extracted | None:
    """Find what was made from the request before; else see that the file can be written, before the long work."""
    try:
        if path.exists():
            there = _read(path, _REMEDY)
            _agree(path, there.request, request, _REMEDY)
            if there.classes != classes:
                raise DataError(f"{path} was made with another classes.txt: {_REMEDY}")
            return _summary(there, was_there=True)
    except _DamagedError as error:
        _log.warning("%s; it is made anew", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    return None


def _read(path: Path, remedy: str, whole: bool = True) -> Index:
    """Open a file, its arrays memory-mapped; `whole` reads it to its end, so that its checksums are compared."""
    with open(path, "rb") as file:
        if file.read(2) not in (b"", b"PK"):  # what a zip file begins with, however short it was cut
            raise DataError(f"{path} is no npz file: {remedy}")
        try:
            with zipfile.ZipFile(file) as archive:
                members = {name: archive.getinfo(f"{name}.npy") for name in _ARRAYS}
                spoilt = archive.testzip() if whole else None
                if spoilt is not None:
                    raise ValueError(f"{spoilt} was changed")
                arrays = {name: _mapped(archive, info, path) for name, info in members.items()}
            x, label, index = (torch.from_numpy(arrays[name]) for name in ("features", "label", "index"))
            missing = tuple((str(video), str(reason)) for video, reason in arrays["missing"])
            request = json.loads(str(arrays["request"]))
            if "data" not in request:
                raise DataError(
                    f"{path} was written by an earlier version, which did not record the files that its features are "
                    f"of: {remedy}"
                )
            return Index(
                path,
                request,
                Features(x, label, index, missing),
                arrays["path"],
                arrays["start"],
                arrays["end"],
                Path(str(arrays["root"])),
                tuple(arrays["classes"].tolist()),
            )
        except DataError:
            raise
        except KeyError as error:
            raise DataError(f"{path} lacks {error} and was not written by this version: {remedy}") from None
        except Exception as error:  # numpy and zipfile have no common type for what they cannot read
            raise _DamagedError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _mapped(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> Array:
    """Map an array of an npz file that is not compressed, as a zip file holds it: behind a header of its own."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        shape, columns_first, dtype = read(member)
        header = member.tell()
    size = math.prod(shape) * dtype.itemsize
    if info.compress_type != zipfile.ZIP_STORED or columns_first or header + size != info.file_size:
        raise ValueError(f"{info.filename} is compressed, turned, or not as long as it says")
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2").tolist()  # of its name, and of what else is said of it
    begin = info.header_offset + 30 + sum(lengths) + header
    if not size:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype, "c", begin, shape)  # pages that nobody writes to stay those of the file


def _write(index: Index) -> Extracted:
    features = index.features
    arrays = {
        "features": features.x.numpy(),
        "label": features.label.numpy(),
        "index": features.index.numpy(),
        "path": index.names,
        "start": index.start,
        "end": index.end,
        "root": np.array(str(index.root)),
        "classes": np.array(index.classes, dtype=np.str_),
        "missing": np.array(features.missing, dtype=np.str_).reshape(-1, 2),
        "request": np.array(json.dumps(index.request)),
    }
    try:
        with replacing(index.path) as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                # As savez does it, but the numbers begin at a multiple of 64 bytes: they are mapped where they lie.
                fixed = 30 + len(info.filename) + 4 + 20  # the header, and what it tells of a large file
                fill = -(file.tell() + fixed) % 64
                info.extra = np.array([0xD935, fill], "<u2").tobytes() + bytes(fill)
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
    except OSError as error:
        raise DataError(f"cannot write {index.path}: {error.strerror or error}") from None
    return _summary(index, was_there=False)


def _agree(path: Path, there: Request, asked: Request, remedy: str) -> None:
    """Refuse a file that was made from another request, with all that differs."""
    differs = mismatches(there, asked)
    if differs:
        raise DataError(f"{path} holds features of another request ({differs}): {remedy}")


def mismatches(there: Request, asked: Request) -> str:
    """List in words what differs between two requests; empty where nothing does."""
    return "; ".join(
        f"{name} {'nothing' if a is None else a} there, {'nothing' if b is None else b} asked for"
        for name, a, b in differences(there, asked)
    )


def _read_parts(out: Path) -> list[Index]:
    """Read all parts of a file; check that they are all, of one request, and complete."""
    pattern = re.compile(rf"{re.escape(out.stem)}\.(0|[1-9]\d*)-of-([1-9]\d*){re.escape(out.suffix)}")
    try:
        names = [found for path in out.parent.iterdir() if (found := pattern.fullmatch(path.name))]
    except OSError as error:
        raise DataError(f"cannot read {out.parent}: {error.strerror}") from None
    if not names:
        raise DataError(f"there is no part of {out}, such as {_part(out, 0, 4)}: extract with --shard 0/4 …")
    counts = sorted({int(found[2]) for found in names})
    if len(counts) > 1:
        raise DataError(
            f"beside {out} are parts of {' and of '.join(map(str, counts))}: delete those that are not meant"
        )
    parts, there = counts[0], {int(found[1]) for found in names}
    if len(there) < parts:
        lacking = [f"{n}/{parts}" for n in islice((n for n in range(parts) if n not in there), 10)]
        more = ", …" if parts - len(there) > 10 else ""
        raise DataError(
            f"{parts - len(there)} of {parts} parts of {out} are not there: extract with --shard "
            f"{', '.join(lacking)}{more}"
        )
    contents: list[Index] = []
    for number in range(parts):
        path = _part(out, number, parts)
        try:
            content = _read(path, _REMEDY)
        except _DamagedError as error:
            raise DataError(f"{error}: extract again with --shard {number}/{parts}") from None
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from None
        first = contents[0].request if contents else content.request
        remedy = f"delete it, and extract with --shard {number}/{parts}"
        _agree(path, content.request, {**first, "shard": [number, parts]}, remedy)
        wanted = range(number, first["videos"], parts)
        features = content.features
        rows = features.index.tolist()
        if len(rows) + len(features.missing) != len(wanted) or any(row not in wanted for row in rows):
            raise DataError(f"{path} does not hold the {len(wanted)} videos of its part: {remedy}")
        contents.append(content)
    return contents
