"""Features of videos, in memory or as a folder, at once or in parts that are merged."""

import hashlib
import logging
import re
import shutil
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from typing_extensions import Unpack

from vidssl.base import distributed
from vidssl.base.command_line_and_notices import leave_out
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.output_folder import check_file, only_run_in, writing_file
from vidssl.base.progress import Report
from vidssl.base.types import Features
from vidssl.base.worker_pool import Pool, ordered
from vidssl.data.cut_windows import TimeWindows, cut_into_windows, parse_windows
from vidssl.data.dataset import SKIPPING
from vidssl.data.label_videos import label_videos
from vidssl.data.list_identity import identify
from vidssl.data.loader import file_numbers
from vidssl.data.read_labels import split_column
from vidssl.data.video_list import Records, VideoList
from vidssl.engine.interrupt import StopRequest
from vidssl.evaluation import features
from vidssl.evaluation.feature_table import check_table, write_table
from vidssl.evaluation.features import claim_features
from vidssl.evaluation.result_files import describe_changes
from vidssl.jobs.job import EncoderOptions, File, Model, NetworkOptions, Positive, Videos, job, path_of, read_videos
from vidssl.jobs.load_network import Subject, device_of, load_subject

_log = logging.getLogger(__name__)
_REMEDY = "choose another folder for the features"
_THERE = "%s holds these features already"
_OF_LIST = ("list", "data", "videos", "shard", "labels")  # of a request: what does not change the features of a video
FOLDER_REMEDY = "name a folder that vidssl extract has written"
_REMEDY_OF_SOURCES = "name features of this network and these clips, or leave features=FOLDER out"
_PARTS = ".parts"  # folder below the output, for the parts until all are there
_SECONDS = 60.0  # of work that a process loses at most if it is killed


class Cluster(Protocol):
    """Other processes that extract a list in parts, such as those of `vidssl.apps.cluster.commands_on_ray`."""

    @property
    def pool(self) -> Pool:
        """Runs tasks that need no network."""

    def extract(self, subject: Subject, videos: VideoList, rows: Sequence[int]) -> Iterator[Features]:
        """Extract rows of a list, part by part."""


@job
def extract(
    model: Model,
    videos: Videos,
    *,
    out: File | None = None,
    features: File | None = None,
    shard: str | None = None,
    window: Positive | None = None,
    stride: Positive | None = None,
    to: Literal["csv", "parquet"] | None = None,
    cluster: Cluster | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> Features:
    """Encode videos: one row of features for each, averaged over its clips and crops.

    With `out` they are written to a folder: features.npy, rows.csv and meta.json. If it has features of the same
    network and clips, only videos that are new or have changed are encoded, and those that the list lacks are left out.
    Features of another network or other clips are an error; a damaged folder is extracted again. Of a process that is
    killed all but the last minute is kept. `records` of the features has the file of each row and its span, start and
    end in seconds.

    Args:
        model: A file, folder or name, as `load_backbone` takes; `random` for the untrained backbone of `cfg`; a
            backbone of `load_backbone`; or any module from clips (B, 3, T, S, S) to features (B, D).
        videos: Videos: a list, a folder, a pattern, one file or several, or a list that was read.
        out: Folder for the features.
        features: Another folder of features, as `extract` writes them: what it has of these videos is not encoded.
        shard: Only part i/n of n, from 0, into a folder beside `out`, for `merge`; rows of one file stay together.
        window: One row for each window of a video, which lasts so long, seconds.
        stride: Seconds from the start of a window to the start of the next (default: the window).
        to: Also write features.csv or features.parquet into the folder: path, class, start, end and x0, x1, … of each
            row, for pandas, R and others. Paths are those of the list, or below the folder.
        cluster: Other processes that do the work.
        progress: Called with (videos done, all videos, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Raises:
        VidsslError: The network, its clips or a video cannot be used; the message has the remedy.
    """
    windows = parse_windows(window, stride)
    if to is not None:
        check_table(to)
    if out is None:
        if any(option is not None for option in (shard, cluster, to, features)):
            raise ConfigError("parts of a list, copied features and tables are written to folders: give out=FOLDER")
        return _in_memory(model, videos, windows, options)
    part = None if shard is None else shard_of(shard)
    path = Path(out) if part is None else _part(Path(out), *part)
    claim_features(path, [path_of(videos)])
    table = path / f"features.{to}"
    if to is not None:
        check_file(table)
    listed = read_videos(videos, options, required=windows is None)
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options).skipping()
        # Only the main process reads the sizes of the files: on a network drive that takes time.
        data = distributed.on_main(lambda: identify(listed))
        sources = [] if features is None else [Path(features)]
        extract_to(subject, listed, data, path, part or (0, 1), windows=windows, cluster=cluster, sources=sources)
        if to is not None:
            with only_run_in(path):
                distributed.on_main(lambda: _write_table(path, table))
    return loaded(path)


