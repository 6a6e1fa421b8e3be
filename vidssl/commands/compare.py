"""One page that compares runs: untrained against trained, for each label set."""

import json
from pathlib import Path
from typing import Any

from vidssl.commands.retrieval import RANKS
from vidssl.commands.retrieval_page import video_preview
from vidssl.data.video_list import read_list
from vidssl.errors import DataError
from vidssl.viz import training_curves, write_compare_page

_SUMMARY = (
    "A network was trained on videos without being told what they show: two clips of one video, changed in different "
    "ways, have to get similar features. Its features are compared here with those of the same network before "
    "training. For each query video of the test list, the most similar videos of the training list are searched; "
    "R@k is the share of queries with a video of their own class among the k most similar. Labels are used for "
    "counting only."
)

_NUMBERS = (*(f"R@{k}" for k in RANKS), "knn", "chance")  # columns of the table


def compare(folder: Path, runs: tuple[str, ...], metrics: Path, videos: Path) -> str:
    """Write `FOLDER/index.html` and `curves.png` from `FOLDER/RUN/LABELS/results.json`; give the numbers as a table.

    Args:
        folder: Where the results are.
        runs: Names of the runs, the one to compare with first.
        metrics: The metrics.jsonl of the training, for the curves.
        videos: A list, whose classes are shown as playing previews.

    Raises:
        DataError: A file is missing.
    """
    try:
        found = {
            run: {
                path.parent.name: json.loads(path.read_text(encoding="utf-8"))
                for path in sorted((folder / run).glob("*/results.json"))
            }
            for run in runs
        }
        lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise DataError(f"cannot read {error.filename}: {error.strerror}; run the retrievals first") from None
    for run, labels in found.items():
        if not labels:
            raise DataError(f"no results in {folder / run}/*/results.json; run the retrievals first")
        for label in next(iter(found.values())):
            lacking = [name for name in _NUMBERS if name not in labels.get(label, {})]
            if lacking:
                raise DataError(
                    f"{folder / run / label}/results.json lacks {', '.join(lacking)}; search labelled lists first"
                )
    best = found[runs[-1]]
    for run in found:  # what was learned best stands first
        found[run] = dict(sorted(found[run].items(), key=lambda item: -best[item[0]].get("R@1", 0.0)))
    listed = read_list(videos)
    first = {record.label: record for record in reversed(listed.records)}  # of each class the first video
    curves = training_curves(lines)
    (folder / "curves.png").write_bytes(curves)
    write_compare_page(
        folder / "index.html",
        title="vidssl: what was learned from unlabelled videos",
        summary=_SUMMARY,
        runs={
            run: {name: _numbers(results) for name, results in labels.items()}
            for run, labels in found.items()
        },
        curves=curves,
        links=[
            (f"{run}: {name}", f"{run}/{name}/index.html") for run, labels in found.items() for name in labels
        ],
        strip=[(listed.class_name(label), video_preview(first[label].path)) for label in sorted(first)],
    )
    return _table(found)


def _numbers(results: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in results.items() if isinstance(value, int | float)}


def _table(found: dict[str, dict[str, Any]]) -> str:
    head = f"{'labels':<10}{'backbone':<12}" + "".join(f"{name:>8}" for name in _NUMBERS)
    rows = [head, "-" * len(head)]
    for label in next(iter(found.values())):
        for run, labels in found.items():
            cells = "".join(f"{100 * labels[label][name]:8.1f}" for name in _NUMBERS)
            rows.append(f"{label:<10}{run:<12}{cells}")
    return "\n".join(rows)
