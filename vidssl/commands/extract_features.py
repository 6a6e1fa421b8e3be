"""Extract the features of a list into a folder: at once, or in parts that are merged."""

import logging
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidssl import distributed
from vidssl.commands.load import LoadOptions, Subject, format_count, load_subject
from vidssl.config import Tree, differences
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.config_schema import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.feature_folder import DamagedFolderError, FeatureFolder, check_name, read_folder, write_folder
from vidssl.evaluation.features import extract

_log = logging.getLogger(__name__)
_REMEDY = "delete it, or choose another --out"
_AGAIN = "name a folder as --out, and extract again"


@dataclass(frozen=True)
class Extracted:
    """What is in a folder of features; `str()` is the line that the command prints."""

    path: Path
    count: int  # videos
    dim: int
    missing: tuple[tuple[str, str], ...]  # path and reason
    existed: bool  # extracted by the same request before; nothing was done

    def __str__(self) -> str:
        line = f"{format_count(self.count, self.missing)} videos x {self.dim} features in {self.path}"
        return f"{line}; already extracted" if self.existed else line


def extract_features(options: LoadOptions, videos: Path, out: Path, shard: str | None = None) -> Extracted:
    """Write the features of a list, or of a part of it, into a folder (`vidssl.evaluation.feature_folder`).

    A folder that was extracted by the same request is left as it is. One of another request is an error; a damaged or
    incomplete one is extracted again.

    Args:
        options: The network and its clips.
        videos: The list.
        out: The folder.
        shard: `i/n`: only the videos i, i + n, i + 2n, … of the list, into the folder `out.i-of-n`, for `merge`.

    Raises:
        ConfigError: The shard is not one.
        DataError: A video cannot be used, the folder cannot be written, or it holds something else.
    """
    part = None if shard is None else shard_of(shard)
    check_name(out, _AGAIN)  # not only the name of the part
    path = out if part is None else _part(out, *part)
    listed = read_list(videos, options.root, options.allow_external)
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        # Only the main process reads the sizes of the files: on a network drive that takes time.
        data = distributed.on_main(lambda: identify(listed))
        return extract_to(subject, listed, data, path, part or (0, 1))


def extract_to(
    subject: Subject, videos: VideoList, data: Tree, path: Path, part: tuple[int, int] = (0, 1), title: str = "features"
) -> Extracted:
    """Do what `extract_features` does, in processes that have joined already.

    `data` describes the files of the list (`identify`); `part` (i, n) are the videos i, i + n, i + 2n, … of it.

    Raises:
        ConfigError: The processes have different requests.
        DataError: As of `extract_features`, or the folder was extracted with other classes.
    """
    listed = {"list": videos.fingerprint, "data": data, "videos": len(videos.records), "shard": list(part)}
    request = {**subject.made_with, **listed}
    if any(other != request for other in distributed.gather_objects(request)):
        raise ConfigError(
            "processes that are started together must have the same arguments; to extract different parts, start "
            "separate commands with --shard"
        )
    done = distributed.on_main(lambda: _find(path, request, videos.classes))
    if done is None:
        features = extract(subject.backbone, videos, subject.test, subject.device, title, part)
        rows = features.index.tolist()
        names = [videos.names[n] for n in rows]
        spans = [(videos.records[n].start, videos.records[n].end) for n in rows]
        folder = FeatureFolder(path, request, features, names, spans, videos.root.resolve(), videos.classes)
        done = distributed.on_main(lambda: _write(path, request, [folder]))
    return done


def open_index(path: Path, subject: Subject) -> FeatureFolder:
    """Open the features of a whole list that were extracted with these weights and clips, to search in them.

    The array is memory-mapped and its checksum is not compared: that would read all of it.

    Raises:
        DataError: The folder is missing, damaged, a part, or of other weights or clips.
    """
    try:
        index = read_folder(path, "choose another --index, or extract one with --gallery", verify=False)
    except DamagedFolderError as error:
        raise DataError(f"{error}: delete it, and extract it again with --gallery") from None
    except OSError as error:
        raise DataError(f"cannot read index {path}: {error.strerror}; extract it with --gallery") from None
    wanted = {**index.request, **subject.made_with, "shard": [0, 1]}  # of any list
    wanted["protocol"]["allow_missing"] = index.request["protocol"]["allow_missing"]  # either is fine here
    _check_request(path, index.request, wanted, "search with the same network and clips, or choose another --index")
    return index


