"""The region tracker: finds an object in frames that are far apart (Purushwalkam and Gupta, 2020, supplement B).

Shapes: T frames, R regions of a frame (a different number in each), S paths, D features of a region; boxes are xyxy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from vidssl.config import Settings
from vidssl.data.to_device import normalised
from vidssl.models.backbones import Backbone
from vidssl.models.eval_mode import eval_mode
from vidssl.models.layer_features import region_means
from vidssl.tracking.proposals import Boxes, Search
from vidssl.tracking.sums_over_paths import affinities, anchors, best_paths, scaled_sums
from vidssl.transforms.crops import short_side
from vidssl.types import Frames, Tracks

_BATCH = 16  # frames per forward pass


class TrackerSettings(Settings):
    """Settings of the tracker; docs/tracking.md compares them with the paper's."""

    search: Search = Search()
    chunks: int = Field(default=4, ge=1)  # per video, evenly spaced, each tracked on its own
    frames: int = Field(default=60, ge=2)  # consecutive frames of a chunk
    stride: int = Field(default=1, ge=1)  # use every n-th frame of a chunk
    size: int = Field(default=224, ge=16)  # short side of the network's input, pixels
    min_gap: int = Field(default=40, ge=1)  # minimum frames from the first to the last of a track
    variant: Literal["sum", "best"] = "sum"  # over all paths, as published, or the best path
    center: bool = True  # subtract the mean of all regions of the chunk before the cosine
    max_step: float | None = Field(default=0.1, gt=0)  # of an edge to the next used frame, fraction of the diagonal
    anchor: bool = False  # best paths: compare each region with the first one too, which keeps a path from drifting
    threshold: float = Field(default=0.5, ge=0, le=1)  # minimum score of a track
    top: int = Field(default=10, ge=1)  # tracks of a chunk (best), or of a pair of frames (sum)
    overlap: float | None = Field(default=0.5, gt=0, lt=1)  # IoU of duplicates, of which the best is kept; None: all
    starts: int = Field(default=32, ge=1)  # regions of the first frame from which best paths start

    @model_validator(mode="after")
    def _check_gap(self) -> "TrackerSettings":
        reach = (self.frames - 1) // self.stride * self.stride
        if reach < self.min_gap:
            chunk = f"{self.frames} frames in steps of {self.stride} reach {reach} frames far"
            raise ValueError(f"{chunk}, less than min_gap {self.min_gap}: raise frames, or lower min_gap")
        return self


@dataclass(frozen=True)
class Tracker:
    """Tracks regions with a network."""

    backbone: Backbone  # a ResNet, on the device
    config: TrackerSettings
    device: torch.device
    mean: Sequence[float]  # of pixels in [0, 1]; one value, or one per channel
    std: Sequence[float]

    @torch.no_grad()
    def track(
        self, frames: Frames, boxes: Sequence[Boxes], starts: Boxes | None = None, size: tuple[int, int] | None = None
    ) -> Tracks:
        """Track regions (T arrays (R, 4)) through a chunk, of which `frames` (T, C, H, W) are every `config.stride`-th.

        With `starts` (S, 4), regions of the first frame, track n follows row n by the best path, whatever its score,
        and ends where no affinity is left. `size` is the height and width of the frames that boxes refer to, by default
        those of `frames`. The first frame of the tracks is 0.
        """
        if len(frames) == 1:
            return no_tracks()
        config = self.config
        size = size or (frames.shape[2], frames.shape[3])
        boxes = list(boxes)
        if starts is not None:
            boxes[0] = np.concatenate([boxes[0], starts])
        features = self.features(short_side(frames, config.size), boxes, size)
        placed = [torch.from_numpy(each).to(self.device) for each in boxes]
        step = None if config.max_step is None else config.max_step * math.hypot(*size)
        affinity = affinities(features, placed, config.center, step)
        numbers = np.arange(len(boxes), dtype=np.int64) * config.stride
        if starts is not None:
            chosen = torch.arange(len(boxes[0]) - len(starts), len(boxes[0]), device=self.device)
        elif config.variant == "sum":
            return pairs_of_sums(affinity, placed, numbers, config)
        else:
            chosen = _choose_starts(placed[0], config)
        path, score = best_paths(affinity, chosen, anchors(features, chosen, config.center) if config.anchor else None)
        if starts is None:
            path, score = _select(path, score, placed, numbers, config)
        return _paths_as_tracks(path, score, placed, numbers)

    @torch.no_grad()
    def features(self, frames: Frames, boxes: Sequence[Boxes], size: tuple[int, int]) -> list[Tensor]:
        """Compute the features of regions, T tensors (R, D): layer 3 in eval mode, averaged over the region.

        Each frame (T, C, H, W) is a clip of its own. `boxes` are T arrays (R, 4) in pixels of a frame of `size` (H, W).
        """
        backbone = self.backbone
        precision = next((weight.dtype for weight in backbone.parameters()), torch.float32)
        features: list[Tensor] = []
        with eval_mode(backbone):
            for start in range(0, len(frames), _BATCH):
                clips = torch.from_numpy(frames[start : start + _BATCH]).to(self.device)[:, None]
                for maps in backbone.layer3(normalised(clips, self.mean, self.std).to(precision)).float():
                    regions = torch.from_numpy(boxes[len(features)]).to(self.device)
                    features.append(region_means(maps.mean(dim=1), regions, *size))
        return features


