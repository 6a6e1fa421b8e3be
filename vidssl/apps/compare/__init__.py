"""Which encoder is best for some videos: predictions of each video with its recording left out, on one page."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Unpack

from vidssl.apps.compare.features_and_predictions import (
    ComparedEncoder,
    common_rows,
    extract_all,
    of_rows,
    predict_all,
    right,
    with_parts,
)
from vidssl.apps.compare.neighbour_agreement import (
    Agreement,
    Disagreement,
    compare_neighbours,
    disagreement,
    most_changed,
    near_copies,
)
from vidssl.apps.compare.page import Disagreements, EncoderNeighbours, ShownVideos, score_column, write_encoders_page
from vidssl.apps.compare.verdict import Candidate, decide, describe_without_labels
from vidssl.base import distributed
from vidssl.base.atomic import write_json
from vidssl.base.command_line_and_notices import command_line
from vidssl.base.config import Tree
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError, DataError, VidsslError
from vidssl.base.output_folder import claim, only_run_in
from vidssl.base.progress import Report
from vidssl.base.progress import progress as bar
from vidssl.base.types import Features
from vidssl.data.list_identity import identify
from vidssl.data.recordings_and_class_folders import (
    Groups,
    chosen_rows,
    labelled_by_folders,
    of_several_recordings,
    recording_groups,
    why_folders_are_no_classes,
)
from vidssl.data.video_list import VideoList, row_key
from vidssl.evaluation.leave_recording_out import fits, fold_table, num_neighbours
from vidssl.evaluation.metrics import majority
from vidssl.evaluation.result_files import complete
from vidssl.evaluation.statistics import Difference, Estimate, compare_pairs, doubts, proportions
from vidssl.jobs.job import Count, File, Model, NetworkOptions, Positive, Videos, job, models, path_of, read_videos
from vidssl.jobs.measurement_runner import JobResults, format_table, name_networks, write_csv
from vidssl.models.convolution_check import processor
from vidssl.models.floors import FLOORS
from vidssl.page.previews import Preview, middle_frames, preview

PRIMARY = "knn"
DISAGREEMENTS = "disagreements.csv"
_QUERIES, _NEIGHBOURS, _LISTED = 8, 5, 20  # shown on the page


@job
def compare(
    videos: Videos,
    *,
    model: Model | Sequence[Model] | Mapping[str, Model],
    out: File,
    labels: Sequence[File] = (),
    group: str | None = None,
    limit: Count | None = None,
    shots: Sequence[int] = (1, 5, 20),
    same_clips: Positive | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Compare encoders on videos: accuracies with recordings left out, intervals, costs, and a verdict on one page.

    Classes are the labels of the list, else the folders; without both the page says what can be said without labels.
    Features and predictions are kept in `out`: one more encoder costs only itself.

    Args:
        videos: The videos.
        model: Encoders: checkpoints, names of `load_backbone`, encoders of other libraries, modules; a mapping names
            them.
        out: Folder for index.html and results.json.
        labels: More lists of the same videos with other labels, each a section of the page.
        group: Regular expression for the recording in a path: its first capture group, else its match (default: as
            names state it).
        limit: Compare only so many videos, about as many of each class.
        shots: Labels a class of the logistic regressions beside that of all labels.
        same_clips: Seconds: measure each encoder also on 4 clips of that length, the same for all.
        progress: Called with (steps done, all steps, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Returns:
        What results.json has.
    """
    folder = Path(out)
    inputs = {"videos": path_of(videos), **{f"labels.{n}": Path(path) for n, path in enumerate(labels)}}
    claim(folder, "encoder comparison", inputs=inputs)
    start = time.perf_counter()
    with distributed.joined(choose_device(options.get("device", "auto"))), only_run_in(folder):
        list_given = read_videos(videos, options)
        strict = list_given.is_labelled or len(labels) > 0  # folders as labels are no test set that somebody has made
        compared, lists = _label_lists(list_given, (read_videos(path, options) for path in labels), limit)
        groups = recording_groups(compared, group)
        _check(compared, lists, groups)
        requested = dict(
            model if isinstance(model, Mapping) else [row[:2] for row in name_networks(models(model), None)]
        )
        if not requested:
            raise ConfigError("model names no encoder: give one or more")
        encoders = extract_all(
            _with_floors(requested), compared, identify(compared), options, folder, same_clips, strict, limit
        )
        rows = common_rows(encoders)
        failures = [encoder.failure for encoder in encoders if encoder.name in requested]
        if failures[0] and all(failures):
            raise failures[0]  # floors alone compare nothing
        if not len(rows):
            raise DataError(f"{compared.path}: there is no video that all encoders can be measured on")
        measured = [encoder for encoder in encoders if encoder.features is not None]
        features = [of_rows(encoder.features, rows) for encoder in measured if encoder.features is not None]
        groups, copies = _with_copies(groups.of_rows(rows), measured, features)
        named = zip(_names(lists), lists, strict=True)
        sections = [
            _section(measured, name, labelled, rows, groups.number, copies, shots, folder) for name, labelled in named
        ]
        agreements = compare_neighbours(features, groups.number)
        request = {"group": group, "limit": limit, "shots": [*shots], "same_clips": same_clips, "weights": None}
        content = {
            "sections": sections,
            **_content(compared, encoders, rows, groups, copies, agreements, None if lists else list_given),
            "seconds": time.perf_counter() - start,
            "processor": processor(),
        }
        results = JobResults(content | complete({}, request=request, overlap=None, query=compared.fingerprint))
        distributed.on_main(partial(_write, folder, results, compared, rows, agreements))
    texts = [comparison_table(results, section) for section in sections] or results["without_labels"]["sentences"]
    results.text, results.file = "\n\n".join(texts), folder / "index.html"
    return results


