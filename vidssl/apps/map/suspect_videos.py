"""Videos to look at in a set: far from all others, copies of another, probably of another class."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.base.errors import VidsslError
from vidssl.data.find_same_videos import find_copies
from vidssl.data.list_identity import state_of_file
from vidssl.data.recordings_and_class_folders import labelled_by_folders, recording_groups
from vidssl.data.video_list import VideoList
from vidssl.evaluation.calibrated_classifier import Rule, left_out_probabilities
from vidssl.evaluation.leave_recording_out import fold_table, same_group
from vidssl.evaluation.search import Neighbours, nearest
from vidssl.jobs.measurement_runner import write_csv
from vidssl.video.reader import open_video

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
    folds = fold_table(groups[rows], target, seed)
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
    labels, line = _doubtful_labels(videos, x, pairs)
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
    doubts = []
    for row, facts in labels:
        how_sure = "clearly" if facts["clearly_wrong"] else "perhaps"
        text = f"labelled {facts['label']} (probability {facts['probability']:.2g}), {how_sure} {facts['proposed']}"
        doubts.append((row, text))
    return results, {
        "Doubtful labels": doubts,
        "Near copies": [
            (a, f"of {named[b][0]} {named[b][1].span}".rstrip() + f", {text}")
            for (a, b, _), text in zip(pairs, how, strict=True)
        ],
        "Outliers": [(row, f"mean distance {distance[row]:.3f}") for row in outliers],
    }


def write_near_copies(path: Path, videos: VideoList, pairs: Sequence[Tree], fps: float | None) -> None:
    """Write `near_copies` of `find_suspects` as a CSV file, by which a person keeps the better one; none without pairs.

    The columns ending in `_1` and `_2` are of both: path, start and end, and of the file bytes, width and height as
    stored, and seconds; what cannot be read is empty. `fps` is that of folders of images without their own.
    """
    path.unlink(missing_ok=True)
    facts_of = {of["path"]: list[float]() for pair in pairs for of in pair["videos"]}
    for name, record in zip(videos.names, videos.records, strict=True):
        with suppress(OSError, VidsslError):
            if facts_of.get(name) == []:
                with open_video(record.path, fps=record.fps or fps or 25) as video:
                    meta, size = video.meta, max(0, state_of_file(record.path)[0][0])
                    facts_of[name] = [size, meta.width, meta.height, round(meta.duration, 2)]
    rows = []
    for pair in pairs:
        sides = [
            [of["path"], of.get("start"), of.get("end"), *(facts_of[of["path"]] or 4 * [None])] for of in pair["videos"]
        ]
        rows.append([*sides[0], *sides[1], round(pair["similarity"], 4), "yes" if pair["equal_files"] else "no"])
    if rows:
        columns = ("path", "start", "end", "bytes", "width", "height", "seconds")
        header = [f"{column}_{n}" for n in (1, 2) for column in columns]
        write_csv(path, [*header, "similarity", "equal_files"], rows)


def _first_equal(videos: VideoList) -> list[int]:
    """Return for each row the first one that equals it byte by byte: a file of the same content, and the same span."""
    first_name, rows = find_copies(videos.root, videos.names), dict[tuple[object, ...], int]()
    named = enumerate(zip(videos.names, videos.records, strict=True))
    return [rows.setdefault((first_name.get(name, name), of.start, of.end), row) for row, (name, of) in named]


def _doubtful_labels(
    videos: VideoList, x: Tensor, copies: Sequence[tuple[int, int, float]]
) -> tuple[list[tuple[int, Tree]], str]:
    """Return rows with a doubtful label and what results.json says of them, the most doubtful first, and a sentence."""
    listed = labelled_by_folders(videos)
    label = listed.labels
    if (label < 0).all():
        return [], "none, as there are no labels"
    if len(videos) > MOST_LABELS:
        return [], f"none, as there are more than {MOST_LABELS:,} videos"
    recordings = recording_groups(listed).joined([copy[:2] for copy in copies], "").number
    scores = score_labels(x, label, recordings)
    judged = int((scores.proposed >= 0).sum())
    labelled = int((label >= 0).sum())
    kind = "videos" if len({*videos.names}) == len(videos) else "windows"
    line = f"{labelled:,} of {len(videos):,} {kind} have a label" + ("" if listed is videos else " (their folder)")
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
            "label": listed.class_name(label[row]),
            "proposed": listed.class_name(scores.proposed[row]),
            "probability": float(scores.probability[row]),
            "margin": float(scores.margin[row]),
            "clearly_wrong": bool(is_enough and scores.margin[row] > LEAST_MARGIN),
        }
        for row in scores.doubtful
    ]
    return [*zip(scores.doubtful.tolist(), facts, strict=True)], line
