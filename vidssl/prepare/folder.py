"""Make lists of the videos in a folder: find them, keep groups together, write train and test."""

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidssl.data.video_list import Row, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import VIDEO_SUFFIXES, Tree, check_name, scan
from vidssl.prepare.match import classes_of, shown
from vidssl.randomness import generator
from vidssl.video.frame_folder import IMAGE_SUFFIXES, is_mixed, numbers_by_name

# Folders that are splits where one of them is for training, in any case of the letters.
_TRAIN = ("train", "training")
_SPLITS = (*_TRAIN, "val", "valid", "validation", "dev", "test", "testing", "eval")

_FLOW = re.compile(r"(optical[_-]?)?flow([_-]?[xyuv])?", re.IGNORECASE)  # a folder of optical flow
_DATE = re.compile(r"\d{4}[-_.]?\d{2}[-_.]?\d{2}|\d{4}[-_.]\d{2}|\d{1,2}[-_.]\d{1,2}[-_.]\d{4}")
_SHOWN = 20  # classes in the report


@dataclass(frozen=True)
class Clip:
    """One video of the folder."""

    path: str  # relative to the folder, with forward slashes
    label: str | None  # name of its class; None: unknown
    group: str  # clips of one group stay on one side


@dataclass(frozen=True)
class Prepared:
    """What was found and where it went; `str()` is the report that a script prints."""

    lists: Mapping[
        str, tuple[Clip, ...]
    ]  # by name: "train", and "test" or as the folder of the split is called
    classes: tuple[str, ...]
    ignored: int  # files that are no videos, hidden, or not named by the labels
    kind: str  # of what is listed, for the report
    notes: tuple[str, ...]

    def __str__(self) -> str:
        total = sum(map(len, self.lists.values()))
        lines = [f"{total} {self.kind} found, {self.ignored} other files ignored"]
        for name, clips in self.lists.items():
            lines.append(f"{name}: {len(clips)} videos of {len({clip.group for clip in clips})} groups")
        counts = {name: Counter(clip.label for clip in clips) for name, clips in self.lists.items()}
        for label in self.classes[:_SHOWN]:
            lines.append(f"  {label}: " + ", ".join(f"{counts[name][label]} {name}" for name in self.lists))
        if len(self.classes) > _SHOWN:
            lines.append(f"  and {len(self.classes) - _SHOWN} more classes")
        if not self.classes:
            lines.append("there are no classes: the lists have no labels")
        return "\n".join([*lines, *self.notes])


