"""Measure a network on a list with the evaluation protocols, and beside it what learned nothing, the floors."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import Field, create_model
from torch import Tensor
from typing_extensions import Unpack

from vidssl.base.atomic import write_whole
from vidssl.base.config import Tree, bind, choice, override
from vidssl.base.errors import ConfigError
from vidssl.base.plugins import code_of, explaining, not_imported
from vidssl.base.progress import Report
from vidssl.base.registry import APPS, load_app, load_named
from vidssl.base.safe_parse import read_json
from vidssl.base.types import Features
from vidssl.data.video_list import VideoList
from vidssl.engine.run_config import Run
from vidssl.evaluation.measure import ListMeasurement as Measured
from vidssl.evaluation.measure import check_class_names, check_measurable, chosen_protocols, measure, need_gallery
from vidssl.evaluation.metrics import confusion, level_of
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol
from vidssl.evaluation.result_files import Results
from vidssl.jobs.job import File, Model, NetworkOptions, Videos, job, path_of
from vidssl.jobs.load_network import Subject, describe_clips, extract_together, joined_clips, load_parts
from vidssl.jobs.measurement_runner import (
    JobResults,
    Measurement,
    format_clips,
    format_number,
    format_table,
    format_videos,
    list_missing,
    measure_networks,
    spread_of,
    write_csv,
)
from vidssl.models.floors import FLOORS
from vidssl.models.joined_features import EncoderPart
from vidssl.page.charts import confusion_matrix
from vidssl.page.figure_style import png

_OF_DIRECTIONS = ("order", "order_pairs")  # accuracies of two classes of equal size
LEVELS = ("chance", "majority", "majority_mean_class")  # numbers that do not depend on the network
_NONE = "–"
NamedProtocols = Mapping[str, EvaluationProtocol]


def measure_floors(measurement: "Protocols") -> Results:
    """Measure what learned nothing by the protocols of a network; each video is decoded once for all floors.

    Returns `floors`, the numbers of each by its name, and `floors_details`.
    """
    subject, protocols = measurement.subject, measurement.chosen
    left_out = {name: reason for name, protocol in protocols.items() if (reason := _why_left_out(protocol))}
    applied = {name: protocol for name, protocol in protocols.items() if name not in left_out}
    if not applied:
        return {"floors": {}, "floors_details": {"left_out": left_out}}
    options: NetworkOptions = {"workers": subject.test.workers, "allow_missing": subject.test.allow_missing}
    loaded = load_parts([EncoderPart(f"floor:{name}") for name in FLOORS], {**options, "device": "cpu"})
    floors = [replace(floor, device=subject.device) for floor in loaded]
    floors = [floor.skipping() for floor in floors] if subject.test.skips else floors
    reverse = any(protocol.reverse for protocol in applied.values())
    extract = partial(extract_together, floors, check=measurement.stop, reverse=reverse)
    lists = {"queries": extract(measurement.query, "queries of floors")}
    if measurement.train is not None:
        lists["gallery"] = extract(measurement.train, "gallery of floors")
    measured = {}
    for number, name in enumerate(FLOORS):
        of_floor = {title: features[number] for title, features in lists.items()}
        measured[name] = measurement.run(applied, replace(floors[number], extractor=partial(_extracted, of_floor)))
    numbers = {name: of_floor.of_protocols for name, of_floor in measured.items()}
    clips = describe_clips(joined_clips([floor.test for floor in floors]))
    return {
        "floors": numbers,
        "floors_details": {"protocol": clips, "left_out": left_out, **_counts(measured["untrained"])},
    }


def _extracted(features: Mapping[str, Features], *arguments: Any, **options: Any) -> Features:
    """Return features that were extracted, by the title of their list, in place of `extract_features`."""
    return features[arguments[-1]]


def _why_left_out(protocol: EvaluationProtocol) -> str | None:
    if protocol.probabilities:
        return "they have no classifier; knn and logistic, with a training list, measure both"
    return "they have no feature maps" if protocol.maps else None


def format_floors(network: str, results: Results, cell: Callable[[str, float], str]) -> list[str]:
    """Format the numbers of a network and of floors: a row for each, and what was measured; `cell` formats a number."""
    splits = list(results.get("splits", {}).values())
    columns = [name for name in _numbers_of(results) if name not in LEVELS and not name.endswith("_spread")]
    rows = [["", *columns]]
    for row, measured in {network: results, **results["floors"]}.items():
        rows.append([row, *(format_number(name, measured, cell) for name in columns)])
    levels = [
        cell(name, 0.5) if name in _OF_DIRECTIONS else format_number(level_of(name) or "", results, cell)
        for name in columns
    ]
    if {*levels} != {_NONE}:
        rows.append(["majority", *levels])
    lines = format_table(rows, "<" + ">" * len(columns))
    details = [split["floors_details"] for split in splits or [results]]
    if "protocol" in details[0]:
        counts = ", ".join(map(format_videos, details))
        lines.append(f"floors: {counts}; {format_clips(details[0]['protocol'])}")
    return lines + [f"floors without {name}: {reason}" for name, reason in details[0]["left_out"].items()]


def _numbers_of(results: Results) -> dict[str, float]:
    """The numbers of one measurement, or the means of several splits."""
    if "splits" in results:
        return dict(results["mean"])
    return {name: value for name, value in results.items() if isinstance(value, float)}


_NOT_PERCENT = ("uniformity_loss", "localization_error", "mean_position_error")  # a logarithm, distances in pixels


@job
def test(
    model: Model,
    videos: Videos,
    *,
    out: File | None = None,
    train_list: Videos | None = None,
    protocol: Sequence[str | Mapping[str, Any]] | None = None,
    splits: Sequence[int] | None = None,
    floors: bool = False,
    progress: Report = None,
    **options: Unpack[NetworkOptions],
) -> JobResults:
    """Measure a network on a list: accuracy, kNN, SVM, few labels, retrieval and more.

    Results of the same request that are in `out` already are returned. docs/evaluation.md describes the numbers.

    Args:
        model: A run's folder, a file of weights, a name such as `vidssl-small` or `torchvision:r3d_18`
            (docs/encoders.md), `random` for the untrained backbone of `cfg`, or a module.
        videos: The tested videos, with labels for most protocols.
        out: Folder for results.json, tables and images.
        train_list: List of training videos, for the protocols that need them.
        protocol: Protocols, each followed by its settings as `KEY=VALUE`, or `{"name": "knn", "k": 20}`: accuracy, knn,
            localization, logistic, lowshot, multilabel_logistic, multilabel_lowshot, multilabel_svm, order, retrieval,
            svm, uniformity (default: those that fit the network and its lists).
        splits: Test once per split, as 1 2 3; the number replaces `{split}` in paths and settings.
        floors: Measure also what learned nothing, by the same protocols: thumbnails, differences of frames, and an
            untrained network.
        progress: Called with (videos done, all videos, title); False: no progress; None: a bar.
        options: See `NetworkOptions`.

    Raises:
        VidsslError: The network, its clips, a list or a video cannot be used; the message has the remedy.
    """
    folder, file = None if out is None else Path(out), path_of(videos)
    if file is not None and file.suffix in APPS["test list"]:
        optional = {"train_list": train_list, "protocol": protocol, "splits": splits, "floors": floors or None}
        stated = [name for name, value in optional.items() if value is not None]
        return load_app("test list", file.suffix).test(model, file, folder, options, stated)  # type: ignore[no-any-return]
    protocols, settings = (None, []) if protocol is None else protocol_choices(protocol)
    if settings:
        options["settings"] = [*options.get("settings", ()), *settings]
    work = Protocols(protocols, floors=floors)
    results = measure_networks(work, [model], videos, options, folder, train_list, splits, table=format_measured)
    only = JobResults(next(iter(results.values())))
    only.text, only.file = results.text, results.file
    return only


@dataclass
class Protocols(Measurement):
    """The evaluation protocols, as plain data: `{"name": "knn", "k": 20}`; None: those of `chosen_protocols`."""

    kind: ClassVar[str] = "test"
    command: ClassVar[str] = "test"
    protocols: Sequence[Tree] | None = None
    stop: Callable[[], None] = lambda: None  # called before each batch, as the `check` of `extract_features`
    floors: bool = False
    chosen: NamedProtocols = field(init=False, repr=False)  # those that fit the network and its lists
    measured: Measured = field(init=False, repr=False)

    def check(self) -> Tree:
        """Build the protocols, and check that they fit the lists."""
        self.chosen, self.train = plan_protocols(self.subject, self.query, self.train, self.protocols)
        return describe_protocols(self.chosen)

    def measure(self) -> Results:
        """Run the protocols."""
        self.measured = measured = self.run(self.chosen, self.subject)
        if self.overlap["gallery"]:
            self.overlap["gallery"]["equal_features"] = measured.equal_features
        return {
            **measured.numbers,
            **describe_protocols(self.chosen),
            "details": {name: protocol.details for name, protocol in measured.by_protocol.items() if protocol.details},
            **_counts(measured),
            **({"per_video": measured.per_video} if self.per_video else {}),
        }

    def run(self, protocols: NamedProtocols, subject: Subject) -> Measured:
        """Run protocols on a network."""
        classifier = subject.classify, subject.classes
        clips = subject.test, subject.device
        return measure(
            subject.backbone, protocols, self.train, self.query, *clips, *classifier, self.stop, subject.extractor
        )

    def write(self, out: Path) -> None:
        """Write the files of protocols that predict classes, and remove those of other protocols."""
        names = _measured_before(out)
        (out / "results.json").unlink(missing_ok=True)
        for name in names:
            for file in (f"predictions_{name}.csv", f"per_class_{name}.csv", f"confusion_{name}.png"):
                (out / file).unlink(missing_ok=True)
        for name, of_protocol in self.measured.by_protocol.items():
            if of_protocol.predicted is not None:
                _write_predictions(out, name, self.measured.query, of_protocol.predicted)

    def add(self, results: Results) -> Results:
        """Return results with those of floors, if they are asked for and lacking."""
        return {**results, **measure_floors(self)} if self.floors and "floors" not in results else results


def protocol_choices(words: Sequence[str | Mapping[str, Any]]) -> tuple[list[Tree], list[str]]:
    """Parse `knn k=20 svm data.workers=0` as the choices of two protocols and the settings of the config among them.

    A setting belongs to the protocol before it, unless only the config has it; of a plug-in: if it has no dot.
    """
    choices: list[Tree] = []
    settings: list[str] = []
    known: Collection[str] | None = ()  # settings of the protocol before; None: of a plug-in that is not imported yet
    for word in words:
        if not isinstance(word, str):
            choices.append(dict(word))
            continue
        key = word.partition("=")[0]
        section = key.partition(".")[0]
        if "=" not in word:
            choices.append({"name": word})
            known = PROTOCOLS[word].Config.model_fields if word in PROTOCOLS else None
        elif section in Run.model_fields and (section != key if known is None else section not in known):
            settings.append(word)
        elif choices:
            override(choices[-1], word)
        else:
            raise ConfigError(f"protocol begins with the setting {word}: name the protocol before it")
    if not choices:
        raise ConfigError(f"protocol {' '.join(map(str, words))} names no protocol: write knn k=20")
    return choices, settings


def plan_protocols(
    subject: Subject, query: VideoList, train: VideoList | None, protocols: Sequence[Tree] | None
) -> tuple[NamedProtocols, VideoList | None]:
    """Build protocols, and check that they and the lists fit each other; return also the gallery, if one is used."""
    # Bound only now: modules that the run imports may register protocols.
    with explaining(not_imported(() if subject.run is None else subject.run.imports)):
        bound = None if protocols is None else _bind(protocols)
    gallery = train if need_gallery(bound and [protocol.name for protocol in bound]) else None
    chosen = chosen_protocols(bound, subject.classify is not None, gallery, query)
    check_measurable(chosen, gallery, query, subject.classes, subject.test.cells)
    if any(protocol.probabilities for protocol in chosen.values()):
        check_class_names(query, subject.class_names, f"when {subject.name} was trained")
    return chosen, gallery if any(protocol.gallery for protocol in chosen.values()) else None


def _bind(choices: Sequence[Tree]) -> tuple[Any, ...]:
    load_named(choices)
    protocol = choice(PROTOCOLS)
    schema = create_model("Protocols", protocols=(tuple[protocol, ...], Field()))  # type: ignore[valid-type]
    try:
        return bind(schema, {"protocols": list(choices)}, "protocol").protocols  # type: ignore[attr-defined, no-any-return]
    except ConfigError as error:
        if all(named.get("name") in PROTOCOLS for named in choices):
            raise
        raise ConfigError(f"{error}; of a module of your own: imports=[MODULE]") from None


def describe_protocols(protocols: NamedProtocols) -> Tree:
    """Describe protocols as plain data; those of plug-ins with the hash of their code."""
    settings = [
        {"name": name, **p.config.model_dump(mode="json", exclude={"name"}), **code_of(type(p))}
        for name, p in protocols.items()
    ]
    return {"protocols": settings}


def _counts(measured: Measured) -> Results:
    """How many videos were measured, and which could not be read."""
    return {
        "num_videos": len(measured.query),
        "num_train": None if measured.gallery is None else len(measured.gallery),
        "missing": list_missing(measured.missing_query),
        "missing_train": list_missing(measured.missing_gallery),
    }


def _measured_before(out: Path) -> list[str]:
    """Names of the protocols whose results are in a folder."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        return [str(protocol["name"]) for protocol in read_json(out / "results.json")["protocols"]]
    return []


