r"""Pascal-Part (Chen et al., 2014): crop the objects of VOC 2010, and write masks of their parts and a list per class.

    python examples/part_segmentation/prepare_pascal_parts.py /data/VOCdevkit/VOC2010 /data/Annotations_Part \
        --out lists/pascal_parts

OUT/CLASS holds images/, masks/, train.csv, val.csv, parts.txt (line n names part n), classes.txt and root.txt.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import write_whole
from vidssl.base.errors import ConfigError, DataError, VidsslError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.types import VideoRecord
from vidssl.data.write_lists import write_lists
from vidssl.video.reader import open_video

# Labels 0 and 1; 1 is a pixel of the object that no part covers, such as the frame of a bicycle.
FIRST_PARTS = ("background", "rest of the object")
SPLITS = ("train", "val")
_JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95)


class ObjectPart(NamedTuple):
    """One part of an object."""

    name: str
    mask: NDArray[np.bool_]  # (H, W)


class AnnotatedObject(NamedTuple):
    """One object of an image."""

    name: str  # of its class
    mask: NDArray[np.bool_]  # (H, W)
    parts: tuple[ObjectPart, ...]


def main() -> None:
    """Prepare, and print what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("voc", type=Path, help="folder VOC2010")
    parser.add_argument("annotations", type=Path, help="folder Annotations_Part")
    parser.add_argument("--out", type=Path, required=True, help="new folder for crops, masks and lists")
    parser.add_argument("--size", type=int, default=224, help="side of the crops, pixels (default 224)")
    parser.add_argument("--min-side", type=int, default=32, help="minimum side of an object, pixels (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="of the split, if VOC has no split files (default 0)")
    options = parser.parse_args()
    try:
        print(prepare_pascal_parts(**vars(options)))
    except (VidsslError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"lists written to {options.out}")


def prepare_pascal_parts(
    voc: Path, annotations: Path, out: Path, *, size: int = 224, min_side: int = 32, seed: int = 0
) -> str:
    """Crop each object and write it with a mask of its parts.

    A crop is the bounding box of the object's mask, resized to a square without keeping its aspect ratio, so that any
    view holds the whole object. In a mask 0 is background, 1 the object where no part covers it; the parts follow in
    order of first appearance. Numbers at the end of a part's name are dropped: `wheel_1` and `wheel_2` are `wheel`.
    Where parts overlap, the smaller one wins, such as an eye on a head. Objects without parts are left out.

    Args:
        voc: The folder VOC2010, with `JPEGImages` and optionally `ImageSets/Main/{train,val}.txt`; without these a
            random half of the images is for training.
        annotations: The folder Annotations_Part, with one .mat file per image.
        out: A new folder.
        size: Side of the crops, pixels.
        min_side: Objects whose box has a shorter side are left out, pixels.
        seed: Of the random split.

    Returns:
        A report: crops and parts of each class, and what was left out.

    Raises:
        ConfigError: A size is not above 0.
        DataError: A folder does not hold the expected files, `out` is not empty, or a file cannot be read.
    """
    if size < 1 or min_side < 1:
        raise ConfigError(f"size is {size} and min_side {min_side}: both must be at least 1 pixel")
    files = sorted(annotations.glob("*.mat"))
    if not files:
        raise DataError(f"no .mat file in {annotations}: expected the folder Annotations_Part of Pascal-Part")
    if not (voc / "JPEGImages").is_dir():
        raise DataError(f"no folder JPEGImages in {voc}: expected the folder VOC2010")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} is not empty: choose a new folder")
    split_of = _splits(voc, [file.stem for file in files], seed)
    crops = _Crops()
    for file in progress(files, title="crops", unit="image", total=len(files), leave=False):
        image = voc / "JPEGImages" / f"{file.stem}.jpg"
        if file.stem not in split_of or not image.exists():
            crops.left_out["images in no split" if image.exists() else "images that are missing"] += 1
        else:
            _write_objects(file, image, split_of[file.stem], out, size, min_side, crops)
    reasons = [f"{count} {why}" for why, count in sorted(crops.left_out.items())]
    if not crops.rows:
        raise DataError(f"no object of {annotations} is left ({', '.join(reasons)}): do both folders match?")
    report = []
    for label, name in enumerate(sorted(crops.rows)):
        lists = {
            split: [VideoRecord(image, label, mask=mask) for image, mask in rows]
            for split, rows in crops.rows[name].items()
        }
        parts = crops.numbers[name]
        write_whole(out / name / "parts.txt", "".join(f"{part}\n" for part in parts).encode())
        write_lists(out / name, out / name, lists, sorted(crops.rows))
        counts = ", ".join(f"{len(lists.get(split, ()))} {split}" for split in SPLITS)
        report.append(f"{name}: {counts}, {len(parts)} parts")
    return "\n".join([*report, *(f"left out: {reason}" for reason in reasons)])


@dataclass
class _Crops:
    """Crops written so far."""

    rows: dict[str, dict[str, list[tuple[str, str]]]] = field(default_factory=dict)  # class, split: (image, mask)
    numbers: dict[str, dict[str, int]] = field(default_factory=dict)  # class, part: label
    left_out: Counter[str] = field(default_factory=Counter)  # by reason


