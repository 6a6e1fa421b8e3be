"""Sets whose files are written with their lists: images of torchvision.datasets, moving digits; and VOC's classes.

Each image, a PNG file of torchvision's sets, is a video of one frame.
"""

import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vidssl.base.atomic import temporary_for, writing
from vidssl.base.config import bind
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.output_folder import claim
from vidssl.base.progress import progress
from vidssl.base.types import VideoRecord
from vidssl.data.moving_digits import MovingDigits, ensure
from vidssl.data.video_list import read_lines
from vidssl.data.write_lists import check_beside, check_images, write_lists

_SIGNS: dict[str, tuple[str, ...]] = {"1": ("",), "0": ("?",), "-1": ()}  # present, difficult: not counted, absent


def prepare_voc_classes(root: Path, out: Path, *, train: str = "trainval", test: str = "test") -> str:
    """Pascal VOC with several labels per row: train.csv, test.csv.

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
        marks: dict[str, tuple[str, str]] = {}  # mark of each image, and its line
        for place, line in read_lines(sets / f"{name}_{split}.txt", "VOC has a file for each class and split"):
            image, _, mark = (part.strip() for part in line.partition(" "))
            if mark not in _SIGNS:
                raise DataError(f"{place}: {line!r} is not the name of an image and 1, 0 or -1")
            first, earlier = marks.setdefault(image, (mark, place))
            if first != mark:
                raise DataError(f"{place}: {line!r} contradicts {earlier}: delete one of them")
        for image, (mark, _) in marks.items():
            labels.setdefault(image, []).extend([f"{number}{sign}" for sign in _SIGNS[mark]])
    images = {image: f"JPEGImages/{image}.jpg" for image in sorted(labels)}
    check_images(root, [*images.values()], split)
    return [VideoRecord(path, label_set=" ".join(labels[image])) for image, path in images.items()]


def prepare_torchvision(
    name: str,
    root: Path,
    out: Path,
    *,
    download: bool = False,
    images: Path | None = None,
    train_split: Sequence[str] = ("train",),
) -> str:
    """An image set of torchvision: PNG files, train.csv, test.csv.

    Splits are train, test and, if the set has it (STL10), unlabeled. Existing files with the right content are kept
    and the lists are written last: a run that was interrupted continues when it is started again. `name` is a class of
    torchvision.datasets that has `train` or `split` and returns (image, class number), `root` the folder that
    torchvision reads it from, or downloads it to. `images` gets a folder for each set; by default it is in `out`.
    `train_split` are the set's own splits that make the training list: `trainval` of FGVCAircraft, `train val` of DTD.

    Args:
        name: Class of torchvision.datasets, such as CIFAR10, STL10, SVHN, MNIST.
        root: Folder where torchvision stores the set.
        out: Folder for what is written.
        download: Let torchvision download the set.
        images: Folder for the images (default OUT/images).
        train_split: Splits of the set that make the training list, such as trainval, or train val.
    """
    folder = (out / "images" if images is None else images) / name
    opened = _open_splits(name, root, download, train_split)
    check_beside(out, folder, None, opened)
    claim(folder, "images")
    rows: dict[str, list[VideoRecord]] = {split: [] for split in opened}
    written = 0
    for split, dataset in opened.items():
        for number, (image, label) in enumerate(_items(f"{name}, {split}", dataset, split == "unlabeled")):
            path = f"{split}/{number:06d}.png" if label < 0 else f"{split}/{label}/{number:06d}.png"
            written += _write(folder / path, _png(image, f"{name}, {split}, image {number}"))
            rows[split].append(VideoRecord(path, label))
    count = 1 + max((row.label for chosen in rows.values() for row in chosen), default=-1)
    classes = tuple(map(str, getattr(opened["train"], "classes", range(count))))
    if count > len(classes):
        raise DataError(f"{name} has {len(classes)} classes, from 0, but an image of class {count - 1}")
    write_lists(out, folder, rows, classes)
    existing = sum(map(len, rows.values())) - written
    counts = [f"{split}: {len(chosen)} images" for split, chosen in rows.items()]
    return "\n".join([*counts, f"{written} files written, {existing} existed already", f"{len(classes)} classes"])


def _open_splits(name: str, root: Path, download: bool, train: Sequence[str]) -> dict[str, Any]:
    """Open all splits of a set at once: a missing one fails before hours of writing."""
    from torch.utils.data import ConcatDataset
    from torchvision import datasets

    kind: Any = getattr(datasets, name, None)
    known = inspect.signature(kind).parameters if inspect.isclass(kind) else {}
    if "train" in known:
        if tuple(train) != ("train",):
            raise ConfigError(f"{name} has one training split: leave out the training split {' '.join(train)}")
        arguments: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
    elif "split" in known:
        unlabeled = ("unlabeled",) if "unlabeled" in getattr(kind, "splits", ()) else ()
        arguments = {split: {"split": split} for split in (*train, "test", *unlabeled)}
    else:
        raise ConfigError(f"torchvision.datasets has no image set {name!r} with the splits train and test")
    fetch = {"download": True} if download else {}
    try:
        opened: dict[str, Any] = {split: kind(str(root), **chosen, **fetch) for split, chosen in arguments.items()}
    except Exception as error:  # the sets of torchvision raise errors of many types
        remedy = "pass the folder of the set as root=FOLDER, or download it with download=True"
        reason = " ".join(str(error).split())
        raise DataError(f"torchvision cannot read {name} in {root}: {reason}; {remedy}") from None
    parts = [opened.pop(split) for split in train]
    joined: Any = ConcatDataset(parts)
    if hasattr(parts[0], "classes"):
        joined.classes = parts[0].classes
    return {"train": joined, **opened}


def _items(title: str, dataset: Any, unlabeled: bool) -> Iterator[tuple[Image.Image, int]]:
    for number in progress(range(len(dataset)), title=title, unit="image", leave=False):
        try:
            item = dataset[number]
        except Exception as error:
            raise DataError(f"{title}, image {number}: {' '.join(str(error).split())}") from None
        match item:
            case (Image.Image() as image, int() | np.integer() as label) if label >= 0 or unlabeled:
                yield image, int(label)
            case _:
                raise DataError(f"{title}, item {number} is not (image, class number): unsupported set")


def _png(image: Image.Image, name: str) -> bytes:
    """Encode the pixels only: a colour profile or a rotation in the file would change what a reader decodes."""
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise DataError(f"{name} has more than 8 bits per channel (mode {image.mode}): not supported")
    pixels: NDArray[Any] = np.asarray(image if image.mode == "L" else image.convert("RGB"))
    bgr = np.ascontiguousarray(pixels if pixels.ndim == 2 else pixels[..., ::-1])
    return cv2.imencode(".png", bgr)[1].tobytes()


def _write(path: Path, content: bytes) -> bool:
    """Write a file unless it exists with this content; return whether it was written."""
    with writing(path):
        if path.exists() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without fsync, which takes minutes for 60,000 files: the next run compares the contents.
        temporary_for(path).write_bytes(content)
        os.replace(temporary_for(path), path)
    return True


def prepare_moving_digits(
    out: Path,
    *,
    train: int = 640,
    test: int = 160,
    frames: int = 48,
    fps: int = 25,
    size: int = 64,
    seed: int = 0,
    mnist: Path | None = None,
    motions: Literal["periodic", "asymmetric"] = "periodic",
    masks: bool = False,
) -> str:
    """Synthetic videos of moving digits, with their lists.

    Args:
        out: Folder for what is written.
        train: Training videos.
        test: Test videos.
        frames: Frames of a video.
        fps: Frame rate.
        size: Height and width in pixels.
        seed: Random seed.
        mnist: Folder with MNIST's idx files, instead of scikit-learn's 8x8 digits.
        motions: Periodic, or asymmetric: motions that differ from their reversal, as growing and shrinking.
        masks: Also write masks, and crops of the digits with part masks.
    """
    values: dict[str, Any] = {"train": train, "test": test, "frames": frames, "fps": fps, "size": size, "seed": seed}
    values |= {"mnist": None if mnist is None else str(mnist), "motions": motions, "masks": masks}
    settings = bind(MovingDigits, values, "moving-digits")
    action = "rendered" if ensure(out, settings) else "found"
    lists = sorted(map(str, out.glob("*/*.csv")))
    return "\n".join([f"{action} {train} training and {test} test videos in {out}", *lists])
