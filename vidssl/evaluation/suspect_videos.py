"""Videos to look at in a set: far from all others, copies of another, probably of another class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.data.find_same_videos import find_copies
from vidssl.data.recordings_and_class_folders import labelled_by_folders, of_several_recordings, recording_groups
from vidssl.data.video_list import VideoList
from vidssl.evaluation.calibrated_classifier import Rule, left_out_probabilities
from vidssl.evaluation.leave_recording_out import fold_table, same_group
from vidssl.evaluation.search import Neighbours, nearest

SUSPECT_NEIGHBOURS = 10  # neighbours
_TEMPERATURE = 0.07  # of the vote, as in the kNN of the evaluation
_COST = 0.01  # of the logistic regression
_FLOOR = 1e-3  # of a probability: neither of the two classifiers alone excludes a class
LEAST_MARGIN = 0.7  # of a label that is clearly wrong; benchmarks/suspects.py measures it
ENOUGH_OF_CLASS = 20  # labels of the median class: with fewer hardly a wrong label is beyond the margin
AMID_NEIGHBOURS, AMID_QUANTILE = 3, 0.25  # of a class of one recording that lies among those of another class
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


def score_labels(x: Tensor, label: _Rows, groups: _Rows) -> LabelScores:
    """Score the labels (N,) of videos with features (N, D) by the labels of the others; -1 is no label.

    The confidence in a class is the geometric mean of two out-of-sample estimates, as in confident learning (Northcutt
    et al., 2021): a logistic regression that has not seen the recording (`groups` (N,)), and a vote of the 10 nearest
    other videos, also those of the same recording. The first finds recordings that are wrong as a whole, the second
    single videos. Classes of one recording are not judged, nor anything where there are fewer than two other classes.
    """
    probability, margin = np.full((2, len(label)), np.nan)
    proposed = np.full(len(label), -1)
    rows = np.flatnonzero((label >= 0) & of_several_recordings(label, groups))
    classes = np.unique(label[rows])
    if len(classes) < 2:
        return LabelScores(probability, margin, proposed)
    part, target = x[torch.from_numpy(rows)], np.searchsorted(classes, label[rows])
    folds = fold_table(groups[rows], target)
    left_out = left_out_probabilities(part, target, folds, len(classes), lambda rest: Rule(_COST))
    confidence = np.sqrt((left_out + _FLOOR) * (_voted(part, target, len(classes)) + _FLOOR))
    confidence /= confidence.sum(axis=1, keepdims=True)
    every = np.arange(len(rows))
    of_label = confidence[every, target]
    confidence[every, target] = -1
    best = confidence.argmax(axis=1)
    probability[rows], margin[rows], proposed[rows] = of_label, confidence[every, best] - of_label, classes[best]
    return LabelScores(probability, margin, proposed)


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
    videos: VideoList, x: Tensor, near: Neighbours, copies: Sequence[tuple[int, int, float]]
) -> tuple[Tree, dict[str, list[tuple[int, str]]]]:
    """Find the suspects of a list with features (N, D), their neighbours and near copies; folders may be labels.

    Returns them as in results.json, and for the page by title: rows, and what is suspected.
    """
    distance, outliers, first = mean_distances(near), find_outliers(near).tolist(), _first_equal(videos)
    equal = [(first_row, row, 1.0) for row, first_row in enumerate(first) if row != first_row]
    pairs = [*equal, *(copy for copy in copies if first[copy[0]] != first[copy[1]])]
    labelled = labelled_by_folders(videos)
    recordings = recording_groups(labelled).joined([pair[:2] for pair in pairs], "").number
    labels, line = doubtful_labels(labelled, x, recordings)
    named = [*zip(videos.names, videos.records, strict=True)]
    places = [{"path": name, **({"start": of.start, "end": of.end} if of.span else {})} for name, of in named]
    how = ["the same content"] * len(equal) + [f"similarity {pair[2]:.3f}" for pair in pairs[len(equal) :]]
    results = {
        "outliers": [{**places[row], "distance": float(distance[row])} for row in outliers],
        "near_copies": [
            {"videos": [places[a], places[b]], "similarity": value, "equal_files": n < len(equal)}
            for n, (a, b, value) in enumerate(pairs)
        ],
        "doubtful_labels": [{**places[row], **facts} for row, facts in labels],
        "labels": line,
    }
    return results, {
        "Doubtful labels": [(row, doubt_in_words(facts)) for row, facts in labels],
        "Near copies": [
            (a, f"of {named[b][0]} {named[b][1].span}".rstrip() + f", {text}")
            for (a, b, _), text in zip(pairs, how, strict=True)
        ],
        "Outliers": [(row, f"mean distance {distance[row]:.3f}") for row in outliers],
    }


def _first_equal(videos: VideoList) -> list[int]:
    """Return for each row the first one that equals it byte by byte: a file of the same content, and the same span."""
    first_name, rows = find_copies(videos.root, videos.names), dict[tuple[object, ...], int]()
    named = enumerate(zip(videos.names, videos.records, strict=True))
    return [rows.setdefault((first_name.get(name, name), of.start, of.end), row) for row, (name, of) in named]


def classes_amid_others(x: Tensor, label: _Rows, recordings: _Rows) -> list[tuple[int, int]]:
    """Return a row of each class of one recording that lies among those of another class, and the nearest of these.

    Of all its rows the 3 nearest are of the other class, and the nearest is nearer than a quarter of the rows of that
    class are to their nearest one of another recording.
    """
    amid = []
    near, several = nearest(x, x, AMID_NEIGHBOURS, same_group(recordings)), of_several_recordings(label, recordings)
    around = np.where(near.index >= 0, label[near.index], -1)
    for number in np.unique(label[~several]):
        of_class = label == number
        other = label == around[of_class][0, 0]
        if (around[of_class] == around[of_class][0, 0]).all() and several[other].any():
            among = nearest(x[other], x[other], 1, same_group(recordings[other])).similarity
            if near.similarity[of_class, 0].min() > torch.quantile(among, AMID_QUANTILE):
                row = int(np.flatnonzero(of_class)[0])
                amid.append((row, int(near.index[row, 0])))
    return amid


def doubt_in_words(facts: Tree) -> str:
    """Say why a label is doubtful."""
    if "nearest" in facts:
        return f"the only recording of {facts['label']}, among those of {facts['proposed']} ({facts['nearest']})"
    how_sure = "clearly" if facts["clearly_wrong"] else "perhaps"
    return f"labelled {facts['label']} (probability {facts['probability']:.2g}), {how_sure} {facts['proposed']}"


def doubtful_labels(videos: VideoList, x: Tensor, recordings: _Rows) -> tuple[list[tuple[int, Tree]], str]:
    """Return rows with a doubtful label and what results.json says of them, the most doubtful first, and a sentence.

    The videos (N,) have features (N, D); `recordings` (N,) are their numbers.
    """
    label = videos.labels
    if (label < 0).all():
        return [], "none, as there are no labels"
    if len(videos) > MOST_LABELS:
        return [], f"none, as there are more than {MOST_LABELS:,} videos"
    scores = score_labels(x, label, recordings)
    judged = int((scores.proposed >= 0).sum())
    labelled = int((label >= 0).sum())
    kind = "videos" if len({*videos.names}) == len(videos) else "windows"
    of_folders = " (their folder)" * (videos.label_source == "folders")
    line = f"{labelled:,} of {len(videos):,} {kind} have a label{of_folders}"
    if not judged:
        return [], f"{line}, none is judged: fewer than two classes have videos of two recordings"
    line += f", {judged:,} are judged" + ("" if judged == labelled else " (the others are of classes of one recording)")
    counts = np.unique(label[scores.proposed >= 0], return_counts=True)[1]
    is_enough = np.median(counts) >= ENOUGH_OF_CLASS
    if is_enough:
        line += f", {len(scores.clearly_wrong) or 'none'} clearly wrong"
    else:
        line += f": too few labels of a class to say that one is wrong; {len(scores.doubtful)} are doubtful"
    facts = [
        {
            "label": videos.class_name(label[row]),
            "proposed": videos.class_name(scores.proposed[row]),
            "probability": float(scores.probability[row]),
            "margin": float(scores.margin[row]),
            "clearly_wrong": bool(is_enough and scores.margin[row] > LEAST_MARGIN),
        }
        for row in scores.doubtful
    ]
    return [*zip(scores.doubtful.tolist(), facts, strict=True)], line
