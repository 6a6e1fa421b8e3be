"""Networks on corrupted videos."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.analysis.corrupted_clips import (
    CLEAN,
    ROBUSTNESS,
    SEVERITIES,
    CorruptedClips,
    Version,
    choose_corruptions,
)
from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import Report
from vidssl.base.types import Batch, Features
from vidssl.data.find_same_videos import own_rows
from vidssl.data.video_list import VideoList
from vidssl.evaluation.features import TestClips, encode_videos, finished
from vidssl.evaluation.metrics import level_of, majority
from vidssl.evaluation.protocols import EvaluationProtocol, Measured
from vidssl.evaluation.result_files import Results
from vidssl.jobs.job import File, Model, Natural, NetworkOptions, Videos, job, models
from vidssl.jobs.load_network import Subject, one_network
from vidssl.jobs.measurement_runner import (
    Computed,
    JobResults,
    Measurement,
    Plan,
    format_clips,
    format_count,
    format_table,
    measure_networks,
)
from vidssl.jobs.test import NamedProtocols, describe_protocols, need_training, plan_protocols, protocol_choices
from vidssl.page.charts import example_sheet, severity_map
from vidssl.page.figure_style import png

Scores = Mapping[str, Mapping[int, float]]  # of one metric, by corruption and severity

_HEADLINES = {"accuracy": "top1", "knn": "knn", "retrieval": "R@1"}  # of each protocol that can be measured
_TITLES = {"top1": "accuracy", "knn": "kNN", "R@1": "R@1"}
_NOT_PERFORMANCE = ("ece",)  # they have no mPC
_BATCH_BYTES = 256 << 20  # of the views of a batch


@job
def analyze_robustness(
    model: Model | Sequence[Model],
    videos: Videos,
    *,
    out: File | None = None,
    train_list: Videos | None = None,
    protocol: Sequence[str | Mapping[str, Any]] | None = None,
    corruptions: Sequence[str] | None = None,
    severities: Sequence[int] = SEVERITIES,
    seed: Natural = 0,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Measure accuracy, kNN and retrieval on corrupted videos: mPC, rPC and the calibration error of each severity.

    Args:
        model: One network or several, as in `test`.
        videos: The tested videos, with labels. One clip of each is measured, or `clips` of them.
        out: Folder for results.json, robustness.png and examples.png.
        train_list: Training videos, for kNN and retrieval; they stay clean.
        protocol: Protocols, each followed by its settings: accuracy, knn, retrieval (default: all that apply).
        corruptions: Default: all that apply of gaussian_noise, shot_noise, impulse_noise, gaussian_blur, defocus_blur,
            motion_blur, fog, rain, contrast, brightness, saturate, gamma_bright, gamma_dark, jpeg, global_shuffle,
            local_shuffle, h264_crf, h264_rate, freeze, drop, shuffle, reverse, jumble, rate.
        severities: Of 1 2 3 4 5 (default: all).
        seed: Of the corruptions.
        progress: As of `test`.
        options: See `NetworkOptions`.

    Returns:
        The results of each network, by its name; numbers are fractions.
    """
    protocols, settings = (None, []) if protocol is None else protocol_choices(protocol)
    if settings:
        options["settings"] = [*options.get("settings", ()), *settings]
    if wrong := [n for n in severities if n not in SEVERITIES]:
        raise ConfigError(f"severities=[{wrong[0]}]: write numbers from 1 to {SEVERITIES[-1]}, such as 1 3 5")
    chosen_severities = tuple(n for n in SEVERITIES if n in severities)
    work, folder = Robustness(corruptions, chosen_severities, seed, protocols), None if out is None else Path(out)
    charted = ("robustness.png", robustness_chart)
    return measure_networks(
        work, models(model), videos, options, folder, train_list, table=robustness_summary, chart=charted
    )


