"""Lists of any folder of videos: find the videos and their classes, then split them by group into train and test."""

import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from vidssl.apps.prepare.match import read_classes
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Natural, Positive, VideoRecord
from vidssl.data.annotation_forms import read_annotations
from vidssl.data.find_same_videos import find_copies
from vidssl.data.read_input import VIDEO_SUFFIXES, FileIndex, describe_suffixes, frame_folders, index_files, quoted
from vidssl.data.read_labels import match_labels, split_column
from vidssl.data.recordings_and_class_folders import camera_line, is_camera_name, number_recordings, recordings_by
from vidssl.data.video_list import Records, VideoList
from vidssl.data.write_lists import write_lists
from vidssl.video.frame_folder import IMAGE_SUFFIXES, has_other_images, numbers_by_name

# Names of folders that are splits if one of them is for training, in any case.
_TRAIN = ("train", "training")
SPLIT_FOLDERS = (*_TRAIN, "val", "valid", "validation", "dev", "test", "testing", "eval")
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
    found = f"{root} has the splits {', '.join(named)}"
    if others and has_train and len(splits) > 1:
        raise DataError(f"{found}, and beside them {quoted(others)}: move these elsewhere, or pass one split")
    if others or not named or (unlabeled and not has_train):
        return {}
    if not has_train or len({*splits.values()}) < len(splits):
        raise DataError(f"{found}: it needs exactly one for training, and one of each name; or pass one split")
    return splits


def is_split(folder: str) -> bool:
    """Whether a folder has the name of a split."""
    return folder.casefold() in SPLIT_FOLDERS


def lists_of_splits(
    root: Path, videos: Sequence[FolderVideo], splits: Mapping[str, str]
) -> dict[str, list[FolderVideo]]:
    """The lists of a folder with splits; train comes first."""
    lists: dict[str, list[FolderVideo]] = {"train": [], **{name: [] for name in splits.values()}}
    for video in videos:
        lists[splits[video.path.split("/")[0]]].append(video)
    trained = {video.label for video in lists["train"]}
    for name, side in lists.items():
        unknown = sorted({video.label for video in side if video.label is not None} - trained)
        if unknown:
            lacking = f"{root}: {name} has {len(unknown)} classes that train lacks: {quoted(unknown)}"
            raise DataError(f"{lacking}; keep those of train with classes=FILE, or list each split by itself")
    return {name: side for name, side in lists.items() if side}


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
    candidates = [_draw([names[k] for k in random.permutation(len(names))], groups, fraction) for _ in range(draws)]
    _, tested = min(candidates, key=lambda candidate: candidate[0])  # the first of equal ones
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
    training = Counter(label for labels in groups.values() for label in labels)  # groups of each class, not chosen
    tested, chosen = Counter[str | None](), set[str]()  # videos of each class in the groups that are chosen

    def leaves_training(name: str) -> bool:
        return min(training[label] for label in groups[name]) > 1

    def choose(name: str) -> None:
        chosen.add(name)
        tested.update(groups[name])
        training.subtract([*groups[name]])

    number = min(max(int(fraction * len(groups) + 0.5), 1), len(groups) - 1)  # of groups to test, if all were equal
    every_class = fraction * sizes.total() + 0.5 >= len(sizes)
    targets = {label: max(fraction * count, float(every_class)) for label, count in sizes.items()}
    for name in order:
        gain = sum((2 * (targets[c] - tested[c]) - n) * n / sizes[c] for c, n in groups[name].items())
        if leaves_training(name) and (gain > _TIE or (gain > -_TIE and len(chosen) < number)):
            choose(name)
    for name in order:  # classes whose groups are too large, or of which the fraction is less than half a video
        new = any(not tested[label] for label in groups[name])
        room = every_class or len(chosen) < number
        if new and room and name not in chosen and leaves_training(name):
            choose(name)
    for name in order[: 0 if chosen else number]:
        choose(name)
    missing = sum(not tested[label] for label in sizes)
    return (missing, sum((tested[c] - fraction * n) ** 2 / n for c, n in sizes.items())), chosen


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


def _keep_together(videos: Sequence[FolderVideo], copies: Mapping[str, str]) -> list[FolderVideo]:
    """Join the groups of exact copies, which are mapped to their originals."""
    row = {video.path: n for n, video in enumerate(videos)}
    groups = number_recordings([video.group for video in videos])
    groups = groups.joined([(row[copy], row[source]) for copy, source in copies.items()], "")
    names: dict[int, str] = {}
    return [
        video._replace(group=names.setdefault(number, video.group))
        for video, number in zip(videos, groups.number.tolist(), strict=True)
    ]


