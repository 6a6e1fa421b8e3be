"""Protocols: metrics of query features against gallery features, as kNN and a linear SVM. None trains a network."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.progress import progress
from vidssl.base.registry import Registry
from vidssl.base.types import Features
from vidssl.data.video_list import VideoList
from vidssl.evaluation import metrics
from vidssl.evaluation.search import check_finite, nearest

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
    equal: Literal["smallest", "middle"] = "smallest",
) -> tuple[float, dict[float, float]]:
    """Return the cost of the highest score in cross-validation, and the score of each cost.

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
        equal: Which one of costs with equal scores. Where folds have no videos of a class to train on, they may all be
            equal, and the smallest is a model that has hardly learned.
    """
    costs = sorted({*costs})
    if len(costs) == 1 or folds is None:
        return costs[len(costs) // 2], {}
    from joblib import parallel_config
    from sklearn.model_selection import GridSearchCV

    splits = [(train, test) for train, test in folds.split(x, label, groups) if len(np.unique(label[train])) > 1]
    if not splits:  # of few videos
        return costs[len(costs) // 2], {}
    search = GridSearchCV(model, {"C": costs}, cv=splits, scoring=scoring, refit=False, error_score="raise")
    with parallel_config("threading", n_jobs=threads):
        search.fit(x, label)
    of_folds = np.stack([search.cv_results_[f"split{n}_test_score"] for n in range(len(splits))])  # (folds, costs)
    sizes = [len(test) if pooled else 1 for _, test in splits]
    scores = dict(zip(costs, np.average(of_folds, axis=0, weights=sizes).tolist(), strict=True))
    best = [cost for cost in costs if scores[cost] == max(scores.values())]
    return best[(len(best) - 1) // 2 if equal == "middle" else 0], scores


if TYPE_CHECKING:
    from sklearn.svm import LinearSVC

_FIT_MEMORY = 4 << 30  # bytes of SVM fits that run at a time


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
    several: ClassVar[bool] = False  # needs lists with several labels a row, in `targets`; `check` gets them too

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
        details = {} if note is None else {"note": note}
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


class _SvmSettings(Settings):
    costs: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(0.01, 0.1, 1.0, 10.0, 100.0), min_length=1)
    folds: int = Field(default=3, ge=2)  # of the cross-validation
    seed: int = Field(default=0, ge=0)  # of the folds, and of the draws of `lowshot`


@PROTOCOLS.register("svm")
class LinearSVM(EvaluationProtocol):
    """Accuracy of one-against-rest linear SVMs on unit features, as InterCLR; the cost is found by cross-validation."""

    learns: ClassVar[bool] = True

    class Config(_SvmSettings):
        """Settings of the protocol."""

    @of_many_classes()
    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `svm` and `svm_mean_class`; `details` hold the cost and the cross-validation accuracy of each."""
        self.check(gallery.label)
        x, queries = unit_rows("gallery", gallery.x), unit_rows("query", query.x)
        label = gallery.label.numpy()
        cost, scores = _choose_cost(x, label, self.config, self.config.folds)
        predicted = _predict(x, label, cost, queries)
        details = {"cost": cost, "cross_validation": {str(c): score for c, score in scores.items()}}
        return Measured(accuracies("svm", predicted, query.label), predicted, details)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the folds."""
        needed = self.config.folds if len(self.config.costs) > 1 else 1
        check_class_sizes("svm", label, needed, "lower folds, give one cost")


@PROTOCOLS.register("lowshot")
class LowShot(EvaluationProtocol):
    """Accuracy of a linear SVM trained on k videos of each class, over several draws, as InterCLR.

    The cost of each draw is chosen by cross-validation on its own videos, with k folds if k is less than `folds`. A
    draw of more videos contains the draw of fewer. A k that exceeds the smallest class is skipped, and in the details.
    """

    learns: ClassVar[bool] = True

    class Config(_SvmSettings):
        """The shots are those of Goyal et al. (2019), whose protocol InterCLR follows."""

        shots: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(1, 2, 4, 8, 16, 32, 64, 96), min_length=1)
        draws: int = Field(default=5, ge=2)

    @of_many_classes()
    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `lowshot@k`, the mean over draws, and `lowshot@k_spread`, their standard deviation."""
        self.check(gallery.label)
        x, queries, label = unit_rows("gallery", gallery.x), unit_rows("query", query.x), gallery.label.numpy()
        members = {n: np.flatnonzero(label == n) for n in np.unique(label).tolist()}  # rows of each class
        smallest = min(map(len, members.values()))
        numbers: dict[str, float] = {}
        costs: dict[str, list[float]] = {}
        for k in [k for k in self.config.shots if k <= smallest]:
            scores = []
            for draw in progress(range(self.config.draws), title=f"{k} videos a class", unit="draw", leave=False):
                parts = [generator(self.config.seed, draw, n).permutation(rows)[:k] for n, rows in members.items()]
                rows = np.concatenate(parts)
                cost, _ = _choose_cost(x[rows], label[rows], self.config, min(k, self.config.folds))
                scores.append(metrics.accuracy(_predict(x[rows], label[rows], cost, queries), query.label))
                costs.setdefault(str(k), []).append(cost)
            numbers |= {f"lowshot@{k}": mean(scores), f"lowshot@{k}_spread": stdev(scores)}
        skipped = [k for k in self.config.shots if k > smallest]
        details: dict[str, Any] = {"costs": costs} if len(self.config.costs) > 1 else {}
        if skipped:
            details |= {"left_out": skipped, "videos_of_the_smallest_class": smallest}
        return Measured(numbers, details=details)

    def check(self, label: Tensor) -> None:
        """Check that there are two classes, and enough videos of each for the fewest shots."""
        check_class_sizes("lowshot", label, min(self.config.shots), "lower shots")