@dataclass(frozen=True)
class Robustness(Measurement):
    """Which corruptions of the tested videos, and by which protocols."""

    kind: ClassVar[str] = "robustness"
    command: ClassVar[str] = "analyze robustness"
    corruptions: Sequence[str] | None = None  # names; None: all that apply
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0  # of the corruptions
    protocols: Sequence[Tree] | None = None  # `{"name": "knn", "k": 20}`; None: all of `_HEADLINES` that apply

    def options(self, options: NetworkOptions) -> NetworkOptions:
        """Measure the central square, of one clip unless there are more."""
        if options.get("crops") not in (None, 1):
            raise ConfigError(f"crops={options['crops']}: only the central square is corrupted; leave it out")
        return {**options, "clips": options.get("clips") or 1, "crops": 1}

    def needs_training(self) -> bool:
        """Whether a protocol compares with training videos."""
        return need_training(self.protocols)

    def plan(self, subject: Subject, query: VideoList, train: VideoList | None) -> Plan:
        """Choose protocols and corruptions."""
        if not (query.labels >= 0).any():
            raise DataError(
                f"robustness is that of accuracies, and the videos of {query.path} do not have one label each"
            )
        protocols, gallery = plan_protocols(one_network(subject), query, train, self.protocols)
        protocols = _measurable(protocols, explicit=self.protocols is not None)
        gallery = gallery if any(protocol.gallery for protocol in protocols.values()) else None
        test = subject.test
        names, left_out = choose_corruptions(self.corruptions, test.clip.frames, test.size)
        clips = CorruptedClips(test.clip, test.clips, test.size, names, self.severities, test.short_side)
        amounts = {name: [ROBUSTNESS[name].amounts[n - 1] for n in self.severities] for name in names}
        settings = {"corruptions": amounts, "severities": self.severities, "seed": self.seed}
        described = json.loads(json.dumps(settings))  # as it is read from a file
        request = {**describe_protocols(protocols), "robustness": described}
        compute = partial(self._compute, subject, query, gallery, protocols, clips, left_out, request)
        return Plan(request, compute, gallery)

    def _compute(
        self,
        subject: Subject,
        query: VideoList,
        gallery: VideoList | None,
        protocols: NamedProtocols,
        clips: CorruptedClips,
        left_out: Mapping[str, str],
        request: Tree,
    ) -> Computed:
        measured, q, g = _measure(subject, protocols, gallery, query, clips, self.seed)
        results: Results = {
            **summarise({version: merged(of_version, "numbers") for version, of_version in measured.items()}, clips),
            **majority(q.label),
            "left_out": left_out,
            "protocols": request["protocols"],
            "num_videos": len(q),
            "num_train": None if g is None else len(g.x),
            "missing": [{"path": path, "reason": reason} for path, reason in q.missing],
            "missing_train": [{"path": path, "reason": reason} for path, reason in ([] if g is None else g.missing)],
            "measure": request["robustness"],
        }
        if self.per_video:
            per_video = {version: merged(of_version, "per_video") for version, of_version in measured.items()}
            results["per_video"] = {"rows": q.index.tolist(), **mean_per_video(per_video, clips)}
        return Computed(results, lambda out: _write_examples(out, clips, query, subject.test, self.seed))


def _write_examples(out: Path, clips: CorruptedClips, query: VideoList, test: TestClips, seed: int) -> None:
    """Draw a frame of the first video with each corruption that changes single frames."""
    (out / "examples.png").unlink(missing_ok=True)
    examples = clips.examples(query, test, seed)
    names = [name for name in clips.names if (name, clips.severities[0]) in examples]
    if names:
        rows = {name: [examples[name, severity] for severity in clips.severities] for name in names}
        sheet = example_sheet(examples[CLEAN], rows, [*map(str, clips.severities)])
        write_whole(out / "examples.png", png(sheet, dpi=110))


def _measurable(protocols: NamedProtocols, explicit: bool) -> dict[str, EvaluationProtocol]:
    """Keep the protocols that have a headline; a ConfigError if another one is asked for explicitly."""
    refused = [name for name in protocols if name not in _HEADLINES]
    if refused and explicit:
        raise ConfigError(f"robustness is measured with {', '.join(_HEADLINES)}, not {refused[0]}: leave it out")
    return {name: protocol for name, protocol in protocols.items() if name in _HEADLINES}


Numbers = dict[str, float]


def merged(measured: Sequence[Measured], part: str) -> dict[str, Any]:
    """Return the `numbers` or `per_video` of all protocols in one dictionary."""
    return {name: value for protocol in measured for name, value in getattr(protocol, part).items()}


