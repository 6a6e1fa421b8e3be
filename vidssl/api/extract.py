"""Features of videos, in memory or as a folder, at once or in parts that are merged."""

import logging
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Protocol

from typing_extensions import Unpack

from vidssl import distributed
from vidssl.api.job_arguments import File, Model, NetworkOptions, Positive, Videos, job, path_of, read_videos
from vidssl.api.measured_network import Subject, device_of, load_subject
from vidssl.config import Tree
from vidssl.data.cut_windows import TimeWindows, cut_into_windows, parse_windows
from vidssl.data.fingerprint import completed, identify
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation import features
from vidssl.evaluation.feature_folder import (
    DamagedFolderError,
    FeatureFolder,
    claim_features,
    read_folder,
    write_folder,
)
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.result_files import describe_changes
from vidssl.left_out import leave_out
from vidssl.output_folder import only_run_in
from vidssl.progress import Report
from vidssl.types import Features
from vidssl.worker_pool import Pool, ordered

_log = logging.getLogger(__name__)
_REMEDY = "choose another folder for the features"
PARTS = ".parts"  # folder below the output, for the parts until all are there


class Cluster(Protocol):
    """Other processes that extract a list in parts, such as those of `vidssl.projects.commands_on_ray`."""

    @property
    def pool(self) -> Pool:
        """Runs tasks that need no network."""

    def extract(self, subject: Subject, videos: VideoList, path: Path, request: Tree) -> Sequence[FeatureFolder]:
        """Extract a list by `write_part`, into folders below `path / PARTS`."""


@job
def extract(
    model: Model,
    videos: Videos,
    *,
    out: File | None = None,
    shard: str | None = None,
    window: Positive | None = None,
    stride: Positive | None = None,
    cluster: Cluster | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> Features:
    """Encode videos: one row of features for each, averaged over its clips and crops.

    With `out` they are written to a folder: features.npy, rows.csv and meta.json. A folder that was extracted by the
    same request is left as it is; one of another request is an error; a damaged one is extracted again. `records` of
    the features has the file of each row and its span, start and end in seconds.

    Args:
        model: A file, folder or name, as `load_backbone` takes; `random` for the untrained backbone of `cfg`; a
            backbone of `load_backbone`; or any module from clips (B, 3, T, S, S) to features (B, D).
        videos: Videos: a list, a folder, a pattern, one file or several, or a list that was read.
        out: Folder for the features.
        shard: Only part i/n of n, from 0, into a folder beside `out`, for `merge`; rows of one file stay together.
        window: One row for each window of a video, which lasts so long, seconds.
        stride: Seconds from the start of a window to the start of the next (default: the window).
        cluster: Other processes that do the work.
        progress: Called with (videos done, all videos, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Raises:
        VidsslError: The network, its clips or a video cannot be used; the message has the remedy.
    """
    windows = parse_windows(window, stride)
    if out is None:
        if shard is not None or cluster is not None:
            raise ConfigError("parts of a list are written to folders: give out=FOLDER")
        return _in_memory(model, videos, windows, options)
    part = None if shard is None else shard_of(shard)
    path = Path(out) if part is None else _part(Path(out), *part)
    claim_features(path, [path_of(videos)])
    listed = read_videos(videos, options)
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options).skipping_few()
        # Only the main process reads the sizes of the files: on a network drive that takes time.
        data = distributed.on_main(lambda: identify(listed))
        extract_to(subject, listed, data, path, part or (0, 1), windows=windows, cluster=cluster)
    return loaded(path)


@job
def merge(out: File) -> Features:
    """Write the features of a list from its parts, which `extract` wrote beside `out` and which are kept.

    Args:
        out: Folder for the features.
    """
    out = Path(out)
    parts = _read_parts(out)
    request = {**parts[0].request, "shard": [0, 1]}
    if not _there(out, request, parts[0].classes):
        _check_rows(parts)
        claim_features(out)
        with only_run_in(out):
            write_folder(out, request, parts)
    leave_out(gap for part in parts for gap in part.features.missing)
    return loaded(out)


