"""Protocols: what features of a gallery, or training set, say about those of queries. None trains a network."""

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

import torch
from pydantic import Field
from torch import Tensor

from vidssl.config import Settings
from vidssl.data.records import VideoList
from vidssl.evaluation.metrics import Neighbours, chance, knn_accuracy, nearest, recall, uniformity
from vidssl.registry import Registry
from vidssl.types import Features, VideoRecord


class EvaluationProtocol(Protocol):
    """Measures features against features; configured by its nested `Config`."""

    def __init__(self, config: Any) -> None: ...

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Mapping[str, float]:
        """Give named numbers; `exclude` (P, 2) are pairs of a query row and a gallery row that it must not find."""
        ...


PROTOCOLS: Registry[type[EvaluationProtocol]] = Registry("protocol", "vidssl.evaluation")


def own_rows(gallery: VideoList, query: VideoList) -> Tensor:
    """Find each query in the gallery: (P, 2) pairs of a query row and a gallery row. A video must not find itself.

    That is every span of the same path that shares time with the query's; other spans of the file do count.
    """
    rows: dict[str, list[int]] = {}
    for n, record in enumerate(gallery.records):
        rows.setdefault(record.path, []).append(n)
    pairs = [
        (n, row)
        for n, record in enumerate(query.records)
        for row in rows.get(record.path, ())
        if _share_time(record, gallery.records[row])
    ]
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def _share_time(one: VideoRecord, other: VideoRecord) -> bool:
    start = max(one.start or 0.0, other.start or 0.0)
    return all(record.end is None or start < record.end for record in (one, other))


@PROTOCOLS.register("retrieval")
class Retrieval:
    """R@k by cosine: the share of queries with a video of their class among the k nearest of the gallery.

    Plain cosine; with `center` the mean of the gallery is taken from the gallery and the mean of the queries
    from the queries first, as the authors' code of SCE and CoCLR does.
    """

    class Config(Settings):
        """Settings of the protocol."""

        ks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 5, 10, 20), min_length=1)
        center: bool = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> dict[str, float]:
        """Give `R@k` for each k and `chance`."""
        numbers = recall(self.search(gallery, query, exclude), query, gallery, self.config.ks)
        return {**numbers, "chance": chance(query, gallery)}

    def search(self, gallery: Features, query: Features, exclude: Tensor) -> Neighbours:
        """Find the neighbours that the numbers are about."""
        g, q = gallery.x, query.x
        if self.config.center:
            g, q = g - g.mean(dim=0), q - q.mean(dim=0)
        return nearest(q, g, max(self.config.ks), exclude)


@PROTOCOLS.register("knn")
class KNN:
    """Accuracy of the weighted vote of the k nearest videos of the gallery (Wu et al., 2018)."""

    class Config(Settings):
        """Settings of the protocol."""

        k: int = Field(default=10, ge=1)
        temperature: float = Field(default=0.07, gt=0)

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> dict[str, float]:
        """Give `knn`."""
        neighbours = nearest(query.x, gallery.x, self.config.k, exclude)
        return {"knn": knn_accuracy(neighbours, query, gallery, self.config.k, self.config.temperature)}


@PROTOCOLS.register("uniformity")
class Uniformity:
    """How evenly the gallery's features cover the sphere (Wang and Isola, 2020); needs no labels."""

    class Config(Settings):
        """There is nothing to set."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> dict[str, float]:
        """Give `uniformity`: 0 is collapse, about -4 is uniform."""
        return {"uniformity": uniformity(gallery.x)}