def prepare_folder(
    root: Path,
    out: Path,
    *,
    test: float | None = None,
    group: str | None = None,
    labels: Path | None = None,
    group_column: str | None = None,
    seed: int = 0,
    images: bool = False,
    classes: Path | None = None,
    unlabeled: bool = False,
    follow_links: bool = False,
    fps: float | None = None,
) -> Prepared:
    """Write the lists of a folder of videos, `classes.txt` and `root.txt`.

    The folder holds `<class>/<file>` (files may lie deeper), files without classes, which get no label, or one of these
    in `train` and other splits, which become the lists. Where there are no video files, folders of numbered images
    are the videos. With `labels` the videos and their classes are what that CSV says.

    Args:
        root: The folder.
        out: Where the lists go; made where it is missing.
        test: Fraction of the groups that go to the test list, in [0, 1), rounded to whole groups but at least
            one; 0: there is no test list. None: 0.33 where there are classes and the folder has no splits, else 0.
        group: Regular expression searched in each relative path; its first capture group, else the whole
            match, names the group. None: each video is its own group.
        labels: CSV with the columns `path,label`, paths relative to the folder.
        group_column: Column of `labels` that names the group.
        seed: Decides which groups are tested.
        images: List image files, each a video of one frame, instead of videos.
        classes: File with the names of the classes to keep, one a line; None: all. Folders of others are not looked
            into.
        unlabeled: The folders are not classes: no video gets a label.
        follow_links: Follow links to folders, and links that leave the root.
        fps: Frames per second of folders of images, for the column `fps`; None: the lists do not have it. An error
            where no such folder is listed.

    Raises:
        ConfigError: Options that contradict each other or the folder, a fraction outside [0, 1), a pattern that is
            not one.
        DataError: No videos, missing files, a class to keep that has none, a class that the training split lacks, a
            file outside of the folder or without a group, images that may be frames or examples, folders beside
            splits, optical flow beside frames, or lists of another kind in `out`.
    """
    _check_options(test, group, labels, group_column, seed, classes, unlabeled, fps)
    suffixes = IMAGE_SUFFIXES if images else VIDEO_SUFFIXES
    wanted = None if classes is None else set(classes_of(classes))
    tree = scan(root, _folders(root, wanted if labels is None else None), suffixes, follow_links)
    if labels is None:
        paths = _videos(root, tree, images, unlabeled)
        splits = _splits_of(root, paths, unlabeled)
        clips = _clips_from_folders(root, paths, splits, unlabeled)
    else:
        clips = _read_labels(root, labels, group_column, tree.sequences, follow_links)
        splits = _splits_of(root, [clip.path for clip in clips])
    if splits and (test is not None or group is not None or group_column is not None):
        raise ConfigError(
            f"{root} has the splits {', '.join(splits)}: leave out --test and groups, or name a folder without splits, "
            "such as the one for training"
        )
    if wanted is not None:
        clips = _of_classes(clips, wanted, f"{classes}", root)
    for clip in clips:
        check_name(clip.path)
        check_name(clip.label or "class")
    if group is not None:
        clips = _group_by_pattern(clips, group)
    frames = {clip.path for clip in clips if clip.path in tree.images}
    if fps is not None and not frames:
        raise ConfigError(f"--fps is for folders of images, and none are listed of {root}: leave it out")
    listed = len(clips) - len(frames) + sum(tree.images[path] for path in frames)
    notes = _notes(tree, clips, frames, splits, fps, images)
    if splits:
        lists = _given_lists(root, clips, splits)
    else:
        labelled = any(clip.label is not None for clip in clips)
        share = test if test is not None else 0.33 if labelled else 0.0
        if images and share and group is None and group_column is None:
            _check_no_frames(clips)
        train, tested = _split(clips, share, seed)
        lists = {"train": tuple(train), "test": tuple(tested)} if share else {"train": tuple(train)}
    names = tuple(sorted({clip.label for clip in clips if clip.label is not None}))
    _check_other_lists(out, {*lists}, bool(names))
    numbers: dict[str | None, int] = {None: -1, **{name: n for n, name in enumerate(names)}}
    rows = {
        name: [
            Row(clip.path, numbers[clip.label], fps=fps if clip.path in frames else None) for clip in chosen
        ]
        for name, chosen in lists.items()
    }
    write_lists(out, root, rows, names)
    kind = "images" if images else "folders of images" if frames and len(frames) == len(clips) else "videos"
    ignored = tree.ignored + len(tree.videos) - listed
    return Prepared(lists, names, ignored, kind, (*notes, *_hints(names, labels is None)))


def _check_options(
    test: float | None,
    group: str | None,
    labels: Path | None,
    group_column: str | None,
    seed: int,
    classes: Path | None,
    unlabeled: bool,
    fps: float | None,
) -> None:
    if test is not None and not 0 <= test < 1:
        raise ConfigError(f"--test is {test}: it must be in [0, 1)")
    if seed < 0:
        raise ConfigError(f"seed is {seed}, it must be at least 0")
    if group_column is not None and (labels is None or group is not None):
        raise ConfigError(
            "a group column needs a labels file and excludes a group pattern: give one of the two"
        )
    if unlabeled and (labels is not None or classes is not None):
        raise ConfigError("--unlabeled gives no labels: leave it out, or --labels and --classes")
    if fps is not None and not 0 < fps < float("inf"):
        raise ConfigError(f"frames per second are {fps}, they must be above 0")


def _folders(root: Path, wanted: set[str] | None) -> set[str] | None:
    """Folders at the top that are looked into: those of the classes that are kept, and of splits."""
    if wanted is None or not root.is_dir():
        return None
    return wanted | {path.name for path in root.iterdir() if _is_split(path.name)}


