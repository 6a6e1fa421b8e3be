"""The labels that a command uses: those of a file, the folders, those of the list, or none; and their one line."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np

from vidssl.base.command_line_and_notices import log_once, worded
from vidssl.base.errors import DataError, first_few
from vidssl.data.annotation_forms import read_annotations
from vidssl.data.read_labels import LabelledSpans, is_whole, match_labels, span_keys
from vidssl.data.recordings_and_class_folders import FEW_NAMES, camera_line, first_folders, labelled_by_folders
from vidssl.data.video_list import VideoList, rows_by

_log = logging.getLogger(__name__)


def label_videos(
    videos: VideoList, labels: str | Path | None, required: bool = True, add_spans: bool = True
) -> VideoList:
    """Label videos by a file, by their `folders`, or not at all (`none`); None: they keep the labels of their list.

    A file has labels for some of the videos, as of `read_annotations`; the others have -1. A row has the label of the
    span of the file that has the largest part of it, more than half, else that of its video. Labelled spans of a whole
    video are added as rows, with `add_spans`. Classes are the names in the file, sorted.

    Raises:
        DataError: The file labels none of the videos, if a label is `required`, or breaks a rule; there are no two
            folders.
    """
    if labels is None:
        return videos
    if str(labels) in ("folders", "none"):
        blank = videos.relabelled([-1] * len(videos), (), "none")
        return blank if str(labels) == "none" else labelled_by_folders(blank, requested=True)
    path = Path(labels)
    named = read_annotations(path)
    matched = match_labels({path: named}, videos, allow_external=True, required=required)
    known = {key: label for key, (_, label) in matched.items() if label.label}
    classes = sorted({label.label for label in named} - {""})
    number = {name: n for n, name in enumerate(classes)}
    keys, spans = span_keys(videos), LabelledSpans(known)
    nearest = [spans.largest_part(key) for key in keys]
    numbers = (-1 if key is None else number[known[key].label] for key in nearest)
    listed, rows, unused = videos.relabelled(numbers, classes, path), rows_by(keys), known.keys() - {*nearest}
    for key, label in known.items():
        if add_spans and key not in rows and (whole := rows.get((key[0], 0.0, None))):
            row = replace(videos.records.row(whole[0]), label=number[label.label], start=label.start, end=label.end)
            listed.records.append(row, videos.records.root_of(whole[0]))
            unused.discard(key)
    files = {file for file, _, _ in keys}
    of_videos = [key for key in known if key[0] in files]
    if required and not (listed.labels >= 0).any():
        why = "no span is more than half of one" if of_videos else "all are empty: fill in their column"
        if known and not of_videos:
            why = f"it names {first_few(label.name for label in named)}; they are {first_few(videos.names)}"
        raise DataError(f"{path} has no label of a {videos.unit} of {videos.path}: {why}")
    lost = [f"{known[key].name} ({known[key].place})" for key in of_videos if key in unused and not is_whole(key)]
    if required and lost:
        text = f"{len(lost)} of {len(named)} spans are the largest part of no {videos.unit}: {first_few(lost)}"
        log_once(_log, logging.WARNING, f"{path}: {text}")
    return listed


def describe_labels(videos: VideoList) -> str:
    """Say in one line what the labels of videos are, of how many, and how others are given."""
    return worded(f"labels: {_what_labels_are(videos)}")


def _what_labels_are(videos: VideoList) -> str:
    source, several = videos.label_source, videos.targets is not None
    known = np.ones(len(videos), bool) if several else videos.labels >= 0
    count, classes = int(known.sum()), np.unique(videos.labels[known]).tolist()
    if source == "cameras":
        return f"none, as {camera_line(sorted({*first_folders(videos)} - {''}))}"
    if not count:
        return "none; labels=FILE gives names of classes"
    of_videos = "" if count == len(videos) else f", {count} of {len(videos)} {videos.unit}s"
    if source == "folders":
        names = first_few((videos.class_name(n) for n in classes), FEW_NAMES)
        return f"the {len(classes)} folders {names}{of_videos}; other classes: labels=FILE"
    whose = "the list's" if source == "list" else Path(source).name
    if several:
        return f"{whose}, several a video, {len(videos.classes)} classes"
    return f"{whose}{of_videos}, {len(classes)} class{'es' * (len(classes) != 1)}"
