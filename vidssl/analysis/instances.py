"""Videos in which the instance is covered, more and more: by boxes that are known for each frame."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.data.samplers import Clip
from vidssl.data.video_list import VideoList, read_text
from vidssl.errors import DataError
from vidssl.transforms.corruptions import GRAY
from vidssl.types import Frames, VideoRecord
from vidssl.video.reader import DecodeSettings, Video

SHARES = (0.25, 0.5, 0.75)  # of the width of the box, covered from the left
_HEADER = ["path", "frame", "x1", "y1", "x2", "y2"]
# Frame n + c * _COPY of a video is its frame n, where c > 0 with the share SHARES[c - 1] covered: so one pass of the
# decoder gives the clip and all covered versions of it.
_COPY = 1 << 40

Boxes = Mapping[int, tuple[float, ...]]  # frame to xyxy, pixels of the decoded frame, the far edges exclusive


def in_copy(clip: Clip, share: float) -> Clip:
    """Take the frames of a clip from the video in which a share (one of `SHARES`) of the instance is covered."""
    first = _COPY * (1 + SHARES.index(share))
    return Clip(clip.indices + first, clip.first + first, clip.last + first)


def read_boxes(path: Path, videos: VideoList) -> dict[str, Boxes]:
    """Read the instance's box in frames of videos: a CSV file `path,frame,x1,y1,x2,y2`, as moving digits has one.

    Args:
        path: The file. It may tell of more videos than the list has.
        videos: The list; its names are the paths of the file.

    Returns:
        For each path of a record its boxes.

    Raises:
        DataError: `file:line` of the first row that is wrong; or no video of the list has a box.
    """
    records = dict(zip(videos.names, videos.records, strict=True))
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    rows = csv.reader(io.StringIO(read_text(path, "name the file of boxes with --boxes"), newline=""))
    if next(rows, None) != _HEADER:
        raise DataError(f"{path}:1: the header is not {','.join(_HEADER)}")
    for row in rows:
        if not row:
            continue
        place = f"{path}:{rows.line_num}"
        try:
            name, number, box = row[0], int(row[1]), tuple(map(float, row[2:]))
        except (ValueError, IndexError):
            raise DataError(f"{place}: {','.join(row)!r} is not {','.join(_HEADER)}") from None
        if len(box) != 4 or not all(map(math.isfinite, box)) or box[2] <= box[0] or box[3] <= box[1]:
            raise DataError(f"{place}: {row[2:]} is no box: x1 < x2 and y1 < y2, pixels")
        if name not in records:
            continue
        own = found.setdefault(records[name].path, {})
        if number in own:
            raise DataError(f"{place}: frame {number} of {name} has a box already: one instance a video")
        own[number] = box
    if not found:
        raise DataError(f"{path} has no box for a video of {videos.path}: {videos.names[0]} for one")
    return dict(found)


class Covering(DecodeSettings):
    """Opens videos together with copies of them in which the instance is covered."""

    boxes: Any  # Mapping[str, Boxes]: by the path of the record

    def open(self, record: VideoRecord) -> Video:
        """Open the video of a record."""
        return _Covered(super().open(record), self.boxes.get(record.path, {}))


class _Covered(Video):
    """A video and its copies. Frames without a box are the same in all of them."""

    def __init__(self, video: Video, boxes: Boxes) -> None:
        super().__init__(video.path, video.meta, video._decoder)
        self._boxes = boxes

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Decode frames by number, each of them once."""
        copies, numbers = np.divmod(np.asarray(indices, dtype=np.int64), _COPY)
        wanted, rows = np.unique(numbers, return_inverse=True)
        frames = super().frames(wanted).transpose(0, 2, 3, 1)[rows]  # a copy
        for frame, copy, number in zip(frames, copies.tolist(), numbers.tolist(), strict=True):
            box = self._boxes.get(number)
            if copy and box is not None:
                x1, y1, x2, y2 = box
                x2 = x1 + SHARES[copy - 1] * (x2 - x1)
                left, top, right, bottom = (max(0, round(edge)) for edge in (x1, y1, x2, y2))
                frame[top:bottom, left:right] = GRAY
        return frames.transpose(0, 3, 1, 2)