def _videos(root: Path, tree: Tree, images: bool, unlabeled: bool) -> Sequence[str]:
    """What is listed: the files, or folders of frames where there are no files."""
    if tree.videos:
        return tree.videos
    found = _leaves(tree)
    known = f"known are {' '.join(sorted(IMAGE_SUFFIXES if images else VIDEO_SUFFIXES))}"
    if images or not tree.images:
        kind = "images" if images else "videos"
        raise DataError(f"no {kind} in {root} ({tree.ignored} other files); {known}")
    if not found and tree.mixed:
        folders = sorted(tree.mixed)
        raise DataError(
            f"{root}: {len(folders)} folders ({shown(folders)}) hold images of several kinds ("
            f"{shown(tree.mixed[folders[0]])}), and a folder is read as one video only if its images are of one kind: "
            "keep the RGB images alone in each folder, and move others, such as optical flow, out of it"
        )
    if not found:
        raise DataError(
            f"no videos in {root}, and the images in it ({shown(sorted(tree.images))}) are not numbered as the frames "
            f"of a video are; --images lists each image by itself; {known}"
        )
    _check_no_flow(root, found, tree.sequences)
    depth = 2 if _splits_of(root, found, unlabeled) else 1
    if not unlabeled and all(path.count("/") < depth for path in found):
        raise DataError(
            f"no videos in {root}, but images in {len(found)} folders ({shown(found)}): if each folder is a class and "
            "each image an example of it, give --images; if each folder is a video and the images are its frames, "
            "give --unlabeled, or --labels with a class for each folder"
        )
    return found


def _leaves(tree: Tree) -> list[str]:
    """Frame folders without image folders below them."""
    above = {
        "/".join(parts[:n])
        for path in tree.images
        for parts in [path.split("/")]
        for n in range(1, len(parts))
    }
    return sorted(tree.sequences - above)


def _check_no_flow(root: Path, found: Sequence[str], sequences: frozenset[str]) -> None:
    """Refuse folders of optical flow beside folders of frames: they are of one video and would be listed as two."""
    flow = {path for path in found if _FLOW.fullmatch(path.rpartition("/")[2])}
    frames = sequences - flow
    videos = frames | {path.rpartition("/")[0] for path in frames}
    beside = sorted(path for path in flow if path.rpartition("/")[0] in videos)
    if beside:
        raise DataError(
            f"{root}: {len(beside)} folders ({shown(beside)}) hold optical flow beside frames, and each folder would "
            "be a video: keep the folders of RGB images alone, or name these with --labels"
        )


def _splits_of(root: Path, paths: Sequence[str], unlabeled: bool = False) -> dict[str, str]:
    """The list that each folder at the top is for, where these are splits."""
    named = sorted(top for top in {path.split("/")[0] for path in paths if "/" in path} if _is_split(top))
    others = sorted({path.split("/")[0] for path in paths} - {*named})
    splits = {top: "train" if top.casefold() in _TRAIN else top.casefold() for top in named}
    train = next((top for top, name in splits.items() if name == "train"), None)
    if others and train is not None and len(splits) > 1:
        raise DataError(
            f"{root} has the splits {', '.join(named)} and other folders or videos beside them ({shown(others)}): move "
            f"these elsewhere, or name one split as the folder, such as {root / train}"
        )
    if others or not named or (unlabeled and train is None):
        return {}
    if train is None:
        raise DataError(
            f"{root} has {shown(named)} and no folder for training: name one of them as the folder, as "
            f"{root / named[0]}"
        )
    if len({*splits.values()}) < len(splits):
        raise DataError(f"{root}: {shown(named)} are two folders for one split: keep one of them")
    return splits


def _is_split(folder: str) -> bool:
    return folder.casefold() in _SPLITS


def _clips_from_folders(
    root: Path, paths: Sequence[str], splits: Mapping[str, str], unlabeled: bool
) -> list[Clip]:
    """The videos, with the class that the folder names, which lies at the top or at the top of a split."""
    inner = {path: path.split("/", 1)[1] if splits else path for path in paths}
    if unlabeled:
        return [Clip(path, None, group=path) for path in paths]
    for split in splits or [""]:
        mine = [path for path in paths if not split or path.startswith(f"{split}/")]
        loose = [path for path in mine if "/" not in inner[path]]
        if loose and len(loose) < len(mine):
            raise DataError(
                f"{root / split} holds class folders and also loose videos ({loose[0]!r}): move those into a class "
                "folder, or list all without labels by --unlabeled"
            )
    return [
        Clip(path, inner[path].split("/")[0] if "/" in inner[path] else None, group=path) for path in paths
    ]


def _of_classes(clips: Sequence[Clip], wanted: set[str], file: str, root: Path) -> list[Clip]:
    lacking = sorted(wanted - {clip.label for clip in clips if clip.label is not None})
    if lacking:
        raise DataError(
            f"{file}: {len(lacking)} of {len(wanted)} classes have nothing in {root}: {shown(lacking)}"
        )
    return [clip for clip in clips if clip.label in wanted]