def pairs_of_sums(
    affinity: Sequence[Tensor], boxes: Sequence[Tensor], numbers: NDArray[np.int64], config: TrackerSettings
) -> Tracks:
    """Select the best pairs of regions in each pair of frames at least `min_gap` apart."""
    from torchvision.ops import nms  # slow import

    found: list[Tracks] = []
    for sums in scaled_sums(affinity):
        for i in np.flatnonzero(numbers[sums.end] - numbers[: sums.end] >= config.min_gap).tolist():
            values, log_scale = sums.pair(i)
            weight = (log_scale - log_scale.max()).exp()  # nan if no path is left, which passes no threshold
            if config.overlap is None:
                score, at = (values * weight[:, None]).flatten().topk(min(config.top, values.numel()))
                start, end = at // values.shape[1], at % values.shape[1]
            else:  # the best end of each start, and the best of overlapping starts
                start = nms(boxes[i], weight, config.overlap)[: config.top]
                score, end = weight[start], values[start].argmax(dim=1)
            kept = (score >= config.threshold) & (score > 0)
            pairs = torch.stack([boxes[i][start[kept]], boxes[sums.end][end[kept]]], dim=1).flatten(0, 1)  # (2 N, 4)
            count = len(pairs) // 2
            frames, scores = np.tile(numbers[[i, sums.end]], count), np.repeat(score[kept].cpu().numpy(), 2)
            found.append(Tracks(frames, pairs.cpu().numpy(), scores, np.repeat(np.arange(count), 2)))
    return join_tracks(found)


def _select(
    path: Tensor, score: Tensor, boxes: Sequence[Tensor], numbers: NDArray[np.int64], config: TrackerSettings
) -> tuple[Tensor, Tensor]:
    """Select the best paths that are long enough, and the best one of paths with overlapping ends."""
    from torchvision.ops import batched_nms

    last = (path >= 0).sum(dim=1) - 1
    gap = torch.from_numpy(numbers).to(path.device)[last]
    good = torch.nonzero((score >= config.threshold) & (gap >= config.min_gap))[:, 0]
    if config.overlap is not None and len(good):
        ends = torch.stack([boxes[t][k] for t, k in zip(last[good], path[good, last[good]], strict=True)])
        good = good[batched_nms(ends, score[good], last[good], config.overlap)]
    order = good[score[good].argsort(descending=True, stable=True)][: config.top]
    return path[order], score[order]


def _choose_starts(boxes: Tensor, config: TrackerSettings) -> Tensor:
    """Choose start regions (R, 4): without duplicates, of all sizes."""
    from torchvision.ops import nms

    if config.overlap is None:
        chosen = torch.arange(len(boxes), device=boxes.device)
    else:
        chosen = nms(boxes, (boxes[:, 2:] - boxes[:, :2]).prod(dim=1), config.overlap)
    if len(chosen) <= config.starts:
        return chosen
    return chosen[torch.linspace(0, len(chosen) - 1, config.starts, device=boxes.device).round().long()]


def _paths_as_tracks(path: Tensor, score: Tensor, boxes: Sequence[Tensor], numbers: NDArray[np.int64]) -> Tracks:
    placed = torch.stack([boxes[t][path[:, t].clamp(min=0)] for t in range(len(boxes))], dim=1)  # (S, T, 4)
    there = (path >= 0).cpu().numpy()
    track, at = np.nonzero(there)
    return Tracks(numbers[at], placed.cpu().numpy()[there], score.cpu().numpy()[track], track)


def no_tracks() -> Tracks:
    """Return empty tracks."""
    none = np.zeros(0, np.int64)
    return Tracks(none, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), none)


def join_tracks(parts: Sequence[Tracks]) -> Tracks:
    """Join tracks; the numbers of the tracks of each part follow those of the part before."""
    parts = [no_tracks(), *parts]
    ends = np.cumsum([part.track.max(initial=-1) + 1 for part in parts])
    track = [part.track + first for part, first in zip(parts, [0, *ends[:-1]], strict=True)]
    frames, boxes, scores = (
        np.concatenate([getattr(p, name) for p in parts]) for name in ("frames", "boxes", "scores")
    )
    return Tracks(frames, boxes, scores, np.concatenate(track))
