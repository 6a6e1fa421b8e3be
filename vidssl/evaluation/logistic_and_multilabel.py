"""Protocols with linear classifiers on frozen features: logistic regression and SVMs, of one or several labels."""

import logging
from math import isnan
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from vidssl.base.config import Settings
from vidssl.base.errors import DataError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.types import Features
from vidssl.data.video_list import VideoList
from vidssl.evaluation import metrics
from vidssl.evaluation.protocols import (
    PROTOCOLS,
    EvaluationProtocol,
    Measured,
    accuracies,
    check_class_sizes,
    choose_cost,
    of_many_classes,
    stratified_folds,
    unit_rows,
)
from vidssl.evaluation.search import check_finite

if TYPE_CHECKING:
    from sklearn.svm import LinearSVC

_log = logging.getLogger(__name__)
_Rows = NDArray[Any]
_Costs = tuple[Annotated[float, Field(gt=0)], ...]


@PROTOCOLS.register("logistic")
class Logistic(EvaluationProtocol):
    """Accuracy of L2-regularised multinomial logistic regression, as SCE's transfer (Table 9; Ericsson et al., 2021).

    The cost, the inverse of the regularisation, is chosen by cross-validation on the gallery.
    """

    learns: ClassVar[bool] = True

    class Config(Settings):
        # The published protocol has 45 costs, evenly spaced in their logarithm from 1e-6 to 1e5.
        costs: _Costs = Field(default=tuple(10.0**n for n in range(-6, 6)), min_length=1)
        folds: int = Field(default=3, ge=2)  # of the cross-validation
        seed: int = Field(default=0, ge=0)  # of the folds
        iterations: int = Field(default=5000, ge=1)  # maximum of L-BFGS

    @of_many_classes()
    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `logistic` and `logistic_mean_class`; `details` hold the cost and the cross-validation accuracies."""
        from sklearn.linear_model import LogisticRegression

        self.check(gallery.label)
        for name, features in (("gallery", gallery), ("query", query)):
            check_finite(name, features.x)
        x, label = gallery.x.double().numpy(), gallery.label.numpy()
        model = LogisticRegression(max_iter=self.config.iterations)
        folds = stratified_folds(self.config.folds, self.config.seed)
        cost, scores = choose_cost(model, x, label, self.config.costs, folds)
        details: dict[str, Any] = {"cost": cost}
        if scores:
            details["cross_validation"] = {str(c): score for c, score in scores.items()}
        predicted = torch.from_numpy(model.set_params(C=cost).fit(x, label).predict(query.x.double().numpy()))
        return Measured(accuracies("logistic", predicted, query.label), predicted, details)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the folds."""
        check_class_sizes(
            "logistic", label, self.config.folds if len(self.config.costs) > 1 else 1, "lower folds, give one cost"
        )


class _SeveralSettings(Settings):
    # Goyal et al. (2019) choose from 2^-19 to 2^-4 and 10^-7 to 10^2.
    costs: _Costs = Field(default=(0.001, 0.01, 0.1, 1.0, 10.0, 100.0), min_length=1)
    folds: int = Field(default=3, ge=2)  # of the cross-validation, by average precision
    interpolation: metrics.Interpolation = "area"  # of the average precision; VOC2007's own is 11-point
    seed: int = Field(default=0, ge=0)  # of the folds, and of the draws of `multilabel_lowshot`


class _Several(EvaluationProtocol):
    """Learns from lists with several labels a row."""

    learns: ClassVar[bool] = True
    several: ClassVar[bool] = True
    name: ClassVar[str]

    def check_lists(self, gallery: VideoList, query: VideoList) -> None:
        """Check that each class has a tested video: else its average precision is undefined."""
        assert query.targets is not None
        if empty := [query.class_name(n) for n in np.flatnonzero(~(query.targets == 1).any(axis=0)).tolist()]:
            raise DataError(
                f"protocol {self.name} is undefined: {query.path} has no video of {len(empty)} "
                f"class{'es' * (len(empty) > 1)}, {first_few(empty)}; add videos, or leave these classes out of both "
                "lists"
            )


