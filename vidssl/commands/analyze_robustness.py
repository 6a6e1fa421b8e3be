"""The command `analyze robustness`: networks on corrupted videos, as numbers and as a chart."""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidssl import distributed
from vidssl.analysis.corrupted_clips import CLEAN, ROBUSTNESS, SEVERITIES, CorruptedClips, Version, choose_corruptions
from vidssl.analysis.corruption_scores import by_group, by_severity, mean_performance, relative_performance
from vidssl.atomic import write_whole
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, Subject, network_options
from vidssl.commands.results import claim_results, format_clips, format_count, format_table
from vidssl.commands.several_networks import each_network
from vidssl.commands.test import compared_with, describe_test, fingerprints, plan_test, protocol_choices
from vidssl.config import Tree
from vidssl.data.overlap import own_rows
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips, encode_videos, extract, finished
from vidssl.evaluation.protocols import EvaluationProtocol
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.output_folder import only_run_in
from vidssl.types import Batch, Features
from vidssl.viz.example_sheet import example_sheet
from vidssl.viz.figure import png
from vidssl.viz.severity_map import severity_map

_HEADLINES = {"accuracy": "top1", "knn": "knn", "retrieval": "R@1"}  # of each protocol that can be measured
_TITLES = {"top1": "accuracy", "knn": "kNN", "R@1": "R@1"}
_NOT_PERFORMANCE = ("ece", "chance")  # they have no mPC
_BATCH_BYTES = 256 << 20  # of the views of a batch


@dataclass(frozen=True)
class Measure:
    """What is measured."""

    corruptions: Sequence[str] | None = None  # names; None: all that apply
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0  # of the corruptions
    train: Path | None = None  # list of the gallery, which stays clean
    protocols: Sequence[Tree] | None = None  # `{"name": "knn", "k": 20}`; None: all of `_HEADLINES` that apply


def run(parsed: argparse.Namespace) -> None:
    """Measure networks, and print the numbers."""
    found = measure_parsed(parsed)
    print_results(parsed, found, summary(found), parsed.out / "robustness.png")


def measure_parsed(parsed: argparse.Namespace) -> dict[str, Results]:
    """Measure networks as the arguments describe: results of each, by its name, and the chart `robustness.png`."""
    claim_results(
        parsed.out,
        "robustness",
        {"list": parsed.input, "train_list": parsed.train_list},
        [*parsed.checkpoint, parsed.cfg],
    )
    if parsed.crops not in (None, 1):
        raise ConfigError(f"--crops {parsed.crops}: only the central square is corrupted; leave --crops out")
    protocols, overrides = (None, []) if parsed.protocol is None else protocol_choices(parsed.protocol)
    parsed.overrides += overrides
    severities = parse_severities(parsed.severities)
    measure = Measure(parsed.corruptions, severities, parsed.seed, parsed.train_list, protocols)
    found = {}
    with distributed.joined(choose_device(parsed.device)):
        for name, one in each_network(parsed):
            found[name] = measure_robustness(network_options(one), one.input, one.out, measure)
        distributed.on_main(lambda: write_whole(parsed.out / "robustness.png", chart(found)))
    return found


def parse_severities(words: Sequence[str] | None) -> tuple[int, ...]:
    """Parse numbers of `SEVERITIES`, ascending; None: all of them."""
    for word in words or ():
        if word not in map(str, SEVERITIES):
            raise ConfigError(
                f"--severities {word}: write numbers from 1 to {SEVERITIES[-1]}, such as --severities 1 3 5"
            )
    return tuple(n for n in SEVERITIES if words is None or str(n) in words)


