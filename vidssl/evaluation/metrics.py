"""Numbers of features: recall, accuracy, uniformity. All on plain tensors."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from vidssl.evaluation.search import Neighbours, check_finite
from vidssl.types import Features


def recall(neighbours: Neighbours, query: Features, gallery: Features, ks: Sequence[int]) -> dict[str, float]:
    """R@k: the share of queries with a video of their class among the k nearest."""
    hit = (gallery.label[neighbours.index] == query.label[:, None]) & torch.isfinite(neighbours.similarity)
    return {f"R@{k}": hit[:, :k].any(dim=1).double().mean().item() for k in ks}


def vote(neighbours: Neighbours, gallery: Features, k: int, temperature: float = 0.07) -> Tensor:
    """Let the k nearest vote for a class, each with weight exp(similarity / temperature) (Wu et al., 2018).

    Equal votes go to the smaller label.

    Returns:
        (Q,) int64; -1 for a query that found nobody: its only neighbour is itself.
    """
    labels = gallery.label[neighbours.index[:, :k]]
    # The largest weight is 1: nothing overflows, and the winner is the same.
    similarity = neighbours.similarity[:, :k]
    weights = torch.exp((similarity - similarity[:, :1]) / temperature)
    voters = torch.isfinite(similarity[:, 0])
    votes = torch.zeros(len(labels), int(gallery.label.max()) + 1).scatter_add_(1, labels, weights)
    return torch.where(voters, votes.argmax(dim=1), -1)


def chance(query: Features, gallery: Features, exclude: Tensor | None = None) -> float:
    """R@1 that a random order of the gallery would be expected to reach.

    Args:
        query: Of which the labels count.
        gallery: Of which the labels count.
        exclude: (P, 2) int64 pairs of a query row and a gallery row that it must not find; one with nothing to find
            is never right.
    """
    same = torch.bincount(gallery.label, minlength=int(query.label.max()) + 1)[query.label]
    there = torch.full_like(same, len(gallery.label))
    if exclude is not None:
        row, column = exclude.T
        there -= torch.bincount(row, minlength=len(there))
        same -= torch.bincount(row[query.label[row] == gallery.label[column]], minlength=len(same))
    return (same.double() / there.clamp(min=1)).mean().item()


def top_k(scores: Tensor, label: Tensor, k: int) -> float:
    """Fraction of rows (N, C) whose `label` (N,) is among the k highest scores; ties go to the smaller class."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]
    return (order == label[:, None]).any(dim=1).double().mean().item()


def accuracy(predicted: Tensor, label: Tensor) -> float:
    """Fraction of videos (N,) whose class was predicted; -1, no prediction, is wrong."""
    return (predicted == label).double().mean().item()


def mean_class_accuracy(predicted: Tensor, label: Tensor) -> float:
    """Mean of the accuracies of each class, over the classes that occur in `label` (N,)."""
    counts = torch.bincount(label)
    right = torch.bincount(label[predicted == label], minlength=len(counts))
    there = counts > 0
    return (right[there].double() / counts[there]).mean().item()


def confusion(predicted: Tensor, label: Tensor, classes: int) -> Tensor:
    """Count videos by class (rows) and predicted class (columns): (C, C + 1); the last column is for no prediction."""
    column = torch.where(predicted < 0, classes, predicted)
    return torch.bincount(label * (classes + 1) + column, minlength=classes * (classes + 1)).view(classes, -1)


def calibration_error(probabilities: Tensor, label: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017): by how much confidence and accuracy differ.

    Videos are sorted into `bins` intervals ](m - 1) / bins, m / bins] of their highest probability; the result is the
    mean of |accuracy - confidence| over the intervals, weighted by how many videos each holds.

    Args:
        probabilities: (N, C), rows sum to 1.
        label: (N,).
        bins: Intervals of equal width.
    """
    confidence, predicted = probabilities.double().max(dim=1)
    interval = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = (predicted == label).double() - confidence
    return torch.zeros(bins).double().scatter_add_(0, interval, gap).abs().sum().item() / len(label)


def uniformity_loss(x: Tensor, t: float = 2.0, chunk: int = 1024) -> float:
    """Log of the mean Gaussian potential of all pairs of unit rows (N, D): lower is more uniform, 0 is collapse.

    `log E exp(-t |x - y|²)`, Wang and Isola, 2020, with t = 2. What other papers call uniformity is its negative.
    A row of zeros stays one: it is not a unit vector, and lies 1 from all that are. Fewer than two rows have no pair:
    nan.

    Raises:
        DataError: A feature is not finite.
    """
    check_finite("gallery", x)
    unit = functional.normalize(x.float(), dim=1)
    if len(x) < 2:
        return torch.nan
    total = 0.0
    for start in range(0, len(x), chunk):  # all pairs at once are as many as the square of the gallery
        rows = unit[start : start + chunk]
        total += torch.pdist(rows).pow(2).mul(-t).exp().double().sum().item()
        others = torch.cdist(rows, unit[start + chunk :], compute_mode="donot_use_mm_for_euclid_dist")
        total += others.pow(2).mul(-t).exp().double().sum().item()
    return math.log(total / (len(x) * (len(x) - 1) / 2))
