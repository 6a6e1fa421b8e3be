"""Lists of images or key frames with boxes: JSON files in the format of COCO, as `vidssl prepare voc` writes them."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from vidssl.base.config import Tree
from vidssl.base.errors import DataError
from vidssl.base.output_folder import check_files, write_files
from vidssl.base.safe_parse import parse_json, whole_number
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import PathRule, is_utf8
from vidssl.data.video_list import Records, Strings, VideoList, read_text, root_beside

_log = logging.getLogger(__name__)
_LARGEST = float(np.finfo(np.float32).max)  # boxes are float32
_SLACK = 0.01  # of the side of an image by which a box may leave it
_REMEDY = "vidssl prepare voc, coco or ava writes lists of boxes"


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

    def trained_rows(self, image: int) -> NDArray[np.int64]:
        """The numbers (n,) of the objects of an image that are trained on."""
        rows = np.arange(self.ends[image], self.ends[image + 1])
        return rows[~self.crowd[rows]]

    def counts(self) -> dict[str, int]:
        """Number of images, and of objects that tests count."""
        return {"images": len(self.records), "objects": int((~self.crowd & ~self.difficult).sum())}

    def images_with_objects(self) -> Self:
        """The images that have an object to train on, and their objects; a DataError if there are none."""
        chosen = np.flatnonzero(self._trains()).tolist()
        if not chosen:
            raise DataError(f"{self.path} has no image with an object: {_REMEDY}")
        return self if len(chosen) == len(self.records) else self.images(chosen)

    def _trains(self) -> NDArray[np.bool_]:
        """Whether each image has an object to train on (N,)."""
        before = np.concatenate([[0], np.cumsum(~self.crowd)])
        return np.asarray(before[self.ends[1:]] > before[self.ends[:-1]])

    def images(self, chosen: Sequence[int]) -> Self:
        """Select images and their objects."""
        records, outlines = Records(self.root), None if self.outlines is None else Strings()
        for n in chosen:
            records.append(self.records.row(n), self.records.root_of(n))
        rows, ends = _select(self.ends, chosen)
        if self.outlines is not None and outlines is not None:
            for row in rows.tolist():
                outlines.append(self.outlines[row])
        columns = ("boxes", "categories", "areas", "crowd", "difficult")
        return replace(
            self,
            records=records,
            sizes=self.sizes[chosen],
            ends=ends,
            outlines=outlines,
            **{name: getattr(self, name)[rows] for name in columns},
        )

    @cached_property  # each checkpoint has it
    def fingerprint(self) -> str:
        """Hash of the names of images and classes and of all objects."""
        digest = hashlib.sha256("\n".join([*self.names, "", *self.classes]).encode())
        for outline in self.outlines or ():
            digest.update(outline.encode())
        for column in self._numbers():
            digest.update(column.tobytes())
        return digest.hexdigest()

    def _numbers(self) -> tuple[NDArray[Any], ...]:
        return self.sizes, self.ends, self.boxes, self.categories, self.crowd, self.difficult


@dataclass(frozen=True, kw_only=True)
class KeyFrameList(BoxList):
    """Key frames of videos, as "images"; an object is one action of a person, whose box has a row for each action."""

    times: NDArray[np.float64]  # (N,) seconds from the start of the file
    # (P, 4) boxes as those of the objects: detected persons, which tests classify and which have no action in training.
    proposals: NDArray[np.float32]
    proposal_ends: NDArray[np.int64]  # (N + 1,) proposals before each key frame
    has_proposals: bool  # False: the list has none, and tests classify the persons of the objects

    def proposals_of(self, key_frame: int) -> NDArray[np.float32]:
        """The proposals of a key frame (n, 4)."""
        return self.proposals[self.proposal_ends[key_frame] : self.proposal_ends[key_frame + 1]]

    def counts(self) -> dict[str, int]:
        """Number of key frames, of actions of persons, and of proposals."""
        return {**super().counts(), "proposals": len(self.proposals)}

    def images(self, chosen: Sequence[int]) -> Self:
        """Select key frames, their objects and proposals."""
        rows, ends = _select(self.proposal_ends, chosen)
        selected = replace(self, times=self.times[chosen], proposals=self.proposals[rows], proposal_ends=ends)
        return super(KeyFrameList, selected).images(chosen)

    def _trains(self) -> NDArray[np.bool_]:
        return np.asarray(super()._trains() | (np.diff(self.proposal_ends) > 0))  # persons without an action too

    def _numbers(self) -> tuple[NDArray[Any], ...]:
        return *super()._numbers(), self.times, self.proposals, self.proposal_ends


def _select(ends: NDArray[np.int64], chosen: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the chosen images, of a column with these `ends`, and the ends of the selected rows."""
    rows = [np.arange(ends[n], ends[n + 1]) for n in chosen]
    return np.concatenate(rows), np.concatenate([[0], np.cumsum(np.diff(ends)[chosen])])


