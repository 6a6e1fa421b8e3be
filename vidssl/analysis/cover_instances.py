"""Videos in which the instance is partly covered, by boxes that are known for each frame."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.data.samplers import Clip
from vidssl.data.video_list import VideoList, read_rows
from vidssl.errors import DataError
from vidssl.transforms.corruptions import GRAY
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import DecodeSettings, Video

FRACTIONS = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left
_HEADER = ["path", "frame", "x1", "y1", "x2", "y2"]
# Frame n + c * COPY, c > 0, is frame n with FRACTIONS[c - 1] of the instance covered. So the clip and all its covered
# versions are frames of one video, and one pass of the decoder gives them all.
COPY = 1 << 40

Boxes = Mapping[int, tuple[float, ...]]  # frame to xyxy, pixels of the decoded frame, the far edges exclusive


def covered_clip(clip: Clip, fraction: float) -> Clip:
    """Return the frames of a clip with a fraction (one of `FRACTIONS`) of the instance covered."""
    first = COPY * (1 + FRACTIONS.index(fraction))
    return Clip(clip.indices + first, clip.first + first, clip.last + first)


def read_boxes(path: Path, videos: VideoList) -> dict[str, Boxes]:
    """Read the box of the instance in each frame from a CSV file `path,frame,x1,y1,x2,y2`, with paths as in the list.

    The boxes of each video are returned by the path of its record.

    Raises:
        DataError: `file:line` of the first invalid row; or no video of the list has a box.
    """
    records = dict(zip(videos.names, videos.records, strict=True))
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    rows = read_rows(path, "name the file of boxes: boxes=FILE")
    if next(rows, (1, None))[1] != _HEADER:
        raise DataError(f"{path}:1: the header is not {','.join(_HEADER)}")
    for line, row in rows:
        place = f"{path}:{line}"
        try:
            name, number, box = row[0], int(row[1]), tuple(map(float, row[2:]))
        except (ValueError, IndexError):
            raise DataError(f"{place}: {','.join(row)!r} is not {','.join(_HEADER)}") from None
        if len(box) != 4 or not all(map(math.isfinite, box)) or box[2] <= box[0] or box[3] <= box[1]:
            raise DataError(f"{place}: {row[2:]} is not a box: x1 < x2 and y1 < y2, pixels")
        if name in records:
            own = found.setdefault(records[name].path, {})
            if number in own:
                raise DataError(f"{place}: frame {number} of {name} has a box already: one instance per video")
            own[number] = box
    if not found:
        raise DataError(f"{path} has no box for any video of {videos.path}, such as {videos.names[0]}")
    return dict(found)


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
