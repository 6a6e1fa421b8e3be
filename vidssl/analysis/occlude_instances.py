"""Videos in which the instance is partly covered, by boxes that are known for each frame."""

from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vidssl.analysis.video_versions import Make
from vidssl.data.instance_boxes import Boxes
from vidssl.transforms.invariance_changes import GRAY
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import Video

FRACTIONS = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left: version 1 to 3


def covering(boxes: Mapping[str, Boxes]) -> Make:
    """Make versions with a fraction of the instance covered; `boxes` are by the path of the record.

    Frames without a box are equal in all versions.
    """
    return partial(_cover, boxes)


def _cover(
    boxes: Mapping[str, Boxes],
    video: Video,
    record: VideoRecord,
    version: int,
    numbers: NDArray[np.int64],
    frames: Frames,
) -> Frames:
    of_video, covered = boxes.get(record.path, {}), frames.copy()
    for frame, number in zip(covered, numbers.tolist(), strict=True):
        if number in of_video:
            x1, y1, x2, y2 = of_video[number]
            edges = x1, y1, x1 + FRACTIONS[version - 1] * (x2 - x1), y2
            left, top, right, bottom = (max(0, round(edge)) for edge in edges)
            frame[:, top:bottom, left:right] = GRAY
    return covered
