"""Protocols: what features of a gallery, or training set, say about those of queries. None trains a network."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from pydantic import Field
from torch import Tensor

from vidssl.config import Settings
from vidssl.data.records import VideoList
from vidssl.evaluation.metrics import Neighbours, chance, knn_accuracy, nearest, recall, uniformity
from vidssl.registry import Registry
from vidssl.types import Features


class EvaluationProtocol(Protocol):
    """Measures features against features; configured by its nested `Config`."""

    def __init__(self, config: Any) -> None: ...

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Mapping[str, float]:
        """Give named numbers; `exclude` (Q,) is each query's own row in the gallery, -1 where it is not there."""
        ...


PROTOCOLS: Registry[type[EvaluationProtocol]] = Registry("protocol", "vidssl.evaluation")


def own_rows(gallery: VideoList, query: VideoList) -> Tensor:
    """Find each query in the gallery: (Q,) rows, -1 where it is not there. A video must not find itself."""
    rows = {(r.path, r.start, r.end): n for n, r in enumerate(gallery.records)}
    return torch.tensor([rows.get((r.path, r.start, r.end), -1) for r in query.records])


@PROTOCOLS.register("retrieval")
class Retrieval:
    """R@k by cosine: the share of queries with a video of their class among the k nearest of the gallery.

    Plain cosine; with `center` the mean of the gallery is taken from the gallery and the mean of the queries
    from the queries first, as the authors' code of SCE and CoCLR does.
    """

    class Config(Settings):
        """Settings of the protocol."""

        ks: tuple[int, ...] = (1, 5, 10, 20)
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
