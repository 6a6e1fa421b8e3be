"""Pascal-Part: the parts of the objects of PASCAL VOC 2010 (Chen et al., 2014), as crops, masks and lists a class."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import write_whole
from vidssl.data.video_list import Row, write_lists
from vidssl.errors import ConfigError, DataError
from vidssl.prepare.annotation_files import read_lines
from vidssl.prepare.file_index import check_name
from vidssl.progress import progress
from vidssl.randomness import generator
from vidssl.video.reader import open_video

# Number 0, and number 1: pixels of the object that no part of it covers, such as the frame of a bicycle.
GROUND = ("background", "rest of the object")
SPLITS = ("train", "val")
_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95)


class Part(NamedTuple):
    """One part of an object."""

    name: str
    mask: NDArray[np.bool_]  # (H, W)


class Annotated(NamedTuple):
    """One object of an image."""

    name: str  # of its class
    mask: NDArray[np.bool_]  # (H, W)
    parts: tuple[Part, ...]


@dataclass
class Prepared:
    """What was found and where it went; `str()` is the report that a script prints."""

    crops: dict[str, Counter[str]] = field(default_factory=dict)  # by class, then by split
    parts: dict[str, int] = field(default_factory=dict)  # by class, with the two of `GROUND`
    left_out: Counter[str] = field(default_factory=Counter)  # objects and images, by reason

    def __str__(self) -> str:
        lines = [
            f"{name}: {', '.join(f'{counts[split]} {split}' for split in SPLITS)}, {self.parts[name]} parts"
            for name, counts in sorted(self.crops.items())
        ]
        return "\n".join(
            [*lines, *(f"left out: {count} {why}" for why, count in sorted(self.left_out.items()))]
        )


def prepare_pascal_parts(
    voc: Path, annotations: Path, out: Path, *, size: int = 224, min_side: int = 32, seed: int = 0
) -> Prepared:
    """Crop each object, and write it with its parts.

    Each class has a folder with `images/*.jpg`, `masks/*.png`, `train.csv` and `val.csv`, `parts.txt` and the files
    beside lists. A crop is the bounding box of the object's mask, brought to a square without regard to its shape:
    whatever view is taken of it, all of the object is in it. In a mask 0 is what is not the object, 1 the object where
    no part of it is, and the parts follow in the order in which they are first met; line n of `parts.txt` names part
    n. Numbers at the end of a part's name are dropped: `wheel_1` and `wheel_2` are both a wheel. Where parts overlap
    the smaller one is seen, as an eye on a head. Objects that have no parts at all are left out.

    Args:
        voc: The folder VOC2010, with `JPEGImages`, and `ImageSets/Main/{train,val}.txt` if it has them; where it has
            not, half of the images, drawn, are for training.
        annotations: The folder Annotations_Part, with a .mat file for each image.
        out: A new folder.
        size: Side of the crops, pixels.
        min_side: Objects whose box has a shorter side are left out, pixels.
        seed: Decides which images are for training, where nobody says it.

    Raises:
        ConfigError: A size is not above 0.
        DataError: The folders do not hold what is expected, `out` is not empty, or a file cannot be read.
    """
    if size < 1 or min_side < 1:
        raise ConfigError(f"size is {size} and min_side {min_side}, pixels: both must be at least 1")
    files = sorted(annotations.glob("*.mat")) if annotations.is_dir() else []
    if not files:
        raise DataError(f"{annotations} holds no .mat file: give the folder Annotations_Part of Pascal-Part")
    if not (voc / "JPEGImages").is_dir():
        raise DataError(f"{voc} holds no folder JPEGImages: give the folder VOC2010")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not empty: choose a new folder for the crops")
    side = _splits(voc, [file.stem for file in files], seed)
    report, rows, numbers = (
        Prepared(),
        dict[str, dict[str, list[tuple[str, str]]]](),
        dict[str, dict[str, int]](),
    )
    bar = progress(files, title="crops", unit="image", total=len(files), leave=False)
    for file in bar:
        picture = voc / "JPEGImages" / f"{file.stem}.jpg"
        if file.stem not in side or not picture.exists():
            report.left_out["images in no split" if picture.exists() else "images that are not there"] += 1
            continue
        with open_video(picture) as video:
            pixels = video.frames([0])[0].transpose(1, 2, 0)
        for n, found in enumerate(read_annotation(file)):
            if found.mask.shape != pixels.shape[:2]:
                shape = "x".join(map(str, found.mask.shape[::-1]))
                raise DataError(f"{file}: object {n + 1} has a mask of {shape}, {picture} another size")
            box = _box(found.mask)
            if not found.parts or box is None or min(box[2] - box[0], box[3] - box[1]) < min_side:
                report.left_out[
                    "objects without parts" if not found.parts else f"objects under {min_side} pixels"
                ] += 1
                continue
            known = numbers.setdefault(found.name, {name: n for n, name in enumerate(GROUND)})
            mask = numbered(found, known)
            names = f"images/{file.stem}_{n}.jpg", f"masks/{file.stem}_{n}.png"
            _write_crop(out / found.name, names, pixels, mask, box, size)
            rows.setdefault(found.name, {}).setdefault(side[file.stem], []).append(names)
    if not rows:
        reasons = ", ".join(f"{count} {why}" for why, count in sorted(report.left_out.items()))
        raise DataError(f"no object of {annotations} is left ({reasons}): do both folders belong together?")
    for label, name in enumerate(sorted(rows)):
        lists = {
            split: [Row(image, label, mask=mask) for image, mask in found]
            for split, found in rows[name].items()
        }
        write_whole(out / name / "parts.txt", "".join(f"{part}\n" for part in numbers[name]).encode())
        write_lists(out / name, out / name, lists, sorted(rows))
        report.crops[name] = Counter({split: len(found) for split, found in rows[name].items()})
        report.parts[name] = len(numbers[name])
    return report


def read_annotation(file: Path) -> Iterator[Annotated]:
    """Read the objects of an image from a .mat file of Pascal-Part: `anno.objects(k)` and its `parts`.

    Raises:
        DataError: It cannot be read, or holds something else.
    """
    from scipy.io import loadmat

    try:
        for found in _structs(loadmat(str(file))["anno"][0, 0]["objects"]):
            name, mask = _text(found["class"]), _mask(found["mask"])
            if not re.fullmatch(r"[\w-]+", name):  # it becomes the name of a folder
                raise ValueError(f"a class is called {name!r}")
            parts = [
                Part(_part_name(part["part_name"]), _mask(part["mask"])) for part in _structs(found["parts"])
            ]
            if any(part.mask.shape != mask.shape for part in parts):
                raise ValueError("a part's mask has another size than the object's")
            yield Annotated(name, mask, tuple(parts))
    except Exception as error:  # the reader of a damaged file raises what it likes
        raise DataError(f"{file} is no annotation of Pascal-Part, or damaged: {error}") from None


def numbered(found: Annotated, numbers: dict[str, int]) -> NDArray[np.uint8]:
    """Give the number of the part of each pixel (H, W); parts that have no number yet get the next one.

    Raises:
        DataError: There are more parts than a mask can number.
    """
    mask = found.mask.astype(np.uint8)
    for part in sorted(found.parts, key=lambda part: -int(part.mask.sum())):
        number = numbers.setdefault(part.name, len(numbers))
        if number >= 255:
            raise DataError(f"{found.name} has more than 255 parts: {part.name!r} is one too many")
        mask[part.mask] = number
    return mask


def _splits(voc: Path, images: list[str], seed: int) -> Mapping[str, str]:
    """The split of each image that has one."""
    files = {split: voc / "ImageSets" / "Main" / f"{split}.txt" for split in SPLITS}
    if all(file.exists() for file in files.values()):
        return {
            line: split
            for split, file in files.items()
            for _, line in read_lines(file, "it comes with VOC2010")
        }
    drawn = generator(seed).permutation(len(images))
    return {images[n]: SPLITS[k >= (len(images) + 1) // 2] for k, n in enumerate(drawn)}


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    """The box xyxy of a mask, the far edges exclusive; None: it is empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _write_crop(
    folder: Path,
    names: tuple[str, str],
    pixels: NDArray[np.uint8],
    mask: NDArray[np.uint8],
    box: tuple[int, int, int, int],
    size: int,
) -> None:
    x1, y1, x2, y2 = box
    crop, parts = (np.ascontiguousarray(whole[y1:y2, x1:x2]) for whole in (pixels[..., ::-1], mask))
    how = cv2.INTER_AREA if size < min(crop.shape[:2]) else cv2.INTER_LINEAR
    crop = cv2.resize(crop, (size, size), interpolation=how).astype(np.uint8, copy=False)
    # Not INTER_NEAREST, which moves the mask against the crop by up to half a pixel.
    parts = cv2.resize(parts, (size, size), interpolation=cv2.INTER_NEAREST_EXACT).astype(
        np.uint8, copy=False
    )
    for name, picture, kind, told in ((names[0], crop, ".jpg", _JPEG), (names[1], parts, ".png", ())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(cv2.imencode(kind, picture, told)[1].tobytes())


def _structs(array: NDArray[Any]) -> Iterator[Any]:
    """The elements of a struct array of MATLAB; an empty one is written as a matrix without elements."""
    if array.size and array.dtype.names is None:
        raise ValueError("there is no struct where one is expected")
    yield from array.ravel()


def _text(array: NDArray[Any]) -> str:
    return str(array.ravel()[0])


def _part_name(array: NDArray[Any]) -> str:
    name = re.sub(r"_\d+$", "", _text(array))
    check_name(name)
    return name


def _mask(array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.ndim != 2 or array.dtype.kind not in "buif":
        raise ValueError(f"a mask is {array.shape} {array.dtype}")
    return np.asarray(array != 0)