def measure_robustness(options: LoadOptions, videos: Path, out: Path, measure: Measure) -> Results:
    """Measure a network on clean and corrupted videos; write `results.json` and `examples.png`, unless they exist.

    One clip of each video is measured, or `options.clips` of them. Numbers are fractions.
    """
    lists = {"list": videos, "train_list": measure.train}
    claim_results(out, "robustness", lists, [options.checkpoint, options.cfg])
    options = replace(options, clips=options.clips or 1, crops=1)
    subject, protocols, gallery, query = plan_test(options, videos, measure.train, measure.protocols)
    protocols = _measurable(protocols, given=measure.protocols is not None)
    test = subject.test
    names, left_out = choose_corruptions(measure.corruptions, test.clip.frames, test.size)
    clips = CorruptedClips(test.clip, test.clips, test.size, names, measure.severities, test.short_side)
    amounts = {name: [ROBUSTNESS[name].amounts[n - 1] for n in measure.severities] for name in names}
    asked = {"corruptions": amounts, "severities": measure.severities, "seed": measure.seed}
    request = distributed.on_main(
        lambda: {
            **describe_test(subject, protocols, gallery, query),
            "command": "analyze robustness",
            "robustness": json.loads(json.dumps(asked)),  # as it is read from a file
        }
    )
    with only_run_in(out):
        existing = distributed.on_main(lambda: existing_results(out, request))
        if existing is not None:
            return existing
        overlap = subject.check_overlap(query, compared_with(protocols, gallery))
        found, count, missing, g = _measure(subject, protocols, gallery, query, clips, measure.seed)
        results: Results = {
            **summarise(found, clips),
            "left_out": left_out,
            "protocols": request["protocols"],
            "num_videos": count,
            "num_train": None if g is None else len(g.x),
            "missing": [{"path": path, "reason": reason} for path, reason in missing],
            "missing_train": [{"path": path, "reason": reason} for path, reason in ([] if g is None else g.missing)],
            "list": str(videos),
            "train_list": None if measure.train is None else str(measure.train),
            "measure": request["robustness"],
            **subject.describe(),
        }
        results = complete(results, request=request, overlap=overlap, **fingerprints(query, gallery))
        distributed.on_main(lambda: _write_examples(out, clips, query, subject.test, measure.seed))
        distributed.on_main(lambda: write_results(out, results))
    return results


def _write_examples(out: Path, clips: CorruptedClips, query: VideoList, test: TestClips, seed: int) -> None:
    """Draw a frame of the first video with each corruption that changes single frames."""
    (out / "examples.png").unlink(missing_ok=True)
    found = clips.examples(query, test, seed)
    names = [name for name in clips.names if (name, clips.severities[0]) in found]
    if names:
        rows = {name: [found[name, severity] for severity in clips.severities] for name in names}
        sheet = example_sheet(found[CLEAN], rows, [*map(str, clips.severities)])
        write_whole(out / "examples.png", png(sheet, dpi=110))


def _measurable(protocols: Mapping[str, EvaluationProtocol], given: bool) -> dict[str, EvaluationProtocol]:
    """Keep the protocols that have a headline; a ConfigError if another one was `given`."""
    others = [name for name in protocols if name not in _HEADLINES]
    if others and given:
        raise ConfigError(f"robustness is measured with {', '.join(_HEADLINES)}, not {others[0]}: leave it out")
    return {name: protocol for name, protocol in protocols.items() if name in _HEADLINES}


Numbers = dict[str, float]


