"""Split the videos of a folder into lists: by the folders train, val, test and so on, or at random by group."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vidssl.errors import DataError
from vidssl.prepare.file_index import quoted
from vidssl.randomness import generator

# Names of folders that are splits if one of them is for training, in any case.
_TRAIN = ("train", "training")
SPLITS = (*_TRAIN, "val", "valid", "validation", "dev", "test", "testing", "eval")


class FolderVideo(NamedTuple):
    """One video of the folder: a file, a folder of frames, or an image."""

    path: str  # relative to the folder, with forward slashes
    label: str | None  # name of its class; None: unknown
    group: str  # videos of one group stay in one list


def splits_of(root: Path, paths: Sequence[str], unlabeled: bool) -> dict[str, str]:
    """The list of each top-level folder, if these are splits; else empty."""
    named = sorted(top for top in {path.split("/")[0] for path in paths if "/" in path} if is_split(top))
    others = sorted({path.split("/")[0] for path in paths} - {*named})
    splits = {top: "train" if top.casefold() in _TRAIN else top.casefold() for top in named}
    has_train = "train" in splits.values()
    if others and has_train and len(splits) > 1:
        raise DataError(
            f"{root} has the splits {', '.join(named)} and other folders or videos beside them ({quoted(others)}): "
            "move these elsewhere, or pass one split as the folder"
        )
    if others or not named or (unlabeled and not has_train):
        return {}
    if not has_train or len({*splits.values()}) < len(splits):
        raise DataError(
            f"{root} has the splits {', '.join(named)}: it needs exactly one for training, and one of each name; pass "
            "one of them as the folder"
        )
    return splits


def is_split(folder: str) -> bool:
    """Whether a folder has the name of a split."""
    return folder.casefold() in SPLITS


def lists_of_splits(
    root: Path, videos: Sequence[FolderVideo], splits: Mapping[str, str]
) -> dict[str, list[FolderVideo]]:
    """The lists of a folder with splits; train comes first."""
    lists: dict[str, list[FolderVideo]] = {"train": [], **{name: [] for name in splits.values()}}
    for video in videos:
        lists[splits[video.path.split("/")[0]]].append(video)
    trained = {video.label for video in lists["train"]}
    for name, chosen in lists.items():
        other = sorted({video.label for video in chosen if video.label is not None} - trained)
        if other:
            raise DataError(
                f"{root}: {name} has {len(other)} classes that train lacks: {quoted(other)}; keep those of train with "
                "classes=FILE, or list each split as a folder by itself"
            )
    return {name: chosen for name, chosen in lists.items() if chosen}


def split_by_group(videos: Sequence[FolderVideo], fraction: float, seed: int) -> dict[str, list[FolderVideo]]:
    """Draw the groups of the test list at random."""
    if fraction == 0:
        return {"train": [*videos]}
    groups = sorted({video.group for video in videos})
    if len(groups) < 2:
        raise DataError(f"all {len(videos)} videos are one group, {groups[0]!r}: use test=0 or other groups")
    count = min(max(int(fraction * len(groups) + 0.5), 1), len(groups) - 1)
    tested = {groups[k] for k in generator(seed).permutation(len(groups))[:count]}
    return {
        name: [video for video in videos if (video.group in tested) == (name == "test")] for name in ("train", "test")
    }
