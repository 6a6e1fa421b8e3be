"""The command `extract`: write the features of a list into a folder, at once or in parts that are merged."""

import argparse
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from vidssl import distributed
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, Subject, load_subject, network_options
from vidssl.commands.results import format_count
from vidssl.config import Tree
from vidssl.data.fingerprint import completed, identify
from vidssl.data.read_input import read_input
from vidssl.data.time_windows import TimeWindows, cut_into_windows, parse_windows
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.feature_folder import (
    DamagedFolderError,
    FeatureFolder,
    claim_features,
    read_folder,
    write_folder,
)
from vidssl.evaluation.features import TestClips, extract
from vidssl.evaluation.result_files import describe_changes
from vidssl.output_folder import only_run_in
from vidssl.types import Features
from vidssl.worker_pool import Pool, ordered

_log = logging.getLogger(__name__)
_REMEDY = "choose another --out"
PARTS = ".parts"  # folder below the output, for the parts until all are there


@dataclass(frozen=True)
class Extracted:
    """What is in a folder of features; `str()` is the line that the command prints."""

    path: Path
    count: int  # videos, or windows
    dim: int
    missing: tuple[tuple[str, str], ...]  # path and reason
    existed: bool  # extracted by the same request before; nothing was done
    windows: bool  # whether the rows are windows of the videos

    def __str__(self) -> str:
        unit = "windows" if self.windows else "videos"
        line = f"{format_count(self.count, self.missing)} {unit} x {self.dim} features in {self.path}"
        return f"{line}; already extracted" if self.existed else line


class Elsewhere(Protocol):
    """Other processes that extract a list in parts, such as those of `vidssl.interop.ray`."""

    @property
    def pool(self) -> Pool:
        """Runs tasks that need no network."""

    def extract(self, subject: Subject, videos: VideoList, path: Path, request: Tree) -> Sequence[FeatureFolder]:
        """Extract a list by `write_part`, into folders below `path / PARTS`."""


def run(parsed: argparse.Namespace, elsewhere: Elsewhere | None = None) -> None:
    """Extract features, in this process or `elsewhere`, or merge parts."""
    if parsed.merge:
        if [parsed.input, parsed.checkpoint, parsed.shard, parsed.window, parsed.stride] != [None] * 5:
            raise ConfigError("--merge needs --out only: the parts record how they were made")
        found = merge(parsed.out)
    elif parsed.input is None or parsed.checkpoint is None:
        raise ConfigError("INPUT and --checkpoint are required, except with --merge")
    else:
        windows = parse_windows(parsed.window, parsed.stride)
        found = extract_features(network_options(parsed), parsed.input, parsed.out, parsed.shard, windows, elsewhere)
    print_results(parsed, found, found)


def extract_features(
    options: LoadOptions,
    videos: Path,
    out: Path,
    shard: str | None = None,
    windows: TimeWindows | None = None,
    elsewhere: Elsewhere | None = None,
) -> Extracted:
    """Write the features of a list, or of a part of it, into a folder (`vidssl.evaluation.feature_folder`).

    A folder that was extracted by the same request is left as it is. One of another request is an error; a damaged or
    incomplete one is extracted again. With a `shard` i/n only the videos i, i + n, i + 2n, … of the list are extracted,
    into the folder `out.i-of-n`, for `merge`; rows of one file stay together (`shared_decoding.file_numbers`).
    With `windows` there is a row for each window of the videos, and `index` is the number of the window.
    """
    part = None if shard is None else shard_of(shard)
    path = out if part is None else _part(out, *part)
    claim_features(path, [videos])
    listed = read_input(videos, options.root, options.allow_external)
    with distributed.joined(choose_device(options.device)):
        subject = load_subject(options)
        # Only the main process reads the sizes of the files: on a network drive that takes time.
        data = distributed.on_main(lambda: identify(listed))
        return extract_to(subject, listed, data, path, part or (0, 1), windows=windows, elsewhere=elsewhere)


def extract_to(
    subject: Subject,
    videos: VideoList,
    data: Tree,
    path: Path,
    part: tuple[int, int] = (0, 1),
    title: str = "features",
    windows: TimeWindows | None = None,
    elsewhere: Elsewhere | None = None,
) -> Extracted:
    """Do what `extract_features` does, in processes that have joined already.

    `data` describes the files of the list (`identify`); `part` (i, n) is the i-th of n parts of it.
    """
    more = {} if windows is None else {"windows": asdict(windows)}  # not null without: older folders stay valid
    request = subject.request(list=videos.fingerprint, data=data, videos=len(videos.records), shard=part, **more)
    if any(other != request for other in distributed.gather_objects(request)):
        raise ConfigError("processes of one run have different arguments: start each --shard as a separate command")
    done = distributed.on_main(lambda: _find(path, request, videos.classes))
    if done is None:
        claim_features(path, [videos.path])
        with only_run_in(path):
            if windows is not None:
                videos = windows_of(videos, windows, subject.test, ordered if elsewhere is None else elsewhere.pool)
            if elsewhere is None:
                features = extract(subject.encoder, videos, subject.test, subject.device, title, part)
                parts = [_folder(features, videos, path, request)]
            else:
                parts = [*elsewhere.extract(subject, videos, path, request)]
                for _, reason in sorted(gap for part in parts for gap in part.features.missing):
                    _log.warning("skipped: %s", reason)
                _check_rows(parts)
            done = distributed.on_main(lambda: _write(path, request, parts))
    if elsewhere is not None:
        shutil.rmtree(path / PARTS, ignore_errors=True)
    return done


