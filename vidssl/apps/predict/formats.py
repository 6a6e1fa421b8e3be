"""Predictions as the tools read them in which people correct them, BORIS and Label Studio: see `read_annotations`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from vidssl.base.atomic import write_json
from vidssl.data.annotation_forms import OF_MOMENTS, OF_VIDEO
from vidssl.jobs.measurement_runner import write_csv
from vidssl.video.reader import open_video

_BORIS = ("Observation id", "Subject", "Behavior", "Behavior type", "Start (s)", "Stop (s)", "Duration (s)",
          "Media file name", "Comment start")  # fmt: skip

Row = Mapping[str, Any]  # of predictions.csv: path, start, end, class, confidence; and record


def write_boris(path: Path, rows: Sequence[Row]) -> None:
    """Write predictions of moments, or of whole videos, as aggregated events; confidences are comments."""
    events = []
    for row in rows:
        start, end = row["start"] or 0.0, row["end"]
        if end is None:
            with open_video(row["record"].path, fps=row["record"].fps) as video:
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
            with open_video(row["record"].path, fps=row["record"].fps) as video:
                data = {"video": f"/data/local-files/?d={quote(row['path'])}", "fps": round(video.meta.fps, 6)}
            tasks[row["path"]] = {"data": data, "predictions": [{"model_version": "vidssl", "result": []}]}
        task, label = tasks[row["path"]], row["class"]
        kind, value = OF_VIDEO, {OF_VIDEO: [label]}
        if row["end"] is not None:
            fps = task["data"]["fps"]
            first, last = round((row["start"] or 0.0) * fps) + 1, round(row["end"] * fps)
            kind, value = OF_MOMENTS, {"ranges": [{"start": first, "end": max(first, last)}], OF_MOMENTS: [label]}
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
