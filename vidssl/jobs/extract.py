"""Features of videos, in memory or as a folder, at once or in parts that are merged."""

import hashlib
import logging
import re
import shutil
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

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
from vidssl.evaluation import features
from vidssl.evaluation.feature_table import check_table, write_table
from vidssl.evaluation.result_files import describe_changes
from vidssl.jobs.job import File, Model, NetworkOptions, Positive, Videos, job, path_of, read_videos
from vidssl.jobs.load_network import Subject, device_of, load_subject

_log = logging.getLogger(__name__)
_REMEDY = "choose another folder for the features"
_THERE = "%s holds these features already"
_OF_LIST = ("list", "data", "videos", "shard", "labels")  # of a request: what does not change the features of a video
PARTS_FOLDER = ".parts"  # folder below the output, for the parts until all are there


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
    Features of another network or other clips are an error; a damaged folder is extracted again. `records` of the
    features has the file of each row and its span, start and end in seconds.

    Args:
        model: A file, folder or name, as `load_backbone` takes; `random` for the untrained backbone of `cfg`; a
            backbone of `load_backbone`; or any module from clips (B, 3, T, S, S) to features (B, D).
        videos: Videos: a list, a folder, a pattern, one file or several, or a list that was read.
        out: Folder for the features.
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
        if shard is not None or cluster is not None or to is not None:
            raise ConfigError("parts of a list and tables are written to folders: give out=FOLDER")
        return _in_memory(model, videos, windows, options)
    part = None if shard is None else shard_of(shard)
    path = Path(out) if part is None else _part(Path(out), *part)
    features.claim_features(path, [path_of(videos)])
    table = path / f"features.{to}"
    if to is not None:
        check_file(table)
    listed = read_videos(videos, options, required=windows is None)
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options).skipping()
        # Only the main process reads the sizes of the files: on a network drive that takes time.
        data = distributed.on_main(lambda: identify(listed))
        extract_to(subject, listed, data, path, part or (0, 1), windows=windows, cluster=cluster)
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
    there = _stored(out, request, made_by)
    if there is not None and (there.request, there.classes, there.files) == (request, first.classes, files):
        _log.info(_THERE, out)
    else:
        if not any(len(part.records) for part in parts):
            raise _nothing(missing)
        features.claim_features(out)
        with only_run_in(out):
            rows = {n: part.records.row(row) for part in parts for row, n in enumerate(part.features.index.tolist())}

            def videos_of(index: list[int]) -> VideoList:
                return VideoList(out, Records(first.root, (rows[n] for n in index)), first.classes)

            pieces = [features.Piece.of(part.features) for part in parts]
            features.write_folder(out, request, videos_of, pieces, missing, files.__getitem__, made_by)
    leave_out(missing)
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


def extract_to(
    subject: Subject,
    videos: VideoList,
    data: Tree,
    path: Path,
    part: tuple[int, int] = (0, 1),
    title: str = "features",
    windows: TimeWindows | None = None,
    cluster: Cluster | None = None,
) -> None:
    """Write the features of a list to a folder, unless they are there, in processes that have joined already.

    `data` describes the files of the list (`identify`); `part` (i, n) is the i-th of n parts of it. Rows that the
    folder has, or a run on a cluster that was interrupted, are taken from there.
    """
    more: Tree = {} if windows is None else {"windows": asdict(windows)}  # not null without: older folders stay valid
    if windows is not None and (labels := _file_of_labels(videos)) is not None:
        file, column = split_column(labels)  # some spans are labels of windows alone
        more["labels"] = hashlib.sha256(file.read_bytes() + column.encode()).hexdigest()
    request = subject.request(list=videos.fingerprint, data=data, videos=len(videos), shard=part, **more)
    if any(request_there != request for request_there in distributed.gather_objects(request)):
        raise ConfigError("processes of one run have different arguments: start each shard by itself")
    kept = _Kept(subject, path, request)
    if distributed.on_main(lambda: kept.is_all_of(videos)):
        return
    distributed.together(partial(features.claim_features, path, [videos.path]))
    with only_run_in(path):
        if windows is not None:
            videos = windows_of(videos, windows, subject.test, ordered if cluster is None else cluster.pool)
        rows = np.flatnonzero(file_numbers(videos) % part[1] == part[0]).tolist()
        lacking = distributed.on_main(lambda: kept.find(videos, rows))
        if cluster is None:
            encoder, test = subject.encoder, subject.test
            extracted = [features.extract_features(encoder, videos, test, subject.device, title, rows=lacking)]
        else:
            extracted = []
            for some in cluster.extract(subject, videos, lacking):
                extracted.append(some)
                kept.write_part(videos, some)
            missing = [gap for some in extracted for gap in some.missing]
            if len(missing) == len(videos):
                raise _nothing(missing)
            leave_out(missing)
        distributed.on_main(lambda: kept.write(videos, extracted))


