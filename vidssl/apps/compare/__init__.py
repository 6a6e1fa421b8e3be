"""Which encoder is best for some videos: predictions of each video with its recording left out, on one page."""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Unpack

from vidssl.apps.compare.features_and_predictions import (
    OF_SAME_CLIPS,
    ComparedEncoder,
    common_rows,
    extract_all,
    of_rows,
    predict_all,
    right,
)
from vidssl.apps.compare.neighbour_agreement import common_neighbours, disagreement
from vidssl.apps.compare.page import by_accuracy, disputed_row, score_column, write_encoders_page
from vidssl.apps.compare.verdict import decide, describe_without_labels
from vidssl.base import distributed
from vidssl.base.atomic import write_json
from vidssl.base.command_line_and_notices import command_line, log_once
from vidssl.base.config import Tree
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.output_folder import claim, only_run_in
from vidssl.base.progress import Report
from vidssl.base.progress import progress as bar
from vidssl.data.label_videos import describe_labels, label_videos
from vidssl.data.recordings_and_class_folders import (
    Groups,
    chosen_rows,
    labelled_by_folders,
    of_several_recordings,
    recording_groups,
)
from vidssl.data.video_list import VideoList
from vidssl.evaluation.calibrated_classifier import mean_recall
from vidssl.evaluation.leave_recording_out import fits, fold_table, num_neighbours, same_group
from vidssl.evaluation.metrics import majority
from vidssl.evaluation.near_copies import near_copies_in
from vidssl.evaluation.result_files import complete
from vidssl.evaluation.statistics import Difference, Estimate, compare_pairs, doubts, proportions
from vidssl.jobs.job import Count, File, Model, NetworkOptions, Positive, Videos, job, models, path_of, read_videos
from vidssl.jobs.measurement_runner import JobResults, format_table, name_networks, write_csv
from vidssl.models.convolution_check import processor
from vidssl.models.floors import FLOORS
from vidssl.models.joined_features import parts_of
from vidssl.page.previews import of_middles, preview

_log = logging.getLogger(__name__)
PRIMARY = "knn"
DISAGREEMENTS = "disagreements.csv"
_LISTED = 20  # on the page
_ONE_RECORDING = "no class has videos of two recordings: add videos, or see group=REGEX"


