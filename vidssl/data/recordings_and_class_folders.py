"""Which videos are of one recording, and which class a folder gives them: what a comparison divides a set by."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vidssl.base.command_line_and_notices import log_once
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.data.allowed_paths import existing_path
from vidssl.data.find_same_videos import find_copies, recording_group
from vidssl.data.video_list import VideoList

_log = logging.getLogger(__name__)
FEW_NAMES = 5  # of folders, in a line


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
    """Group the rows by the recordings that a pattern names, as `recordings_by`, the list, or names; equal files join.

    Names are those of UCF101, `v_Archery_g08_c03.avi`, if most paths have them. A file for which none is found is one
    of its own. All rows of a file, such as spans, and rows of files of equal content are of one recording.

    Raises:
        ConfigError: The pattern is not a regular expression, or matches in no path, or the same in all.
    """
    paths = [*videos.names]
    if pattern is not None:
        recordings, how = recordings_by(pattern, paths), f"each text that {pattern} matches in the paths is one"
        if len({*recordings}) == 1:
            matched = "nothing" if recordings[0] is None else f"{recordings[0]!r}"
            raise ConfigError(f"group={pattern!r} matches {matched} in all {len(paths)} paths, such as {paths[0]}")
    else:
        recordings, how = [*map(recording_group, paths)], "each _gNN_ in the names is one"
        if any(listed := [record.group for record in videos.records]):
            recordings, how = listed, "each group of the list is one"
    without = [*dict.fromkeys(path for path, recording in zip(paths, recordings, strict=True) if recording is None)]
    stated = pattern is not None or len(without) < len({*paths}) / 2
    if not stated:
        recordings, how = ([None] * len(paths), "each file is one, as names state none; equal files are together")
    elif without:
        many = f"{len(without)} of {len({*paths})} files"
        log_once(_log, logging.WARNING, f"recordings: {how}; {many} have none and count alone: {first_few(without)}")
        how += f"; {many} have none and count alone, such as {without[0]}"
    named = zip(paths, recordings, strict=True)
    names = [f"\n{existing_path(videos.root, path)}" if name is None else name for path, name in named]
    row = {path: n for n, path in enumerate(paths)}
    groups = replace(number_recordings(names, how), stated=stated)
    copies = [(row[copy], row[first]) for copy, first in find_copies(videos.root, paths).items()]
    several = sum(groups.number[copy] != groups.number[first] for copy, first in copies)
    if stated and several:
        how += f"; {several} cop{'y' if several == 1 else 'ies'} of files of other recordings joined to these"
    return groups.joined(copies, how)


# Names of folders that cameras, phones and programs give: of the DCF standard, such as 100APPLE; of apps; by date. What
# a person writes after a date, as in 2025-06-12 Site A, names one session: no class begins with its day.
_YEAR = "(?:19|20)[0-9]{2}"
_DAY = f"{_YEAR}([-_. ]?)(?:0[1-9]|1[0-2])\\1(?:0[1-9]|[12][0-9]|3[01])"
_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CAMERA_NAMES = re.compile(
    f"{_DAY}(?:[^0-9].*|[0-9]{{4}}|[0-9]{{6}})?|{_YEAR}(?:[-_. ]?(?:0[1-9]|1[0-2]))?|{_YEAR}-?W[0-9]{{2}}"
    f"|[0-9]{{1,2}}[-_. ][0-9]{{1,2}}[-_. ]{_YEAR}|{_YEAR}[-_. ]+{_MONTH}|{_MONTH}[-_. ]+{_YEAR}|photos from {_YEAR}"
    "|[1-9][0-9]{2}(?=[0-9]*[A-Z_])(?-i:[A-Z0-9_]{5})|DCIM|DJI_[0-9_]+|(?:cam|camera|channel|ch|gopro)[ _-]?[0-9]*"
    "|camera roll|(?:whatsapp|telegram)(?: .*)?|screenshots?|screen ?record(?:ings|er)|(?:saved )?(?:pictures|photos)"
    "|movies?|mov|videos?|video_ts|downloads?|private|avchd|m4root|mp_root",
    re.IGNORECASE,
)


def is_camera_name(folder: str) -> bool:
    """Whether a folder has a name that a camera, a phone or a calendar gives, such as DCIM, 100APPLE or 2025-06."""
    return _CAMERA_NAMES.fullmatch(folder.strip()) is not None


def camera_line(folders: Sequence[str]) -> str:
    """Say that folders are no classes, and how they are."""
    taken = 'labels="folders" takes them for classes, labels=FILE gives others'
    return f"the folders {first_few(folders, FEW_NAMES)} have names that cameras, phones or calendars give: {taken}"


def first_folders(videos: VideoList) -> list[str]:
    """Return the first folder of each path, empty for a file in none."""
    return [name.partition("/")[0] if "/" in name else "" for name in videos.names]


def labelled_by_folders(videos: VideoList, requested: bool = False) -> VideoList:
    """Label videos without labels by the first folder of their paths; those that lie in none keep -1.

    Folders are classes if most videos lie in two or more folders of several videos, and not all have names of
    `is_camera_name`; if it is `requested`, any two or more.
    """
    folders = first_folders(videos)
    classes = sorted({*folders} - {""})
    if not requested:
        several = [count for folder, count in Counter(folders).items() if folder and count > 1]
        known = videos.label_source != "list" or videos.targets is not None or bool((videos.labels >= 0).any())
        if known or len(several) < 2 or 2 * sum(several) <= len(folders):
            return videos
        if all(map(is_camera_name, classes)):
            return replace(videos, label_source="cameras")
    elif len(classes) < 2:
        raise DataError(f"{videos.path} has no two folders of videos: one for each class, or give labels=FILE.csv")
    number = {"": -1} | {name: n for n, name in enumerate(classes)}
    return videos.relabelled((number[folder] for folder in folders), classes, "folders")


def chosen_rows(videos: VideoList, limit: int) -> list[int]:
    """Choose up to `limit` rows, about as many of each class, in their order."""
    order = generator(0, 38).permutation(len(videos.records))
    taken: Counter[int] = Counter()
    rank: dict[int, tuple[int, int]] = {}
    for row in order:  # its place among the rows of its class decides
        label = int(videos.labels[row])
        rank[int(row)] = (taken[label], len(rank))
        taken[label] += 1
    return sorted(sorted(rank, key=rank.__getitem__)[:limit])
