"""AVA: key frames of movies with the boxes of persons and their actions, from CSV files in the official form."""

import re
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from vidssl.config import Tree
from vidssl.data.csv_rows import decimal_number, read_rows, read_text, whole_number
from vidssl.data.read_input import FileIndex, index_files, quoted
from vidssl.errors import ConfigError, DataError
from vidssl.progress import progress
from vidssl.projects.detection.lists_with_boxes import check_boxes, write_boxes
from vidssl.types import Positive
from vidssl.video.reader import open_video

_REMEDY = "pass the folder of the official annotations"
_CLASS = re.compile(r'name:\s*"([^"]*)"\s*(?:label_)?id:\s*(\d+)')  # both forms of the official files


class _Person(NamedTuple):
    """A row of a CSV file: a person in a key frame, with one action or none."""

    place: str  # file:line
    video: str
    second: int  # of the movie
    box: tuple[float, float, float, float]  # xyxy, fractions of the frame
    action: int | None
    score: float  # of a detected person; of annotated ones it is their number

    @property
    def key_frame(self) -> tuple[str, int]:
        return self.video, self.second


def prepare_ava(
    root: Path,
    out: Path,
    annotations: Path,
    version: str = "2.2",
    start: float = 900.0,
    proposals: Path | None = None,
    train_boxes: Path | None = None,
    min_score: float = 0.8,
    fps: Positive = 30.0,
    max_missing: float = 0.05,
) -> str:
    """AVA, key frames with persons and actions: train.json, val.json.

    `train.json` has all 80 actions. `val.json` has those that the official evaluation counts, and neither list has the
    key frames that are officially excluded.

    Args:
        root: Folder of the movies `ID.mp4`, with any extension, or of folders ID of their frames.
        out: Folder for the lists.
        annotations: Folder of `ava_train_v2.2.csv` and so on, as they are published.
        version: Of the annotations.
        start: Second of the movie at which the files begin: 900 for the 15 annotated minutes, 0 for whole movies.
        proposals: CSV of persons detected in the validation movies, `video,second,x1,y1,x2,y2,,score`, which tests
            classify; without it they classify the ground-truth boxes.
        train_boxes: CSV of additional boxes for training, of the same form with actions: detected persons that overlap
            ground-truth boxes. Rows without an action are persons of none.
        min_score: Detected persons with a lower score are left out.
        fps: Frame rate of folders of frames.
        max_missing: Fraction of the movies of a list that may be missing.
    """
    if not (0 <= max_missing <= 1 and 0 <= min_score <= 1 and 0 <= start < float("inf")):
        raise ConfigError(
            f"max_missing is {max_missing}, min_score {min_score}, start {start}: the first two must be in "
            "[0, 1], start 0 or more"
        )
    inputs = [annotations, *(path for path in (proposals, train_boxes) if path is not None)]
    check_boxes(out, root, ("train", "val"), inputs)
    classes = _read_classes(annotations / f"ava_action_list_v{version}.pbtxt")
    official = sorted(annotations.glob(f"ava_action_list_v{version}_for_activitynet_*.pbtxt"))
    if len(official) != 1:
        raise DataError(
            f"{annotations} has {len(official)} files ava_action_list_v{version}_for_activitynet_*.pbtxt, of the "
            f"counted actions: {_REMEDY}, which has one"
        )
    counted, index = _read_classes(official[0]), index_files(root)
    lists: dict[str, Tree] = {}
    report = []
    for side, more, known in (("train", train_boxes, classes), ("val", proposals, counted)):
        excluded = _read_excluded(annotations / f"ava_{side}_excluded_timestamps_v{version}.csv")
        annotated = _read(annotations / f"ava_{side}_v{version}.csv")
        paths, lines = _find(index, side, [person.video for person in annotated], max_missing)
        given = [] if more is None else _read(more)
        detected = [person for person in given if person.score >= min_score and person.video in paths]
        if more is not None:
            lines.append(
                f"  {more.name}: {len(detected)} of {len(given)} boxes, the others of other movies or lower score"
            )
            if not detected:
                raise DataError(
                    f"{more}: none of {len(given)} boxes is of a movie of {side} and has a score of {min_score:g}"
                )
        if side == "train":
            annotated += [person for person in detected if person.action is not None]
            detected = [person for person in detected if person.action is None]
        kept = [[person for person in part if person.key_frame not in excluded] for part in (annotated, detected)]
        rates = dict.fromkeys(index.image_folders, fps)
        _check_start(root, kept[0], paths, rates, start)
        lists[side] = _list(kept[0], kept[1] if more else None, paths, rates, classes, known, start)
        report += [*lines, _describe(lists[side])]
    write_boxes(out, root, lists, inputs)
    return "\n".join([*report, *index.notes, f"{len(classes)} actions, {len(counted)} are counted in tests"])


def _read_classes(path: Path) -> dict[int, str]:
    """Names of the actions of a label map, by their number."""
    try:
        found = {whole_number(number): name for name, number in _CLASS.findall(read_text(path, _REMEDY))}
    except ValueError as error:
        raise DataError(f"{path}: {error}: {_REMEDY}") from None
    if not found:
        raise DataError(f"{path} names no actions: {_REMEDY}")
    return found