def _write_table(path: Path, table: Path) -> None:
    with writing_file(table):  # recorded: what a person changed is not replaced
        write_table(loaded(path), table)


@job
def merge(out: File) -> Features:
    """Write the features of a list from its parts, which `extract` wrote beside `out` and which are kept.

    Args:
        out: Folder for the features.
    """
    out = Path(out)
    parts = _read_parts(out)
    first, missing = parts[0], [gap for part in parts for gap in part.features.missing]
    request, made_by = {**first.request, "shard": [0, 1]}, first.features.made_by
    files = {path: state for part in parts for path, state in part.files.items()}
    features.check_missing(missing, len(missing) + sum(len(part.records) for part in parts), out)
    there = _stored(out, request, made_by)
    if there is not None and (there.request, there.classes, there.files) == (request, first.classes, files):
        _log.info(_THERE, out)
    else:
        features.claim_features(out)
        with only_run_in(out):
            rows = {n: part.records.row(row) for part in parts for row, n in enumerate(part.features.index.tolist())}

            def videos_of(index: list[int]) -> VideoList:
                return VideoList(out, Records(first.root, (rows[n] for n in index)), first.classes)

            pieces = [features.Piece.of(part.features) for part in parts]
            features.write_folder(out, request, videos_of, pieces, missing, files.__getitem__, made_by)
    return loaded(out)


def _in_memory(model: Model, videos: Videos, windows: TimeWindows | None, options: NetworkOptions) -> Features:
    listed = read_videos(videos, options, required=windows is None)
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options).skipping()
        rows = listed if windows is None else windows_of(listed, windows, subject.test)
        extracted = features.extract_features(subject.encoder, rows, subject.test, subject.device)
    records = rows.rows(extracted.index.tolist()).records
    return replace(extracted, records=records, windows=windows is not None, made_by=subject.made_by())


