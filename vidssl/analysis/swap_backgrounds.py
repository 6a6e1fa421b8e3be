"""Videos whose instance is shown before the background of another video, by boxes or masks of the instances.

Each clip has three versions: as it is, with the background of another video of its class, and of one of another class.
The first swap alone changes what compositing changes, such as edges; the second one also what backgrounds reveal.

Shapes: N videos, T frames of H x W pixels, B videos of a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.analysis.versions_from_one_decode import UniformVersions, VersionRequest, with_versions
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.column_store import Records
from vidssl.data.dataset import ClipDataset, resolve_span
from vidssl.data.instance_boxes import Boxes, pixels_of
from vidssl.data.video_list import VideoList
from vidssl.errors import DataError
from vidssl.keyed_generators import generator
from vidssl.transforms.crops import Box, crop_resize
from vidssl.transforms.invariance_changes import GRAY
from vidssl.types import Batch, Frames, VideoRecord
from vidssl.video.reader import DecodeSettings, open_video

VERSIONS = ("original", "same", "other")
MARGIN = 0.1  # of the sides of a box: what is filled around an instance, since its edge and shadow are often outside
_INSIDE = 128  # pixels of a mask from this value on, in any channel, belong to the instance

Pixels = NDArray[np.uint8]  # (T, H, W, 3) or (H, W, 3)
Masks = NDArray[np.bool_]  # (T, H, W): whether a pixel belongs to the instance


def list_masks(folder: Path, videos: VideoList) -> VideoList:
    """Find the masks of each video: the file or folder of images with its path below `folder`, suffix or not.

    Row n of the returned list has the masks of row n.

    Raises:
        DataError: A video has no masks, or a path that leaves its root.
    """
    records = Records(folder)
    for name in videos.names:
        path = PurePath(name)
        if path.is_absolute() or ".." in path.parts:
            raise DataError(f"{videos.path}: {name} leaves the root: masks have the paths of the list; use boxes=FILE")
        found = [each for each in (path, path.with_suffix("")) if (folder / each).exists()]
        if not found:
            raise DataError(
                f"{name} of {videos.path} has no masks: neither {folder / path} nor the folder {path.with_suffix('')} "
                "exists; name the folder that has the paths of the list: masks=FOLDER"
            )
        records.append(VideoRecord(str(found[0])))
    return VideoList(folder, records, ())


def draw_backgrounds(videos: VideoList, seed: int) -> NDArray[np.int64]:
    """Draw for each video the rows (N, 2) of its backgrounds: another file of its class, and one of another class.

    All rows that fit are equally likely, by a generator of (seed, row).

    Raises:
        DataError: A video has no other file of its class, or there is one class only.
    """
    labels = videos.labels
    _, files = np.unique([record.path for record in videos.records], return_inverse=True)
    drawn = np.empty((len(labels), 2), np.int64)
    for n, label in enumerate(labels.tolist()):
        rng = generator(seed, n)
        for column, fits in enumerate((labels == label, labels != label)):
            rows = np.flatnonzero(fits & (files != files[n]))
            if not len(rows):
                kind = "its class" if column == 0 else "another class"
                raise DataError(
                    f"{videos.names[n]} of {videos.path} needs the background of another video of {kind} "
                    f"({videos.class_name(label)}), and there is none: add videos, or remove this one"
                )
            drawn[n, column] = rng.choice(rows)
    return drawn


def fill_box(frame: Pixels, box: tuple[int, int, int, int]) -> None:
    """Fill a box xyxy of a frame (H, W, 3), in place, from the pixels around it.

    Each pixel is the mean of the nearest pixels left, right, above and below the box, weighted by their inverse
    distances; sides beyond the frame are left out. A box that covers the frame becomes gray.
    """
    height, width = frame.shape[:2]
    x1, y1, x2, y2 = box
    rows, columns = np.arange(y1, y2)[:, None, None], np.arange(x1, x2)[None, :, None]
    total, weights = np.zeros((y2 - y1, x2 - x1, 3)), np.zeros((y2 - y1, x2 - x1, 1))
    sides = (
        (x1 > 0, frame[y1:y2, x1 - 1][:, None], columns - x1 + 1),
        (x2 < width, frame[y1:y2, min(x2, width - 1)][:, None], x2 - columns),
        (y1 > 0, frame[y1 - 1, x1:x2][None], rows - y1 + 1),
        (y2 < height, frame[min(y2, height - 1), x1:x2][None], y2 - rows),
    )
    for inside, pixels, distance in sides:
        if inside:
            total += pixels / distance
            weights += 1 / distance
    frame[y1:y2, x1:x2] = np.rint(total / weights) if weights.any() else GRAY


def box_around(mask: NDArray[np.bool_]) -> tuple[int, int, int, int] | None:
    """Return the box xyxy around a mask (H, W), with `MARGIN`, at least a pixel, on each side; None if it is empty."""
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    if not len(rows):
        return None
    edges = []
    for found, end in ((columns, mask.shape[1]), (rows, mask.shape[0])):
        low, high = int(found[0]), int(found[-1]) + 1
        more = max(1, round(MARGIN * (high - low)))
        edges.append((max(low - more, 0), min(high + more, end)))
    (x1, x2), (y1, y2) = edges
    return x1, y1, x2, y2


@dataclass(frozen=True)
class Swaps:
    """Where the instance of each video is, and the videos whose backgrounds it gets."""

    instances: Mapping[str, Boxes | str]  # by the path of the record: boxes, or the path of masks
    backgrounds: Mapping[VideoRecord, Sequence[VideoRecord]]  # of its class, and of another one

    def dataset(self, plain: ClipDataset, clip: ClipSettings, clips: int) -> ClipDataset:
        """Change a dataset of uniform clips: its samples then hold, clip by clip, the views of all versions."""
        reading = with_versions(plain.reading, partial(self.swap, plain.reading))
        sampler = UniformVersions(clip, clips, range(len(VERSIONS)))
        return replace(plain, sampler=sampler, reading=reading)

    def swap(self, reading: DecodeSettings, request: VersionRequest) -> Frames:
        """Make a version (versions_from_one_decode.py); without an instance it shows the background alone."""
        height, width = request.frames.shape[2:]
        masks = self.masks(request.record, request.numbers, height, width)[:, None]
        first, _ = resolve_span(request.video.meta, request.record)
        other = self.backgrounds[request.record][request.version - 1]
        return np.where(masks, request.frames, self.background(reading, other, request.numbers - first, height, width))

    def background(
        self, reading: DecodeSettings, record: VideoRecord, numbers: NDArray[np.int64], height: int, width: int
    ) -> Frames:
        """Decode frames, counted from the start of a record, without its instance: (T, 3, height, width).

        A shorter video is repeated. Frames of another size are scaled to cover the wanted one, and cut at the centre.
        """
        with reading.open(record) as video:
            first, meta = resolve_span(video.meta, record)
            wanted, rows = np.unique(first + numbers % meta.num_frames, return_inverse=True)
            frames = video.frames(wanted).transpose(0, 2, 3, 1)
        for frame, mask in zip(frames, self.masks(record, wanted, *frames.shape[1:3]), strict=True):
            box = box_around(mask)
            if box is not None:
                fill_box(frame, box)
        high, wide = frames.shape[1:3]
        frames = frames.transpose(0, 3, 1, 2)
        if (high, wide) != (height, width):
            h, w = min(high, wide * height // width), min(wide, high * width // height)
            box = Box((wide - w) // 2, (high - h) // 2, max(w, 1), max(h, 1))
            frames = crop_resize(frames, box, height, width)
        return frames[rows]

    def masks(self, record: VideoRecord, numbers: NDArray[np.int64], height: int, width: int) -> Masks:
        """Return the masks (T, H, W) of the frames `numbers` of the file; boxes are filled rectangles."""
        instance = self.instances[record.path]
        if not isinstance(instance, str):
            found = np.zeros((len(numbers), height, width), bool)
            for place, rows, columns in pixels_of(instance, numbers):
                found[place, rows, columns] = True
            return found
        with open_video(instance, fps=1.0) as video:
            images = video.frames(numbers)
        if images.shape[2:] != (height, width):
            sizes = f"{images.shape[3]}x{images.shape[2]}, the video {width}x{height}"
            raise DataError(f"{instance}: the masks have {sizes}: masks need the size of their video")
        return np.asarray(images.max(axis=1) >= _INSIDE)


def mean_of_versions(batch: Batch, rows: Iterator[Tensor], crops: int) -> Tensor:
    """Average the features (B, D) of all views of each version: (B, 3, D). A clip has `crops` views of each version."""
    sums: list[Tensor] = [torch.zeros(())] * len(VERSIONS)
    for view, row in enumerate(rows):
        version = view // crops % len(VERSIONS)
        sums[version] = sums[version] + row
    return torch.stack(sums, dim=1) * (len(VERSIONS) / len(batch.views))
