"""Protocols: what features of a gallery, or training set, say about those of queries. None trains a network."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from statistics import mean, stdev
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from vidssl.config import Settings
from vidssl.errors import DataError
from vidssl.evaluation.metrics import (
    accuracy,
    calibration_error,
    chance,
    mean_class_accuracy,
    recall,
    top_k,
    uniformity_loss,
    vote,
)
from vidssl.evaluation.search import Neighbours, check_finite, nearest
from vidssl.randomness import generator
from vidssl.registry import Registry
from vidssl.types import Features

_FIT_MEMORY = 4 << 30  # bytes of SVM fits that run at a time


@dataclass(frozen=True)
class Measured:
    """What a protocol found out.

    Attributes:
        numbers: By name; no two protocols share a name.
        predicted: (Q,) int64 class of each query, -1 where there is none; None: the protocol names no class.
        details: What else should be known of the numbers, as plain data: a cost that was chosen, say.
    """

    numbers: dict[str, float]
    predicted: Tensor | None = None
    details: dict[str, Any] = field(default_factory=dict)


class EvaluationProtocol(Protocol):
    """Measures features against features; configured by its nested `Config`."""

    config: Any
    # Reads the classifier's probabilities of the queries, (Q, classes), as their x.
    probabilities: ClassVar[bool]
    gallery: ClassVar[bool]  # needs one
    learns: ClassVar[bool]  # from the gallery's labels: no query may be in it
    labels: ClassVar[bool]  # needs them

    def __init__(self, config: Any) -> None: ...

    def check(self, label: Tensor) -> None:
        """See whether it can learn from labels (N,) of a gallery, before its features are taken.

        Raises:
            DataError: It cannot.
        """
        ...

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Measure.

        Args:
            gallery: Features of the training set; those of the queries where `gallery` is False.
            query: Features of the test set.
            exclude: (P, 2) pairs of a query row and a gallery row that it must not find.
        """
        ...


PROTOCOLS: Registry[type[EvaluationProtocol]] = Registry("protocol", "vidssl.evaluation")


class Compared:
    """What most protocols need: a gallery, and labels on both sides."""

    probabilities: ClassVar[bool] = False
    gallery: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    labels: ClassVar[bool] = True

    def check(self, label: Tensor) -> None:
        """Be content with any labels."""


@PROTOCOLS.register("accuracy")
class Accuracy(Compared):
    """Accuracy of the network's own classifier: class probabilities averaged over all clips and crops of a video."""

    probabilities: ClassVar[bool] = True
    gallery: ClassVar[bool] = False

    class Config(Settings):
        """Settings of the protocol."""

        bins: int = Field(default=15, ge=1)  # of the calibration error

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Give `top1`, `mean_class`, `ece` and, of more than five classes, `top5`."""
        check_finite("query", query.x)
        p, label = query.x, query.label
        predicted = torch.sort(p, dim=1, descending=True, stable=True).indices[:, 0]
        numbers = {"top1": top_k(p, label, 1)}
        if p.shape[1] > 5:
            numbers["top5"] = top_k(p, label, 5)
        numbers["mean_class"] = mean_class_accuracy(predicted, label)
        numbers["ece"] = calibration_error(p, label, self.config.bins)
        return Measured(numbers, predicted)


@PROTOCOLS.register("retrieval")
class Retrieval(Compared):
    """R@k by cosine: the share of queries with a video of their class among the k nearest of the gallery.

    Plain cosine; with `center` the mean of the gallery is taken from the gallery and the mean of the queries
    from the queries first, as the authors' code of SCE and CoCLR does.
    """

    class Config(Settings):
        """Settings of the protocol."""

        ks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 5, 10, 20, 50), min_length=1)
        center: bool = False

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Give `R@k` for each k and `chance`."""
        numbers = recall(self.search(gallery, query, exclude), query, gallery, self.config.ks)
        return Measured({**numbers, "chance": chance(query, gallery, exclude)})

    def search(self, gallery: Features, query: Features, exclude: Tensor) -> Neighbours:
        """Find the neighbours that the numbers are about."""
        return nearest(query.x, gallery.x, max(self.config.ks), exclude, center=self.config.center)


