"""All that crosses from one room to another. Shapes and ranges are checked where a value is made."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Frames = NDArray[np.uint8]  # (T, C, H, W) RGB 0-255, a channels-last view in memory


@dataclass(frozen=True)
class VideoRecord:
    """One row of a list: a video, its label, and the part of it that is meant."""

    path: str  # of a file that exists or not: records are not opened when they are read
    label: int = -1  # -1: unknown
    start: float | None = None  # seconds; None: the video's own start
    end: float | None = None  # seconds; None: the video's own end
    fps: float | None = None  # frames per second, of a folder of images; None: a file says its own
    mask: str | None = (
        None  # a PNG: the number of the part that each pixel of a frame shows, 255: not counted
    )

    def __post_init__(self) -> None:
        if self.label < -1:
            raise ValueError(f"label {self.label} < -1")
        if self.start is not None and self.end is not None and self.end <= self.start:
            raise ValueError(f"end {self.end} is not after start {self.start}")
        if self.fps is not None and self.fps <= 0:
            raise ValueError(f"fps {self.fps} is not above 0")


@dataclass(frozen=True)
class Tracks:
    """Regions that were followed through a video; a row is one region in one frame.

    Rows of one number in `track` are one thing: two of them are a patch pair.
    """

    frames: NDArray[np.int64]  # (N,) numbers of frames, in the part of the video that the record means
    boxes: NDArray[np.float32]  # (N, 4) xyxy, pixels of the decoded frame, the far edges exclusive
    scores: NDArray[np.float32]  # (N,) of the row's track, in [0, 1]
    track: NDArray[np.int64]  # (N,)

    def __post_init__(self) -> None:
        if self.boxes.shape != (len(self.frames), 4) or not (
            len(self.frames) == len(self.scores) == len(self.track)
        ):
            raise ValueError(
                f"{len(self.frames)} frames, {self.boxes.shape} boxes, {len(self.scores)} scores, "
                f"{len(self.track)} tracks"
            )
        sides = self.boxes[:, 2:] - self.boxes[:, :2]
        if not (np.isfinite(sides).all() and (sides > 0).all() and (self.frames >= 0).all()):
            raise ValueError("a box has no area, or is not finite, or a frame has a number below 0")


@dataclass(frozen=True)
class VideoMeta:
    """What a sampler needs to know of a video. No pixel is decoded to learn it."""

    num_frames: int
    fps: float  # frames per second
    height: int  # pixels, as stored: frames that the file says to rotate by 90 degrees come out turned
    width: int
    tracks: Tracks | None = field(default=None, compare=False, repr=False)  # None: nobody asked for them

    def __post_init__(self) -> None:
        if self.num_frames < 1 or self.fps <= 0 or self.height < 1 or self.width < 1:
            raise ValueError(
                f"not a video: {self.num_frames} frames, {self.fps} fps, {self.width}x{self.height}"
            )

    @property
    def duration(self) -> float:
        """Length in seconds."""
        return self.num_frames / self.fps


@dataclass(frozen=True)
class Sample:
    """The views of one video, as a worker makes them."""

    views: tuple[Frames, ...]  # each (T, C, S, S) uint8; none where the video is broken and was to be skipped
    label: int
    index: int  # of the record in its list
    replaced: tuple[tuple[str, str], ...] = ()  # (path, reason) of the broken videos in whose place it is
    # (views, 4) xyxy, pixels of each view: one region in all of them; None: nobody asked for tracks
    boxes: NDArray[np.float32] | None = None
    mask: NDArray[np.uint8] | None = None  # (S, S) of the first view; None: the list has no masks

    def __post_init__(self) -> None:
        for view in self.views:
            if view.dtype != np.uint8 or view.ndim != 4 or view.shape[1] != 3:
                raise ValueError(f"a view is (T, 3, S, S) uint8, got {view.shape} {view.dtype}")
        if self.boxes is not None and self.boxes.shape != (len(self.views), 4):
            raise ValueError(f"{self.boxes.shape} boxes for {len(self.views)} views")
        if self.mask is not None and self.mask.shape != self.views[0].shape[2:]:
            raise ValueError(f"a mask {self.mask.shape} for a view {self.views[0].shape}")


@dataclass(frozen=True)
class Batch:
    """B samples: uint8 views (B, T, C, S, S) from the loader, normalised float (B, C, T, S, S) on the device."""

    views: tuple[Tensor, ...]  # none where all videos of the batch were skipped
    label: Tensor  # (B,) int64
    index: Tensor  # (B,) int64
    replaced: tuple[tuple[str, str], ...] = field(default=())
    boxes: Tensor | None = None  # (B, views, 4) float32, xyxy in pixels of each view; None: nobody asked
    # (B, S, S) of the first view: uint8 from the loader, int64 on the device; None: the list has no masks
    mask: Tensor | None = None

    def __post_init__(self) -> None:
        for view in self.views:
            if view.ndim != 5 or view.shape[0] != len(self.label) or len(self.label) != len(self.index):
                shape = tuple(view.shape)
                raise ValueError(
                    f"view {shape} does not fit {len(self.label)} labels, {len(self.index)} indices"
                )
        if self.boxes is not None and self.boxes.shape != (len(self.label), len(self.views), 4):
            raise ValueError(
                f"{tuple(self.boxes.shape)} boxes for {len(self.label)} samples of {len(self.views)} views"
            )
        if self.mask is not None and self.mask.shape != (len(self.label), *self.views[0].shape[3:]):
            shapes = tuple(self.mask.shape), tuple(self.views[0].shape)
            raise ValueError(f"masks {shapes[0]} do not fit the first view {shapes[1]}")


@dataclass(frozen=True)
class Features:
    """One row for each video that could be read, each exactly once, sorted by index."""

    x: Tensor  # (N, D) float32
    label: Tensor  # (N,) int64
    index: Tensor  # (N,) int64, of the record in its list
    missing: tuple[tuple[str, str], ...] = ()  # (path, reason) of the videos that could not be read

    def __post_init__(self) -> None:
        if self.x.ndim != 2 or not len(self.x) == len(self.label) == len(self.index):
            raise ValueError(
                f"{tuple(self.x.shape)} features, {len(self.label)} labels, {len(self.index)} indices"
            )
        if not bool(torch.all(self.index[1:] > self.index[:-1])):
            raise ValueError(
                "indices are not strictly increasing: a video is there twice, or the rows are not sorted"
            )
