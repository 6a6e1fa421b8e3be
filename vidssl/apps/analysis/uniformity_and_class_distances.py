"""Uniformity and distances of features between and within classes, over the training of networks.

Distances are also measured without each recording, for jackknife intervals. Clips of one recording are alike whatever
they show, and mostly of one class: with their pairs classes that are given to recordings at random would look
separated. Shapes: N videos, D features, G recordings, C classes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from typing_extensions import Unpack

from vidssl.apps.analysis import verdicts
from vidssl.apps.analysis.evidence import Evidence
from vidssl.apps.analysis.page import measure_sections
from vidssl.apps.analysis.verdicts import AnalysisVerdict
from vidssl.apps.analysis.versions import why_no_classifier
from vidssl.base import distributed
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import Report
from vidssl.data.recordings_and_class_folders import recording_groups
from vidssl.evaluation.metrics import calibration_error, majority, top_k, uniformity_loss
from vidssl.evaluation.result_files import Results, write_results
from vidssl.evaluation.statistics import Estimate, jackknife
from vidssl.jobs.job import File, Model, NetworkOptions, Videos, file_of, job
from vidssl.jobs.measurement_runner import JobResults, Measurement, list_missing
from vidssl.models.checkpoint_files import saved
from vidssl.page.charts import class_curves
from vidssl.page.figure_style import png
from vidssl.page.section import Section

CLASSES = Section(
    "classes",
    "Classes",
    "Do the features of the tested videos form a group for each class? Distances of two videos of one class are "
    "compared with those of two videos of different classes: distance within, distance between.",
)
_DISTANCES = {"distance within": "distance_within", "distance between": "distance_between"}
_UNIFORMITY = {"uniformity": "uniformity", "uniformity of a class": "uniformity_class_mean"}
_CLASSIFIER = ("top1", "majority", "ece")
_OF_CURVES = (*_DISTANCES.values(), *_UNIFORMITY.values(), *_CLASSIFIER, "uniformity_per_class", "distances")


@job
def analyze_uniformity(
    model: Model | Sequence[Model],
    videos: Videos,
    *,
    out: File | None = None,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Measure uniformity and distances of classes, of a checkpoint, or (a folder) of all those of a run.

    Args:
        model: One network or several, as in `test`; of the folder of a run all its checkpoints.
        videos: Videos of two classes or more, with labels.
        out: Folder for results.json and index.html.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        The results of each network, by its name: those of its last checkpoint, and of all of them in `curve`.
    """
    return measure_sections(UniformityOfFeatures(), model, videos, options, out, classes_section)


def point(results: Results) -> Results:
    """Return what a curve shows of one checkpoint."""
    numbers = {key: results[key] for key in _OF_CURVES if key in results}
    return {"step": results["checkpoint"].get("step", 0), **numbers}


@dataclass
class UniformityOfFeatures(Measurement):
    """Uniformity and class distances of one checkpoint."""

    kind: ClassVar[str] = "classes"
    command: ClassVar[str] = "analyze uniformity"

    def measure_network(self, arguments: dict[str, Any], out: Path | None) -> Results:
        """Measure a checkpoint, or every checkpoint of a run."""
        run, measure_network = file_of(arguments["model"]), super().measure_network
        if run is None or not run.is_dir():
            results = measure_network(arguments, out)
            return {**results, "curve": [point(results)]}
        steps = []
        for file in saved(run / "checkpoints")[::-1]:
            steps.append(measure_network({**arguments, "model": file}, None if out is None else out / file.stem))
        if not steps:
            raise ConfigError(f"{run} has no checkpoints/step-N.pt: name the folder of a run")
        results = {**steps[-1], "curve": [point(step) for step in steps]}
        if out is not None:
            distributed.on_main(lambda: write_results(out, results))
        return results

    def check(self) -> Tree:
        """Check the labels."""
        query = self.query
        if (query.labels < 0).any() or len({*query.labels.tolist()}) < 2:
            raise DataError(f"distances of classes need labels of two classes or more, and {query.path} lacks them")
        return {}

    def measure(self) -> Results:
        """Compute the numbers of the features, and of the classifier if it has the classes of the list."""
        subject, query = self.subject, self.query
        refused = why_no_classifier(subject, query)
        reason = str(refused) if subject.classes else "the network has no classifier"
        features = subject.extract(query, subject.name, subject.classify if refused is None else None)
        if not distributed.is_main():
            return {}
        names = [query.class_name(n) for n in range(max(len(query.classes), int(query.labels.max()) + 1))]
        x, recordings = features.x[:, : subject.encoder.dim], recording_groups(query)
        groups = recordings.number[features.index.numpy()]
        results: Results = {
            **class_numbers(x, features.label, groups, names),
            **(classifier_numbers(features.x[:, x.shape[1] :], features.label) if refused is None else {}),
            "left_out": {} if refused is None else {"ece": reason},
            "recordings": {"how": recordings.how, "count": len({*groups.tolist()})},
            "num_videos": len(features.x),
            "missing": list_missing(features.missing),
        }
        if self.per_video:
            results["without_recording"] = without_recordings(x, features.label, groups, len(names))
        return results


