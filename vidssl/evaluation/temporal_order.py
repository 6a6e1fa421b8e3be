"""The protocol `order`: whether features hold the order of time."""

from pathlib import Path
from statistics import mean
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field
from torch import Tensor

from vidssl.base.config import Settings
from vidssl.base.errors import DataError
from vidssl.base.types import Features
from vidssl.data.video_list import VideoList, read_rows
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured, choose_cost
from vidssl.evaluation.search import check_finite

_EQUAL = 1e-3  # of a standard deviation: features of both directions that differ by less are equal but for rounding

_Rows = NDArray[Any]


def _read_pairs(value: Any) -> Any:
    """Read pairs of class names from a CSV file with two names per row; lists, as in a checkpoint, become tuples."""
    if isinstance(value, list):
        return tuple(tuple(pair) if isinstance(pair, list) else pair for pair in value)
    if not isinstance(value, str):
        return value
    try:
        return tuple(tuple(row) for _, row in read_rows(Path(value), "each row has the names of two classes"))
    except DataError as error:
        raise ValueError(str(error)) from None


ClassPairs = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_read_pairs)]


@PROTOCOLS.register("order")
class Order(EvaluationProtocol):
    """Accuracy of a linear classifier on frozen features that separates clips from the same clips reversed.

    Both directions of a video are in the same list and in the same fold. Where they have equal features but for
    rounding (differences below 0.001 of a standard deviation), as of networks that average frames, both get the same
    prediction, of which one is right: such videos are exactly at chance.

    With `pairs` also a classifier for each pair of opposite classes, such as opening and closing something, of which
    only the clips as they are are used.
    """

    learns: ClassVar[bool] = True
    labels: ClassVar[bool] = False  # only with pairs
    reverse: ClassVar[bool] = True

    class Config(Settings):
        pairs: ClassPairs = ()  # a CSV file with the names of two classes per row, or the pairs
        costs: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(0.001, 0.01, 0.1, 1.0), min_length=1)
        folds: int = Field(default=3, ge=2)  # of the cross-validation that chooses the cost
        seed: int = Field(default=0, ge=0)  # of the folds

    def __call__(self, gallery: Features, query: Features, exclude: Tensor) -> Measured:
        """Return `order`, and with pairs `order_pairs`, the mean over pairs; `details` hold each pair and the costs.

        `equal_videos` of them is the number of videos with equal features in both directions.
        """
        for name, features in (("gallery", gallery), ("query", query)):
            check_finite(name, features.x)
            if features.reverse is None:
                raise DataError("protocol order needs the features of reversed clips: extract them with reverse=True")
            check_finite(name, features.reverse)
        x, reverse = _standardised(gallery, gallery)
        rows, direction = np.concatenate([x, reverse]), np.repeat([1, 0], len(x))
        model, cost = self._fit(rows, direction, np.tile(np.arange(len(x)), 2))
        x, reverse = _standardised(gallery, query)
        forward, backward = model.decision_function(x), model.decision_function(reverse)
        equal = (x == reverse).all(axis=1)
        backward = np.where(equal, forward, backward)
        right = (forward > 0).astype(np.float64), (backward <= 0).astype(np.float64)
        numbers = {"order": float(np.mean([*right[0], *right[1]]))}
        details: dict[str, Any] = {"cost": cost, "equal_videos": int(equal.sum())}
        if self.config.pairs:
            details["pairs"] = {f"{a}, {b}": self._measure_pair(gallery, query, a, b) for a, b in self.config.pairs}
            numbers["order_pairs"] = mean(details["pairs"].values())
        of_video = torch.from_numpy((right[0] + right[1]) / 2)
        return Measured(numbers, details=details, per_video={"order": of_video})

    def _measure_pair(self, gallery: Features, query: Features, *names: str) -> float:
        """Return the mean of the accuracies of two classes, separated by a classifier: chance is 0.5."""
        numbers = [gallery.classes.index(name) for name in names]
        (x, _), (queries, _) = _standardised(gallery, gallery), _standardised(gallery, query)
        first = numbers[0]
        train, test = (np.isin(of.label.numpy(), numbers) for of in (gallery, query))
        label, query_label = gallery.label.numpy()[train] == first, query.label.numpy()[test] == first
        model, _ = self._fit(x[train], label.astype(int), np.arange(int(train.sum())))
        right = (model.decision_function(queries[test]) > 0) == query_label
        return float(right[query_label].mean() + right[~query_label].mean()) / 2

    def _fit(self, x: _Rows, label: _Rows, group: _Rows) -> tuple[Any, float]:
        """Fit a logistic regression with the cost of the highest accuracy in cross-validation, of equal ones the least.

        Rows of a group are in the same fold.
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedGroupKFold

        model = LogisticRegression(max_iter=5000)
        folds = StratifiedGroupKFold(self.config.folds, shuffle=True, random_state=self.config.seed)
        cost, _ = choose_cost(model, x, label, self.config.costs, folds, groups=group)
        return model.set_params(C=cost).fit(x, label), cost

    def check(self, label: Tensor) -> None:
        """Check that there are enough videos for the folds."""
        needed = self.config.folds if len({*self.config.costs}) > 1 else 1
        if len(label) < needed:
            raise DataError(f"protocol order needs at least {needed} training videos, got {len(label)}: lower folds")

    def check_lists(self, gallery: VideoList, query: VideoList) -> None:
        """Check that both classes of each pair have enough videos."""
        folds = self.config.folds if len({*self.config.costs}) > 1 else 1
        for videos, needed in ((gallery, folds), (query, 1)):
            for name in (name for pair in self.config.pairs for name in pair):
                if name not in videos.classes:
                    raise DataError(f"protocol order: {name!r} of pairs is not a class of {videos.path}: correct pairs")
                count = int((videos.labels == videos.classes.index(name)).sum())
                if count < needed:
                    raise DataError(f"{videos.path} has {count} videos of {name!r}, order needs {needed}: lower folds")


def _standardised(gallery: Features, features: Features) -> tuple[_Rows, _Rows]:
    """Standardise the features of both directions, float64, with mean and deviation of the gallery's.

    Features of a video that are equal in both directions but for rounding are made equal.
    """
    assert gallery.reverse is not None and features.reverse is not None
    both = torch.cat([gallery.x, gallery.reverse]).double()
    shift, scale = both.mean(dim=0), both.std(dim=0)
    scale = scale.clamp(min=1e-6 * max(1e-12, scale.max().item()))  # units that are constant
    x, reverse = (features.x.double() - shift) / scale, (features.reverse.double() - shift) / scale
    equal = ((x - reverse).abs() < _EQUAL).all(dim=1)
    return x.numpy(), torch.where(equal[:, None], x, reverse).numpy()
