"""Protocols: metrics of query features against gallery features. None of them trains a network."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from vidssl.config import Settings
from vidssl.evaluation import metrics
from vidssl.evaluation.search import check_finite, nearest
from vidssl.registry import Registry
from vidssl.types import Features


@dataclass(frozen=True)
class Measured:
    """The results of a protocol."""

    numbers: dict[str, float]  # names are unique over all protocols
    predicted: Tensor | None = None  # (Q,) int64 class of each query, -1: none; None: the protocol predicts no class
    details: dict[str, Any] = field(default_factory=dict)  # plain data, for example the cost that was chosen


class EvaluationProtocol:
    """Measures features against features; configured by its nested `Config`.

    The defaults are those of protocols that compare with a gallery and need labels on both sides.
    """

    Config: ClassVar[type[Settings]] = Settings
    probabilities: ClassVar[bool] = False  # `query.x` are the classifier's probabilities (Q, classes), not features
    gallery: ClassVar[bool] = True  # needs a gallery; without one it gets the queries
    learns: ClassVar[bool] = False  # from the gallery's labels: no query may be in the gallery
    labels: ClassVar[bool] = True  # needs labels

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, label: Tensor) -> None:
        """Raise a DataError if it cannot learn from the labels (N,) of a gallery, before features are extracted."""

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Measure; `exclude` (P, 2) are pairs of a query row and a gallery row that it must not find."""
        raise NotImplementedError


PROTOCOLS: Registry[type[EvaluationProtocol]] = Registry("protocol", "vidssl.evaluation")


@PROTOCOLS.register("accuracy")
class Accuracy(EvaluationProtocol):
    """Accuracy of the network's own classifier: class probabilities averaged over all clips and crops of a video."""

    probabilities: ClassVar[bool] = True
    gallery: ClassVar[bool] = False

    class Config(Settings):
        """Settings of the protocol."""

        bins: int = Field(default=15, ge=1)  # of the calibration error

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `top1`, `mean_class`, `ece` and, with more than five classes, `top5`."""
        check_finite("query", query.x)
        p, label = query.x, query.label
        predicted = torch.sort(p, dim=1, descending=True, stable=True).indices[:, 0]
        numbers = {f"top{k}": metrics.top_k(p, label, k) for k in (1, 5) if k == 1 or p.shape[1] > k}
        numbers["mean_class"] = metrics.mean_class_accuracy(predicted, label)
        numbers["ece"] = metrics.calibration_error(p, label, self.config.bins)
        return Measured(numbers, predicted)


@PROTOCOLS.register("retrieval")
class Retrieval(EvaluationProtocol):
    """R@k by cosine: the fraction of queries with a video of their class among the k nearest of the gallery.

    With `center` the mean of the gallery is subtracted from the gallery and the mean of the queries from the queries
    first, as in the authors' code of SCE and CoCLR.
    """

    class Config(Settings):
        """Settings of the protocol."""

        ks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 5, 10, 20, 50), min_length=1)
        center: bool = False

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `R@k` for each k and `chance`."""
        neighbours = nearest(query.x, gallery.x, max(self.config.ks), exclude, center=self.config.center)
        numbers = metrics.recall(neighbours, query, gallery, self.config.ks)
        return Measured({**numbers, "chance": metrics.chance(query, gallery, exclude)})


@PROTOCOLS.register("knn")
class KNN(EvaluationProtocol):
    """Accuracy of the weighted vote of the k nearest videos of the gallery (Wu et al., 2018)."""

    class Config(Settings):
        """Settings of the protocol."""

        k: int = Field(default=10, ge=1)
        temperature: float = Field(default=0.07, gt=0)

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `knn` and `knn_mean_class`."""
        neighbours = nearest(query.x, gallery.x, self.config.k, exclude)
        predicted = metrics.vote(neighbours, gallery, self.config.k, self.config.temperature)
        return Measured(accuracies("knn", predicted, query.label), predicted)


@PROTOCOLS.register("uniformity")
class Uniformity(EvaluationProtocol):
    """How evenly the gallery's features cover the sphere (Wang and Isola, 2020); needs no labels."""

    labels: ClassVar[bool] = False

    class Config(Settings):
        """Settings of the protocol."""

        rows: int = Field(default=20_000, ge=2)  # maximum; of more rows this many, evenly spaced, are used

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `uniformity_loss`: 0 is collapse, about -4 is uniform; `details` hold the rows used if not all."""
        count, used = len(gallery.x), min(len(gallery.x), self.config.rows)
        if count < 2:
            return Measured({}, details={"rows": count})  # no pairs
        chosen = torch.arange(used) * count // used
        loss = metrics.uniformity_loss(gallery.x[chosen])
        return Measured({"uniformity_loss": loss}, details={"rows": used} if used < count else {})


def accuracies(name: str, predicted: Tensor, label: Tensor) -> dict[str, float]:
    """Return the accuracy and the mean of the per-class accuracies of a protocol."""
    mean_class = metrics.mean_class_accuracy(predicted, label)
    return {name: metrics.accuracy(predicted, label), f"{name}_mean_class": mean_class}