def read_boxes(paths: Sequence[str | Path], root: str | Path | None = None) -> BoxList:
    """Read one list or several of the same classes; images are relative to `root`, else to `root.txt` beside each list.

    If the images have a `time`, they are key frames of videos, and the result is a `KeyFrameList`. Objects without area
    are left out, with a warning.

    Raises:
        DataError: A list is unreadable, malformed or empty, two have other classes, or an image leaves the root.
    """
    parts = [_Reader(Path(path), root) for path in paths]
    first = parts[0]
    for part in parts[1:]:
        if part.classes != first.classes:
            raise DataError(f"{first.path} and {part.path} have other classes: train on lists of the same classes")
        if bool(part.times) != bool(first.times):
            raise DataError(f"of {first.path} and {part.path} one has key frames of videos, the other images")
    records = Records(first.root)
    for part in parts:
        for row in part.rows:
            records.append(row, part.root)
    objects = [item for part in parts for item in part.objects]
    counts = [count for part in parts for count in part.counts]
    outlines: Strings | None = None
    if objects and all(item["segmentation"] for item in objects):
        outlines = Strings()
        for item in objects:
            outlines.append(json.dumps(item["segmentation"]))
    columns = {name: [item[name] for item in objects] for name in ("box", "category", "area", "crowd", "difficult")}
    content: dict[str, Any] = {
        "path": Path(" and ".join(str(part.path) for part in parts)),
        "records": records,
        "classes": first.classes,
        "sizes": np.array([size for part in parts for size in part.sizes], np.int64).reshape(-1, 2),
        "ends": np.cumsum([0, *counts]),
        "boxes": np.array(columns["box"], np.float32).reshape(-1, 4),
        "categories": np.array(columns["category"], np.int64),
        "areas": np.array(columns["area"], np.float64),
        "crowd": np.array(columns["crowd"], np.bool_),
        "difficult": np.array(columns["difficult"], np.bool_),
        "outlines": outlines,
    }
    if not first.times:
        return BoxList(**content)
    proposals = [item for part in parts for item in part.proposals]
    return KeyFrameList(
        **content,
        times=np.array([time for part in parts for time in part.times], np.float64),
        proposals=np.array([item["box"] for item in proposals], np.float32).reshape(-1, 4),
        proposal_ends=np.cumsum([0, *(count for part in parts for count in part.proposal_counts)]),
        has_proposals=any(part.has_proposals for part in parts),
    )


class _Reader:
    """One file: names, sizes and objects of its images, checked."""

    def __init__(self, path: Path, root: str | Path | None) -> None:
        self.path = path
        self.root = root_beside(path) if root is None else Path(root)
        try:
            content = parse_json(read_text(path, _REMEDY))
            ids = [category["id"] for category in content["categories"]]
            order = np.argsort(ids).tolist()
            self.classes = tuple(str(content["categories"][n]["name"]) for n in order)
            number = {ids[n]: label for label, n in enumerate(order)}
            images = content["images"]
            rates = [_number(image["fps"]) if "fps" in image else None for image in images]
            names = [str(image["file_name"]) for image in images]
            self.rows = [VideoRecord(name, fps=fps) for name, fps in zip(names, rates, strict=True)]
            self.sizes = [(_side(image["height"]), _side(image["width"])) for image in images]
            if not all(map(is_utf8, (*names, *self.classes))):
                raise ValueError("the name of an image or a class is not UTF-8")
            index = {image["id"]: n for n, image in enumerate(images)}
            self._clipped = 0
            kept = [self._object(item, index, number) for item in content["annotations"]]
            self.times = [_number(image["time"]) for image in images if "time" in image]
            self.has_proposals = "proposals" in content
            persons = ({**item, "category_id": ids[0]} for item in content.get("proposals", []))
            proposals = [self._object(item, index, number) for item in persons]
            if len(self.times) not in (0, len(images)) or not np.isfinite(self.times).all():
                raise ValueError("an image has no time, or one that is not finite, and others have")
        except (LookupError, TypeError, ValueError) as error:
            raise DataError(f"{path} is not a list of boxes ({type(error).__name__}: {error}): {_REMEDY}") from None
        if not images or len(index) < len(images) or len(number) < len(ids):
            raise DataError(f"{path} has no images, or two images or classes of one id: {_REMEDY}")
        keys = [*zip(names, self.times or names, strict=True)]
        if len({*keys}) < len(keys):
            repeated = next(key for key, count in Counter(keys).items() if count > 1)[0]
            raise DataError(f"{path}: {repeated!r} is listed twice: its objects would count twice; delete one image")
        rule = PathRule(self.root, allow_external=False)
        for name in names:
            try:
                rule.check(name, "file_name")
            except ValueError as error:
                raise DataError(f"{path}: {error}") from None
        self.objects, self.counts = _in_order(kept, len(images))
        self.proposals, self.proposal_counts = _in_order(proposals, len(images))
        empty = len(kept) + len(proposals) - len(self.objects) - len(self.proposals)
        if empty:
            _log.warning("%s: boxes without area are left out: %d", path, empty)
        if self._clipped:
            _log.warning("%s: boxes that reach beyond their image are clipped: %d", path, self._clipped)

    def _object(self, item: Tree, index: Mapping[Any, int], number: Mapping[Any, int]) -> Tree | None:
        """An object or proposal, its box within its image; None if nothing of it is."""
        x, y, width, height = map(_number, item["bbox"])
        box = (x, y, x + width, y + height)
        if not all(abs(value) < _LARGEST for value in (*box, width, height)):  # nor nan
            raise ValueError(f"the box of annotation {item.get('id')} is not finite")
        area = _number(item.get("area", width * height))
        if not isfinite(area):
            raise ValueError(f"the area of annotation {item.get('id')} is not finite")
        image = index[item["image_id"]]
        if width > 0 and height > 0 and reaches_beyond(box, self.sizes[image]):
            self._clipped += 1
            rows, columns = self.sizes[image]
            x1, x2 = (min(max(value, 0.0), columns) for value in box[::2])
            y1, y2 = (min(max(value, 0.0), rows) for value in box[1::2])
            box = (x1, y1, x2, y2)
        if box[2] <= box[0] or box[3] <= box[1]:
            return None
        return {
            "image": image,
            "category": number[item["category_id"]],
            "box": box,
            "area": area,
            "difficult": bool(item.get("difficult", 0)),
            # Difficult objects are marked as crowds too, so that pycocotools does not count them.
            "crowd": bool(item.get("iscrowd", 0)) and not item.get("difficult", 0),
            "segmentation": item.get("segmentation"),
        }