@job
def compare(
    videos: Videos,
    *,
    model: Model | Sequence[Model] | Mapping[str, Model],
    out: File,
    features: Sequence[File] = (),
    more_labels: Sequence[File] = (),
    group: str | None = None,
    limit: Count | None = None,
    shots: Sequence[int] = (1, 5, 20),
    same_clips: Positive | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Compare encoders on videos: accuracies with recordings left out, intervals, costs, and a verdict on one page.

    Classes are those of `labels`, else of the list, else the folders; what has none is left out. Without any the page
    says what can be said without labels.
    Features and predictions are kept in `out`: one more encoder costs only itself.

    Args:
        videos: The videos.
        model: Encoders: checkpoints, names of `load_backbone`, encoders of other libraries, modules; a mapping names
            them.
        out: Folder for index.html and results.json.
        features: Folders of features that are there already, as in `extract`, each for the encoder that it is of.
        more_labels: Files of other labels of the same videos, as `labels`, each a section of the page.
        group: Regular expression for the recording in a path: its first capture group, else its match (default: as
            names state it).
        limit: Compare only so many videos, about as many of each class.
        shots: Labels per class of the logistic regressions.
        same_clips: Seconds: measure each encoder also on 4 clips of that length, the same for all.
        progress: Called with (steps done, all steps, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Returns:
        What results.json has.
    """
    folder = Path(out)
    files = [Path(path) for path in more_labels]
    read = [*files, Path(options.get("labels", "none"))]  # a list of what to label next is written over
    claim(folder, "encoder comparison", inputs={"videos": path_of(videos)}, read=read)
    start = time.perf_counter()
    with distributed.joined(choose_device(options.get("device", "auto"))), only_run_in(folder):
        listed = read_videos(videos, options)
        compared, lists, what, part = _label_lists(labelled_by_folders(listed), files, limit)
        for line in what:
            log_once(_log, logging.INFO, line)
        groups = recording_groups(compared, group)
        _check(compared, lists, groups)
        requested = _name_encoders(model)
        measured, strict = _with_parts_and_floors(requested), listed.is_test_set
        encoders, failures = extract_all(
            measured, compared, options, folder, same_clips, strict, part, [*map(Path, features)]
        )
        if not requested.keys() & {encoder.name for encoder in encoders}:
            raise next(iter(failures.values()))  # floors alone compare nothing
        rows = common_rows(encoders)
        if not len(rows):
            raise DataError(f"{compared.path}: there is no video that all encoders can be measured on")
        for encoder in encoders:
            encoder.features = of_rows(encoder.features, rows)
            encoder.part = not encoder.floor and encoder.name.removesuffix(OF_SAME_CLIPS) not in requested
        groups, copies, not_searched = _with_copies(
            groups.of_rows(rows), encoders, compared.rows(rows.tolist()), options, folder
        )
        names = [compared.names[row] for row in rows]
        sections = [
            {"name": name, "what": line} | _section(encoders, labelled, groups.number, copies, shots, folder)
            for name, line, labelled in zip(_names(lists), what, (x.rows(rows.tolist()) for x in lists), strict=False)
        ]
        pairs = common_neighbours({encoder.name: encoder.features.x for encoder in encoders}, groups.number)
        num_groups = int(groups.number.max()) + 1
        content: Tree = {
            "labels": what[0],
            "sections": sections,
            "common_neighbours": pairs,
            "encoders": {
                encoder.name: {**encoder.facts, "floor": encoder.floor, "part": encoder.part} for encoder in encoders
            },
            "failed": {name: str(error) for name, error in failures.items()},
            "groups": {"how": groups.how, "count": num_groups, "number": groups.number.tolist()},
            "near_copies": [[names[first], names[second]] for first, second in copies],
            "near_copies_not_searched": not_searched,
            "videos": names,
            "missing": _missing(compared, rows, encoders),
            "seconds": time.perf_counter() - start,
            "processor": processor(),
        }
        if not lists:
            floors = [encoder.name for encoder in encoders if encoder.floor]
            sentences = describe_without_labels(floors, pairs, len(copies), num_groups)
            content["without_labels"] = {"sentences": sentences}
        request = {"group": group, "limit": limit, "shots": [*shots], "same_clips": same_clips, "weights": None}
        results = JobResults(content | complete({}, request=request, overlap=None, query=compared.fingerprint))
        distributed.on_main(partial(_write, folder, results, compared.rows(rows.tolist())))
    texts = [comparison_table(results, section) for section in sections]
    texts = texts or [what[0], *results["without_labels"]["sentences"]]
    texts += [f"near copies: {not_searched}"] if not_searched else []
    results.text, results.file = "\n\n".join(texts), folder / "index.html"
    return results


def _label_lists(
    videos: VideoList, files: Sequence[Path], limit: int | None
) -> tuple[VideoList, list[VideoList], list[str], Tree]:
    """Return the videos that are compared, the lists of their labels, what each says, and which part of them it is.

    The first list is their own, if it has labels. Videos without a label in any list are left out, if there are lists.
    """
    lists = [label_videos(videos, path) for path in files]
    if longer := next((labelled.label_source for labelled in lists if len(labelled) > len(videos)), None):
        raise DataError(f"{longer} has labels of spans, which are rows of their own: give it as labels=FILE")
    if (videos.labels >= 0).any() or videos.targets is not None:
        lists = [videos, *lists]
    what, part = [*map(describe_labels, lists)] or [describe_labels(videos)], Tree()
    known = np.any([labelled.labels >= 0 for labelled in lists if labelled.targets is None], axis=0)
    if np.any(known) and not np.all(known):
        part["labelled"] = True
        videos, *lists = (labelled.rows(np.flatnonzero(known).tolist()) for labelled in (videos, *lists))
    if limit is not None:
        part["limit"] = limit
        rows = chosen_rows((lists or [videos])[0], limit)
        videos, *lists = (labelled.rows(rows) for labelled in (videos, *lists))
    return videos, lists, what, part


def _name_encoders(model: Model | Sequence[Model] | Mapping[str, Model]) -> dict[str, Model]:
    if not isinstance(model, Mapping):
        model = {name: network for name, network, _ in name_networks(models(model), None)}
    if not model:
        raise ConfigError("model names no encoder: give one or more")
    return dict(model)


def _with_parts_and_floors(requested: Mapping[str, Model]) -> list[tuple[str, Model]]:
    """Add the parts of sums `A+B` and the floors to the encoders; a floor takes another name if its own is taken."""
    floors = {f"floor:{name}": f"floor:{name}" if name in requested else name for name in FLOORS}
    sums = [parts_of(model) for model in requested.values() if len(parts_of(model)) > 1]
    parts = {part.model: part.model for parts in sums for part in parts if part.model not in floors}
    named = {str(model) for model in requested.values()}
    added = [(name, model) for model, name in {**parts, **floors}.items() if model not in named]
    return [*requested.items(), *added]


def _check(videos: VideoList, lists: Sequence[VideoList], groups: Groups) -> None:
    """Raise a DataError if nothing can be compared on the videos, or by the labels of one of the lists."""
    if len(videos) < 2:
        raise DataError(f"{videos.path}: a comparison needs two videos or more{' with labels' if lists else ''}")
    for labelled in lists:
        if labelled.targets is not None:
            raise DataError(f"{labelled.path} has several labels per video: a comparison needs one of each")
        known = labelled.labels >= 0
        label = labelled.labels[known]
        if max(Counter(label.tolist()).values(), default=0) < 2:
            many = f"no class has two videos, of {len(label)} with labels"
            raise DataError(f"{_file(labelled)}: {many}: label more, or raise limit")
        if not of_several_recordings(label, groups.number[known]).any():
            raise DataError(f"{_file(labelled)}: {_ONE_RECORDING}")


def _names(lists: Sequence[VideoList]) -> list[str]:
    """Name lists by their folders, or by their own names if they are in one folder."""
    paths = [_file(list_).resolve() for list_ in lists]
    folders = [path.parent.name if path.suffix == ".csv" else path.name for path in paths]
    return folders if len({*folders}) == len(folders) else [f"{path.parent.name}/{path.stem}" for path in paths]


def _file(videos: VideoList) -> Path:
    """Return the file that the labels are from, or the videos."""
    return videos.label_source if isinstance(videos.label_source, Path) else videos.path


def _missing(videos: VideoList, rows: NDArray[np.int64], encoders: Sequence[ComparedEncoder]) -> list[Tree]:
    """Describe the videos that are not compared, as an encoder could not read them."""
    reasons = {path: reason for encoder in encoders for path, reason in encoder.features.missing}
    lacking = np.setdiff1d(np.arange(len(videos)), rows).tolist()
    return [{"path": videos.names[row], "reason": reasons.get(videos.records[row].path, "")} for row in lacking]


def _with_copies(
    groups: Groups, encoders: Sequence[ComparedEncoder], videos: VideoList, options: NetworkOptions, out: Path
) -> tuple[Groups, list[tuple[int, int]], str]:
    """Find near copies in different recordings, and join them into one if the recordings are not stated.

    The third result is what was not searched for copies, and why.
    """
    features = [encoder.features.x for encoder in encoders if encoder.floor]
    workers = options.get("workers", 2)
    work = partial(near_copies_in, out / "near_copies.json", videos, features, same_group(groups.number), None, workers)
    pairs, not_searched = distributed.on_main(work)
    copies = [(first, second) for first, second, _ in pairs]
    if not groups.stated and copies:
        groups = groups.joined(copies, f"{groups.how}, near copies too ({len(copies)})")
    return groups, copies, not_searched


def _section(
    encoders: Sequence[ComparedEncoder],
    videos: VideoList,
    number: NDArray[np.int64],
    copies: Sequence[tuple[int, int]],
    shots: Sequence[int],
    out: Path,
) -> Tree:
    """Compare the encoders by the labels that some videos (N,) have; `number` (N,) are their recordings."""
    rows = np.flatnonzero(videos.labels >= 0)
    num_copies = sum(
        number[first] != number[second] and videos.labels[first] >= 0 <= videos.labels[second]
        for first, second in copies
    )
    label, number = videos.labels[rows], number[rows]
    features = [of_rows(encoder.features, encoder.features.index.numpy()[rows]) for encoder in encoders]
    encoders = [replace(encoder, features=x) for encoder, x in zip(encoders, features, strict=True)]
    several = of_several_recordings(label, number)
    if not several.any():
        raise DataError(f"{_file(videos)}: {_ONE_RECORDING}")
    folds = fold_table(number, label)
    with bar(title="predictions", unit="fit", total=fits(folds, shots) * len(encoders), leave=False) as fits_bar:
        predicted = predict_all(encoders, label, number, folds, shots, out, partial(fits_bar.update, 1))
    hits = {name: right(predictions, label) for name, predictions in predicted.items()}
    of_class = number[several], label[several]  # the primary number is a mean over these classes
    primary = np.stack([hit[PRIMARY][several] for hit in hits.values()])
    means = proportions(primary, *of_class)
    mean_of = dict(zip(hits, means, strict=True))
    networks = [encoder.facts["features"] for encoder in encoders]
    floors = [n for n, encoder in enumerate(encoders) if encoder.floor]
    pairs = compare_pairs(primary, *of_class, floors, networks)
    most_frequent = majority(torch.from_numpy(label))["majority"]
    guessing = dict.fromkeys(next(iter(hits.values())), most_frequent)
    guessing |= dict.fromkeys((PRIMARY, "chosen"), 1 / len(np.unique(of_class[1])))  # means over classes
    classes = [
        {"name": videos.class_name(n), "videos": int(np.sum(label == n)), "groups": len(np.unique(number[label == n]))}
        for n in np.unique(label).tolist()
    ]
    return {
        "verdict": decide(
            encoders, means, pairs, classes, guessing[PRIMARY], doubts(*of_class, not several.all()), int(num_copies)
        ),
        "guessing": guessing,
        "neighbours": num_neighbours(label),
        "fewest_labels": min(int(np.sum(label[folds != fold] == n)) for fold in {*folds} for n in {*of_class[1]}),
        "accuracy": {
            name: {measure: float(part.mean()) for measure, part in hit.items()}
            | {PRIMARY: mean_of[name].value, "chosen": mean_recall(predicted[name].chosen, label, several)}
            for name, hit in hits.items()
        },
        "intervals": {name: _interval(mean) for name, mean in mean_of.items()},
        "predicted": {
            name: {key: getattr(predictions, key).tolist() for key in ("knn", "nearest", "chosen")}
            for name, predictions in predicted.items()
        },
        "pairs": [_pair(pair, [*hits]) for pair in pairs],
        "folds": folds.tolist(),
        "rows": rows.tolist(),
        "labels": label.tolist(),
        "classes": classes,
    }


def _interval(estimate: Estimate | Difference) -> list[float | None] | None:
    return None if estimate.low is None else [estimate.low, estimate.high]


def _pair(pair: Difference, names: Sequence[str]) -> Tree:
    return {
        "first": names[pair.first],
        "second": names[pair.second],
        "difference": pair.value,
        "interval": _interval(pair),
        "p": pair.p,
        "p_holm": pair.adjusted,
        "reason": pair.reason or None,
    }


def comparison_table(results: JobResults, section: Tree) -> str:
    """Format the accuracies of a section, the best encoder first, and its verdict."""
    accuracy, measures = section["accuracy"], [*section["guessing"]]
    rows = [["encoder", *(score_column(measure, section) for measure in measures), "s per video", "MB"]]
    for name in by_accuracy(section):
        encoder = results["encoders"][name]
        seconds = encoder.get("seconds_per_video")
        cost = ["–" if seconds is None else f"{seconds:.2f}", f"{encoder['megabytes']:.1f}"]
        rows.append([name, *(f"{100 * accuracy[name][measure]:.1f}" for measure in measures), *cost])
    rows.append(["guessing", *(f"{100 * section['guessing'][measure]:.1f}" for measure in measures), "", ""])
    lines = format_table(rows, "<" + ">" * (len(measures) + 2))
    failed = [f"{name} is left out: {reason}" for name, reason in results["failed"].items()]
    title = [f"{section['name']}:"] if len(results["sections"]) > 1 else []
    head = [*title, section["what"], section["verdict"]["answer"]]
    return "\n".join([*head, "", *lines, "", *section["verdict"]["doubts"], *failed])


def _write(out: Path, results: JobResults, videos: VideoList) -> None:
    """Write the page, the list of what to label next, and the results."""
    disputed = _disputed(results)
    if disputed is not None:
        lines = [[row["name"], row["label"], f"{row['entropy']:.4f}", *row["predicted"]] for row in disputed]
        write_csv(out / DISAGREEMENTS, ["path", "label", "entropy", *results["sections"][0]["predicted"]], lines)
    listed = (disputed or [])[:_LISTED]
    clips = of_middles([videos.records[results["sections"][0]["rows"][row["row"]]] for row in listed], preview)
    # A video that cannot be read again has no preview.
    previews = {row["row"]: clip for row, clip in zip(listed, clips, strict=True) if not isinstance(clip, str)}
    title = f"Encoders for {videos.path.name}"
    write_encoders_page(out / "index.html", results, title, command_line(), listed, previews)
    write_json(out / "results.json", dict(results))


def _disputed(results: JobResults) -> list[Tree] | None:
    """Describe the rows of the first section on which encoders that are no floors disagree, as the page shows them.

    None: there is one encoder, or no section.
    """
    trained = [name for name, encoder in results["encoders"].items() if not encoder["floor"]]
    if len(trained) < 2 or not results["sections"]:
        return None
    section = results["sections"][0]
    predicted = np.array([section["predicted"][name]["knn"] for name in trained])
    order, entropy = disagreement(predicted, np.array(section["labels"]))
    return [disputed_row(int(row), float(entropy[row]), results) for row in order if entropy[row] > 1e-9]
