"""kNN or logistic regression, chosen and calibrated with recordings left out, that can say "none of these"."""

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from vidssl.data.recordings_and_class_folders import of_several_recordings
from vidssl.evaluation.leave_recording_out import fit_logistic, fold_table, num_neighbours
from vidssl.evaluation.protocols import of_many_classes
from vidssl.evaluation.search import nearest
from vidssl.models.backbones import Backbone

LOGISTIC_COSTS = (1e-2, 1.0)  # of the logistic regressions that kNN is compared with
FEWEST_OF_CLASS = 3  # recordings of each class: with fewer there is nothing to choose and to calibrate by
_TEMPERATURES = np.geomspace(0.05, 20, 61)
_VOTE = 0.07  # temperature of the votes (Wu et al., 2018)
_LEAST = -30.0  # log probability of a class without examples
_BLOCK = 4096  # rows that are classified at a time

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]


class Rule(NamedTuple):
    """How classes are predicted from features."""

    cost: float | None = None  # of the logistic regression; None: kNN
    temperature: float = 1.0  # that log probabilities are divided by


class KNearest(nn.Module):
    """kNN as `evaluation.leave_recording_out` has it: votes divided by the examples of their class.

    To be probabilities, one further neighbour is added that votes for all classes alike.

    Args:
        x: (N, D) features of the examples.
        label: (N,) their classes.
        classes: Number of classes.
    """

    examples: Tensor
    votes: Tensor

    def __init__(self, x: Tensor, label: Tensor, classes: int) -> None:
        super().__init__()
        votes = functional.one_hot(label, classes).float()
        self.k = min(num_neighbours(label.numpy()), len(x))
        self.register_buffer("examples", functional.normalize(x.float(), dim=1))
        self.register_buffer("votes", votes / votes.sum(dim=0).clamp(min=1))  # (N, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return log probabilities (B, classes) of features (B, D)."""
        similarity, index = (functional.normalize(x, dim=1) @ self.examples.T).topk(self.k, dim=1)
        weights = ((similarity - similarity[:, :1]) / _VOTE).exp()
        votes = (weights[..., None] * self.votes[index]).sum(dim=1)
        return self.probability(votes / votes.sum(dim=1, keepdim=True)).log()

    def probability(self, share: Tensor) -> Tensor:
        """Return the probabilities of shares of the votes (B, classes): 1 for a class is never certain."""
        return (self.k * share + 1 / share.shape[1]) / (self.k + 1)


class StandardLogistic(nn.Module):
    """Logistic regression of features that are standardised by the examples.

    Args:
        x: (N, D) features of the examples.
        label: (N,) their classes.
        classes: Number of classes.
        cost: Inverse strength of the penalty, scikit-learn's C.
    """

    mean: Tensor
    deviation: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, x: Tensor, label: Tensor, classes: int, cost: float) -> None:
        super().__init__()
        rows = x.double().numpy()
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        deviation[deviation == 0] = 1
        z, there = (rows - mean) / deviation, torch.unique(label).numpy()
        weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, _LEAST)
        bias[there] = 0
        if len(there) > 1:
            model, span = fit_logistic(z, label.numpy(), cost)
            coefficients = model.coef_ @ span.T
            two = len(there) == 2  # scikit-learn has one row, the second class against the first
            weight[there] = np.concatenate([-coefficients, coefficients]) / 2 if two else coefficients
            bias[there] = np.concatenate([-model.intercept_, model.intercept_]) / 2 if two else model.intercept_
        for name, value in {"mean": mean, "deviation": deviation, "weight": weight, "bias": bias}.items():
            self.register_buffer(name, torch.from_numpy(value).float())

    def forward(self, x: Tensor) -> Tensor:
        """Return log probabilities (B, classes) of features (B, D)."""
        return (((x - self.mean) / self.deviation) @ self.weight.T + self.bias).log_softmax(dim=1)