def _in_order(items: Sequence[Tree | None], images: int) -> tuple[list[Tree], list[int]]:
    """Sort what has an area by its image, and count it for each image."""
    kept = sorted((item for item in items if item is not None), key=lambda item: int(item["image"]))
    return kept, np.bincount(np.array([item["image"] for item in kept], np.int64), minlength=images).tolist()


def _side(value: Any) -> int:
    try:
        return whole_number(value, 1)
    except ValueError as error:
        raise ValueError(f"the height or width of an image: {error}") from None


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of hundreds of digits
        raise ValueError(f"{str(value)[:40]}… is too large") from None


def reaches_beyond(box: tuple[float, float, float, float], size: tuple[int, int]) -> bool:
    """Whether a box, xyxy, leaves its image of this height and width by more than 1 % of a side: no rounding."""
    x1, y1, x2, y2 = box
    height, width = size
    return min(x1 / width, y1 / height) < -_SLACK or max(x2 / width, y2 / height) > 1 + _SLACK


def write_boxes(out: Path, root: Path, lists: Mapping[str, Tree], inputs: Sequence[Path] = ()) -> None:
    """Write `NAME.json` for each list, a tree in the format of COCO, and `root.txt`.

    Raises:
        DataError: As of `check_boxes`, or a file cannot be written.
    """
    check_boxes(out, root, lists, inputs)
    texts = {f"{name}.json": json.dumps(content) + "\n" for name, content in lists.items()}
    texts["root.txt"] = f"{root.resolve()}\n"
    try:
        write_files(out, {name: text.encode() for name, text in texts.items()}, inputs, ["root.txt"])
    except OSError as error:
        raise DataError(f"cannot write lists to {out}: {error.strerror}") from None


def check_boxes(out: Path, root: Path, names: Iterable[str], inputs: Sequence[Path] = ()) -> None:
    """Decide that `write_boxes` may write lists of these names; call it before long work.

    `inputs` are the files that are read, first the one that the lists are made from.

    Raises:
        DataError: `root.txt` of the folder has another root, or the reasons of `vidssl.base.output_folder.check_files`.
    """
    unknown = check_files(out, [*(f"{name}.json" for name in names), "root.txt"], inputs, ["root.txt"])
    for path in unknown:  # a list may be the one that is written again; that is known when it is written
        with open(path, "rb") as file:
            if path.name != "root.txt" and b'"images"' not in file.read(4096):
                raise DataError(f"{path} is no list of boxes, and vidssl has no record of it: choose another folder")
    beside = out / "root.txt"
    if beside.exists() and read_text(beside, "choose another folder to write to") != f"{root.resolve()}\n":
        raise DataError(f"{beside} belongs to other lists: choose another folder to write to")
