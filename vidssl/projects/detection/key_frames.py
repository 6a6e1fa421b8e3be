"""Clips around key frames of videos, with the persons in the key frame and their actions.

Shapes: T frames, H x W pixels of the source; n persons.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vidssl.errors import DataError
from vidssl.keyed_generators import generator
from vidssl.projects.detection.images import Arrays
from vidssl.projects.detection.lists_with_boxes import KeyFrameList
from vidssl.projects.detection.schema import KeyFrameSettings
from vidssl.transforms.crops import short_side
from vidssl.transforms.recipes import TrainCrop
from vidssl.types import Frames, VideoMeta

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
            found = (fractions * _sides(frames)).astype(np.float32)
        else:
            (made,) = self.view(frames, generator(self.seed, epoch, index, 0))
            assert made.window is not None  # `TrainCrop` always has one
            found = made.window.boxes((fractions * _sides(frames)).astype(np.float32), made.frames.shape[-1])
            frames = made.frames
        kept = (found[:, 2:] > found[:, :2]).all(axis=1)  # a crop can miss a person
        clip = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
        return clip, {"boxes": found[kept], "labels": labels[kept]}, index

    def _persons(self, index: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Boxes (n, 4) as in the list, and labels (n, classes)."""
        own, classes = self.boxes.rows_of(index), len(self.boxes.classes)
        proposals = self.boxes.proposals_of(index)
        unlabelled = np.zeros((len(proposals), classes), np.float32)
        if isinstance(self.view, int) and self.boxes.has_proposals:
            return proposals, unlabelled
        rows = np.arange(own.start, own.stop)
        rows = rows[~self.boxes.crowd[rows]]
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
