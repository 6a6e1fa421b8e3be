"""Which rows of two lists show the same video: by path, by content, and by the recording that they were cut from."""

import hashlib
import logging
import os
import re
import stat
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.errors import ConfigError, DecodeError
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import RealPath, existing_path
from vidssl.data.list_identity import state_of_file
from vidssl.data.video_list import VideoList, rows_by
from vidssl.video.packed_frames import find_frames, shard_path
from vidssl.video.tar_members import find_member

_BLOCK = 1 << 20  # bytes that are read at a time
_END = 1 << 16  # bytes of each end
# Video and `ends` to the modification times of its files and the hash: a changed file is read again.
_known: dict[tuple[str, bool], tuple[tuple[int, ...], str]] = {}


class VideoPart(NamedTuple):
    """Consecutive bytes of a file."""

    file: str
    offset: int
    size: int


def content_hash(path: str, ends: bool = False) -> str | None:
    """Return the sha256 of a video's bytes; None if it is not there, empty or cannot be read.

    These are the bytes of a file or of a member of a tar, of all packed frames, or of all images of a folder by name.
    With `ends` only the first and the last 64 KiB count. Within a process each video is read once.
    """
    with suppress(OSError, DecodeError, ConfigError):  # what cannot be read is reported where it is decoded
        parts = _parts_of(path)
        stamps = tuple(os.stat(file).st_mtime_ns for file in dict.fromkeys(part.file for part in parts))
        if not parts:
            return None
        known = _known.get((path, ends))
        if known is None or known[0] != stamps:
            known = _known[path, ends] = stamps, _hash(_ends_of(parts) if ends else parts)
        return known[1]
    return None


def _parts_of(path: str) -> tuple[VideoPart, ...]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if member := find_member(path):
            return (VideoPart(member.tar, member.offset, member.size),)
        if packed := find_frames(path):
            folder, index, row = packed
            video = index.video(row)
            shard = str(shard_path(folder, video.shard))
            return tuple(
                VideoPart(shard, int(at), int(size)) for at, size in zip(video.offsets, video.sizes, strict=True)
            )
        return ()
    if stat.S_ISDIR(status.st_mode):
        with os.scandir(path) as entries:
            files = sorted(entry.path for entry in entries if not entry.name.startswith(".") and entry.is_file())
        return tuple(VideoPart(file, 0, os.stat(file).st_size) for file in files)
    # Not of a device or a pipe, which may have no end.
    return (VideoPart(path, 0, status.st_size),) if stat.S_ISREG(status.st_mode) and status.st_size else ()


def _ends_of(parts: tuple[VideoPart, ...]) -> tuple[VideoPart, ...]:
    first, last = parts[0], parts[-1]
    size = min(_END, last.size)
    return (first._replace(size=min(_END, first.size)), VideoPart(last.file, last.offset + last.size - size, size))


def _hash(parts: tuple[VideoPart, ...]) -> str:
    """Hash the bytes of all parts."""
    digest = hashlib.sha256()
    for file, together in groupby(parts, key=lambda part: part.file):  # packed frames are many parts of one file
        with open(file, "rb") as opened:
            for _, offset, size in together:
                opened.seek(offset)
                while size > 0 and (block := opened.read(min(size, _BLOCK))):
                    digest.update(block)
                    size -= len(block)
    return digest.hexdigest()


_log = logging.getLogger(__name__)
MOST_READ = 50_000  # files whose content is compared, about 10 minutes on a disk

# UCF101's names, `v_Archery_g08_c03.avi`: clips of one group were cut from one recording. Of the file or its folder.
_GROUP = re.compile(r"(?:^|[/#])(v_[^/#]+?_g\d+)_[^/#]*(?:/[^/]*)?$")

ContentKey = TypeVar("ContentKey", bound=Hashable)
RowsByContent = dict[ContentKey, list[int]]


@dataclass(frozen=True)
class Overlap:
    """The rows of a list that another list has too; spans of one video that do not overlap are different videos."""

    same: Tensor  # (P, 2) int64, rows of the list and of the other one: the same file, links followed
    copies: Tensor  # (P, 2) likewise: files of other paths with the same content, or see `compare`
    groups: Mapping[int, str]  # rows of the list, and their recording, of which the other one has another video
    missing: int  # files of the other list that are not there: they are compared by path and recording only
    one_list: bool  # each file of either list is in the other one, and each row finds itself


def own_rows(gallery: VideoList, query: VideoList) -> Tensor:
    """Return pairs (P, 2) of a query row and a gallery row that show the same video, which a query must not find.

    Those are spans of the same file, after following links, that overlap; spans of a file that do not overlap count as
    different videos.
    """
    q, g = _rows_of_files(query, gallery)
    return _pairs(query, gallery, _common(q, g))


def copied_rows(gallery: VideoList, query: VideoList) -> Tensor:
    """Return pairs (P, 2) of a query row and a gallery row whose files have other paths and the same content."""
    q, g = _rows_of_files(query, gallery)
    return _pairs(query, gallery, _copied(q, g, _states([*q, *g])))


def find_overlap(query: VideoList, other: VideoList, by_name: bool = False, every: bool = False) -> Overlap:
    """Compare a list with another one.

    With `by_name` files of the same name in both lists count as copies too: shrunk copies have the names of the
    originals and other content. With `every` all copies of a file are listed, else two of them: thousands of equal
    files, such as one placeholder for each missing video, would be millions of pairs.
    """
    q, o = _rows_of_files(query, other)
    states = _states([*q, *o])
    same = _pairs(query, other, _common(q, o))
    copies = _pairs(query, other, _copied(q, o, states, None if every else 2))
    if by_name:
        named = _pairs(query, other, _common(rows_by(query.names), rows_by(other.names)))
        copies = torch.unique(torch.cat([copies, named]), dim=0)
    one_list = q.keys() == o.keys() and len(torch.unique(same[:, 0])) == len(query.records)
    groups = _shared_groups(query, other, torch.cat([same, copies]))
    return Overlap(same, copies, groups, sum(path not in states for path in o), one_list)


