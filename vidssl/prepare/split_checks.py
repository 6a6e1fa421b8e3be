"""What may be wrong with a split: classes on one side, copies and clips of one recording on both."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from vidssl.data.find_same_videos import find_copies
from vidssl.data.read_input import quoted
from vidssl.data.recording_groups import numbered
from vidssl.errors import first_few
from vidssl.prepare.folder_splits import FolderVideo

Lists = Mapping[str, Sequence[FolderVideo]]

# Names of several clips of one recording or person; the first group of each is what they have in common.
_RECORDINGS = (
    r"([^/]*_g\d+)_c\d+",  # UCF101: v_Archery_g01_c02
    r"S\d{3}C\d{3}(P\d{3})R\d{3}A\d{3}",  # NTU: S001C002P003R001A050
    r"_(s\d+)_t\d+",  # UTD-MHAD: a1_s2_t3_color
    *(rf"(?i)({who}[ _-]?\d+)" for who in ("person", "subject", "actor", "participant")),  # KTH: person01_boxing_d1
    r"([^/]*[^/\d])\d+\.\w+$",  # HMDB51: Nemo_hit_f_nm_3; tape_1_clip_2
)
_MOST_CLIPS = 10  # of a recording on average; more clips of one name are counted by a camera, not cut from a recording


def keep_copies_together(root: Path, videos: Sequence[FolderVideo]) -> tuple[list[FolderVideo], list[str]]:
    """Join the groups of exact copies; return the report too."""
    first, row = find_copies(root, [video.path for video in videos]), {video.path: n for n, video in enumerate(videos)}
    groups = numbered([video.group for video in videos]).joined([(row[a], row[b]) for a, b in first.items()], "")
    names: dict[int, str] = {}
    joined = [
        video._replace(group=names.setdefault(number, video.group))
        for video, number in zip(videos, groups.number.tolist(), strict=True)
    ]
    report = []
    if first:
        named = first_few(f"{copy!r} is {source!r}" for copy, source in first.items())
        report.append(f"{len(first)} videos are exact copies of others, kept in one list: {named}")
    return joined, report + _two_classes(videos, first)


def _two_classes(videos: Sequence[FolderVideo], first: Mapping[str, str]) -> list[str]:
    label = {video.path: video.label for video in videos}
    differ = [f"{copy!r} is {source!r}" for copy, source in first.items() if label[copy] != label[source]]
    text = f"warning: {len(differ)} videos are exact copies of videos of another class: {first_few(differ)}"
    return [text] if differ else []


def warn_of_copies(root: Path, lists: Lists) -> list[str]:
    """Name exact copies in several lists, which the folders of the splits have put there."""
    side = {video.path: name for name, videos in lists.items() for video in videos}
    first = find_copies(root, [*side])
    apart = [
        f"{copy!r} in {side[copy]} is {source!r} in {side[source]}"
        for copy, source in first.items()
        if side[copy] != side[source]
    ]
    text = f"warning: {len(apart)} videos are exact copies of videos in another list: {first_few(apart)}"
    return ([text] if apart else []) + _two_classes([video for videos in lists.values() for video in videos], first)


def warn_of_classes(lists: Lists) -> list[str]:
    """Name the classes that a list lacks."""
    found = {name: {video.label for video in videos} - {None} for name, videos in lists.items()}
    classes = {label for labels in found.values() for label in labels}
    return [
        f"warning: {len(missing)} of {len(classes)} classes have no video in {name}: {quoted(missing)}"
        for name, labels in found.items()
        if labels and (missing := sorted(map(str, classes - labels)))
    ]


def warn_of_recordings(lists: Lists, remedy: bool) -> list[str]:
    """Count the names that look like recordings of several clips and are in several lists; name the pattern of them."""
    videos = [video for each in lists.values() for video in each]
    classes = max(1, len({video.label for video in videos}))
    for pattern in _RECORDINGS:
        sides: dict[str, Counter[str]] = {}
        for name, each in lists.items():
            for video in each:
                if match := re.search(pattern, video.path):
                    sides.setdefault(match[1], Counter())[name] += 1
        clips = sum(count.total() for count in sides.values())
        several = sum(count.total() for count in sides.values() if count.total() > 1)
        if 2 * several < len(videos) or len(sides) < 2 * classes or clips > _MOST_CLIPS * len(sides):
            continue
        apart = {name: counts for name, counts in sides.items() if len(counts) > 1}
        if not apart:
            return []
        name, counts = next(iter(sorted(apart.items())))
        example = f"{name!r} ({', '.join(f'{count} {side}' for side, count in counts.items())})"
        advice = f": keep them together with group=REGEX, here '{pattern}'" if remedy else ""
        where = " and ".join(lists) if len(lists) == 2 else "several lists"
        return [
            f"warning: {len(apart)} of {len(sides)} names that look like recordings are in {where}, such as "
            f"{example}{advice}"
        ]
    return []
