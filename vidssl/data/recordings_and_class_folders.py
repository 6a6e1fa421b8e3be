"""Which videos are of one recording, and which class a folder gives them: what a comparison divides a set by."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vidssl.base.command_line_and_notices import log_once
from vidssl.base.errors import ConfigError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.data.allowed_paths import existing_path
from vidssl.data.find_same_videos import find_copies, recording_group
from vidssl.data.video_list import Records, VideoList

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Groups:
    """Recording groups of the rows of a list."""

    number: NDArray[np.int64]  # (N,) 0, 1, …
    how: str  # what they were made by, for people
    stated: bool = True  # by names or by a pattern; otherwise each video is one, unless files are equal

    def of_rows(self, rows: NDArray[np.int64]) -> "Groups":
        """Select rows."""
        _, number = np.unique(self.number[rows], return_inverse=True)
        return replace(self, number=number.astype(np.int64))

    def joined(self, pairs: Iterable[tuple[int, int]], how: str) -> "Groups":
        """Join the groups of pairs of rows."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        count, edges = int(self.number.max()) + 1, self.number[np.array([*pairs], np.int64).reshape(-1, 2)]
        graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(count, count))
        part = connected_components(graph, directed=False)[1]
        return replace(self, number=part[self.number].astype(np.int64), how=how)


def of_several_recordings(label: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which videos (N,) are of a class of two recordings or more: means over classes are of these."""
    classes, counts = np.unique(np.unique(np.stack([label, number]), axis=1)[0], return_counts=True)
    return np.isin(label, classes[counts > 1])


def recordings_by(pattern: str, paths: Iterable[str]) -> list[str | None]:
    """Return the recording that a regular expression names in each path: its first capture group, else the whole match.

    None: there is no match, or an empty one. A pattern that is no regular expression is a ConfigError.
    """
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"group={pattern!r} is not a regular expression: {error}") from None
    matches = (compiled.search(path) for path in paths)
    return [(match and match[min(1, compiled.groups)]) or None for match in matches]


def number_recordings(names: Sequence[str], how: str = "") -> Groups:
    """Number recordings (N,) by their names, in the order of these."""
    return Groups(np.unique(names, return_inverse=True)[1].astype(np.int64), how)


def recording_groups(videos: VideoList, pattern: str | None = None) -> Groups:
    """Group the rows by the recordings that a pattern names, as `recordings_by`, or else the names; equal files join.

    Names are those of UCF101, `v_Archery_g08_c03.avi`, if most paths have them. A file for which none is found is one
    of its own. All rows of a file, such as spans, and rows of files of equal content are of one recording.

    Raises:
        ConfigError: The pattern is not a regular expression, or matches in no path, or the same in all.
    """
    paths = [*videos.names]
    if pattern is not None:
        recordings, how = recordings_by(pattern, paths), f"what {pattern} matches in the paths"
        if len({*recordings}) == 1:
            matched = "nothing" if recordings[0] is None else f"{recordings[0]!r}"
            raise ConfigError(f"group={pattern!r} matches {matched} in all {len(paths)} paths, such as {paths[0]}")
    else:
        recordings, how = [*map(recording_group, paths)], "the recordings that the names state (_gNN_)"
    without = [*dict.fromkeys(path for path, recording in zip(paths, recordings, strict=True) if recording is None)]
    stated = pattern is not None or len(without) < len({*paths}) / 2
    if not stated:
        recordings, how = [None] * len(paths), "the videos, equal files together"
    elif without:
        many = f"{len(without)} of {len({*paths})} files"
        how += f"; {many} without one, such as {without[0]}, are recordings of their own"
        log_once(_log, logging.WARNING, f"{many} have no recording by {how.partition(';')[0]}: {first_few(without)}")
    named = zip(paths, recordings, strict=True)
    names = [f"\n{existing_path(videos.root, path)}" if name is None else name for path, name in named]
    row = {path: n for n, path in enumerate(paths)}
    groups = replace(number_recordings(names, how), stated=stated)
    copies = [(row[copy], row[first]) for copy, first in find_copies(videos.root, paths).items()]
    several = sum(groups.number[copy] != groups.number[first] for copy, first in copies)
    if stated and several:
        how += f"; {several} cop{'y' if several == 1 else 'ies'} of files of other recordings joined to these"
    return groups.joined(copies, how)


def labelled_by_folders(videos: VideoList) -> VideoList:
    """Label videos without labels by the first folder of their paths.

    These are classes if all videos lie in folders, and most of them in two or more folders of several videos.
    """
    folders = _class_folders(videos)
    if not folders:
        return videos
    if reason := why_folders_are_no_classes(videos):
        _log.warning("%s; move such videos into folders, or give a list with labels", reason)
        return videos
    classes = tuple(sorted({*folders}))
    records = Records(videos.root, [])
    for row, folder in enumerate(folders):
        record = replace(videos.records.row(row), label=classes.index(folder))
        records.append(record, videos.records.root_of(row))
    return replace(videos, records=records, classes=classes)


def why_folders_are_no_classes(videos: VideoList) -> str:
    """Say which videos lie beside folders that would be classes without them; empty: there are none."""
    loose = [name for name, folder in zip(videos.names, _class_folders(videos), strict=False) if not folder]
    if not loose:
        return ""
    lie, such = ("lies", "") if len(loose) == 1 else ("lie", "such as ")
    return (
        f"the folders are not taken as classes, as {len(loose)} of {len(videos)} videos {lie} in none of them "
        f"({such}{loose[0]})"
    )


def _class_folders(videos: VideoList) -> list[str]:
    """Return the first folder of each path, empty for a file in none; an empty list if they are no classes."""
    if videos.targets is not None or (videos.labels >= 0).any():
        return []
    folders = [name.partition("/")[0] if "/" in name else "" for name in videos.names]
    several = [count for folder, count in Counter(folders).items() if folder and count > 1]
    return folders if len(several) > 1 and 2 * sum(several) > len(folders) else []


def chosen_rows(videos: VideoList, limit: int, seed: int = 0) -> list[int]:
    """Choose up to `limit` rows, about as many of each class, in their order."""
    order = generator(seed, 38).permutation(len(videos.records))
    taken: Counter[int] = Counter()
    rank: dict[int, tuple[int, int]] = {}
    for row in order:  # its place among the rows of its class decides
        label = int(videos.labels[row])
        rank[int(row)] = (taken[label], len(rank))
        taken[label] += 1
    return sorted(sorted(rank, key=rank.__getitem__)[:limit])