def _report_copies(lists: Lists, copies: Mapping[str, str], kept_together: bool) -> list[str]:
    """Name exact copies, those in several lists, which the folders of splits have put there, and in several classes."""
    side = {video.path: name for name, videos in lists.items() for video in videos}
    label = {video.path: video.label for videos in lists.values() for video in videos}
    texts = {copy: f"{copy!r} is {source!r}" for copy, source in copies.items()}
    lines = []
    if kept_together and copies:
        lines.append(f"{len(copies)} videos are exact copies of others, kept in one list: {first_few(texts.values())}")
    if apart := [copy for copy, source in copies.items() if side[copy] != side[source]]:
        named = first_few(f"{n!r} in {side[n]} is {copies[n]!r} in {side[copies[n]]}" for n in apart)
        lines.append(f"warning: {len(apart)} videos are exact copies of videos in another list: {named}")
    if differ := [texts[copy] for copy, source in copies.items() if label[copy] != label[source]]:
        lines.append(f"warning: {len(differ)} videos are exact copies of videos of another class: {first_few(differ)}")
    return lines


def warn_of_classes(lists: Lists) -> list[str]:
    """Name the classes that a list lacks."""
    present = {name: {video.label for video in videos} - {None} for name, videos in lists.items()}
    classes = set[str | None]().union(*present.values())
    return [
        f"warning: {len(missing)} of {len(classes)} classes have no video in {name}: {quoted(missing)}"
        for name, labels in present.items()
        if labels and (missing := sorted(map(str, classes - labels)))
    ]


def warn_of_recordings(lists: Lists, remedy: bool) -> list[str]:
    """Count the names that look like recordings of several clips and are in several lists; name the pattern of them."""
    videos = [video for side in lists.values() for video in side]
    classes = max(1, len({video.label for video in videos}))
    for pattern in _RECORDINGS:
        sides: dict[str, Counter[str]] = {}
        for name, side in lists.items():
            for video in side:
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


def prepare_folder(
    root: Path,
    out: Path,
    *,
    test: float | None = None,
    group: str | None = None,
    labels: Path | None = None,
    group_column: str | None = None,
    seed: Natural = 0,
    images: bool = False,
    classes: Path | None = None,
    follow_links: bool = False,
    fps: Positive | None = None,
) -> str:
    """Any folder of videos: train.csv and test.csv, or a list for each split.

    Also `classes.txt` and `root.txt`; returns the report. docs/data_sets.md has all rules.

    Args:
        root: Folder of the videos.
        out: Folder for what is written.
        test: Fraction of each class for the test list (default 0.33; 0, no test list, if there are no classes).
        group: Group of a path: first capture group of this expression, or match.
        labels: File with labels, or FILE:COLUMN, as in other commands, whose videos alone are listed; `folders`,
            whatever their names; or `none`: lists without labels (default: folders, unless all have names that cameras
            and calendars give).
        group_column: Column of the labels that names the group.
        seed: Seed of the random split.
        images: List each image file as a video of one frame.
        classes: File of classes to keep, one a line.
        follow_links: Follow links to folders and outside.
        fps: Frame rate for folders of images.
    """
    if test is not None and not 0 <= test < 1:
        raise ConfigError(f"test is {test}: it must be in [0, 1)")
    file, unlabeled = None if str(labels) in ("None", "folders", "none") else Path(str(labels)), str(labels) == "none"
    grouped_twice = group_column is not None and (file is None or group is not None)
    if grouped_twice or (unlabeled and classes is not None):
        raise ConfigError('a column of groups needs labels=FILE, no group; labels="none" excludes classes')
    kept = None if classes is None else {*read_classes(classes)}
    index = index_files(
        root,
        lambda name: kept is None or file is not None or name in kept or is_split(name),
        IMAGE_SUFFIXES if images else VIDEO_SUFFIXES,
        follow_links,
    )
    index.warn_of_others()
    videos = _find_videos(index, images) if file is None else _read_labels(index, file, group_column)
    splits = splits_of(root, [video.path for video in videos], unlabeled)
    folders = list[str]()
    if file is None and not unlabeled:
        videos = _label_by_folder(index, videos, splits)
        folders = sorted({video.label for video in videos if video.label is not None})
    cameras = folders if labels is None and kept is None and all(map(is_camera_name, folders)) else []
    if cameras:
        videos = [video._replace(label=None) for video in videos]
    if splits and (test, group, group_column) != (None, None, None):
        raise ConfigError(f"{root} has the splits {', '.join(splits)}: leave out test and groups, or pass one of them")
    if kept is not None:
        videos = [video for video in videos if video.label in kept]
        missing = sorted(kept - {video.label for video in videos})
        if missing:
            raise DataError(f"{classes}: {len(missing)} of {len(kept)} classes not found in {root}: {quoted(missing)}")
    if group is not None:
        videos = _group_by_pattern(videos, group)
    names = sorted({video.label for video in videos if video.label is not None})
    fraction = test if test is not None else 0.33 if names else 0.0
    grouped = group is not None or group_column is not None
    if images and fraction and not splits and not grouped:
        _check_not_frames(videos)
    copies: dict[str, str] = {}
    if splits:
        lists = lists_of_splits(root, videos, splits)
        if len(lists) > 1:
            copies = find_copies(root, [video.path for side in lists.values() for video in side])
    else:
        if fraction:
            copies = find_copies(root, [video.path for video in videos])
            videos = _keep_together(videos, copies)
        lists = split_by_group(videos, fraction, seed)
    if fps is not None and not any(video.path in index.image_folders for video in videos):
        raise ConfigError(f"fps=RATE is for folders of images, but {root} has none that are listed: remove it")
    _write(
        index, out, lists, grouped, names, fps, [split_column(path)[0] for path in (file, classes) if path is not None]
    )
    report = _report(index, lists, names, splits, images, fps)
    if len(lists) > 1:
        report += warn_of_classes(lists) + _report_copies(lists, copies, kept_together=not splits)
        report += [] if grouped else warn_of_recordings(lists, remedy=not splits)
    return "\n".join([*report, *index.notes, *(_hints(names, cameras) if file is None else ())])


