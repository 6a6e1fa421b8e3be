"""Make lists of the videos in a folder: find them, keep groups together, write train and test."""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vidssl.data.frame_folder import IMAGE_SUFFIXES
from vidssl.data.official.listing import classes_of, shown
from vidssl.data.records import write_lists
from vidssl.data.tree import VIDEO_SUFFIXES, check_name, scan
from vidssl.errors import ConfigError, DataError
from vidssl.randomness import generator


@dataclass(frozen=True)
class Clip:
    """One video of the folder."""

    path: str  # relative to the folder, with forward slashes
    label: str | None  # name of its class; None: unknown
    group: str  # clips of one group stay on one side


@dataclass(frozen=True)
class Prepared:
    """What was found and where it went; `str()` is the report that a script prints."""

    train: tuple[Clip, ...]
    test: tuple[Clip, ...]
    classes: tuple[str, ...]
    ignored: int  # files that are no videos, hidden, or not named by the labels

    def __str__(self) -> str:
        lines = [f"{len(self.train) + len(self.test)} videos found, {self.ignored} other files ignored"]
        sides = {"train": self.train, "test": self.test}
        for side, clips in sides.items():
            lines.append(f"{side}: {len(clips)} videos of {len({clip.group for clip in clips})} groups")
        counts = {side: Counter(clip.label for clip in clips) for side, clips in sides.items()}
        for name in self.classes:
            lines.append(f"  {name}: {counts['train'][name]} train, {counts['test'][name]} test")
        return "\n".join(lines)


def prepare_folder(
    root: Path,
    out: Path,
    *,
    test: float = 0.33,
    group: str | None = None,
    labels: Path | None = None,
    group_column: str | None = None,
    seed: int = 0,
    images: bool = False,
    classes: Path | None = None,
) -> Prepared:
    """Write `train.csv`, `test.csv`, `classes.txt` and `root.txt` for a folder of videos.

    The folder holds `<class>/<file>` (files may lie deeper) or files without classes, which get no label.
    With `labels` the videos and their classes are what that CSV says.

    Args:
        root: The folder.
        out: Where the lists go; made where it is missing.
        test: Share of the groups that go to the test list, in [0, 1), rounded to whole groups but at least
            one; 0: there is no test list.
        group: Regular expression searched in each relative path; its first capture group, else the whole
            match, names the group. None: each video is its own group.
        labels: CSV with the columns `path,label`, paths relative to the folder.
        group_column: Column of `labels` that names the group.
        seed: Decides which groups are tested.
        images: List image files, each a video of one frame, instead of videos.
        classes: File with the names of the classes to keep, one a line; None: all. Folders of others are not looked
            into.

    Raises:
        ConfigError: Options that contradict each other, a share outside [0, 1), a pattern that is none.
        DataError: No videos, missing files, a class to keep that has none, a file outside of the folder or without a
            group, or lists of another kind in `out`.
    """
    if not 0 <= test < 1:
        raise ConfigError(f"share of test groups is {test}, it must be in [0, 1)")
    if seed < 0:
        raise ConfigError(f"seed is {seed}, it must be at least 0")
    if group_column is not None and (labels is None or group is not None):
        raise ConfigError(
            "a group column needs a labels file and excludes a group pattern: give one of the two"
        )
    suffixes = IMAGE_SUFFIXES if images else VIDEO_SUFFIXES
    wanted = None if classes is None else set(classes_of(classes))
    tree = scan(root, folders=wanted if labels is None else None, suffixes=suffixes)
    ignored = tree.ignored
    if labels is None:
        clips = _classes_from_folders(root, tree.videos)
    else:
        clips = _read_labels(root, labels, group_column)
        ignored += len(set(tree.videos) - {clip.path for clip in clips})
    if wanted is not None:
        lacking = sorted(wanted - {clip.label for clip in clips if clip.label is not None})
        if lacking:
            raise DataError(
                f"{classes}: {len(lacking)} of {len(wanted)} classes have nothing in {root}: {shown(lacking)}"
            )
        ignored += sum(clip.label not in wanted for clip in clips)
        clips = [clip for clip in clips if clip.label in wanted]
    if not clips:
        raise DataError(
            f"no {'images' if images else 'videos'} in {root} ({ignored} other files); known are "
            + " ".join(sorted(suffixes))
            + ("" if images else "; pictures are listed with --images")
        )
    for clip in clips:
        check_name(clip.path)
        check_name(clip.label or "class")
    if group is not None:
        clips = _group_by_pattern(clips, group)
    train, tested = _split(clips, test, seed)
    names = tuple(sorted({clip.label for clip in clips if clip.label is not None}))
    sides = {"train": train, "test": tested} if test else {"train": train}
    written = {f"{side}.csv" for side in sides} | ({"classes.txt"} if names else set())
    stale = [
        name
        for name in ("train.csv", "test.csv", "classes.txt")
        if name not in written and (out / name).exists()
    ]
    if stale:
        raise DataError(
            f"{out} holds {' and '.join(stale)} of other lists: remove them or choose another folder"
        )
    numbers = {name: n for n, name in enumerate(names)}
    rows = {
        side: [(clip.path, -1 if clip.label is None else numbers[clip.label]) for clip in chosen]
        for side, chosen in sides.items()
    }
    write_lists(out, root, rows, names)
    return Prepared(tuple(train), tuple(tested), names, ignored)


def _classes_from_folders(root: Path, paths: Sequence[str]) -> list[Clip]:
    loose = [path for path in paths if "/" not in path]
    if loose and len(loose) < len(paths):
        raise DataError(
            f"{root} holds class folders and also loose videos ({loose[0]!r}): move those into a class folder"
        )
    return [Clip(path, None if loose else path.split("/")[0], group=path) for path in paths]


def _read_labels(root: Path, labels: Path, group_column: str | None) -> list[Clip]:
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
                if not (root / path).resolve().is_relative_to(root.resolve()) or path.startswith("/"):
                    raise DataError(f"{place}: {row['path']!r} leaves {root}; paths are relative to it")
                if path in clips:
                    raise DataError(f"{place}: {row['path']!r} was named before: delete one of the rows")
                if not (root / path).is_file():
                    missing.append(path)
                clips[path] = Clip(path, row["label"], path if group_column is None else row[group_column])
    except OSError as error:
        raise DataError(f"cannot read {labels}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{labels} is not CSV in UTF-8: {error}") from None
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
