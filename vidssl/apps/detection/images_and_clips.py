"""Images of any size, or clips, with their objects: from a list to batches on the device.

Shapes: B images or clips, of T frames; H x W pixels after resizing; n objects of an image, or persons of a clip.
"""

import json
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.apps.detection.coco_lists import BoxList
from vidssl.apps.detection.config import ImageSettings, KeyFrameSettings
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Frames, VideoMeta
from vidssl.base.worker_pool import ItemGuard, ordered
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.training_step import Feed
from vidssl.transforms.crops import short_side
from vidssl.transforms.recipes import TrainCrop

Target = dict[str, Tensor]
# An image (H, W, 3) or a clip (T, H, W, 3), uint8 RGB; its targets; the number of the image in its list.
Arrays = tuple[NDArray[np.uint8], dict[str, NDArray[Any]], int]


@dataclass(frozen=True)
class DetectionBatch:
    """B images of any size with their objects, or B clips with their persons."""

    images: tuple[Tensor, ...]  # (3, H, W) or (3, T, H, W) float, normalised
    # For each image: boxes (n, 4) float32 xyxy, labels (n,) int64 from 1, and masks (n, H, W) uint8, if asked for.
    # For each clip: boxes, and labels (n, classes) float32, 1 for the actions of a person.
    targets: tuple[Target, ...]
    index: Tensor  # (B,) int64, of the image in its list
    replaced: ClassVar[tuple[tuple[str, str], ...]] = ()  # as of `Batch`; an image that cannot be read ends the run


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
        """Read image `index`; random choices depend on seed and key only.

        Raises:
            DataError: The image cannot be read, or has another size than in the list.
        """
        random = generator(self.seed, epoch, index, 0)
        path = self.boxes.records[index].path
        image = read_image(path)
        height, width = self.boxes.sizes[index].tolist()
        if image.shape[:2] != (height, width):
            size = f"{image.shape[1]}x{image.shape[0]} pixels, in {self.boxes.path} {width}x{height}"
            raise DataError(f"{path} has {size}: prepare the list again")
        short = self.short_sides[int(random.integers(len(self.short_sides)))]
        new_height, new_width = resized_size(height, width, short, self.settings.max_side)
        rule = cv2.INTER_AREA if new_height < height else cv2.INTER_LINEAR
        image = np.asarray(cv2.resize(image, (new_width, new_height), interpolation=rule), np.uint8)
        mirrored = bool(random.random() < self.flip)
        rows = self.boxes.rows_of(index)
        objects = self.boxes.objects[rows]
        scale = np.array([new_width / width, new_height / height] * 2, np.float32)
        boxes = np.clip(objects["box"] * scale, 0, [new_width, new_height] * 2)
        trained = ~objects["crowd"] & (boxes[:, 2:] > boxes[:, :2]).all(axis=1)
        boxes, targets = boxes[trained], {"labels": objects["category"][trained] + 1}
        if self.masks:
            assert self.boxes.outlines is not None
            outlines = [json.loads(self.boxes.outlines[row]) for row in (rows.start + np.flatnonzero(trained)).tolist()]
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


_TOLERANCE = 1.0  # seconds beyond the end of a file: times of annotations are often rounded


@dataclass(frozen=True)
class KeyFrameDataset:
    """Reads the clips of a list: random views for training, or whole frames for tests.

    Training has the ground-truth boxes, and the proposals as persons without an action. Tests have the proposals, or if
    the list has none the ground-truth boxes.
    """

    boxes: BoxList
    settings: KeyFrameSettings
    view: TrainCrop | int  # for training, or the short side of whole frames in pixels
    seed: int = 0

    def sample(self, epoch: int, index: int) -> Arrays:
        """Read the clip of key frame `index`; random choices depend on seed and key only.

        Raises:
            DataError: The video cannot be read, or ends before the key frame.
        """
        record = self.boxes.records[index]
        with self.settings.open(record) as video:
            meta, time = video.meta, float(self.boxes.times[index])
            if time < 0 or time > meta.duration + _TOLERANCE:
                key_frame = f"{record.path}: the key frame at {time:g} s of {self.boxes.path}"
                length = f"lies outside of the file, which is {meta.duration:.2f} s long"
                raise DataError(f"{key_frame} {length}: prepare the list with another start of the files")
            frames = video.frames(clip_frames(meta, time, self.settings.frames, self.settings.seconds))
        boxes, labels = self._persons(index)
        boxes = np.clip(boxes / self.boxes.sizes[index][[1, 0, 1, 0]], 0, 1)  # fractions of the frame
        if isinstance(self.view, int):
            frames = short_side(frames, self.view)
            boxes = _in_pixels(boxes, frames)
        else:
            (view,) = self.view(frames, generator(self.seed, epoch, index, 0))
            assert view.window is not None  # `TrainCrop` always has one
            boxes = view.window.boxes(_in_pixels(boxes, frames), view.frames.shape[-1])
            frames = view.frames
        kept = (boxes[:, 2:] > boxes[:, :2]).all(axis=1)  # a crop can miss a person
        clip = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
        return clip, {"boxes": boxes[kept], "labels": labels[kept]}, index

    def _persons(self, index: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Boxes (n, 4) as in the list, and labels (n, classes)."""
        classes, proposals = len(self.boxes.classes), self.boxes.proposals_of(index)
        unlabelled = np.zeros((len(proposals), classes), np.float32)
        if isinstance(self.view, int) and self.boxes.has_proposals:
            return proposals, unlabelled
        actions = self.boxes.objects[self.boxes.rows_of(index)]
        actions = actions[~actions["crowd"]]
        persons, person = np.unique(actions["box"], axis=0, return_inverse=True)
        labels = np.zeros((len(persons), classes), np.float32)
        labels[person.ravel(), actions["category"]] = 1
        return np.concatenate([persons, proposals]), np.concatenate([labels, unlabelled])


def _in_pixels(fractions: NDArray[Any], frames: Frames) -> NDArray[np.float32]:
    """Convert boxes (n, 4) in fractions of frames (T, C, H, W) to pixels."""
    height, width = frames.shape[2:]
    return (fractions * [width, height, width, height]).astype(np.float32)


def clip_frames(meta: VideoMeta, time: float, count: int, seconds: float) -> NDArray[np.int64]:
    """Choose the frames (T,) of a clip: `count` numbers, evenly spaced, around the key frame at `time` seconds.

    They are evenly spaced in time, and the key frame is number count // 2. Beyond the ends of the video its first or
    last frame is repeated (SlowFast).
    """
    steps = np.arange(count) - count // 2
    return meta.frames_at(time + steps * seconds / count)


AnyBoxDataset = BoxDataset | KeyFrameDataset


def batches(
    dataset: AnyBoxDataset, keys: Iterable[list[tuple[int, int]]], device: torch.device
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


def _make(dataset: AnyBoxDataset, keys: list[tuple[int, int]], guard: ItemGuard) -> list[Arrays]:
    samples = []
    for epoch, index in keys:
        guard.at(index)
        samples.append(dataset.sample(epoch, index))
    return samples


def _fail(dataset: AnyBoxDataset, index: int, reason: str) -> NoReturn:
    raise DataError(f"{dataset.boxes.records[index].path}: {reason}; replace it")


class BoxFeed(Feed):
    """The micro-batches of a run of a detector."""

    def __init__(self, loader: Generator[Any, None, None], request: StopRequest) -> None:
        self._batches, self._request = loader, request
