"""The region tracker: where a thing is in frames that lie far apart (Purushwalkam and Gupta, 2020, supplement B)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional as F

from vidssl.config import Settings
from vidssl.models.backbones import Backbone
from vidssl.models.regions import region_means
from vidssl.tracking.proposals import Boxes, Search
from vidssl.transforms.crops import short_side
from vidssl.types import Frames, Tracks

_BATCH = 16  # frames that go through the network at a time
_ROWS = 600  # of a product of matrices on a CPU: they stay in its cache


class TrackerSettings(Settings):
    """Settings of the tracker; docs/tracking.md has the paper's values, and what speaks for the ones here."""

    search: Search = Search()
    chunks: int = Field(default=4, ge=1)  # of a long video, maximally spaced, each tracked on its own
    frames: int = Field(default=60, ge=2)  # consecutive frames of a chunk
    stride: int = Field(default=1, ge=1)  # every n-th of them is looked at
    size: int = Field(default=224, ge=16)  # short side of the frames that the network sees, pixels
    min_gap: int = Field(default=40, ge=1)  # frames from the first to the last of a track, at least
    variant: Literal["sum", "best"] = "sum"  # over all paths, as published, or the best path
    center: bool = True  # subtract the mean of all regions of the chunk before the cosine
    # How far an edge of a region may move to the next frame that is looked at, share of the frame's diagonal.
    max_step: float | None = Field(default=0.1, gt=0)
    threshold: float = Field(default=0.5, ge=0, le=1)  # of the score of a track
    top: int = Field(default=10, ge=1)  # tracks of a chunk (best), or of a pair of frames (sum)
    # IoU above which two regions are one thing to start from.
    overlap: float | None = Field(default=0.5, gt=0, lt=1)
    starts: int = Field(default=32, ge=1)  # regions of the first frame from which best paths are sought

    @model_validator(mode="after")
    def _long_enough(self) -> "TrackerSettings":
        reach = (self.frames - 1) // self.stride * self.stride
        if reach < self.min_gap:
            raise ValueError(
                f"{self.frames} frames in steps of {self.stride} reach {reach} frames far, min_gap is {self.min_gap}: "
                "raise frames, or lower min_gap"
            )
        return self


@torch.no_grad()
def track_video(
    backbone: Backbone,
    frames: Frames,
    boxes: Sequence[Boxes],
    config: TrackerSettings,
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    starts: Boxes | None = None,
) -> Tracks:
    """Track regions through the frames of one chunk.

    Args:
        backbone: A ResNet, on the device.
        frames: (T, C, H, W), all that are looked at.
        boxes: The regions of each frame, T arrays (R, 4).
        config: How.
        device: Where the backbone is.
        mean: Of pixels in [0, 1]; one value, or one for each channel.
        std: As `mean`.
        starts: (S, 4), regions of the first frame to track, for the best path: track n is that of row n, whatever its
            score, and ends where no affinity is left. None: regions are chosen.

    Returns:
        Frames are numbered from 0, in steps of `config.stride`. Best paths have a row in each frame, sums one at both
        ends. There may be none.

    Raises:
        ConfigError: The backbone has no third stage.
    """
    height, width = frames.shape[2:]
    small = short_side(frames, config.size)
    return track_chunk(backbone, small, boxes, (height, width), config, device, mean, std, starts)


@torch.no_grad()
def track_chunk(
    backbone: Backbone,
    frames: Frames,
    boxes: Sequence[Boxes],
    size: tuple[int, int],
    config: TrackerSettings,
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
    starts: Boxes | None = None,
) -> Tracks:
    """Do what `track_video` does with frames that are resized already; boxes are pixels of a frame of `size` (H, W)."""
    if len(frames) == 1:
        return no_tracks()
    boxes = list(boxes)
    if starts is not None:  # regions of their own: as good as they are given
        boxes[0] = np.concatenate([boxes[0], starts])
    features = region_features(backbone, frames, boxes, size, device, mean, std)
    placed = [torch.from_numpy(each).to(device) for each in boxes]
    step = None if config.max_step is None else config.max_step * math.hypot(*size)
    affinity = affinities(features, placed, config.center, step)
    numbers = np.arange(len(boxes), dtype=np.int64) * config.stride
    if starts is not None:
        chosen = torch.arange(len(boxes[0]) - len(starts), len(boxes[0]), device=device)
        return _paths_as_tracks(*best_paths(affinity, chosen), placed, numbers)
    if config.variant == "sum":
        return pairs_of_sums(affinity, placed, numbers, config)
    path, score = best_paths(affinity, _spread(placed[0], config))
    return _paths_as_tracks(*_keep(path, score, placed, numbers, config), placed, numbers)


# Features and affinities ------------------------------------------------------------------------------------


