"""What the page of `analyze all` says of the results of each analysis: verdict, charts and tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vidssl.apps.analysis import verdicts
from vidssl.apps.analysis.invariance import COMPARED
from vidssl.apps.analysis.page import PageChart, PageTable, Point
from vidssl.apps.analysis.verdicts import SHUFFLES, AnalysisVerdict, Beside, ScoreSample, ScoreTest
from vidssl.data.recordings_and_class_folders import Groups, of_several_recordings
from vidssl.data.video_list import VideoList
from vidssl.evaluation.metrics import majority
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.statistics import Estimate, difference, jackknife, proportion
from vidssl.jobs.measurement_runner import format_clips

TRAINED, UNTRAINED = "trained", "untrained"  # names of networks on the page
_NAMES = {"top1": "classifier", "knn": "kNN", "mPC": "mPC"}
_PRIMARY = ("R@1", "top1", "knn")  # the number that verdicts are about: the first that was measured
_NONE = "–"
# Names of results in plain words.
_CHANGES = {
    "occlusion": "partly covered",
    "viewpoint": "zoomed in",
    "rotation": "rotated",
    "illumination": "other light",
    "colour": "other colours",
    "blur": "blurred",
    "instance": "instance covered",
    "shift": "moved in time",
    "gap": "another moment",
    "speed": "other speed",
    "reverse": "reversed",
}
_GROUPS = {"patches": "shuffled patches", "time": "lost or reordered frames"}


@dataclass(frozen=True)
class Evidence:
    """The results of an analysis of a network, and of the untrained one, and the recordings of the list."""

    trained: Results
    untrained: Results | None
    groups: Groups
    labels: NDArray[np.int64]  # of the list

    @property
    def networks(self) -> dict[str, Results]:
        """The results by the names of networks on the page."""
        return {TRAINED: self.trained} | ({} if self.untrained is None else {UNTRAINED: self.untrained})

    @property
    def sample(self) -> ScoreSample:
        """Videos and recordings that were measured."""
        rows = self.trained.get("per_video", {}).get("rows", range(len(self.labels)))
        return ScoreSample(self.trained["num_videos"], len(np.unique(self.groups.number[[*rows]])))

    @property
    def primary(self) -> str | None:
        """The number that the verdict is about."""
        return next((key for key in _PRIMARY if key in self.trained.get("per_video", {})), None)

    def estimate(self, key: str, of: str = TRAINED) -> Estimate | None:
        """Estimate a number that is a mean over videos; without values of each video it has no interval."""
        results = self.networks.get(of, {})
        per_video = results.get("per_video", {})
        if key in per_video:
            return proportion(np.array(per_video[key]), self.groups.number[per_video["rows"]])
        return Estimate(results[key]) if key in results else None

    def gap(self, first: str, second: str, of: str = TRAINED) -> Estimate:
        """Estimate the first number minus the second one of the same network."""
        per_video = self.networks[of]["per_video"]
        a, b, rows = np.array(per_video[first]), np.array(per_video[second]), per_video["rows"]
        return difference(a, b, self.groups.number[rows])

    @property
    def levels(self) -> dict[str, float]:
        """What the most frequent class as the answer for all videos reaches."""
        return majority(torch.from_numpy(self.labels[self.trained["per_video"]["rows"]]))

    @property
    def classes(self) -> NDArray[np.int64]:
        """The classes that a mean over classes is of, -1 for other videos: those of two recordings or more.

        If most videos are of other classes, or all of one, all count alike, as of one class.
        """
        rows = self.trained["per_video"]["rows"]
        several = of_several_recordings(self.labels[rows], self.groups.number[rows])
        classes = np.full_like(self.labels, -1)
        classes[rows] = np.where(several, self.labels[rows], -1)
        return classes if several.mean() > 0.5 and len({*classes.tolist()} - {-1}) > 1 else np.zeros_like(self.labels)

    def score(self, key: str, of: str = TRAINED) -> ScoreTest:
        """Estimate the mean over `classes` of an accuracy."""
        per_video = self.networks[of]["per_video"]
        classes = self.classes[per_video["rows"]]
        kept, rows = classes >= 0, np.array(per_video["rows"])
        right = proportion(np.array(per_video[key])[kept], self.groups.number[rows[kept]], classes[kept])
        if not classes.any():
            return ScoreTest(right, self.levels["majority"], "where the most frequent class gives", exact=False)
        return ScoreTest(right, 1 / len({*classes[kept].tolist()}), "as a mean over classes, where 1 / classes is")

    def beside(self, first: str, second: str | None = None, by_class: bool = False) -> Beside | None:
        """Compare a number with the untrained network's, or the first minus the second; None without that.

        With `by_class` the number is a mean over `classes`.
        """
        of_networks = []
        for results in self.networks.values():
            per_video = results.get("per_video", {})
            if not {first, second or first} <= per_video.keys():
                return None
            values = np.array(per_video[first]) - (0 if second is None else np.array(per_video[second]))
            of_networks.append(dict(zip(per_video["rows"], values.tolist(), strict=True)))
        if len(of_networks) == 1:
            return None
        classes = self.classes if by_class else np.zeros_like(self.labels)
        rows = [row for row in sorted(of_networks[0].keys() & of_networks[1].keys()) if classes[row] >= 0]
        ours, theirs = (np.array([values[row] for row in rows]) for values in of_networks)
        means = [theirs[classes[rows] == class_].mean() for class_ in {*classes[rows].tolist()}]
        return Beside(float(np.mean(means)), difference(ours, theirs, self.groups.number[rows], classes[rows]))


Content = Callable[[Evidence], dict[str, Any]]  # the fields of a `Section`


def numbers_content(evidence: Evidence) -> dict[str, Any]:
    """What retrieval, kNN and the classifier say."""
    results, key = evidence.trained, evidence.primary
    if key is None:
        return _said(
            AnalysisVerdict("Nothing is judged: whether classes are recognised is measured with labels.", open=True)
        )
    score = evidence.score(key)
    named = {_name(name): name for name in ("R@1", "knn", "top1") if name in results}
    charts = [_percent_chart("Right videos", evidence, named, {"majority": evidence.levels["majority"]})]
    if score.exact and not math.isclose(score.level, evidence.levels["majority"]):
        of_networks = {network: _point(evidence.score(key, network).right, 100) for network in evidence.networks}
        means = {f"{_name(key)}, mean of classes": of_networks}
        charts.append(PageChart("Mean over classes, percent", means, {"1 / classes": 100 * score.level}, 100))
    ranks = [name for name in results if name.startswith("R@")]
    rows = [_row(evidence, name) for name in [*ranks, *(name for name in ("knn", "top1") if name in results)]]
    others = {"knn_mean_class": "kNN, mean of classes", "mean_class": "classifier, mean of classes", "ece": "ECE"}
    rows += [_row(evidence, name, title) for name, title in others.items() if name in results]
    titles = {"majority": "majority", "majority_mean_class": "1 / classes"}
    rows += [_level(evidence, titles[name], value) for name, value in evidence.levels.items()]
    notes = [detail["note"] for detail in results["details"].values() if "note" in detail]
    verdict = verdicts.recognition(evidence.sample, score, evidence.beside(key, by_class=True))
    return _said(verdict, charts, [_percent_table(evidence, rows)], [f"The verdict is about {_name(key)}.", *notes])


def order_content(evidence: Evidence) -> dict[str, Any]:
    """Whether clips are separated from reversed ones."""
    right = evidence.estimate("order")
    assert right is not None
    equal = evidence.trained["details"]["order"]["equal_videos"]
    chart = _percent_chart("Clips whose direction is recognised", evidence, {"direction": "order"}, {"guessing": 0.5})
    table = _percent_table(evidence, [_row(evidence, "order", "direction")])
    return _said(verdicts.order(evidence.sample, right, equal, evidence.beside("order")), [chart], [table])


def classes_content(evidence: Evidence) -> dict[str, Any]:
    """How far classes are apart."""
    names = {"distance_within": "distance within", "distance_between": "distance between"}
    distances = {network: _distances(results) for network, results in evidence.networks.items()}
    points = {
        title: {network: _point(numbers[key]) for network, numbers in distances.items() if key in numbers}
        for key, title in names.items()
    }
    chart = PageChart("Mean squared distance of features", points, {}, digits=2)
    titles = {"ratio": "ratio", "uniformity": "uniformity", "uniformity_class_mean": "uniformity of a class", **names}
    header = ["", *(text for network in distances for text in (network, "95 % interval"))]
    rows = []
    for key, title in titles.items():
        rows.append([title, *(text for numbers in distances.values() for text in _plain(numbers.get(key)))])
    table = PageTable("All numbers", header, rows, folded=True)
    trained = distances[TRAINED]
    if "ratio" not in trained:
        text = "Nothing can be said: no class has two videos, or all features are equal."
        return _said(AnalysisVerdict(text, open=True), [chart], [table])
    ratio = distances.get(UNTRAINED, {}).get("ratio")
    beside = None if ratio is None else (ratio.value, verdicts.standing(_ratio_of_ratios(evidence), 1))
    verdict = verdicts.classes(evidence.sample, trained["ratio"], trained["uniformity"].value, beside)
    return _said(verdict, [chart], [table])


def invariance_content(evidence: Evidence) -> dict[str, Any]:
    """Under which changes units keep responding."""
    results, networks = evidence.trained, evidence.networks
    scores = _scores(results)
    highest = {network: max(measured["shuffles"]) for network, measured in networks.items()}
    rows = {COMPARED[0]: f"invariance_{COMPARED[0]}"} | {_changed(name): f"invariance_{name}" for name in scores}
    points = {
        name: {network: Point(measured[key]) for network, measured in networks.items() if key in measured}
        for name, key in rows.items()
    }
    references = {"shuffled labels": highest[TRAINED], "perfect": results["invariance_ceiling"]}
    chart = PageChart("Invariance score", points, references, digits=2)
    untrained = ""
    if UNTRAINED in networks:
        untrained_scores = _scores(networks[UNTRAINED])
        kept = sum(score > highest[UNTRAINED] for score in untrained_scores.values())
        learned = networks[UNTRAINED]["invariance_unchanged"] > highest[UNTRAINED]
        how = f"under {kept} of {len(untrained_scores)}" if learned else "chance alone would do as well"
        untrained = f"; untrained network: {how}"
    lines = []
    for name, key in {**rows, "mean of the changes": "invariance_mean"}.items():
        cells = [f"{measured[key]:.2f}" if key in measured else _NONE for measured in networks.values()]
        details = results["details"].get(key.removeprefix("invariance_"))
        lines.append([name, *cells, _NONE if details is None else str(details["versions"])])
    lines.append(["shuffled labels", *(f"{value:.2f}" for value in highest.values()), _NONE])
    table = PageTable("All numbers", ["", *networks, "changed clips"], lines, folded=True)
    worded, unchanged = {_CHANGES.get(name, name): score for name, score in scores.items()}, rows[COMPARED[0]]
    verdict = verdicts.invariance(evidence.sample, results[unchanged], worded, highest[TRAINED], untrained)
    notes = [
        "The score has no interval: the best units are chosen on these videos. It is compared with shuffled labels "
        f"instead; the line is the highest of {SHUFFLES} draws for the trained network.",
        *_left_out(results),
    ]
    return _said(verdict, [chart], [table], notes)


def robustness_content(evidence: Evidence) -> dict[str, Any]:
    """What is left of the accuracy on corrupted videos."""
    results, key = evidence.trained, evidence.primary
    assert key is not None
    clean, corrupted = evidence.estimate(key), evidence.estimate(f"{key}_mPC")
    assert clean is not None and corrupted is not None
    groups = {_GROUPS.get(name, name): numbers[key] for name, numbers in results["groups"].items()}
    verdict = verdicts.robustness(
        evidence.sample,
        evidence.score(key),
        clean,
        corrupted,
        evidence.gap(key, f"{key}_mPC"),
        groups,
        evidence.beside(f"{key}_mPC"),
    )
    majority_level = {"majority": evidence.levels["majority"]}
    severities = {"clean": key} | {f"severity {n}": f"{key}_severity_{n}" for n in results["severities"]}
    kinds = {"clean": key} | {_GROUPS.get(name, name): f"{key}_{name}" for name in results["groups"]}
    charts = [
        _percent_chart(f"{_name(key)} by severity", evidence, severities, majority_level),
        _percent_chart(f"{_name(key)} by kind of corruption", evidence, kinds, majority_level),
    ]
    rows = [
        [name.replace("_", " "), *(f"{100 * numbers[key]:.0f}" for numbers in corruption["severities"].values())]
        for name, corruption in results["corruptions"].items()
    ]
    header = ["", *(f"severity {n}" for n in results["severities"])]
    heat = PageTable(f"{_name(key)} of each corruption, percent", header, rows, heat=True, folded=True)
    every = []
    for name in ("R@1", "knn", "top1"):
        if f"{name}_mPC" in results:
            titles = {name: "clean", f"{name}_mPC": "mPC", f"{name}_rPC": "rPC"}
            every += [_row(evidence, number, f"{_name(name)}, {title}") for number, title in titles.items()]
    every.append(_level(evidence, "majority", evidence.levels["majority"]))
    table = _percent_table(evidence, every)
    return _said(verdict, charts, [heat, table], _left_out(results))


def background_content(evidence: Evidence) -> dict[str, Any]:
    """Whether the background decides."""
    results, key = evidence.trained, evidence.primary
    assert key is not None
    same, another = evidence.estimate(f"{key}_same"), evidence.estimate(f"{key}_other")
    assert same is not None and another is not None
    gap, beside = evidence.gap(f"{key}_same", f"{key}_other"), evidence.beside(f"{key}_same", f"{key}_other")
    verdict = verdicts.background(evidence.sample, evidence.score(f"{key}_same"), same, another, gap, beside)
    names = {"": "original", "_same": "same class", "_other": "another class"}
    versions = {title: f"{key}{end}" for end, title in names.items()}
    majority_level = {"majority": evidence.levels["majority"]}
    chart = _percent_chart(f"{_name(key)} by background", evidence, versions, majority_level)
    more = {"_gap": "background gap", "_shortcut": "shortcut", "_shortcut_original": "shortcut before the swap"}
    rows = [
        _row(evidence, f"{name}{end}", f"{_name(name)}, {title}")
        for name in ("R@1", "knn", "top1")
        for end, title in {**names, **more}.items()
        if f"{name}{end}" in results
    ]
    rows.append(_level(evidence, "majority", evidence.levels["majority"]))
    return _said(verdict, [chart], [_percent_table(evidence, rows)])


def gradcam_content(
    networks: Mapping[str, Results], untrained: Mapping[str, Results], groups: Groups, videos: VideoList
) -> dict[str, Any]:
    """Whether the heat lies in the boxes; `networks` and `untrained` are by the names of layers' networks."""
    first = next(iter(networks.values()))
    empty = sum(results["zero_maps"] for results in networks.values())
    maps = sum(results["num_videos"] for results in networks.values())
    if "mass_of_video" not in first:
        return _said(verdicts.without_boxes(maps, empty))
    rows, pairs = _masses(first, videos)
    gap = difference(pairs[:, 0], pairs[:, 1], groups.number[rows])
    beside, random = None, next(iter(untrained.values()), {"target": None})
    if random["target"] == first["target"] and "mass_of_video" in random:
        random_rows, random_pairs = _masses(random, videos)
        common, ours, theirs = np.intersect1d(rows, random_rows, return_indices=True)
        inside = pairs[ours, 0], random_pairs[theirs, 0]
        beside = Beside(float(inside[1].mean()), difference(*inside, groups.number[common]))
    sample = ScoreSample(len(rows), len(np.unique(groups.number[rows])))
    verdict = verdicts.attention(sample, first["mass_in_box"], first["box_area"], gap, beside)
    points = {}
    for name, results in {**networks, **untrained}.items():
        of_videos, masses = _masses(results, videos)
        points[name] = {TRAINED: _point(proportion(masses[:, 0], groups.number[of_videos]), 100)}
    references = {"area of the boxes": 100 * first["box_area"], "limit of the cells": 100 * first["mass_limit"]}
    chart = PageChart("Heat in the boxes, percent of all", points, references, 100)
    notes = [f"{empty} of {maps} maps have no heat; they are left out of the numbers."] if empty else []
    if len(networks) > 1:
        verdict = verdict._replace(text=f"{next(iter(networks))}: {verdict.text}")
    return _said(verdict, [chart], notes=notes)


