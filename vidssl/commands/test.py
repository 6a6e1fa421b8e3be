"""The command `test`: measure a network on a list with the evaluation protocols, for one split or several."""

import argparse
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, create_model
from torch import Tensor

from vidssl import distributed
from vidssl.atomic import write_whole
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, Subject, class_hash, load_subject, network_options
from vidssl.commands.results import claim_results, format_clips, format_count, write_csv
from vidssl.commands.splits import for_splits
from vidssl.config import Tree, bind, choice, override
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.engine.config_schema import Run
from vidssl.errors import ConfigError
from vidssl.evaluation.list_checks import check_measurable, check_names
from vidssl.evaluation.measure import Measurement, chosen_protocols, measure, need_gallery
from vidssl.evaluation.metrics import confusion
from vidssl.evaluation.overlap import report_equal_features
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.output_folder import only_run_in
from vidssl.plugins import explaining, not_imported
from vidssl.viz.confusion import confusion_matrix
from vidssl.viz.figure import png


def run(parsed: argparse.Namespace) -> None:
    """Measure a network, and print the numbers."""
    if parsed.input.suffix == ".json":  # a list of boxes
        from vidssl.commands import measure_detector  # imports torchvision's detectors, which is slow

        measure_detector.run(parsed)
        return
    results = measure_parsed(parsed)
    print_results(parsed, results, summary(results), parsed.out / "results.json")


def measure_parsed(parsed: argparse.Namespace) -> Results:
    """Measure a network as the arguments describe, for one split or several."""
    lists = {"list": parsed.input, "train_list": parsed.train_list}
    claim_results(parsed.out, "test", lists, [parsed.checkpoint, parsed.cfg])
    protocols, overrides = (None, []) if parsed.protocol is None else protocol_choices(parsed.protocol)
    parsed.overrides += overrides
    return for_splits(
        parsed,
        lambda one: measure_network(network_options(one), one.input, one.out, one.train_list, protocols),
        check=lambda one: plan_test(network_options(one), one.input, one.train_list, protocols),
    )


def protocol_choices(words: Sequence[str]) -> tuple[list[Tree], list[str]]:
    """Parse `knn k=20 svm data.workers=0` as the choices of two protocols and the settings of the config among them.

    A setting belongs to the protocol before it, unless only the config has it; of a plug-in: if it has no dot.
    """
    choices: list[Tree] = []
    overrides = []
    own: Collection[str] | None = ()  # settings of the protocol before; None: of a plug-in that is not imported yet
    for word in words:
        key = word.partition("=")[0]
        section = key.partition(".")[0]
        if "=" not in word:
            choices.append({"name": word})
            own = PROTOCOLS[word].Config.model_fields if word in PROTOCOLS else None
        elif section in Run.model_fields and (section != key if own is None else section not in own):
            overrides.append(word)
        elif choices:
            override(choices[-1], word)
        else:
            raise ConfigError(f"--protocol begins with the setting {word}: name the protocol before it")
    if not choices:
        raise ConfigError(f"--protocol {' '.join(words)} names no protocol: write --protocol knn k=20")
    return choices, overrides