def class_numbers(x: Tensor, label: Tensor, groups: NDArray[np.int64], names: list[str]) -> Results:
    """Compute uniformity, of all features (N, D) and of each class, and the distances of classes.

    Uniformity is `-log E exp(-2 |x - y|²)` of unit features, the negative of the uniformity loss. Distances are of
    pairs of different recordings, `groups` (N,). Classes without videos are left out; None stands for what a class of
    one video or recording does not have.
    """
    there = torch.unique(label).tolist()
    per_class = {names[n]: _number(-uniformity_loss(x[label == n])) for n in there}
    distances = class_distances(x, label, groups, len(names))[there][:, there]
    off = ~torch.eye(len(there), dtype=torch.bool)
    uniform = [value for value in per_class.values() if value is not None]
    numbers = {
        "uniformity": _number(-uniformity_loss(x)),
        "uniformity_class_mean": sum(uniform) / len(uniform) if uniform else None,
        "distance_within": _number(distances.diagonal().nanmean().item()),
        "distance_between": _number(distances[off].nanmean().item()),
    }
    rows = zip(there, distances.tolist(), strict=True)
    table = {names[n]: {names[m]: _number(d) for m, d in zip(there, row, strict=True)} for n, row in rows}
    defined = {key: value for key, value in numbers.items() if value is not None}
    return {**defined, "uniformity_per_class": per_class, "distances": table}


def classifier_numbers(probabilities: Tensor, label: Tensor) -> dict[str, float]:
    """Compute accuracy, calibration error (15 bins) and majority of probabilities (N, classes), as fractions."""
    numbers = {"top1": top_k(probabilities, label, 1), "ece": calibration_error(probabilities, label)}
    return {**numbers, "majority": majority(label)["majority"]}


def _number(value: float) -> float | None:
    return None if isnan(value) else value


def classes_section(evidence: Evidence) -> Section:
    """How far classes are apart, at each checkpoint."""
    networks, first, steps = evidence.networks, evidence.first, {}
    for network, results in networks.items():
        estimates = distance_estimates(results) if "without_recording" in results else {}
        for checkpoint in results["curve"]:
            name = network if len(results["curve"]) == 1 else f"{network} step {checkpoint['step']}"
            steps[name] = {**checkpoint, "estimates": estimates}
    curves, drawn, figures = replace(evidence, networks=steps), len(steps) == len(networks), {}
    if not drawn:
        curve = class_curves({name: results["curve"] for name, results in networks.items()})
        figures = {"Uniformity and distances of classes over the steps": png(curve)}
    quantities = [
        curves.quantity("Mean squared distance of features", _DISTANCES, percent=False, drawn=drawn),
        curves.quantity("Uniformity", {**_UNIFORMITY, "ratio": "ratio"}, percent=False, drawn=False),
        curves.quantity("Classifier", {"accuracy": "top1", "ECE": "ece"}, evidence.levels, drawn=False),
    ]
    quantities = [quantity if quantity.percent else replace(quantity, digits=3) for quantity in quantities]
    verdict = None
    if len(evidence.recordings):
        verdict = _classes_verdict(evidence, [of["estimates"] for of in steps.values()])
    notes = [f"{name}: no ECE, {of['left_out']['ece']}" for name, of in networks.items() if of["left_out"]]
    counts = f"{first['recordings']['count']} recordings, {len(first['distances'])} classes"
    parts = {"setting": f"{evidence.setting}; {counts}", "figures": figures}
    return evidence.section(CLASSES, quantities, verdict, notes, **parts)


def _classes_verdict(evidence: Evidence, estimates: Sequence[Mapping[str, Estimate]]) -> AnalysisVerdict:
    trained, *others = estimates
    if "ratio" not in trained:
        return AnalysisVerdict("Nothing can be said: no class has two videos, or all features are equal.", open=True)
    untrained = None
    if others and "ratio" in others[0]:
        untrained = others[0]["ratio"].value, verdicts.standing(_ratio_of_ratios(evidence), 1)
    return verdicts.classes(evidence.sample, trained["ratio"], trained["uniformity"].value, untrained)


def distance_estimates(results: Results) -> dict[str, Estimate]:
    """The numbers of classes with their jackknife intervals."""
    without = results["without_recording"]
    estimates = {key: jackknife(results[key], values) for key, values in without.items() if key in results}
    if "uniformity_class_mean" in results:
        estimates["uniformity_class_mean"] = Estimate(results["uniformity_class_mean"])
    within, between = results.get("distance_within"), results.get("distance_between")
    if within and between:
        estimates["ratio"] = _exp(jackknife(math.log(between / within), _log_ratios(without)))
    return estimates