def _given_lists(root: Path, clips: Sequence[Clip], splits: Mapping[str, str]) -> dict[str, tuple[Clip, ...]]:
    """The lists of a folder with splits; train comes first."""
    lists: dict[str, list[Clip]] = {"train": [], **{name: [] for name in splits.values()}}
    for clip in clips:
        lists[splits[clip.path.split("/")[0]]].append(clip)
    trained = {clip.label for clip in lists["train"]}
    for name, chosen in lists.items():
        other = sorted(
            {clip.label for clip in chosen if clip.label is not None and clip.label not in trained}
        )
        if other:
            raise DataError(
                f"{root}: {name} has {len(other)} classes that train lacks: {shown(other)}; keep those of train with "
                "--classes, or list each split as a folder by itself"
            )
    return {name: tuple(chosen) for name, chosen in lists.items() if chosen}


def _check_no_frames(clips: Sequence[Clip]) -> None:
    """Refuse to split images at random that look like the frames of videos."""
    found = _frame_folders(clips)
    if found:
        raise DataError(
            f"images of {len(found)} folders ({shown(found)}) are numbered as the frames of a video are, and frames of "
            "one video must not be in both train and test: leave out --images to list each folder as a video, or group "
            "them: --group '.+/' keeps the images of a folder together, --group '.+' splits them, --test 0 tests none"
        )


def _frame_folders(clips: Sequence[Clip]) -> list[str]:
    """Folders of images that may be the frames of videos."""
    folders: dict[str, list[str]] = defaultdict(list)
    labels: dict[str, set[str | None]] = defaultdict(set)
    for clip in clips:
        folder, _, name = clip.path.rpartition("/")
        folders[folder].append(name)
        labels[folder].add(clip.label)
    count = Counter(label for each in labels.values() for label in each)  # folders of a class
    return sorted(
        folder
        for folder, names in folders.items()
        if folder
        and len(names) > 1
        and _may_be_frames(folder, names, labels[folder], all(count[label] == 1 for label in labels[folder]))
    )


def _may_be_frames(folder: str, images: Sequence[str], labels: set[str | None], alone: bool) -> bool:
    """Whether images are numbered as frames are, and the folder is none that holds the examples of a class.

    Args:
        folder: Path of the folder.
        images: Names of its images.
        labels: Classes of its images.
        alone: No other folder has images of these classes.
    """
    numbers = numbers_by_name(images)
    if is_mixed(numbers):
        return True
    is_class = labels == {folder.rpartition("/")[2]}  # <class>/0001.png
    named_by_class = {name.rstrip("_-. ") for name in numbers} == labels  # <class>/images/<class>_1.JPEG
    return bool(numbers) and not is_class and not (alone and (named_by_class or len(labels) > 1))


def _check_other_lists(out: Path, written: set[str], has_classes: bool) -> None:
    """Refuse a folder with lists that would be of another root or other classes than those that are written."""
    names = [f"{name}.csv" for name in dict.fromkeys(("train", "test", *_SPLITS)) if name not in written]
    stale = [name for name in [*names, *([] if has_classes else ["classes.txt"])] if (out / name).exists()]
    if stale:
        raise DataError(
            f"{out} holds {' and '.join(stale)} of other lists: remove them or choose another folder"
        )


def _notes(
    tree: Tree,
    clips: Sequence[Clip],
    frames: set[str],
    splits: Mapping[str, str],
    fps: float | None,
    images: bool,
) -> list[str]:
    notes = []
    pooled = sorted({top for clip in clips if _is_split(top := clip.path.split("/")[0])} - {*splits})
    if pooled and all(clip.label is None for clip in clips):  # else they are classes, see _hints
        notes.append(
            f"{shown(pooled)} are not read as splits, which need one for training and nothing beside them"
        )
    if splits:
        notes.append(f"the split is that of the folders {', '.join(splits)}")
        for folder in splits:
            bare = sum(clip.label is None for clip in clips if clip.path.startswith(f"{folder}/"))
            if bare and any(clip.label is not None for clip in clips):
                notes.append(f"{bare} videos of {folder} have no class: their label is -1")
    if frames and fps is None:
        notes.append("folders of images do not hold their frame rate: give --fps here, or data.fps later")
    left = sorted(tree.images.keys() - frames)
    if left and not images:
        notes.append(f"{len(left)} folders with images are left out: {shown(left)}")
    mixed = sorted(tree.mixed.keys() - frames)
    if mixed:
        notes.append(
            f"{len(mixed)} of them hold images of several kinds ({shown(tree.mixed[mixed[0]])}): {shown(mixed)}"
        )
    notes += tree.notes
    maybe = _frame_folders(clips) if images else []
    if maybe:
        notes.append(
            f"hint: {len(maybe)} folders ({shown(maybe)}) look like videos kept as frames; without --images each is "
            "listed as one video"
        )
    return notes


