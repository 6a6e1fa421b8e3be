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

    A row of zeros has no direction: its similarity to everything is 0.

    Args:
        query: (Q, D).
        gallery: (G, D).
        k: At most this many; fewer where the gallery is smaller.
        exclude: (P, 2) int64 pairs of a query row and a gallery row that it must not find.
        chunk: Queries at a time.

    Raises:
        DataError: A feature is not finite.
    """
    for name, x in (("query", query), ("gallery", gallery)):
        _check_finite(name, x)
    k = min(k, len(gallery))
    columns = _unit(gallery).T
    indices, similarities = [], []
    for start in range(0, len(query), chunk):
        similarity = (_unit(query[start : start + chunk]) @ columns).float()
        if exclude is not None:
            row, column = exclude[(exclude[:, 0] >= start) & (exclude[:, 0] < start + chunk)].T
            similarity[row - start, column] = -torch.inf
        values, order = torch.sort(similarity, dim=1, descending=True, stable=True)
        indices.append(order[:, :k])
        similarities.append(values[:, :k])
    return Neighbours(torch.cat(indices), torch.cat(similarities))


def _unit(x: Tensor) -> Tensor:
    # In float64: the product of equal rows differs in float32's last bit from one place to another, and ties
    # would be broken by that. Rounded to float32 afterwards they are equal.
    return functional.normalize(x.double(), dim=1)


def _check_finite(name: str, x: Tensor) -> None:
    finite = torch.isfinite(x).all(dim=1)
    if not bool(finite.all()):
        row = int(finite.logical_not().nonzero()[0])
        raise DataError(
            f"a {name} feature is not finite (row {row} of {len(x)}): the network or its input is broken"
        )


def recall(neighbours: Neighbours, query: Features, gallery: Features, ks: Sequence[int]) -> dict[str, float]:
    """R@k: the share of queries with a video of their class among the k nearest."""
    hit = (gallery.label[neighbours.index] == query.label[:, None]) & torch.isfinite(neighbours.similarity)
    return {f"R@{k}": hit[:, :k].any(dim=1).float().mean().item() for k in ks}


def knn_accuracy(
    neighbours: Neighbours, query: Features, gallery: Features, k: int, temperature: float = 0.07
) -> float:
    """Accuracy of a vote of the k nearest, each with weight exp(similarity / temperature) (Wu et al., 2018).

    Equal votes go to the smaller label.
    """
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

    Wang and Isola, 2020, with t = 2. A row of zeros stays one: it is no unit vector, and lies 1 from all that
    are. Of fewer than two rows there is no pair: nan.

    Raises:
        DataError: A feature is not finite.
    """
    _check_finite("gallery", x)
    return torch.pdist(functional.normalize(x.float(), dim=1)).pow(2).mul(-t).exp().mean().log().item()