def _write_objects(file: Path, image: Path, split: str, out: Path, size: int, min_side: int, crops: _Crops) -> None:
    """Write the crops and masks of one annotated image."""
    with open_video(image) as video:
        pixels = video.frames([0])[0].transpose(1, 2, 0)
    for n, obj in enumerate(read_annotation(file)):
        if obj.mask.shape != pixels.shape[:2]:
            shape = "x".join(map(str, obj.mask.shape[::-1]))
            raise DataError(f"{file}: the mask of object {n + 1} is {shape}, {image} has another size")
        box = _box(obj.mask)
        if not obj.parts or box is None or min(box[2] - box[0], box[3] - box[1]) < min_side:
            reason = f"objects under {min_side} pixels" if obj.parts else "objects without parts"
            crops.left_out[reason] += 1
            continue
        labels = crops.numbers.setdefault(obj.name, {name: n for n, name in enumerate(FIRST_PARTS)})
        names = f"images/{file.stem}_{n}.jpg", f"masks/{file.stem}_{n}.png"
        _write_crop(out / obj.name, names, pixels, labelled(obj, labels), box, size)
        crops.rows.setdefault(obj.name, {}).setdefault(split, []).append(names)


def read_annotation(file: Path) -> Iterator[AnnotatedObject]:
    """Read the objects and their parts from a .mat file.

    Raises:
        DataError: The file cannot be read or has another structure.
    """
    from scipy.io import loadmat

    try:
        for struct in _structs(loadmat(str(file))["anno"][0, 0]["objects"]):
            name, mask = _text(struct["class"]), _mask(struct["mask"])
            if not re.fullmatch(r"[\w-]+", name):  # it becomes the name of a folder
                raise ValueError(f"invalid class name {name!r}")
            parts = [
                ObjectPart(_part_name(part["part_name"]), _mask(part["mask"])) for part in _structs(struct["parts"])
            ]
            if any(part.mask.shape != mask.shape for part in parts):
                raise ValueError("the masks of a part and its object differ in size")
            yield AnnotatedObject(name, mask, tuple(parts))
    except Exception as error:  # scipy raises all kinds of errors on damaged files
        raise DataError(f"{file} is not an annotation of Pascal-Part, or damaged: {error}") from None


def labelled(obj: AnnotatedObject, numbers: dict[str, int]) -> NDArray[np.uint8]:
    """Part of each pixel, (H, W); new parts are added to `numbers`.

    Raises:
        DataError: The class has more parts than a mask can label.
    """
    mask = obj.mask.astype(np.uint8)
    for part in sorted(obj.parts, key=lambda part: -int(part.mask.sum())):
        number = numbers.setdefault(part.name, len(numbers))
        if number >= 255:
            raise DataError(f"{obj.name} has more than 255 parts; the first one too many: {part.name!r}")
        mask[part.mask] = number
    return mask


def _splits(voc: Path, images: list[str], seed: int) -> Mapping[str, str]:
    """Split of each image, from the files of VOC or drawn."""
    files = {split: voc / "ImageSets" / "Main" / f"{split}.txt" for split in SPLITS}
    if all(file.exists() for file in files.values()):
        return {line: split for split, file in files.items() for line in file.read_text().split()}
    order = generator(seed).permutation(len(images))
    return {images[n]: SPLITS[k >= (len(images) + 1) // 2] for k, n in enumerate(order)}


def _box(mask: NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    """Bounding box xyxy of a mask, far edges exclusive; None if the mask is empty."""
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
    crop, parts = (np.ascontiguousarray(array[y1:y2, x1:x2]) for array in (pixels[..., ::-1], mask))
    interpolation = cv2.INTER_AREA if size < min(crop.shape[:2]) else cv2.INTER_LINEAR
    crop = cv2.resize(crop, (size, size), interpolation=interpolation).astype(np.uint8, copy=False)
    # INTER_NEAREST would shift the mask against the crop by up to half a pixel.
    parts = cv2.resize(parts, (size, size), interpolation=cv2.INTER_NEAREST_EXACT).astype(np.uint8, copy=False)
    for name, image, options in ((names[0], crop, _JPEG), (names[1], parts, ())):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(cv2.imencode(Path(name).suffix, image, options)[1].tobytes())


def _structs(array: NDArray[Any]) -> Iterator[Any]:
    """Elements of a MATLAB struct array; an empty one is stored as a matrix without elements."""
    if array.size and array.dtype.names is None:
        raise ValueError("expected a struct")
    yield from array.ravel()


def _text(array: NDArray[Any]) -> str:
    return str(array.ravel()[0])


def _part_name(array: NDArray[Any]) -> str:
    name = re.sub(r"_\d+$", "", _text(array))
    if not name.isprintable():  # it becomes a line of parts.txt
        raise ValueError(f"invalid part name {name!r}")
    return name


def _mask(array: NDArray[Any]) -> NDArray[np.bool_]:
    if array.ndim != 2 or array.dtype.kind not in "buif":
        raise ValueError(f"invalid mask: {array.shape} {array.dtype}")
    return np.asarray(array != 0)


if __name__ == "__main__":
    main()
