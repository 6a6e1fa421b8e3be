"""The command `analyze classes`: uniformity and distances of the features of classes, over the training of networks."""

import argparse
from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from pathlib import Path

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.analysis.class_distances import class_distances
from vidssl.atomic import write_whole
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, Subject, class_hash, load_subject, network_options
from vidssl.commands.results import claim_results, format_count, format_table, format_tests
from vidssl.commands.several_networks import each_network
from vidssl.data.fingerprint import identify
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.engine.checkpoint import saved
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import extract
from vidssl.evaluation.list_checks import check_measurable, check_names
from vidssl.evaluation.metrics import calibration_error, top_k, uniformity_loss
from vidssl.evaluation.protocols import Accuracy
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.output_folder import only_run_in
from vidssl.viz.bars import grouped_bars
from vidssl.viz.class_curves import class_curves
from vidssl.viz.figure import png

_NUMBERS = {
    "uniformity": "uniformity",
    "uniformity_class_mean": "uniformity of a class",
    "distance_within": "distance within",
    "distance_between": "distance between",
    "top1": "accuracy (%)",
    "ece": "ECE (%)",
}


def run(parsed: argparse.Namespace) -> None:
    """Measure networks, and print the numbers of their checkpoints."""
    found = measure_parsed(parsed)
    print_results(parsed, found, summary(found), parsed.out / "classes.png")


def measure_parsed(parsed: argparse.Namespace) -> dict[str, Results]:
    """Measure networks as the arguments describe: `results.json` of each, by its name, and the chart `classes.png`."""
    claim_results(parsed.out, "classes", {"list": parsed.input}, [*parsed.checkpoint, parsed.cfg])
    found = {}
    with distributed.joined(choose_device(parsed.device)):
        for name, one in each_network(parsed):
            found[name] = measure_classes(network_options(one), one.input, one.out)
        distributed.on_main(lambda: write_whole(parsed.out / "classes.png", chart(found)))
    return found


def measure_classes(options: LoadOptions, videos: Path, out: Path) -> Results:
    """Measure a checkpoint, or every checkpoint of a run if `options.checkpoint` is its folder; write `results.json`.

    The results hold the numbers of the last checkpoint, and those of all of them by step in `curve`.
    """
    claim_results(out, "classes", {"list": videos}, [options.checkpoint, options.cfg])
    if not Path(options.checkpoint).is_dir():
        results = _measure(options, videos, out)
        return {**results, "curve": [_point(results)]}
    files = saved(Path(options.checkpoint) / "checkpoints")[::-1]
    if not files:
        raise ConfigError(f"--checkpoint {options.checkpoint} has no checkpoints/step-N.pt: name the folder of a run")
    each = [_measure(replace(options, checkpoint=str(file)), videos, out / file.stem) for file in files]
    results = {**each[-1], "curve": [_point(one) for one in each]}
    distributed.on_main(lambda: write_results(out, results))
    return results


def _point(results: Results) -> Results:
    """Return what a curve shows of one checkpoint."""
    kept = (*_NUMBERS, "uniformity_per_class", "distances")
    return {"step": results["checkpoint"].get("step", 0), **{key: results[key] for key in kept if key in results}}


def _measure(options: LoadOptions, videos: Path, out: Path) -> Results:
    """Measure one checkpoint, unless its results exist."""
    claim_results(out, "classes", {"list": videos}, [options.checkpoint, options.cfg])
    listed = read_input(videos, options.root, options.allow_external)
    if (listed.labels < 0).any() or len({*listed.labels.tolist()}) < 2:
        raise DataError(f"distances of classes need labels of two classes or more, and {videos} lacks them")
    subject = load_subject(options)
    classifies, left_out = _classifies(subject, listed)
    request = subject.request(
        command="analyze classes",
        list=listed.fingerprint,
        classes=class_hash(listed),
        data=distributed.on_main(lambda: identify(listed)),
    )
    with only_run_in(out):
        existing = distributed.on_main(lambda: existing_results(out, request))
        if existing is not None:
            return existing
        overlap = subject.check_overlap(listed)
        encoder, classify = subject.encoder, subject.classify if classifies else None
        features = extract(encoder, listed, subject.test, subject.device, options.checkpoint, classify=classify)
        names = [listed.class_name(n) for n in range(max(len(listed.classes), int(listed.labels.max()) + 1))]
        results: Results = {
            **class_numbers(features.x[:, : encoder.dim], features.label, names),
            **(classifier_numbers(features.x[:, encoder.dim :], features.label) if classifies else {}),
            "left_out": left_out,
            "num_videos": len(features.x),
            "missing": [{"path": path, "reason": reason} for path, reason in features.missing],
            "list": str(listed.path),
            **subject.describe(),
        }
        results = complete(results, request=request, overlap=overlap, query=listed.fingerprint)
        distributed.on_main(lambda: write_results(out, results))
    return results


