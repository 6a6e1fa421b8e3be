"""The command `analyze background`: accuracy on videos whose instance is put before the background of other videos."""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vidssl import distributed
from vidssl.analysis.swap_backgrounds import VERSIONS, Swaps, draw_backgrounds, list_masks, mean_of_versions
from vidssl.atomic import file_hash, write_whole
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, Subject, class_hash, load_subject, network_options
from vidssl.commands.results import claim_results, format_count, format_table, format_tests
from vidssl.commands.several_networks import each_network
from vidssl.commands.splits import for_splits
from vidssl.commands.test import fingerprints
from vidssl.data.dataset import ClipDataset
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.instance_boxes import read_instance_boxes
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.distributed import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import encode_videos, extract, finished
from vidssl.evaluation.list_checks import check_classes, check_measurable, check_names
from vidssl.evaluation.metrics import vote
from vidssl.evaluation.overlap import check_disjoint
from vidssl.evaluation.protocols import KNN, Accuracy
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.evaluation.search import nearest
from vidssl.output_folder import only_run_in
from vidssl.types import Batch
from vidssl.viz.bars import grouped_bars
from vidssl.viz.figure import png
from vidssl.viz.retrieval_sheet import Shot, retrieval_sheet

_MEASURES = {"top1": "classifier", "knn": "kNN", "R@1": "R@1"}
_SERIES = {"": "original", "_same": "same class", "_other": "another class", "_shortcut": "shortcut"}
_EXAMPLES = 6


@dataclass(frozen=True)
class Instances:
    """Where the instances are: masks or boxes; and the seed of the choice of backgrounds."""

    masks: Path | None = None
    boxes: Path | None = None
    seed: int = 0


def run(parsed: argparse.Namespace) -> None:
    """Measure networks, and print their accuracies."""
    found = measure_parsed(parsed)
    print_results(parsed, found, summary(found), parsed.out / "background.png")


def measure_parsed(parsed: argparse.Namespace) -> dict[str, Results]:
    """Measure networks as the arguments describe: results of each, by its name, and the chart `background.png`."""
    claim_results(
        parsed.out,
        "background",
        {"list": parsed.input, "train_list": parsed.train_list},
        [*parsed.checkpoint, parsed.cfg, parsed.boxes],
    )
    instances, found = Instances(parsed.masks, parsed.boxes, parsed.seed), {}

    def measure(one: argparse.Namespace) -> Results:
        return measure_background(network_options(one), one.input, instances, one.out, one.train_list)

    with distributed.joined(choose_device(parsed.device)):
        for name, one in each_network(parsed):
            found[name] = for_splits(one, measure)
        distributed.on_main(lambda: write_whole(parsed.out / "background.png", chart(found)))
    return found


def measure_background(
    options: LoadOptions, videos: Path, instances: Instances, out: Path, train: Path | None = None
) -> Results:
    """Measure a network, unless its results exist; write `results.json` and `examples.png`.

    `train` is the list of training videos for kNN and R@1; without one, the network needs a classifier.
    """
    lists = {"list": videos, "train_list": train}
    claim_results(out, "background", lists, [options.checkpoint, options.cfg, instances.boxes])
    listed = read_input(videos, options.root, options.allow_external)
    gallery = None if train is None else read_input(train, options.root, options.allow_external)
    subject = load_subject(options)
    classifies = _check(subject, listed, gallery)
    where, masks = _find_instances(instances, listed)
    drawn = draw_backgrounds(listed, instances.seed)
    files = {"data": distributed.on_main(lambda: identify(listed))}
    if gallery is not None:
        files["train_data"] = distributed.on_main(lambda: identify(gallery))
        check_copies(gallery.path, files["train_data"], videos, files["data"])
    request = subject.request(
        command="analyze background",
        list=listed.fingerprint,
        train=gallery and gallery.fingerprint,
        classes=class_hash(listed),
        **files,
        boxes=None if instances.boxes is None else file_hash(instances.boxes),
        masks=None if masks is None else distributed.on_main(lambda: identify(masks)),
        seed=instances.seed,
    )
    with only_run_in(out):
        existing = distributed.on_main(lambda: existing_results(out, request))
        if existing is not None:
            return existing
        overlap = subject.check_overlap(listed, gallery)
        records = list(listed.records)
        swaps = Swaps(where, {r: [records[n] for n in rows] for r, rows in zip(records, drawn.tolist(), strict=True)})
        dataset = swaps.dataset(subject.test.dataset(listed), subject.test.clip, subject.test.clips)
        index, x, missing = _encode(subject, dataset, classifies, options.checkpoint)
        predicted = _predict(subject, x, gallery, classifies)
        label, background = listed.labels[index], listed.labels[drawn[index, 1]]
        numbers: dict[str, float] = {}
        for name, classes in predicted.items():
            numbers |= swap_numbers(name, classes, label, background)
        results: Results = {
            **numbers,
            "chance": 1 / len(np.unique(listed.labels)),
            "num_videos": len(index),
            "missing": [{"path": path, "reason": reason} for path, reason in missing],
            "list": str(videos),
            "train_list": None if train is None else str(train),
            "instances": {"masks" if masks else "boxes": str(instances.masks or instances.boxes)},
            "seed": instances.seed,
            **subject.describe(),
        }
        results = complete(results, request=request, overlap=overlap, **fingerprints(listed, gallery))
        shown = next(iter(predicted.values()))

        def write() -> None:
            write_whole(out / "examples.png", examples(dataset, subject.test.crops, index, shown, drawn))
            write_results(out, results)

        distributed.on_main(write)
    return results


