"""Pascal VOC, COCO's instances and AVA's actions to lists of boxes."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from vidssl.apps.detection.coco_lists import check_boxes, reaches_beyond, write_boxes
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import progress
from vidssl.base.types import Positive
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

VOC_SPLITS = ("train", "val", "trainval", "test")


class VOCObject(NamedTuple):
    """An object of an annotation file."""

    name: str
    box: tuple[float, float, float, float]  # xyxy, pixels from 0, x2 and y2 exclusive
    difficult: bool


@contextmanager
def _annotation(path: Path) -> Iterator[ElementTree.Element]:
    """Parse an XML file, which is then read in the context; a DataError if it is missing or malformed."""
    try:
        yield ElementTree.parse(path).getroot()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; complete the folder Annotations") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path} is not an annotation of VOC: {error}") from None


def read_annotations(path: Path) -> list[VOCObject]:
    """Read the objects of an XML file; VOC counts pixels from 1 and includes the far edges.

    Raises:
        DataError: The file is missing or malformed.
    """
    with _annotation(path) as root:
        return [_object(node) for node in root.iter("object")]


def _object(node: ElementTree.Element) -> VOCObject:
    x1, y1, x2, y2 = (decimal_number(_text(node, f"bndbox/{name}")) for name in ("xmin", "ymin", "xmax", "ymax"))
    if not all(map(isfinite, (x1, y1, x2, y2))):
        raise ValueError(f"the box {x1:g}, {y1:g}, {x2:g}, {y2:g} is not finite")
    return VOCObject(_text(node, "name"), (x1 - 1, y1 - 1, x2, y2), node.findtext("difficult", "0").strip() == "1")


def _text(node: ElementTree.Element, name: str) -> str:
    text = node.findtext(name)
    if text is None or not text.strip():
        raise ValueError(f"an element {node.tag} has no {name}")
    return text.strip()


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
        raise DataError(
            f"{root} has neither ImageSets/Main/trainval.txt nor folders VOC2007, VOC2012 with it: pass VOCdevkit or "
            "the folder that has Annotations and JPEGImages"
        )
    names_of = {file: split if year == root else f"{year.name.lower()}_{split}" for year, split, file in files}
    check_boxes(out, root, names_of.values())
    images: dict[Path, tuple[Tree, list[VOCObject]]] = {}  # by annotation file: splits overlap
    lists: dict[str, list[Path]] = {}
    notes = []
    for year, _, file in files:
        names = [line.split()[0] for _, line in read_lines(file, "complete the folder ImageSets")]
        name = names_of[file]
        repeated = [image for image, count in Counter(names).items() for _ in range(count - 1)]
        if repeated:
            notes.append(f"{name}: {len(repeated)} lines repeat an image, and are dropped: {quoted(repeated)}")
        lists[name] = [year / "Annotations" / f"{image}.xml" for image in dict.fromkeys(names)]
        for path in progress(lists[name], title=name, unit="image", leave=False):
            if path not in images:
                images[path] = (_image(path, year.relative_to(root)), read_annotations(path))
        check_images(root, [images[path][0]["file_name"] for path in lists[name]], str(file))
    classes = sorted({item.name for _, objects in images.values() for item in objects})
    content = {name: _list_voc([images[path] for path in paths], classes) for name, paths in lists.items()}
    write_boxes(out, root, content)
    counts = [f"{name}: {len(c['images'])} images, {len(c['annotations'])} objects" for name, c in content.items()]
    beyond = [
        image["file_name"]
        for image, objects in images.values()
        if any(reaches_beyond(item.box, (image["height"], image["width"])) for item in objects)
    ]
    if beyond:
        notes.append(f"warning: boxes of {len(beyond)} images reach beyond them by more than 1 %: {quoted(beyond)}")
    return "\n".join([*counts, f"{len(classes)} classes", *notes])


def _image(path: Path, folder: Path) -> Tree:
    with _annotation(path) as root:
        height, width = (parse_whole_number(_text(root, f"size/{side}")) for side in ("height", "width"))
        if min(height, width) < 1:
            raise ValueError(f"its image is {width}x{height}")
        file = root.findtext("filename", "").strip() or f"{path.stem}.jpg"
    # Many sets write a name without extension, or one that the file does not have.
    name = f"{path.stem}{Path(file).suffix or '.jpg'}"
    return {"file_name": (folder / "JPEGImages" / name).as_posix(), "height": height, "width": width}


def _list_voc(images: list[tuple[Tree, list[VOCObject]]], classes: list[str]) -> Tree:
    """Make a tree in the format of COCO; difficult objects are marked as crowds, which tests do not count."""
    annotations: list[Tree] = []
    for number, (_, objects) in enumerate(images):
        for name, (x1, y1, x2, y2), difficult in objects:
            ignored = {"iscrowd": int(difficult)} | ({"difficult": 1} if difficult else {})
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
            row = {"id": len(annotations) + 1, "image_id": number, "category_id": classes.index(name) + 1}
            annotations.append(row | box | ignored)
    return {
        "images": [{"id": number} | image for number, (image, _) in enumerate(images)],
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
    return "\n".join(
        f"{name}: {len(content['images'])} images, {len(content['annotations'])} objects, "
        f"{len(content['categories'])} classes"
        for name, content in lists.items()
    )


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
_CLASS = re.compile(r'name:\s*"([^"]*)"\s*(?:label_)?id:\s*(\d+)')  # both forms of the official files


class _Person(NamedTuple):
    """A row of a CSV file: a person in a key frame, with one action or none."""

    line: str  # file:line
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
        additional = [] if more is None else _read(more)
        detected = [person for person in additional if person.score >= min_score and person.video in paths]
        if more is not None:
            lines.append(
                f"  {more.name}: {len(detected)} of {len(additional)} boxes, the others of other movies or lower score"
            )
            if not detected:
                raise DataError(
                    f"{more}: none of {len(additional)} boxes is of a movie of {side} and has a score of {min_score:g}"
                )
        if side == "train":
            annotated += [person for person in detected if person.action is not None]
            detected = [person for person in detected if person.action is None]
        kept = [[person for person in part if person.key_frame not in excluded] for part in (annotated, detected)]
        rates = dict.fromkeys(index.image_folders, fps)
        _check_start(root, kept[0], paths, rates, start)
        lists[side] = _list_ava(kept[0], kept[1] if more else None, paths, rates, classes, known, start)
        report += [*lines, _describe(lists[side])]
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


def _read_excluded(path: Path) -> set[tuple[str, int]]:
    key_frames = set()
    for line, row in read_rows(path, _REMEDY):
        try:
            video, second = row
            key_frames.add((video, parse_whole_number(second)))
        except ValueError:
            raise DataError(f"{path}:{line}: {','.join(row)!r} is not video,second") from None
    return key_frames


def _read(path: Path) -> list[_Person]:
    persons = []
    for line, row in read_rows(path, _REMEDY):
        try:
            video, second, *numbers = row
            x1, y1, x2, y2 = (min(max(decimal_number(number), 0.0), 1.0) for number in numbers[:4])
            if not all(map(isfinite, map(decimal_number, (*numbers[:4], numbers[5])))):
                raise ValueError
            action = None if numbers[4] in ("", "-1") else parse_whole_number(numbers[4])
            box, score = (x1, y1, x2, y2), float(numbers[5])
            persons.append(_Person(f"{path}:{line}", video, parse_whole_number(second), box, action, score))
        except (ValueError, IndexError):
            raise DataError(
                f"{path}:{line}: {','.join(row)!r} is not video,second,x1,y1,x2,y2,action,person or score"
            ) from None
    return persons


def _find(index: FileIndex, side: str, videos: Sequence[str], max_missing: float) -> tuple[dict[str, str], list[str]]:
    """The files of the movies that are there, and the report."""
    files: dict[str, str] = {}
    names = dict.fromkeys(videos)
    for name in names:
        matched = index.find_anywhere(f"{name}.mp4", ()).paths
        paths = [path for path in matched if path not in index.image_folders or index.image_folders[path].is_video]
        if len(paths) > 1:
            raise DataError(f"movie {name} matches {quoted(paths)}: keep one of them in the folder")
        if paths:
            files[name] = paths[0]
    missing = [name for name in names if name not in files]
    if len(missing) > max_missing * len(names) or not files:
        raise DataError(
            f"{side}: {len(missing)} of {len(names)} movies are not in {index.root}, the limit is a fraction of "
            f"{max_missing:g} (max_missing=FRACTION): {quoted(missing)}; is it the right folder?"
        )
    lines = [f"{side}: {len(names)} movies listed, {len(files)} found, {len(missing)} missing"]
    return files, lines + ([f"  missing: {quoted(missing)}"] if missing else [])


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


def _list_ava(
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
                raise DataError(f"{person.line}: action {person.action} is not one of the {len(classes)} of the set")
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