def _check_not_frames(images: Iterable[tuple[str, str | None, str]]) -> None:
    """Raise DataError if images, (path, label, group) each, may be frames of videos, which must not be split."""
    names: dict[str, list[str]] = defaultdict(list)
    labels: dict[str, set[str | None]] = defaultdict(set)
    for path, label, _ in images:
        folder, name = posixpath.split(path)
        names[folder].append(name)
        labels[folder].add(label)
    folders_per_label = Counter(label for classes in labels.values() for label in classes)
    sequences = []
    for folder in sorted(names):
        prefixes = numbers_by_name(names[folder])
        is_class = labels[folder] == {posixpath.basename(folder)}  # <class>/0001.png
        # The examples of all classes, or <class>/images/<class>_1.JPEG.
        several = len(labels[folder]) > 1 or {name.rstrip("_-. ") for name in prefixes} == labels[folder]
        is_set = several and all(folders_per_label[label] == 1 for label in labels[folder])
        is_numbered = bool(prefixes) and not is_class and not is_set
        if folder and len(names[folder]) > 1 and (is_numbered or has_other_images(names[folder])):
            sequences.append(folder)
    if sequences:
        raise DataError(
            f"images of {len(sequences)} folders ({quoted(sequences)}) are numbered like the frames of a video, and "
            "frames of one video must not be in both train and test: leave out images=True to list each folder as a "
            "video, or group them: the group '.+/' keeps the images of a folder together, '.+' splits them, and test=0 "
            "tests none"
        )


def _find_videos(index: FileIndex, images: bool) -> list[FolderVideo]:
    """The files to list, or the folders of frames if there are no files; without labels."""
    if not index.videos and (images or not index.image_folders):
        kind, known = ("images", IMAGE_SUFFIXES) if images else ("videos", VIDEO_SUFFIXES)
        raise DataError(
            f"no {kind} in {index.root} ({index.num_files} other files); known extensions: {' '.join(sorted(known))}"
        )
    return [FolderVideo(path, None, group=path) for path in index.videos or frame_folders(index)]


def _label_by_folder(index: FileIndex, videos: Sequence[FolderVideo], splits: Collection[str]) -> list[FolderVideo]:
    """Label each video with its top-level folder, or the top-level folder of its split."""
    level = 1 if splits else 0
    labelled = []
    for video in videos:
        *folders, _ = video.path.split("/")
        labelled.append(video._replace(label=folders[level] if len(folders) > level else None))
    loose = [video.path for video in labelled if video.label is None]
    if len(loose) == len(videos) and not index.videos:
        raise DataError(
            f"no videos in {index.root}, but images in {len(loose)} folders ({quoted(loose)}): use images=True if each "
            'folder is a class and each image an example; use labels="none", or labels=FILE with a class for each '
            "folder, if each folder is a video"
        )
    return labelled


def _read_labels(index: FileIndex, labels: Path, group_column: str | None) -> list[FolderVideo]:
    of_groups = Path(f"{split_column(labels)[0]}:{group_column}")
    groups = {} if group_column is None else {row.place: row.label for row in read_annotations(of_groups)}
    if empty := [place for place, group in groups.items() if not group]:
        raise DataError(f"{empty[0]}: the column {group_column} of groups is empty")
    frames = [path for path, folder in index.image_folders.items() if folder.is_video]
    listed = VideoList(index.root, Records(index.root, map(VideoRecord, [*index.videos, *frames])), ())
    named = match_labels(
        {labels: read_annotations(labels, [(group_column or "").lower()])}, listed, allow_external=True
    )
    videos: dict[str, FolderVideo] = {}
    for record, label in named.values():
        path = Path(os.path.relpath(record.path, index.root)).as_posix()
        if path.startswith("../"):
            raise DataError(f"{label.place}: {label.name!r} leaves {index.root}")
        if label.start is not None or label.end is not None:
            raise DataError(
                f"{label.place}: a span, and a list of a folder has whole videos: leave prepare out, other commands "
                f"take the folder {index.root} and labels=FILE"
            )
        videos[path] = FolderVideo(path, label.label or None, groups.get(label.place, path))
    return [videos[path] for path in sorted(videos)]