class _Kept:
    """The features that a folder has already, for the main process."""

    def __init__(self, subject: Subject, path: Path, request: Tree) -> None:
        self._subject, self._path, self._request = subject, path, request
        self._taken: dict[int, tuple[int, int]] = {}

    def is_all_of(self, videos: VideoList) -> bool:
        """Whether the folder holds the features of a list; those of another network or other clips are an error."""
        self._made_by = self._subject.made_by()
        folder = _stored(self._path, self._request, self._made_by)
        parts = [_stored(path, self._request, self._made_by) for path in sorted((self._path / PARTS_FOLDER).glob("*"))]
        self._folders = [stored for stored in (folder, *parts) if stored is not None]
        if folder is None or folder.classes != videos.classes:
            return False
        same = all(folder.request.get(key) == self._request.get(key) for key in ("list", "shard", "labels"))
        there = same and folder.root == videos.root.resolve() and features.Files(videos).have(folder.files)
        if there:
            _check_missing(folder, self._subject.test)
            _log.info(_THERE, self._path)
        return there

    def find(self, videos: VideoList, rows: Sequence[int]) -> list[int]:
        """Find the rows that can be taken; return the others."""
        self._files = features.Files(videos, rows)
        self._taken = features.find_rows(self._folders, videos, rows, self._files)
        if self._folders:
            self._check_videos(self._folders[0], videos)
            dropped = sum(len(folder.records) for folder in self._folders) - len(self._taken)
            there = f"{len(self._taken)} of {len(rows)} {videos.unit}s were there"
            _log.info("%s: %s%s", self._path, there, f"; {dropped} other rows are dropped" if dropped else "")
        return [n for n in rows if n not in self._taken]

    def _check_videos(self, folder: features.FeatureFolder, videos: VideoList) -> None:
        """Raise a DataError if no video of a folder is in a list: its features would be lost by mistake."""
        real_path = self._files.real_path
        paths = {real_path(record.path) for record in folder.records}
        if paths and not self._taken and paths.isdisjoint(real_path(record.path) for record in videos.records):
            raise DataError(f"{folder.path} holds features of other videos, and of none of {videos.path}: {_REMEDY}")

    def write(self, videos: VideoList, extracted: Sequence[Features]) -> None:
        """Write the features that were taken and those that were found."""
        pieces = [features.Piece.of(part) for part in extracted]
        for number, folder in enumerate(self._folders):
            pairs = [(row, n) for n, (of, row) in sorted(self._taken.items()) if of == number]
            columns = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
            pieces.append(features.Piece(folder.features.x, *columns))
        self._write(self._path, videos, pieces, extracted)
        _log.info("%s: features that vidssl map --features and vidssl retrieval --index take", self._path)
        shutil.rmtree(self._path / PARTS_FOLDER, ignore_errors=True)

    def write_part(self, videos: VideoList, part: Features) -> None:
        """Write features to a folder of their own, which counts if this run is interrupted."""
        parts = self._path / PARTS_FOLDER
        self._write(parts / f"{len([*parts.glob('*')]):06d}", videos, [features.Piece.of(part)], [part])

    def _write(self, path: Path, videos: VideoList, pieces: list[features.Piece], parts: Sequence[Features]) -> None:
        missing = [gap for part in parts for gap in part.missing]
        features.write_folder(path, self._request, videos.rows, pieces, missing, self._files.read, self._made_by)


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

    The array is memory-mapped and its checksum is not compared: that would read all of it.
    """
    remedy, again = "choose another index, or extract one with gallery=LIST", "extract it with gallery=LIST"
    index = open_folder(path, remedy, again, verify=False)
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


def _nothing(missing: Sequence[tuple[str, str]]) -> DataError:
    return DataError(f"none of the {len(missing)} videos can be read; the first: {min(missing)[1]}")


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
        if path.exists() and any(not file.name.startswith(".") for file in path.iterdir()):
            folder = features.read_folder(path, _REMEDY)
            _check_request(folder, request, made_by, _REMEDY, _OF_LIST)
            return folder
    except features.DamagedFolderError as error:
        _log.warning("%s; extracting it again", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from None
    return None


def _check_request(
    folder: features.FeatureFolder, request: Tree, made_by: Mapping[str, Any], remedy: str, ignored: Container[str] = ()
) -> None:
    trees = (_deciding(folder.request), _deciding(request))
    stored, current = ({key: value for key, value in tree.items() if key not in ignored} for tree in trees)
    names = folder.features.made_by["network"], made_by["network"]
    if stored["weights"] != current["weights"] and names[0] != names[1]:
        stored, current = ({"network": name} for name in names)
    if changes := describe_changes(stored, current):
        raise DataError(f"{folder.path} holds features of another request ({changes}): {remedy}")


def _deciding(request: Tree) -> Tree:
    """Return a request without what does not change the features of a video: whether others may be left out."""
    protocol = {name: value for name, value in request.get("protocol", {}).items() if name != "allow_missing"}
    return {**request, "protocol": protocol}


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


def open_folder(path: Path, remedy: str, again: str, verify: bool = True) -> features.FeatureFolder:
    """Open features that must exist: `remedy` is for another kind of folder, `again` for one that cannot be read."""
    try:
        return features.read_folder(path, remedy, verify)
    except features.DamagedFolderError as error:
        raise DataError(f"{error}: {again}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {again}") from None