class CalibratedClassifier(nn.Module):
    """A rule that was fitted to examples: features (B, D) to probabilities (B, classes)."""

    def __init__(self, rule: Rule, x: Tensor, label: Tensor, classes: int) -> None:
        super().__init__()
        self.scores = (
            KNearest(x, label, classes) if rule.cost is None else StandardLogistic(x, label, classes, rule.cost)
        )
        self.temperature = rule.temperature

    def __str__(self) -> str:
        """Name it for people, and the highest confidence that kNN can have."""
        if not isinstance(self.scores, KNearest):
            return f"logistic regression, temperature {self.temperature:.2g}"
        scores = self.scores.probability(torch.eye(self.scores.votes.shape[1])[:1]).log() / self.temperature
        highest = 100 * float(scores.softmax(dim=1).max())
        return f"kNN, k = {self.scores.k}: no confidence is above {highest:.1f} %, where all neighbours agree"

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities."""
        scores: Tensor = self.scores(x)
        return (scores / self.temperature).softmax(dim=1)

    @torch.no_grad()
    def of_many(self, x: Tensor) -> _Floats:
        """Return the probabilities of many rows, in bounded memory."""
        return np.concatenate([self(x[n : n + _BLOCK].float()).double().numpy() for n in range(0, len(x), _BLOCK)])


class VideoClassifier(nn.Module):
    """Encodes the views of one video (V, 3, T, S, S), and predicts probabilities (1, classes)."""

    def __init__(self, encoder: Backbone, classifier: nn.Module) -> None:
        super().__init__()
        self.encoder, self.classifier = encoder, classifier

    def forward(self, clips: Tensor) -> Tensor:
        """Return probabilities."""
        features = self.encoder.finish(self.encoder(clips).mean(dim=0, keepdim=True))
        probability: Tensor = self.classifier(features)
        return probability


def mean_recall(predicted: _Ints, label: _Ints, several: NDArray[np.bool_]) -> float:
    """Return the mean over classes of the accuracy, of those of several recordings, which `several` (N,) marks."""
    right = predicted == label
    return float(np.mean([right[label == number].mean() for number in np.unique(label[several])]))


def can_choose(label: _Ints, group: _Ints) -> bool:
    """Whether each class of several recordings (N,) has enough to choose and calibrate a classifier by them.

    Those of one recording say nothing, whatever the classifier is.
    """
    counts = [len(np.unique(group[label == number])) for number in np.unique(label)]
    return min((count for count in counts if count > 1), default=0) >= FEWEST_OF_CLASS


def choose_rule(x: Tensor, label: _Ints, group: _Ints, classes: int) -> Rule:
    """Choose the classifier of the highest mean over classes with recordings left out, and its temperature.

    The temperature is that of the highest likelihood of the same predictions (Guo et al., 2017). Of equal classifiers
    the first is taken: kNN, then the smallest cost.
    """
    folds = fold_table(group, label)
    several = of_several_recordings(label, group)
    scored = []
    for cost in (None, *LOGISTIC_COSTS):
        probability = left_out_probabilities(x, label, folds, classes, _always(Rule(cost)))
        scored.append((mean_recall(probability.argmax(axis=1), label, several), cost, probability))
    _, cost, probability = max(scored, key=lambda entry: entry[0])
    return Rule(cost, _temperature(probability[several], label[several]))


def _always(rule: Rule) -> Callable[[NDArray[np.bool_]], Rule]:
    return lambda rows: rule


def _temperature(probability: _Floats, label: _Ints) -> float:
    """Return the temperature of the highest likelihood.

    As of Platt (1999), two more examples are counted that are of any class: with few examples, none of them wrong,
    the best temperature would be 0.
    """
    scores, rows, other = np.log(probability.clip(1e-13)), np.arange(len(label)), 2 / (len(label) + 2)
    losses = []
    for temperature in _TEMPERATURES:
        scaled = scores / temperature
        scaled -= np.logaddexp.reduce(scaled, axis=1)[:, None]
        losses.append(-float(((1 - other) * scaled[rows, label] + other * scaled.mean(axis=1)).mean()))
    return float(_TEMPERATURES[int(np.argmin(losses))])


def left_out_probabilities(
    x: Tensor, label: _Ints, folds: _Ints, classes: int, rule_of: Callable[[NDArray[np.bool_]], Rule]
) -> _Floats:
    """Return probabilities (N, classes) of each row by a classifier that was fitted to the rows of the other folds.

    `rule_of` returns the rule of some rows, a mask (N,): it must see no others.
    """
    from threadpoolctl import threadpool_limits

    probability = np.zeros((len(label), classes))
    # The fits are so small that threads cost more than they save.
    with threadpool_limits(1), of_many_classes():
        for fold in range(int(folds.max()) + 1):
            test, rest = folds == fold, folds != fold
            model = CalibratedClassifier(rule_of(rest), x[rest], torch.from_numpy(label[rest]), classes)
            probability[test] = model.of_many(x[test])
    return probability


def nested_probabilities(x: Tensor, label: _Ints, group: _Ints, classes: int) -> _Floats:
    """Predict each example with its recording left out, by a rule that was chosen without its outer fold."""
    chosen = can_choose(label, group)

    def rule_of(rest: NDArray[np.bool_]) -> Rule:
        return choose_rule(x[rest], label[rest], group[rest], classes) if chosen else Rule()

    return left_out_probabilities(x, label, fold_table(group, label), classes, rule_of)


# None of these ----------------------------------------------------------------------------------------------


def distance_to(x: Tensor, examples: Tensor, pairs: Tensor | None = None) -> tuple[_Floats, _Ints]:
    """Return the cosine distance (N,) to the nearest example, and its row; `pairs` (P, 2) of rows are left out."""
    near = nearest(x, examples, 1, pairs)
    return (1 - near.similarity[:, 0].double().numpy()).clip(0), near.index[:, 0].numpy()


def farthest(distance: _Floats, none: float) -> float:
    """Return the distance above which a video is none of the classes.

    So large a share `none` of videos like the examples is expected to be beyond it: `distance` (N,) are those of the
    examples to the nearest one of another recording. Infinite with too few examples to tell.
    """
    finite = np.sort(distance[np.isfinite(distance)])
    rank = (len(finite) + 1) * (1 - none)
    if not none or ceil(rank) > len(finite):
        return float("inf")
    return float(np.quantile(finite, 1 - none, method="weibull"))


def unlikeness(x: Tensor, examples: Tensor, label: _Ints, group: _Ints) -> tuple[_Floats, _Floats, _Ints]:
    """Return what is compared with `farthest` (N,), the distance to the nearest example, and its row.

    An example has one recording fewer of its class to be near to than a new video. So what is compared is the mean
    distance over the recordings of the nearest class, each left out in turn, where there are three or more of them.
    """
    distance, row = distance_to(x, examples)
    without = np.full(len(x), np.inf)
    for recording in np.unique(group[row]):
        of_recording, others = group[row] == recording, group != recording
        if others.any():
            without[of_recording], _ = distance_to(x[of_recording], examples[others])
    counts = np.array([len(np.unique(group[label == number])) for number in range(int(label.max()) + 1)])[label[row]]
    mean = np.where(counts >= FEWEST_OF_CLASS, (distance * (counts - 1) + without) / counts, distance)
    return mean, distance, row