def _classifies(subject: Subject, listed: VideoList) -> tuple[bool, dict[str, str]]:
    """Whether the network's classifier has the classes of the list, and if not why."""
    try:
        check_measurable({"accuracy": Accuracy(Accuracy.Config())}, None, listed, subject.classes)
        check_names(listed, subject.class_names, "when the network was trained")
    except (ConfigError, DataError) as error:
        return False, {"ece": str(error) if subject.classes else "the network has no classifier"}
    return True, {}


def class_numbers(x: Tensor, label: Tensor, names: list[str]) -> Results:
    """Compute uniformity, of all features (N, D) and of each class, and the distances of classes.

    Uniformity is `-log E exp(-2 |x - y|²)` of unit features, the negative of the uniformity loss. Classes without
    videos are left out; None stands for what a class of one video does not have.
    """
    there = torch.unique(label).tolist()
    per_class = {names[n]: _number(-uniformity_loss(x[label == n])) for n in there}
    distances = class_distances(x, label, len(names))[there][:, there]
    off = ~torch.eye(len(there), dtype=torch.bool)
    uniform = [value for value in per_class.values() if value is not None]
    numbers = {
        "uniformity": _number(-uniformity_loss(x)),
        "uniformity_class_mean": sum(uniform) / len(uniform) if uniform else None,
        "distance_within": _number(distances.diagonal().nanmean().item()),
        "distance_between": _number(distances[off].mean().item()),
    }
    rows = zip(there, distances.tolist(), strict=True)
    table = {names[n]: {names[m]: _number(d) for m, d in zip(there, row, strict=True)} for n, row in rows}
    found = {key: value for key, value in numbers.items() if value is not None}
    return {**found, "uniformity_per_class": per_class, "distances": table}


def classifier_numbers(probabilities: Tensor, label: Tensor) -> dict[str, float]:
    """Compute accuracy and expected calibration error (15 bins) of probabilities (N, classes), as fractions."""
    return {"top1": top_k(probabilities, label, 1), "ece": calibration_error(probabilities, label)}


def _number(value: float) -> float | None:
    return None if isnan(value) else value


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw curves over training, or bars if all networks have a single checkpoint, as PNG."""
    if any(len(results["curve"]) > 1 for results in found.values()):
        return png(class_curves({name: results["curve"] for name, results in found.items()}))
    shown = list(_NUMBERS.items())[:4]
    videos = next(iter(found.values()))["num_videos"]
    figure = grouped_bars(
        [label for _, label in shown],
        {name: [results.get(key) for key, _ in shown] for name, results in found.items()},
        title=f"Uniformity and mean squared distances of classes: {videos} videos",
        unit="value",
        levels={},
        apart=(),
    )
    return png(figure)


def summary(found: Mapping[str, Results]) -> str:
    """Format the numbers of all checkpoints as a short table."""
    first = next(iter(found.values()))
    used = [key for key in _NUMBERS if any(key in results for results in found.values())]
    rows = [["", "step", *(_NUMBERS[key] for key in used)]]
    for name, results in found.items():
        rows += [[name, str(point["step"]), *(_cell(key, point) for key in used)] for point in results["curve"]]
    videos = format_count(first["num_videos"], first["missing"])
    head = f"{videos} videos, {len(first['distances'])} classes; {format_tests(found)}"
    left = [f"{name}: no ECE, {r['left_out']['ece']}" for name, r in found.items() if r["left_out"]]
    return "\n".join([head, *format_table(rows, "<" + ">" * (len(used) + 1)), *left])


def _cell(key: str, point: Results) -> str:
    value = point.get(key)
    return "–" if value is None else f"{100 * value:.1f}" if key in ("top1", "ece") else f"{value:.3f}"
