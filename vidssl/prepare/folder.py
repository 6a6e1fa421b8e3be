"""Lists of any folder of videos: find the videos and their classes, then split them by group into train and test."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vidssl.data.video_list import write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.annotation_files import read_classes, read_csv
from vidssl.prepare.detect_frame_folders import check_not_frames, find_frame_folders, folders_of_possible_frames
from vidssl.prepare.file_index import VIDEO_SUFFIXES, FileIndex, check_name, index_files, preview
from vidssl.prepare.splits import SPLITS, FolderVideo, is_split, lists_of_splits, split_by_group, splits_of
from vidssl.types import VideoRecord
from vidssl.video.frame_folder import IMAGE_SUFFIXES

_DATE = re.compile(r"\d{4}[-_.]?\d{2}[-_.]?\d{2}|\d{4}[-_.]\d{2}|\d{1,2}[-_.]\d{1,2}[-_.]\d{4}")
_MAX_REPORTED = 20  # classes in the report


@dataclass(frozen=True)
class FolderReport:
    """The lists of a folder; `str()` is what the command prints."""

    lists: Mapping[str, Sequence[FolderVideo]]
    classes: tuple[str, ...]
    ignored: int  # other files
    kind: str  # "videos", "images" or "folders of images"
    notes: tuple[str, ...]

    def __str__(self) -> str:
        total = sum(map(len, self.lists.values()))
        lines = [f"{total} {self.kind} found, {self.ignored} other files ignored"]
        for name, videos in self.lists.items():
            lines.append(f"{name}: {len(videos)} videos of {len({video.group for video in videos})} groups")
        counts = {name: Counter(video.label for video in videos) for name, videos in self.lists.items()}
        for label in self.classes[:_MAX_REPORTED]:
            lines.append(f"  {label}: " + ", ".join(f"{counts[name][label]} {name}" for name in self.lists))
        if len(self.classes) > _MAX_REPORTED:
            lines.append(f"  and {len(self.classes) - _MAX_REPORTED} more classes")
        if not self.classes:
            lines.append("no classes: the lists have no labels")
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
) -> FolderReport:
    """Write the lists of a folder of videos, `classes.txt` and `root.txt`.

    The folder holds `<class>/<file>` (at any depth), files without classes, or one of these in `train` and other
    splits, which become the lists. If there are no video files, folders of numbered images are the videos. With
    `labels`, the videos and their classes are those of that CSV file.

    Args:
        root: The folder.
        out: Folder for the lists.
        test: Fraction of the groups for the test list, in [0, 1), rounded to whole groups but at least one; 0: no test
            list. None: 0.33 if there are classes and no splits, else 0.
        group: Regular expression searched in each relative path; its first capture group, else the whole match, names
            the group. None: each video is its own group.
        labels: CSV with the columns `path,label`, paths relative to the folder.
        group_column: Column of `labels` that names the group.
        seed: Seed of the random split.
        images: List each image file as a video of one frame.
        classes: File with the names of the classes to keep, one a line; None: all.
        unlabeled: The folders are not classes: no video gets a label.
        follow_links: Follow links to folders, and links that leave the root.
        fps: Frame rate for folders of images, for the column `fps`; None: no column.

    Raises:
        ConfigError: Options are invalid, contradict each other, or do not fit the folder.
        DataError: No videos, missing files or classes, ambiguous folders, or other lists in `out`.
    """
    if test is not None and not 0 <= test < 1:
        raise ConfigError(f"--test is {test}: it must be in [0, 1)")
    if seed < 0:
        raise ConfigError(f"--seed is {seed}: it must be at least 0")
    if fps is not None and not 0 < fps < float("inf"):
        raise ConfigError(f"--fps is {fps}: it must be above 0")
    if group_column is not None and (labels is None or group is not None):
        raise ConfigError("--group-column needs --labels and excludes --group")
    if unlabeled and (labels is not None or classes is not None):
        raise ConfigError("--unlabeled excludes --labels and --classes")
    kept = None if classes is None else {*read_classes(classes)}
    index = index_files(
        root,
        lambda folder: kept is None or labels is not None or folder in kept or is_split(folder),
        IMAGE_SUFFIXES if images else VIDEO_SUFFIXES,
        follow_links,
    )
    if labels is None:
        videos = _label_by_folder(root, _video_paths(index, images, unlabeled), unlabeled)
    else:
        videos = _read_labels(index, labels, group_column, follow_links)
    splits = splits_of(root, [video.path for video in videos], unlabeled)
    if splits and (test is not None or group is not None or group_column is not None):
        raise ConfigError(
            f"{root} has the splits {', '.join(splits)}: remove --test and groups, or pass a folder without splits, "
            "such as the one for training"
        )
    if kept is not None:
        videos = [video for video in videos if video.label in kept]
        missing = sorted(kept - {video.label for video in videos})
        if missing:
            raise DataError(f"{classes}: {len(missing)} of {len(kept)} classes not found in {root}: {preview(missing)}")
    if group is not None:
        videos = _group_by_pattern(videos, group)
    frames = {path: index.image_folders[path] for path, *_ in videos if path in index.image_folders}
    if fps is not None and not frames:
        raise ConfigError(f"--fps is for folders of images, but {root} has none that are listed: remove it")
    names = tuple(sorted({video.label for video in videos if video.label is not None}))
    for name in (*names, *(video.path for video in videos)):
        check_name(name)
    if splits:
        lists = lists_of_splits(root, videos, splits)
    else:
        fraction = test if test is not None else 0.33 if names else 0.0
        if images and fraction and group is None and group_column is None:
            check_not_frames(videos)
        lists = split_by_group(videos, fraction, seed)
    _check_other_lists(out, {*lists}, names)
    numbers: dict[str | None, int] = {None: -1, **{name: n for n, name in enumerate(names)}}
    rows = {
        name: [VideoRecord(path, numbers[label], fps=fps if path in frames else None) for path, label, _ in chosen]
        for name, chosen in lists.items()
    }
    write_lists(out, root, rows, names)
    kind = "images" if images else "folders of images" if len(frames) == len(videos) else "videos"
    ignored = index.num_files - sum(frames[path].num_images if path in frames else 1 for path, *_ in videos)
    notes = _notes(index, videos, {*frames}, splits, images) + index.notes
    if frames and fps is None:
        notes.append("folders of images do not store a frame rate: set --fps here, or data.fps later")
    return FolderReport(lists, names, ignored, kind, (*notes, *(_hints(names) if labels is None else ())))


def _video_paths(index: FileIndex, images: bool, unlabeled: bool) -> Sequence[str]:
    """The files to list, or the folders of frames if there are no files."""
    if index.videos:
        return index.videos
    if images or not index.image_folders:
        kind, suffixes = ("images", IMAGE_SUFFIXES) if images else ("videos", VIDEO_SUFFIXES)
        raise DataError(
            f"no {kind} in {index.root} ({index.num_files} other files); known extensions: {' '.join(sorted(suffixes))}"
        )
    found = find_frame_folders(index)
    depth = 2 if splits_of(index.root, found, unlabeled) else 1
    if not unlabeled and all(path.count("/") < depth for path in found):
        raise DataError(
            f"no videos in {index.root}, but images in {len(found)} folders ({preview(found)}): use --images if each "
            "folder is a class and each image an example; use --unlabeled, or --labels with a class for each folder, "
            "if each folder is a video"
        )
    return found


def _label_by_folder(root: Path, paths: Sequence[str], unlabeled: bool) -> list[FolderVideo]:
    """Label each video with its top-level folder, or the top-level folder of its split."""
    splits = splits_of(root, paths, unlabeled)
    level = 1 if splits else 0
    folders = {path: path.split("/")[:-1] for path in paths}
    labels = {path: None if unlabeled else next(iter(folders[path][level:]), None) for path in paths}
    for split in () if unlabeled else splits or [""]:
        inside = [path for path in paths if not splits or folders[path][0] == split]
        loose = [path for path in inside if labels[path] is None]
        if loose and len(loose) < len(inside):
            raise DataError(
                f"{root / split} holds class folders and also loose videos ({loose[0]!r}): move those into a class "
                "folder, or list all videos without labels (--unlabeled)"
            )
    return [FolderVideo(path, labels[path], group=path) for path in paths]


def _read_labels(index: FileIndex, labels: Path, group_column: str | None, follow_links: bool) -> list[FolderVideo]:
    root, real_root = index.root, index.root.resolve()
    columns = ["path", "label"] + ([group_column] if group_column is not None else [])
    videos: dict[str, FolderVideo] = {}
    for place, row in read_csv(labels, columns, "pass a CSV file with the columns path,label"):
        path = Path(row["path"]).as_posix()
        inside = follow_links or (root / path).resolve().is_relative_to(real_root)
        if not inside or path.startswith("/") or ".." in path.split("/"):
            raise DataError(f"{place}: {row['path']!r} leaves {root}; paths are relative to it")
        if path in videos:
            raise DataError(f"{place}: {row['path']!r} is listed twice: delete one of the rows")
        videos[path] = FolderVideo(path, row["label"], path if group_column is None else row[group_column])
    frames = {path for path, folder in index.image_folders.items() if folder.is_video}
    missing = [path for path in videos if path not in frames and not (root / path).is_file()]
    folders = [path for path in missing if (root / path).is_dir()]
    if folders:
        raise DataError(
            f"{len(folders)} of {len(videos)} files in {labels} are folders ({preview(folders)}) that are not read as "
            "videos: number the images of each under one name (img_0001.jpg) and remove --images, or list files"
        )
    if missing:
        raise DataError(
            f"{len(missing)} of {len(videos)} files in {labels} are not in {root} ({preview(missing)}): "
            "restore the files or delete their rows"
        )
    return [videos[path] for path in sorted(videos)]


def _group_by_pattern(videos: Sequence[FolderVideo], pattern: str) -> list[FolderVideo]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--group {pattern!r} is not a regular expression: {error}") from None
    grouped = []
    for video in videos:
        match = compiled.search(video.path)
        key = match and (match.group(1) if compiled.groups else match.group())
        if not key:
            raise DataError(f"--group {pattern!r} finds no group in {video.path!r}: change the pattern")
        grouped.append(video._replace(group=key))
    return grouped


def _check_other_lists(out: Path, written: set[str], classes: Sequence[str]) -> None:
    """Refuse a folder with stale lists, which would belong to another root or other classes."""
    others = [f"{name}.csv" for name in SPLITS if name not in written] + ([] if classes else ["classes.txt"])
    stale = [name for name in others if (out / name).exists()]
    if stale:
        raise DataError(f"{out} holds {' and '.join(stale)} of other lists: remove them or choose another --out")


def _notes(
    index: FileIndex, videos: Sequence[FolderVideo], frames: set[str], splits: Mapping[str, str], images: bool
) -> list[str]:
    notes = []
    labelled = any(video.label is not None for video in videos)
    pooled = sorted({top for video in videos if is_split(top := video.path.split("/")[0])} - {*splits})
    if pooled and not labelled:
        notes.append(f"{preview(pooled)} are not splits: splits need one for training and nothing beside them")
    if splits:
        notes.append(f"splits are the folders {', '.join(splits)}")
    for folder in splits if labelled else ():
        count = sum(video.label is None for video in videos if video.path.startswith(f"{folder}/"))
        if count:
            notes.append(f"{count} videos of {folder} have no class: their label is -1")
    left = sorted(index.image_folders.keys() - frames)
    if left and not images:
        notes.append(f"skipped {len(left)} folders with images: {preview(left)}")
    mixed = [path for path in left if index.image_folders[path].mixed_prefixes]
    if mixed:
        kinds = preview(index.image_folders[mixed[0]].mixed_prefixes)
        notes.append(f"{len(mixed)} of them hold images of several kinds ({kinds}): {preview(mixed)}")
    maybe = folders_of_possible_frames(videos) if images else []
    if maybe:
        notes.append(
            f"hint: {len(maybe)} folders ({preview(maybe)}) look like videos kept as frames; without --images each is "
            "listed as one video"
        )
    return notes


def _hints(classes: Sequence[str]) -> list[str]:
    """Signs that the folders are not classes."""
    kinds = {
        "dates": [name for name in classes if _DATE.fullmatch(name)],
        "numbers": [name for name in classes if name.isdecimal() and not _DATE.fullmatch(name)],
        "splits": [name for name in classes if is_split(name)],
    }
    hints = [
        f"hint: {len(names)} of {len(classes)} classes look like {kind} ({preview(names)})"
        for kind, names in kinds.items()
        if len(names) > len(classes) / 2 or (kind == "splits" and names)
    ]
    if len(classes) == 1:
        hints.append(f"hint: there is only one class, {classes[0]!r}")
    return [f"{hint}; use --unlabeled if these folders are not classes" for hint in hints]
