"""Which encoder is best for some videos: predictions of each video with its recording left out, on one page."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Unpack

from vidssl import distributed
from vidssl.api.encoder_scores import OUTPUTS, Encoder, common_rows, extract_all, of_rows, predict_all, right
from vidssl.api.format_results import format_table
from vidssl.api.job_arguments import Count, File, Model, NetworkOptions, Videos, job, models, path_of, read_videos
from vidssl.api.measure_networks import JobResults, name_networks
from vidssl.atomic import write_json
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.data.recording_groups import Groups, chosen_rows, labelled_by_folders, recording_groups
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.errors import DataError
from vidssl.evaluation.group_folds import fits, fold_table, same_group
from vidssl.evaluation.metrics import chance
from vidssl.evaluation.paired_groups import Difference, compare_pairs
from vidssl.evaluation.verdict import Candidate, Verdict, decide
from vidssl.models.bfloat16_check import processor
from vidssl.output_folder import claim, json_with, only_run_in
from vidssl.progress import Report
from vidssl.progress import progress as bar
from vidssl.running_command import command_line
from vidssl.version import __version__
from vidssl.viz.encoders_page import write_encoders_page

FLOORS: tuple[tuple[str, str], ...] = (("thumbnails", "floor:thumbnails"), ("differences", "floor:differences"))
PRIMARY = "knn"
_NAMES = {"knn": "kNN", "R@1": "R@1", "logistic": "logistic"}


@job
def compare(
    videos: Videos,
    *,
    model: Model | Sequence[Model],
    out: File,
    group: str | None = None,
    limit: Count | None = None,
    shots: Sequence[int] = (1, 5, 20),
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Compare encoders on videos: accuracies with recordings left out, intervals, costs, and a verdict on one page.

    Classes are the labels of the list, else the folders. Features and predictions are kept in `out`: one more encoder
    costs only itself.

    Args:
        videos: The videos.
        model: Encoders: checkpoints, names of `load_backbone`, encoders of other libraries.
        out: Folder for index.html and results.json.
        group: Regular expression whose match in the path is the recording (default: as names state it).
        limit: Compare only so many videos, about as many of each class.
        shots: Labels a class of the logistic regressions beside that of all labels.
        progress: Called with (steps done, all steps, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Returns:
        What results.json has.
    """
    folder = Path(out)
    outputs = ["results.json", "index.html", *(f"{name}/*" for name in OUTPUTS)]
    claim(
        folder,
        "encoder comparison",
        outputs,
        inputs={"videos": path_of(videos)},
        before=json_with("results.json", "folds"),
    )
    start = time.perf_counter()
    with distributed.joined(choose_device(options.get("device", "auto"))), only_run_in(folder):
        listed = labelled_by_folders(read_videos(videos, options))
        if limit is not None:
            listed = listed.rows(chosen_rows(listed, limit))
        if (listed.labels < 0).any():
            raise DataError(f"{listed.path} has videos without labels")
        groups = recording_groups(listed, group)
        chosen = [(name, model) for name, model, _ in name_networks(models(model), None)]
        encoders = extract_all([*chosen, *FLOORS], listed, identify(listed), options, folder)
        rows = common_rows(encoders)
        if not len(rows):
            raise DataError(f"no encoder could be measured; the first: {encoders[0].failure}")
        results = _compare(encoders, listed, rows, groups, shots, folder)
        results |= {
            "seconds": time.perf_counter() - start,
            "processor": processor(),
            "date": time.strftime("%Y-%m-%d"),
            "versions": {"vidssl": __version__, "torch": str(torch.__version__)},
        }

        def write() -> None:
            title = f"Encoders for {listed.path.name}"
            write_encoders_page(folder / "index.html", results, title, command_line())
            write_json(folder / "results.json", dict(results))

        distributed.on_main(write)
    results.text, results.file = table(results), folder / "index.html"
    return results


