"""Numbers of pairs of videos without each recording: what jackknife intervals are computed from.

Shapes: N videos, D features, G recordings, C classes.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.analysis.class_distances import distances_from_sums, sums_of_classes

_CHUNK = 1024  # rows whose similarities to all others are in memory


def without_recordings(x: Tensor, label: Tensor, groups: NDArray[np.int64], classes: int) -> dict[str, list[float]]:
    """Compute numbers of features (N, D) without each recording: of each a list of G, nan where they are undefined.

    They are those of `analyze uniformity`: `uniformity`, and `distance_within` and `distance_between`, the mean squared
    distances within classes and between them.
    """
    members = [torch.from_numpy(np.flatnonzero(groups == group)) for group in np.unique(groups)]
    within, between = [], []
    whole = sums_of_classes(x, label, classes)
    for rows in members:
        left = [a - b for a, b in zip(whole, sums_of_classes(x[rows], label[rows], classes), strict=True)]
        there = left[0] > 0
        distances = distances_from_sums(*left)[there][:, there]
        off = ~torch.eye(len(distances), dtype=torch.bool)
        within.append(distances.diagonal().nanmean().item())
        between.append(distances[off].mean().item())
    return {
        "uniformity": _uniformity_without(functional.normalize(x.float(), dim=1), members),
        "distance_within": within,
        "distance_between": between,
    }


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