def _masses(results: Results, videos: VideoList) -> tuple[list[int], NDArray[np.float64]]:
    """Return the rows of the videos, and (N, 2): the heat in the box, and the area of the box."""
    row_of = {name: row for row, name in enumerate(videos.names)}
    masses = results["mass_of_video"]
    return [row_of[name] for name in masses], np.array([*masses.values()])


def setting(results: Results) -> str:
    """What was measured, beside the numbers of a section: videos and clips."""
    missing = len(results["missing"])
    videos = f"n = {results['num_videos']} videos" + (f" ({missing} could not be read)" if missing else "")
    train = results.get("num_train")
    parts = [videos, format_clips(results["protocol"]), *([f"{train} training videos"] if train else [])]
    return f"{'; '.join(parts)}."


def _said(
    verdict: AnalysisVerdict,
    charts: Sequence[PageChart] = (),
    tables: Sequence[PageTable] = (),
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    charts = [chart for chart in charts if any(chart.rows.values())]
    return {"verdict": verdict.text, "open": verdict.open, "charts": charts, "tables": tables, "notes": [*notes]}


def _percent_chart(
    quantity: str, evidence: Evidence, keys: Mapping[str, str], references: Mapping[str, float]
) -> PageChart:
    """A chart of numbers, their keys by the names of the rows, and references, all as fractions."""
    rows = {title: _points(evidence, key) for title, key in keys.items()}
    return PageChart(f"{quantity}, percent", rows, {name: 100 * value for name, value in references.items()}, 100)


def _percent_table(evidence: Evidence, rows: Sequence[Sequence[str]]) -> PageTable:
    return PageTable("All numbers, percent", _header(evidence), rows, folded=True)


def _name(key: str) -> str:
    return _NAMES.get(key, key)


def _point(estimate: Estimate, scale: float = 1) -> Point:
    low, high = (None if end is None else scale * end for end in (estimate.low, estimate.high))
    return Point(scale * estimate.value, low, high)


def _points(evidence: Evidence, key: str) -> dict[str, Point]:
    """The points of a number in percent, by network."""
    estimates = {network: evidence.estimate(key, network) for network in evidence.networks}
    return {network: _point(estimate, 100) for network, estimate in estimates.items() if estimate is not None}


def _header(evidence: Evidence) -> list[str]:
    columns = [text for network in evidence.networks for text in (network, "95 % interval")]
    return ["", *columns, *(["trained minus untrained", "95 % interval"] if len(evidence.networks) > 1 else [])]


def _row(evidence: Evidence, key: str, title: str | None = None) -> list[str]:
    """A row of a table of percents."""
    cells = [title or _name(key)]
    for network in evidence.networks:
        cells += _percents(evidence.estimate(key, network))
    if len(evidence.networks) > 1:
        beside = evidence.beside(key)
        cells += _percents(None if beside is None else beside.difference, signed=True)
    return cells


def _level(evidence: Evidence, title: str, value: float) -> list[str]:
    """A row of what answers reach that do not depend on the videos."""
    cells = [f"{100 * value:.1f}", _NONE] * len(evidence.networks)
    return [title, *cells, *([_NONE] * (len(_header(evidence)) - 1 - len(cells)))]


def _percents(estimate: Estimate | None, signed: bool = False) -> list[str]:
    """A number and its interval, in percent."""
    if estimate is None:
        return [_NONE, _NONE]
    sign = "+" if signed else ""
    ends = [None if end is None else f"{100 * end:{sign}.1f}" for end in (estimate.low, estimate.high)]
    interval = _NONE if None in ends else f"{ends[0]} to {ends[1]}"
    return [text.replace("-", "−") for text in (f"{100 * estimate.value:{sign}.1f}", interval)]


def _plain(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return [_NONE, _NONE]
    interval = _NONE if estimate.low is None else f"{estimate.low:.2f} to {estimate.high:.2f}"
    return [f"{estimate.value:.2f}", interval]


def _distances(results: Results) -> dict[str, Estimate]:
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


def _changed(name: str) -> str:
    """A change in plain words, with its name in results.json."""
    return f"{_CHANGES[name]} ({name})" if name in _CHANGES else name


def _scores(results: Results) -> dict[str, float]:
    return {name: results[f"invariance_{name}"] for name in results["details"]}


def _left_out(results: Results) -> list[str]:
    return [f"Not measured: {name} ({why})." for name, why in results["left_out"].items()]
