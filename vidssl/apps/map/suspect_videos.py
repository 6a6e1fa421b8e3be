"""Videos to look at in a set: far from all others, copies of another, probably of another class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups, why_folders_are_no_classes
from vidssl.data.video_list import VideoList
from vidssl.evaluation.leave_recording_out import fold_table, same_group
from vidssl.evaluation.near_copies import NearCopy
from vidssl.evaluation.protocols import of_many_classes
from vidssl.evaluation.search import Neighbours, nearest

SUSPECT_NEIGHBOURS = 10  # neighbours
_TEMPERATURE = 0.07  # of the vote, as in the kNN of the evaluation
_COST = 0.01  # of the logistic regression
_FLOOR = 1e-3  # of a probability: neither of the two classifiers alone excludes a class
LEAST_MARGIN = 0.7  # of a label that is clearly wrong; benchmarks/suspects.py measures it
ENOUGH_OF_CLASS = 20  # labels of the median class: with fewer hardly a wrong label is beyond the margin
MOST_LABELS = 20_000  # videos whose labels are judged: the time of the regressions grows with them
_Floats = NDArray[np.float64]
_Rows = NDArray[np.int64]


@dataclass(frozen=True)
class LabelScores:
    """How probable the labels of videos are by the labels of the others; NaN and -1: not judged."""

    probability: _Floats  # (N,) of the label
    margin: _Floats  # (N,) probability of `proposed` minus that of the label, -1 to 1
    proposed: _Rows  # (N,) the most probable other class

    @property
    def doubtful(self) -> _Rows:
        """Rows for which another class is more probable than the label, the least probable label first."""
        rows = np.flatnonzero(self.margin > 0)  # NaN is not
        return rows[np.argsort(self.probability[rows], kind="stable")]

    @property
    def clearly_wrong(self) -> _Rows:
        """Rows of `doubtful` beyond the margin."""
        rows = self.doubtful
        return rows[self.margin[rows] > LEAST_MARGIN]


def score_labels(x: Tensor, label: _Rows, groups: _Rows, seed: int = 0) -> LabelScores:
    """Score the labels (N,) of videos with features (N, D) by the labels of the others; -1 is no label.

    The confidence in a class is the geometric mean of two out-of-sample estimates, as in confident learning (Northcutt
    et al., 2021): a logistic regression that has not seen the recording (`groups` (N,)), and a vote of the 10 nearest
    other videos, also those of the same recording. The first finds recordings that are wrong as a whole, the second
    single videos. Classes of one recording are not judged, nor anything where there are fewer than two other classes.
    """
    probability, margin = np.full((2, len(label)), np.nan)
    proposed = np.full(len(label), -1)
    recordings = {class_: len(np.unique(groups[label == class_])) for class_ in np.unique(label[label >= 0])}
    classes = np.array([class_ for class_, count in recordings.items() if count > 1], np.int64)
    rows = np.flatnonzero(np.isin(label, classes))
    if len(classes) < 2:
        return LabelScores(probability, margin, proposed)
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
    probability[rows], margin[rows], proposed[rows] = of_label, confidence[every, best] - of_label, classes[best]
    return LabelScores(probability, margin, proposed)


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


def find_suspects(
    videos: VideoList, x: Tensor, near: Neighbours, copies: Sequence[NearCopy]
) -> tuple[Tree, dict[str, list[tuple[int, str]]]]:
    """Find the suspects of a list with features (N, D) and their neighbours; without labels folders are labels.

    Returns them as in results.json, and for the page by title: rows, and what is suspected.
    """
    distance = mean_distances(near)
    outliers = find_outliers(near).tolist()
    labels, line = _doubtful_labels(videos, x, copies)
    results = {
        "outliers": [{**_place(videos, row), "distance": float(distance[row])} for row in outliers],
        "near_copies": [
            {
                "videos": [_place(videos, row) for row in (copy.first, copy.second)],
                "similarity": copy.similarity,
                "equal_files": copy.equal_files,
            }
            for copy in copies
        ],
        "doubtful_labels": [{**_place(videos, row), **facts} for row, facts in labels],
        "labels": line,
    }
    doubts = [
        (row, f"{facts['label']}: perhaps {facts['proposed']}; probability of the label {facts['probability']:.2f}")
        for row, facts in labels
    ]
    return results, {
        "Doubtful labels": doubts,
        "Near copies": [(copy.first, _as_copy(videos, copy)) for copy in copies],
        "Outliers": [(row, f"mean distance {distance[row]:.3f}") for row in outliers],
    }


def _doubtful_labels(videos: VideoList, x: Tensor, copies: Sequence[NearCopy]) -> tuple[list[tuple[int, Tree]], str]:
    """Return rows with a doubtful label and what results.json says of them, the most doubtful first, and a sentence."""
    listed = labelled_by_folders(videos)
    label = listed.labels
    if (label < 0).all():
        reason = why_folders_are_no_classes(videos) or "no labels, and no folders of two videos or more"
        return [], f"Labels are not judged: {reason}."
    if len(videos) > MOST_LABELS:
        return [], f"Labels are not judged: more than {MOST_LABELS:,} videos."
    pairs = [(copy.first, copy.second) for copy in copies]
    scores = score_labels(x, label, recording_groups(listed).joined(pairs, "").number)
    judged = int((scores.proposed >= 0).sum())
    kind = "labels" if listed is videos else "folders as labels"
    labelled = int((label >= 0).sum())
    line = f"{labelled:,} of {len(videos):,} have labels" if labelled < len(videos) else f"{labelled:,} {kind}"
    line += f", {judged:,} are judged" + ("" if judged == labelled else " (the others are of classes of one recording)")
    counts = np.unique(label[scores.proposed >= 0], return_counts=True)[1]
    if not judged or np.median(counts) < ENOUGH_OF_CLASS:
        line += f": too few labels of a class to say that one is wrong; {len(scores.doubtful)} are doubtful."
    else:
        number = len(scores.clearly_wrong)
        line += f": {f'{number} are' if number > 1 else 'one is' if number else 'no label is'} clearly wrong."
    facts = [
        {
            "label": listed.class_name(label[row]),
            "proposed": listed.class_name(scores.proposed[row]),
            "probability": float(scores.probability[row]),
            "margin": float(scores.margin[row]),
        }
        for row in scores.doubtful
    ]
    return [*zip(scores.doubtful.tolist(), facts, strict=True)], line


def _place(videos: VideoList, row: int) -> Tree:
    """Return the path of a row, and the times of its span if it has one."""
    record = videos.records[row]
    times = {} if record.start is None and record.end is None else {"start": record.start, "end": record.end}
    return {"path": videos.names[row], **times}


def _as_copy(videos: VideoList, copy: NearCopy) -> str:
    """Describe the second video of a pair."""
    record, times = videos.records[copy.second], ""
    if (record.start, record.end) != (None, None):
        end = "the end" if record.end is None else f"{record.end:g}"
        times = f", {record.start or 0:g} to {end} s"
    how = "the same file" if copy.equal_files else f"similarity {copy.similarity:.3f}"
    return f"as {videos.names[copy.second]}{times}, {how}"