def check_class_sizes(name: str, label: Tensor, needed: int, remedy: str) -> None:
    """Raise a DataError if there are fewer than two classes, or fewer than `needed` videos of one."""
    counts = np.unique(label.numpy(), return_counts=True)[1]
    if len(counts) < 2 or counts.min() < needed:
        raise DataError(
            f"protocol {name} needs at least 2 classes of at least {needed} training videos, and there are "
            f"{len(counts)}, the smallest of {counts.min()}: {remedy}, or add videos"
        )


def unit_rows(name: str, x: Tensor) -> np.ndarray:
    """Scale rows (N, D) to unit length, in float64; a DataError if a number is not finite."""
    check_finite(name, x)
    return functional.normalize(x.double(), dim=1).numpy()


def _choose_cost(
    x: np.ndarray, label: np.ndarray, config: _SvmSettings, folds: int
) -> tuple[float, dict[float, float]]:
    """Return the smallest cost of the highest cross-validation accuracy, and all accuracies."""
    # Each fit holds its rows in float64, and again as nodes of 16 bytes in liblinear.
    threads = max(1, min(torch.get_num_threads(), _FIT_MEMORY // (24 * x.size)))
    if len(x) * (folds - 1) < x.shape[1] * folds:
        threads = 1  # the dual solver of liblinear uses one random generator per process
    splits = stratified_folds(folds, config.seed)
    return choose_cost(_machine(), x, label, config.costs, splits, pooled=True, threads=threads)


def _machine(cost: float = 1.0) -> "LinearSVC":
    from sklearn.svm import LinearSVC

    # "auto": primal, unless there are fewer rows than features: the dual converges slowly on many overlapping rows.
    return LinearSVC(C=cost, dual="auto", max_iter=20_000, random_state=0)


def _predict(x: np.ndarray, label: np.ndarray, cost: float, queries: np.ndarray) -> Tensor:
    """Fit a linear SVM on unit features and predict the classes (Q,) of others."""
    return torch.from_numpy(_machine(cost).fit(x, label).predict(queries))


def accuracies(name: str, predicted: Tensor, label: Tensor) -> dict[str, float]:
    """Return the accuracy and the mean of the per-class accuracies of a protocol."""
    mean_class = metrics.mean_class_accuracy(predicted, label)
    return {name: metrics.accuracy(predicted, label), f"{name}_mean_class": mean_class}
