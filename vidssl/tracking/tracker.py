"""The region tracker: finds an object in frames that are far apart (Purushwalkam and Gupta, 2020, supplement B).

Shapes: T frames, R regions of a frame (a different number in each), S paths, D features of a region; boxes are xyxy.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from vidssl.base.config import Settings
from vidssl.base.types import Frames, Tracks
from vidssl.data.to_device import normalised
from vidssl.models.backbones import Backbone
from vidssl.models.eval_mode import eval_mode
from vidssl.models.layer_features import region_means
from vidssl.tracking.proposals import Boxes, Search
from vidssl.transforms.crops import short_side

_ROWS = 600  # of a matrix product on a CPU, so that it stays in the cache


def affinities(features: Sequence[Tensor], boxes: Sequence[Tensor], center: bool, step: float | None) -> list[Tensor]:
    """Compare the regions of consecutive frames: max(0, cosine), Eq. (5).

    From T features (R, D) and boxes (R, 4) to T - 1 affinities (R of a frame, R of the next frame). With `center` the
    mean of all features is subtracted first: without it the cosine of any two regions is near 1. The affinity of
    regions of which an edge moves more than `step` pixels is 0.
    """
    unit = _unit(features, center)
    results = []
    for (here, there), (before, after) in zip(pairwise(unit), pairwise(boxes), strict=True):
        affinity = (here @ there.T).clamp(0, 1)
        if step is not None:
            affinity.masked_fill_(torch.cdist(before, after, p=math.inf) > step, 0)
        results.append(affinity)
    return results


def anchors(features: Sequence[Tensor], starts: Tensor, center: bool) -> list[Tensor]:
    """Compare regions (S,) of the first frame with those of each later frame: T - 1 tensors (S, R).

    The similarity is (1 + cosine) / 2, which is 0 at a cosine of -1 only: an object may change its appearance.
    """
    first, *later = _unit(features, center)
    return [(1 + first[starts] @ regions.T).clamp(0, 2) / 2 for regions in later]


def _unit(features: Sequence[Tensor], center: bool) -> list[Tensor]:
    middle = torch.cat(list(features)).mean(dim=0) if center else torch.zeros_like(features[0][0])
    return [F.normalize(of_frame - middle, dim=1) for of_frame in features]


class Sums(NamedTuple):
    """Products of affinities from every earlier frame to one frame; valid until the next one is yielded."""

    end: int  # j
    rows: Tensor  # (regions of frames 0 … j - 1, R_j), the largest value of each row 1, or all 0
    log_scale: Tensor  # of each row; -inf where no path is left
    first_rows: list[int]  # of the regions of each frame

    def pair(self, start: int) -> tuple[Tensor, Tensor]:
        """Return S of Eq. (4) between the regions of frame `start` and of this one: (R_i, R_j), log-scale (R_i,)."""
        rows = slice(self.first_rows[start], self.first_rows[start + 1])
        return self.rows[rows], self.log_scale[rows] - math.log(self.end - start)


def scaled_sums(affinity: Sequence[Tensor]) -> Iterator[Sums]:
    """Sum over all paths between the regions of every two frames, Eq. (4) and (5).

    The factors (j - i - 1) / (j - i) of the recursion telescope: S_ij = A_i A_(i+1) … A_(j-1) / (j - i). The product
    overflows float32 after some 15 frames of 300 regions, so each row carries the logarithm of its own scale. From
    T - 1 affinities (R_t, R_(t+1)) the sums that end in frame 1, 2, …, T - 1 are yielded; all start frames are advanced
    together, on a GPU by one matrix product.
    """
    first_rows = np.cumsum([0, *(len(step) for step in affinity)]).tolist()
    widest = max(step.shape[1] for step in affinity)
    buffers = [affinity[0].new_empty(first_rows[-1] * widest) for _ in range(2)]
    log_scale = affinity[0].new_zeros(first_rows[-1])
    before = affinity[0].new_empty(0, len(affinity[0]))
    block = _ROWS if log_scale.device.type == "cpu" else first_rows[-1]
    for t, step in enumerate(affinity):
        old, count = first_rows[t], first_rows[t + 1]
        rows = buffers[t % 2][: count * step.shape[1]].view(count, step.shape[1])
        rows[old:] = step
        _rescale(rows[old:], log_scale[old:count])
        for at in range(0, old, block):
            end = min(at + block, old)
            torch.mm(before[at:end], step, out=rows[at:end])
            _rescale(rows[at:end], log_scale[at:end])
        yield Sums(t + 1, rows, log_scale[:count], first_rows)
        before = rows


def _rescale(rows: Tensor, log_scale: Tensor) -> None:
    """Divide each row by its largest value, and add the logarithm to its scale."""
    largest = rows.amax(dim=1)
    log_scale += largest.log()
    rows.div_(largest.where(largest > 0, 1.0)[:, None])


def best_paths(
    affinity: Sequence[Tensor], starts: Tensor, anchor: Sequence[Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Find the path with the largest product from each start region (Viterbi): Eq. (4) with a maximum for the sum.

    From T - 1 affinities (R_t, R_(t+1)) and regions (S,) of the first frame to the region of each path in each frame,
    (S, T) int64, -1 after its end, where all affinities are 0; and the geometric mean of its affinities, (S,), 0 for a
    path that ends in the first frame. With `anchors`, each region's similarity to the start is one more factor.
    """
    rows = torch.arange(len(starts), device=starts.device)
    value = affinity[0].new_full((len(starts), len(affinity[0])), -math.inf)
    value[rows, starts] = 0
    values, origins = [value], []
    for t, step in enumerate(affinity):
        value, origin = (value[:, :, None] + step.log()).max(dim=1)  # (S, R_(t+1))
        if anchor is not None:
            value = value + anchor[t].log()
        values.append(value)
        origins.append(origin)
    reached = torch.stack([value.amax(dim=1) for value in values], dim=1)  # (S, T)
    last = (reached > -math.inf).sum(dim=1) - 1  # where the path ends
    path = torch.full_like(reached, -1, dtype=torch.int64)
    for t in reversed(range(len(values))):
        here = values[t].argmax(dim=1)
        if t < len(origins):
            here = torch.where(last > t, origins[t][rows, path[:, t + 1].clamp(min=0)], here)
        path[:, t] = torch.where(last >= t, here, -1)
    factors = last.clamp(min=1) * (1 if anchor is None else 2)
    score = (reached[rows, last] / factors).exp().where(last > 0, 0.0)
    return path, score


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
        placed = [torch.from_numpy(of_frame).to(self.device) for of_frame in boxes]
        step = None if config.max_step is None else config.max_step * math.hypot(*size)
        affinity = affinities(features, placed, config.center, step)
        numbers = np.arange(len(boxes), dtype=np.int64) * config.stride
        if starts is not None:
            regions = torch.arange(len(boxes[0]) - len(starts), len(boxes[0]), device=self.device)
        elif config.variant == "sum":
            return pairs_of_sums(affinity, placed, numbers, config)
        else:
            regions = _choose_starts(placed[0], config)
        anchor = anchors(features, regions, config.center) if config.anchor else None
        path, score = best_paths(affinity, regions, anchor)
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

    tracks: list[Tracks] = []
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
            tracks.append(Tracks(frames, pairs.cpu().numpy(), scores, np.repeat(np.arange(count), 2)))
    return join_tracks(tracks)


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
        regions = torch.arange(len(boxes), device=boxes.device)
    else:
        regions = nms(boxes, (boxes[:, 2:] - boxes[:, :2]).prod(dim=1), config.overlap)
    if len(regions) <= config.starts:
        return regions
    return regions[torch.linspace(0, len(regions) - 1, config.starts, device=boxes.device).round().long()]


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
    columns = ([getattr(part, name) for part in parts] for name in ("frames", "boxes", "scores"))
    frames, boxes, scores = map(np.concatenate, columns)
    return Tracks(frames, boxes, scores, np.concatenate(track))
