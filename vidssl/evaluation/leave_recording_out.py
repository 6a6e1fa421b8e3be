"""Predict each video of a set once, with its recording group left out: kNN, nearest video, few labels."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Features
from vidssl.evaluation import metrics
from vidssl.evaluation.protocols import of_many_classes
from vidssl.evaluation.search import Neighbours, nearest

VOTES = 20  # neighbours that vote, at most
FOLDS = 5
FEW_LABEL_DRAWS = 20  # of few labels
_COST = 1.0  # of logistic regressions: with few labels there is nothing to choose it by
_FOLD_STREAM, _DRAW_STREAM = 36, 37

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]
_Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Predictions:
    """Of each video (N,), what an encoder predicts when its group is left out."""

    knn: _Ints  # each vote divided by the number of videos of its class in other groups
    nearest: _Ints  # row of the nearest video, -1: none
    few: dict[int, _Floats]  # by the labels of a class: the fraction of draws in which it is right


def fold_table(groups: _Ints, label: _Ints) -> _Ints:
    """Divide the groups into folds (N,), each with about as many videos of a class as the others.

    Raises:
        DataError: There are fewer groups than two.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    count = min(FOLDS, len(np.unique(groups)))
    if count < 2:
        raise DataError("all videos are of one recording group: name groups with group=REGEX, or add videos")
    count = max(2, min(count, int(np.unique(label, return_counts=True)[1].max())))  # scikit-learn refuses more
    order = int(generator(0, _FOLD_STREAM).integers(2**31))
    table = np.full(len(label), -1)
    splitter = StratifiedGroupKFold(count, shuffle=True, random_state=order)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")  # it is in some of the folds
        for fold, (_, rows) in enumerate(splitter.split(label, label, groups)):
            table[rows] = fold
    return np.unique(table, return_inverse=True)[1].astype(np.int64)  # a fold may have no group


def same_group(groups: _Ints) -> Tensor:
    """Return the pairs (P, 2) of videos of one group, each video with itself too."""
    order = np.argsort(groups, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    pairs = [np.stack(np.meshgrid(part, part, indexing="ij"), axis=-1).reshape(-1, 2) for part in parts]
    return torch.from_numpy(np.concatenate(pairs))


def num_neighbours(label: _Ints) -> int:
    """Return how many neighbours vote: `K`, or as many as the median class has other videos, if these are fewer.

    With more, a vote counts mostly videos of other classes.
    """
    counts = np.unique(label, return_counts=True)[1]
    return int(max(1, min(VOTES, np.median(counts) - 1)))


def draw_labels(kept: _Mask, label: _Ints, shots: int, draw: int, fold: int) -> _Ints:
    """Draw `shots` rows of each class among those that are not left out; all of a class that has no more."""
    rng = generator(0, _DRAW_STREAM, shots, draw, fold)
    members = [np.flatnonzero(kept & (label == class_)) for class_ in np.unique(label[kept])]
    return np.concatenate([rng.permutation(rows)[:shots] for rows in members])


@of_many_classes()
def predict_left_out(
    features: Features,
    groups: _Ints,
    folds: _Ints,
    shots: Sequence[int] = (1, 5, 20),
    advance: Callable[[], object] = lambda: None,
) -> Predictions:
    """Predict the class of each video by the others, with the same folds and draws for every encoder.

    `advance` is called after each fit, `fits(…)` times.
    """
    from threadpoolctl import threadpool_limits

    label = features.label.numpy()
    voted, neighbours = vote_of_others(features, groups)
    there = torch.isfinite(neighbours.similarity[:, 0])
    first = torch.where(there, neighbours.index[:, 0], -1).numpy()
    x = features.x.double().numpy()
    few = {n: np.zeros(len(label)) for n in shots}
    # The fits are so small that threads cost more than they save: on a busy machine fifty times.
    with threadpool_limits(1):
        for fold in range(int(folds.max()) + 1):
            test, rest = folds == fold, folds != fold
            deviation = x[rest].std(axis=0)  # of all videos that are not left out, with labels or not
            z = (x - x[rest].mean(axis=0)) / np.where(deviation > 0, deviation, 1)
            for n in shots:
                for draw in range(FEW_LABEL_DRAWS):
                    rows = draw_labels(rest, label, n, draw, fold)
                    right = _classify(z, label, rows, test) == label[test]
                    few[n][test] += right / FEW_LABEL_DRAWS
                    advance()
    return Predictions(voted.numpy(), first, few)


def vote_of_others(features: Features, groups: _Ints) -> tuple[Tensor, Neighbours]:
    """Predict the class of each video (N,) by the `num_neighbours` nearest ones of other groups; return these too.

    Votes are divided by the number of videos of their class in other groups.
    """
    label, (_, group) = features.label.numpy(), np.unique(groups, return_inverse=True)
    counts = np.zeros((int(group.max()) + 1, int(label.max()) + 1))  # of the videos of each group and class
    np.add.at(counts, (group, label), 1)
    k, sizes = num_neighbours(label), torch.from_numpy(counts.sum(axis=0) - counts)[group].float()
    neighbours = nearest(features.x, features.x, k, same_group(groups))
    return metrics.vote(neighbours, features, k, sizes=sizes), neighbours


def _classify(x: _Floats, label: _Ints, rows: _Ints, test: _Mask) -> _Ints:
    """Fit a logistic regression to some rows; predict those of `test`."""
    if len(np.unique(label[rows])) == 1:
        return np.full(int(test.sum()), label[rows[0]])
    model, span = fit_logistic(x[rows], label[rows], _COST)
    predicted: _Ints = model.predict(x[test] @ span)
    return predicted


def fit_logistic(x: _Floats, label: _Ints, cost: float) -> tuple[Any, _Floats]:
    """Fit a logistic regression of scikit-learn to rows (N, D) in their span (D, S), and return both.

    The weights are a sum of the rows: in the span of few rows the solution is the same, and cheap.
    """
    from sklearn.linear_model import LogisticRegression

    span = np.linalg.qr(x.T)[0] if len(x) < x.shape[1] else np.eye(x.shape[1])
    return LogisticRegression(C=cost, max_iter=2000).fit(x @ span, label), span


def fits(folds: _Ints, shots: Sequence[int]) -> int:
    """Count the fits of `predict_left_out`."""
    return (int(folds.max()) + 1) * FEW_LABEL_DRAWS * len(shots)
