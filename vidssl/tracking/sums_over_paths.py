"""Paths between the regions of consecutive frames: affinities, the sum over all paths, and the best path.

Shapes: T frames, R regions of a frame (a different number in each), D features of a region, S paths; boxes are xyxy.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

_ROWS = 600  # of a matrix product on a CPU, so that it stays in the cache


def affinities(features: Sequence[Tensor], boxes: Sequence[Tensor], center: bool, step: float | None) -> list[Tensor]:
    """Compare the regions of consecutive frames: max(0, cosine), Eq. (5).

    From T features (R, D) and boxes (R, 4) to T - 1 affinities (R of a frame, R of the next frame). With `center` the
    mean of all features is subtracted first: without it the cosine of any two regions is near 1. The affinity of
    regions of which an edge moves more than `step` pixels is 0.
    """
    unit = _unit(features, center)
    found = []
    for (here, there), (before, after) in zip(pairwise(unit), pairwise(boxes), strict=True):
        affinity = (here @ there.T).clamp(0, 1)
        if step is not None:
            affinity.masked_fill_(torch.cdist(before, after, p=math.inf) > step, 0)
        found.append(affinity)
    return found


def anchors(features: Sequence[Tensor], starts: Tensor, center: bool) -> list[Tensor]:
    """Compare regions (S,) of the first frame with those of each later frame: T - 1 tensors (S, R).

    The similarity is (1 + cosine) / 2, which is 0 at a cosine of -1 only: an object may change its appearance.
    """
    unit = _unit(features, center)
    return [(1 + unit[0][starts] @ each.T).clamp(0, 2) / 2 for each in unit[1:]]


def _unit(features: Sequence[Tensor], center: bool) -> list[Tensor]:
    middle = torch.cat(list(features)).mean(dim=0) if center else torch.zeros_like(features[0][0])
    return [F.normalize(each - middle, dim=1) for each in features]


class Sums(NamedTuple):
    """Products of affinities from every earlier frame to one frame; valid until the next one is yielded."""

    end: int  # j
    rows: Tensor  # (regions of frames 0 … j - 1, R_j), the largest value of each row 1, or all 0
    log_scale: Tensor  # of each row; -inf where no path is left
    first: list[int]  # row of the first region of each frame

    def pair(self, start: int) -> tuple[Tensor, Tensor]:
        """Return S of Eq. (4) between the regions of frame `start` and of this one: (R_i, R_j), log-scale (R_i,)."""
        rows = slice(self.first[start], self.first[start + 1])
        return self.rows[rows], self.log_scale[rows] - math.log(self.end - start)


def scaled_sums(affinity: Sequence[Tensor]) -> Iterator[Sums]:
    """Sum over all paths between the regions of every two frames, Eq. (4) and (5).

    The factors (j - i - 1) / (j - i) of the recursion telescope: S_ij = A_i A_(i+1) … A_(j-1) / (j - i). The product
    overflows float32 after some 15 frames of 300 regions, so each row carries the logarithm of its own scale. From
    T - 1 affinities (R_t, R_(t+1)) the sums that end in frame 1, 2, …, T - 1 are yielded; all start frames are advanced
    together, on a GPU by one matrix product.
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
