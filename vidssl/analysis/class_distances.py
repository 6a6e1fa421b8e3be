"""Distances of features between classes and within a class."""

import torch
from torch import Tensor
from torch.nn import functional


def class_distances(x: Tensor, label: Tensor, classes: int) -> Tensor:
    """Mean squared distances (C, C) of unit features (N, D) of two classes, of those within a class on the diagonal.

    `E |f(x0) - f(x1)|²` (Zhong et al., 2022, section A.2) with x0 and x1 independent: within a class the mean is over
    pairs of different videos. Rows are scaled to unit length, so 0 is equal and 2 orthogonal. nan for a class without
    videos, and within a class of one.
    """
    return distances_from_sums(*sums_of_classes(x, label, classes))


def sums_of_classes(x: Tensor, label: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sum unit features over the videos of each class: their count (C,), sum (C, D) and squared lengths (C,)."""
    unit = functional.normalize(x.double(), dim=1)
    member = functional.one_hot(label, classes).double()  # (N, C)
    return member.sum(dim=0), member.T @ unit, member.T @ unit.pow(2).sum(dim=1)


def distances_from_sums(count: Tensor, total: Tensor, squares: Tensor) -> Tensor:
    """Compute the distances of `class_distances` from `sums_of_classes`."""
    mean = total / count[:, None]
    power = squares / count  # mean squared length: 1, but for features that are all zero
    found = power[:, None] + power - 2 * mean @ mean.T
    within = 2 * count / (count - 1) * (power - mean.pow(2).sum(dim=1))  # without the pairs of a video with itself
    diagonal = range(len(count))
    found[diagonal, diagonal] = torch.where(count > 1, within, torch.nan)
    return torch.where(found.isnan(), found, found.clamp(min=0))
