"""Networks on corrupted videos."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Unpack

from vidssl.apps.analysis import verdicts
from vidssl.apps.analysis.corrupted_clips import ROBUSTNESS, SEVERITIES, choose_corruptions
from vidssl.apps.analysis.evidence import Evidence
from vidssl.apps.analysis.page import measure_sections
from vidssl.apps.analysis.versions import ORIGINAL, Version, Versions, as_read, central_square, encode_versions
from vidssl.base import distributed
from vidssl.base.atomic import write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.progress import Report
from vidssl.base.types import Features
from vidssl.data.find_same_videos import own_rows
from vidssl.evaluation.metrics import majority
from vidssl.evaluation.protocols import EvaluationProtocol, Measured
from vidssl.evaluation.result_files import Results
from vidssl.jobs.job import File, Model, Natural, NetworkOptions, Videos, job
from vidssl.jobs.load_network import one_network
from vidssl.jobs.measurement_runner import JobResults, Measurement, list_missing
from vidssl.jobs.test import NamedProtocols, describe_protocols, plan_protocols, protocol_choices
from vidssl.page.charts import Shot, example_sheet
from vidssl.page.figure_style import png
from vidssl.page.section import Point, Quantity, Section

_HEADLINES = {"accuracy": "top1", "knn": "knn", "retrieval": "R@1"}  # of each protocol that can be measured
_GROUPS = {"patches": "shuffled patches", "time": "lost or reordered frames"}  # in plain words
_NOT_PERFORMANCE = ("ece",)  # they have no mPC
_BATCH_BYTES = 256 << 20  # of the views of a batch
ROBUSTNESS_SECTION = Section(
    "robustness",
    "Robustness",
    "How much is still recognised if the tested videos are corrupted: noisy, blurred, compressed, out of order? The "
    "training videos stay clean.",
)


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
        out: Folder for results.json, index.html and examples.png.
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
    work = Robustness(corruptions, tuple(n for n in SEVERITIES if n in severities), seed, protocols)
    return measure_sections(work, model, videos, options, out, robustness_section, train_list)


@dataclass
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
        return central_square(options, "corrupted")

    def check(self) -> Tree:
        """Choose protocols and corruptions."""
        query, test = self.query, one_network(self.subject).test
        if not (query.labels >= 0).any():
            raise DataError(f"robustness is that of accuracies: the videos of {query.path} do not have one label each")
        protocols, gallery = plan_protocols(self.subject, query, self.train, self.protocols)
        self.chosen = _measurable(protocols, explicit=self.protocols is not None)
        self.train = gallery if any(protocol.gallery for protocol in self.chosen.values()) else None
        names, self.left_out = choose_corruptions(self.corruptions, test.clip.frames, test.size)
        changed = [(name, n - 1) for name in names for n in self.severities]
        self.clips = Versions(test.clip, test.clips, test.size, ROBUSTNESS, changed, test.short_side)
        amounts = {name: [ROBUSTNESS[name].amounts[n - 1] for n in self.severities] for name in names}
        self.settings = as_read({"corruptions": amounts, "severities": self.severities, "seed": self.seed})
        return {**describe_protocols(self.chosen), "robustness": self.settings}

    def measure(self) -> Results:
        """Run all protocols on each version; each video is decoded once, features of the gallery are extracted once."""
        subject, test, clips, query, gallery = self.subject, self.subject.test, self.clips, self.query, self.train
        if not any(protocol.probabilities for protocol in self.chosen.values()):
            subject = replace(subject, classify=None)
        g = None if gallery is None else subject.extract(gallery, "gallery")
        # The views of a batch are in memory together, in each worker: bound them.
        views = test.clip.frames * 3 * test.size**2 * (1 + len(clips.changed)) * test.clips
        fewer = test.model_copy(update={"batch_size": max(1, min(test.batch_size, _BATCH_BYTES // views))})
        dataset = clips.dataset(query, test, self.seed, test.skips)

        def mean_of_clips(views: Iterable[Tensor]) -> Tensor:
            return clips.split(views).mean(dim=1)

        index, x, missing = encode_versions(subject, dataset, fewer, mean_of_clips, "corrupted videos")
        if not distributed.is_main():
            return {}
        rows = torch.from_numpy(index)
        q = Features(x.flatten(1), torch.from_numpy(query.labels)[rows], rows, missing, classes=query.classes)
        queries = query.rows(index.tolist())
        searched = queries if gallery is None or g is None else gallery.rows(g.index.tolist())
        versions = [ORIGINAL, *clips.changed]
        measured = _apply(self.chosen, versions, q, g, own_rows(searched, queries), subject.encoder.dim)
        results: Results = {
            **summarise({version: merged(of_version, "numbers") for version, of_version in measured.items()}),
            **majority(q.label),
            "left_out": self.left_out,
            **describe_protocols(self.chosen),
            "num_videos": len(q),
            "num_train": None if g is None else len(g.x),
            "missing": list_missing(missing),
            "missing_train": list_missing(() if g is None else g.missing),
            "measure": self.settings,
        }
        if self.per_video:
            per_video = {version: merged(of_version, "per_video") for version, of_version in measured.items()}
            results["per_video"] = {"rows": index.tolist(), **mean_per_video(per_video)}
        return results

    def write(self, out: Path) -> None:
        """Draw a frame of the first video with each corruption that changes single frames."""
        (out / "examples.png").unlink(missing_ok=True)
        clips, rows = self.clips, dict[str, list[Shot]]()
        still = replace(clips, changed=clips.of("square", "frames"))
        dataset = still.dataset(self.query, self.subject.test, self.seed, skip=True)
        squares = 1 + len(still.of("square"))
        views = next(views for row in range(len(dataset)) if (views := dataset[0, row].views))
        clean, *changed = [*views[:squares], *views[squares * clips.clips :]]  # of the first clip, then of others
        for (name, _), frames in zip(still.changed, changed, strict=False):
            rows.setdefault(name.replace("_", " "), [Shot(clean)]).append(Shot(frames))
        if rows:
            columns = dict.fromkeys(["clean", *(str(place + 1) for _, place in still.changed)])
            sheet = example_sheet([*rows.items()], [*columns], (0.62, 0.62))
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


def _parts_of(versions: Iterable[Version]) -> dict[str, list[Version]]:
    """The changed versions of which there are means: all of them for mPC, each group of corruptions, each severity."""
    parts: dict[str, list[Version]] = {}
    for name, place in (version for version in versions if version != ORIGINAL):
        for part in ("mPC", ROBUSTNESS[name].group, f"severity_{place + 1}"):
            parts.setdefault(part, []).append((name, place))
    return parts


def mean_per_video(values: Mapping[Version, Mapping[str, Tensor]]) -> dict[str, list[float]]:
    """Average the versions of each video: `R@1` (clean), `R@1_mPC`, `R@1_noise`, `R@1_severity_1` and so on."""
    parts = _parts_of(values)
    means: dict[str, list[float]] = {}
    for metric in (metric for metric in _HEADLINES.values() if metric in values[ORIGINAL]):
        means[metric] = values[ORIGINAL][metric].double().tolist()
        for part, members in parts.items():
            means[f"{metric}_{part}"] = torch.stack([values[v][metric].double() for v in members]).mean(dim=0).tolist()
    return means


def summarise(numbers: Mapping[Version, Numbers]) -> Results:
    """Summarise the numbers of all versions: those of clean videos, mPC and rPC, and all others below `corruptions`.

    Of a calibration error there is the mean over corruptions, not an mPC.
    """
    clean, changed = numbers[ORIGINAL], [version for version in numbers if version != ORIGINAL]
    severities = [*dict.fromkeys(place + 1 for _, place in changed)]
    metrics, results = [metric for metric in clean if metric != "chance"], dict(clean)
    parts = {
        part: {metric: mean(numbers[version][metric] for version in members) for metric in metrics}
        for part, members in _parts_of(numbers).items()
    }
    for metric, value in parts["mPC"].items():
        results[f"{metric}_mean" if metric in _NOT_PERFORMANCE else f"{metric}_mPC"] = value
        if metric not in _NOT_PERFORMANCE and clean[metric] > 0:
            results[f"{metric}_rPC"] = value / clean[metric]
    means = {str(severity): parts[f"severity_{severity}"] for severity in severities}
    corruptions: dict[str, Tree] = {}
    for name in dict.fromkeys(name for name, _ in changed):
        kind = ROBUSTNESS[name]
        of_severity = {str(n): {"amount": kind.amounts[n - 1], **numbers[name, n - 1]} for n in severities}
        corruptions[name] = {"group": kind.group, "amounts_are": kind.unit, "severities": of_severity}
    groups = {corruption["group"]: parts[corruption["group"]] for corruption in corruptions.values()}
    return {**results, "groups": groups, "severities": means, "corruptions": as_read(corruptions)}


def robustness_section(evidence: Evidence) -> Section:
    """What is left of the accuracy on corrupted videos."""
    first, key = evidence.first, evidence.primary
    shown = replace(evidence, networks={name: {**_flat(of), **of} for name, of in evidence.networks.items()})
    quantities = []
    groups_of_all = dict.fromkeys(name for results in evidence.networks.values() for name in results["groups"])
    for metric, title in {**evidence.measures, "ece": "ECE"}.items():
        keys = {"clean": metric} | {f"severity {n}": f"{metric}_severity_{n}" for n in first["severities"]}
        keys |= {_GROUPS.get(name, name): f"{metric}_{name}" for name in groups_of_all}
        keys |= {"mean": f"{metric}_mean"} if metric in _NOT_PERFORMANCE else {"mPC": f"{metric}_mPC"}
        levels = {} if metric in _NOT_PERFORMANCE else {"majority": evidence.levels["majority"]}
        drawn = metric == (key or next(iter(evidence.measures)))
        quantities.append(shown.quantity(f"{title} on corrupted videos", keys, levels, drawn=drawn))
    relative = {f"rPC, {title}": f"{metric}_rPC" for metric, title in evidence.measures.items()}
    quantities.append(shown.quantity("Of the clean performance", relative, drawn=False))
    for metric, title in evidence.measures.items():
        quantities += [_heat(f"{title} of each corruption", metric, name, evidence) for name in evidence.networks]
    if key is None:
        return evidence.section(ROBUSTNESS_SECTION, quantities, notes=evidence.left_out)
    groups = {_GROUPS.get(name, name): numbers[key] for name, numbers in first["groups"].items()}
    clean, corrupted = evidence.estimate(key), evidence.estimate(f"{key}_mPC")
    assert clean is not None and corrupted is not None
    loss, untrained = evidence.gap(key, f"{key}_mPC"), evidence.beside(f"{key}_mPC")
    verdict = verdicts.robustness(evidence.sample, evidence.score(key), clean, corrupted, loss, groups, untrained)
    return evidence.section(ROBUSTNESS_SECTION, quantities, verdict, evidence.left_out)


def _flat(results: Results) -> Numbers:
    """The numbers of groups and severities by the names of their values of each video."""
    parts = {**results["groups"], **{f"severity_{n}": numbers for n, numbers in results["severities"].items()}}
    return {f"{metric}_{part}": value for part, numbers in parts.items() for metric, value in numbers.items()}


def _heat(title: str, metric: str, network: str, evidence: Evidence) -> Quantity:
    """A number of a network under each corruption, by severity."""
    rows = {
        name.replace("_", " "): {
            f"severity {n}": Point(numbers[metric]) for n, numbers in corruption["severities"].items()
        }
        for name, corruption in evidence.networks[network]["corruptions"].items()
        if metric in evidence.networks[network]
    }
    of = f": {network}" if len(evidence.networks) > 1 else ""
    return Quantity(title + of, rows, heat=True)
