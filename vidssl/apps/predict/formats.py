"""Labels and predictions as the tools write and read them in which people correct them: BORIS and Label Studio.

BORIS (Friard and Gamba, 2016): the CSV of its aggregated events, a row for each, and that of its tabular events, a row
for the start and one for the end. Label Studio: JSON tasks; the classes of whole videos are `choices`, and those of
moments `timelinelabels`, ranges of frames from 1 with both ends, for `<Video value="$video" frameRate="$fps">`.
"""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from vidssl.base.atomic import write_json
from vidssl.base.errors import DataError
from vidssl.data.read_labels import NamedLabel, checked_label, read_labels
from vidssl.data.video_list import decimal_number, read_official_json, read_rows
from vidssl.jobs.measurement_runner import write_csv
from vidssl.video.reader import open_video

_log = logging.getLogger(__name__)
_BORIS = ("Observation id", "Subject", "Behavior", "Behavior type", "Start (s)", "Stop (s)", "Duration (s)",
          "Media file name", "Comment start")  # fmt: skip
_UPLOADED = re.compile("^/data/upload/([0-9]+/)?([0-9a-f]{8}-)?")  # before the name of a file that was uploaded
_OF_VIDEO, _OF_MOMENTS = "choices", "timelinelabels"

Row = Mapping[str, Any]  # of predictions.csv: path, start, end, class, confidence; and file, its full path


def read_annotations(path: Path, ignored: Sequence[str] = ()) -> list[NamedLabel]:
    """Read the labels of a CSV file as `read_labels`, of BORIS, or of a JSON file of Label Studio."""
    if path.suffix.lower() == ".json":
        return [*_of_label_studio(path)]
    _, header = next(read_rows(path, "labels=FILE is a CSV file path,label[,start,end]"), (1, []))
    return [*_of_boris(path)] if {"Behavior", "Behavior type"} <= {*header} else read_labels(path, ignored)


def _of_boris(path: Path) -> Iterator[NamedLabel]:
    rows = read_rows(path, "")
    _, header = next(rows)
    open_events: dict[tuple[str, ...], float] = {}
    points = 0
    for line, row in rows:
        event, place = dict(zip(header, row, strict=False)), f"{path}:{line}"
        name = event.get("Media file name") or event.get("Media file") or ""
        try:
            kind, label = event["Behavior type"], event["Behavior"]
            key = event["Observation id"], event.get("Subject", ""), label, name
            if "Start (s)" in event and kind == "STATE":
                start, end = decimal_number(event["Start (s)"]), decimal_number(event["Stop (s)"])
                yield checked_label(name, label, start, end, place)
            elif kind == "START" and key not in open_events:
                open_events[key] = decimal_number(event["Time"])
            elif kind == "STOP" and key in open_events:
                yield checked_label(name, label, open_events.pop(key), decimal_number(event["Time"]), place)
            elif kind in ("START", "STOP"):
                wrong = "starts again before it stops" if kind == "START" else "stops, and has not started"
                raise DataError(f"{place}: {label} {wrong}")
            else:
                points += 1
        except (KeyError, ValueError) as error:
            raise DataError(f"{place}: {error}: it is no table of events of BORIS") from None
    if open_events:
        raise DataError(f"{path}: {next(iter(open_events))[2]} starts, and does not stop")
    if points:
        _log.warning("%s: %d events without a duration are left out", path, points)


def _of_label_studio(path: Path) -> Iterator[NamedLabel]:
    tasks, without = read_official_json(path), 0
    try:
        if not isinstance(tasks, list):
            raise TypeError("it is no list of tasks")
        for number, task in enumerate(tasks):
            place, data = f"{path}: task {number + 1}", task["data"]
            name = unquote(_UPLOADED.sub("", str(data["video"]).rpartition("?d=")[2]))
            # What a model predicted is no label until somebody has accepted it.
            annotations = [entry for entry in task.get("annotations", ()) if not entry.get("was_cancelled")]
            without += not annotations
            for result in annotations[-1]["result"] if annotations else ():
                if result["type"] == _OF_VIDEO:
                    (label,) = result["value"][_OF_VIDEO]
                    yield checked_label(name, label, None, None, place)
                elif result["type"] == _OF_MOMENTS:
                    (label,), fps = result["value"][_OF_MOMENTS], float(data.get("fps") or 0)
                    if not fps > 0:
                        raise DataError(f"{place}: its data has no fps, the frameRate of its Video: add it")
                    for part in result["value"]["ranges"]:
                        yield checked_label(name, label, (part["start"] - 1) / fps, part["end"] / fps, place)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(f"{path} is no JSON of Label Studio with videos of one class each: {error!r}") from None
    if without:
        _log.warning("%s: %d of %d tasks have no annotation: they have no label", path, without, len(tasks))


def write_boris(path: Path, rows: Sequence[Row]) -> None:
    """Write predictions of moments, or of whole videos, as aggregated events; confidences are comments."""
    events = []
    for row in rows:
        start, end = row["start"] or 0.0, row["end"]
        if end is None:
            with open_video(row["file"], fps=row["record"].fps) as video:
                end = video.meta.duration
        spans = (f"{start:.3f}", f"{end:.3f}", f"{end - start:.3f}")
        observation = Path(row["path"]).stem
        events.append([observation, "No focal subject", row["class"], "STATE", *spans, row["path"], row["confidence"]])
    write_csv(path, _BORIS, events)


def write_label_studio(path: Path, rows: Sequence[Row]) -> None:
    """Write predictions as tasks with pre-annotations; files are served from the folder of the videos."""
    tasks: dict[str, Any] = {}
    for row in rows:
        if row["path"] not in tasks:
            with open_video(row["file"], fps=row["record"].fps) as video:
                data = {"video": f"/data/local-files/?d={quote(row['path'])}", "fps": round(video.meta.fps, 6)}
            tasks[row["path"]] = {"data": data, "predictions": [{"model_version": "vidssl", "result": []}]}
        task, label = tasks[row["path"]], row["class"]
        kind, value = _OF_VIDEO, {_OF_VIDEO: [label]}
        if row["end"] is not None:
            fps = task["data"]["fps"]
            first, last = round((row["start"] or 0.0) * fps) + 1, round(row["end"] * fps)
            kind, value = _OF_MOMENTS, {"ranges": [{"start": first, "end": max(first, last)}], _OF_MOMENTS: [label]}
        results = task["predictions"][0]["result"]
        results.append({
            "id": str(len(results)), "from_name": "label", "to_name": "video", "type": kind, "value": value,
            "score": row["confidence"],
        })  # fmt: skip
    write_json(path, [*tasks.values()])


# By the value of `to`: the file, and what writes it.
ANNOTATIONS: dict[str, tuple[str, Callable[[Path, Sequence[Row]], None]]] = {
    "boris": ("predictions.boris.csv", write_boris),
    "label-studio": ("predictions.label-studio.json", write_label_studio),
}
