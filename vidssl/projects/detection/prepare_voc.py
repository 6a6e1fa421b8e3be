"""Pascal VOC, and other sets in its form, to lists of boxes."""

from collections import Counter
from math import isfinite
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from vidssl.config import Tree
from vidssl.data.csv_rows import decimal_number, whole_number
from vidssl.data.read_input import quoted
from vidssl.data.write_lists import check_images
from vidssl.errors import DataError
from vidssl.prepare.match import read_lines
from vidssl.progress import progress
from vidssl.projects.detection.lists_with_boxes import check_boxes, reaches_beyond, write_boxes

SPLITS = ("train", "val", "trainval", "test")


class VOCObject(NamedTuple):
    """An object of an annotation file."""

    name: str
    box: tuple[float, float, float, float]  # xyxy, pixels from 0, x2 and y2 exclusive
    difficult: bool


def read_annotations(path: Path) -> list[VOCObject]:
    """Read the objects of an XML file; VOC counts pixels from 1 and includes the far edges.

    Raises:
        DataError: The file is missing or malformed.
    """
    try:
        return [_object(each) for each in ElementTree.parse(path).getroot().iter("object")]
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; complete the folder Annotations") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path} is not an annotation of VOC: {error}") from None


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
    files = [(year, split, year / "ImageSets" / "Main" / f"{split}.txt") for year in years for split in SPLITS]
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
        repeated = [each for each, count in Counter(names).items() for _ in range(count - 1)]
        if repeated:
            notes.append(f"{name}: {len(repeated)} lines repeat an image, and are dropped: {quoted(repeated)}")
        lists[name] = [year / "Annotations" / f"{each}.xml" for each in dict.fromkeys(names)]
        for path in progress(lists[name], title=name, unit="image", leave=False):
            if path not in images:
                images[path] = (_image(path, year.relative_to(root)), read_annotations(path))
        check_images(root, [images[path][0]["file_name"] for path in lists[name]], str(file))
    classes = sorted({each.name for _, objects in images.values() for each in objects})
    content = {name: _list([images[path] for path in paths], classes) for name, paths in lists.items()}
    write_boxes(out, root, content)
    counts = [f"{name}: {len(c['images'])} images, {len(c['annotations'])} objects" for name, c in content.items()]
    beyond = [
        image["file_name"]
        for image, objects in images.values()
        if any(reaches_beyond(each.box, (image["height"], image["width"])) for each in objects)
    ]
    if beyond:
        notes.append(f"warning: boxes of {len(beyond)} images reach beyond them by more than 1 %: {quoted(beyond)}")
    return "\n".join([*counts, f"{len(classes)} classes", *notes])


def _image(path: Path, folder: Path) -> Tree:
    try:
        size = ElementTree.parse(path).getroot()
        height, width = (whole_number(_text(size, f"size/{side}")) for side in ("height", "width"))
        if min(height, width) < 1:
            raise ValueError(f"its image is {width}x{height}")
        file = size.findtext("filename", "").strip() or f"{path.stem}.jpg"
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; complete the folder Annotations") from None
    except (ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{path} is not an annotation of VOC: {error}") from None
    # Many sets write a name without extension, or one that the file does not have.
    name = f"{path.stem}{Path(file).suffix or '.jpg'}"
    return {"file_name": (folder / "JPEGImages" / name).as_posix(), "height": height, "width": width}


def _list(images: list[tuple[Tree, list[VOCObject]]], classes: list[str]) -> Tree:
    """Make a tree in the format of COCO; difficult objects are marked as crowds, which tests do not count."""
    annotations: list[Tree] = []
    for number, (_, objects) in enumerate(images):
        for name, (x1, y1, x2, y2), difficult in objects:
            ignored = {"iscrowd": int(difficult)} | ({"difficult": 1} if difficult else {})
            box = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": (x2 - x1) * (y2 - y1)}
            found = {"id": len(annotations) + 1, "image_id": number, "category_id": classes.index(name) + 1}
            annotations.append(found | box | ignored)
    return {
        "images": [{"id": number} | image for number, (image, _) in enumerate(images)],
        "annotations": annotations,
        "categories": [{"id": number, "name": name} for number, name in enumerate(classes, 1)],
    }
