"""Split the videos of a folder into lists: by the folders train, val and so on, or at random by class and group."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vidssl.data.read_input import quoted
from vidssl.errors import DataError
from vidssl.keyed_generators import generator

# Names of folders that are splits if one of them is for training, in any case.
_TRAIN = ("train", "training")
SPLITS = (*_TRAIN, "val", "valid", "validation", "dev", "test", "testing", "eval")
_DRAWS = 20  # orders of groups, of which the one is used whose test list has the fraction of each class most nearly
_TIE = 1e-9  # numerical tolerance


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
    """Draw whole groups for the test list, such that it has the fraction of each class as nearly as they allow.

    Where there are enough test videos for all classes, each class of two groups or more has one at least; the last
    group of a class is for training, unless every group has all videos of a class.
    """
    if fraction == 0:
        return {"train": [*videos]}
    groups: dict[str, dict[str | None, int]] = {}
    for video in videos:
        labels = groups.setdefault(video.group, {})
        labels[video.label] = labels.get(video.label, 0) + 1
    if len(groups) < 2:
        group = f"{videos[0].group!r}, with exact copies joined"
        raise DataError(f"all {len(videos)} videos are one group, {group}: use test=0 or other groups")
    names, random = sorted(groups), generator(seed)
    # Without groups of several videos every order gives the same number of each class.
    draws = 1 if len(groups) == len(videos) else max(1, min(_DRAWS, 10**6 // len(groups)))  # a second for a million
    drawn = [_draw([names[k] for k in random.permutation(len(names))], groups, fraction) for _ in range(draws)]
    _, tested = min(drawn, key=lambda each: each[0])  # the first of equal ones
    return {
        name: [video for video in videos if (video.group in tested) == (name == "test")] for name in ("train", "test")
    }


def _draw(
    order: Sequence[str], groups: Mapping[str, Mapping[str | None, int]], fraction: float
) -> tuple[tuple[int, float], set[str]]:
    """Choose groups for the test list, in this order; also how far the list is from the fraction of each class.

    The distance is the number of classes without a test video, then the sum of (tested - wanted)^2 / videos.
    """
    sizes = Counter[str | None]()
    for labels in groups.values():  # not by Counter.update, which is slow for a million groups of one video
        for label, count in labels.items():
            sizes[label] += count
    training = Counter(label for labels in groups.values() for label in labels)  # groups of each class
    number = min(max(int(fraction * len(groups) + 0.5), 1), len(groups) - 1)  # of groups to test, if all were equal
    every_class = fraction * sizes.total() + 0.5 >= len(sizes)
    wanted = {label: max(fraction * count, float(every_class)) for label, count in sizes.items()}
    tested, chosen = Counter[str | None](), set[str]()

    def choose(name: str) -> None:
        chosen.add(name)
        for label, count in groups[name].items():
            tested[label] += count
            training[label] -= 1

    for name in order:
        gain = sum((2 * (wanted[c] - tested[c]) - n) * n / sizes[c] for c, n in groups[name].items())
        if min(training[label] for label in groups[name]) > 1 and (
            gain > _TIE or (gain > -_TIE and len(chosen) < number)
        ):
            choose(name)
    for name in order:  # classes whose groups are too large, or of which the fraction is less than half a video
        new = any(not tested[label] for label in groups[name])
        room = every_class or len(chosen) < number
        if new and room and name not in chosen and min(training[label] for label in groups[name]) > 1:
            choose(name)
    for name in order[: 0 if chosen else number]:
        choose(name)
    missing = sum(not tested[label] for label in sizes)
    return (missing, sum((tested[c] - fraction * n) ** 2 / n for c, n in sizes.items())), chosen
