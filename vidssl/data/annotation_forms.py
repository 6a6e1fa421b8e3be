"""Labels as people write them: a CSV file of names, or what the tools BORIS and Label Studio save.

BORIS (Friard and Gamba, 2016): the CSV of its aggregated events, a row for each, and that of its tabular events, a row
for the start and one for the end. Label Studio: JSON tasks; the classes of whole videos are `choices`, and those of
moments `timelinelabels`, ranges of frames from 1 with both ends, for `<Video value="$video" frameRate="$fps">`.
"""

import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from vidssl.base.command_line_and_notices import log_once
from vidssl.base.errors import DataError
from vidssl.data.read_labels import NamedLabel, checked_label, labels_of_folders, read_labels, split_column
from vidssl.data.video_list import decimal_number, read_official_json, read_rows

_log = logging.getLogger(__name__)
_UPLOADED = re.compile("^/data/upload/([0-9]+/)?([0-9a-f]{8}-)?")  # before the name of a file that was uploaded
OF_VIDEO, OF_MOMENTS = "choices", "timelinelabels"  # types of results of Label Studio


def read_annotations(path: Path, ignored: Sequence[str] = ()) -> list[NamedLabel]:
    """Read the labels of a CSV file as `read_labels`, of BORIS, a JSON file of Label Studio, or a folder of classes."""
    if path.is_dir():
        return labels_of_folders(path)
    if path.suffix.lower() == ".json":
        return [*_of_label_studio(path)]
    file, column = split_column(path)
    _, header = next(read_rows(file, "labels=FILE is a CSV file path,label[,start,end]"), (1, []))
    is_boris = {"Behavior", "Behavior type"} <= {*header} and not column
    return [*_of_boris(path)] if is_boris else read_labels(path, ignored)


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
            raise DataError(f"{place}: {error}: it is not a table of events of BORIS") from None
    if open_events:
        raise DataError(f"{path}: {next(iter(open_events))[2]} starts, and does not stop")
    if points:
        log_once(_log, logging.WARNING, f"{path}: {points} events without a duration are left out")


def _of_label_studio(path: Path) -> Iterator[NamedLabel]:
    tasks, without = read_official_json(path), 0
    try:
        if not isinstance(tasks, list):
            raise TypeError("it is not a list of tasks")
        for number, task in enumerate(tasks):
            place, data = f"{path}: task {number + 1}", task["data"]
            name = unquote(_UPLOADED.sub("", str(data["video"]).rpartition("?d=")[2]))
            # What a model predicted is not a label until somebody has accepted it.
            annotations = [entry for entry in task.get("annotations") or () if not entry.get("was_cancelled")]
            without += not annotations
            for result in annotations[-1]["result"] if annotations else ():
                if result["type"] == OF_VIDEO:
                    (label,) = result["value"][OF_VIDEO]
                    yield checked_label(name, label, None, None, place)
                elif result["type"] == OF_MOMENTS:
                    (label,), fps = result["value"][OF_MOMENTS], float(data.get("fps") or 0)
                    if not fps > 0:
                        raise DataError(f"{place}: its data has no fps, the frameRate of its Video: add it")
                    for part in result["value"]["ranges"]:
                        yield checked_label(name, label, (part["start"] - 1) / fps, part["end"] / fps, place)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise DataError(f"{path} is not a JSON file of Label Studio with videos of one class each: {error!r}") from None
    if without:
        text = f"{without} of {len(tasks)} tasks have no annotation: they have no label"
        log_once(_log, logging.WARNING, f"{path}: {text}")