@torch.no_grad()
def region_features(
    backbone: Backbone,
    frames: Frames,
    boxes: Sequence[Boxes],
    size: tuple[int, int],
    device: torch.device,
    mean: Sequence[float],
    std: Sequence[float],
) -> list[Tensor]:
    """Describe the regions of each frame: layer 3 of the network, averaged over the region.

    Each frame goes through the network as a clip of its own. The network is put into eval mode for this and back.

    Args:
        backbone: On the device.
        frames: (T, C, H, W), as large as the network shall see them.
        boxes: T arrays (R, 4).
        size: Height and width of the frames that the boxes are pixels of.
        device: Where the backbone is.
        mean: Of pixels in [0, 1].
        std: As `mean`.

    Returns:
        T tensors (R, D) float32, on the device.
    """
    precision = next((weight.dtype for weight in backbone.parameters()), torch.float32)
    shift = torch.tensor(mean, device=device).view(1, -1, 1, 1, 1)
    scale = torch.tensor(std, device=device).view(1, -1, 1, 1, 1)
    found: list[Tensor] = []
    training = backbone.training
    backbone.eval()
    try:
        for start in range(0, len(frames), _BATCH):
            clips = torch.from_numpy(frames[start : start + _BATCH]).to(device)[:, :, None]
            for maps in backbone.layer3(((clips.float() / 255 - shift) / scale).to(precision)).float():
                regions = torch.from_numpy(boxes[len(found)]).to(device)
                found.append(region_means(maps.mean(dim=1), regions, *size))
    finally:
        backbone.train(training)
    return found


def affinities(
    features: Sequence[Tensor], boxes: Sequence[Tensor], center: bool, step: float | None
) -> list[Tensor]:
    """Compare the regions of each two consecutive frames: max(0, cosine), Eq. (5).

    Args:
        features: T tensors (R, D).
        boxes: T tensors (R, 4).
        center: Subtract the mean of all features first. Without it those of any two regions have a cosine near 1.
        step: Pixels; of two regions of which an edge differs by more, the affinity is 0. None: of none.

    Returns:
        T - 1 tensors (R of a frame, R of the next one), in [0, 1].
    """
    middle = torch.cat(list(features)).mean(dim=0) if center else torch.zeros_like(features[0][0])
    unit = [F.normalize(each - middle, dim=1) for each in features]
    found = []
    for (here, there), (before, after) in zip(pairwise(unit), pairwise(boxes), strict=True):
        affinity = (here @ there.T).clamp(0, 1)
        if step is not None:
            affinity.masked_fill_(torch.cdist(before, after, p=math.inf) > step, 0)
        found.append(affinity)
    return found


# The sum over all paths -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sums:
    """The products of affinities from every earlier frame to one frame; valid until the next one is asked for."""

    end: int  # j
    rows: Tensor  # (regions of frame 0, then of frame 1, …, of frame j - 1; R_j), largest of each row 1, or all 0
    log_scale: Tensor  # of each row; -inf where no path is left
    first: list[int]  # row of the first region of each frame

    def pair(self, start: int) -> tuple[Tensor, Tensor]:
        """Give S of Eq. (4) for the regions of frame `start` and of this one: values (R_i, R_j), log-scale (R_i,)."""
        rows = slice(self.first[start], self.first[start + 1])
        return self.rows[rows], self.log_scale[rows] - math.log(self.end - start)


def scaled_sums(affinity: Sequence[Tensor]) -> Iterator[Sums]:
    """Sum over all paths between the regions of every two frames, Eq. (4) and (5).

    The factors (j - i - 1) / (j - i) of the recursion telescope: S_ij = A_i A_(i+1) … A_(j-1) / (j - i). The product
    outgrows float32 after some 15 frames of 300 regions, so each row carries the logarithm of its scale. Each row its
    own: the paths of regions that have nothing to do with each other grow at rates of their own.

    For each end frame all start frames are advanced together: on a GPU by one product of matrices.

    Args:
        affinity: T - 1 tensors (R_t, R_(t+1)), not below 0.

    Yields:
        Those that end in frame 1, in frame 2, …, in frame T - 1.
    """
    first = np.cumsum([0, *(len(each) for each in affinity)]).tolist()
    widest = max(each.shape[1] for each in affinity)
    buffers = [affinity[0].new_empty(first[-1] * widest) for _ in range(2)]
    log_scale = affinity[0].new_zeros(first[-1])
    before = affinity[0].new_empty(0, len(affinity[0]))
    block = _ROWS if log_scale.device.type == "cpu" else first[-1]
    for t, step in enumerate(affinity):
        old, count = first[t], first[t + 1]
        rows = buffers[t % 2][: count * step.shape[1]].view(count, step.shape[1])
        rows[old:] = step
        _rescale(rows[old:], log_scale[old:count])
        for at in range(0, old, block):
            end = min(at + block, old)
            torch.mm(before[at:end], step, out=rows[at:end])
            _rescale(rows[at:end], log_scale[at:end])
        yield Sums(t + 1, rows, log_scale[:count], first)
        before = rows


def _rescale(rows: Tensor, log_scale: Tensor) -> None:
    """Divide each row by its largest value, and remember that."""
    largest = rows.amax(dim=1)
    log_scale += largest.log()
    rows.div_(largest.where(largest > 0, 1.0)[:, None])