def find_copies(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Map the name of each file that is an exact copy to the first name of the same content."""
    name_of = {existing_path(root, name): name for name in names}
    return {name_of[path]: name_of[group[0]] for group in _equal_files(_states(name_of)) for path in group[1:]}


def recording_group(path: str) -> str | None:
    """Return the recording that a path names, `v_Archery_g08` of `v_Archery_g08_c03.avi`; None for other names."""
    match = _GROUP.search(path)
    return match and match[1]


def spans_overlap(a: VideoRecord, b: VideoRecord) -> bool:
    """Whether the spans of two records of one file overlap."""
    start = max(a.start or 0.0, b.start or 0.0)
    return all(record.end is None or start < record.end for record in (a, b))


def _rows_of_files(query: VideoList, other: VideoList) -> tuple[RowsByContent[str], RowsByContent[str]]:
    """The rows of both lists by the real paths of their files."""
    real_path = RealPath()
    q, o = (rows_by(real_path(record.path) for record in videos.records) for videos in (query, other))
    return q, o


def _states(paths: Iterable[str]) -> dict[str, tuple[int, ...]]:
    """The state of each file that is there: its size, of folders of images the first that `state_of_file` returns."""
    states = {}
    for path in dict.fromkeys(paths):
        with suppress(OSError):
            states[path] = state_of_file(path)[0]
    return states


Rowwise = Iterable[tuple[list[int], list[int]]]  # rows of both lists that show the same video, if their spans overlap


def _common(q: RowsByContent[ContentKey], o: RowsByContent[ContentKey]) -> Rowwise:
    return ((rows, o[key]) for key, rows in q.items() if key in o)


def _copied(
    q: RowsByContent[str], o: RowsByContent[str], states: Mapping[str, tuple[int, ...]], most: int | None = None
) -> Rowwise:
    for copies in _equal_files(states, lambda part: not (q.keys().isdisjoint(part) or o.keys().isdisjoint(part))):
        mine, theirs = ([path for path in copies if path in rows] for rows in (q, o))
        for path in mine:
            yield from ((q[path], o[copy]) for copy in islice((copy for copy in theirs if copy != path), most))


def _equal_files(
    states: Mapping[str, tuple[int, ...]], keep: Callable[[list[str]], bool] = lambda part: True
) -> list[list[str]]:
    """Group files by content, in groups to `keep`. Few are read: those of equal size, whole those with equal ends."""
    groups = _affordable(_divided([[*states]], states.__getitem__, keep))
    for key in (partial(content_hash, ends=True), content_hash):
        groups = _divided(groups, key, keep)
    return groups


def _divided(
    groups: Iterable[list[str]], key: Callable[[str], Hashable], keep: Callable[[list[str]], bool]
) -> list[list[str]]:
    """Divide groups of files by a key, into those of two files or more that `keep` accepts."""
    parts = defaultdict[tuple[int, Hashable], list[str]](list)
    for number, group in enumerate(groups):
        for path in group:
            value = key(path)
            if value is not None and value != (0,):  # what is empty, or cannot be read, equals nothing
                parts[number, value].append(path)
    return [part for part in parts.values() if len(part) > 1 and keep(part)]


def _affordable(groups: list[list[str]]) -> list[list[str]]:
    """The smallest groups of files of equal size, `MOST_READ` files: of a million small images all have equal ones."""
    groups = sorted(groups, key=len)
    counts = [*accumulate(map(len, groups))]
    kept = bisect_right(counts, MOST_READ)
    if kept < len(groups):
        _log.warning(
            "%d files have the size of another one; %d of them were compared by content: copies among the others are "
            "not found",
            *(counts[-1], counts[kept - 1] if kept else 0),
        )
    return groups[:kept]


def _pairs(query: VideoList, other: VideoList, candidates: Rowwise) -> Tensor:
    """List the pairs (P, 2) of candidate rows whose spans overlap, by row of the query, then of the other list."""
    pairs = []
    for mine, others in candidates:
        rows = np.array(others)
        start, end = _edges(other, others)
        for n, n_start, n_end in zip(mine, *_edges(query, mine), strict=True):  # windows of one file are thousands
            meet = np.maximum(start, n_start) < np.minimum(end, n_end)
            pairs += [(n, row) for row in rows[meet].tolist()]
    return torch.tensor(sorted(pairs), dtype=torch.int64).reshape(-1, 2)


def _edges(videos: VideoList, rows: list[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return start and end of the spans of some rows in seconds, infinite if it is that of the file."""
    records = [videos.records[row] for row in rows]
    start = np.array([record.start or 0.0 for record in records])
    return start, np.array([np.inf if record.end is None else record.end for record in records])


def _shared_groups(query: VideoList, other: VideoList, paired: Tensor) -> dict[int, str]:
    """The rows of the query, and their recording, of which the other list has a row that is not `paired` with them."""
    rows = rows_by(record.group or recording_group(record.path) for record in other.records)
    paired_rows = defaultdict[int, set[int]](set)
    for n, row in paired.tolist():
        paired_rows[n].add(row)
    groups = {}
    for n, record in enumerate(query.records):
        group = record.group or recording_group(record.path)
        if group is not None and not paired_rows[n].issuperset(rows.get(group, ())):
            groups[n] = group
    return groups