def _hints(classes: Sequence[str], from_folders: bool) -> list[str]:
    """Signs that the folders are not classes."""
    if not classes or not from_folders:
        return []
    kinds = {
        "dates": [name for name in classes if _DATE.fullmatch(name)],
        "numbers": [name for name in classes if name.isdecimal() and not _DATE.fullmatch(name)],
        "splits": [name for name in classes if _is_split(name)],
    }
    hints = [
        f"hint: {len(names)} of {len(classes)} classes are called like {kind} ({shown(names)})"
        for kind, names in kinds.items()
        if len(names) > len(classes) / 2 or (kind == "splits" and names)
    ]
    if len(classes) == 1:
        hints.append(f"hint: there is one class only, {classes[0]!r}")
    return [f"{hint}; if these folders are not classes, give --unlabeled" for hint in hints]


def _read_labels(
    root: Path, labels: Path, group_column: str | None, sequences: frozenset[str], follow_links: bool
) -> list[Clip]:
    columns = ["path", "label"] + ([group_column] if group_column is not None else [])
    clips: dict[str, Clip] = {}
    missing = []
    try:
        with open(labels, encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            absent = [column for column in columns if column not in (rows.fieldnames or ())]
            if absent:
                header = ",".join(rows.fieldnames or ())
                raise DataError(f"{labels}:1: header {header!r} lacks the column {' and '.join(absent)}")
            for row in rows:
                place = f"{labels}:{rows.line_num}"
                if any(not row[column] for column in columns) or None in row:
                    raise DataError(f"{place}: every row needs {', '.join(columns)}; quote names with commas")
                path = Path(row["path"]).as_posix()
                inside = follow_links or (root / path).resolve().is_relative_to(root.resolve())
                if not inside or path.startswith("/") or ".." in path.split("/"):
                    raise DataError(f"{place}: {row['path']!r} leaves {root}; paths are relative to it")
                if path in clips:
                    raise DataError(f"{place}: {row['path']!r} was named before: delete one of the rows")
                if path not in sequences and not (root / path).is_file():
                    missing.append(path)
                clips[path] = Clip(path, row["label"], path if group_column is None else row[group_column])
    except OSError as error:
        raise DataError(f"cannot read {labels}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{labels} is not CSV in UTF-8: {error}") from None
    folders = [path for path in missing if (root / path).is_dir()]
    if folders:
        raise DataError(
            f"{len(folders)} of {len(clips)} files named in {labels} are folders ({shown(folders)}) and not read as "
            "videos: number the images of each under one name (img_0001.jpg) and leave out --images, or name files"
        )
    if missing:
        first = ", ".join(repr(path) for path in missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise DataError(
            f"{len(missing)} of {len(clips)} files named in {labels} are not in {root} ({first}): "
            "restore the files or delete their rows"
        )
    return [clips[path] for path in sorted(clips)]


def _group_by_pattern(clips: Sequence[Clip], pattern: str) -> list[Clip]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"group pattern {pattern!r} is no regular expression: {error}") from None
    grouped = []
    for clip in clips:
        match = compiled.search(clip.path)
        key = match and (match.group(1) if compiled.groups else match.group())
        if not key:
            raise DataError(
                f"the group pattern {pattern!r} finds no group in {clip.path!r}: change it or move the file"
            )
        grouped.append(Clip(clip.path, clip.label, key))
    return grouped


def _split(clips: Sequence[Clip], share: float, seed: int) -> tuple[list[Clip], list[Clip]]:
    """Clips of the groups that are trained on, and of those that are tested on."""
    if share == 0:
        return list(clips), []
    groups = sorted({clip.group for clip in clips})
    if len(groups) < 2:
        raise DataError(
            f"all {len(clips)} videos are one group, {groups[0]!r}: give --test 0, or another grouping"
        )
    count = min(max(int(share * len(groups) + 0.5), 1), len(groups) - 1)
    chosen = {groups[k] for k in generator(seed).permutation(len(groups))[:count]}
    return [c for c in clips if c.group not in chosen], [c for c in clips if c.group in chosen]
