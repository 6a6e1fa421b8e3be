"""Protocols that fit a linear SVM on frozen features, as InterCLR does: on all labels, or on few of them."""

from concurrent.futures import ThreadPoolExecutor
from statistics import mean, stdev
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from vidssl.config import Settings
from vidssl.errors import DataError
from vidssl.evaluation.metrics import accuracy
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured, accuracies
from vidssl.evaluation.search import check_finite
from vidssl.randomness import generator
from vidssl.types import Features

_FIT_MEMORY = 4 << 30  # bytes of SVM fits that run at a time


class _SvmSettings(Settings):
    costs: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(0.01, 0.1, 1.0, 10.0, 100.0), min_length=1)
    folds: int = Field(default=3, ge=2)  # of the cross-validation
    seed: int = Field(default=0, ge=0)  # of the folds, and of the draws of `lowshot`


@PROTOCOLS.register("svm")
class LinearSVM(EvaluationProtocol):
    """Accuracy of one-against-rest linear SVMs on frozen features of unit length.

    The cost is chosen by cross-validation on the training list; of equally good ones the smallest.
    """

    learns: ClassVar[bool] = True

    class Config(_SvmSettings):
        """Settings of the protocol."""

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `svm` and `svm_mean_class`; `details` hold the cost and the cross-validation accuracy of each."""
        self.check(gallery.label)
        x, queries = _unit("gallery", gallery.x), _unit("query", query.x)
        label = gallery.label.numpy()
        cost, scores = _choose_cost(x, label, self.config, self.config.folds)
        predicted = _predict(x, label, cost, queries)
        details = {"cost": cost, "cross_validation": {str(c): score for c, score in scores.items()}}
        return Measured(accuracies("svm", predicted, query.label), predicted, details)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the folds."""
        needed = self.config.folds if len(self.config.costs) > 1 else 1
        _check_classes("svm", label, needed, "lower folds, give one cost")


@PROTOCOLS.register("lowshot")
class LowShot(EvaluationProtocol):
    """Accuracy of a linear SVM trained on k videos of each class, over several draws.

    The cost of each draw is chosen by cross-validation on its own videos, with k folds if k is less than `folds`.
    With one video per class there is nothing to validate on: the middle one of `costs` is used. A draw of more videos
    contains the draw of fewer. A k that exceeds the smallest class is skipped, and the details list it.
    """

    learns: ClassVar[bool] = True

    class Config(_SvmSettings):
        """The shots are those of Goyal et al. (2019), whose protocol InterCLR follows."""

        shots: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2, 4, 8, 16, 32, 64, 96), min_length=1)
        draws: int = Field(default=5, ge=2)

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `lowshot@k`, the mean over draws, and `lowshot@k_spread`, their standard deviation."""
        self.check(gallery.label)
        x, queries, label = _unit("gallery", gallery.x), _unit("query", query.x), gallery.label.numpy()
        own = {number: np.flatnonzero(label == number) for number in np.unique(label).tolist()}  # rows of each class
        smallest = min(map(len, own.values()))
        numbers: dict[str, float] = {}
        costs: dict[str, list[float]] = {}
        for k in (k for k in self.config.shots if k <= smallest):
            found = []
            for draw in range(self.config.draws):
                drawn = [generator(self.config.seed, draw, n).permutation(rows)[:k] for n, rows in own.items()]
                rows = np.concatenate(drawn)
                cost, _ = _choose_cost(x[rows], label[rows], self.config, min(k, self.config.folds))
                found.append(accuracy(_predict(x[rows], label[rows], cost, queries), query.label))
                costs.setdefault(str(k), []).append(cost)
            numbers |= {f"lowshot@{k}": mean(found), f"lowshot@{k}_spread": stdev(found)}
        details: dict[str, Any] = {"costs": costs} if len(self.config.costs) > 1 else {}
        skipped = [k for k in self.config.shots if k > smallest]
        if skipped:
            details |= {"left_out": skipped, "videos_of_the_smallest_class": smallest}
        return Measured(numbers, details=details)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the fewest shots."""
        _check_classes("lowshot", label, min(self.config.shots), "lower shots")


def _check_classes(name: str, label: Tensor, needed: int, remedy: str) -> None:
    counts = np.unique(label.numpy(), return_counts=True)[1]
    if len(counts) < 2 or counts.min() < needed:
        raise DataError(
            f"protocol {name} needs at least 2 classes of at least {needed} training videos, and there are "
            f"{len(counts)}, the smallest of {counts.min()}: {remedy}, or add videos"
        )


def _unit(name: str, x: Tensor) -> np.ndarray:
    check_finite(name, x)
    return functional.normalize(x.double(), dim=1).numpy()


def _choose_cost(
    x: np.ndarray, label: np.ndarray, config: _SvmSettings, folds: int
) -> tuple[float, dict[float, float]]:
    """Return the smallest cost of the highest cross-validation accuracy, and all accuracies.

    A single cost is not scored. With fewer than two folds the middle cost is chosen.
    """
    costs = sorted(set(config.costs))
    if len(costs) == 1 or folds < 2:
        return costs[len(costs) // 2], {}
    from sklearn.model_selection import StratifiedKFold

    parts = list(StratifiedKFold(folds, shuffle=True, random_state=config.seed).split(x, label))

    def count_right(cost: float, train: np.ndarray, test: np.ndarray) -> int:
        return int((_predict(x[train], label[train], cost, x[test]).numpy() == label[test]).sum())

    # Each fit holds its rows in float64, and again as nodes of 16 bytes in liblinear.
    threads = max(1, min(torch.get_num_threads(), _FIT_MEMORY // (24 * x.size)))
    if min(len(train) for train, _ in parts) < x.shape[1]:
        threads = 1  # the dual solver of liblinear uses one random generator per process
    with ThreadPoolExecutor(threads) as pool:
        jobs = {cost: [pool.submit(count_right, cost, *part) for part in parts] for cost in costs}
        scores = {cost: sum(job.result() for job in jobs[cost]) / len(label) for cost in costs}
    return max(costs, key=lambda cost: scores[cost]), scores


def _predict(x: np.ndarray, label: np.ndarray, cost: float, queries: np.ndarray) -> Tensor:
    """Fit a linear SVM on unit features and predict the classes (Q,) of others."""
    from sklearn.svm import LinearSVC

    # "auto" solves the primal problem unless there are fewer rows than features: the dual solver converges slowly on
    # many rows of overlapping classes.
    machine = LinearSVC(C=cost, dual="auto", max_iter=20_000, random_state=0).fit(x, label)
    return torch.from_numpy(machine.predict(queries))