def _check(subject: Subject, listed: VideoList, gallery: VideoList | None) -> bool:
    """Check that the lists fit each other; return whether the network's classifier has their classes."""
    check_measurable({"knn": KNN(KNN.Config())}, gallery or listed, listed, 0, subject.test.cells)
    if gallery is not None:
        check_classes(gallery, listed)
        check_disjoint(gallery, listed, "the search")
    try:
        check_measurable({"accuracy": Accuracy(Accuracy.Config())}, None, listed, subject.classes)
        check_names(listed, subject.class_names, "when the network was trained")
    except (ConfigError, DataError):
        if gallery is None:
            raise
        return False
    return True


def _find_instances(instances: Instances, listed: VideoList) -> tuple[dict[str, Any], VideoList | None]:
    """Return boxes, or the path of masks, by the path of each record; and the list of masks."""
    paths = [record.path for record in listed.records]
    if instances.masks is not None:
        masks = list_masks(instances.masks, listed)
        return dict(zip(paths, (mask.path for mask in masks.records), strict=True)), masks
    if instances.boxes is None:
        raise ConfigError("backgrounds are swapped by masks or boxes, and there are none: use --masks or --boxes")
    boxes = read_instance_boxes(instances.boxes, listed)
    without = [name for name, path in zip(listed.names, paths, strict=True) if path not in boxes]
    if without:
        raise DataError(
            f"{instances.boxes} has no box for {len(without)} of {len(paths)} videos of {listed.path}, the first "
            f"{without[0]}: add boxes, or leave these videos out of the list"
        )
    return dict(boxes), None


def _encode(
    subject: Subject, dataset: ClipDataset, classifies: bool, title: str
) -> tuple[np.ndarray, Tensor, tuple[tuple[str, str], ...]]:
    """Encode all versions: rows (N,) of the list, features and probabilities (N, 3, D + classes), skipped videos."""
    classify = subject.classify if classifies else None

    def encode(batch: Batch, features: Iterator[Tensor]) -> tuple[Tensor]:
        rows = features if classify is None else (torch.cat([h, classify(h)], dim=1) for h in features)
        return (mean_of_versions(batch, rows, subject.test.crops),)

    columns, missing = encode_videos(subject.encoder, dataset, subject.test, subject.device, encode, title)
    return columns[0].numpy(), finished(subject.encoder, columns[1]), missing


def _predict(subject: Subject, x: Tensor, gallery: VideoList | None, classifies: bool) -> dict[str, np.ndarray]:
    """Predict the classes (N, 3) of all versions by the classifier, the vote of ten neighbours, and the nearest one."""
    dim, found = subject.encoder.dim, {}
    if classifies:
        found["top1"] = x[:, :, dim:].argmax(dim=2)
    if gallery is not None:
        g = extract(subject.encoder, gallery, subject.test, subject.device, "gallery")
        neighbours = nearest(x[:, :, :dim].flatten(0, 1), g.x, KNN.Config().k)
        for name, k in (("knn", KNN.Config().k), ("R@1", 1)):
            found[name] = vote(neighbours, g, k, KNN.Config().temperature).view(len(x), len(VERSIONS))
    return {name: classes.numpy() for name, classes in found.items()}


