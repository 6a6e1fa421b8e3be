"""Where something may be in a frame: region proposals by selective search, and the files that remember them."""

import ctypes
import importlib
import importlib.metadata
import io
import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vidssl.atomic import state_of, write_whole
from vidssl.config import Settings
from vidssl.data.tracks import tracks_file
from vidssl.errors import ConfigError, DataError
from vidssl.types import VideoMeta, VideoRecord

Boxes = NDArray[np.float32]  # (R, 4) xyxy, pixels of the frame, the far edges exclusive

FORMAT = 1  # of the files; a change of this module that changes boxes raises it
_LONGEST = 4  # a frame is searched at most this many times as long as it is high, or the other way round

_log = logging.getLogger(__name__)


class Search(Settings):
    """Settings of the search, and what is kept of what it finds."""

    mode: Literal["fast", "quality"] = "fast"
    short_side: int = Field(default=128, ge=8)  # pixels at which a frame is searched
    # The scale of the first segmentation (k of Felzenszwalb and Huttenlocher): less finds smaller regions.
    scale: int = Field(default=150, ge=1)
    limit: int = Field(default=300, ge=1)  # regions of a frame
    # Which of more than that stay: those at even distances by size, or the first of OpenCV's ranking, as in the paper.
    keep: Literal["spread", "first"] = "spread"
    smallest: float = Field(default=0.04, ge=0, lt=1)  # shorter side of a region, share of the frame's
    largest: float = Field(default=0.5, gt=0, le=1)  # area of a region, share of the frame's
    ratio: float | None = Field(default=4.0, ge=1)  # longer side of a region, in shorter ones; None: any


def propose(image: NDArray[np.uint8], search: Search) -> Boxes:
    """Find regions of a frame by selective search (Uijlings et al., 2013).

    The set of regions that OpenCV finds is always the same. Its ranking is random: the level of a region in the
    hierarchy times a random number, with `keep: first` always those of one seed. Of more than `limit` regions the first
    of the ranking stay, or, with `keep: spread`, those at even distances by size. What stays is sorted from the largest
    to the smallest.

    Args:
        image: (H, W, 3) uint8 RGB.
        search: How, and what is kept.

    Returns:
        (R, 4), no box twice, R >= 1: where nothing is found or kept, the whole frame is the only region.

    Raises:
        ConfigError: OpenCV was installed without selective search.
        DataError: OpenCV cannot search this frame.
    """
    height, width = image.shape[:2]
    segmentation = selective_search()
    short, long = sorted((height, width))
    factor = min(search.short_side / short, _LONGEST * search.short_side / long)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    method = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
    small = cv2.cvtColor(cv2.resize(image, size, interpolation=method), cv2.COLOR_RGB2BGR)
    engine = segmentation.createSelectiveSearchSegmentation()
    try:
        engine.setBaseImage(small)
        if search.mode == "fast":
            engine.switchToSelectiveSearchFast(base_k=search.scale)
        else:
            engine.switchToSelectiveSearchQuality(base_k=search.scale)
        if search.keep == "first":
            _c_library().srand(1)  # OpenCV ranks by C's rand()
        found = np.asarray(engine.process(), np.float64).reshape(-1, 4)  # left, top, width, height
    except cv2.error as error:
        raise DataError(f"selective search fails on a frame of {width}x{height}: {error.err}") from None
    found[:, 2:] += found[:, :2]
    return choose(found * ([width / size[0], height / size[1]] * 2), height, width, search)


