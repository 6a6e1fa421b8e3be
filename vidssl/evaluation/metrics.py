"""Metrics on plain tensors: recall, accuracy, calibration, uniformity."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from vidssl.base.types import Features
from vidssl.evaluation.search import Neighbours, check_finite

_OF_CLASSES = ("R@1", "top1", "knn", "svm", "logistic")  # accuracies of single answers
Interpolation = Literal["none", "area", "11-point"]


def recall(neighbours: Neighbours, query: Features, gallery: Features, ks: Sequence[int]) -> dict[str, float]:
    """R@k: the fraction of queries with a video of their class among the k nearest."""
    hits = recalled(neighbours, query, gallery, ks)
    return {name: hit.double().mean().item() for name, hit in hits.items()}


def recalled(neighbours: Neighbours, query: Features, gallery: Features, ks: Sequence[int]) -> dict[str, Tensor]:
    """Whether each query (Q,) has a video of its class among the k nearest, by `R@k`."""
    hit = (gallery.label[neighbours.index] == query.label[:, None]) & torch.isfinite(neighbours.similarity)
    return {f"R@{k}": hit[:, :k].any(dim=1) for k in ks}


def note_of_ranks(numbers: dict[str, int], gallery: int, unit: str = "videos") -> str | None:
    """Say which numbers, by name their k, are of more neighbours than a gallery has; None if none is."""
    beyond = [name for name, k in numbers.items() if k > gallery]
    return f"{', '.join(beyond)}: all {gallery} {unit} of the gallery, which are fewer than k" if beyond else None


def vote(
    neighbours: Neighbours, gallery: Features, k: int, temperature: float = 0.07, sizes: Tensor | None = None
) -> Tensor:
    """Predict classes (Q,) by a vote of the k nearest, weighted by exp(similarity / temperature) (Wu et al., 2018).

    Ties go to the smaller label. A query without neighbours has class -1. With `sizes` (Q, classes) the votes for a
    class are divided by its number of videos, so that large classes do not win by their size.
    """
    labels = gallery.label[neighbours.index[:, :k]]
    # Subtracting the largest similarity avoids overflow and does not change the winner.
    similarity = neighbours.similarity[:, :k]
    weights = torch.exp((similarity - similarity[:, :1]) / temperature)
    voters = torch.isfinite(similarity[:, 0])
    votes = torch.zeros(len(labels), int(gallery.label.max()) + 1).scatter_add_(1, labels, weights)
    if sizes is not None:
        votes /= sizes.clamp(min=1)
    return torch.where(voters, votes.argmax(dim=1), -1)


def chance(query: Features, gallery: Features, exclude: Tensor | None = None) -> float:
    """Expected R@1 of a random order of the gallery without the pairs `exclude`; nothing to find counts as wrong."""
    same = torch.bincount(gallery.label, minlength=int(query.label.max()) + 1)[query.label]
    there = torch.full_like(same, len(gallery.label))
    if exclude is not None:
        row, column = exclude.T
        there -= torch.bincount(row, minlength=len(there))
        same -= torch.bincount(row[query.label[row] == gallery.label[column]], minlength=len(same))
    return (same.double() / there.clamp(min=1)).mean().item()


def majority(label: Tensor) -> dict[str, float]:
    """Return what the most frequent class as the answer for all videos reaches; {} if a label (N,) is missing.

    `majority` is its fraction of the videos, `majority_mean_class` the mean of the per-class accuracies, 1 / classes.
    No answers that do not depend on the videos are expected to reach more.
    """
    counts = torch.unique(label, return_counts=True)[1]
    if not len(label) or label.min() < 0:
        return {}
    return {"majority": counts.max().item() / len(label), "majority_mean_class": 1 / len(counts)}


def level_of(name: str) -> str | None:
    """Return the number of `majority` that an accuracy is set beside, such as `knn` or `svm_mean_class`; None: none."""
    if name.endswith("_spread") or name.startswith("majority"):
        return None
    if name.endswith("mean_class"):
        return "majority_mean_class"
    return "majority" if name in _OF_CLASSES or name.startswith("lowshot@") else None


def top_k(scores: Tensor, label: Tensor, k: int) -> float:
    """Fraction of rows (N, C) whose `label` (N,) is among the k highest scores; ties go to the smaller class."""
    order = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k]
    return (order == label[:, None]).any(dim=1).double().mean().item()


def accuracy(predicted: Tensor, label: Tensor) -> float:
    """Fraction of videos (N,) whose class was predicted; -1 (no prediction) is wrong."""
    return (predicted == label).double().mean().item()


def mean_class_accuracy(predicted: Tensor, label: Tensor) -> float:
    """Mean of the per-class accuracies, over the classes that occur in `label` (N,)."""
    counts = torch.bincount(label)
    right = torch.bincount(label[predicted == label], minlength=len(counts))
    there = counts > 0
    return (right[there].double() / counts[there]).mean().item()


def confusion(predicted: Tensor, label: Tensor, classes: int) -> Tensor:
    """Confusion matrix (C, C + 1): rows are classes, columns predicted classes; the last column: no prediction."""
    column = torch.where(predicted < 0, classes, predicted)
    return torch.bincount(label * (classes + 1) + column, minlength=classes * (classes + 1)).view(classes, -1)


def calibration_error(probabilities: Tensor, label: Tensor, bins: int = 15) -> float:
    """Expected calibration error (Guo et al., 2017).

    Videos are binned by their highest probability (N, C) into `bins` intervals ](m - 1) / bins, m / bins]. The result
    is the mean of |accuracy - confidence| over the bins, weighted by their numbers of videos.
    """
    confidence, predicted = probabilities.double().max(dim=1)
    interval = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gap = (predicted == label).double() - confidence
    return torch.zeros(bins).double().scatter_add_(0, interval, gap).abs().sum().item() / len(label)


def average_precision(scores: Tensor, present: Tensor, interpolation: Interpolation = "area") -> float:
    """Average precision of a ranking by `scores` (N,) of videos of which some have the class, `present` (N,) bool.

    "none" is the mean precision at each video of the class. With "area" the precision at a recall is the highest at
    that recall or a higher one (VOC2010 and later); "11-point" is its mean at the recalls 0, 0.1, …, 1 (VOC2007).
    Equal scores are one step of the ranking. nan if no video has the class.
    """
    if not present.any():
        return math.nan
    scores, order = scores.double().sort(descending=True, stable=True)
    hit = present[order].double().cumsum(dim=0)
    last = torch.cat([scores[1:] != scores[:-1], torch.ones(1, dtype=torch.bool)])  # of each group of equal scores
    count = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    precision, recall = (hit / count)[last], (hit / hit[-1])[last]
    if interpolation != "none":
        precision = precision.flip(0).cummax(dim=0).values.flip(0)
    if interpolation == "11-point":
        at = torch.searchsorted(recall, torch.linspace(0, 1, 11, dtype=torch.float64) - 1e-12)
        return precision[at].mean().item()
    return (recall.diff(prepend=torch.zeros(1).double()) * precision).sum().item()


def uniformity_loss(x: Tensor, t: float = 2.0, chunk: int = 1024) -> float:
    """Log of the mean Gaussian potential of all pairs of unit rows (N, D): lower is more uniform, 0 is collapse.

    `log E exp(-t |x - y|²)` (Wang and Isola, 2020), nan with fewer than two rows. Others call its negative uniformity.
    """
    check_finite("gallery", x)
    unit = functional.normalize(x.float(), dim=1)
    if len(x) < 2:
        return torch.nan
    total = 0.0
    for start in range(0, len(x), chunk):  # all pairs at once need memory for N² numbers
        rows, later = unit[start : start + chunk], unit[start + chunk :]
        for distances in (torch.pdist(rows), torch.cdist(rows, later, compute_mode="donot_use_mm_for_euclid_dist")):
            total += distances.pow(2).mul(-t).exp().double().sum().item()
    return math.log(total / (len(x) * (len(x) - 1) / 2))