@PROTOCOLS.register("multilabel_svm")
class MultilabelSVM(_Several):
    """Mean average precision of one linear SVM a class on unit features, as on VOC07 (Goyal et al., 2019; InterCLR).

    Videos that are not counted for a class neither train nor test its SVM. The cost of each class is chosen by
    cross-validation.
    """

    name: ClassVar[str] = "multilabel_svm"

    class Config(_SeveralSettings):
        """Settings of the protocol."""

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return the mean over classes, by `name`; `details` hold the precision and the cost of each class."""
        assert gallery.targets is not None and query.targets is not None
        self.check(gallery.targets)
        undefined = _undefined(self.name, query)
        x, queries = self.rows("gallery", gallery.x), self.rows("query", query.x)
        precisions, costs = [], []
        classes = [*zip(gallery.targets.numpy().T, query.targets.numpy().T, strict=True)]
        for target, tested in progress(classes, title=self.name, unit="label", leave=False):
            known = target >= 0
            precision, cost = _precision(
                x[known], target[known] == 1, queries, tested, self.config, self.config.folds, self.model()
            )
            precisions.append(precision)
            costs.append(cost)
        details = {"average_precision": [None if isnan(value) else value for value in precisions], "costs": costs}
        number = mean(value for value in precisions if not isnan(value))
        return Measured({self.name: number}, details={**details, **undefined})

    def check(self, label: Tensor) -> None:
        """Check that each class has enough videos with and without it; `label` are the targets (N, classes)."""
        _check_targets(self.name, label, self.config.folds)

    def rows(self, name: str, x: Tensor) -> _Rows:
        """Return the features as they are classified, here of unit length."""
        return unit_rows(name, x)

    def model(self) -> Any:
        """Return the classifier of a class."""
        return _svm()


@PROTOCOLS.register("multilabel_logistic")
class MultilabelLogistic(MultilabelSVM):
    """The same by L2-regularised logistic regression on features of any length, as SCE's transfer to VOC2007."""

    name: ClassVar[str] = "multilabel_logistic"

    class Config(_SeveralSettings):
        costs: _Costs = Field(default=tuple(10.0**n for n in range(-6, 6)), min_length=1)  # as those of `logistic`
        iterations: int = Field(default=5000, ge=1)  # maximum of L-BFGS

    config: Config

    def rows(self, name: str, x: Tensor) -> _Rows:
        """Return the features, float64."""
        check_finite(name, x)
        return x.double().numpy()

    def model(self) -> Any:
        """Return the classifier of a class."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(max_iter=self.config.iterations)


@PROTOCOLS.register("multilabel_lowshot")
class MultilabelLowShot(_Several):
    """The same with k videos of each class and k (classes - 1) others, over several draws (Goyal et al., 2019)."""

    name: ClassVar[str] = "multilabel_lowshot"

    class Config(_SeveralSettings):
        shots: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2, 4, 8, 16, 32, 64, 96), min_length=1)
        draws: int = Field(default=5, ge=2)

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `multilabel_lowshot@k`, the mean over draws, and `multilabel_lowshot@k_spread`."""
        assert gallery.targets is not None and query.targets is not None
        self.check(gallery.targets)
        undefined = _undefined(self.name, query)
        x, queries = unit_rows("gallery", gallery.x), unit_rows("query", query.x)
        targets, tested = gallery.targets.numpy().T, query.targets.numpy().T
        smallest = int((targets == 1).sum(axis=1).min())
        numbers: dict[str, float] = {}
        for k in [k for k in self.config.shots if k <= smallest]:
            draws = progress(range(self.config.draws), title=f"{k} images a class", unit="draw", leave=False)
            precisions = [self._of_draw(x, targets, queries, tested, k, draw) for draw in draws]
            numbers |= {f"{self.name}@{k}": mean(precisions), f"{self.name}@{k}_spread": stdev(precisions)}
        skipped = [k for k in self.config.shots if k > smallest]
        details = {"left_out": skipped, "videos_of_the_smallest_class": smallest} if skipped else {}
        return Measured(numbers, details={**details, **undefined})

    def _of_draw(self, x: _Rows, targets: _Rows, queries: _Rows, tested: _Rows, k: int, draw: int) -> float:
        precisions = []
        for n, (target, tested_target) in enumerate(zip(targets, tested, strict=True)):
            rows = []
            for value, count in ((1, k), (0, k * (len(targets) - 1))):
                source = generator(self.config.seed, draw, n, value)
                rows += source.permutation(np.flatnonzero(target == value))[:count].tolist()
            folds = min(k, self.config.folds)
            precision, _ = _precision(x[rows], target[rows] == 1, queries, tested_target, self.config, folds, _svm())
            precisions.append(precision)
        return mean(value for value in precisions if not isnan(value))

    def check(self, label: Tensor) -> None:
        """Check that each class has enough videos for the fewest shots; `label` are the targets (N, classes)."""
        _check_targets(self.name, label, min(self.config.shots))


def _check_targets(name: str, targets: Tensor, needed: int) -> None:
    fewest = min(int((targets == value).sum(dim=0).min()) for value in (0, 1))
    if fewest < needed:
        raise DataError(
            f"protocol {name} needs at least {needed} training videos with each class and without it, and there are "
            f"{fewest} for one: add videos, or lower folds or shots"
        )


def _undefined(name: str, query: Features) -> dict[str, list[str]]:
    """Return the classes whose tested videos could not be read, with a warning: they are not in the mean."""
    assert query.targets is not None
    rows = (~(query.targets == 1).any(dim=0)).nonzero()[:, 0].tolist()
    if not rows:
        return {}
    names = [query.classes[n] if n < len(query.classes) else str(n) for n in rows]
    if len(rows) == query.targets.shape[1]:
        raise DataError(f"protocol {name} is undefined: no video of any class could be read")
    _log.warning("%s: no video of %s could be read: the mean is over the other classes", name, first_few(names))
    return {"undefined": names}


def _svm() -> "LinearSVC":
    from sklearn.svm import LinearSVC

    # Goyal et al. weigh videos of the class twice.
    return LinearSVC(class_weight={True: 2.0, False: 1.0}, dual="auto", max_iter=20_000, random_state=0)


def _precision(
    x: _Rows, present: _Rows, queries: _Rows, tested: _Rows, config: _SeveralSettings, folds: int, model: Any
) -> tuple[float, float]:
    """Fit a classifier; return its average precision on the queries that count, and its cost.

    The cost is the smallest one of the highest average precision in cross-validation.
    """

    def precision(fitted: Any, rows: _Rows, label: _Rows) -> float:
        scores = torch.from_numpy(fitted.decision_function(rows))
        return metrics.average_precision(scores, torch.from_numpy(label), config.interpolation)

    cost, _ = choose_cost(model, x, present, config.costs, stratified_folds(folds, config.seed), scoring=precision)
    known = tested >= 0
    return precision(model.set_params(C=cost).fit(x, present), queries[known], tested[known] == 1), cost
