"""Features of a list, into a file: at once, or in parts that are merged."""

import json
import logging
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vidssl import comm
from vidssl.config import differences
from vidssl.data.records import VideoList, read_list
from vidssl.engine.run import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import extract
from vidssl.files import replacing
from vidssl.jobs.backbones import Options, Subject, load_subject
from vidssl.jobs.retrieve import share
from vidssl.types import Features

_log = logging.getLogger(__name__)
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


def extract_features(options: Options, videos: Path, out: Path, shard: str | None = None) -> Extracted:
    """Write the features of a list, or of a part of it, as an npz file.

    Its arrays: `features` (N, D) float32, `label` (N,) and `index` (N,) int64, `path` (N,) strings as in the
    list, `missing` (M, 2) strings: path and reason of the videos that were left out, and `request`, a JSON
    text: the weights, the list, the clips and the part that they were made from.

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
    part = None if shard is None else _shard(shard)
    path = out if part is None else _part(out, *part)
    listed = read_list(videos, options.root, options.allow_external)
    with comm.joined(choose_device(options.device)):
        subject = load_subject(options)
        part = part or (0, 1)
        request = _request(subject, listed, part)
        if any(other != request for other in comm.gather_objects(request)):
            raise ConfigError(
                "the processes were started together and asked for different features: give all the same; parts "
                "(--shard) are for commands that are started apart"
            )
        # The main process alone looks, and tells: on a network drive another might see another folder.
        done = comm.on_main(lambda: _look(path, request))
        if done is None:
            features = extract(subject.backbone, listed, subject.test, subject.device, shard=part)
            names = [listed.names[n] for n in features.index.tolist()]
            content = _Content(request, features, names)
            done = comm.on_main(lambda: _write(path, content))
    return done


def merge(out: Path) -> Extracted:
    """Write the features of a list from its parts, which `extract_features` wrote beside `out`.

    Every video of the list is in one part, as a row or among the missing. The parts are left where they are.

    Raises:
        DataError: Parts are not there, damaged, or of several requests, or `out` is there of another one.
    """
    parts = _read_parts(out)
    request = {**parts[0].request, "shard": [0, 1]}
    done = _look(out, request)
    if done is not None:
        return done
    index, order = torch.sort(torch.cat([part.features.index for part in parts]))
    missing = sorted(pair for part in parts for pair in part.features.missing)
    if not len(index):
        raise DataError(f"none of the {len(missing)} videos can be read; the first: {missing[0][1]}")
    x, label = (torch.cat([getattr(part.features, name) for part in parts])[order] for name in ("x", "label"))
    names = [name for part in parts for name in part.names]
    features = Features(x, label, index, tuple(missing))
    return _write(out, _Content(request, features, [names[n] for n in order.tolist()]))


def _shard(text: str) -> tuple[int, int]:
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


def _request(subject: Subject, videos: VideoList, shard: tuple[int, int]) -> Request:
    """Tell what decides the features: not where files lie, nor how fast they are read."""
    told = subject.describe()
    weights = {"sha256": told["checkpoint"].get("sha256")}
    if weights["sha256"] is None:
        weights = {"seed": subject.run.seed, "backbone": told["config"]["backbone"]}
    protocol = {name: value for name, value in told["protocol"].items() if name != "cache"}
    return {
        "weights": weights,
        "list": videos.fingerprint,
        "videos": len(videos.records),
        "protocol": protocol,
        "shard": list(shard),
    }


# Files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Content:
    request: Request
    features: Features
    names: list[str]  # as in the list

    def summary(self, path: Path, was_there: bool) -> Extracted:
        count, dim = self.features.x.shape
        return Extracted(path, count, dim, self.features.missing, was_there)


class _DamagedError(DataError):
    """A file was cut short or changed since it was written."""


def _look(path: Path, request: Request) -> Extracted | None:
    """Find what was made from the request before; else see that the file can be written, before the long work."""
    try:
        if path.exists():
            there = _read(path)
            _agree(path, there.request, request, "delete it, or choose another --out")
            return there.summary(path, was_there=True)
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


def _read(path: Path) -> _Content:
    """Read a file to its end, so that its checksums are compared."""
    with open(path, "rb") as file:
        if file.read(2) not in (b"", b"PK"):  # what a zip file begins with, however short it was cut
            raise DataError(f"{path} is no npz file: choose another --out")
        file.seek(0)
        try:
            with np.load(file) as opened:
                arrays = {name: opened[name] for name in opened.files}
            return _content(arrays)
        except KeyError:
            raise DataError(
                f"{path} was not written by this version: delete it, or choose another --out"
            ) from None
        except Exception as error:  # numpy and zipfile have no common type for what they cannot read
            raise _DamagedError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _content(arrays: Mapping[str, Any]) -> _Content:
    x, label, index = (torch.from_numpy(arrays[name]) for name in ("features", "label", "index"))
    missing = tuple((str(video), str(reason)) for video, reason in arrays["missing"])
    request = json.loads(str(arrays["request"]))
    return _Content(request, Features(x, label, index, missing), arrays["path"].tolist())


def _write(path: Path, content: _Content) -> Extracted:
    features = content.features
    try:
        with replacing(path) as file:
            np.savez(
                file,
                features=features.x.numpy(),
                label=features.label.numpy(),
                index=features.index.numpy(),
                path=np.array(content.names, dtype=np.str_),
                missing=np.array(features.missing, dtype=np.str_).reshape(-1, 2),
                request=np.array(json.dumps(content.request)),
            )
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    return content.summary(path, was_there=False)


def _agree(path: Path, there: Request, asked: Request, remedy: str) -> None:
    """Refuse a file that was made from another request, with all that differs."""
    differs = [
        f"{name} {'nothing' if b is None else b} there, {'nothing' if a is None else a} asked for"
        for name, a, b in differences(asked, there)
    ]
    if differs:
        raise DataError(f"{path} holds features of another request ({'; '.join(differs)}): {remedy}")


def _read_parts(out: Path) -> list[_Content]:
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
    contents: list[_Content] = []
    for number in range(parts):
        path = _part(out, number, parts)
        try:
            content = _read(path)
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