def _content(
    videos: VideoList,
    encoders: Sequence[ComparedEncoder],
    rows: NDArray[np.int64],
    groups: Groups,
    copies: Sequence[tuple[int, int]],
    agreements: Sequence[Agreement],
    unlabelled: VideoList | None,
) -> Tree:
    """What results.json states of encoders and videos, whatever their labels; `unlabelled` is the list without any."""
    measured = [encoder for encoder in encoders if encoder.features is not None]
    names, num_groups = [encoder.name for encoder in measured], int(groups.number.max()) + 1
    without = {}
    if unlabelled is not None:
        floors = [n for n, encoder in enumerate(measured) if encoder.floor]
        sentences = describe_without_labels(names, floors, agreements, len(copies), num_groups)
        if reason := why_folders_are_no_classes(unlabelled):
            sentences.append(f"{reason[0].upper()}{reason[1:]}.")
        without = {"without_labels": {"sentences": sentences}}
    return {
        "common_neighbours": [
            {"first": names[pair.first], "second": names[pair.second], "fraction": pair.mean, "chance": pair.chance}
            for pair in agreements
        ],
        **without,
        "encoders": {encoder.name: {**encoder.facts, "floor": encoder.floor} for encoder in measured},
        "failed": {encoder.name: str(encoder.failure) for encoder in encoders if encoder.failure is not None},
        "groups": {"how": groups.how, "count": num_groups, "number": groups.number.tolist()},
        "near_copies": [[videos.names[row] for row in rows[[*pair]]] for pair in copies],
        "videos": [videos.names[row] for row in rows],
        "missing": _missing(videos, rows, measured),
    }


def _write(
    out: Path, results: JobResults, videos: VideoList, rows: NDArray[np.int64], agreements: Sequence[Agreement]
) -> None:
    reasons = [gap["reason"] or gap["path"] for gap in results["missing"]]
    parts = _page_parts(results, videos, rows, agreements, out)
    title = f"Encoders for {videos.path.name}"
    write_encoders_page(out / "index.html", results, title, command_line(), **parts, left_out=reasons)
    write_json(out / "results.json", dict(results))


def _label_lists(
    list_given: VideoList, others: Iterable[VideoList], limit: int | None
) -> tuple[VideoList, list[VideoList]]:
    """Return the videos that are compared, and the lists of their labels: their own, if they have any, and others."""
    videos = labelled_by_folders(list_given)
    if limit is not None:
        videos = videos.rows(chosen_rows(videos, limit))
    lists = [_in_order_of(videos, other) for other in others]
    has_labels = (videos.labels >= 0).any() or videos.targets is not None
    return videos, [videos, *lists] if has_labels else lists


def _requested(model: Model | Sequence[Model] | Mapping[str, Model]) -> dict[str, Model]:
    """Name the encoders."""
    requested = dict(model if isinstance(model, Mapping) else [row[:2] for row in name_networks(models(model), None)])
    if not requested:
        raise ConfigError("model names no encoder: give one or more")
    return requested