def load_features(path: File) -> Features:
    """Return the features of a folder that `extract` wrote, memory-mapped, with their videos.

    Args:
        path: The folder.

    Raises:
        DataError: The folder has no features, or one of its files is missing or was changed.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; vidssl extract writes features with out=FOLDER")
    return loaded(folder, verify=True)


def loaded(path: Path, verify: bool = False) -> Features:
    """Return the features of a folder as `load_features`; `verify` reads all files, to compare their checksums."""
    folder = features.read_folder(path, "name a folder that vidssl extract wrote", verify)
    windows = "windows" in folder.request
    return replace(folder.features, classes=folder.classes, records=folder.records, windows=windows, path=path)


def without_list(options: EncoderOptions) -> NetworkOptions:
    """Return options without those for reading a list and its labels, for one that was read."""
    of_list = ("root", "allow_external", "labels")
    return cast(NetworkOptions, {name: value for name, value in options.items() if name not in of_list})


def extract_to(
    subject: Subject,
    videos: VideoList,
    data: Tree,
    path: Path,
    part: tuple[int, int] = (0, 1),
    title: str = "features",
    windows: TimeWindows | None = None,
    cluster: Cluster | None = None,
    sources: Sequence[Path] = (),
) -> None:
    """Write the features of a list to a folder, unless they are there, in processes that have joined already.

    `data` describes the files of the list (`identify`); `part` (i, n) is the i-th of n parts of it. Rows that the
    folder, a run that was interrupted, or one of the folders `sources` has are taken from there.
    """
    more: Tree = {} if windows is None else {"windows": asdict(windows)}  # not null without: older folders stay valid
    if windows is not None and (labels := _file_of_labels(videos)) is not None:
        file, column = split_column(labels)  # some spans are labels of windows alone
        more["labels"] = hashlib.sha256(file.read_bytes() + column.encode()).hexdigest()
    request = subject.request(list=videos.fingerprint, data=data, videos=len(videos), shard=part, **more)
    if any(request_there != request for request_there in distributed.gather_objects(request)):
        raise ConfigError("processes of one run have different arguments: start each shard by itself")
    kept = _Kept(subject, path, request, sources)
    if distributed.on_main(lambda: kept.is_all_of(videos)):
        return
    distributed.together(partial(features.claim_features, path, [videos.path]))
    with only_run_in(path):
        if windows is not None:
            videos = windows_of(videos, windows, subject.test, ordered if cluster is None else cluster.pool)
        rows = np.flatnonzero(file_numbers(videos) % part[1] == part[0]).tolist()
        lacking = distributed.on_main(lambda: kept.find(videos, rows))
        with kept.stop.listening():
            if cluster is None:
                arguments = subject.encoder, videos, subject.test, subject.device, title, kept.is_due
                last = features.extract_features(*arguments, rows=lacking, keep=kept.keep)
                kept.pieces.append(features.Piece.of(last))
                missing = [*last.missing]
            else:
                missing = []
                for extracted in cluster.extract(subject, videos, lacking):
                    kept.keep(extracted)
                    missing += extracted.missing
                features.check_missing(missing, len(videos), videos.path)
            distributed.on_main(lambda: kept.write(missing))
            distributed.together(kept.stop.check)


class _Kept:
    """The features that folders have already, and those that are added; most is for the main process."""

    def __init__(self, subject: Subject, path: Path, request: Tree, sources: Sequence[Path]) -> None:
        self._subject, self._path, self._request, self._sources = subject, path, request, sources
        self.stop = StopRequest(f"the features so far are kept in {path}, the same command goes on")
        self._due = time.monotonic() + _SECONDS
        self.pieces = list[features.Piece]()  # of no part
        self._parts: list[list[features.Piece]] = [[]]  # at first those of runs that were interrupted

    def is_all_of(self, videos: VideoList) -> bool:
        """Whether the folder holds the features of a list; those of another network or other clips are an error."""
        self._made_by = self._subject.made_by()
        sources = [open_folder(path, FOLDER_REMEDY, FOLDER_REMEDY) for path in self._sources]
        for source in sources:
            _check_request(source, self._request, self._made_by, _REMEDY_OF_SOURCES, _OF_LIST)
        paths = [*sorted((self._path / _PARTS).glob("*")), self._path]
        stored = [_stored(path, self._request, self._made_by) for path in paths]
        self._folders, folder = [*sources, *filter(None, stored)], stored[-1]
        if folder is None or not (self._path / "meta.json").exists() or folder.classes != videos.classes:
            return False
        same = all(folder.request.get(key) == self._request.get(key) for key in ("list", "shard", "labels"))
        there = same and folder.root == videos.root.resolve() and features.Files(videos).have(folder.files)
        if there:
            _check_missing(folder, self._subject.test)
            _log.info(_THERE, self._path)
        return there

    def find(self, videos: VideoList, rows: Sequence[int]) -> list[int]:
        """Find the rows that can be taken; return the others."""
        files = features.Files(videos, rows)
        self._rows_of, self._state_of = videos.rows, cache(files.read)
        taken, dropped = features.find_rows(self._folders, videos, rows, files), 0
        for number, folder in enumerate(self._folders):
            pairs = [(row, n) for n, (of, row) in sorted(taken.items()) if of == number]
            columns = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
            piece = features.Piece(folder.features.x, *columns)
            (self._parts[0] if folder.path.parent == self._path / _PARTS else self.pieces).append(piece)
            used = {row for row, _ in pairs}  # one may be of several rows of the list, which are copies
            dropped += len(folder.records) - len(used) if folder.path == self._path else 0
        if not taken:  # other videos are a mistake by which features would be lost
            of_output = self._folders[len(self._sources) :]
            paths = {files.real_path(record.path) for folder in of_output for record in folder.records}
            if paths and paths.isdisjoint(files.real_path(record.path) for record in videos.records):
                raise DataError(f"{self._path} holds features of other videos, and of none of {videos.path}: {_REMEDY}")
        if self._folders:
            there = f"{len(taken)} of {len(rows)} {videos.unit}s were there"
            level = logging.WARNING if dropped else logging.INFO  # a folder that is not mounted loses them too
            _log.log(level, "%s: %s%s", self._path, there, f"; {dropped} other rows are dropped" if dropped else "")
        return [n for n in rows if n not in taken]

    def is_due(self) -> bool:
        """Whether a part ends here: after a minute, and at a signal."""
        return self.stop.signal is not None or time.monotonic() > self._due

    def keep(self, part: Features) -> None:
        """Write features to a part, which counts if this run is interrupted; called on all processes."""
        distributed.on_main(lambda: self._write_part(part))
        self._due = time.monotonic() + _SECONDS
        distributed.together(self.stop.check)

    def _write_part(self, part: Features) -> None:
        """Write a part, with some before it: folders of 1, 2, 4, … parts are few, and rows are written few times."""
        self._parts.append([features.Piece.of(part)])
        first = len(self._parts) & (len(self._parts) - 1)  # without the lowest bit
        path = self._path / _PARTS / f"{first:06d}"
        self._write(path, [*chain(*self._parts[first:])])
        for joined in path.parent.glob("*"):
            if joined.name > path.name:
                shutil.rmtree(joined)

    def write(self, missing: Sequence[tuple[str, str]]) -> None:
        """Write all features to the folder."""
        self._write(self._path, [*self.pieces, *chain(*self._parts)], missing)
        _log.info("%s: features that vidssl map --features and vidssl retrieval --index take", self._path)
        shutil.rmtree(self._path / _PARTS, ignore_errors=True)

    def _write(self, path: Path, pieces: list[features.Piece], missing: Sequence[tuple[str, str]] = ()) -> None:
        features.write_folder(path, self._request, self._rows_of, pieces, missing, self._state_of, self._made_by)


def windows_of(videos: VideoList, windows: TimeWindows, test: features.TestClips, pool: Pool = ordered) -> VideoList:
    """Cut a list into windows on the main process, for all processes, and label them by the file that labels it."""
    labels, records = _file_of_labels(videos), videos.records
    if labels is not None:  # its spans are rows, and are those of windows of their videos
        whole = {record.path for record in records if record.end is None and not record.start}
        rows = [n for n, row in enumerate(records) if row.path not in whole or (row.end is None and not row.start)]
        videos = videos.rows(rows)
    cut = partial(cut_into_windows, videos, windows, test, workers=test.workers, timeout=test.timeout)
    return distributed.on_main(lambda: label_videos(cut(keep_missing=test.skips, pool=pool), labels, add_spans=False))


def _file_of_labels(videos: VideoList) -> Path | None:
    return videos.label_source if isinstance(videos.label_source, Path) else None


def open_index(path: Path, subject: Subject) -> features.FeatureFolder:
    """Open the features of a whole list that were extracted with this network and comparable clips, to search in them.

    They are memory-mapped; their checksums are compared, as a damaged array has wrong neighbours.
    """
    remedy, again = "choose another index, or extract one with gallery=LIST", "extract it with gallery=LIST"
    index = open_folder(path, remedy, again)
    if index.request["shard"] != [0, 1]:
        raise DataError(f"{path} has a part of its list: merge the parts")
    if changes := features.feature_difference(index.features.made_by, subject.made_by()):
        raise DataError(f"{path} and the query differ ({changes}): use the same network and clips, or another index")
    _check_missing(index, subject.test)
    return index


def _check_missing(folder: features.FeatureFolder, test: features.TestClips) -> None:
    """Note the videos that features lack; a DataError if these settings leave none out."""
    missing = dict(folder.features.missing)  # a file may have several rows
    if missing and not test.skips:
        reasons = first_few(missing.values(), separator="; ")
        raise DataError(f"{folder.path} lacks {len(missing)} videos that cannot be read: {reasons}; {SKIPPING}")
    leave_out(missing.items())


def shard_of(text: str) -> tuple[int, int]:
    """Parse `i/n`, the i-th of n parts of a list, from 0."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ConfigError(f"shard {text[:40]!r} is not i/n with i < n: write 0/4 for the first of 4 parts")
    return int(match[1]), int(match[2])


