"""Videos that show where the boxes of instances are: white inside of the box, black outside."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vidssl.analysis.video_versions import Make
from vidssl.data.instance_boxes import Boxes
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import Video


def box_masks(boxes: Mapping[str, Boxes]) -> Make:
    """Make a version that shows the boxes; `boxes` are by the path of the record. Frames without a box are black."""
    return partial(_draw, boxes)


def _draw(
    boxes: Mapping[str, Boxes],
    video: Video,
    record: VideoRecord,
    version: int,
    numbers: NDArray[np.int64],
    frames: Frames,
) -> Frames:
    of_video, masks = boxes.get(record.path, {}), np.zeros_like(frames)  # the size is known after decoding only
    for mask, number in zip(masks, numbers.tolist(), strict=True):
        if number in of_video:
            left, top, right, bottom = (max(0, round(edge)) for edge in of_video[number])
            mask[:, top:bottom, left:right] = 255
    return masks
