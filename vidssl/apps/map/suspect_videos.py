"""Videos to look at in a set: far from all others, nearly equal to another, probably of another class."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.data.label_videos import describe_labels
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups
from vidssl.data.video_list import VideoList
from vidssl.evaluation.leave_recording_out import fold_table, same_group
from vidssl.evaluation.protocols import of_many_classes
from vidssl.evaluation.search import Neighbours, nearest

SUSPECT_NEIGHBOURS = 10  # neighbours
_TEMPERATURE = 0.07  # of the vote, as in the kNN of the evaluation
_COST = 0.01  # of the logistic regression
_FLOOR = 1e-3  # of a probability: neither of the two classifiers alone excludes a class
LEAST_MARGIN = 0.7  # of a probable wrong label; benchmarks/suspects.py measures it
MOST_LABELS = 20_000  # videos whose labels are judged: the time of the regressions grows with them
NEAR = 0.25  # a near-duplicate is nearer than this fraction of the median distance to the nearest videos
_Floats = NDArray[np.float64]
_Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LabelScores:
    """How probable it is that each video has another class than its label."""

    margin: _Floats  # (N,) confidence in `proposed` minus that in the label, -1 to 1; NaN: cannot be judged
    proposed: _Rows  # (N,) the most probable other class; -1: cannot be judged

    @property
    def suspects(self) -> _Rows:
        """Rows of probable wrong labels, the most probable first."""
        rows = np.flatnonzero(self.margin > LEAST_MARGIN)  # NaN is not
        return rows[np.argsort(-self.margin[rows], kind="stable")]


def score_labels(x: Tensor, label: _Rows, groups: _Rows, seed: int = 0) -> LabelScores:
    """Score the labels (N,) of videos with features (N, D) by the labels of the others; -1 is no label.

    The confidence in a class is the geometric mean of two out-of-sample estimates, as in confident learning (Northcutt
    et al., 2021): a logistic regression that has not seen the recording (`groups` (N,)), and a vote of the 10 nearest
    other videos, also those of the same recording. The first finds recordings that are wrong as a whole, the second
    single videos. Classes of one recording are not judged, nor anything where there are fewer than two other classes.
    """
    margin, proposed = np.full(len(label), np.nan), np.full(len(label), -1)
    recordings = {class_: len(np.unique(groups[label == class_])) for class_ in np.unique(label[label >= 0])}
    classes = np.array([class_ for class_, count in recordings.items() if count > 1], np.int64)
    rows = np.flatnonzero(np.isin(label, classes))
    if len(classes) < 2:
        return LabelScores(margin, proposed)
    part, target = x[torch.from_numpy(rows)], np.searchsorted(classes, label[rows])
    confidence = np.sqrt(
        (_left_out(part.double().numpy(), target, groups[rows], len(classes), seed) + _FLOOR)
        * (_voted(part, target, len(classes)) + _FLOOR)
    )
    confidence /= confidence.sum(axis=1, keepdims=True)
    every = np.arange(len(rows))
    of_label = confidence[every, target]
    confidence[every, target] = -1
    best = confidence.argmax(axis=1)
    margin[rows], proposed[rows] = confidence[every, best] - of_label, classes[best]
    return LabelScores(margin, proposed)


@of_many_classes()
def _left_out(x: _Floats, target: _Rows, groups: _Rows, classes: int, seed: int) -> _Floats:
    """Estimate the probabilities (N, classes) by logistic regressions on the other folds of recordings."""
    from sklearn.linear_model import LogisticRegression

    probabilities = np.zeros((len(x), classes))
    folds = fold_table(groups, target, seed)
    for fold in np.unique(folds):
        test, rest = folds == fold, folds != fold
        known = np.unique(target[rest])
        if len(known) == 1:
            probabilities[test, known[0]] = 1
            continue
        deviation = x[rest].std(axis=0)
        z = (x - x[rest].mean(axis=0)) / np.where(deviation > 0, deviation, 1)
        model = LogisticRegression(C=_COST, max_iter=500).fit(z[rest], target[rest])
        probabilities[np.ix_(test, known)] = model.predict_proba(z[test])
    return probabilities


def _voted(x: Tensor, target: _Rows, classes: int) -> _Floats:
    """Estimate the probabilities (N, classes) by the nearest others, weighted by exp(cosine / temperature)."""
    near = nearest(x, x, min(SUSPECT_NEIGHBOURS, len(x) - 1), same_group(np.arange(len(x))))
    weights = torch.softmax(near.similarity.double() / _TEMPERATURE, dim=1)
    votes = torch.zeros(len(x), classes, dtype=torch.float64)
    return np.asarray(votes.scatter_add_(1, torch.from_numpy(target)[near.index], weights).numpy())


def mean_distances(near: Neighbours) -> _Floats:
    """Return the mean cosine distance (N,) of each video to its nearest others; NaN without any."""
    distance = torch.where(near.index >= 0, 1 - near.similarity, torch.nan).double()
    return np.asarray(distance.nanmean(dim=1).numpy())


def find_outliers(near: Neighbours) -> _Rows:
    """Return rows that are far from their neighbours, the farthest first.

    Far is beyond the upper quartile of the mean distances by 1.5 times the range between the quartiles (Tukey, 1977).
    """
    distance = mean_distances(near)
    if np.isnan(distance).all():
        return np.empty(0, np.int64)
    low, high = np.nanquantile(distance, [0.25, 0.75])
    rows = np.flatnonzero(distance > high + 1.5 * (high - low) + 1e-6)  # rounding is no distance
    return rows[np.argsort(-distance[rows], kind="stable")]


def find_near_duplicates(near: Neighbours) -> list[tuple[int, int, float]]:
    """Return pairs of rows that are nearly equal, with their cosine similarity, the most similar first.

    Their distance is less than a quarter of the median of all mean distances, so that the rule fits every network.
    """
    limit = NEAR * float(np.nanmedian(mean_distances(near))) if (near.index >= 0).any() else 0.0
    close = (near.index >= 0) & (1 - near.similarity <= limit + 1e-6)
    pairs = {}
    for row, column in close.nonzero().tolist():
        neighbour = int(near.index[row, column])
        pairs[min(row, neighbour), max(row, neighbour)] = float(near.similarity[row, column])
    return sorted(((a, b, value) for (a, b), value in pairs.items()), key=lambda pair: -pair[2])


def find_suspects(videos: VideoList, x: Tensor, near: Neighbours) -> tuple[Tree, dict[str, list[tuple[int, str]]]]:
    """Find the suspects of a list with features (N, D) and their neighbours; without labels folders are labels.

    Returns them as in results.json, and for the page by title: rows, and what is suspected.
    """
    names, distance = videos.names, mean_distances(near)
    outliers, pairs = find_outliers(near).tolist(), find_near_duplicates(near)
    listed, labels, reason = labelled_by_folders(videos), [], ""
    if (listed.labels < 0).all():
        reason = describe_labels(listed)
    elif len(videos) > MOST_LABELS:
        reason = f"more than {MOST_LABELS:,} videos"
    else:
        scores = score_labels(x, listed.labels, recording_groups(listed).number)
        for row in scores.suspects.tolist():
            label, proposed = listed.class_name(listed.labels[row]), listed.class_name(scores.proposed[row])
            labels.append((row, label, proposed, float(scores.margin[row])))
    results = {
        "outliers": [{"path": names[row], "distance": float(distance[row])} for row in outliers],
        "near_duplicates": [{"paths": [names[a], names[b]], "similarity": value} for a, b, value in pairs],
        "wrong_labels": [
            {"path": names[row], "label": label, "proposed": proposed, "margin": margin}
            for row, label, proposed, margin in labels
        ],
        "reason": reason,
    }
    return results, {
        "Probable wrong labels": [(row, f"{label}: perhaps {proposed}") for row, label, proposed, _ in labels],
        "Near-duplicates": [(a, f"as {names[b]}, similarity {value:.3f}") for a, b, value in pairs],
        "Outliers": [(row, f"mean distance {distance[row]:.3f}") for row in outliers],
    }