def _measure(
    subject: Subject,
    protocols: NamedProtocols,
    gallery: VideoList | None,
    query: VideoList,
    clips: CorruptedClips,
    seed: int,
) -> tuple[dict[Version, list[Measured]], Features, Features | None]:
    """Run all protocols on each version.

    Returns what they measure, the features (N, V * D) of all versions, and those of the gallery, if one is needed. Each
    video is decoded once, the features of the gallery are extracted once.
    """
    test, encoder = subject.test, subject.encoder
    classify = subject.classify if any(protocol.probabilities for protocol in protocols.values()) else None
    g = None
    if gallery is not None and any(protocol.gallery for protocol in protocols.values()):
        g = subject.extract(gallery, "gallery")

    def encode(batch: Batch, features: Any) -> tuple[Tensor]:
        rows = features if classify is None else (torch.cat([h, classify(h)], dim=1) for h in features)
        return (clips.average(batch, rows),)

    # The views of a batch are in memory together, in each worker: bound them.
    views = test.clip.frames * 3 * test.size**2 * len(clips.versions) * test.clips
    fewer = test.model_copy(update={"batch_size": max(1, min(test.batch_size, _BATCH_BYTES // views))})
    dataset = clips.dataset(query, test, seed, test.skips)
    (index, x), missing = encode_videos(encoder, dataset, fewer, subject.device, encode, "corrupted videos")
    label = torch.from_numpy(query.labels)[index]
    q = Features(finished(encoder, x).flatten(1), label, index, missing, classes=query.classes)
    queries = query.rows(index.tolist())
    searched = queries if gallery is None or g is None else gallery.rows(g.index.tolist())
    measured = distributed.on_main(
        lambda: _apply(protocols, clips.versions, q, g, own_rows(searched, queries), encoder.dim)
    )
    return measured, q, g


def _apply(
    protocols: NamedProtocols, versions: Sequence[Version], q: Features, g: Features | None, own_pairs: Tensor, dim: int
) -> dict[Version, list[Measured]]:
    """Run protocols on the features of each version, whose columns from `dim` on are class probabilities."""
    measured, rows = {}, q.x.view(len(q), len(versions), q.x.shape[1] // len(versions))
    for n, version in enumerate(versions):
        x, probabilities = replace(q, x=rows[:, n, :dim]), replace(q, x=rows[:, n, dim:])
        asked = [(protocol, probabilities if protocol.probabilities else x) for protocol in protocols.values()]
        measured[version] = [protocol(x if g is None else g, features, own_pairs) for protocol, features in asked]
    return measured


def mean_per_video(values: Mapping[Version, Mapping[str, Tensor]], clips: CorruptedClips) -> dict[str, list[float]]:
    """Average the versions of each video: `R@1` (clean), `R@1_mPC`, `R@1_noise`, `R@1_severity_1` and so on."""
    versions = [version for version in values if version != CLEAN]
    parts = {"mPC": versions}
    for name, severity in versions:
        for part in (ROBUSTNESS[name].group, f"severity_{severity}"):
            parts.setdefault(part, []).append((name, severity))
    means: dict[str, list[float]] = {}
    for metric in (metric for metric in _HEADLINES.values() if metric in values[CLEAN]):
        means[metric] = values[CLEAN][metric].double().tolist()
        for part, members in parts.items():
            means[f"{metric}_{part}"] = torch.stack([values[v][metric].double() for v in members]).mean(dim=0).tolist()
    return means


def summarise(numbers: Mapping[Version, Numbers], clips: CorruptedClips) -> Results:
    """Summarise the numbers of all versions: those of clean videos, mPC and rPC, and all others below `corruptions`.

    Of a calibration error there is the mean over corruptions, not an mPC.
    """
    clean, severities = numbers[CLEAN], clips.severities
    group_of = {name: ROBUSTNESS[name].group for name in clips.names}
    results: Results = dict(clean)
    groups: dict[str, Numbers] = {group: {} for group in group_of.values()}
    means: dict[str, Numbers] = {str(severity): {} for severity in severities}
    for metric in (metric for metric in clean if metric != "chance"):
        scores = {name: {n: numbers[name, n][metric] for n in severities} for name in clips.names}
        for severity, value in by_severity(scores, severities).items():
            means[str(severity)][metric] = value
        for group, value in by_group(scores, group_of).items():
            groups[group][metric] = value
        if metric in _NOT_PERFORMANCE:
            results[f"{metric}_mean"] = mean_performance(scores)
            continue
        results[f"{metric}_mPC"] = mean_performance(scores)
        relative = relative_performance(scores, clean[metric])
        results |= {} if relative is None else {f"{metric}_rPC": relative}
    corruptions = {}
    for name in clips.names:
        kind = ROBUSTNESS[name]
        of_severity = {str(n): {"amount": _plain(kind.amounts[n - 1]), **numbers[name, n]} for n in severities}
        corruptions[name] = {"group": kind.group, "amounts_are": kind.unit, "severities": of_severity}
    return {**results, "groups": groups, "severities": means, "corruptions": corruptions}


def _plain(amount: Any) -> Any:
    return list(amount) if isinstance(amount, tuple) else amount  # as it is read from a file


def _headlines(results: Results) -> list[str]:
    return [metric for metric in _HEADLINES.values() if metric in results]


def robustness_chart(networks: Mapping[str, Results]) -> bytes:
    """Draw the headline of each protocol over the severities, or the first one of each of several networks, as PNG."""
    first = next(iter(networks.values()))
    metric = _headlines(first)[0]
    panel_numbers = {_TITLES[name]: (first, name) for name in _headlines(first)}
    if len(networks) > 1:
        panel_numbers = {name: (results, metric) for name, results in networks.items() if metric in results}
    rows: dict[str, list[str]] = {}
    for name, corruption in first["corruptions"].items():
        rows.setdefault(corruption["group"], []).append(name)
    panels = {}
    for label, (results, name) in panel_numbers.items():
        severities = {kind: corruption["severities"].values() for kind, corruption in results["corruptions"].items()}
        series = {kind: [numbers[name] for numbers in measured] for kind, measured in severities.items()}
        panels[label] = results[name], series
    what = f"{_TITLES[metric]} on " if len(networks) > 1 else ""
    title = f"{what}{first['num_videos']} corrupted videos, percent; majority {_percent(first['majority'])}"
    return png(severity_map(rows, [*first["severities"]], panels, title))


def robustness_summary(networks: Mapping[str, Results]) -> str:
    """Format the numbers of all networks as a short table."""
    lines = []
    for label, results in networks.items():
        metrics = _headlines(results)
        columns = [*metrics, *(["ece"] if "ece" in results else [])]
        if len(networks) > 1:
            lines.append(f"{label}:")
        severities = results["measure"]["severities"]
        count = format_count(results["num_videos"], results["missing"])
        clips = format_clips(results["protocol"])
        lines.append(f"{count} videos; {clips}; percent, mean over severities {' '.join(map(str, severities))}")
        rows = [["", *(_TITLES.get(name, "ECE") for name in columns)]]
        rows.append(["clean", *(_percent(results[name]) for name in columns)])
        rows.append(["majority", *(_percent(results.get(level_of(name) or "")) for name in columns)])
        for group, numbers in results["groups"].items():
            rows.append([group, *(_percent(numbers[name]) for name in columns)])
        for row in ("mPC", "rPC"):
            means = [_percent(results.get(f"{name}_{row}")) for name in metrics]
            rows.append([row, *means, *["–"] * ("ece" in columns)])
        lines += format_table(rows, "<" + ">" * len(columns))
        if "ece" in columns:
            errors = [f"{n}: {_percent(numbers['ece'])}" for n, numbers in results["severities"].items()]
            lines.append(f"ECE of severity {', '.join(errors)}")
        lines += [f"not measured: {name} ({why})" for name, why in results["left_out"].items()]
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def mean_performance(scores: Scores) -> float:
    """Return mPC: the mean over corruptions of the mean over their severities."""
    return mean(mean(of_severity.values()) for of_severity in scores.values())


def relative_performance(scores: Scores, clean: float) -> float | None:
    """Return rPC: mPC as a fraction of the performance on clean videos; None if that is 0."""
    return mean_performance(scores) / clean if clean > 0 else None


def by_group(scores: Scores, group_of: Mapping[str, str]) -> dict[str, float]:
    """Return the mPC of each group of corruptions."""
    groups: dict[str, dict[str, Mapping[int, float]]] = {}
    for name, of_severity in scores.items():
        groups.setdefault(group_of[name], {})[name] = of_severity
    return {group: mean_performance(members) for group, members in groups.items()}


def by_severity(scores: Scores, severities: Sequence[int]) -> dict[int, float]:
    """Return the mean over corruptions for each severity."""
    return {severity: mean(of_severity[severity] for of_severity in scores.values()) for severity in severities}
