"""Protocols: metrics of query features against gallery features: kNN, linear classifiers. None trains a network."""

import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from statistics import mean, stdev
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.registry import Registry
from vidssl.base.types import Features
from vidssl.data.video_list import VideoList
from vidssl.evaluation import metrics
from vidssl.evaluation.search import check_finite, nearest

_log = logging.getLogger(__name__)
FitScore = Callable[[Any, Any, Any], float]  # of a fitted model, features and labels, as scikit-learn's scoring


@contextmanager
def of_many_classes() -> Iterator[None]:
    """Silence the warning of scikit-learn that labels of a few videos of many classes may be no classes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")
        yield


def stratified_folds(count: int, seed: int) -> Any:
    """Return scikit-learn's splitter into folds that all have videos of each class; None: one fold is none."""
    from sklearn.model_selection import StratifiedKFold

    return StratifiedKFold(count, shuffle=True, random_state=seed) if count > 1 else None


_SMALL = 2**22  # features (N, D), of fits


def choose_cost(
    model: Any,
    x: NDArray[Any],
    label: NDArray[Any],
    costs: Iterable[float],
    folds: Any,
    *,
    groups: NDArray[Any] | None = None,
    scoring: FitScore | None = None,
    pooled: bool = False,
    threads: int = 1,
) -> tuple[float, dict[float, float]]:
    """Return the cost of the highest score in cross-validation, the smallest of equal ones, and the score of each cost.

    A single cost is not validated. Without `folds`, a splitter of scikit-learn, it is the middle one, and also if no
    fold leaves two classes to train on.

    Args:
        model: Classifier with the parameter C.
        x: Features (N, D).
        label: Labels (N,).
        costs: The costs to choose from.
        folds: Splits rows, if there are `groups` (N,) by these.
        groups: See `folds`.
        scoring: By default the accuracy.
        pooled: All rows count alike, in place of all folds.
        threads: Fits at a time.
    """
    costs = sorted({*costs})
    if len(costs) == 1 or folds is None:
        return costs[len(costs) // 2], {}
    from joblib import parallel_config
    from sklearn.model_selection import GridSearchCV
    from threadpoolctl import threadpool_limits

    splits = [(train, test) for train, test in folds.split(x, label, groups) if len(np.unique(label[train])) > 1]
    if not splits:  # of few videos
        return costs[len(costs) // 2], {}
    search = GridSearchCV(model, {"C": costs}, cv=splits, scoring=scoring, refit=False, error_score="raise")
    # Threads of the products cost small fits more than they save: on two cores ten times.
    with parallel_config("threading", n_jobs=threads), threadpool_limits(1 if x.size < _SMALL else None):
        search.fit(x, label)
    of_folds = np.stack([search.cv_results_[f"split{n}_test_score"] for n in range(len(splits))])  # (folds, costs)
    sizes = [len(test) if pooled else 1 for _, test in splits]
    scores = dict(zip(costs, np.average(of_folds, axis=0, weights=sizes).tolist(), strict=True))
    return max(costs, key=scores.__getitem__), scores


@dataclass(frozen=True)
class Measured:
    """The results of a protocol."""

    numbers: dict[str, float]  # names are unique over all protocols
    predicted: Tensor | None = None  # (Q,) int64 class of each query, -1: none; None: the protocol predicts no class
    details: dict[str, Any] = field(default_factory=dict)  # plain data, for example the cost that was chosen
    # Of numbers that are means over the queries: the value (Q,) of each query, in [0, 1].
    per_video: dict[str, Tensor] = field(default_factory=dict, compare=False)


class EvaluationProtocol:
    """Measures features against features; configured by its nested `Config`."""

    Config: ClassVar[type[Settings]] = Settings
    probabilities: ClassVar[bool] = False  # `query.x` are the classifier's probabilities (Q, classes), not features
    gallery: ClassVar[bool] = True  # needs a gallery; without one it gets the queries
    learns: ClassVar[bool] = False  # from the gallery's labels: no query may be in the gallery
    labels: ClassVar[bool] = True  # needs labels
    maps: ClassVar[bool] = False  # needs the feature maps of a layer: features of several `cells`
    reverse: ClassVar[bool] = False  # needs the features of the reversed clips, in `reverse`
    several: ClassVar[bool] = False  # needs lists with several labels per row, in `targets`; `check` gets them too

    def __init__(self, config: Any) -> None:
        self.config = config

    def check(self, label: Tensor) -> None:
        """Raise a DataError if it cannot learn from the labels (N,) of a gallery, before features are extracted."""

    def check_lists(self, gallery: VideoList, query: VideoList) -> None:
        """Raise a DataError if it cannot measure these lists, before features are extracted."""

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Measure; `exclude` (P, 2) are pairs of a query row and a gallery row that it must not find."""
        raise ConfigError(f"protocol {type(self).__name__} has no __call__(gallery, query, exclude)")


PROTOCOLS: Registry[type[EvaluationProtocol]] = Registry("protocol", "vidssl.evaluation")


@PROTOCOLS.register("accuracy")
class Accuracy(EvaluationProtocol):
    """Accuracy of the network's own classifier: class probabilities averaged over all clips and crops of a video."""

    probabilities: ClassVar[bool] = True
    gallery: ClassVar[bool] = False

    class Config(Settings):
        bins: int = Field(default=15, ge=1)  # of the calibration error

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `top1`, `mean_class`, `ece` and, with more than five classes, `top5`."""
        check_finite("query", query.x)
        p, label = query.x, query.label
        predicted = torch.sort(p, dim=1, descending=True, stable=True).indices[:, 0]
        numbers = {f"top{k}": metrics.top_k(p, label, k) for k in (1, 5) if k == 1 or p.shape[1] > k}
        numbers["mean_class"] = metrics.mean_class_accuracy(predicted, label)
        numbers["ece"] = metrics.calibration_error(p, label, self.config.bins)
        return Measured(numbers, predicted, per_video={"top1": predicted == label})


@PROTOCOLS.register("retrieval")
class Retrieval(EvaluationProtocol):
    """R@k by cosine: the fraction of queries with a video of their class among the k nearest of the gallery.

    With `center` the means of gallery and queries are subtracted first, as in the authors' code of SCE and CoCLR.
    """

    class Config(Settings):
        ks: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 5, 10, 20, 50), min_length=1)
        center: bool = False

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `R@k` for each k and `chance`."""
        neighbours = nearest(query.x, gallery.x, max(self.config.ks), exclude, center=self.config.center)
        hits = metrics.recalled(neighbours, query, gallery, self.config.ks)
        numbers = {name: hit.double().mean().item() for name, hit in hits.items()}
        note = metrics.note_of_ranks({f"R@{k}": k for k in self.config.ks}, len(gallery.x))
        chance = metrics.chance(query, gallery, exclude)
        return Measured({**numbers, "chance": chance}, details={} if note is None else {"note": note}, per_video=hits)


@PROTOCOLS.register("knn")
class KNN(EvaluationProtocol):
    """Accuracy of the weighted vote of the k nearest videos of the gallery (Wu et al., 2018)."""

    class Config(Settings):
        k: int = Field(default=10, ge=1)
        temperature: float = Field(default=0.07, gt=0)

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `knn` and `knn_mean_class`."""
        neighbours = nearest(query.x, gallery.x, self.config.k, exclude)
        predicted = metrics.vote(neighbours, gallery, self.config.k, self.config.temperature)
        note = metrics.note_of_ranks({f"kNN of {self.config.k}": self.config.k}, len(gallery.x))
        details = {"note": note or f"knn: k = {self.config.k}"}
        right = {"knn": predicted == query.label}
        return Measured(accuracies("knn", predicted, query.label), predicted, details, right)


@PROTOCOLS.register("uniformity")
class Uniformity(EvaluationProtocol):
    """How evenly the gallery's features cover the sphere (Wang and Isola, 2020); needs no labels."""

    labels: ClassVar[bool] = False

    class Config(Settings):
        rows: int = Field(default=20_000, ge=2)  # maximum; of more rows this many, evenly spaced, are used

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `uniformity_loss`: 0 is collapse, about -4 is uniform; `details` hold the rows used if not all."""
        count, used = len(gallery.x), min(len(gallery.x), self.config.rows)
        if count < 2:
            return Measured({}, details={"rows": count})  # no pairs
        rows = torch.arange(used) * count // used
        loss = metrics.uniformity_loss(gallery.x[rows])
        return Measured({"uniformity_loss": loss}, details={"rows": used} if used < count else {})


# Linear classifiers on frozen features ----------------------------------------------------------------------

_FIT_MEMORY = 4 << 30  # bytes of SVM fits that run at a time
_Rows = NDArray[Any]
_Costs = tuple[Annotated[float, Field(gt=0)], ...]


class _Shots(Settings):
    """The shots are those of Goyal et al. (2019), whose protocol InterCLR follows."""

    shots: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2, 4, 8, 16, 32, 64, 96), min_length=1)
    draws: int = Field(default=5, ge=2)


class _LinearSettings(Settings):
    folds: int = Field(default=3, ge=2)  # of the cross-validation
    seed: int = Field(default=0, ge=0)  # of the folds, and of the draws of few videos


class _Linear(EvaluationProtocol):
    """Learns linear classifiers on frozen features."""

    learns: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The name that it is registered by."""
        return next(name for name, kind in PROTOCOLS.loaded.items() if kind is type(self))

    def rows(self, name: str, x: Tensor) -> _Rows:
        """Return the features as they are classified, here of unit length, in float64."""
        check_finite(name, x)
        return functional.normalize(x.double(), dim=1).numpy()

    def model(self) -> Any:
        """Return the classifier, whose parameter C is the cost."""
        from sklearn.svm import LinearSVC

        # "auto": primal, unless there are fewer rows than features: the dual converges slowly on many overlapping rows.
        return LinearSVC(dual="auto", max_iter=20_000, random_state=0)

    def over_draws(self, smallest: int, score: Callable[[int, int], float]) -> tuple[dict[str, float], dict[str, Any]]:
        """Return mean and standard deviation of `score(k, draw)` for each number of shots, and what was left out."""
        numbers: dict[str, float] = {}
        for k in [k for k in self.config.shots if k <= smallest]:
            draws = progress(range(self.config.draws), title=f"{k} videos per class", unit="draw", leave=False)
            scores = [score(k, draw) for draw in draws]
            numbers |= {f"{self.name}@{k}": mean(scores), f"{self.name}@{k}_spread": stdev(scores)}
        skipped = [k for k in self.config.shots if k > smallest]
        return numbers, {"left_out": skipped, "videos_of_the_smallest_class": smallest} if skipped else {}


@PROTOCOLS.register("svm")
class LinearSVM(_Linear):
    """Accuracy of one-against-rest linear SVMs on unit features, as InterCLR; the cost is found by cross-validation."""

    class Config(_LinearSettings):
        costs: _Costs = Field(default=(0.01, 0.1, 1.0, 10.0, 100.0), min_length=1)

    @of_many_classes()
    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return the accuracies by `name`; `details` hold the cost and the cross-validation accuracy of each."""
        self.check(gallery.label)
        x, queries = self.rows("gallery", gallery.x), self.rows("query", query.x)
        predicted, cost, scores = self.predict(x, gallery.label.numpy(), queries, self.config.folds)
        details = {"cost": cost, "cross_validation": {str(c): score for c, score in scores.items()}}
        return Measured(accuracies(self.name, predicted, query.label), predicted, details)

    def predict(self, x: _Rows, label: _Rows, queries: _Rows, folds: int) -> tuple[Tensor, float, dict[float, float]]:
        """Fit with the smallest cost of the highest accuracy; return the classes (Q,), the cost, and all accuracies."""
        # Each fit holds its rows in float64, and again as nodes of 16 bytes in liblinear.
        threads = max(1, min(torch.get_num_threads(), _FIT_MEMORY // (24 * x.size)))
        if len(x) * (folds - 1) < x.shape[1] * folds:
            threads = 1  # the dual solver of liblinear uses one random generator per process
        model, splits = self.model(), stratified_folds(folds, self.config.seed)
        cost, scores = choose_cost(model, x, label, self.config.costs, splits, pooled=True, threads=threads)
        return torch.from_numpy(model.set_params(C=cost).fit(x, label).predict(queries)), cost, scores

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the folds."""
        needed = self.config.folds if len(self.config.costs) > 1 else 1
        _check_class_sizes(self.name, label, needed, "lower folds, give one cost")


@PROTOCOLS.register("logistic")
class Logistic(LinearSVM):
    """Accuracy of L2-regularised multinomial logistic regression, as SCE's transfer (Table 9; Ericsson et al., 2021).

    The cost, the inverse of the regularisation, is chosen by cross-validation on the gallery.
    """

    class Config(_LinearSettings):
        # The published protocol has 45 costs, evenly spaced in their logarithm from 1e-6 to 1e5.
        costs: _Costs = Field(default=tuple(10.0**n for n in range(-6, 6)), min_length=1)
        iterations: int = Field(default=5000, ge=1)  # maximum of L-BFGS

    def rows(self, name: str, x: Tensor) -> _Rows:
        """Return the features, float64."""
        check_finite(name, x)
        return x.double().numpy()

    def model(self) -> Any:
        """Return the classifier."""
        from sklearn.linear_model import LogisticRegression

        return LogisticRegression(max_iter=self.config.iterations)

    def predict(self, x: _Rows, label: _Rows, queries: _Rows, folds: int) -> tuple[Tensor, float, dict[float, float]]:
        """Fit and predict as `LinearSVM`, with the mean over folds as the accuracy of a cost."""
        model, splits = self.model(), stratified_folds(folds, self.config.seed)
        cost, scores = choose_cost(model, x, label, self.config.costs, splits)
        return torch.from_numpy(model.set_params(C=cost).fit(x, label).predict(queries)), cost, scores


@PROTOCOLS.register("lowshot")
class LowShot(LinearSVM):
    """Accuracy of a linear SVM trained on k videos of each class, over several draws, as InterCLR.

    The cost of each draw is chosen by cross-validation on its own videos, with k folds if k is less than `folds`. A
    draw of more videos contains the draw of fewer. A k that exceeds the smallest class is skipped, and in the details.
    """

    class Config(_Shots, LinearSVM.Config):
        """Settings of the protocol."""

    @of_many_classes()
    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `lowshot@k`, the mean over draws, and `lowshot@k_spread`, their standard deviation."""
        self.check(gallery.label)
        x, queries, label = self.rows("gallery", gallery.x), self.rows("query", query.x), gallery.label.numpy()
        members = {n: np.flatnonzero(label == n) for n in np.unique(label).tolist()}  # rows of each class
        costs: dict[str, list[float]] = {}

        def score(k: int, draw: int) -> float:
            parts = [generator(self.config.seed, draw, n).permutation(rows)[:k] for n, rows in members.items()]
            rows = np.concatenate(parts)
            predicted, cost, _ = self.predict(x[rows], label[rows], queries, min(k, self.config.folds))
            costs.setdefault(str(k), []).append(cost)
            return metrics.accuracy(predicted, query.label)

        numbers, left_out = self.over_draws(min(map(len, members.values())), score)
        return Measured(numbers, details=({"costs": costs} if len(self.config.costs) > 1 else {}) | left_out)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the fewest shots."""
        _check_class_sizes(self.name, label, min(self.config.shots), "lower shots")


def _check_class_sizes(name: str, label: Tensor, needed: int, remedy: str) -> None:
    counts = np.unique(label.numpy(), return_counts=True)[1]
    if len(counts) < 2 or counts.min() < needed:
        counted = f"there are {len(counts)}, the smallest of {counts.min()}: {remedy}, or add videos"
        raise DataError(f"protocol {name} needs at least 2 classes of at least {needed} training videos, and {counted}")


def accuracies(name: str, predicted: Tensor, label: Tensor) -> dict[str, float]:
    """Return the accuracy and the mean of the per-class accuracies of a protocol."""
    mean_class = metrics.mean_class_accuracy(predicted, label)
    return {name: metrics.accuracy(predicted, label), f"{name}_mean_class": mean_class}


# Several labels per row ---------------------------------------------------------------------------------------


@PROTOCOLS.register("multilabel_svm")
class MultilabelSVM(_Linear):
    """Mean average precision of one linear SVM a class on unit features, as on VOC07 (Goyal et al., 2019; InterCLR).

    Videos that are not counted for a class neither train nor test its SVM. The cost of each class is chosen by
    cross-validation.
    """

    several: ClassVar[bool] = True

    class Config(_LinearSettings):
        # Goyal et al. (2019) choose from 2^-19 to 2^-4 and 10^-7 to 10^2.
        costs: _Costs = Field(default=(0.001, 0.01, 0.1, 1.0, 10.0, 100.0), min_length=1)
        interpolation: metrics.Interpolation = "area"  # of the average precision; VOC2007's own is 11-point

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return the mean over classes, by `name`; `details` hold the precision and the cost of each class."""
        x, queries, classes, undefined = self.prepare(gallery, query)
        found = []
        for target, tested in progress(classes, title=self.name, unit="label", leave=False):
            known = target >= 0
            found.append(self.precision(x[known], target[known] == 1, queries, tested, self.config.folds))
        precisions = [None if isnan(precision) else precision for precision, _ in found]
        details = {"average_precision": precisions, "costs": [cost for _, cost in found]}
        number = mean(precision for precision in precisions if precision is not None)
        return Measured({self.name: number}, details={**details, **undefined})

    def prepare(
        self, gallery: Features, query: Features
    ) -> tuple[_Rows, _Rows, list[tuple[_Rows, _Rows]], dict[str, list[str]]]:
        """Return the rows of both, the targets of each class, and the classes without a tested video that was read."""
        assert gallery.targets is not None and query.targets is not None
        self.check(gallery.targets)
        undefined = _undefined(self.name, query)
        classes = [*zip(gallery.targets.numpy().T, query.targets.numpy().T, strict=True)]
        return self.rows("gallery", gallery.x), self.rows("query", query.x), classes, undefined

    def model(self) -> Any:
        """Return the classifier of a class."""
        return super().model().set_params(class_weight={True: 2.0, False: 1.0})  # as Goyal et al.

    def precision(self, x: _Rows, present: _Rows, queries: _Rows, tested: _Rows, folds: int) -> tuple[float, float]:
        """Fit a classifier; return its average precision on the queries that count, and its cost.

        The cost is the smallest one of the highest average precision in cross-validation.
        """

        def score(fitted: Any, rows: _Rows, label: _Rows) -> float:
            scores = torch.from_numpy(fitted.decision_function(rows))
            return metrics.average_precision(scores, torch.from_numpy(label), self.config.interpolation)

        model, splits = self.model(), stratified_folds(folds, self.config.seed)
        cost, _ = choose_cost(model, x, present, self.config.costs, splits, scoring=score)
        known = tested >= 0
        return score(model.set_params(C=cost).fit(x, present), queries[known], tested[known] == 1), cost

    def check(self, label: Tensor) -> None:
        """Check that each class has enough videos with and without it; `label` are the targets (N, classes)."""
        needed = min(self.config.shots) if isinstance(self.config, _Shots) else self.config.folds
        fewest = min(int((label == value).sum(dim=0).min()) for value in (0, 1))
        if fewest < needed:
            videos = f"at least {needed} training videos with each class and without it"
            counted = f"there are {fewest} for one: add videos, or lower folds or shots"
            raise DataError(f"protocol {self.name} needs {videos}, and {counted}")

    def check_lists(self, gallery: VideoList, query: VideoList) -> None:
        """Check that each class has a tested video: else its average precision is undefined."""
        assert query.targets is not None
        if empty := [query.class_name(n) for n in np.flatnonzero(~(query.targets == 1).any(axis=0)).tolist()]:
            classes = f"{len(empty)} class{'es' * (len(empty) > 1)}, {first_few(empty)}"
            remedy = "add videos, or leave these classes out of both lists"
            raise DataError(f"protocol {self.name} is undefined: {query.path} has no video of {classes}; {remedy}")


@PROTOCOLS.register("multilabel_logistic")
class MultilabelLogistic(MultilabelSVM):
    """The same by L2-regularised logistic regression on features of any length, as SCE's transfer to VOC2007."""

    rows, model = Logistic.rows, Logistic.model

    class Config(Logistic.Config, MultilabelSVM.Config):
        """Settings of the protocol."""


@PROTOCOLS.register("multilabel_lowshot")
class MultilabelLowShot(MultilabelSVM):
    """The same with k videos of each class and k (classes - 1) others, over several draws (Goyal et al., 2019)."""

    class Config(_Shots, MultilabelSVM.Config):
        """Settings of the protocol."""

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `multilabel_lowshot@k`, the mean over draws, and `multilabel_lowshot@k_spread`."""
        x, queries, classes, undefined = self.prepare(gallery, query)

        def score(k: int, draw: int) -> float:
            precisions = []
            for n, (target, tested) in enumerate(classes):
                rows = []
                for value, count in ((1, k), (0, k * (len(classes) - 1))):
                    source = generator(self.config.seed, draw, n, value)
                    rows += source.permutation(np.flatnonzero(target == value))[:count].tolist()
                folds = min(k, self.config.folds)
                precisions.append(self.precision(x[rows], target[rows] == 1, queries, tested, folds)[0])
            return mean(value for value in precisions if not isnan(value))

        numbers, left_out = self.over_draws(min(int((target == 1).sum()) for target, _ in classes), score)
        return Measured(numbers, details={**left_out, **undefined})


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
