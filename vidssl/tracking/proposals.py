"""Region proposals by selective search, and the files that cache them."""

import ctypes
import hashlib
import importlib
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidssl.base.atomic import write_whole
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.safe_parse import read_arrays
from vidssl.base.types import VideoMeta, VideoRecord
from vidssl.data.track_files import tracks_file
from vidssl.video.reader import state_of_video

Boxes = NDArray[np.float32]  # (R, 4) xyxy, pixels of the frame, the far edges exclusive

PROPOSALS_FORMAT = 1  # of the files; raise it when a change of this module changes boxes
_SIGMA, _STEP, _SEGMENT = 0.8, 150, 100  # OpenCV's: smoothing, steps of `scale`, and pixels of the smallest segments
_FINEST = 1 / 3  # the least factor of `scale` and of _SEGMENT
_MAX_RATIO = 4  # of the longer to the shorter side of the searched image

_log = logging.getLogger(__name__)


class Search(Settings):
    """Settings of selective search, and which of its boxes are kept."""

    mode: Literal["fast", "quality"] = "fast"
    short_side: int = Field(default=128, ge=8)  # of the searched image, pixels
    scale: int = Field(default=150, ge=1)  # k of the first segmentation: lower values find smaller regions
    adapt: bool = True  # lower `scale` and the minimum segment as the searched image is smaller than the frame, to 1/3
    limit: int = Field(default=300, ge=1)  # regions per frame
    keep: Literal["spread", "first"] = "spread"  # above the limit: evenly spaced by size, or OpenCV's first
    smallest: float = Field(default=0.04, ge=0, lt=1)  # shorter side of a region, fraction of the frame's
    largest: float = Field(default=0.5, gt=0, le=1)  # area of a region, fraction of the frame's
    ratio: float | None = Field(default=4.0, ge=1)  # maximum ratio of the sides of a region; None: any


def propose(image: NDArray[np.uint8], search: Search) -> Boxes:
    """Find regions of a frame by selective search (Uijlings et al., 2013).

    The set of regions that OpenCV finds is deterministic, its ranking is random: with `keep: first` the seed is fixed.
    `image` is (H, W, 3) uint8 RGB; the result is that of `choose`.
    """
    height, width = image.shape[:2]
    segmentation = selective_search()
    short, long = sorted((height, width))
    factor = min(search.short_side / short, _MAX_RATIO * search.short_side / long)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    method = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    small = cv2.cvtColor(cv2.resize(image, size, interpolation=method), cv2.COLOR_RGB2BGR)
    engine = segmentation.createSelectiveSearchSegmentation()
    try:
        engine.setBaseImage(small)
        switch = engine.switchToSelectiveSearchFast if search.mode == "fast" else engine.switchToSelectiveSearchQuality
        switch()
        engine.clearGraphSegmentations()  # the switch always drops segments below 100 pixels
        fine = max(_FINEST, min(1.0, factor**2)) if search.adapt else 1.0
        for level in range(3 if search.mode == "fast" else 5):
            scale, smallest = search.scale * fine + level * _STEP, round(_SEGMENT * fine)
            engine.addGraphSegmentation(segmentation.createGraphSegmentation(_SIGMA, scale, smallest))
        if search.keep == "first":
            ctypes.CDLL(None).srand(1)  # OpenCV ranks with C's rand()
        boxes = np.asarray(engine.process(), np.float64).reshape(-1, 4)  # left, top, width, height
    except cv2.error as error:
        raise DataError(f"selective search fails on a frame of {width}x{height}: {error.err}") from None
    boxes[:, 2:] += boxes[:, :2]
    return choose(boxes * ([width / size[0], height / size[1]] * 2), height, width, search)


