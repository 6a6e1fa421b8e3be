"""Lists of images with boxes: JSON files in the format of COCO, as `vidssl prepare voc` and `coco` write them."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import check_folder, write_whole
from vidssl.config import Tree
from vidssl.data.column_store import Records, Strings
from vidssl.data.path_rules import PathRule
from vidssl.data.video_list import VideoList, read_text
from vidssl.errors import DataError
from vidssl.types import VideoRecord

_log = logging.getLogger(__name__)
_REMEDY = "vidssl prepare voc or coco writes lists of boxes"


@dataclass(frozen=True, kw_only=True)
class BoxList(VideoList):
    """The images of one list or several, and their objects: those of image n are `rows_of(n)` of each column."""

    sizes: NDArray[np.int64]  # (N, 2) height and width of each image, pixels
    ends: NDArray[np.int64]  # (N + 1,) objects before each image
    boxes: NDArray[np.float32]  # (M, 4) xyxy, pixels, x2 and y2 exclusive
    categories: NDArray[np.int64]  # (M,) number of the class, from 0
    areas: NDArray[np.float64]  # (M,) pixels: of the outline, if there is one
    crowd: NDArray[np.bool_]  # (M,) a group of objects: neither trained on nor counted in tests
    difficult: NDArray[np.bool_]  # (M,) VOC's difficult objects: trained on, not counted in tests
    outlines: Strings | None  # segmentation of each object as JSON; None if an object has none

    def rows_of(self, image: int) -> slice:
        """The objects of an image."""
        return slice(int(self.ends[image]), int(self.ends[image + 1]))

    def counts(self) -> dict[str, int]:
        """Number of images, and of objects that tests count."""
        return {"images": len(self.records), "objects": int((~self.crowd & ~self.difficult).sum())}

    def images_with_objects(self) -> "BoxList":
        """The images that have an object to train on, and their objects; a DataError if there are none."""
        before = np.concatenate([[0], np.cumsum(~self.crowd)])
        chosen = np.flatnonzero(before[self.ends[1:]] > before[self.ends[:-1]]).tolist()
        if not chosen:
            raise DataError(f"{self.path} has no image with an object: {_REMEDY}")
        if len(chosen) == len(self.records):
            return self
        records, outlines = Records(self.root), None if self.outlines is None else Strings()
        for n in chosen:
            records.append(self.records.row(n), self.records.root_of(n))
        rows = np.concatenate([np.arange(self.ends[n], self.ends[n + 1]) for n in chosen])
        if self.outlines is not None and outlines is not None:
            for row in rows.tolist():
                outlines.append(self.outlines[row])
        columns = ("boxes", "categories", "areas", "crowd", "difficult")
        return replace(
            self,
            records=records,
            sizes=self.sizes[chosen],
            ends=np.concatenate([[0], np.cumsum(np.diff(self.ends)[chosen])]),
            outlines=outlines,
            **{name: getattr(self, name)[rows] for name in columns},
        )

    @property
    def fingerprint(self) -> str:
        """Hash of the names of images and classes and of all objects."""
        digest = hashlib.sha256("\n".join([*self.names, "", *self.classes, "", *(self.outlines or ())]).encode())
        for column in (self.sizes, self.ends, self.boxes, self.categories, self.crowd, self.difficult):
            digest.update(column.tobytes())
        return digest.hexdigest()


def read_boxes(paths: Sequence[str | Path], root: str | Path | None = None) -> BoxList:
    """Read one list or several of the same classes; images are relative to `root`, else to `root.txt` beside each list.

    Objects without area are left out, with a warning.

    Raises:
        DataError: A list is unreadable, malformed or empty, two have other classes, or an image leaves the root.
    """
    parts = [_Reader(Path(path), root) for path in paths]
    first = parts[0]
    for part in parts[1:]:
        if part.classes != first.classes:
            raise DataError(f"{first.path} and {part.path} have other classes: train on lists of the same classes")
    records = Records(first.root)
    for part in parts:
        for name in part.names:
            records.append(VideoRecord(name), part.root)
    objects = [item for part in parts for item in part.objects]
    counts = [count for part in parts for count in part.counts]
    outlines: Strings | None = None
    if objects and all(item["segmentation"] for item in objects):
        outlines = Strings()
        for item in objects:
            outlines.append(json.dumps(item["segmentation"]))
    columns = {name: [item[name] for item in objects] for name in ("box", "category", "area", "crowd", "difficult")}
    return BoxList(
        Path(" and ".join(str(part.path) for part in parts)),
        records,
        first.classes,
        sizes=np.array([size for part in parts for size in part.sizes], np.int64).reshape(-1, 2),
        ends=np.cumsum([0, *counts]),
        boxes=np.array(columns["box"], np.float32).reshape(-1, 4),
        categories=np.array(columns["category"], np.int64),
        areas=np.array(columns["area"], np.float64),
        crowd=np.array(columns["crowd"], np.bool_),
        difficult=np.array(columns["difficult"], np.bool_),
        outlines=outlines,
    )


class _Reader:
    """One file: names, sizes and objects of its images, checked."""

    def __init__(self, path: Path, root: str | Path | None) -> None:
        self.path = path
        beside = path.parent / "root.txt"
        if root is None and beside.exists():
            root = read_text(beside, "delete it").strip()
        self.root = path.parent if root is None else Path(root)
        try:
            content = json.loads(read_text(path, _REMEDY))
            ids = [category["id"] for category in content["categories"]]
            order = np.argsort(ids).tolist()
            self.classes = tuple(str(content["categories"][n]["name"]) for n in order)
            number = {ids[n]: label for label, n in enumerate(order)}
            images = content["images"]
            self.names = [str(image["file_name"]) for image in images]
            self.sizes = [(int(image["height"]), int(image["width"])) for image in images]
            place = {image["id"]: n for n, image in enumerate(images)}
            kept = [_object(item, place, number) for item in content["annotations"]]
        except (json.JSONDecodeError, RecursionError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not a list of boxes ({type(error).__name__}: {error}): {_REMEDY}") from None
        if not images or len(place) < len(images) or len(number) < len(ids):
            raise DataError(f"{path} has no images, or two images or classes of one id: {_REMEDY}")
        rule = PathRule(self.root, allow_external=False)
        for name in self.names:
            try:
                rule.check(name, "file_name")
            except ValueError as error:
                raise DataError(f"{path}: {error}") from None
        self.objects = sorted((item for item in kept if item is not None), key=lambda item: int(item["image"]))
        self.counts = np.bincount([item["image"] for item in self.objects], minlength=len(images)).tolist()
        if len(kept) > len(self.objects):
            _log.warning("%s: objects without area are left out: %d", path, len(kept) - len(self.objects))


def _object(item: Tree, place: Mapping[Any, int], number: Mapping[Any, int]) -> Tree | None:
    x, y, width, height = map(float, item["bbox"])
    if not np.isfinite([x, y, width, height]).all():
        raise ValueError(f"the box of annotation {item.get('id')} is not finite")
    if width <= 0 or height <= 0:
        return None
    return {
        "image": place[item["image_id"]],
        "category": number[item["category_id"]],
        "box": (x, y, x + width, y + height),
        "area": float(item.get("area", width * height)),
        "difficult": bool(item.get("difficult", 0)),
        # Difficult objects are marked as crowds too, so that pycocotools does not count them.
        "crowd": bool(item.get("iscrowd", 0)) and not item.get("difficult", 0),
        "segmentation": item.get("segmentation"),
    }


def write_boxes(out: Path, root: Path, lists: Mapping[str, Tree]) -> None:
    """Write `NAME.json` for each list, a tree in the format of COCO, and `root.txt`.

    Raises:
        DataError: `root.txt` of the folder has another root, or a file cannot be written.
    """
    check_folder(out)
    beside, text = out / "root.txt", f"{root.resolve()}\n"
    if beside.exists() and read_text(beside, "delete it") != text:
        raise DataError(f"{beside} belongs to other lists: choose another folder to write to")
    for name, content in lists.items():
        write_whole(out / f"{name}.json", (json.dumps(content) + "\n").encode())
    write_whole(beside, text.encode())


def check_images(root: Path, names: Sequence[str], title: str) -> None:
    """Raise a DataError if images of a list to be written do not exist."""
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise DataError(
            f"{title}: {len(missing)} of {len(names)} images are missing in {root}, the first is {missing[0]}: "
            "complete the folder"
        )
