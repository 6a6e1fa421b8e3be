"""Image classification on Pascal VOC: lists with several labels a row, from its official files."""

from pathlib import Path

from vidssl.data.write_lists import check_images, write_lists
from vidssl.errors import DataError
from vidssl.types import VideoRecord

_MARKS = {"1": "", "0": "?", "-1": None}  # present, present but difficult: not counted, absent


def prepare_voc_classes(root: Path, out: Path, *, train: str = "trainval", test: str = "test") -> str:
    """Pascal VOC with several labels a row: train.csv, test.csv.

    `root` is the folder of a year, such as VOCdevkit/VOC2007. The classes of an image are those of
    `ImageSets/Main/CLASS_SPLIT.txt`; classes with difficult objects only, 0 there, are not counted for the image. A
    DataError is raised if a file is missing or a line is not a name and 1, 0 or -1.

    Args:
        root: Folder of a year, such as VOCdevkit/VOC2007.
        out: Folder for what is written.
        train: Split of the training list.
        test: Split of the test list.
    """
    sets = root / "ImageSets" / "Main"
    classes = sorted(path.name.removesuffix(f"_{train}.txt") for path in sets.glob(f"*_{train}.txt"))
    if not classes:
        raise DataError(f"no files CLASS_{train}.txt in {sets}: name the folder of a year, such as VOCdevkit/VOC2007")
    lists = {name: _read_split(root, sets, classes, split) for name, split in (("train", train), ("test", test))}
    write_lists(out, root.resolve(), lists, classes)
    return "\n".join([*(f"{name}: {len(rows)} images" for name, rows in lists.items()), f"{len(classes)} classes"])


def _read_split(root: Path, sets: Path, classes: list[str], split: str) -> list[VideoRecord]:
    labels: dict[str, list[str]] = {}
    for number, name in enumerate(classes):
        path = sets / f"{name}_{split}.txt"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}; VOC has a file for each class and split") from None
        first: dict[str, tuple[int, str]] = {}  # line and mark of each image
        for at, line in enumerate(lines, start=1):
            image, _, mark = line.strip().partition(" ")
            if mark.strip() not in _MARKS:
                raise DataError(f"{path}, line {at}: {line!r} is not the name of an image and 1, 0 or -1")
            known = labels.setdefault(image, [])
            earlier = first.setdefault(image, (at, mark.strip()))
            if earlier[1] != mark.strip():
                raise DataError(f"{path}, line {at}: {line!r} contradicts line {earlier[0]}: delete one of them")
            if earlier[0] != at:
                continue
            sign = _MARKS[mark.strip()]
            if sign is not None:
                known.append(f"{number}{sign}")
    images = {image: f"JPEGImages/{image}.jpg" for image in sorted(labels)}
    check_images(root, [*images.values()], split)
    return [VideoRecord(path, label_set=" ".join(labels[image])) for image, path in images.items()]