def choose(boxes: NDArray[np.floating[Any]], height: int, width: int, search: Search) -> Boxes:
    """Keep the boxes (R, 4) of a frame that the settings allow, without duplicates, from the largest to the smallest.

    With `keep: first` the given order is the ranking. If no box is left, the whole frame is the only region.
    """
    # Sorts by x1, y1, x2, y2, so that the result does not depend on the given order; `rank` holds that order.
    boxes, rank = np.unique(boxes.astype(np.float32), axis=0, return_index=True)
    sides = boxes[:, 2:] - boxes[:, :2]
    low, high, area = sides.min(axis=1), sides.max(axis=1), sides.prod(axis=1)
    kept = (low > 0) & (low >= search.smallest * min(height, width)) & (area <= search.largest * height * width)
    if search.ratio is not None:
        kept &= high <= search.ratio * low
    if search.keep == "first":
        kept &= rank <= np.sort(rank[kept])[: search.limit].max(initial=-1)
    boxes = boxes[kept][np.argsort(-area[kept], kind="stable")]
    if len(boxes) > search.limit:
        boxes = boxes[np.linspace(0, len(boxes) - 1, search.limit).round().astype(np.int64)]
    return boxes if len(boxes) else whole_frame(height, width)


def whole_frame(height: int, width: int) -> Boxes:
    """Return the box of a whole frame: (1, 4)."""
    return np.array([[0, 0, width, height]], np.float32)


def selective_search() -> Any:
    """Import OpenCV's selective search, or raise a ConfigError."""
    try:
        return importlib.import_module("cv2.ximgproc.segmentation")
    except ImportError:
        raise ConfigError(
            "this OpenCV has no ximgproc: pip uninstall opencv-python opencv-python-headless, then "
            "pip install --force-reinstall opencv-contrib-python-headless"
        ) from None


# Files ------------------------------------------------------------------------------------------------------


def proposals_file(folder: Path, name: str, record: VideoRecord) -> Path:
    """Return the file of a record's proposals: in `proposals/` beside `tracks/`, under the same name."""
    return folder / "proposals" / tracks_file(folder, name, record).relative_to(folder / "tracks")


def proposals_key(search: Search, path: str, meta: VideoMeta) -> str:
    """Return everything that determines the proposals of a video, as JSON."""
    size, _ = state_of_video(path) or (0, 0)  # not the modification time: a copy is the same video
    video: list[Any] = [size, meta.num_frames, meta.fps, meta.height, meta.width]
    if meta.times is not None:  # the frames of a span depend on them
        video.append(hashlib.sha256(meta.times.tobytes()).hexdigest())
    made_with = {"opencv": cv2.__version__, "search": search.model_dump(mode="json"), "video": video}
    return json.dumps({"format": PROPOSALS_FORMAT, **made_with}, sort_keys=True)


def read_proposals(path: Path, key: str, numbers: NDArray[np.int64]) -> list[Boxes] | None:
    """Read the regions of frames (T,), numbered in the record's part of the video: T arrays (R, 4).

    Returns None if the file is missing, damaged (with a warning), or has another `proposals_key` or other frames.
    """
    if not path.exists():
        return None
    try:
        file = read_arrays(path)
        if str(file["made_with"]) != key or not np.array_equal(file["frames"], numbers):
            return None
        boxes, counts = file["boxes"], file["counts"]
        if boxes.ndim != 2 or boxes.shape[1] != 4 or boxes.dtype.kind not in "iuf":
            raise ValueError(f"its boxes are {boxes.dtype} {boxes.shape}, not (R, 4)")
        whole = counts.dtype.kind in "iu" and counts.shape == numbers.shape
        if not whole or (counts < 0).any() or counts.sum() != len(boxes):
            raise ValueError("the counts of its boxes do not add up")
        return np.split(boxes, np.cumsum(counts)[:-1])
    except (OSError, KeyError, ValueError) as error:
        _log.warning("%s is damaged (%s): searching its frames again", path, error)
        return None


def write_proposals(path: Path, key: str, numbers: NDArray[np.int64], regions: Sequence[Boxes]) -> None:
    """Write the regions of each frame atomically."""
    counts = np.array([len(boxes) for boxes in regions], np.int64)
    content = io.BytesIO()
    np.savez_compressed(content, frames=numbers, counts=counts, boxes=np.concatenate(regions), made_with=np.array(key))
    write_whole(path, content.getvalue())