def _part(out: Path, number: int, parts: int) -> Path:
    return out.with_name(f"{out.name}.{number}-of-{parts}")


def _stored(path: Path, request: Tree, made_by: Mapping[str, Any]) -> features.FeatureFolder | None:
    """Open a folder with features of any list; None if it has none, or is damaged.

    Features of another network or other clips are an error.
    """
    try:
        if path.exists() and any(file.name[0] != "." or file.name == features.NEW_FILES for file in path.iterdir()):
            folder = features.read_folder(path, _REMEDY)
            _check_request(folder, request, made_by, _REMEDY, _OF_LIST)
            return folder
    except features.DamagedFolderError as error:
        _log.warning("%s; extracting it again", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from None
    return None


def features_fit(folder: features.FeatureFolder, subject: Subject) -> bool:
    """Whether features are of a network and its clips, of whatever videos."""
    return not describe_changes(_deciding(folder.request, _OF_LIST), _deciding(subject.request(), _OF_LIST))


def _check_request(
    folder: features.FeatureFolder, request: Tree, made_by: Mapping[str, Any], remedy: str, ignored: Container[str] = ()
) -> None:
    stored, current = _deciding(folder.request, ignored), _deciding(request, ignored)
    names = folder.features.made_by["network"], made_by["network"]
    if stored["weights"] != current["weights"] and names[0] != names[1]:
        stored, current = ({"network": name} for name in names)
    if changes := describe_changes(stored, current):
        raise DataError(f"{folder.path} holds features of another request ({changes}): {remedy}")


def _deciding(request: Tree, ignored: Container[str]) -> Tree:
    """Return a request without what does not change the features of a video: whether others may be left out."""
    protocol = {name: value for name, value in request.get("protocol", {}).items() if name != "allow_missing"}
    return {key: value for key, value in request.items() if key not in ignored} | {"protocol": protocol}


def _read_parts(out: Path) -> list[features.FeatureFolder]:
    """Open all parts of a folder; check that they are complete and of one request."""
    pattern = re.compile(rf"{re.escape(out.name)}\.\d+-of-(\d+)")
    counts = {int(name[1]) for path in out.parent.glob("*") if (name := pattern.fullmatch(path.name))}
    if len(counts) != 1:
        counted = " and ".join(map(str, sorted(counts))) or "none"
        raise DataError(f"{out} needs parts of one shard i/n, found n = {counted}: extract all, move others away")
    (count,) = counts
    missing = [f"{n}/{count}" for n in range(count) if not _part(out, n, count).exists()]
    if missing:
        named = ", ".join(missing[:10]) + ", …" * (len(missing) > 10)
        raise DataError(f"{len(missing)} of {count} parts of {out} are missing: extract with shard {named}")
    parts: list[features.FeatureFolder] = []
    for n in range(count):
        remedy = f"extract with shard {n}/{count}"
        parts.append(open_folder(_part(out, n, count), f"move it away, and {remedy}", remedy))
        request, made_by = {**parts[0].request, "shard": [n, count]}, parts[0].features.made_by
        _check_request(parts[n], request, made_by, f"move it away, and {remedy}")
    return parts


def open_folder(path: Path, remedy: str, again: str) -> features.FeatureFolder:
    """Open features that must exist: `remedy` is for another kind of folder, `again` for one that cannot be read."""
    try:
        return features.read_folder(path, remedy)
    except features.DamagedFolderError as error:
        raise DataError(f"{error}: {again}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {again}") from None