def _write_predictions(out: Path, name: str, videos: VideoList, predicted: Tensor) -> None:
    """Write the predicted class of each video, a table of the classes, and the confusion matrix as an image."""
    label = torch.from_numpy(videos.labels)
    classes = max(len(videos.classes), int(max(label.max(), predicted.max())) + 1)
    names = [videos.classes[n] if n < len(videos.classes) else str(n) for n in range(classes)]
    counts = confusion(predicted, label, classes)
    rows = [
        (path, names[of], names[p] if p >= 0 else "")
        for path, of, p in zip(videos.names, label.tolist(), predicted.tolist(), strict=True)
    ]
    write_csv(out / f"predictions_{name}.csv", ("path", "class", "predicted"), rows)
    total, right, mistakes = counts.sum(dim=1).tolist(), counts.diagonal().tolist(), counts[:, :-1].clone()
    most, mistaken = mistakes.fill_diagonal_(0).max(dim=1)
    table = [
        (names[n], total[n], right[n], f"{right[n] / total[n]:.4f}", names[mistaken[n]] if most[n] else "")
        for n in range(classes)
        if total[n]
    ]
    write_csv(out / f"per_class_{name}.csv", ("class", "videos", "right", "accuracy", "most often taken for"), table)
    write_whole(out / f"confusion_{name}.png", png(confusion_matrix(counts.numpy(), names), dpi=120))


