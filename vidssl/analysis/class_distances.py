"""Distances of features between classes and within a class, and these without each recording, for jackknife intervals.

Clips of one recording are alike whatever they show, and mostly of one class: with their pairs classes that are given to
recordings at random would look separated. Shapes: N videos, D features, G recordings, C classes.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_CHUNK = 1024  # rows whose similarities to all others are in memory


def class_distances(x: Tensor, label: Tensor, groups: NDArray[np.int64], classes: int) -> Tensor:
    """Mean squared distances (C, C) of unit features (N, D) of two classes, of those within a class on the diagonal.

    `E |f(x0) - f(x1)|²` (Zhong et al., 2022, section A.2) with x0 and x1 of different recordings, `groups` (N,). Rows
    are scaled to unit length, so 0 is equal and 2 orthogonal. nan where no two recordings have such a pair.
    """
    unit = functional.normalize(x.double(), dim=1)
    inside = sum(_pairs(*_sums(unit[rows], label[rows], classes)) for rows in _members(groups))
    return _distances(_pairs(*_sums(unit, label, classes)) - inside)


def without_recordings(x: Tensor, label: Tensor, groups: NDArray[np.int64], classes: int) -> dict[str, list[float]]:
    """Compute numbers of features (N, D) without each recording: of each a list of G, nan where they are undefined.

    They are those of `analyze uniformity`: `uniformity`, and `distance_within` and `distance_between`, the mean squared
    distances within classes and between them.
    """
    unit, members = functional.normalize(x.double(), dim=1), _members(groups)
    whole = _sums(unit, label, classes)
    inside = sum(_pairs(*_sums(unit[rows], label[rows], classes)) for rows in members)
    within, between = [], []
    for rows in members:
        own = _sums(unit[rows], label[rows], classes)
        others = _pairs(*(a - b for a, b in zip(whole, own, strict=True)))
        distances = _distances(others - (inside - _pairs(*own)))
        within.append(distances.diagonal().nanmean().item())
        between.append(distances[~torch.eye(classes, dtype=torch.bool)].nanmean().item())
    return {
        "uniformity": _uniformity_without(functional.normalize(x.float(), dim=1), members),
        "distance_within": within,
        "distance_between": between,
    }


def _members(groups: NDArray[np.int64]) -> list[Tensor]:
    return [torch.from_numpy(np.flatnonzero(groups == group)) for group in np.unique(groups)]


def _sums(unit: Tensor, label: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sum features over the videos of each class: their count (C,), sum (C, D) and squared lengths (C,)."""
    member = functional.one_hot(label, classes).double()  # (N, C)
    return member.sum(dim=0), member.T @ unit, member.T @ unit.pow(2).sum(dim=1)


def _pairs(count: Tensor, total: Tensor, squares: Tensor) -> Tensor:
    """Count the pairs of videos of two classes, each video with itself too, and sum their distances: (2, C, C)."""
    sums = count[:, None] * squares
    return torch.stack([count[:, None] * count, sums + sums.T - 2 * total @ total.T])


def _distances(pairs: Tensor) -> Tensor:
    count, total = pairs
    mean = (total / count).clamp(min=0).round(decimals=12)  # of equal features 0, not the rounding of the sums
    return torch.where(count > 0, mean, torch.nan)


def _uniformity_without(unit: Tensor, members: list[Tensor]) -> list[float]:
    total = len(unit)
    rows = torch.cat([_potential(part, unit).sum(dim=1) for part in torch.split(unit, _CHUNK)])  # each with itself: 1
    every, found = rows.sum().item(), []
    for group in members:
        left = total - len(group)
        potential = every - 2 * rows[group].sum().item() + _potential(unit[group], unit[group]).sum().item() - left
        found.append(-math.log(potential / (left * (left - 1))) if left > 1 else math.nan)
    return found


def _potential(x: Tensor, y: Tensor) -> Tensor:
    distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.pow(2).mul(-2).exp().double()