def write_part(encode: Callable[[], Features], videos: VideoList, path: Path, request: Tree) -> Extracted:
    """Write the features of some rows of a list into a folder, unless those of this request are there."""
    done = _find(path, request, videos.classes)
    return done or _write(path, request, [_folder(encode(), videos, path, request)])


def _folder(features: Features, videos: VideoList, path: Path, request: Tree) -> FeatureFolder:
    rows = features.index.tolist()
    names = [videos.names[n] for n in rows]
    spans = [(record.start, record.end, record.fps) for record in map(videos.records.row, rows)]
    return FeatureFolder(path, request, features, names, spans, videos.root.resolve(), videos.classes)


def windows_of(videos: VideoList, windows: TimeWindows, test: TestClips, pool: Pool = ordered) -> VideoList:
    """Cut a list into windows on the main process, for all processes."""
    return distributed.on_main(
        lambda: cut_into_windows(
            videos,
            windows,
            test,
            workers=test.workers,
            timeout=test.timeout,
            keep_missing=test.allow_missing,
            pool=pool,
        )
    )


def open_index(path: Path, subject: Subject) -> FeatureFolder:
    """Open the features of a whole list that were extracted with these weights and clips, to search in them.

    The array is memory-mapped and its checksum is not compared: that would read all of it.
    """
    remedy, again = "choose another --index, or extract one with --gallery", "extract it with --gallery"
    index = _open(path, remedy, again, verify=False)
    wanted = {**index.request, **subject.request(shard=(0, 1))}  # of any list
    wanted["protocol"]["allow_missing"] = index.request["protocol"]["allow_missing"]  # either is fine here
    _check_request(index, wanted, "search with the same network and clips, or choose another --index")
    return index


def merge(out: Path) -> Extracted:
    """Write the features of a list from its parts, which `extract_features` wrote beside `out` and which are kept."""
    parts = _read_parts(out)
    request = {**parts[0].request, "shard": [0, 1]}
    if done := _find(out, request, parts[0].classes):
        return done
    _check_rows(parts)
    claim_features(out)
    with only_run_in(out):
        return _write(out, request, parts)


def _check_rows(parts: Sequence[FeatureFolder]) -> None:
    if not any(len(part.names) for part in parts):
        missing = sorted(gap for part in parts for gap in part.features.missing)
        raise DataError(f"none of the {len(missing)} videos can be read; the first: {missing[0][1]}")


def shard_of(text: str) -> tuple[int, int]:
    """Parse `i/n`, the i-th of n parts of a list, from 0."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None or int(found[1]) >= int(found[2]):
        raise ConfigError(f"shard {text[:40]!r} is not i/n with i < n: write 0/4 for the first of 4 parts")
    return int(found[1]), int(found[2])


def _part(out: Path, number: int, parts: int) -> Path:
    return out.with_name(f"{out.name}.{number}-of-{parts}")


def _write(path: Path, request: Tree, parts: Sequence[FeatureFolder]) -> Extracted:
    write_folder(path, request, parts)
    return _summary(read_folder(path, _REMEDY, verify=False), existed=False)


def _summary(folder: FeatureFolder, existed: bool) -> Extracted:
    count, dim = folder.features.x.shape
    return Extracted(folder.path, count, dim, folder.features.missing, existed, "windows" in folder.request)


def _find(path: Path, request: Tree, classes: tuple[str, ...]) -> Extracted | None:
    """Find features of the same request; those of another request are an error."""
    try:
        if path.exists() and any(not file.name.startswith(".") for file in path.iterdir()):
            stored = read_folder(path, _REMEDY)
            _check_request(stored, request, _REMEDY)
            if stored.classes != classes:
                raise DataError(f"{path} was extracted with another classes.txt: {_REMEDY}")
            return _summary(stored, existed=True)
    except DamagedFolderError as error:
        _log.warning("%s; extracting it again", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; choose another --out") from None
    return None


def _check_request(folder: FeatureFolder, requested: Tree, remedy: str) -> None:
    stored = {**folder.request, "data": completed(folder.request["data"], requested["data"])}
    if changes := describe_changes(stored, requested):
        raise DataError(f"{folder.path} holds features of another request ({changes}): {remedy}")


def _read_parts(out: Path) -> list[FeatureFolder]:
    """Open all parts of a folder; check that they are complete and of one request."""
    pattern = re.compile(rf"{re.escape(out.name)}\.\d+-of-(\d+)")
    counts = {int(name[1]) for path in out.parent.glob("*") if (name := pattern.fullmatch(path.name))}
    if len(counts) != 1:
        found = " and ".join(map(str, sorted(counts))) or "none"
        raise DataError(f"{out} needs parts of one --shard i/n, found n = {found}: extract all, move others away")
    (count,) = counts
    missing = [f"{n}/{count}" for n in range(count) if not _part(out, n, count).exists()]
    if missing:
        named = ", ".join(missing[:10]) + ", …" * (len(missing) > 10)
        raise DataError(f"{len(missing)} of {count} parts of {out} are missing: extract with --shard {named}")
    parts: list[FeatureFolder] = []
    for n in range(count):
        remedy = f"extract with --shard {n}/{count}"
        parts.append(_open(_part(out, n, count), f"move it away, and {remedy}", remedy))
        _check_request(parts[n], {**parts[0].request, "shard": [n, count]}, f"move it away, and {remedy}")
    return parts


def _open(path: Path, remedy: str, again: str, verify: bool = True) -> FeatureFolder:
    """Open a folder that must exist: `remedy` is for another kind of folder, `again` for one that cannot be read."""
    try:
        return read_folder(path, remedy, verify)
    except DamagedFolderError as error:
        raise DataError(f"{error}: {again}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {again}") from None