def _measure(
    subject: Subject,
    protocols: Mapping[str, EvaluationProtocol],
    gallery: VideoList | None,
    query: VideoList,
    clips: CorruptedClips,
    seed: int,
) -> tuple[dict[Version, Numbers], int, tuple[tuple[str, str], ...], Features | None]:
    """Run all protocols on each version.

    Returns their numbers, the count of the videos, those that could not be read, and the gallery, if one is needed.
    Each video is decoded once, the features of the gallery are extracted once.
    """
    test, encoder, device = subject.test, subject.encoder, subject.device
    asking = any(protocol.probabilities for protocol in protocols.values())
    classify = subject.classify if asking else None
    g = None
    if gallery is not None and any(protocol.gallery for protocol in protocols.values()):
        g = extract(encoder, gallery, test, device, "gallery")

    def encode(batch: Batch, features: Any) -> tuple[Tensor]:
        rows = features if classify is None else (torch.cat([h, classify(h)], dim=1) for h in features)
        return (clips.average(batch, rows),)

    # The views of a batch are in memory together, in each worker: bound them.
    views = test.clip.frames * 3 * test.size**2 * len(clips.versions) * test.clips
    fewer = test.model_copy(update={"batch_size": max(1, min(test.batch_size, _BATCH_BYTES // views))})
    dataset = clips.dataset(query, test, seed, test.allow_missing)
    (index, x), missing = encode_videos(encoder, dataset, fewer, device, encode, "corrupted videos")
    x = finished(encoder, x)

    def compute() -> dict[Version, Numbers]:
        queries = query.rows(index.tolist())
        galleries = queries if gallery is None or g is None else gallery.rows(g.index.tolist())
        own = own_rows(galleries, queries)
        label = torch.from_numpy(query.labels)[index]
        found: dict[Version, Numbers] = {}
        for n, version in enumerate(clips.versions):
            parts = (x[:, n, : encoder.dim], x[:, n, encoder.dim :])
            q, p = (Features(part, label, index, missing, classes=query.classes) for part in parts)
            made = [kind(q if g is None else g, p if kind.probabilities else q, own) for kind in protocols.values()]
            found[version] = {name: value for measured in made for name, value in measured.numbers.items()}
        return found

    return distributed.on_main(compute), len(index), missing, g


def summarise(found: Mapping[Version, Numbers], clips: CorruptedClips) -> Results:
    """Summarise the numbers of all versions: those of clean videos, mPC and rPC, and all others below `corruptions`.

    Of a calibration error there is the mean over corruptions, not an mPC.
    """
    clean, severities = found[CLEAN], clips.severities
    group_of = {name: ROBUSTNESS[name].group for name in clips.names}
    results: Results = dict(clean)
    groups: dict[str, Numbers] = {group: {} for group in group_of.values()}
    means: dict[str, Numbers] = {str(severity): {} for severity in severities}
    for metric in (metric for metric in clean if metric != "chance"):
        scores = {name: {n: found[name, n][metric] for n in severities} for name in clips.names}
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
    corruptions = {
        name: {
            "group": group_of[name],
            "amounts_are": ROBUSTNESS[name].unit,
            "severities": {
                str(n): {"amount": _plain(ROBUSTNESS[name].amounts[n - 1]), **found[name, n]} for n in severities
            },
        }
        for name in clips.names
    }
    return {**results, "groups": groups, "severities": means, "corruptions": corruptions}


def _plain(amount: Any) -> Any:
    return list(amount) if isinstance(amount, tuple) else amount  # as it is read from a file


def _headlines(results: Results) -> list[str]:
    return [metric for metric in _HEADLINES.values() if metric in results]


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw the headline of each protocol over the severities, or the first one of each of several networks, as PNG."""
    first = next(iter(found.values()))
    metric = _headlines(first)[0]
    shown = {_TITLES[name]: (first, name) for name in _headlines(first)}
    if len(found) > 1:
        shown = {name: (results, metric) for name, results in found.items() if metric in results}
    rows: dict[str, list[str]] = {}
    for name, corruption in first["corruptions"].items():
        rows.setdefault(corruption["group"], []).append(name)
    panels = {
        label: (
            results[name],
            {
                kind: [numbers[name] for numbers in corruption["severities"].values()]
                for kind, corruption in results["corruptions"].items()
            },
        )
        for label, (results, name) in shown.items()
    }
    what = f"{_TITLES[metric]} on " if len(found) > 1 else ""
    title = f"{what}{first['num_videos']} corrupted videos, percent"
    return png(severity_map(rows, [*first["severities"]], panels, title))


def summary(found: Mapping[str, Results]) -> str:
    """Format the numbers of all networks as a short table."""
    lines = []
    for label, results in found.items():
        metrics = _headlines(results)
        shown = [*metrics, *(["ece"] if "ece" in results else [])]
        if len(found) > 1:
            lines.append(f"{label}:")
        severities = results["measure"]["severities"]
        count = format_count(results["num_videos"], results["missing"])
        clips = format_clips(results["protocol"])
        lines.append(f"{count} videos; {clips}; percent, mean over severities {' '.join(map(str, severities))}")
        rows = [["", *(_TITLES.get(name, "ECE") for name in shown)]]
        rows.append(["clean", *(_percent(results[name]) for name in shown)])
        rows += [[group, *(_percent(numbers[name]) for name in shown)] for group, numbers in results["groups"].items()]
        ends = {"mPC": "_mPC", "rPC": "_rPC"}
        for row, end in ends.items():
            rows.append([row, *(_percent(results.get(f"{name}{end}")) for name in metrics), *["–"] * ("ece" in shown)])
        if "ece" in shown:
            errors = [f"{n}: {_percent(numbers['ece'])}" for n, numbers in results["severities"].items()]
            lines += [*format_table(rows, "<" + ">" * len(shown)), f"ECE of severity {', '.join(errors)}"]
        else:
            lines += format_table(rows, "<" + ">" * len(shown))
        lines += [f"not measured: {name} ({why})" for name, why in results["left_out"].items()]
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"
