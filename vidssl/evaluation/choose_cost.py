"""The cost C of a linear classifier, chosen by cross-validation."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Score = Callable[[Any, Any, Any], float]  # of a fitted model, features and labels, as scikit-learn's scoring


@contextmanager
def of_many_classes() -> Iterator[None]:
    """Silence the warning of scikit-learn that labels of a few videos of many classes may be no classes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")
        yield


def choose_cost(
    model: Any,
    x: NDArray[Any],
    label: NDArray[Any],
    costs: Iterable[float],
    folds: Any,
    *,
    groups: NDArray[Any] | None = None,
    scoring: Score | None = None,
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
