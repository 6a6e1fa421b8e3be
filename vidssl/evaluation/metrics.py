"""Numbers of features: nearest neighbours, recall, accuracy, uniformity. All on plain tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from vidssl.errors import DataError
from vidssl.types import Features


@dataclass(frozen=True)
class Neighbours:
    """The nearest gallery rows of each query, nearest first."""

    index: Tensor  # (Q, k) int64, rows of the gallery
    similarity: Tensor  # (Q, k) cosine; -inf where there was nothing left


def nearest(
    query: Tensor, gallery: Tensor, k: int, exclude: Tensor | None = None, chunk: int = 512
) -> Neighbours:
    """Search exactly by cosine; equal similarities are ordered by gallery row.

    Args:
        query: (Q, D).
        gallery: (G, D).
        k: At most this many; fewer where the gallery is smaller.
        exclude: (Q,) int64, the gallery row of the very same video, -1 where there is none.
        chunk: Queries at a time.

    Raises:
        DataError: A feature is not finite.
    """
    for name, x in (("query", query), ("gallery", gallery)):
        if not bool(torch.isfinite(x).all()):
            raise DataError(f"a {name} feature is not finite: the network or its input is broken")
    k = min(k, len(gallery))
    columns = functional.normalize(gallery.float(), dim=1).T
    indices, similarities = [], []
    for start in range(0, len(query), chunk):
        similarity = functional.normalize(query[start : start + chunk].float(), dim=1) @ columns
        if exclude is not None:
            rows = (exclude[start : start + chunk] >= 0).nonzero()[:, 0]
            similarity[rows, exclude[start : start + chunk][rows]] = -torch.inf
        values, order = torch.sort(similarity, dim=1, descending=True, stable=True)
        indices.append(order[:, :k])
        similarities.append(values[:, :k])
    return Neighbours(torch.cat(indices), torch.cat(similarities))


def recall(neighbours: Neighbours, query: Features, gallery: Features, ks: Sequence[int]) -> dict[str, float]:
    """R@k: the share of queries with a video of their class among the k nearest."""
    hit = (gallery.label[neighbours.index] == query.label[:, None]) & torch.isfinite(neighbours.similarity)
    return {f"R@{k}": hit[:, :k].any(dim=1).float().mean().item() for k in ks}


def knn_accuracy(
    neighbours: Neighbours, query: Features, gallery: Features, k: int, temperature: float = 0.07
) -> float:
    """Accuracy of a vote of the k nearest, each with weight exp(similarity / temperature) (Wu et al., 2018)."""
    labels = gallery.label[neighbours.index[:, :k]]
    # The largest weight is 1: nothing overflows, and the winner is the same.
    similarity = neighbours.similarity[:, :k]
    weights = torch.exp((similarity - similarity[:, :1]) / temperature)
    voters = torch.isfinite(similarity[:, 0])  # a query whose only neighbour is itself is never right
    votes = torch.zeros(len(labels), int(gallery.label.max()) + 1).scatter_add_(1, labels, weights)
    return ((votes.argmax(dim=1) == query.label) & voters).float().mean().item()


def chance(query: Features, gallery: Features) -> float:
    """R@1 that a random order of the gallery would be expected to reach."""
    counts = torch.bincount(gallery.label, minlength=int(query.label.max()) + 1)
    return (counts[query.label].float() / len(gallery.label)).mean().item()


def uniformity(x: Tensor, t: float = 2.0) -> float:
    """Log of the mean Gaussian potential of all pairs of unit rows (N, D): lower is more uniform, 0 is collapse.

    Wang and Isola, 2020, with t = 2.
    """
    return torch.pdist(functional.normalize(x.float(), dim=1)).pow(2).mul(-t).exp().mean().log().item()