def measure_network(
    options: LoadOptions,
    videos: Path,
    out: Path,
    train: Path | None = None,
    protocols: Sequence[Tree] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Results:
    """Measure a network; write `results.json`, and for each protocol that predicts classes its predictions.

    Results of the same request that exist already are returned. Protocols that need a gallery take it from the list
    `train`. `protocols` is plain data, `{"name": "knn", "k": 20}`; None: the defaults of `chosen_protocols`. `check` is
    that of `extract`.
    """
    claim_results(out, "test", {"list": videos, "train_list": train}, [options.checkpoint, options.cfg])
    with distributed.joined(choose_device(options.device)):
        subject, chosen, gallery, query = plan = plan_test(options, videos, train, protocols)
        request = distributed.on_main(lambda: describe_test(*plan))
        with only_run_in(out):
            existing = distributed.on_main(lambda: existing_results(out, request))
            if existing is not None:
                return existing
            overlap = subject.check_overlap(query, compared_with(chosen, gallery))
            network = subject.backbone, chosen, gallery, query, subject.test, subject.device, subject.classify
            found = measure(*network, subject.classes, check)
            if overlap["gallery"]:
                overlap["gallery"]["equal_features"] = found.equal_features
                distributed.on_main(lambda: report_equal_features(overlap, videos))
            results: Results = {
                **found.numbers,
                "protocols": request["protocols"],
                "details": {name: measured.details for name, measured in found.found.items() if measured.details},
                "num_videos": len(found.query.records),
                "num_train": None if found.gallery is None else len(found.gallery.records),
                "missing": [{"path": path, "reason": reason} for path, reason in found.missing_query],
                "missing_train": [{"path": path, "reason": reason} for path, reason in found.missing_gallery],
                "list": str(videos),
                "train_list": None if train is None else str(train),
                **subject.describe(),
            }
            results = complete(results, request=request, overlap=overlap, **fingerprints(query, gallery))
            distributed.on_main(lambda: _write(out, results, found))
    return results


Plan = tuple[Subject, Mapping[str, EvaluationProtocol], VideoList | None, VideoList]  # gallery, query


def plan_test(options: LoadOptions, videos: Path, train: Path | None, protocols: Sequence[Tree] | None) -> Plan:
    """Read the lists, load the network, and check that they and the protocols fit each other."""
    several = [path for path in (videos, train) if "{split}" in str(path)]
    if several:
        raise ConfigError(f"{several[0]} contains {{split}}; name the splits: --splits 1 2 3")
    query = read_input(videos, options.root, options.allow_external)
    subject = load_subject(options)
    # Bound only now: modules that the run imports may register protocols.
    with explaining(not_imported(subject.run.imports)):
        bound = None if protocols is None else _bind(protocols)
    used = train is not None and need_gallery(bound)
    gallery = read_input(str(train), options.root, options.allow_external) if used else None
    chosen = chosen_protocols(bound, subject.classify is not None, gallery, query)
    check_measurable(chosen, gallery, query, subject.classes, subject.test.cells)
    if any(protocol.probabilities for protocol in chosen.values()):
        check_names(query, subject.class_names, f"when {options.checkpoint} was trained")
    return subject, chosen, gallery, query


def _bind(choices: Sequence[Tree]) -> tuple[Any, ...]:
    protocol = choice(PROTOCOLS)
    schema = create_model("Protocols", protocols=(tuple[protocol, ...], Field()))  # type: ignore[valid-type]
    return bind(schema, {"protocols": list(choices)}, "--protocol").protocols  # type: ignore[attr-defined, no-any-return]


def describe_test(
    subject: Subject, protocols: Mapping[str, EvaluationProtocol], gallery: VideoList | None, query: VideoList
) -> Tree:
    """What decides the results; reads the size of each file."""
    data, train_list, train_data = identify(query), None, None
    if gallery is not None:
        train_list, train_data = gallery.fingerprint, identify(gallery)
        check_copies(gallery.path, train_data, query.path, data)
    settings = [{"name": name, **p.config.model_dump(mode="json", exclude={"name"})} for name, p in protocols.items()]
    lists = {"list": query.fingerprint, "classes": class_hash(query), "train_list": train_list}
    return subject.request(command="test", protocols=settings, data=data, train_data=train_data, **lists)


def compared_with(protocols: Mapping[str, EvaluationProtocol], gallery: VideoList | None) -> VideoList | None:
    """Return the gallery if a protocol uses it."""
    return gallery if any(protocol.gallery for protocol in protocols.values()) else None


def fingerprints(query: VideoList, gallery: VideoList | None) -> dict[str, str | None]:
    """Return the fingerprints of the lists of a test."""
    return {"query": query.fingerprint, "gallery": None if gallery is None else gallery.fingerprint}


def _write(out: Path, results: Results, found: Measurement) -> None:
    names = _measured_before(out)
    (out / "results.json").unlink(missing_ok=True)
    for name in names:  # also of other protocols
        for file in (f"predictions_{name}.csv", f"per_class_{name}.csv", f"confusion_{name}.png"):
            (out / file).unlink(missing_ok=True)
    for name, measured in found.found.items():
        if measured.predicted is not None:
            _write_predictions(out, name, found.query, measured.predicted)
    write_results(out, results)  # last: if it exists, the rest is complete


def _measured_before(out: Path) -> list[str]:
    """Names of the protocols whose results are in a folder."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        earlier = json.loads((out / "results.json").read_text(encoding="utf-8"))
        return [str(protocol["name"]) for protocol in earlier["protocols"]]
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
    total, right, others = counts.sum(dim=1).tolist(), counts.diagonal().tolist(), counts[:, :-1].clone()
    most, mistaken = others.fill_diagonal_(0).max(dim=1)
    table = [
        (names[n], total[n], right[n], f"{right[n] / total[n]:.4f}", names[mistaken[n]] if most[n] else "")
        for n in range(classes)
        if total[n]
    ]
    write_csv(out / f"per_class_{name}.csv", ("class", "videos", "right", "accuracy", "most often taken for"), table)
    write_whole(out / f"confusion_{name}.png", png(confusion_matrix(counts.numpy(), names), dpi=120))


def summary(results: Results) -> str:
    """Format the numbers of a test as a short table."""
    test, splits = results["protocol"], list(results.get("splits", {}).values())
    counts = ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in splits or [results])
    head = f"{counts}; {format_clips(test)}, percent"
    lines = [head + f"; mean ± standard deviation of {len(splits)} splits" * (len(splits) > 1)]
    numbers = results["mean"] if splits else {n: v for n, v in results.items() if isinstance(v, float)}
    width = max((len(name) for name in numbers), default=0)
    for name, value in numbers.items():
        if name.endswith("_spread"):
            continue
        line = f"{name:<{width}} {_cell(name, value):>7}"
        spread = results["spread"].get(name) if splits else numbers.get(f"{name}_spread")
        if spread is not None:
            line += f" ± {_cell(name, spread):>5}"
        if len(splits) > 1:
            line += f"   ({', '.join(_cell(name, of_split[name]) for of_split in splits)})"
        lines.append(line)
    details = [found for one in splits or [results] for found in one.get("details", {}).values()]
    return "\n".join([*lines, *dict.fromkeys(found["note"] for found in details if "note" in found)])


def _cell(name: str, value: float) -> str:
    # A logarithm, and distances in pixels: not percentages.
    plain = ("uniformity_loss", "localization_error", "mean_position_error")
    return f"{value:.3f}" if name in plain else f"{100 * value:.1f}"
