"""Images of any size, or clips, with their objects: from a list to batches on the device.

Shapes: B images or clips, of T frames; H x W pixels after resizing; n objects of an image, or persons of a clip.
"""

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Protocol

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.apps.detection.coco_lists import BoxList, KeyFrameList
from vidssl.apps.detection.config import ImageSettings, KeyFrameSettings, ReadSettings
from vidssl.base import distributed
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames, VideoMeta
from vidssl.base.worker_pool import ItemGuard, ordered
from vidssl.engine.interrupt import StopRequest
from vidssl.transforms.crops import short_side
from vidssl.transforms.recipes import TrainCrop

Target = dict[str, Tensor]
Arrays = tuple[NDArray[np.uint8], dict[str, NDArray[Any]], int]


class TargetDataset(Protocol):
    """Makes samples of a list of boxes."""

    @property
    def boxes(self) -> BoxList:
        """The list."""

    @property
    def settings(self) -> ReadSettings:
        """How it is read."""

    def sample(self, epoch: int, index: int) -> Arrays:
        """Make a sample: an image (H, W, 3) or a clip (T, H, W, 3), uint8 RGB; targets; `index`.

        Random choices depend on seed and key only. A DataError if the image or video cannot be read.
        """


@dataclass(frozen=True)
class DetectionBatch:
    """B images of any size with their objects, or B clips with their persons."""

    images: tuple[Tensor, ...]  # (3, H, W) or (3, T, H, W) float, normalised
    # For each image: boxes (n, 4) float32 xyxy, labels (n,) int64 from 1, and masks (n, H, W) uint8, if asked for.
    # For each clip: boxes, and labels (n, classes) float32, 1 for the actions of a person.
    targets: tuple[Target, ...]
    index: Tensor  # (B,) int64, of the image in its list

    def __post_init__(self) -> None:
        if not len(self.images) == len(self.targets) == len(self.index):
            raise ValueError(f"{len(self.images)} images, {len(self.targets)} targets, {len(self.index)} indices")
        for image, target in zip(self.images, self.targets, strict=True):
            objects = len(target["labels"])
            masks = target.get("masks")
            if image.ndim not in (3, 4) or target["boxes"].shape != (objects, 4):
                raise ValueError(f"image {tuple(image.shape)}, {tuple(target['boxes'].shape)} boxes, {objects} labels")
            if masks is not None and masks.shape != (objects, *image.shape[1:]):
                raise ValueError(f"masks {tuple(masks.shape)} do not fit the image {tuple(image.shape)}")


@dataclass(frozen=True)
class BoxDataset:
    """Reads, resizes and flips images of a list. The short side is drawn from `short_sides`, in pixels."""

    boxes: BoxList
    settings: ImageSettings
    short_sides: Sequence[int]
    flip: float = 0.0  # probability of a mirror image
    masks: bool = False
    seed: int = 0

    def sample(self, epoch: int, index: int) -> Arrays:
        """Read image `index`: frames (H, W, 3) uint8 RGB, targets, index. Random choices depend on seed and key only.

        Raises:
            DataError: The image cannot be read, or has another size than in the list.
        """
        random = generator(self.seed, epoch, index, 0)
        image = read_image(self.boxes.records[index].path)
        height, width = self.boxes.sizes[index].tolist()
        if image.shape[:2] != (height, width):
            raise DataError(
                f"{self.boxes.records[index].path} has {image.shape[1]}x{image.shape[0]} pixels, in {self.boxes.path} "
                f"{width}x{height}: prepare the list again"
            )
        short = self.short_sides[int(random.integers(len(self.short_sides)))]
        new_height, new_width = resized_size(height, width, short, self.settings.max_side)
        rule = cv2.INTER_AREA if new_height < height else cv2.INTER_LINEAR
        image = np.asarray(cv2.resize(image, (new_width, new_height), interpolation=rule), np.uint8)
        mirrored = bool(random.random() < self.flip)
        rows = self.boxes.trained_rows(index)
        scale = np.array([new_width / width, new_height / height] * 2, np.float32)
        boxes = np.clip(self.boxes.boxes[rows] * scale, 0, [new_width, new_height] * 2)
        has_area = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        rows, boxes = rows[has_area], boxes[has_area]
        targets: dict[str, NDArray[Any]] = {"labels": self.boxes.categories[rows] + 1}
        if self.masks:
            assert self.boxes.outlines is not None
            outlines = [json.loads(self.boxes.outlines[row]) for row in rows.tolist()]
            masks = [outline_mask(outline, height, width, new_height, new_width) for outline in outlines]
            targets["masks"] = np.array(masks, np.uint8).reshape(-1, new_height, new_width)
        if mirrored:
            image = np.ascontiguousarray(image[:, ::-1])
            boxes[:, [0, 2]] = new_width - boxes[:, [2, 0]]
            if self.masks:
                targets["masks"] = np.ascontiguousarray(targets["masks"][:, :, ::-1])
        return image, {"boxes": boxes.astype(np.float32), **targets}, index