@PROTOCOLS.register("knn")
class KNN(Compared):
    """Accuracy of the weighted vote of the k nearest videos of the gallery (Wu et al., 2018)."""

    class Config(Settings):
        """Settings of the protocol."""

        k: int = Field(default=10, ge=1)
        temperature: float = Field(default=0.07, gt=0)

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Give `knn` and `knn_mean_class`."""
        neighbours = nearest(query.x, gallery.x, self.config.k, exclude)
        predicted = vote(neighbours, gallery, self.config.k, self.config.temperature)
        return Measured(_accuracies("knn", predicted, query.label), predicted)


class _SvmSettings(Settings):
    """The costs of a linear SVM, and how one of them is chosen."""

    costs: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        default=(0.01, 0.1, 1.0, 10.0, 100.0), min_length=1
    )
    folds: int = Field(default=3, ge=2)  # of the cross-validation
    seed: int = Field(default=0, ge=0)  # of the folds, and of the draws of `lowshot`


@PROTOCOLS.register("svm")
class LinearSVM(Compared):
    """Accuracy of one-against-rest linear SVMs on frozen features of unit length (as in InterCLR).

    Of several costs one is chosen by cross-validation on the training side alone; of equal ones the smallest.
    """

    learns: ClassVar[bool] = True

    class Config(_SvmSettings):
        """Settings of the protocol."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `svm` and `svm_mean_class`; the details hold the cost and the score of each."""
        self.check(gallery.label)
        _check_both_finite(gallery, query)
        x, label = _unit(gallery.x), gallery.label.numpy()
        cost, scores = _choose_cost(x, label, self.config, self.config.folds)
        predicted = _svm(x, label, cost)(query.x)
        numbers = _accuracies("svm", predicted, query.label)
        return Measured(
            numbers, predicted, {"cost": cost, "cross_validation": {str(c): s for c, s in scores.items()}}
        )

    def check(self, label: Tensor) -> None:
        """See whether there are two classes, and enough videos of each for the folds."""
        smallest = _check_classes("svm", label)
        if len(self.config.costs) > 1 and smallest < self.config.folds:
            raise DataError(
                f"protocol svm: a class has {smallest} training videos, and cross-validation with "
                f"{self.config.folds} folds needs as many; lower folds (to 2 at least), give one cost, or add videos"
            )


