"""Boxes of the instance in each frame of a video."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vidssl.base.errors import DataError
from vidssl.data.video_list import VideoList, read_rows

_HEADER = ["path", "frame", "x1", "y1", "x2", "y2"]

InstanceBoxes = Mapping[int, tuple[float, ...]]  # frame to xyxy, pixels of the decoded frame, the far edges exclusive


def pixels_of(
    boxes: InstanceBoxes, numbers: NDArray[np.int64], fraction: float | None = None
) -> Iterator[tuple[int, slice, slice]]:
    """Yield the index of each of some frames that has a box, and the rows and columns of the box.

    With `fraction` the box has only so much of its width, from the left.
    """
    for index, number in enumerate(numbers.tolist()):
        if number in boxes:
            x1, y1, x2, y2 = boxes[number]
            end = x2 if fraction is None else x1 + fraction * (x2 - x1)
            x1, y1, end, y2 = (max(0, round(edge)) for edge in (x1, y1, end, y2))
            yield index, slice(y1, y2), slice(x1, end)


def read_instance_boxes(path: Path, videos: VideoList) -> dict[str, InstanceBoxes]:
    """Read the box of the instance in each frame from a CSV file `path,frame,x1,y1,x2,y2`, with paths as in the list.

    The boxes of each video are returned by the path of its record.

    Raises:
        DataError: `file:line` of the first invalid row; or no video of the list has a box.
    """
    records = dict(zip(videos.names, videos.records, strict=True))
    boxes: dict[str, dict[int, tuple[float, ...]]] = {}
    rows = read_rows(path, "name the file of boxes: boxes=FILE")
    if next(rows, (1, None))[1] != _HEADER:
        raise DataError(f"{path}:1: the header is not {','.join(_HEADER)}")
    for line, row in rows:
        source = f"{path}:{line}"
        try:
            name, number, box = row[0], int(row[1]), tuple(map(float, row[2:]))
        except (ValueError, IndexError):
            raise DataError(f"{source}: {','.join(row)!r} is not {','.join(_HEADER)}") from None
        if len(box) != 4 or not all(map(math.isfinite, box)) or box[2] <= box[0] or box[3] <= box[1]:
            raise DataError(f"{source}: {row[2:]} is not a box: x1 < x2 and y1 < y2, pixels")
        if name in records:
            of_video = boxes.setdefault(records[name].path, {})
            if number in of_video:
                raise DataError(f"{source}: frame {number} of {name} has a box already: one instance per video")
            of_video[number] = box
    if not boxes:
        raise DataError(f"{path} has no box for any video of {videos.path}, such as {videos.names[0]}")
    return dict(boxes)