def _exp(logs: Estimate) -> Estimate:
    low, high = (None if end is None else math.exp(end) for end in (logs.low, logs.high))
    return Estimate(math.exp(logs.value), low, high)


def _log_ratios(without: Mapping[str, Sequence[float | None]]) -> list[float]:
    pairs = zip(without["distance_between"], without["distance_within"], strict=True)
    return [math.log(b / w) if b and w and math.isfinite(b * w) else math.nan for b, w in pairs]


def _ratio_of_ratios(evidence: Evidence) -> Estimate:
    """The ratio of the trained network, divided by that of the untrained one."""
    logs, values = [], []
    for results in evidence.networks.values():
        logs.append(np.array(_log_ratios(results["without_recording"])))
        values.append(math.log(results["distance_between"] / results["distance_within"]))
    if logs[0].shape != logs[1].shape:
        return Estimate(math.exp(values[0] - values[1]))  # other videos could be read
    return _exp(jackknife(values[0] - values[1], (logs[0] - logs[1]).tolist()))


_CHUNK = 1024  # rows whose similarities to all others are in memory


def class_distances(x: Tensor, label: Tensor, groups: NDArray[np.int64], classes: int) -> Tensor:
    """Mean squared distances (C, C) of unit features (N, D) of two classes, of those within a class on the diagonal.

    `E |f(x0) - f(x1)|²` (Zhong et al., 2022, section A.2) with x0 and x1 of different recordings, `groups` (N,). Rows
    are scaled to unit length, so 0 is equal and 2 orthogonal. nan where no two recordings have such a pair.
    """
    unit = functional.normalize(x.double(), dim=1)
    inside = sum(_pairs(*_sums(unit[rows], label[rows], classes)) for rows in _members(groups))
    return _distances(_pairs(*_sums(unit, label, classes)) - inside)


def without_recordings(x: Tensor, label: Tensor, groups: NDArray[np.int64], classes: int) -> dict[str, list[float]]:
    """Compute numbers of features (N, D) without each recording: of each a list of G, nan where they are undefined.

    They are those of `analyze uniformity`: `uniformity`, and `distance_within` and `distance_between`, the mean squared
    distances within classes and between them.
    """
    unit, members = functional.normalize(x.double(), dim=1), _members(groups)
    whole = _sums(unit, label, classes)
    inside = sum(_pairs(*_sums(unit[rows], label[rows], classes)) for rows in members)
    within, between = [], []
    for rows in members:
        sums = _sums(unit[rows], label[rows], classes)
        pairs = _pairs(*(a - b for a, b in zip(whole, sums, strict=True)))
        distances = _distances(pairs - (inside - _pairs(*sums)))
        within.append(distances.diagonal().nanmean().item())
        between.append(distances[~torch.eye(classes, dtype=torch.bool)].nanmean().item())
    return {
        "uniformity": _uniformity_without(functional.normalize(x.float(), dim=1), members),
        "distance_within": within,
        "distance_between": between,
    }


def _members(groups: NDArray[np.int64]) -> list[Tensor]:
    return [torch.from_numpy(np.flatnonzero(groups == group)) for group in np.unique(groups)]


def _sums(unit: Tensor, label: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sum features over the videos of each class: their count (C,), sum (C, D) and squared lengths (C,)."""
    member = functional.one_hot(label, classes).double()  # (N, C)
    return member.sum(dim=0), member.T @ unit, member.T @ unit.pow(2).sum(dim=1)


def _pairs(count: Tensor, total: Tensor, squares: Tensor) -> Tensor:
    """Count the pairs of videos of two classes, each video with itself too, and sum their distances: (2, C, C)."""
    sums = count[:, None] * squares
    return torch.stack([count[:, None] * count, sums + sums.T - 2 * total @ total.T])


def _distances(pairs: Tensor) -> Tensor:
    count, total = pairs
    mean = (total / count).clamp(min=0).round(decimals=12)  # of equal features 0, not the rounding of the sums
    return torch.where(count > 0, mean, torch.nan)


def _uniformity_without(unit: Tensor, members: list[Tensor]) -> list[float]:
    total = len(unit)
    rows = torch.cat([_potential(part, unit).sum(dim=1) for part in torch.split(unit, _CHUNK)])  # each with itself: 1
    every, uniformities = rows.sum().item(), []
    for group in members:
        remaining = total - len(group)
        potential = every - 2 * rows[group].sum().item() + _potential(unit[group], unit[group]).sum().item() - remaining
        uniformities.append(-math.log(potential / (remaining * (remaining - 1))) if remaining > 1 else math.nan)
    return uniformities


def _potential(x: Tensor, y: Tensor) -> Tensor:
    distances = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.pow(2).mul(-2).exp().double()
