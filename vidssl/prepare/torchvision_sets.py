"""Image sets of torchvision.datasets, written as PNG files and lists: each image is a video of one frame."""

import inspect
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vidssl.atomic import check_folder, temporary_for
from vidssl.data.video_list import check_beside, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import check_name
from vidssl.progress import progress
from vidssl.registry import did_you_mean
from vidssl.types import VideoRecord


@dataclass(frozen=True)
class ImageSetReport:
    """The images of a set; `str()` is what the command prints."""

    images: Mapping[str, int]  # of each list
    written: int
    classes: tuple[str, ...]

    def __str__(self) -> str:
        existing = sum(self.images.values()) - self.written
        lines = [f"{name}: {count} images" for name, count in self.images.items()]
        lines.append(f"{self.written} files written, {existing} existed already")
        return "\n".join([*lines, f"{len(self.classes)} classes"])


def prepare_torchvision(
    name: str, root: Path, out: Path, *, download: bool = False, images: Path | None = None
) -> ImageSetReport:
    """Write the images of a set as `<split>/<class>/<number>.png`, and a list for each split.

    Splits are train, test and, if the set has it (STL10), unlabeled. Existing files with the right content are kept
    and the lists are written last: a run that was interrupted continues when it is started again.

    Args:
        name: A class of torchvision.datasets that has `train` or `split` and returns (image, class number).
        root: Folder that torchvision reads the set from, or downloads it to.
        out: Folder for the lists.
        download: Let torchvision download a missing set.
        images: Folder for the images, with a folder for each set; None: `images` in `out`.

    Raises:
        ConfigError: torchvision has no such set, or cannot download it.
        DataError: torchvision cannot read the set, an item is not an image with a class, `out` holds other lists, or
            an image cannot be written.
    """
    sets = _image_sets()
    if name not in sets:
        raise ConfigError(
            f"torchvision has no image set '{name}'{did_you_mean(name, sets)}; there are CIFAR10, CIFAR100, "
            "FashionMNIST, MNIST, STL10, SVHN and others"
        )
    check_folder(out)
    folder = (out / "images" if images is None else images) / name
    # Open all splits first: a missing one fails before hours of writing.
    opened = {split: _open(sets[name], root, chosen, download) for split, chosen in _splits(sets[name]).items()}
    rows: dict[str, list[VideoRecord]] = {split: [] for split in opened}
    written = 0
    for split, dataset in opened.items():
        for number, (image, label) in enumerate(_items(f"{name}, {split}", dataset, split == "unlabeled")):
            path = f"{split}/{number:06d}.png" if label < 0 else f"{split}/{label}/{number:06d}.png"
            written += _write(folder / path, _png(image, f"{name}, {split}, image {number}"))
            rows[split].append(VideoRecord(path, label))
    count = 1 + max(row.label for chosen in rows.values() for row in chosen)
    classes = tuple(map(str, getattr(opened["train"], "classes", range(count))))
    if count > len(classes):
        raise DataError(f"{name} has {len(classes)} classes, from 0, but an image of class {count - 1}")
    for text in classes:
        check_name(text)
    check_beside(out, folder, classes)
    write_lists(out, folder, rows, classes)
    return ImageSetReport({split: len(chosen) for split, chosen in rows.items()}, written, classes)


def _image_sets() -> dict[str, Any]:
    """The classes of torchvision.datasets that need only a root and have splits, by name."""
    from torchvision import datasets

    found = {}
    for name, kind in sorted(vars(datasets).items()):
        if inspect.isclass(kind) and issubclass(kind, datasets.VisionDataset):
            known = inspect.signature(kind).parameters
            required = {one.name for one in known.values() if one.default is one.empty} - {"kwargs"}
            if required <= {"root"} and {"train", "split"} & known.keys():
                found[name] = kind
    return found


def _splits(kind: Any) -> dict[str, dict[str, Any]]:
    """The arguments that select each split of a set."""
    if "train" in inspect.signature(kind).parameters:
        return {"train": {"train": True}, "test": {"train": False}}
    unlabeled = ("unlabeled",) if "unlabeled" in getattr(kind, "splits", ()) else ()
    return {split: {"split": split} for split in ("train", "test", *unlabeled)}


def _open(kind: Any, root: Path, arguments: dict[str, Any], download: bool) -> Any:
    if download and "download" not in inspect.signature(kind).parameters:
        raise ConfigError(f"torchvision cannot download {kind.__name__}: download it yourself")
    try:
        return kind(str(root), **arguments, **({"download": True} if download else {}))
    except Exception as error:  # the sets of torchvision raise errors of many types
        raise DataError(
            f"torchvision cannot read {kind.__name__} in {root}: {_one_line(error)}; pass the folder of the set as "
            "--root, or download it with --download"
        ) from None


def _items(title: str, dataset: Any, unlabeled: bool) -> Iterator[tuple[Image.Image, int]]:
    if not len(dataset):
        raise DataError(f"{title}: no images")
    for number in progress(range(len(dataset)), title=title, unit="image", leave=False):
        try:
            item = dataset[number]
        except Exception as error:
            raise DataError(f"{title}, image {number}: {_one_line(error)}") from None
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
    try:
        if path.exists() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without fsync, which takes minutes for 60,000 files: the next run compares the contents.
        temporary_for(path).write_bytes(content)
        os.replace(temporary_for(path), path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    return True


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