def _in_memory(model: Model, videos: Videos, windows: TimeWindows | None, options: NetworkOptions) -> Features:
    listed = read_videos(videos, options)
    with distributed.joined(device_of(model, options)):
        subject = load_subject(model, options).skipping_few()
        rows = listed if windows is None else windows_of(listed, windows, subject.test)
        found = features.extract(subject.encoder, rows, subject.test, subject.device)
    return replace(found, records=rows.rows(found.index.tolist()).records, windows=windows is not None)


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
    folder = read_folder(path, "name a folder that vidssl extract wrote", verify)
    listed = folder.videos(range(len(folder.features.x)))
    return replace(
        folder.features, classes=folder.classes, records=listed.records, windows="windows" in folder.request, path=path
    )


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

    `data` describes the files of the list (`identify`); `part` (i, n) is the i-th of n parts of it.
    """
    more = {} if windows is None else {"windows": asdict(windows)}  # not null without: older folders stay valid
    request = subject.request(list=videos.fingerprint, data=data, videos=len(videos), shard=part, **more)
    if any(other != request for other in distributed.gather_objects(request)):
        raise ConfigError("processes of one run have different arguments: start each shard by itself")
    if distributed.on_main(lambda: _there(path, request, videos.classes, subject.test)):
        return
    claim_features(path, [videos.path])
    with only_run_in(path):
        if windows is not None:
            videos = windows_of(videos, windows, subject.test, ordered if cluster is None else cluster.pool)
        if cluster is None:
            found = features.extract(subject.encoder, videos, subject.test, subject.device, title, part)
            parts = [_folder(found, videos, path, request)]
        else:
            parts = [*cluster.extract(subject, videos, path, request)]
            _check_rows(parts)
            missing = [gap for part in parts for gap in part.features.missing]
            if missing:
                subject.test.check_skipped(missing, len({record.path for record in videos.records}), videos.path)
            leave_out(missing)
        parts = [replace(part, network=subject.name) for part in parts]
        distributed.on_main(lambda: write_folder(path, request, parts))
    if cluster is not None:
        shutil.rmtree(path / PARTS, ignore_errors=True)


def write_part(encode: Callable[[], Features], videos: VideoList, path: Path, request: Tree) -> None:
    """Write the features of some rows of a list into a folder, unless those of this request are there."""
    if not _there(path, request, videos.classes):
        write_folder(path, request, [_folder(encode(), videos, path, request)])


def _folder(features: Features, videos: VideoList, path: Path, request: Tree) -> FeatureFolder:
    rows = features.index.tolist()
    names = [videos.names[n] for n in rows]
    spans = [(record.start, record.end, record.fps) for record in map(videos.records.row, rows)]
    return FeatureFolder(path, request, features, names, spans, videos.root.resolve(), videos.classes)


def windows_of(videos: VideoList, windows: TimeWindows, test: TestClips, pool: Pool = ordered) -> VideoList:
    """Cut a list into windows on the main process, for all processes."""
    return distributed.on_main(
        lambda: cut_into_windows(
            videos, windows, test, workers=test.workers, timeout=test.timeout, keep_missing=test.skips, pool=pool
        )
    )


def open_index(path: Path, subject: Subject) -> FeatureFolder:
    """Open the features of a whole list that were extracted with these weights and clips, to search in them.

    The array is memory-mapped and its checksum is not compared: that would read all of it.
    """
    remedy, again = "choose another index, or extract one with gallery=LIST", "extract it with gallery=LIST"
    index = _open(path, remedy, again, verify=False)
    wanted = {**index.request, **subject.request(shard=(0, 1))}  # of any list
    _check_request(index, wanted, "search with the same network and clips, or choose another index")
    _check_missing(index, subject.test)
    return index


def _check_missing(folder: FeatureFolder, test: TestClips) -> None:
    """Note the videos that features lack; a DataError if they are too many for these settings."""
    missing = folder.features.missing
    test.check_skipped(missing, len({*folder.names}) + len(dict(missing)), folder.path)
    leave_out(missing)


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


def _there(path: Path, request: Tree, classes: tuple[str, ...], test: TestClips | None = None) -> bool:
    """Whether a folder holds features of the request; those of another request are an error.

    With `test` it is an error too if they lack more videos than these settings allow.
    """
    try:
        if path.exists() and any(not file.name.startswith(".") for file in path.iterdir()):
            stored = read_folder(path, _REMEDY)
            _check_request(stored, request, _REMEDY)
            if stored.classes != classes:
                raise DataError(f"{path} was extracted with another classes.txt: {_REMEDY}")
            if test is not None:
                _check_missing(stored, test)
            _log.info("%s holds these features already", path)
            return True
    except DamagedFolderError as error:
        _log.warning("%s; extracting it again", error)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_REMEDY}") from None
    return False


def _check_request(folder: FeatureFolder, requested: Tree, remedy: str) -> None:
    stored = {**folder.request, "data": completed(folder.request["data"], requested["data"])}
    if changes := describe_changes(_deciding(stored), _deciding(requested)):
        raise DataError(f"{folder.path} holds features of another request ({changes}): {remedy}")


def _deciding(request: Tree) -> Tree:
    """Return a request without what does not change the features of a video: whether others may be left out."""
    protocol = {name: value for name, value in request.get("protocol", {}).items() if name != "allow_missing"}
    return {**request, "protocol": protocol}


def _read_parts(out: Path) -> list[FeatureFolder]:
    """Open all parts of a folder; check that they are complete and of one request."""
    pattern = re.compile(rf"{re.escape(out.name)}\.\d+-of-(\d+)")
    counts = {int(name[1]) for path in out.parent.glob("*") if (name := pattern.fullmatch(path.name))}
    if len(counts) != 1:
        found = " and ".join(map(str, sorted(counts))) or "none"
        raise DataError(f"{out} needs parts of one shard i/n, found n = {found}: extract all, move others away")
    (count,) = counts
    missing = [f"{n}/{count}" for n in range(count) if not _part(out, n, count).exists()]
    if missing:
        named = ", ".join(missing[:10]) + ", …" * (len(missing) > 10)
        raise DataError(f"{len(missing)} of {count} parts of {out} are missing: extract with shard {named}")
    parts: list[FeatureFolder] = []
    for n in range(count):
        remedy = f"extract with shard {n}/{count}"
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
