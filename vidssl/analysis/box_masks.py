"""Videos that show where the boxes of instances are: white inside of the box, black outside."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.data.instance_boxes import Boxes
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import DecodeSettings, Video


class BoxMaskSettings(DecodeSettings):
    """Opens videos as masks of their boxes: the samplers and recipes of a dataset apply to them as to the videos."""

    boxes: Any  # Mapping[str, Boxes], by the path of the record

    def open(self, record: VideoRecord) -> Video:
        """Open the video of a record."""
        return _BoxVideo(super().open(record), self.boxes.get(record.path, {}))


class _BoxVideo(Video):
    """Masks of the boxes of a video; frames without a box are black."""

    def __init__(self, video: Video, boxes: Boxes) -> None:
        super().__init__(video.path, video.meta, video._opened())
        self._boxes = boxes

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Draw the masks of frames by number."""
        masks = np.zeros_like(super().frames(indices).transpose(0, 2, 3, 1))  # the size is known after decoding only
        for mask, number in zip(masks, np.asarray(indices).tolist(), strict=True):
            if number in self._boxes:
                left, top, right, bottom = (max(0, round(edge)) for edge in self._boxes[number])
                mask[top:bottom, left:right] = 255
        return masks.transpose(0, 3, 1, 2)
