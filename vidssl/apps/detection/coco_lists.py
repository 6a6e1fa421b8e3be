"""Lists of images or key frames with boxes: JSON files in the format of COCO, as `vidssl prepare voc` writes them."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.base.config import Tree
from vidssl.base.errors import DataError
from vidssl.base.output_folder import check_files, write_files
from vidssl.base.safe_parse import parse_json, whole_number
from vidssl.base.types import VideoRecord
from vidssl.data.allowed_paths import PathRule, is_utf8
from vidssl.data.video_list import Records, Strings, VideoList, read_text, root_beside
from vidssl.data.write_lists import check_beside

_log = logging.getLogger(__name__)
_LARGEST = float(np.finfo(np.float32).max)  # boxes are float32
_SLACK = 0.01  # of the side of an image by which a box may leave it
_REMEDY = "vidssl prepare voc, coco or ava writes lists of boxes"
# A row of the tables of a list, which are sorted by image.
BOX = np.dtype(
    [
        ("image", np.int64),  # its number in the list
        ("box", np.float32, 4),  # xyxy, pixels, x2 and y2 exclusive
        ("category", np.int64),  # number of the class, from 0
        ("area", np.float64),  # pixels: of the outline, if there is one
        ("crowd", np.bool_),  # a group of objects: neither trained on nor counted in tests
        ("difficult", np.bool_),  # VOC's difficult objects: trained on, not counted in tests
    ]
)
BoxTable = NDArray[np.void]


@dataclass(frozen=True, kw_only=True)
class BoxList(VideoList):
    """The images of one list or several, and their objects.

    With `times` the images are key frames of videos, and an object is one action of a person, whose box has a row for
    each action.
    """

    sizes: NDArray[np.int64]  # (N, 2) height and width of each image, pixels
    times: NDArray[np.float64]  # (N,) seconds from the start of the file; (0,) of images
    objects: BoxTable  # (M,)
    outlines: Strings | None  # segmentation of each object as JSON; None if an object has none
    # (P,) of key frames: detected persons, which tests classify and which have no action in training.
    proposals: BoxTable
    has_proposals: bool  # False: the list has none, and tests classify the persons of the objects

    @property
    def has_key_frames(self) -> bool:
        """Whether it is a list of key frames, not of images."""
        return len(self.times) > 0

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """(N + 1,) objects before each image."""
        return self._ends(self.objects)

    @cached_property
    def proposal_ends(self) -> NDArray[np.int64]:
        """(N + 1,) proposals before each key frame."""
        return self._ends(self.proposals)

    def _ends(self, boxes: BoxTable) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(np.bincount(boxes["image"], minlength=len(self)))])

    def rows_of(self, image: int) -> slice:
        """The objects of an image."""
        return slice(int(self.ends[image]), int(self.ends[image + 1]))

    def proposals_of(self, key_frame: int) -> NDArray[np.float32]:
        """The boxes (n, 4) of the proposals of a key frame."""
        return np.asarray(self.proposals["box"][self.proposal_ends[key_frame] : self.proposal_ends[key_frame + 1]])

    @property
    def counted(self) -> NDArray[np.bool_]:
        """(M,) Whether tests count an object."""
        return np.asarray(~self.objects["crowd"] & ~self.objects["difficult"])

    def counts(self) -> dict[str, int]:
        """Number of images, of objects that tests count, and of proposals of key frames."""
        counts = {"images": len(self), "objects": int(self.counted.sum())}
        return {**counts, "proposals": len(self.proposals)} if self.has_key_frames else counts

    def images_with_objects(self) -> "BoxList":
        """The images that have an object or a proposal to train on; a DataError if there are none."""
        trained = np.union1d(self.objects["image"][~self.objects["crowd"]], self.proposals["image"])
        if not len(trained):
            raise DataError(f"{self.path} has no image with an object: {_REMEDY}")
        return self if len(trained) == len(self) else self.rows(trained.tolist())

    def rows(self, numbers: Iterable[int]) -> "BoxList":
        """Select images with their objects and proposals, in the order of the list."""
        images = np.unique(np.array([*numbers], np.int64))
        selected = np.isin(self.objects["image"], images)
        objects, proposals = self.objects[selected], self.proposals[np.isin(self.proposals["image"], images)]
        for table in (objects, proposals):
            table["image"] = np.searchsorted(images, table["image"])
        outlines = self.outlines
        if outlines is not None:
            outlines = Strings(outlines[row] for row in np.flatnonzero(selected).tolist())
        return replace(
            self,
            records=super().rows(images.tolist()).records,
            sizes=self.sizes[images],
            times=self.times[images] if self.has_key_frames else self.times,
            objects=objects,
            outlines=outlines,
            proposals=proposals,
        )

    @cached_property  # each checkpoint has it
    def fingerprint(self) -> str:
        """Hash of the names of images and classes and of all objects and proposals."""
        digest = hashlib.sha256("\n".join([*self.names, "", *self.classes]).encode())
        for outline in self.outlines or ():
            digest.update(outline.encode())
        columns = [self.sizes, self.ends, *(self.objects[name] for name in ("box", "category", "crowd", "difficult"))]
        if self.has_key_frames:
            columns += [self.times, self.proposals["box"], self.proposal_ends]
        for column in columns:
            digest.update(column.tobytes())
        return digest.hexdigest()


def read_boxes(paths: Sequence[str | Path], root: str | Path | None = None) -> BoxList:
    """Read one list or several of the same classes; images are relative to `root`, else to `root.txt` beside each list.

    If the images have a `time`, they are key frames of videos. Objects without area are left out, with a warning.

    Raises:
        DataError: A list is unreadable, malformed or empty, two have other classes, or an image leaves the root.
    """
    lists = [_read_list(Path(path), root) for path in paths]
    first, *others = lists
    for boxes in others:
        if boxes.classes != first.classes:
            raise DataError(f"{first.path} and {boxes.path} have other classes: train on lists of the same classes")
        if boxes.has_key_frames != first.has_key_frames:
            raise DataError(f"of {first.path} and {boxes.path} one has key frames of videos, the other images")
    if not others:
        return first
    records = Records(first.root)
    for boxes in lists:
        for row in map(boxes.records.row, range(len(boxes))):
            records.append(row, boxes.root)
    before = np.cumsum([0, *map(len, lists)])
    outlines = [outline for boxes in lists for outline in boxes.outlines or ()]
    objects = _joined([boxes.objects for boxes in lists], before)
    return replace(
        first,
        path=Path(" and ".join(str(boxes.path) for boxes in lists)),
        records=records,
        sizes=np.concatenate([boxes.sizes for boxes in lists]),
        times=np.concatenate([boxes.times for boxes in lists]),
        objects=objects,
        outlines=Strings(outlines) if outlines and len(outlines) == len(objects) else None,
        proposals=_joined([boxes.proposals for boxes in lists], before),
        has_proposals=any(boxes.has_proposals for boxes in lists),
    )


def _joined(tables: Sequence[BoxTable], before: NDArray[np.int64]) -> BoxTable:
    """Join the tables of lists, where `before` is the number of images before each list."""
    joined = np.concatenate(tables)
    joined["image"] += np.repeat(before[:-1], [len(table) for table in tables])
    return joined


def _read_list(path: Path, root: str | Path | None) -> BoxList:
    text, root = read_text(path, _REMEDY), root_beside(path) if root is None else Path(root)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # of numbers that are an error below
            return _parse(path, root, parse_json(text))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a list of boxes ({type(error).__name__}: {error}): {_REMEDY}") from None


def _parse(path: Path, root: Path, content: Any) -> BoxList:
    """Make a list of the content of a file; whatever is wrong with it is an error of Python."""
    images, categories = content["images"], content["categories"]
    ids = [category["id"] for category in categories]
    order = np.argsort(ids).tolist()
    classes = tuple(str(categories[n]["name"]) for n in order)
    label_of = {ids[n]: label for label, n in enumerate(order)}
    index = {image["id"]: n for n, image in enumerate(images)}
    names = [str(image["file_name"]) for image in images]
    if not images or len(index) < len(images) or len(label_of) < len(ids):
        raise ValueError("it has no images, or two images or classes of one id")
    if not all(map(is_utf8, (*names, *classes))):
        raise ValueError("the name of an image or a class is not UTF-8")
    times = np.array([image["time"] for image in images if "time" in image], np.float64)
    if times.shape not in ((0,), (len(images),)) or not np.isfinite(times).all():
        raise ValueError("an image has no time, or one that is not finite, and others have")
    (key, count), *_ = Counter(zip(names, times.tolist() or names, strict=True)).most_common(1)
    if count > 1:
        raise ValueError(f"{key[0]!r} is listed twice: its objects would count twice; delete one image")
    rule, records = PathRule(root, allow_external=False), Records(root)
    for name, image in zip(names, images, strict=True):
        rule.check(name, "file_name")
        records.append(VideoRecord(name, fps=float(image["fps"]) if "fps" in image else None))
    sizes = np.array([[_side(image[side]) for side in ("height", "width")] for image in images], np.int64)
    items, objects = _table(path, content["annotations"], index, sizes)
    objects["category"] = [label_of[item["category_id"]] for item in items]
    objects["difficult"] = [bool(item.get("difficult", 0)) for item in items]
    # Difficult objects are marked as crowds too, so that pycocotools does not count them.
    objects["crowd"] = [bool(item.get("iscrowd", 0)) and not item.get("difficult", 0) for item in items]
    segmentations = [item.get("segmentation") for item in items]
    _, proposals = _table(path, content.get("proposals", []) if len(times) else [], index, sizes)
    return BoxList(
        path=path,
        records=records,
        classes=classes,
        unit="key frame" if len(times) else "image",
        sizes=sizes,
        times=times,
        objects=objects,
        outlines=Strings(map(json.dumps, segmentations)) if segmentations and all(segmentations) else None,
        proposals=proposals,
        has_proposals="proposals" in content,
    )


def _table(
    path: Path, items: Sequence[Tree], index: Mapping[Any, int], sizes: NDArray[np.int64]
) -> tuple[list[Tree], BoxTable]:
    """The objects or proposals with an area by image, and their table, the boxes within their images."""
    image = np.array([index[item["image_id"]] for item in items], np.int64)
    boxes = np.array([item["bbox"] for item in items], np.float64).reshape(len(items), 4)
    areas = np.array([item.get("area", w * h) for item, (_, _, w, h) in zip(items, boxes, strict=True)], np.float64)
    sides = boxes[:, 2:].copy()
    boxes[:, 2:] += boxes[:, :2]
    finite = (np.abs(np.concatenate([boxes, sides], axis=1)) < _LARGEST).all(axis=1)
    for name, valid in (("box", finite), ("area", np.isfinite(areas))):
        if not valid.all():
            raise ValueError(f"the {name} of annotation {items[int(valid.argmin())].get('id')} is not finite")
    beyond = (sides > 0).all(axis=1) & reaches_beyond(boxes, sizes[image])
    boxes[beyond] = np.clip(boxes[beyond], 0, sizes[image[beyond]][:, [1, 0, 1, 0]])
    rows = np.flatnonzero((boxes[:, 2:] > boxes[:, :2]).all(axis=1))
    rows = rows[np.argsort(image[rows], kind="stable")]
    if len(rows) < len(items):
        _log.warning("%s: boxes without area are left out: %d", path, len(items) - len(rows))
    if beyond.any():
        _log.warning("%s: boxes that reach beyond their image are clipped: %d", path, beyond.sum())
    table = np.zeros(len(rows), BOX)
    table["image"], table["box"], table["area"] = image[rows], boxes[rows], areas[rows]
    return [items[n] for n in rows.tolist()], table


def _side(value: Any) -> int:
    try:
        return whole_number(value, 1)
    except ValueError as error:
        raise ValueError(f"the height or width of an image: {error}") from None


def reaches_beyond(boxes: NDArray[Any], sizes: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether boxes (M, 4), xyxy, leave images of (M, 2) height and width by more than 1 % of a side: no rounding."""
    fractions = boxes / sizes[:, [1, 0, 1, 0]]
    return np.asarray((fractions[:, :2] < -_SLACK).any(axis=1) | (fractions[:, 2:] > 1 + _SLACK).any(axis=1))