def merge(out: Path) -> Extracted:
    """Write the features of a list from its parts, which `extract_features` wrote beside `out`.

    Every video of the list must be in its part, as a row or among the missing. The parts are kept.

    Raises:
        DataError: Parts are missing, damaged or of different requests, or `out` holds something else.
    """
    check_name(out, _AGAIN)
    parts = _read_parts(out)
    request = {**parts[0].request, "shard": [0, 1]}
    done = _find(out, request, parts[0].classes)
    if done is None and not any(len(part.names) for part in parts):
        missing = sorted(gap for part in parts for gap in part.features.missing)
        raise DataError(f"none of the {len(missing)} videos can be read; the first: {missing[0][1]}")
    return done or _write(out, request, parts)


def shard_of(text: str) -> tuple[int, int]:
    """Parse `i/n`, the i-th of n parts of a list, from 0.

    Raises:
        ConfigError: There is no such part.
    """
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise ConfigError(f"shard {text!r} is not i/n: write 0/4 for the first of 4 parts")
    number, parts = int(found[1]), int(found[2])
    if not parts:
        raise ConfigError(f"shard {text}: the number of parts must be at least 1")
    if number >= parts:
        raise ConfigError(f"shard {text}: parts count from 0, the last of {parts} is {parts - 1}/{parts}")
    return number, parts


def mismatches(stored: Tree, requested: Tree) -> str:
    """List what differs between two requests as text; empty if nothing does."""
    return "; ".join(
        f"{name} {'nothing' if a is None else a} stored, {'nothing' if b is None else b} requested"
        for name, a, b in differences(stored, requested)
    )


def _part(out: Path, number: int, parts: int) -> Path:
    return out.with_name(f"{out.name}.{number}-of-{parts}")


def _write(path: Path, request: Tree, parts: Sequence[FeatureFolder]) -> Extracted:
    write_folder(path, request, parts)
    return _summary(read_folder(path, _REMEDY, verify=False), existed=False)


def _summary(folder: FeatureFolder, existed: bool) -> Extracted:
    count, dim = folder.features.x.shape
    return Extracted(folder.path, count, dim, folder.features.missing, existed)


def _find(path: Path, request: Tree, classes: tuple[str, ...]) -> Extracted | None:
    """Find features of the same request; without them check that the folder can be written, before the long work."""
    check_name(path, _AGAIN)
    try:
        if path.exists() and any(path.iterdir()):
            stored = read_folder(path, _REMEDY)
            _check_request(path, stored.request, request, _REMEDY)
            if stored.classes != classes:
                raise DataError(f"{path} was extracted with another classes.txt: {_REMEDY}")
            return _summary(stored, existed=True)
    except DamagedFolderError as error:
        _log.warning("%s; extracting it again", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    try:
        place = path if path.is_dir() else path.parent
        place.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    return None


def _check_request(path: Path, stored: Tree, requested: Tree, remedy: str) -> None:
    differs = mismatches(stored, requested)
    if differs:
        raise DataError(f"{path} holds features of another request ({differs}): {remedy}")


def _read_parts(out: Path) -> list[FeatureFolder]:
    """Open all parts of a folder; check that none is missing, and that they are of one request and complete."""
    pattern = re.compile(rf"{re.escape(out.name)}\.(0|[1-9]\d*)-of-([1-9]\d*)")
    try:
        names = [found for path in out.parent.iterdir() if (found := pattern.fullmatch(path.name))]
    except OSError as error:
        raise DataError(f"cannot read {out.parent}: {error.strerror}") from None
    counts = sorted({int(name[2]) for name in names})
    if not counts:
        raise DataError(f"{out} has no parts, such as {_part(out, 0, 4)}: extract with --shard 0/4 …")
    if len(counts) > 1:
        raise DataError(f"beside {out} are parts of {' and of '.join(map(str, counts))}: delete the wrong ones")
    count = counts[0]
    missing = sorted({*range(count)} - {int(name[1]) for name in names})
    if missing:
        shown = ", ".join([*(f"{n}/{count}" for n in missing[:10]), *["…"][: len(missing) > 10]])
        raise DataError(f"{len(missing)} of {count} parts of {out} are missing: extract with --shard {shown}")
    parts: list[FeatureFolder] = []
    for n in range(count):
        parts.append(_read_part(_part(out, n, count), (n, count), parts[0] if parts else None))
    return parts


def _read_part(path: Path, number: tuple[int, int], first: FeatureFolder | None) -> FeatureFolder:
    again = f"extract with --shard {number[0]}/{number[1]}"
    try:
        part = read_folder(path, f"delete it, and {again}")
    except DamagedFolderError as error:
        raise DataError(f"{error}: {again}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    request = {**(first or part).request, "shard": [*number]}
    _check_request(path, part.request, request, f"delete it, and {again}")
    wanted = range(number[0], request["videos"], number[1])
    rows = part.features.index.tolist()
    if len(rows) + len(part.features.missing) != len(wanted) or any(row not in wanted for row in rows):
        raise DataError(f"{path} does not hold the {len(wanted)} videos of its part: delete it, and {again}")
    return part