def _with_floors(requested: Mapping[str, Model]) -> list[tuple[str, Model]]:
    """Add the parts of sums and the floors to the encoders; a floor takes another name if its own is taken."""
    floors = [(f"floor:{name}" if name in requested else name, f"floor:{name}") for name in FLOORS]
    return with_parts([*requested.items()]) + [floor for floor in floors if floor[1] not in requested.values()]


def _check(videos: VideoList, lists: Sequence[VideoList], groups: Groups) -> None:
    """Raise a DataError if nothing can be compared on the videos, or by the labels of one of the lists."""
    if len(videos) < 2:
        raise DataError(f"{videos.path}: a comparison needs two videos or more")
    for labelled in lists:
        if labelled.targets is not None:
            raise DataError(f"{labelled.path} has several labels a video: a comparison needs one of each")
        if (labelled.labels < 0).any():
            what = "no labels" if (labelled.labels < 0).all() else "videos without labels"
            raise DataError(f"{labelled.path} has {what}: give each video one")
        if max(Counter(labelled.labels.tolist()).values()) < 2:
            many = f"no class has two of the {len(labelled)} videos"
            raise DataError(f"{labelled.path}: {many}: add videos, or raise limit")
    if lists and not groups.number.any():
        raise DataError(f"all {len(videos)} videos are of one recording, by {groups.how}: group=REGEX divides them")
    for encoder in lists:
        _of_two_recordings(encoder, encoder.labels, groups.number)