def write_boxes(out: Path, root: Path, lists: Mapping[str, Tree], inputs: Sequence[Path] = ()) -> None:
    """Write `NAME.json` for each list, a tree in the format of COCO, and `root.txt`.

    Raises:
        DataError: As of `check_boxes`, or a file cannot be written.
    """
    check_boxes(out, root, lists, inputs)
    texts = {f"{name}.json": json.dumps(content) + "\n" for name, content in lists.items()}
    texts["root.txt"] = f"{root.resolve()}\n"
    write_files(out, {name: text.encode() for name, text in texts.items()}, inputs, ["root.txt"])


def check_boxes(out: Path, root: Path, names: Iterable[str], inputs: Sequence[Path] = ()) -> None:
    """Decide that `write_boxes` may write lists of these names; call it before long work.

    `inputs` are the files that are read, first the one that the lists are made from.

    Raises:
        DataError: `root.txt` of the folder has another root, or the reasons of `vidssl.base.output_folder.check_files`.
    """
    for path in check_files(out, [f"{name}.json" for name in names], inputs):
        with open(path, "rb") as file:  # a list may be the one that is written again; that is known when it is written
            if b'"images"' not in file.read(4096):
                raise DataError(f"{path} is no list of boxes, and vidssl has no record of it: choose another folder")
    check_beside(out, root, None, (), inputs)