def pairs_of_sums(
    affinity: Sequence[Tensor], boxes: Sequence[Tensor], numbers: NDArray[np.int64], config: TrackerSettings
) -> Tracks:
    """Keep the best pairs of regions of each pair of frames that lie `min_gap` apart."""
    from torchvision.ops import nms  # seconds to import

    found: list[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]] = []
    for sums in scaled_sums(affinity):
        for i in np.flatnonzero(numbers[sums.end] - numbers[: sums.end] >= config.min_gap).tolist():
            values, log_scale = sums.pair(i)
            weight = (log_scale - log_scale.max()).exp()  # nan where no path is left: above no threshold
            if config.overlap is None:
                score, at = (values * weight[:, None]).flatten().topk(min(config.top, values.numel()))
                start, end = at // values.shape[1], at % values.shape[1]
            else:  # the best end of each start, and of starts that are one thing the best one
                start = nms(boxes[i], weight, config.overlap)[: config.top]
                score, end = weight[start], values[start].argmax(dim=1)
            kept = (score >= config.threshold) & (score > 0)
            if not bool(kept.any()):
                continue
            pair = torch.stack([boxes[i][start[kept]], boxes[sums.end][end[kept]]], dim=1)  # (N, 2, 4)
            frames = np.tile(numbers[[i, sums.end]], len(pair))
            found.append((frames, pair.flatten(0, 1).cpu().numpy(), score[kept].cpu().numpy()))
    if not found:
        return no_tracks()
    frames, corners, scores = (np.concatenate([each[n] for each in found]) for n in range(3))
    return Tracks(frames, corners, np.repeat(scores, 2), np.repeat(np.arange(len(scores)), 2))


# The best path ----------------------------------------------------------------------------------------------


def best_paths(affinity: Sequence[Tensor], starts: Tensor) -> tuple[Tensor, Tensor]:
    """Find the path of greatest product from some regions of the first frame on: the algorithm of Viterbi.

    It is Eq. (4) with the greatest of all paths in place of their sum.

    Args:
        affinity: T - 1 tensors (R_t, R_(t+1)), not below 0.
        starts: (S,) int64, regions of the first frame.

    Returns:
        The region of each path in each frame, (S, T) int64, -1 from where all affinities are 0; and the geometric mean
        of its affinities, (S,), 0 for a path that does not get beyond the first frame.
    """
    rows = torch.arange(len(starts), device=starts.device)
    value = affinity[0].new_full((len(starts), len(affinity[0])), -math.inf)
    value[rows, starts] = 0
    values, origins = [value], []
    for step in affinity:
        value, origin = (value[:, :, None] + step.log()).max(dim=1)  # (S, R_(t+1))
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
    score = (reached[rows, last] / last.clamp(min=1)).exp().where(last > 0, 0.0)
    return path, score


def _keep(
    path: Tensor, score: Tensor, boxes: Sequence[Tensor], numbers: NDArray[np.int64], config: TrackerSettings
) -> tuple[Tensor, Tensor]:
    """Keep the best paths that are long enough; of paths that have joined, for they end in one thing, the best one."""
    from torchvision.ops import batched_nms

    last = (path >= 0).sum(dim=1) - 1
    gap = torch.from_numpy(numbers).to(path.device)[last]
    good = torch.nonzero((score >= config.threshold) & (gap >= config.min_gap))[:, 0]
    if config.overlap is not None and len(good):
        ends = torch.stack([boxes[t][k] for t, k in zip(last[good], path[good, last[good]], strict=True)])
        good = good[batched_nms(ends, score[good], last[good], config.overlap)]
    order = good[score[good].argsort(descending=True, stable=True)][: config.top]
    return path[order], score[order]


def _spread(boxes: Tensor, config: TrackerSettings) -> Tensor:
    """Choose regions (R, 4) to start from: no two of one thing, of all sizes."""
    from torchvision.ops import nms

    if config.overlap is None:
        chosen = torch.arange(len(boxes), device=boxes.device)
    else:
        sides = boxes[:, 2:] - boxes[:, :2]
        chosen = nms(boxes, sides.prod(dim=1), config.overlap)
    if len(chosen) <= config.starts:
        return chosen
    return chosen[torch.linspace(0, len(chosen) - 1, config.starts, device=boxes.device).round().long()]


def _paths_as_tracks(
    path: Tensor, score: Tensor, boxes: Sequence[Tensor], numbers: NDArray[np.int64]
) -> Tracks:
    if not len(path):
        return no_tracks()
    placed = torch.stack([boxes[t][path[:, t].clamp(min=0)] for t in range(len(boxes))], dim=1)  # (S, T, 4)
    there = (path >= 0).cpu().numpy()
    track, at = np.nonzero(there)
    return Tracks(numbers[at], placed.cpu().numpy()[there], score.cpu().numpy()[track], track)


def no_tracks() -> Tracks:
    """Give tracks of nothing."""
    none = np.zeros(0, np.int64)
    return Tracks(none, np.zeros((0, 4), np.float32), np.zeros(0, np.float32), none)