@PROTOCOLS.register("lowshot")
class LowShot(Compared):
    """Accuracy of a linear SVM trained on k videos of each class, over several draws (as in InterCLR).

    The cost of each draw is chosen by cross-validation on its own videos, with k folds where k is less than `folds`.
    One video of each class leaves nothing to validate on: for k = 1 the middle one of `costs` is taken. A draw with
    more videos holds those of the draws with fewer. A k that a class cannot fill is left out, and the details list it.
    """

    learns: ClassVar[bool] = True

    class Config(_SvmSettings):
        """The shots are those of Goyal et al. (2019), whose protocol InterCLR follows."""

        shots: tuple[Annotated[int, Field(ge=1)], ...] = Field(
            default=(1, 2, 4, 8, 16, 32, 64, 96), min_length=1
        )
        draws: int = Field(default=5, ge=2)

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `lowshot@k`, the mean over draws, and `lowshot@k_spread`, their standard deviation."""
        self.check(gallery.label)
        _check_both_finite(gallery, query)
        x, smallest = _unit(gallery.x), _check_classes("lowshot", gallery.label)
        numbers: dict[str, float] = {}
        chosen: dict[str, list[float]] = {}
        for k in (k for k in self.config.shots if k <= smallest):
            found, costs = [], []
            for draw in range(self.config.draws):
                rows = self._rows(gallery.label, draw, k)
                some, label = x[rows], gallery.label.numpy()[rows]
                cost, _ = _choose_cost(some, label, self.config, min(k, self.config.folds))
                found.append(accuracy(_svm(some, label, cost)(query.x), query.label))
                costs.append(cost)
            numbers |= {f"lowshot@{k}": mean(found), f"lowshot@{k}_spread": stdev(found)}
            chosen[str(k)] = costs
        left_out = [k for k in self.config.shots if k > smallest]
        why = {"left_out": left_out, "videos_of_the_smallest_class": smallest} if left_out else {}
        costs_of = {"costs": chosen} if len(self.config.costs) > 1 else {}
        return Measured(numbers, details={**costs_of, **why})

    def check(self, label: Tensor) -> None:
        """See whether there are two classes, and enough videos of each for the fewest shots."""
        smallest = _check_classes("lowshot", label)
        if min(self.config.shots) > smallest:
            raise DataError(
                f"protocol lowshot: a class has {smallest} training videos, and the fewest shots are "
                f"{min(self.config.shots)}; lower shots, or add videos"
            )

    def _rows(self, label: Tensor, draw: int, k: int) -> np.ndarray:
        """Draw k rows of each class."""
        chosen = []
        for number in sorted(set(label.tolist())):
            rows = (label == number).nonzero()[:, 0].numpy()
            chosen.append(generator(self.config.seed, draw, number).permutation(rows)[:k])
        return np.concatenate(chosen)


@PROTOCOLS.register("uniformity")
class Uniformity(Compared):
    """How evenly the gallery's features cover the sphere (Wang and Isola, 2020); needs no labels."""

    labels: ClassVar[bool] = False

    class Config(Settings):
        """Settings of the protocol."""

        rows: int = Field(default=20_000, ge=2)  # at most so many, evenly spaced: their pairs are compared

    def __init__(self, config: Config) -> None:
        self.config = config

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `uniformity_loss`: 0 is collapse, about -4 is uniform.

        Its negative is what other papers call uniformity. The details say where not all rows were compared.
        """
        count = len(gallery.x)
        if count < 2:
            return Measured({}, details={"rows": count})  # there is no pair
        if count <= self.config.rows:
            return Measured({"uniformity_loss": uniformity_loss(gallery.x)})
        chosen = torch.arange(self.config.rows) * count // self.config.rows
        return Measured(
            {"uniformity_loss": uniformity_loss(gallery.x[chosen])}, details={"rows": self.config.rows}
        )


def _accuracies(name: str, predicted: Tensor, label: Tensor) -> dict[str, float]:
    return {name: accuracy(predicted, label), f"{name}_mean_class": mean_class_accuracy(predicted, label)}


def _check_both_finite(gallery: Features, query: Features) -> None:
    check_finite("gallery", gallery.x)
    check_finite("query", query.x)


def _check_classes(name: str, label: Tensor) -> int:
    """See whether there are two classes, and give the number of videos of the smallest."""
    counts = torch.bincount(label)
    counts = counts[counts > 0]
    if len(counts) < 2:
        raise DataError(
            f"protocol {name}: all {len(label)} training videos are of one class: it needs two or more"
        )
    return int(counts.min())


def _unit(x: Tensor) -> np.ndarray:
    return functional.normalize(x.double(), dim=1).numpy()


def _choose_cost(
    x: np.ndarray, label: np.ndarray, config: _SvmSettings, folds: int
) -> tuple[float, dict[float, float]]:
    """Choose the cost with the highest accuracy over all folds, of equal ones the smallest; return all accuracies.

    A single cost is not scored. With fewer than two folds the middle cost is taken.
    """
    costs = sorted(set(config.costs))
    if len(costs) == 1 or folds < 2:
        return costs[len(costs) // 2], {}
    from sklearn.model_selection import StratifiedKFold

    parts = list(StratifiedKFold(folds, shuffle=True, random_state=config.seed).split(x, label))

    def count_right(job: tuple[float, tuple[np.ndarray, np.ndarray]]) -> int:
        cost, (learned, held) = job
        predicted = _svm(x[learned], label[learned], cost)(torch.from_numpy(x[held]))
        return int((predicted.numpy() == label[held]).sum())

    rows = min(len(learned) for learned, _ in parts)
    if rows < x.shape[1]:
        threads = 1  # liblinear's dual solver draws from one generator of the process
    else:
        # Each fit holds its rows in float64, and again as liblinear's nodes of 16 bytes.
        threads = max(1, min(torch.get_num_threads(), _FIT_MEMORY // (24 * x.size)))
    with ThreadPoolExecutor(threads) as pool:
        right = list(pool.map(count_right, product(costs, parts)))
    scores = {cost: sum(right[n * folds :][:folds]) / len(label) for n, cost in enumerate(costs)}
    return max(costs, key=lambda c: scores[c]), scores


def _svm(x: np.ndarray, label: np.ndarray, cost: float) -> Callable[[Tensor], Tensor]:
    """Fit a linear SVM and return a function that predicts the classes of features."""
    from sklearn.svm import LinearSVC

    # The dual problem where there are fewer rows than features: on many rows that overlap its solver hardly converges.
    machine = LinearSVC(C=cost, dual="auto", max_iter=20_000, random_state=0).fit(x, label)
    return lambda features: torch.from_numpy(machine.predict(_unit(features)))