def _group_by_pattern(videos: Sequence[FolderVideo], pattern: str) -> list[FolderVideo]:
    recordings = recordings_by(pattern, [video.path for video in videos])
    if without := [video.path for video, key in zip(videos, recordings, strict=True) if key is None]:
        count = f"{len(without)} of {len(videos)} paths ({quoted(without)})"
        raise DataError(f"the group {pattern!r} finds no group in {count}: change the pattern")
    return [video._replace(group=str(key)) for video, key in zip(videos, recordings, strict=True)]


def _write(
    index: FileIndex,
    out: Path,
    lists: Lists,
    grouped: bool,
    classes: Sequence[str],
    fps: float | None,
    inputs: Sequence[Path],
) -> None:
    """Write the lists, but not beside stale ones, which would belong to another root or other classes."""
    others = [f"{name}.csv" for name in SPLIT_FOLDERS if name not in lists] + ([] if classes else ["classes.txt"])
    stale = [name for name in others if (out / name).exists()]
    if stale:
        raise DataError(f"{out} holds {' and '.join(stale)} of other lists: choose another folder")
    numbers: dict[str | None, int] = {None: -1, **{name: n for n, name in enumerate(classes)}}
    rates = dict.fromkeys(index.image_folders, fps)
    rows = {
        name: [
            VideoRecord(path, numbers[label], fps=rates.get(path), group=group if grouped else None)
            for path, label, group in chosen
        ]
        for name, chosen in lists.items()
    }
    write_lists(out, index.root, rows, classes, inputs)


def _report(
    index: FileIndex, lists: Lists, classes: Sequence[str], splits: Collection[str], images: bool, fps: float | None
) -> list[str]:
    listed = {video.path for videos in lists.values() for video in videos}
    frames = listed & index.image_folders.keys()
    kind = "images" if images else "folders of images" if len(frames) == len(listed) else "videos"
    used = len(listed - frames) + sum(index.image_folders[path].num_images for path in frames)
    others = index.others + Counter({"videos, images or hidden files": index.num_files - used - index.others.total()})
    detail = f" ({describe_suffixes(others)})" if others else ""
    lines = [f"{len(listed)} {kind} found, {index.num_files - used} other files ignored{detail}"]
    for name, videos in lists.items():
        lines.append(f"{name}: {len(videos)} videos of {len({video.group for video in videos})} groups")
    counts = Counter((video.label, name) for name, videos in lists.items() for video in videos)
    by_class = [f"  {label}: " + ", ".join(f"{counts[label, name]} {name}" for name in lists) for label in classes]
    lines += by_class[:20] or ["no classes: the lists have no labels"]
    lines += [f"  and {len(by_class) - 20} more classes"] if len(by_class) > 20 else []
    unknown = {name: counts[None, name] for name in lists if classes and counts[None, name]}
    lines += [f"{count} videos of {name} have no class: their label is -1" for name, count in unknown.items()]
    skipped = sorted(index.image_folders.keys() - listed)
    if splits:
        lines.append(f"splits are the folders {', '.join(splits)}")
    if skipped and not images:
        lines.append(f"not listed: the images in {len(skipped)} folders, {quoted(skipped)}")
    if frames and fps is None:
        lines.append("folders of images: set fps=RATE, or data.fps later")
    return lines


def _hints(classes: Sequence[str], cameras: Sequence[str]) -> list[str]:
    """Signs that the folders are not classes."""
    if cameras:
        return [f"hint: {camera_line(cameras)}"]
    numbers = [name for name in classes if re.fullmatch(r"[\d_.-]+", name)]
    splits = [name for name in classes if is_split(name)]
    signs = []
    if len(numbers) > len(classes) / 2:
        signs.append(f"{len(numbers)} of {len(classes)} classes look like dates or numbers ({quoted(numbers)})")
    if splits:
        signs.append(f"{len(splits)} of {len(classes)} classes look like splits ({quoted(splits)})")
    if len(classes) == 1:
        signs.append(f"there is only one class, {classes[0]!r}")
    return [f'hint: {sign}; use labels="none" if these folders are not classes' for sign in signs]
