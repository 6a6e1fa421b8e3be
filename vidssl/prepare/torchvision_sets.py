"""Image sets of torchvision.datasets, to PNG files and lists: each image is a video of one frame."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vidssl.atomic import check_folder
from vidssl.data.video_list import Row, check_beside, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.file_index import check_name
from vidssl.progress import progress
from vidssl.registry import did_you_mean


@dataclass(frozen=True)
class Pictures:
    """What became of the images of a set; `str()` is the report that a script prints."""

    images: Mapping[str, int]  # of each list
    written: int
    classes: tuple[str, ...]

    def __str__(self) -> str:
        there = sum(self.images.values()) - self.written
        return "\n".join(
            [
                *(f"{name}: {count} images" for name, count in self.images.items()),
                f"{self.written} files written, {there} were there already",
                f"{len(self.classes)} classes",
            ]
        )


def prepare_torchvision(
    name: str, root: Path, out: Path, *, download: bool = False, images: Path | None = None
) -> Pictures:
    """Write the images of a set as `train/<class>/<number>.png` and so on, and the lists of them.

    The number is that of the image in its half, the class that of `classes.txt`. Where the set has a half `unlabeled`
    (STL10), it becomes a list too. A file that holds just what it should stays as it is and the lists are written last:
    a run that was stopped goes on when it is started again, and one that is done changes nothing.

    Args:
        name: Of a class of torchvision.datasets that has `train` or `split` and gives (image, number of its class).
        root: Folder that torchvision reads the set from, or downloads it to.
        out: Where the lists go; made where it is missing.
        download: Have torchvision download the set where it is missing.
        images: Folder for the images, in which the set has a folder of its name; None: `images` in `out`.

    Raises:
        ConfigError: torchvision has no such set.
        DataError: torchvision cannot read the set, it holds something else than images with a class, `out` holds other
            lists, or an image cannot be written.
    """
    known = image_sets()
    if name not in known:
        raise ConfigError(
            f"torchvision has no image set '{name}'{did_you_mean(name, known)}; there are CIFAR10, CIFAR100, "
            "FashionMNIST, MNIST, STL10, SVHN and others"
        )
    check_folder(out)
    folder = (out / "images" if images is None else images) / name
    # All of them first: what is missing is told before hours of writing.
    opened = {
        half: _open(name, known[name], root, chosen, download) for half, chosen in halves(known[name]).items()
    }
    rows: dict[str, list[Row]] = {half: [] for half in opened}
    written = 0
    for half, found in opened.items():
        for number, (picture, label) in enumerate(_items(name, half, found)):
            path = f"{half}/{number:06d}.png" if label < 0 else f"{half}/{label}/{number:06d}.png"
            written += _write(folder / path, _png(picture, f"{name}, {half}, image {number}"))
            rows[half].append(Row(path, label))
    count = 1 + max(row.label for kept in rows.values() for row in kept)
    classes = tuple(map(str, getattr(opened["train"], "classes", range(count))))
    if count > len(classes):
        raise DataError(f"{name} names {len(classes)} classes and has an image of class {count - 1}, from 0")
    for text in classes:
        check_name(text)
    check_beside(out, folder, classes)
    write_lists(out, folder, rows, classes)
    return Pictures({half: len(kept) for half, kept in rows.items()}, written, classes)


def image_sets() -> dict[str, Any]:
    """The classes of torchvision.datasets that need no more than a root and have halves to choose from, by name."""
    from torchvision import datasets

    found = {}
    for name, kind in sorted(vars(datasets).items()):
        if not (inspect.isclass(kind) and issubclass(kind, datasets.VisionDataset)):
            continue
        known = inspect.signature(kind).parameters.values()
        needed = {one.name for one in known if one.default is one.empty and one.kind is not one.VAR_KEYWORD}
        if needed <= {"root"} and {"train", "split"} & {one.name for one in known}:
            found[name] = kind
    return found


def halves(kind: Any) -> dict[str, dict[str, Any]]:
    """For each half of a set, how its class is asked for it."""
    if "train" in inspect.signature(kind).parameters:
        return {"train": {"train": True}, "test": {"train": False}}
    unlabeled = ("unlabeled",) if "unlabeled" in getattr(kind, "splits", ()) else ()
    return {half: {"split": half} for half in ("train", "test", *unlabeled)}


def _open(name: str, kind: Any, root: Path, settings: dict[str, Any], download: bool) -> Any:
    if download:
        if "download" not in inspect.signature(kind).parameters:
            raise ConfigError(
                f"torchvision cannot download {name}: fetch it yourself, and leave --download out"
            )
        settings = {**settings, "download": True}
    try:
        return kind(str(root), **settings)
    except Exception as error:  # each set of torchvision raises what it likes
        raise DataError(
            f"torchvision cannot read {name} in {root}: {_in_one_line(error)}; is it the folder that holds the set? "
            "--download fetches what is missing"
        ) from None


def _items(name: str, half: str, found: Any) -> Iterator[tuple[Image.Image, int]]:
    if not len(found):
        raise DataError(f"{name}, {half}: there is no image")
    for number in progress(range(len(found)), title=f"{name} {half}", unit="image", leave=False):
        try:
            item = found[number]
        except Exception as error:
            raise DataError(f"{name}, {half}, image {number}: {_in_one_line(error)}") from None
        if not (
            isinstance(item, tuple)
            and len(item) == 2
            and isinstance(item[0], Image.Image)
            and isinstance(item[1], int | np.integer)
            and (item[1] >= 0 or half == "unlabeled")
        ):
            raise DataError(
                f"{name}, {half}, item {number} is not an image and the number of its class: this set cannot be listed"
            )
        yield item[0], int(item[1])


def _png(picture: Image.Image, what: str) -> bytes:
    """Encode the pixels alone: a profile or a rotation in the file would change what a reader sees."""
    if picture.mode in ("I", "F") or picture.mode.startswith("I;"):
        raise DataError(f"{what} has more than 8 bits a channel (mode {picture.mode}): it would lose some")
    pixels: NDArray[Any] = np.asarray(picture if picture.mode == "L" else picture.convert("RGB"))
    return cv2.imencode(".png", np.ascontiguousarray(pixels if pixels.ndim == 2 else pixels[..., ::-1]))[
        1
    ].tobytes()


def _write(path: Path, content: bytes) -> bool:
    """Write a file unless it is there just so; tell whether it was written."""
    try:
        if path.exists() and path.read_bytes() == content:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; make room, or name another folder") from None
    return True


def _in_one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
