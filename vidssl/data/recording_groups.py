"""Which videos are of one recording, and which class a folder gives them: what a comparison divides a set by."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vidssl.data.column_store import Records
from vidssl.data.find_same_videos import find_copies, recording_group
from vidssl.data.video_list import VideoList
from vidssl.errors import ConfigError
from vidssl.keyed_generators import generator

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
        parent = [*range(int(self.number.max()) + 1)]

        def root(group: int) -> int:
            while parent[group] != group:
                parent[group] = parent[parent[group]]
                group = parent[group]
            return group

        for one, other in pairs:
            parent[root(int(self.number[one]))] = root(int(self.number[other]))
        _, number = np.unique([root(int(group)) for group in self.number], return_inverse=True)
        return replace(self, number=number.astype(np.int64), how=how)


def recording_groups(videos: VideoList, pattern: str | None = None) -> Groups:
    """Group the rows by what a regular expression matches in their paths, else by names, else by equal files.

    Names are those of UCF101, `v_Archery_g08_c03.avi`. A path in which `pattern` matches nothing is a group of its own.

    Raises:
        ConfigError: The pattern is not a regular expression, or matches in no path, or the same in all.
    """
    if pattern is not None:
        try:
            found = [re.search(pattern, name) for name in videos.names]
        except re.error as error:
            raise ConfigError(f"group={pattern!r} is not a regular expression: {error}") from None
        names = [match[0] if match else None for match in found]
        if len({*names}) == 1:
            matched = "nothing" if names[0] is None else f"{names[0]!r}"
            raise ConfigError(
                f"group={pattern!r} matches {matched} in all {len(names)} paths, such as {videos.names[0]}"
            )
        return _numbered(names, f"what {pattern} matches in the paths")
    names = [recording_group(name) for name in videos.names]
    if sum(name is not None for name in names) > len(names) / 2:
        return _numbered(names, "the recordings that the names state (_gNN_)")
    copies = find_copies(videos.root, videos.names)
    each = [copies.get(name, name) for name in videos.names]
    return replace(_numbered(each, "the videos, equal files together"), stated=False)


def _numbered(names: Sequence[str | None], how: str) -> Groups:
    each = [f"\n{row}" if name is None else name for row, name in enumerate(names)]
    _, number = np.unique(each, return_inverse=True)
    return Groups(number.astype(np.int64), how)


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