def choose(boxes: NDArray[np.floating[Any]], height: int, width: int, search: Search) -> Boxes:
    """Keep the boxes (R, 4) of a frame that the settings allow, each once, from the largest to the smallest.

    With `keep: first` the given order is the ranking.
    """
    # Sorted by x1, y1, x2, y2: no order of before is left but in `rank`, the first place of each box.
    boxes, rank = np.unique(boxes.astype(np.float32), axis=0, return_index=True)
    sides = boxes[:, 2:] - boxes[:, :2]
    low, high, area = sides.min(axis=1), sides.max(axis=1), sides.prod(axis=1)
    kept = (
        (low > 0) & (low >= search.smallest * min(height, width)) & (area <= search.largest * height * width)
    )
    if search.ratio is not None:
        kept &= high <= search.ratio * low
    if search.keep == "first":
        kept &= rank <= np.sort(rank[kept])[: search.limit].max(initial=-1)
    boxes = boxes[kept][np.argsort(-area[kept], kind="stable")]
    if len(boxes) > search.limit:
        boxes = boxes[np.linspace(0, len(boxes) - 1, search.limit).round().astype(np.int64)]
    return boxes if len(boxes) else whole_frame(height, width)


def whole_frame(height: int, width: int) -> Boxes:
    """Give the box of a frame itself: (1, 4)."""
    return np.array([[0, 0, width, height]], np.float32)


@lru_cache(maxsize=1)
def _c_library() -> ctypes.CDLL:
    return ctypes.CDLL(None)  # what this process is linked with


def selective_search() -> Any:
    """Give OpenCV's module of segmentations.

    Raises:
        ConfigError: OpenCV was installed without it.
    """
    try:
        return importlib.import_module("cv2.ximgproc.segmentation")
    except ImportError:
        wrong = [name for name in ("opencv-python", "opencv-python-headless") if _installed(name)]
        raise ConfigError(
            f"cv2 has no ximgproc: pip uninstall -y {' '.join(wrong) or 'opencv-python'} && "
            "pip install --force-reinstall opencv-contrib-python-headless"
        ) from None


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# Files ------------------------------------------------------------------------------------------------------


def proposals_file(folder: Path, name: str, record: VideoRecord) -> Path:
    """Name the file of a record's proposals: `proposals/` beside `tracks/`, under the same name."""
    return folder / "proposals" / tracks_file(folder, name, record).relative_to(folder / "tracks")


def read_proposals(path: Path, key: Mapping[str, Any], numbers: NDArray[np.int64]) -> list[Boxes] | None:
    """Read the regions of each frame, if they are there and were made from the same.

    Args:
        path: The file.
        key: What they have to be made from.
        numbers: (T,) of the frames, in the part of the video that its record means.

    Returns:
        A list of T arrays; None where they are to be searched (anew): where the file is missing, damaged (a warning
        says so), or of something else.
    """
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            if str(file["made_with"]) != _text(key) or not np.array_equal(file["frames"], numbers):
                return None
            boxes, counts = file["boxes"], file["counts"]
        if boxes.shape != (counts.sum(), 4) or len(counts) != len(numbers) or counts.min() < 1:
            raise ValueError(f"{len(boxes)} boxes for {len(counts)} frames")
        return np.split(boxes.astype(np.float32, copy=False), np.cumsum(counts)[:-1])
    except Exception as error:  # a damaged file fails in many ways
        _log.warning("%s is damaged (%s): its frames are searched again", path, error)
        return None


def write_proposals(
    path: Path, key: Mapping[str, Any], numbers: NDArray[np.int64], found: Sequence[Boxes]
) -> None:
    """Write the regions of each frame, whole or not at all.

    Raises:
        DataError: It cannot be written.
    """
    content = io.BytesIO()
    np.savez_compressed(
        content,
        frames=numbers,
        counts=np.array([len(boxes) for boxes in found], np.int64),
        boxes=np.concatenate(found),
        made_with=np.array(_text(key)),
    )
    write_whole(path, content.getvalue())


def made_from(search: Search, path: str, meta: VideoMeta) -> dict[str, Any]:
    """Tell what decides the regions of the frames of a video."""
    size, _ = state_of(Path(path))  # not when it was changed: copied elsewhere it is the same video
    video = [size, meta.num_frames, meta.fps, meta.height, meta.width]
    return {
        "format": FORMAT,
        "opencv": cv2.__version__,
        "search": search.model_dump(mode="json"),
        "video": video,
    }


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True)