def read_image(path: str) -> Frames:
    """Decode an image file as (H, W, 3) uint8 RGB, not rotated by its EXIF tag; a DataError if that fails."""
    try:
        content = np.frombuffer(Path(path).read_bytes(), np.uint8)
    except OSError as error:
        raise DataError(f"cannot read image {path}: {error.strerror}; prepare the list again") from None
    image = cv2.imdecode(content, cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION) if len(content) else None
    if image is None:
        raise DataError(f"cannot decode image {path}: it is damaged or not an image; replace it")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)  # type: ignore[return-value]


def resized_size(height: int, width: int, short: int, longest: int) -> tuple[int, int]:
    """Height and width with a short side of `short` pixels, or less if the long side would exceed `longest`."""
    scale = min(short / min(height, width), longest / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def outline_mask(outline: Any, height: int, width: int, new_height: int, new_width: int) -> NDArray[np.uint8]:
    """Draw COCO's segmentation of an object, polygons or run lengths, as a mask (new_height, new_width) of 0 and 1."""
    from pycocotools import mask as coco_mask

    if isinstance(outline, list):
        scale = np.array([new_width / width, new_height / height])
        polygons = [(np.reshape(polygon, (-1, 2)) * scale).ravel().tolist() for polygon in outline]
        masks = coco_mask.decode(coco_mask.frPyObjects(polygons, new_height, new_width))
        return np.asarray(masks.any(axis=2), np.uint8)
    counts = outline if isinstance(outline["counts"], str) else coco_mask.frPyObjects(outline, height, width)
    mask = np.ascontiguousarray(coco_mask.decode(counts))
    return np.asarray(cv2.resize(mask, (new_width, new_height), interpolation=cv2.INTER_NEAREST), np.uint8)


def batches(
    dataset: TargetDataset, keys: Iterable[list[tuple[int, int]]], device: torch.device
) -> Generator[DetectionBatch, None, None]:
    """Yield the batches of (epoch, index) keys on a device, made by worker processes, in order."""
    settings = dataset.settings
    shift, scale = (torch.tensor(values, device=device) for values in (settings.mean, settings.std))
    make, fail = partial(_make, dataset), partial(_fail, dataset)
    for samples in ordered(make, keys, settings.workers, timeout=settings.timeout, on_failure=fail):
        images, targets, index = zip(*samples, strict=True)
        yield DetectionBatch(
            tuple(((torch.from_numpy(x).to(device).float() / 255 - shift) / scale).movedim(-1, 0) for x in images),
            tuple({name: torch.from_numpy(x).to(device) for name, x in target.items()} for target in targets),
            torch.tensor(index, device=device),
        )


@dataclass(frozen=True)
class BoxFeed:
    """The micro-batches of a run; what one process raises is raised on all."""

    loader: Generator[DetectionBatch, None, None]
    request: StopRequest

    def close(self) -> None:
        """End the workers."""
        self.loader.close()

    def next(self, *, between_steps: bool) -> DetectionBatch:
        """Return the next micro-batch; `between_steps` a signal interrupts the wait."""
        return distributed.together(partial(self._wait, between_steps))

    def _wait(self, between_steps: bool) -> DetectionBatch:
        with self.request.breaking() if between_steps else nullcontext():
            return next(self.loader)


def _make(dataset: TargetDataset, keys: list[tuple[int, int]], guard: ItemGuard) -> list[Arrays]:
    samples = []
    for epoch, index in keys:
        guard.at(index)
        samples.append(dataset.sample(epoch, index))
    return samples


def _fail(dataset: TargetDataset, index: int, reason: str) -> NoReturn:
    raise DataError(f"{dataset.boxes.records[index].path}: {reason}; replace it")


_TOLERANCE = 1.0  # seconds beyond the end of a file: times of annotations are often rounded


@dataclass(frozen=True)
class KeyFrameDataset:
    """Reads the clips of a list: random views for training, or whole frames for tests.

    Training has the ground-truth boxes, and the proposals as persons without an action. Tests have the proposals, or if
    the list has none the ground-truth boxes.
    """

    boxes: KeyFrameList
    settings: KeyFrameSettings
    view: TrainCrop | int  # for training, or the short side of whole frames in pixels
    seed: int = 0

    def sample(self, epoch: int, index: int) -> Arrays:
        """Read the clip of a key frame as (T, H', W', 3) uint8 RGB, its targets, and the index.

        Random choices depend on seed and key only.

        Raises:
            DataError: The video cannot be read, or ends before the key frame.
        """
        record = self.boxes.records[index]
        with self.settings.open(record) as video:
            meta, time = video.meta, float(self.boxes.times[index])
            if time < 0 or time > meta.duration + _TOLERANCE:
                raise DataError(
                    f"{record.path}: the key frame at {time:g} s of {self.boxes.path} lies outside of the file, which "
                    f"is {meta.duration:.2f} s long: prepare the list with another start of the files"
                )
            frames = video.frames(clip_frames(meta, time, self.settings.frames, self.settings.seconds))
        corners, labels = self._persons(index)
        fractions = np.clip(corners / self.boxes.sizes[index][[1, 0, 1, 0]], 0, 1)
        if isinstance(self.view, int):
            frames = short_side(frames, self.view)
            boxes = (fractions * _sides(frames)).astype(np.float32)
        else:
            (view,) = self.view(frames, generator(self.seed, epoch, index, 0))
            assert view.window is not None  # `TrainCrop` always has one
            boxes = view.window.boxes((fractions * _sides(frames)).astype(np.float32), view.frames.shape[-1])
            frames = view.frames
        kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)  # a crop can miss a person
        clip = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
        return clip, {"boxes": boxes[kept], "labels": labels[kept]}, index

    def _persons(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Boxes (n, 4) as in the list, and labels (n, classes)."""
        classes, proposals = len(self.boxes.classes), self.boxes.proposals_of(index)
        unlabelled = np.zeros((len(proposals), classes), np.float32)
        if isinstance(self.view, int) and self.boxes.has_proposals:
            return proposals, unlabelled
        rows = self.boxes.trained_rows(index)
        corners, person = np.unique(self.boxes.boxes[rows], axis=0, return_inverse=True)
        labels = np.zeros((len(corners), classes), np.float32)
        labels[person.ravel(), self.boxes.categories[rows]] = 1
        return np.concatenate([corners, proposals]), np.concatenate([labels, unlabelled])


def _sides(frames: Frames) -> NDArray[np.int64]:
    """Width and height twice, in the order of a box."""
    height, width = frames.shape[2:]
    return np.array([width, height, width, height])


def clip_frames(meta: VideoMeta, time: float, count: int, seconds: float) -> NDArray[np.int64]:
    """Choose the frames (T,) of a clip: `count` numbers, evenly spaced, around the key frame at `time` seconds.

    They are evenly spaced in time, and the key frame is number count // 2. Beyond the ends of the video its first or
    last frame is repeated (SlowFast).
    """
    steps = np.arange(count) - count // 2
    return meta.frames_at(time + steps * seconds / count)