def _of_two_recordings(videos: VideoList, label: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return `of_several_recordings`; a DataError if no video is: none could be found by its class."""
    several = of_several_recordings(label, number)
    if not several.any():
        raise DataError(f"{videos.path}: no class has videos of two recordings: add videos, or see group=REGEX")
    return several


def _names(lists: Sequence[VideoList]) -> list[str]:
    """Name lists by their folders, or by their own names if they are in one folder."""
    paths = [list_.path.resolve() for list_ in lists]
    folders = [path.parent.name if path.suffix == ".csv" else path.name for path in paths]
    return folders if len({*folders}) == len(folders) else [f"{path.parent.name}/{path.stem}" for path in paths]


def _missing(videos: VideoList, rows: NDArray[np.int64], encoders: Sequence[ComparedEncoder]) -> list[Tree]:
    """Describe the videos that are not compared, as an encoder could not read them."""
    missing = [gap for encoder in encoders if encoder.features is not None for gap in encoder.features.missing]
    reasons = dict(missing)
    lacking = np.setdiff1d(np.arange(len(videos)), rows).tolist()
    return [{"path": videos.names[row], "reason": reasons.get(videos.records[row].path, "")} for row in lacking]


def _with_copies(
    groups: Groups, encoders: Sequence[ComparedEncoder], features: Sequence[Features]
) -> tuple[Groups, list[tuple[int, int]]]:
    """Find near copies by the floors, and join them into one recording if the recordings are not stated."""
    of_path = dict(zip([encoder.facts["checkpoint"]["path"] for encoder in encoders], features, strict=True))
    if not {"floor:thumbnails", "floor:differences"} <= of_path.keys():
        return groups, []
    copies = near_copies(of_path["floor:thumbnails"], of_path["floor:differences"], groups.number)
    if groups.stated or not copies:
        return groups, copies
    return groups.joined(copies, f"{groups.how}, near copies joined ({len(copies)})"), copies


def _spans(videos: VideoList) -> list[tuple[Any, ...]]:
    """Return file, start and end of each row."""
    return [row_key(videos.records.root_of(row), videos.records[row])[:3] for row in range(len(videos))]


def _in_order_of(videos: VideoList, other: VideoList) -> VideoList:
    """Return the rows of another list of the same videos and spans, in their order."""
    keys = _spans(videos)
    row_of_key: dict[Any, int] = {}
    for row, key in enumerate(_spans(other)):
        if other.labels[row_of_key.setdefault(key, row)] != other.labels[row]:
            raise DataError(f"{other.path} has two labels for one span of {other.names[row]}: give each span one")
    lacking = [row for row, key in enumerate(keys) if key not in row_of_key]
    if lacking:
        (_, start, end), of_root = keys[lacking[0]], "" if other.root == videos.root else f" in its root {other.root}"
        span = "" if end is None and not start else f" from {start:g} s to {'its end' if end is None else f'{end:g} s'}"
        raise DataError(
            f"{other.path} lacks {len(lacking)} of the videos{of_root}, such as {videos.names[lacking[0]]}{span}; name "
            f"lists of the same videos and spans as {videos.path}"
        )
    return other.rows([row_of_key[key] for key in keys])


def _section(
    encoders: Sequence[ComparedEncoder],
    name: str,
    videos: VideoList,
    rows: NDArray[np.int64],
    number: NDArray[np.int64],
    copies: Sequence[tuple[int, int]],
    shots: Sequence[int],
    out: Path,
) -> Tree:
    """Compare the encoders by the labels of a list; `number` (N,) are the groups of `rows`."""
    label = videos.labels[rows]
    several = _of_two_recordings(videos, label, number)
    folds = fold_table(number, label)
    with bar(title="predictions", unit="fit", total=fits(folds, shots) * len(encoders), leave=False) as fits_bar:
        predicted = predict_all(encoders, rows, label, number, folds, shots, out, partial(fits_bar.update, 1))
    hits = {name: right(predictions, label) for name, predictions in predicted.items()}
    floors = [n for n, encoder in enumerate(encoders) if encoder.floor]
    of_class = number[several], label[several]  # the primary number is a mean over these classes
    primary = np.stack([hit[PRIMARY][several] for hit in hits.values()])
    means = dict(zip(hits, proportions(primary, *of_class), strict=True))
    pairs = compare_pairs(primary, *of_class, floors=floors)
    most_frequent = majority(torch.from_numpy(label))["majority"]
    guessing = {**dict.fromkeys(next(iter(hits.values())), most_frequent), PRIMARY: 1 / len(np.unique(of_class[1]))}
    candidates = [
        Candidate(
            encoder.name,
            means[encoder.name].value,
            encoder.facts["gigaflops_per_video"],
            encoder.floor,
            encoder.facts["checkpoint"].get("licence", ""),
            encoder.facts["checkpoint"].get("training", ()),
            _seen(encoder),
            means[encoder.name].low,
            encoder.facts["features"],
        )
        for encoder in encoders
    ]
    counts = []
    for class_ in np.unique(label):
        recordings = number[label == class_]
        counts.append((videos.class_name(int(class_)), len(recordings), len(np.unique(recordings))))
    names = [encoder.name for encoder in encoders]
    copies_between_recordings = sum(number[first] != number[second] for first, second in copies)
    verdict = decide(candidates, pairs, counts, guessing[PRIMARY], doubts(*of_class), copies_between_recordings)
    return {
        "name": name,
        "verdict": {**asdict(verdict), "best": names[verdict.best], "cheapest": names[verdict.cheapest]},
        "guessing": guessing,
        "neighbours": num_neighbours(label),
        "fewest_labels": min(int(np.sum(label[folds != fold] == n)) for fold in {*folds} for n in {*of_class[1]}),
        "accuracy": {
            name: {measure: float(shares.mean()) for measure, shares in hit.items()} | {PRIMARY: means[name].value}
            for name, hit in hits.items()
        },
        "intervals": {name: _interval(mean) for name, mean in means.items()},
        "predicted": {
            name: {key: getattr(predicted[name], key).tolist() for key in ("knn", "nearest", "logistic")}
            for name in names
        },
        "pairs": [_pair(pair, names) for pair in pairs],
        "folds": folds.tolist(),
        "labels": label.tolist(),
        "classes": [{"name": name, "videos": count, "groups": recordings} for name, count, recordings in counts],
    }


def _seen(encoder: ComparedEncoder) -> int | None:
    """How many of the videos a network of vidssl was trained on; None if its list is not there."""
    overlap: Tree = encoder.facts["overlap"] or {}
    if "not_checked" not in overlap:
        return int(overlap.get("videos", 0))
    origin = encoder.facts["checkpoint"]
    stated = all("training" in part for part in origin.get("parts", [origin]))
    return 0 if stated else None  # its training sets are stated, or in doubt


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
    encoders: dict[str, Any] = results["encoders"]
    accuracy: dict[str, Any] = section["accuracy"]
    measures = [*next(iter(accuracy.values()))]
    rows = [["encoder", *(score_column(measure, section) for measure in measures), "s a video", "MB"]]
    for name in sorted(accuracy, key=lambda name: -accuracy[name][PRIMARY]):
        seconds = encoders[name].get("seconds_per_video")
        cost = ["–" if seconds is None else f"{seconds:.2f}", f"{encoders[name]['megabytes']:.1f}"]
        rows.append([name, *(f"{100 * accuracy[name][measure]:.1f}" for measure in measures), *cost])
    rows.append(["guessing", *(f"{100 * section['guessing'][measure]:.1f}" for measure in measures), "", ""])
    lines = format_table(rows, "<" + ">" * (len(measures) + 2))
    failed = [f"{name} is left out: {reason}" for name, reason in results["failed"].items()]
    title = [f"{section['name']}:"] if len(results["sections"]) > 1 else []
    return "\n".join([*title, section["verdict"]["answer"], "", *lines, "", *section["verdict"]["doubts"], *failed])


# Single videos on the page -----------------------------------------------------------------------------------


def _page_parts(
    results: Tree, videos: VideoList, rows: NDArray[np.int64], agreements: Sequence[Agreement], out: Path
) -> dict[str, Any]:
    """Make the parts, by the arguments of `write_encoders_page`, and write the list to label next.

    Args:
        results: Those of the comparison; classes are those of the first section.
        videos: The list.
        rows: (N,) those of the list that are compared.
        agreements: Of the pairs of encoders.
        out: Folder for the list.
    """
    names = [*results["encoders"]]
    section = next(iter(results["sections"]), None)
    label = np.full(len(rows), -1) if section is None else np.array(section["labels"])
    first, second = _two(results, names, section)
    agreement = next(pair for pair in agreements if {pair.first, pair.second} == {first, second})
    queries = []
    for video in most_changed(agreement, _QUERIES):  # an agreement is of the encoder that comes first in the results
        strips = (video.first, video.second) if first < second else (video.second, video.first)
        queries.append((video.row, strips[0][:_NEIGHBOURS], strips[1][:_NEIGHBOURS]))
    ranking = None if section is None else _disagreements(results, names, section, label)
    preview_rows = [row for query, *both in queries for row in (query, *both[0], *both[1])]
    if ranking is not None:
        preview_rows += ranking.order[:_LISTED].tolist()
    shown = ShownVideos(
        [str(videos.names[row]) for row in rows],
        label.tolist(),
        [videos.class_name(number) for number in range(int(label.max()) + 1)],
        _previews(videos, rows, preview_rows),
    )
    parts: dict[str, Any] = {"neighbours": EncoderNeighbours((names[first], names[second]), queries, shown)}
    if section is not None and ranking is not None:
        parts["disagreements"] = _list_to_label(section, ranking, shown, out)
    return parts


def _two(results: Tree, names: Sequence[str], section: Tree | None) -> tuple[int, int]:
    """Choose the two encoders whose neighbours are shown: the best and the next one, or the first two; no floors."""
    order = [*range(len(names))]
    if section is not None:
        order.sort(key=lambda n: -section["accuracy"][names[n]]["knn"])
    order.sort(key=lambda n: bool(results["encoders"][names[n]]["floor"]))
    return order[0], order[1]


def _disagreements(results: Tree, names: Sequence[str], section: Tree, label: NDArray[np.int64]) -> Disagreement | None:
    """Order the videos on which the encoders that are no floors disagree; None: there is one."""
    trained = [name for name in names if not results["encoders"][name]["floor"]]
    if len(trained) < 2:
        return None
    ranking = disagreement(np.array([section["predicted"][name]["knn"] for name in trained]), label)
    order = ranking.order[ranking.entropy[ranking.order] > 1e-9]
    return Disagreement(order, ranking.entropy, ranking.margin)


def _list_to_label(section: Tree, ranking: Disagreement, shown: ShownVideos, out: Path) -> Disagreements | None:
    predicted = {name: predictions["knn"] for name, predictions in section["predicted"].items()}
    lines = [
        [shown.names[row], shown.class_name(shown.labels[row]), f"{ranking.entropy[row]:.4f}"]
        + [shown.class_name(classes[row]) for classes in predicted.values()]
        for row in ranking.order
    ]
    write_csv(out / DISAGREEMENTS, ["path", "label", "entropy", *predicted], lines)
    rows = ranking.order[:_LISTED].tolist()
    if not rows:
        return None
    of_rows = {name: [classes[row] for row in rows] for name, classes in predicted.items()}
    return Disagreements(shown, rows, of_rows, ranking.entropy[rows].tolist())


def _previews(videos: VideoList, rows: NDArray[np.int64], shown_rows: Iterable[int]) -> dict[int, Preview]:
    previews = {}
    for row in bar(sorted({*shown_rows}), title="previews", unit="video", leave=False):
        with suppress(VidsslError):  # a video that cannot be read again has no preview
            previews[row] = preview(middle_frames(videos.records[int(rows[row])]))
    return previews
