"""Pascal VOC, COCO's instances and AVA's actions to lists of boxes."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import NamedTuple, TypeVar
from xml.etree import ElementTree

import numpy as np

from vidssl.apps.detection.coco_lists import check_boxes, reaches_beyond, write_boxes
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import progress
from vidssl.base.types import Positive, VideoRecord
from vidssl.data.read_input import FileIndex, index_files, quoted
from vidssl.data.video_list import (
    decimal_number,
    parse_whole_number,
    read_lines,
    read_official_json,
    read_rows,
    read_text,
)
from vidssl.data.write_lists import check_images
from vidssl.video.reader import open_video

_Row = TypeVar("_Row")
VOC_SPLITS = ("train", "val", "trainval", "test")


class VOCImage(NamedTuple):
    """An annotation file."""

    image: Tree  # as in a list, but for its id
    objects: list[Tree]  # as in a list, but for ids, and with the name of the class
    reaches_beyond: bool  # whether a box leaves the image by more than 1 %


def read_annotation(path: Path, folder: Path) -> VOCImage:
    """Read an XML file whose image lies in JPEGImages of a folder; VOC counts pixels from 1 and includes the far edges.

    Raises:
        DataError: The file is missing or malformed.
    """
    try:
        root = ElementTree.parse(path).getroot()
        size = [parse_whole_number(_text(root, f"size/{side}")) for side in ("height", "width")]
        if min(size) < 1:
            raise ValueError(f"its image is {size[1]}x{size[0]}")
        objects = [_object(node) for node in root.iter("object")]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; complete the folder Annotations") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path} is not an annotation of VOC: {error}") from None
    # Many sets write a name without extension, or one that the file does not have.
    suffix = Path(root.findtext("filename", "").strip()).suffix or ".jpg"
    name = (folder / "JPEGImages" / f"{path.stem}{suffix}").as_posix()
    boxes = np.reshape([row["bbox"] for row in objects], (-1, 4))
    boxes[:, 2:] += boxes[:, :2]
    beyond = bool(reaches_beyond(boxes, np.array([size] * len(boxes)).reshape(-1, 2)).any())
    return VOCImage({"file_name": name, "height": size[0], "width": size[1]}, objects, beyond)


def _object(node: ElementTree.Element) -> Tree:
    x1, y1, x2, y2 = (decimal_number(_text(node, f"bndbox/{name}")) for name in ("xmin", "ymin", "xmax", "ymax"))
    if not all(map(isfinite, (x1, y1, x2, y2))):
        raise ValueError(f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} is not finite")
    width, height = x2 - (x1 - 1), y2 - (y1 - 1)
    row = {"category_id": _text(node, "name"), "bbox": [x1 - 1, y1 - 1, width, height], "area": width * height}
    if node.findtext("difficult", "0").strip() == "1":  # marked as a crowd too, which tests do not count
        return {**row, "iscrowd": 1, "difficult": 1}
    return {**row, "iscrowd": 0}


def _text(node: ElementTree.Element, name: str) -> str:
    text = node.findtext(name, "").strip()
    if not text:
        raise ValueError(f"an element {node.tag} has no {name}")
    return text


def prepare_voc(root: Path, out: Path) -> str:
    """Pascal VOC, with boxes: a JSON list for each split.

    `root` is VOCdevkit with the folders VOC2007 and so on, or a folder that has `Annotations`, `JPEGImages` and
    `ImageSets/Main` itself, whose lists are named by the split alone. Classes are sorted by name.

    Args:
        root: VOCdevkit, or one folder of it.
        out: Folder for what is written.
    """
    years = [root] if (root / "Annotations").is_dir() else sorted(path.parent for path in root.glob("*/Annotations"))
    files = [(year, split, year / "ImageSets" / "Main" / f"{split}.txt") for year in years for split in VOC_SPLITS]
    files = [(year, split, file) for year, split, file in files if file.is_file()]
    if not files:
        raise DataError(f"neither {root} nor its folders have ImageSets/Main: pass VOCdevkit, or one folder of it")
    names_of = {file: split if year == root else f"{year.name.lower()}_{split}" for year, split, file in files}
    check_boxes(out, root, names_of.values())
    images: dict[Path, VOCImage] = {}  # by annotation file: splits overlap
    lists: dict[str, list[VOCImage]] = {}
    notes = []
    for year, _, file in files:
        name = names_of[file]
        listed = [line.split()[0] for _, line in read_lines(file, "complete the folder ImageSets")]
        repeated = [image for image, count in Counter(listed).items() for _ in range(count - 1)]
        if repeated:
            notes.append(f"{name}: {len(repeated)} lines repeat an image, and are dropped: {quoted(repeated)}")
        paths = [year / "Annotations" / f"{image}.xml" for image in dict.fromkeys(listed)]
        for path in progress(paths, title=name, unit="image", leave=False):
            if path not in images:
                images[path] = read_annotation(path, year.relative_to(root))
        lists[name] = [images[path] for path in paths]
        check_images(root, [annotated.image["file_name"] for annotated in lists[name]], str(file))
    classes = sorted({row["category_id"] for annotated in images.values() for row in annotated.objects})
    content = {name: _list_voc(annotated, classes) for name, annotated in lists.items()}
    write_boxes(out, root, content)
    beyond = [annotated.image["file_name"] for annotated in images.values() if annotated.reaches_beyond]
    if beyond:
        notes.append(f"warning: boxes of {len(beyond)} images reach beyond them by more than 1 %: {quoted(beyond)}")
    counts = [f"{name}: {_counts(part)}" for name, part in content.items()]
    return "\n".join([*counts, f"{len(classes)} classes", *notes])


def _counts(content: Tree) -> str:
    return f"{len(content['images'])} images, {len(content['annotations'])} objects"


def _list_voc(images: Sequence[VOCImage], classes: Sequence[str]) -> Tree:
    """Make a tree in the format of COCO."""
    annotations: list[Tree] = []
    for number, annotated in enumerate(images):
        for row in annotated.objects:
            category = classes.index(row["category_id"]) + 1
            annotations.append({"id": len(annotations) + 1, "image_id": number, **row, "category_id": category})
    return {
        "images": [{"id": number} | annotated.image for number, annotated in enumerate(images)],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(classes, 1)],
    }


_KEPT = {
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation"),
    "categories": ("id", "name"),
}


def prepare_coco(root: Path, out: Path) -> str:
    """COCO, with boxes and outlines: a JSON list for each set.

    Images lie in the folder NAME, or in `images/NAME`. Returns the report.

    Args:
        root: Folder with annotations/.
        out: Folder for what is written.
    """
    files = sorted((root / "annotations").glob("instances_*.json"))
    if not files:
        raise DataError(f"{root} has no annotations/instances_*.json: pass the folder with COCO's annotations")
    check_boxes(out, root, [file.stem.removeprefix("instances_") for file in files])
    lists: dict[str, Tree] = {}
    for file in files:
        name = file.stem.removeprefix("instances_")
        folder = next((folder for folder in (name, f"images/{name}") if (root / folder).is_dir()), None)
        if folder is None:
            raise DataError(f"{root} has no folder {name} for the images of {file.name}: complete it or move the file")
        lists[name] = _list_coco(file, folder)
        check_images(root, [image["file_name"] for image in lists[name]["images"]], str(file))
    write_boxes(out, root, lists)
    return "\n".join(f"{name}: {_counts(part)}, {len(part['categories'])} classes" for name, part in lists.items())


def _list_coco(file: Path, folder: str) -> Tree:
    content = read_official_json(file)
    try:
        kept = {
            part: [{key: row[key] for key in keys if key in row} for row in content[part]]
            for part, keys in _KEPT.items()
        }
        for image in kept["images"]:
            image["file_name"] = f"{folder}/{image['file_name']}"
    except (KeyError, TypeError) as error:
        raise DataError(f"{file} is not an annotation file of COCO: {type(error).__name__}: {error}") from None
    return kept


_REMEDY = "pass the folder of the official annotations"
_FIELDS = "video,second,x1,y1,x2,y2,action,person or score"
_CLASS = re.compile(r'name:\s*"([^"]*)"\s*(?:label_)?id:\s*(\d+)')  # both forms of the official files


class _Person(NamedTuple):
    """A row of a CSV file: a person in a key frame, with one action or none."""

    line: str  # file:line
    key_frame: tuple[str, int]  # movie and its second
    bbox: list[float]  # left, top, width and height, fractions of the frame
    action: int | None
    score: float  # of a detected person; of annotated ones it is their number


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
        raise ConfigError(f"max_missing {max_missing}, min_score {min_score} are in [0, 1], start {start} is 0 or more")
    inputs = [annotations, *(path for path in (proposals, train_boxes) if path is not None)]
    check_boxes(out, root, ("train", "val"), inputs)
    classes = _read_classes(annotations / f"ava_action_list_v{version}.pbtxt")
    pattern = f"ava_action_list_v{version}_for_activitynet_*.pbtxt"  # of the counted actions
    official = sorted(annotations.glob(pattern))
    if len(official) != 1:
        raise DataError(f"{annotations} has {len(official)} files {pattern}: {_REMEDY}, which has one")
    counted, index = _read_classes(official[0]), index_files(root)
    lists: dict[str, Tree] = {}
    report = []
    for side, more, known in (("train", train_boxes, classes), ("val", proposals, counted)):
        excluded = {*_read(annotations / f"ava_{side}_excluded_timestamps_v{version}.csv", _key_frame, "video,second")}
        annotated = _read(annotations / f"ava_{side}_v{version}.csv", _person, _FIELDS)
        detected: list[_Person] = []
        movies, lines = _find(index, side, dict.fromkeys(person.key_frame[0] for person in annotated), max_missing, fps)
        report += lines
        if more is not None:
            additional = _read(more, _person, _FIELDS)
            detected = [person for person in additional if person.score >= min_score and person.key_frame[0] in movies]
            report.append(
                f"  {more.name}: {len(detected)} of {len(additional)} boxes, the others of other movies or lower score"
            )
            if not detected:
                raise DataError(f"{more}: no box of {len(additional)} is of a {side} movie with score {min_score:g}")
        if side == "train":
            annotated += [person for person in detected if person.action is not None]
            detected = [person for person in detected if person.action is None]
        annotated = [p for p in annotated if p.key_frame[0] in movies and p.key_frame not in excluded]
        detected = [p for p in detected if p.key_frame not in excluded]
        _check_start(root, annotated, movies, start)
        lists[side] = _list_ava(annotated, None if more is None else detected, movies, classes, known, start)
        report.append(_describe(lists[side]))
    write_boxes(out, root, lists, inputs)
    return "\n".join([*report, *index.notes, f"{len(classes)} actions, {len(counted)} are counted in tests"])


def _read_classes(path: Path) -> dict[int, str]:
    """Names of the actions of a label map, by their number."""
    try:
        names = {parse_whole_number(number): name for name, number in _CLASS.findall(read_text(path, _REMEDY))}
    except ValueError as error:
        raise DataError(f"{path}: {error}: {_REMEDY}") from None
    if not names:
        raise DataError(f"{path} names no actions: {_REMEDY}")
    return names


def _read(path: Path, parse: Callable[..., _Row], form: str) -> list[_Row]:
    """Apply a function to the line and fields of each row; it raises a ValueError or TypeError for another form."""
    items = []
    for line, row in read_rows(path, _REMEDY):
        try:
            items.append(parse(f"{path}:{line}", *row))
        except (ValueError, TypeError):
            raise DataError(f"{path}:{line}: {','.join(row)!r} is not {form}") from None
    return items


def _key_frame(_line: str, video: str, second: str) -> tuple[str, int]:
    return video, parse_whole_number(second)


def _person(line: str, video: str, second: str, *fields: str) -> _Person:
    *sides, action, score = fields[:6]
    numbers = [decimal_number(number) for number in (*sides, score)]
    if len(fields) < 6 or not all(map(isfinite, numbers)):
        raise ValueError
    x1, y1, x2, y2 = (min(max(number, 0.0), 1.0) for number in numbers[:4])
    number = None if action in ("", "-1") else parse_whole_number(action)
    return _Person(line, _key_frame(line, video, second), [x1, y1, x2 - x1, y2 - y1], number, numbers[4])


def _find(
    index: FileIndex, side: str, names: Collection[str], max_missing: float, fps: float
) -> tuple[dict[str, VideoRecord], list[str]]:
    """The movies that are there, by name, and the report."""
    movies: dict[str, VideoRecord] = {}
    for name in names:
        matched = index.find_anywhere(f"{name}.mp4", ()).paths
        paths = [path for path in matched if path not in index.image_folders or index.image_folders[path].is_video]
        if len(paths) > 1:
            raise DataError(f"movie {name} matches {quoted(paths)}: keep one of them in the folder")
        if paths:
            movies[name] = VideoRecord(paths[0], fps=fps if paths[0] in index.image_folders else None)
    missing = [name for name in names if name not in movies]
    if len(missing) > max_missing * len(names) or not movies:
        counts = f"{len(missing)} of {len(names)} movies are not in {index.root}"
        limit = f"the limit is a fraction of {max_missing:g} (max_missing=FRACTION)"
        raise DataError(f"{side}: {counts}, {limit}: {quoted(missing)}; is it the right folder?")
    lines = [f"{side}: {len(names)} movies listed, {len(movies)} found, {len(missing)} missing"]
    return movies, lines + ([f"  missing: {quoted(missing)}"] if missing else [])


def _check_start(root: Path, persons: Sequence[_Person], movies: Mapping[str, VideoRecord], start: float) -> None:
    """Raise a DataError if a file ends before its last key frame, or is so long that it is the whole movie."""
    last = dict.fromkeys(movies, 0)
    for person in persons:
        video, second = person.key_frame
        last[video] = max(second, last[video])
    for video, second in progress([*last.items()], title="movies", unit="movie", leave=False):
        path = root / movies[video].path
        with open_video(path, fps=movies[video].fps) as file:
            duration = file.meta.duration
        if second - start > duration + 1 or (start > 0 and second > start and duration >= second):
            end = f"its last key frame is second {second} of the movie, {second - start:g} s after the start {start:g}"
            remedy = "set start=SECONDS to the second at which the files begin, 0 for whole movies, or replace the file"
            raise DataError(f"{path} is {duration:.0f} s long, and {end}: {remedy}")


def _list_ava(
    annotated: Sequence[_Person],
    detected: Sequence[_Person] | None,
    movies: Mapping[str, VideoRecord],
    classes: Mapping[int, str],
    counted: Mapping[int, str],
    start: float,
) -> Tree:
    """Make a list of the key frames that have an annotated or detected person; its boxes are fractions of the frame."""
    images: dict[tuple[str, int], Tree] = {}
    for person in (*annotated, *(detected or ())):
        video, second = person.key_frame
        frame = {"file_name": movies[video].path, "time": second - start, "height": 1, "width": 1}
        rate = {} if movies[video].fps is None else {"fps": movies[video].fps}
        images.setdefault(person.key_frame, {"id": len(images) + 1, **frame, **rate})
    annotations: list[Tree] = []
    for person in annotated:
        if person.action not in classes:
            raise DataError(f"{person.line}: action {person.action} is not one of the {len(classes)} of the set")
        if person.action in counted:
            row = {"image_id": images[person.key_frame]["id"], "bbox": person.bbox, "category_id": person.action}
            annotations.append({"id": len(annotations) + 1, **row})
    content: Tree = {"images": [*images.values()], "annotations": annotations}
    if detected is not None:
        content["proposals"] = [
            {"image_id": images[person.key_frame]["id"], "bbox": person.bbox, "score": person.score}
            for person in detected
        ]
    return {**content, "categories": [{"id": number, "name": name} for number, name in classes.items()]}


def _describe(content: Tree) -> str:
    images, rows = content["images"], content["annotations"]
    persons = len({(row["image_id"], *row["bbox"]) for row in rows})
    detected = f", proposals: {len(content['proposals'])}" if "proposals" in content else ""
    return f"  {len(images)} key frames, {persons} persons with {len(rows)} actions{detected}"
