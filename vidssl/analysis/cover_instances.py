"""Videos in which the instance is partly covered, by boxes that are known for each frame."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.data.clip_samplers import Clip
from vidssl.data.instance_boxes import Boxes
from vidssl.transforms.corruptions import GRAY
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import DecodeSettings, Video

FRACTIONS = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left
# Frame n + c * COPY, c > 0, is frame n with FRACTIONS[c - 1] of the instance covered. So the clip and all its covered
# versions are frames of one video, and one pass of the decoder gives them all.
COPY = 1 << 40


def covered_clip(clip: Clip, fraction: float) -> Clip:
    """Return the frames of a clip with a fraction (one of `FRACTIONS`) of the instance covered."""
    first = COPY * (1 + FRACTIONS.index(fraction))
    return Clip(clip.indices + first, clip.first + first, clip.last + first)


class CoveringSettings(DecodeSettings):
    """Opens videos whose frames `n + c * COPY` have the instance covered."""

    boxes: Any  # Mapping[str, Boxes], by the path of the record

    def open(self, record: VideoRecord) -> Video:
        """Open the video of a record."""
        return _CoveredVideo(super().open(record), self.boxes.get(record.path, {}))


class _CoveredVideo(Video):
    """A video and its covered copies; frames without a box are equal in all of them."""

    def __init__(self, video: Video, boxes: Boxes) -> None:
        super().__init__(video.path, video.meta, video._opened())
        self._boxes = boxes

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Decode frames by number, each of them once."""
        copies, numbers = np.divmod(np.asarray(indices, dtype=np.int64), COPY)
        wanted, rows = np.unique(numbers, return_inverse=True)
        frames = super().frames(wanted).transpose(0, 2, 3, 1)[rows]  # a copy
        for frame, copy, number in zip(frames, copies.tolist(), numbers.tolist(), strict=True):
            box = self._boxes.get(number)
            if copy and box is not None:
                x1, y1, x2, y2 = box
                edges = x1, y1, x1 + FRACTIONS[copy - 1] * (x2 - x1), y2
                left, top, right, bottom = (max(0, round(edge)) for edge in edges)
                frame[top:bottom, left:right] = GRAY
        return frames.transpose(0, 3, 1, 2)