def swap_numbers(name: str, predicted: np.ndarray, label: np.ndarray, background: np.ndarray) -> dict[str, float]:
    """Compute fractions of predicted classes (N, 3): versions original, same, other.

    `NAME`, `NAME_same` and `NAME_other` are accuracies, `NAME_gap` is `NAME_same - NAME_other` (the background gap of
    Xiao et al., 2021). `NAME_shortcut` are videos classified as the class of their other background (N,),
    `NAME_shortcut_original` those that were classified so before the swap.
    """
    right = (predicted == label[:, None]).mean(axis=0).tolist()
    numbers = {f"{name}{suffix}": value for suffix, value in zip(("", "_same", "_other"), right, strict=True)}
    as_background = (predicted == background[:, None]).mean(axis=0).tolist()
    return {
        **numbers,
        f"{name}_gap": right[1] - right[2],
        f"{name}_shortcut": as_background[2],
        f"{name}_shortcut_original": as_background[0],
    }


def examples(dataset: ClipDataset, crops: int, index: np.ndarray, predicted: np.ndarray, drawn: np.ndarray) -> bytes:
    """Draw the first videos in all versions, with the classes of their backgrounds; green: classified right."""
    videos, rows = dataset.videos, []
    step = max(1, len(index) // _EXAMPLES)
    for n in range(0, len(index), step)[:_EXAMPLES]:
        row = int(index[n])
        views = dataset[0, row].views
        middle = len(views) // (len(VERSIONS) * crops) // 2 * len(VERSIONS) * crops  # first view of the middle clip
        own = int(videos.labels[row])
        captions = [videos.class_name(own)]
        captions += [f"on {videos.class_name(int(videos.labels[source]))}" for source in drawn[row]]
        rows.append(
            [
                Shot(views[middle + version * crops + crops // 2], caption, bool(predicted[n, version] == own))
                for version, caption in enumerate(captions)
            ]
        )
    return png(retrieval_sheet(rows, ("original", "same class", "another class")))


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw the accuracies of networks before and after the swaps, as PNG."""
    means = {name: results.get("mean", results) for name, results in found.items()}
    groups = [(name, key) for name, numbers in means.items() for key in _MEASURES if key in numbers]
    alone, first = len(found) == 1, next(iter(found.values()))
    figure = grouped_bars(
        [_MEASURES[key] if alone else f"{name}, {_MEASURES[key]}" for name, key in groups],
        {text: [means[name][f"{key}{end}"] for name, key in groups] for end, text in _SERIES.items()},
        title=f"Accuracy with the background of another video: {_count(first)}",
        unit="fraction of videos",
        levels={"chance": first.get("mean", first)["chance"]},
        apart=(),
    )
    return png(figure)


def _count(results: Results) -> str:
    splits = results.get("splits", {}).values() or [results]
    return ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in list(splits)[:1])


def summary(found: Mapping[str, Results]) -> str:
    """Format the accuracies of networks as a short table, in percent."""
    head = ["", "", "original", "same class", "another class", "gap", "shortcut", "before"]
    ends = ("", "_same", "_other", "_gap", "_shortcut", "_shortcut_original")
    rows = [head]
    for name, results in found.items():
        for key in (key for key in _MEASURES if key in results.get("mean", results)):
            rows.append([name, _MEASURES[key], *(_cell(results, f"{key}{end}") for end in ends)])
    first = next(iter(found.values()))
    chance = 100 * first.get("mean", first)["chance"]
    lines = [
        f"{_count(first)}; {format_tests(found)}; accuracy in % with the background of another video, "
        f"chance {chance:.1f}"
    ]
    lines += format_table(rows, "<<" + ">" * len(ends))
    return "\n".join([*lines, "shortcut: classified as the class of that background; before: without the swap"])


def _cell(results: Results, name: str) -> str:
    mean, spread = results.get("mean", results)[name], results.get("spread", {}).get(name)
    return f"{100 * mean:.1f}" if spread is None else f"{100 * mean:.1f} ± {100 * spread:.1f}"
