"""One page that compares retrieval results of several networks; `make demo` ends with it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vidssl.api.format_results import differing_tests, format_table
from vidssl.api.job_arguments import File, Videos, job, path_of, read_videos
from vidssl.api.measure_networks import JobResults
from vidssl.atomic import write_whole
from vidssl.config import Tree
from vidssl.data.preview_frames import middle_frames
from vidssl.errors import DataError
from vidssl.output_folder import claim, page_with
from vidssl.untrusted_files import parse_json, read_json
from vidssl.viz.curves import training_curves
from vidssl.viz.figure import png
from vidssl.viz.pages import preview, write_compare_page

_TITLE = "vidssl: what was learned from unlabelled videos"
_SUMMARY = (
    "Networks by their retrieval of videos. R@k is the fraction of the queries with a video of their own class among "
    "the k most similar videos of the gallery; labels are for counting only."
)
_NUMBERS = ("R@1", "R@5", "R@10", "R@20", "R@50", "knn", "chance")  # columns of the table

Found = dict[str, dict[str, dict[str, Any]]]  # run -> label set -> results


@job
def compare(folder: File, *, metrics: File, videos: Videos, runs: Sequence[str] = ("random", "trained")) -> JobResults:
    """Compare the retrieval results of several networks on one page.

    Args:
        folder: Holds RUN/LABELS/results.json; index.html and curves.png are written there.
        metrics: Metrics.jsonl of the training, for the curves.
        videos: List with an example video per class.
        runs: The baseline first.

    Returns:
        The results by run and labels.
    """
    folder, metrics = Path(folder), Path(metrics)
    names, before = ("index.html", "curves.png"), page_with("index.html", f"<title>{_TITLE}</title>")
    claim(folder, "comparison", names, inputs={"videos": path_of(videos), "metrics": metrics}, before=before)
    found = _read(folder, runs)
    try:
        lines = [parse_json(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(line, dict) for line in lines):
            raise ValueError("a line is not an object")
    except OSError as error:
        raise DataError(f"cannot read {metrics}: {error.strerror}; run the training first") from None
    except ValueError as error:
        raise DataError(f"{metrics} is damaged: {error}; name the metrics.jsonl of the training") from None
    listed = read_videos(videos, {})
    first = {record.label: record for record in reversed(listed.records)}  # the first video of each class
    curves = png(training_curves(lines))
    write_whole(folder / "curves.png", curves)
    write_compare_page(
        folder / "index.html",
        title=f"Retrieval: {', '.join(runs)}",
        summary=" ".join([_SUMMARY, *(f"{run}: {_network(of_run)}." for run, of_run in found.items())]),
        runs={
            run: {
                labels: {name: value for name, value in results.items() if isinstance(value, int | float)}
                for labels, results in of_run.items()
            }
            for run, of_run in found.items()
        },
        curves=curves,
        links=[
            (f"{run}: {labels}", f"{run}/{labels}/index.html") for run, of_run in found.items() for labels in of_run
        ],
        strip=[(listed.class_name(label), preview(middle_frames(first[label]))) for label in sorted(first)],
    )
    results = JobResults(found)
    rows = [["labels", "backbone", *_NUMBERS]]
    for labels in found[runs[0]]:
        for name, of_run in found.items():
            rows.append([labels, name, *(f"{100 * of_run[labels][number]:.1f}" for number in _NUMBERS)])
    results.text, results.file = "\n".join(format_table(rows, "<<" + ">" * len(_NUMBERS))), folder / "index.html"
    return results


def _network(of_run: dict[str, dict[str, Any]]) -> str:
    """Name the network of a run, as its results do."""
    origin: Tree = next(iter(of_run.values())).get("checkpoint", {})
    if origin.get("path") == "random":
        return f"the untrained network, seed {origin.get('seed')}"
    return f"{origin.get('path', 'unknown')}" + (f", step {origin['step']:,}" if "step" in origin else "")


def _read(folder: Path, runs: Sequence[str]) -> Found:
    """Read the results, the label set that the last run has learned best first."""
    found: Found = {}
    for run in runs:
        paths = sorted((folder / run).glob("*/results.json"))
        found[run] = {path.parent.name: read_json(path) for path in paths}
        if not paths or {*found[run]} != {*found[runs[0]]}:
            raise DataError(f"{folder / run} lacks results of all label sets, */results.json: run the retrievals first")
        for path, results in zip(paths, found[run].values(), strict=True):
            numbers = [results.get(name) if isinstance(results, dict) else None for name in _NUMBERS]
            if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
                raise DataError(f"{path} lacks one of {', '.join(_NUMBERS)}; use lists with labels")
            first = found[runs[0]][path.parent.name]
            if differences := differing_tests(first, results):
                raise DataError(
                    f"{path} is of another test than that of {runs[0]}: {'; '.join(differences)}; search with the same "
                    "lists and options"
                )
    order = sorted(found[runs[0]], key=lambda labels: -found[runs[-1]][labels]["R@1"])
    return {run: {labels: of_run[labels] for labels in order} for run, of_run in found.items()}