def _compare(
    encoders: Sequence[Encoder],
    videos: VideoList,
    rows: NDArray[np.int64],
    groups: Groups,
    shots: Sequence[int],
    out: Path,
) -> JobResults:
    label = videos.labels[rows]
    _, number = np.unique(groups.number[rows], return_inverse=True)
    folds = fold_table(number, label)
    measured = [encoder for encoder in encoders if encoder.features is not None]
    with bar(title="predictions", unit="fit", total=fits(folds, shots) * len(measured), leave=False) as shown:
        predict_all(measured, rows, number, folds, shots, out, lambda: shown.update(1))
    hits = [right(encoder.predictions, label) for encoder in measured if encoder.predictions is not None]
    pairs = compare_pairs(np.stack([hit[PRIMARY] for hit in hits]), number, label)
    floors = {name for name, _ in FLOORS}
    first = of_rows(measured[0].features, rows) if measured[0].features is not None else None
    assert first is not None
    by_chance = chance(first, first, same_group(number))
    candidates = [
        Candidate(
            encoder.name,
            float(hit[PRIMARY].mean()),
            encoder.facts.get("seconds_per_video"),
            encoder.name in floors,
            encoder.facts["checkpoint"].get("licence", ""),
            encoder.facts["checkpoint"].get("training", ()),
        )
        for encoder, hit in zip(measured, hits, strict=True)
    ]
    counts = [
        (videos.class_name(int(one)), int((label == one).sum()), len(np.unique(number[label == one])))
        for one in np.unique(label)
    ]
    verdict = decide(candidates, pairs, int(number.max()) + 1, counts, by_chance)
    names = [encoder.name for encoder in measured]
    return JobResults(
        {
            "verdict": _verdict(verdict, names),
            "chance": by_chance,
            "encoders": {
                encoder.name: {
                    **encoder.facts,
                    "floor": encoder.name in floors,
                    "accuracy": {measure: float(each.mean()) for measure, each in hit.items()},
                    "predicted": {
                        "knn": encoder.predictions.knn.tolist(),
                        "nearest": encoder.predictions.nearest.tolist(),
                        "logistic": encoder.predictions.logistic.tolist(),
                    },
                }
                for encoder, hit in zip(measured, hits, strict=True)
                if encoder.predictions is not None
            },
            "failed": {encoder.name: encoder.failure for encoder in encoders if encoder.failure is not None},
            "pairs": [_pair(pair, names) for pair in pairs],
            "groups": {"how": groups.how, "count": int(number.max()) + 1, "number": number.tolist()},
            "folds": folds.tolist(),
            "videos": [videos.names[row] for row in rows],
            "labels": label.tolist(),
            "classes": [{"name": name, "videos": count, "groups": recordings} for name, count, recordings in counts],
            "missing": [videos.names[row] for row in np.setdiff1d(np.arange(len(videos.names)), rows)],
        }
    )


def _verdict(verdict: Verdict, names: Sequence[str]) -> Tree:
    return {
        "best": names[verdict.best],
        "cheapest": names[verdict.cheapest],
        "answer": verdict.answer,
        "doubts": list(verdict.doubts),
    }


def _pair(pair: Difference, names: Sequence[str]) -> Tree:
    return {
        "first": names[pair.first],
        "second": names[pair.second],
        "difference": pair.value,
        "interval": None if pair.low is None else [pair.low, pair.high],
        "p": pair.p,
        "p_holm": pair.adjusted,
        "reason": pair.reason or None,
    }


def table(results: JobResults) -> str:
    """Format the accuracies, the best encoder first, and the verdict."""
    encoders: dict[str, Any] = results["encoders"]
    measures = [*next(iter(encoders.values()))["accuracy"]]
    rows = [["encoder", *(_NAMES.get(name, name.replace("logistic_", "log ")) for name in measures), "s a video", "MB"]]
    for name in sorted(encoders, key=lambda one: -encoders[one]["accuracy"][PRIMARY]):
        each = encoders[name]
        seconds = each.get("seconds_per_video")
        cost = ["–" if seconds is None else f"{seconds:.2f}", f"{each['megabytes']:.1f}"]
        rows.append([name, *(f"{100 * each['accuracy'][measure]:.1f}" for measure in measures), *cost])
    lines = format_table(rows, "<" + ">" * (len(measures) + 2))
    verdict = results["verdict"]
    failed = [f"{name} is left out: {reason}" for name, reason in results["failed"].items()]
    return "\n".join([verdict["answer"], "", *lines, "", *verdict["doubts"], *failed])