def format_measured(networks: Mapping[str, Results]) -> str:
    """Format the numbers of a test of one network as a short table; with floors in rows."""
    name, results = next(iter(networks.items()))
    test, splits = results["protocol"], list(results.get("splits", {}).values())
    head = f"{format_videos(results)}; {format_clips(test)}, percent"
    lines = [results["labels"]] if "labels" in results else []
    drawn = "; ± standard deviation over draws" * any(name.endswith("_spread") for name in results)
    lines += [head + (f"; mean ± standard deviation of {len(splits)} splits" if len(splits) > 1 else drawn)]
    lines += format_floors(name or "network", results, _cell) if "floors" in results else _numbers(results, splits)
    details = [detail for split in splits or [results] for detail in split.get("details", {}).values()]
    return "\n".join([*lines, *dict.fromkeys(detail["note"] for detail in details if "note" in detail)])


def _numbers(results: Results, splits: Sequence[Results]) -> list[str]:
    numbers = _numbers_of(results)
    width = max((len(name) for name in numbers), default=0)
    lines = []
    for name, value in numbers.items():
        if name.endswith("_spread") or name in LEVELS:
            continue
        line = f"{name:<{width}} {_cell(name, value):>7}"
        if (spread := spread_of(name, results)) is not None:
            line += f" ± {_cell(name, spread):>5}"
        if len(splits) > 1:
            line += f"   ({', '.join(_cell(name, of_split[name]) for of_split in splits)})"
        if (level := level_of(name)) in numbers:
            line += f"   {'majority' if level == 'majority' else '1 / classes'} {_cell(name, numbers[level])}"
        lines.append(line)
    return lines


def _cell(name: str, value: float) -> str:
    return f"{value:.3f}" if name in _NOT_PERCENT else f"{100 * value:.1f}"
