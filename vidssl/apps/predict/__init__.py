"""Predict the classes of videos, or of the moments of long ones, from a few labelled examples."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import Unpack

from vidssl.apps.predict.formats import ANNOTATIONS
from vidssl.apps.predict.moments import NONE, Moment, choose_to_label, join_windows, predict_rows
from vidssl.apps.predict.page import write_prediction_page
from vidssl.apps.predict.trust import UNSTATED, measure_trust, percent
from vidssl.base import distributed
from vidssl.base.command_line_and_notices import worded
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError, first_few
from vidssl.base.output_folder import check_file_names, claim, only_run_in
from vidssl.base.progress import Report
from vidssl.base.safe_parse import read_json
from vidssl.base.types import Count, Positive, VideoRecord
from vidssl.data.annotation_forms import read_annotations
from vidssl.data.cut_windows import parse_windows
from vidssl.data.read_labels import below_one_folder, divide_by_labels, find_labelled, separator_of, span_keys
from vidssl.data.recordings_and_class_folders import recording_groups
from vidssl.data.video_list import VideoList
from vidssl.evaluation.calibrated_classifier import (
    CalibratedClassifier,
    Rule,
    VideoClassifier,
    can_choose,
    choose_rule,
    distance_to,
    farthest,
    unlikeness,
)
from vidssl.evaluation.features import TestClips, read_folder
from vidssl.evaluation.leave_recording_out import same_group
from vidssl.evaluation.result_files import complete, write_results
from vidssl.evaluation.statistics import Estimate
from vidssl.evaluation.suspect_videos import classes_amid_others, doubt_in_words, doubtful_labels
from vidssl.jobs.extract import extract, without_list
from vidssl.jobs.job import EncoderOptions, File, Model, NetworkOptions, Videos, job, path_of, read_videos, reading
from vidssl.jobs.load_network import describe_clips, load_subject
from vidssl.jobs.measurement_runner import JobResults, format_table, write_csv
from vidssl.models.external import is_external
from vidssl.models.floors import has_no_graph
from vidssl.models.joined_features import parts_of

PREDICTED = ("path", "start", "end", "class", "confidence", "second_class", "nearest_example", "distance", "measured")
_OWN = ("to_label", "examples.csv")  # files of labels in the folder, which may be given again
TO_LABEL = ("path", "start", "end", "label", "predicted", "confidence")


@job
def predict(
    videos: Videos,
    *,
    labels: Sequence[File],
    out: File,
    model: Model = "vidssl-default",
    features: File | None = None,
    window: Positive | None = None,
    stride: Positive | None = None,
    none: float = 0.05,
    ask: Count = 20,
    group: str | None = None,
    to: Literal["csv", "boris", "label-studio"] = "csv",
    progress: Report = None,
    **options: Unpack[EncoderOptions],
) -> JobResults:
    """Predict the classes of videos, or of moments of long ones, from a few labelled examples, with a page.

    The first line says how often that is right for recordings without labels. Features are kept in `out`: after more
    labels, or with more videos, only what is new is encoded.

    Args:
        videos: Videos to predict; those that have a label are left out.
        labels: Labelled examples: CSV files `path,label[,start,end]`, whose labels are names and whose path may be the
            name of a file among the videos; folders with one for each class; or an export of BORIS or Label Studio.
        out: Folder for index.html, predictions.csv, to_label.csv, examples.csv and results.json.
        model: The network, as in `test`.
        features: Features of some or all of the videos that are there already, as in `extract`.
        window: Predict moments: windows that last so long, seconds; those that touch and agree are joined.
        stride: Seconds from the start of a window to the start of the next (default: half the window).
        none: Videos may be none of the classes: so large a share of videos like the examples is taken for that.
        ask: Videos in to_label.csv, whose labels would help most.
        group: Regular expression for the recording in a path, as in `compare`.
        to: Also write predictions.boris.csv or predictions.label-studio.json, for these tools.
        progress: As of `test`.
        options: See `EncoderOptions`.

    Returns:
        What results.json has.
    """
    folder, files = Path(out), [Path(path) for path in ([labels] if isinstance(labels, str | Path) else labels)]
    if not 0 <= none < 1:
        raise ConfigError(f"none={none:g} is a share of the videos: from 0, which refuses nothing, to below 1")
    stride = window / 2 if stride is None and window is not None else stride
    parse_windows(window, stride)
    filled = [path for path in files if path.parent.resolve() == folder.resolve() and path.name.startswith(_OWN)]
    check_file_names(folder, ["features/features.npy"])
    claim(folder, "predictions", inputs={"videos": path_of(videos)}, read=[*{*files} - {*filled}])
    listed, joined = _read(videos, files, options)
    if group is not None:  # what is wrong with it, or with a list in the folder, is an error now, not after hours
        recording_groups(joined, group)
    _next_list(folder)
    with only_run_in(folder):
        more = without_list(options)
        extract(model, joined, out=folder / "features", features=features, window=window, stride=stride, **more)
        if not distributed.is_main():  # of several processes, which have extracted the features together
            return JobResults()
        separator = ";" if any(separator_of(path) == ";" for path in files) else ","
        rows = [
            (os.path.relpath(row.path, listed.root), row.start, row.end, joined.class_name(row.label))
            for row in joined.labelled_rows().records
        ]
        write_csv(folder / "examples.csv", ("path", "start", "end", "label"), rows, separator)
        return _predict(folder, listed.root, group, none, ask, to, separator)


def _read(videos: Videos, files: Sequence[Path], options: EncoderOptions) -> tuple[VideoList, VideoList]:
    """Read the videos to predict, and the list of these, with the label -1, and of the examples."""
    labels = {path: read_annotations(path, TO_LABEL) for path in files}
    if unlike := next((label.place for of_file in labels.values() for label in of_file if label.label == NONE), None):
        raise DataError(f"{unlike}: the class {NONE!r} is what unlike videos are called: give it another name")
    source, external = path_of(videos), options.get("allow_external", False)
    own = [path for path in files if source is not None and path.resolve() == source.resolve()]
    # A list that is both names the videos; the other files have labels for them.
    among = (
        find_labelled({own[0]: labels[own[0]]}, None, external)
        if own
        else read_videos(videos, reading(options.get("root"), external))
    )
    found = find_labelled(labels, among, external)
    labelled = found.rows(np.flatnonzero(found.labels >= 0).tolist())
    if len(found.classes) < 2:
        there = f"only {found.classes[0]!r}" if found.classes else "no label"
        raise DataError(f"{files[0]} has {there}: a prediction needs examples of two classes or more")
    known, keys = {*span_keys(labelled)}, span_keys(among)
    rest = [replace(row, label=-1) for key, row in zip(keys, among.records, strict=True) if key not in known]
    if not rest:
        raise DataError(f"{among.path}: all videos have labels: leave some empty, or name others to predict")
    return among, below_one_folder([*labelled.records, *rest], among.path, labelled.classes)


def _predict(out: Path, root: Path, group: str | None, none: float, ask: int, to: str, separator: str) -> JobResults:
    """Predict from the features in a folder, and write all files; paths are written relative to `root`.

    Tables have the separator of the labels: a program that writes `;` reads nothing else, see `write_csv`.
    """
    folder = read_folder(out / "features", "give a folder that vidssl extract has written")
    videos, windows = folder.videos(range(len(folder.features))), folder.request.get("windows")
    known, rest = divide_by_labels(videos)
    groups = recording_groups(videos, group)
    number = groups.number
    x, label, classes = folder.features.x[known].clone(), videos.labels[known], folder.classes
    trust = measure_trust(x, label, number[known], classes, "video" if windows is None else "window", none)
    trust |= {"groups": groups.how, "stated": groups.stated}
    trust["sentences"] += [] if groups.stated else [worded(UNSTATED)]
    trust["line"] = " ".join(trust["sentences"])
    rule = choose_rule(x, label, number[known], len(classes)) if can_choose(label, number[known]) else Rule()
    classifier = CalibratedClassifier(rule, x, torch.from_numpy(label), len(classes))
    threshold = farthest(distance_to(x, x, same_group(number[known]))[0], none)
    others, records = folder.features.x[rest], [videos.records[n] for n in rest]
    unlike, distance, example = unlikeness(others, x, label, number[known])
    probability = classifier.of_many(others)
    moments = predict_rows(records, probability, distance, example, classes, unlike > threshold)
    moments = moments if windows is None else join_windows(moments)
    new = [number[rest[moment.row]] not in number[known] for moment in moments]
    asked = choose_to_label(moments, others, x, new, ask)
    rows = [_row(moment, videos.records[known[moment.example]], root, trust["measured"]) for moment in moments]
    write_csv(out / "predictions.csv", PREDICTED, [[row[name] for name in PREDICTED] for row in rows], separator)
    to_label = _next_list(out)
    write_csv(to_label, TO_LABEL, [[rows[n][name] for name in TO_LABEL] for n in asked], separator)
    doubts, judged = _doubt_labels(videos.rows(known), x, number[known], root)
    content: Tree = {
        "trust": trust,
        "rule": rule._asdict(),
        "classifier": str(classifier),
        "predicted": {name: sum(row["class"] == name for row in rows) for name in (*classes, NONE)},
        "none": {"share": none, "distance": None if np.isinf(threshold) else threshold},
        "windows": windows,
        "to_label": to_label.name,
        "labels_to_check": [{key: value for key, value in row.items() if key != "record"} for row in doubts],
        "labels_judged": judged,
        "num_examples": len(known),
        "num_predicted": len(rest),
        "missing": [{"path": path, "reason": reason} for path, reason in folder.features.missing],
        "network": folder.features.made_by["network"],
    }
    request = {**folder.request, "command": "predict", "group": group, "none": none, "ask": ask}
    results = JobResults(complete(content, request=request, overlap=None, query=folder.request["list"]))
    write_prediction_page(out / "index.html", results, rows, asked, doubts)
    write_results(out, results)
    if to in ANNOTATIONS:
        name, write = ANNOTATIONS[to]
        write(out / name, [row for row in rows if row["class"] != NONE])
    results.text, results.file = _summary(results), out / "index.html"
    return results


def network_of(out: Path, trust: bool) -> tuple[nn.Module, TestClips, Tree]:
    """Return the network of a folder of predictions with its classifier, its clips, and what describes both."""
    results, folder = read_json(out / "results.json"), read_folder(out / "features", "predict again")
    name, protocol, options = results["network"], folder.request["protocol"], NetworkOptions(device="cpu", trust=trust)
    if parts_of(name):
        raise ConfigError(f"{out} is predicted by a sum, {name}, which is no graph: predict by one of its networks")
    if is_external(name):
        options["clips"] = protocol["clips"]
    else:
        options["test"] = TestClips.model_validate_json(json.dumps(protocol))
    subject, videos = load_subject(name, options), folder.videos(range(len(folder.features)))
    if has_no_graph(subject.encoder):
        raise ConfigError(f"{out} is predicted by {name}, which has no graph: predict by a network")
    known = np.flatnonzero(videos.labels >= 0)
    x, label = folder.features.x[known], torch.from_numpy(videos.labels[known])
    classifier = CalibratedClassifier(Rule(**results["rule"]), x, label, len(folder.classes))
    description = describe_clips(subject.test) | {
        "input": {"shape": ["views of a video", 3, subject.test.clip.frames, subject.test.size, subject.test.size]},
        "output": "probabilities",
        "classes": [*folder.classes],
        "network": name,
    }
    return VideoClassifier(subject.encoder, classifier).eval(), subject.test, description


def _row(moment: Moment, example: VideoRecord, root: Path, measured: Sequence[str]) -> Tree:
    """Return the row of predictions.csv, and what is shown of it on the page; paths are relative to `root`."""
    row = _row_of(moment.record, root) | {"class": moment.label, "confidence": round(moment.confidence, 4)}
    row |= {"second_class": moment.second, "nearest_example": _named(example, root)}
    row |= {"distance": round(moment.distance, 4), "measured": "yes" if moment.label in measured else "no"}
    row |= {"first": moment.first, "label": "", "predicted": moment.label}
    if moment.label == NONE:  # the probability is that of the nearest class
        row |= {"confidence": None, "second_class": moment.first, "measured": ""}
    return row


def _row_of(record: VideoRecord, root: Path) -> Tree:
    """Return where a video or moment is; the path is relative to `root`."""
    start, end = (None if time is None else round(time, 6) for time in (record.start, record.end))
    return {"path": os.path.relpath(record.path, root), "start": start, "end": end, "record": record}


def _named(record: VideoRecord, root: Path) -> str:
    """Name an example, and its span."""
    span = "" if record.end is None else f"@{record.start or 0:.2f}-{record.end:.2f}"
    return f"{os.path.relpath(record.path, root)}{span}"


def _doubt_labels(examples: VideoList, x: Tensor, number: NDArray[np.int64], root: Path) -> tuple[list[Tree], str]:
    """Return rows of examples (N,) whose labels are to be checked, with the reasons, and how many were judged."""
    doubts, judged = doubtful_labels(examples, x, number)
    for row, near in reversed(classes_amid_others(x, examples.labels, number)):
        label, other = map(examples.class_name, examples.labels[[row, near]].tolist())
        doubts.insert(0, (row, {"label": label, "proposed": other, "nearest": _named(examples.records[near], root)}))
    rows = [_row_of(examples.records[row], root) | facts | {"doubt": doubt_in_words(facts)} for row, facts in doubts]
    return rows, judged


def _next_list(out: Path) -> Path:
    """Return the file of what to label: never one in which somebody has filled in labels."""
    paths = (out / ("to_label.csv" if n == 1 else f"to_label_{n}.csv") for n in count(1))
    return next(p for p in paths if not p.exists() or not any(row.label for row in read_annotations(p, TO_LABEL)))


def _summary(results: JobResults) -> str:
    """Format what is printed: how far it can be trusted, and how many videos of each class."""
    trust = results["trust"]
    rows = [["", "predicted", ""]]
    for name, number in results["predicted"].items():
        rows.append([name, f"{number:,}", "" if name in (*trust["measured"], NONE) else "not measured"])
    lines = [trust["line"], "", *format_table(rows, "<><"), results["classifier"]]
    refused, limit = trust["refused"], results["none"]["distance"]
    if limit is None:
        lines.append(f"No video is taken for {NONE}: there are too few examples, or none=0")
    elif refused is not None:
        lines.append(
            f"Of the labelled ones {percent(Estimate(**refused))} would be taken for {NONE}, with recordings left out"
        )
    if doubts := [f"{row['path']}, {row['doubt']}" for row in results["labels_to_check"]]:
        lines.append(f"Labels to check: {first_few(doubts, separator='; ')}")
    lines.append(
        f"{results['to_label']}: whose labels would help most; fill in the column label, and give it as labels too"
    )
    return "\n".join(lines)