def _read_excluded(path: Path) -> set[tuple[str, int]]:
    found = set()
    for line, row in read_rows(path, _REMEDY):
        try:
            video, second = row
            found.add((video, whole_number(second)))
        except ValueError:
            raise DataError(f"{path}:{line}: {','.join(row)!r} is not video,second") from None
    return found


def _read(path: Path) -> list[_Person]:
    found = []
    for line, row in read_rows(path, _REMEDY):
        try:
            video, second, *numbers = row
            x1, y1, x2, y2 = (min(max(decimal_number(number), 0.0), 1.0) for number in numbers[:4])
            if not all(map(isfinite, map(decimal_number, (*numbers[:4], numbers[5])))):
                raise ValueError
            action = None if numbers[4] in ("", "-1") else whole_number(numbers[4])
            person = _Person(f"{path}:{line}", video, whole_number(second), (x1, y1, x2, y2), action, float(numbers[5]))
        except (ValueError, IndexError):
            raise DataError(
                f"{path}:{line}: {','.join(row)!r} is not video,second,x1,y1,x2,y2,action,person or score"
            ) from None
        found.append(person)
    return found


def _find(index: FileIndex, side: str, videos: Sequence[str], max_missing: float) -> tuple[dict[str, str], list[str]]:
    """The files of the movies that are there, and the report."""
    found: dict[str, str] = {}
    names = dict.fromkeys(videos)
    for name in names:
        matched = index.find_anywhere(f"{name}.mp4", ()).paths
        paths = [path for path in matched if path not in index.image_folders or index.image_folders[path].is_video]
        if len(paths) > 1:
            raise DataError(f"movie {name} matches {quoted(paths)}: keep one of them in the folder")
        if paths:
            found[name] = paths[0]
    missing = [name for name in names if name not in found]
    if len(missing) > max_missing * len(names) or not found:
        raise DataError(
            f"{side}: {len(missing)} of {len(names)} movies are not in {index.root}, the limit is a fraction of "
            f"{max_missing:g} (max_missing=FRACTION): {quoted(missing)}; is it the right folder?"
        )
    lines = [f"{side}: {len(names)} movies listed, {len(found)} found, {len(missing)} missing"]
    return found, lines + ([f"  missing: {quoted(missing)}"] if missing else [])


def _check_start(
    root: Path, persons: Sequence[_Person], paths: Mapping[str, str], rates: Mapping[str, float], start: float
) -> None:
    """Raise a DataError if a file ends before its last key frame, or is so long that it is the whole movie."""
    last: dict[str, int] = {}
    for person in persons:
        last[person.video] = max(person.second, last.get(person.video, 0))
    for video in progress([*paths], title="movies", unit="movie", leave=False):
        with open_video(root / paths[video], fps=rates.get(paths[video])) as file:
            duration = file.meta.duration
        second = last.get(video, 0)
        if second - start > duration + 1 or (start > 0 and second > start and duration >= second):
            raise DataError(
                f"{root / paths[video]} is {duration:.0f} s long, and its last key frame is second {second} of the "
                f"movie, {second - start:g} s after the start {start:g}: set start=SECONDS to the second at which the "
                "files begin, 0 for whole movies, or replace the file"
            )


def _list(
    annotated: Sequence[_Person],
    detected: Sequence[_Person] | None,
    paths: Mapping[str, str],
    rates: Mapping[str, float],
    classes: Mapping[int, str],
    counted: Mapping[int, str],
    start: float,
) -> Tree:
    """Make a list of the key frames that have an annotated or detected person; its boxes are fractions of the frame."""
    images: dict[tuple[str, int], Tree] = {}
    parts: dict[str, list[Tree]] = {"annotations": []} if detected is None else {"annotations": [], "proposals": []}
    for name, persons in (("annotations", annotated), ("proposals", detected or ())):
        for person in persons:
            if person.video not in paths:
                continue
            if person.key_frame not in images:
                path = paths[person.video]
                rate = {"fps": rates[path]} if path in rates else {}
                frame = {"file_name": path, "time": person.second - start, "height": 1, "width": 1, **rate}
                images[person.key_frame] = {"id": len(images) + 1, **frame}
            x1, y1, x2, y2 = person.box
            row: Tree = {"image_id": images[person.key_frame]["id"], "bbox": [x1, y1, x2 - x1, y2 - y1]}
            if name == "proposals":
                parts[name].append(row | {"score": person.score})
            elif person.action not in classes:
                raise DataError(f"{person.place}: action {person.action} is not one of the {len(classes)} of the set")
            elif person.action in counted:
                parts[name].append({"id": len(parts[name]) + 1, **row, "category_id": person.action})
    return {
        "images": [*images.values()],
        **parts,
        "categories": [{"id": number, "name": name} for number, name in classes.items()],
    }


def _describe(content: Tree) -> str:
    images, rows = content["images"], content["annotations"]
    persons = len({(row["image_id"], *row["bbox"]) for row in rows})
    detected = f", proposals: {len(content['proposals'])}" if "proposals" in content else ""
    return f"  {len(images)} key frames, {persons} persons with {len(rows)} actions{detected}"
