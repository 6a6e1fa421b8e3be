"""How far predictions can be trusted: of each labelled video, what is predicted with its recording left out."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vidssl.base.config import Tree
from vidssl.base.errors import first_few
from vidssl.data.recordings_and_class_folders import of_several_recordings
from vidssl.evaluation.calibrated_classifier import (
    FEWEST_OF_CLASS,
    can_choose,
    distance_to,
    farthest,
    nested_probabilities,
    unlikeness,
)
from vidssl.evaluation.leave_recording_out import fold_table, same_group
from vidssl.evaluation.metrics import calibration_error
from vidssl.evaluation.statistics import FEWEST, Estimate, doubts, mean_precision, proportion

_Ints = NDArray[np.int64]
_LARGEST = 1 / 3  # share of the videos in one recording, above which nothing can be said
_UNKNOWN = "Nothing can be said of how far this can be trusted:"
UNSTATED = "Recordings are not known: each video counts as one; clips of one recording make this too high: group=REGEX."
# None where nothing can be said.
_FACTS = ("recall", "precision", "guessing", "majority", "refused", "calibration_error", "predicted", "doubts")


def measure_trust(x: Tensor, label: _Ints, group: _Ints, classes: Sequence[str], unit: str, none: float) -> Tree:
    """Predict each labelled video (N,) with its recording `group` left out, and say how often that is right.

    Recall and precision are means over the classes of several recordings; `measured` names these. Their intervals are
    those of `statistics`; that of precision is a jackknife of recordings. `none` is that of `farthest`.
    """
    several, counts = of_several_recordings(label, group), np.bincount(group)
    num_recordings, largest = int((counts > 0).sum()), float(counts.max() / len(label))
    facts: Tree = {**dict.fromkeys(_FACTS), "examples": len(label), "recordings": num_recordings, "measured": []}
    facts["per_class"] = [
        {"name": name, "examples": int((label == number).sum()), "recordings": len(np.unique(group[label == number])),
         "recall": None, "precision": None}
        for number, name in enumerate(classes)
    ]  # fmt: skip
    if num_recordings < 2 or len(np.unique(label[several])) < 2:
        why = "are of one recording" if num_recordings < 2 else "of each class, or each but one, are of one recording"
        return facts | {"sentences": [f"{_UNKNOWN} all {len(label)} {unit}s {why}; label others, or see group=REGEX."]}
    probability = nested_probabilities(x, label, group, len(classes))
    predicted, of_class = probability.argmax(axis=1), (group[several], label[several])
    recall = proportion((predicted == label)[several].astype(np.float64), *of_class)
    precision = mean_precision(predicted, label, group, several)
    shown = np.unique(label[several])
    facts |= {
        "recall": recall._asdict(),
        "precision": precision._asdict(),
        "guessing": 1 / len(shown),
        "majority": float(np.bincount(label).max() / len(label)),
        "refused": _refused(x, group, label, none)._asdict(),
        "calibration_error": calibration_error(torch.from_numpy(probability), torch.from_numpy(label)),
        "predicted": predicted.tolist(),
        "doubts": doubts(*of_class, not several.all()),
    }
    if largest > _LARGEST:
        return facts | {
            "sentences": [f"{_UNKNOWN} one recording holds {100 * largest:.0f} % of the labels; label others."]
        }
    facts["measured"] = [classes[number] for number in shown.tolist()]
    for number in shown.tolist():
        of_class, named = label == number, label[predicted == number] == number
        facts["per_class"][number]["recall"] = float((predicted[of_class] == number).mean())
        facts["per_class"][number]["precision"] = float(named.mean()) if len(named) else None
    sentences = [*_first(recall, precision, facts, unit), _confusion(predicted, label, several, classes)]
    if alone := [classes[number] for number in np.unique(label[~several]).tolist()]:
        sentences.append(
            f"Not measured: {', '.join(alone)}, with examples of one recording: how often it is predicted rightly is "
            "not known. Label two more recordings, or leave the class out."
        )
    if lacking := [name for number, name in enumerate(classes) if not (label == number).any()]:
        sentences.append(f"No example of {', '.join(lacking)} can be read.")
    if not can_choose(label, group):
        few = [row["name"] for row in facts["per_class"] if 1 < row["recordings"] < FEWEST_OF_CLASS]
        sentences.append(
            f"Fewer than {FEWEST_OF_CLASS} recordings of {first_few(few)}: the classifier is kNN, not compared with "
            "others, and its confidences are not calibrated: of those with 90 % fewer than 9 of 10 may be right."
        )
    return facts | {"sentences": sentences}


def _first(recall: Estimate, precision: Estimate, facts: Tree, unit: str) -> list[str]:
    right = f"{percent(recall)} of the labelled {unit}s are right with their recording left out."
    guessing, majority = (f"{100 * facts[name]:.1f} %" for name in ("guessing", "majority"))
    sentences = [
        right,
        f"That is recall, the mean over classes; precision is {percent(precision)}, guessing has {guessing}, the most "
        f"frequent class {majority}.",
    ]
    if recall.low is None:
        few = f"{facts['recordings']} recordings are too few for an interval: {FEWEST} are needed"
        return [f"Not shown to recognise anything, as {few}.", *sentences]
    if recall.low <= facts["guessing"]:
        return ["Nothing is recognised, as far as can be shown.", *sentences]
    return sentences


def percent(estimate: Estimate) -> str:
    """Format an estimate with its interval, in percent."""
    value = f"{100 * estimate.value:.1f} %"
    return value if estimate.low is None else f"{value} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"  # type: ignore[operator]


def _confusion(predicted: _Ints, label: _Ints, several: NDArray[np.bool_], classes: Sequence[str]) -> str:
    """Name the two classes with the most mistakes, and what they are taken for."""
    worst = []
    for number in np.unique(label[several]).tolist():
        wrong = predicted[(label == number) & (predicted != number)]
        if len(wrong):
            taken = int(np.bincount(wrong).argmax())
            count, total = int((wrong == taken).sum()), int((label == number).sum())
            worst.append((count / total, f"{classes[number]} for {classes[taken]} ({count} of {total})"))
    named = ", ".join(text for _, text in sorted(worst, key=lambda entry: -entry[0])[:2])
    return f"Taken for others most often: {named}." if named else "There are no mistakes."


def _refused(x: Tensor, group: _Ints, label: _Ints, none: float) -> Estimate:
    """Estimate the share of labelled videos that are taken for none of the classes, by folds of recordings."""
    folds, refused = fold_table(group, label), np.zeros(len(label))
    for fold in range(int(folds.max()) + 1):
        test, rest = folds == fold, folds != fold
        threshold = farthest(distance_to(x[rest], x[rest], same_group(group[rest]))[0], none)
        refused[test] = unlikeness(x[test], x[rest], label[rest], group[rest])[0] > threshold
    return proportion(refused, group)
