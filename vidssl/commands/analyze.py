"""The command `analyze invariance`: how invariant networks are to transformations, as numbers and as a chart."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path, PurePath

from vidssl import distributed
from vidssl.analysis.object_occlusion import Boxes, read_boxes
from vidssl.analysis.scores import Measure, score_features
from vidssl.analysis.transformed_features import TRANSFORMATIONS, Trajectories, choose_transformations
from vidssl.atomic import check_folder, file_hash, write_json, write_whole
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, Subject, class_hash, load_subject, network_options
from vidssl.commands.results import (
    Results,
    check_splits,
    existing_results,
    fill_split,
    format_count,
    format_table,
    over_splits,
)
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.config_schema import choose_device
from vidssl.engine.resume import only_run_in
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import encode_videos
from vidssl.viz.bars import grouped_bars
from vidssl.viz.figure import png

COMPARED = ("unchanged", "shuffled")  # the baselines of the transformations


def run(parsed: argparse.Namespace) -> None:
    """Measure the invariance of networks, and print the scores."""
    measure = Measure(**{field.name: getattr(parsed, field.name) for field in fields(Measure)})
    request = network_options(parsed), parsed.checkpoint, parsed.input, parsed.out, measure
    if parsed.splits is None:
        found = measure_invariance(*request)
    else:
        found = measure_invariance_splits(*request, parsed.splits)
    print_results(parsed, found, summary(found), parsed.out / "invariance.png")


def measure_invariance(
    options: LoadOptions, checkpoints: Sequence[str], videos: Path, out: Path, measure: Measure
) -> dict[str, Results]:
    """Measure how invariant networks are; write `results.json` and the chart `invariance.png`.

    Several networks have their `results.json` in folders of their own in `out`. Existing results of the same request
    are returned.

    Args:
        options: The clips: by default one per video, always the central square. Its `checkpoint` is ignored.
        checkpoints: The networks. The config of `options` is for those that have none.
        videos: The list.
        out: Folder for the results; created.
        measure: What is measured.

    Returns:
        The content of each network's `results.json`, by its name in the chart; on every process.

    Raises:
        ConfigError: A transformation is unknown, `top_k` exceeds the number of units, or `crops` is not 1.
        DataError: The list has no labels or one class, or it, a video or the boxes cannot be used.
    """
    check_folder(out)
    if options.crops not in (None, 1):
        raise ConfigError(f"--crops {options.crops}: only the central square is measured; leave --crops out")
    folders = _folders(checkpoints, out)
    with distributed.joined(choose_device(options.device)):
        listed = read_list(videos, options.root, options.allow_external)
        labels = {record.label for record in listed.records}
        if measure.variant == "class" and (-1 in labels or len(labels) < 2):
            raise DataError(
                f"--variant class needs a label for each video and two classes or more, {videos} lacks them: use "
                "another list, or --variant goodfellow"
            )
        boxes = None if measure.boxes is None else read_boxes(measure.boxes, listed)
        data = distributed.on_main(lambda: identify(listed))
        shared = options.shared_config or len(checkpoints) > 1
        central = replace(options, clips=options.clips or 1, crops=1, shared_config=shared)
        subjects = [load_subject(replace(central, checkpoint=path)) for path in checkpoints]
        for path, subject in zip(checkpoints, subjects, strict=True):
            if measure.top_k > subject.backbone.dim:
                raise ConfigError(f"--top-k {measure.top_k} is more than the {subject.backbone.dim} units of {path}")
        found = {
            name: _measure(subject, listed, data, boxes, measure, folder, name)
            for (name, folder), subject in zip(folders.items(), subjects, strict=True)
        }
        distributed.on_main(lambda: write_whole(out / "invariance.png", chart(found)))
    return found


def measure_invariance_splits(
    options: LoadOptions, checkpoints: Sequence[str], videos: Path, out: Path, measure: Measure, splits: Sequence[int]
) -> dict[str, Results]:
    """Run `measure_invariance` per split or seed; its number replaces `{split}` in checkpoints, settings and the list.

    Writes the results of a split to `NAME/splitN`, their mean and spread to `NAME/results.json`, and the chart of the
    means.

    Raises:
        ConfigError: All splits would be the same, or as for `measure_invariance`.
    """
    check_splits(*checkpoints, videos, *options.overrides)
    options = replace(options, shared_config=len(checkpoints) > 1)

    def over_network(checkpoint: str, out: Path) -> Results:
        def one(split: int, folder: Path) -> Results:
            paths = [fill_split(split, checkpoint)], Path(fill_split(split, videos)), folder
            return next(iter(measure_invariance(options.of_split(split), *paths, measure).values()))

        return over_splits(splits, out, one)

    folders = _folders(checkpoints, out)
    with distributed.joined(choose_device(options.device)):
        found = {
            name: over_network(checkpoint, folder)
            for (name, folder), checkpoint in zip(folders.items(), checkpoints, strict=True)
        }
        distributed.on_main(lambda: write_whole(out / "invariance.png", chart(found)))
    return found


def _folders(checkpoints: Sequence[str], out: Path) -> dict[str, Path]:
    """Name networks by the ends of their paths that differ, `output/a/checkpoints/last.pt` is a; with their folders."""
    ignored = ("checkpoints", "last", "..", "/", "split{split}")
    parts = [
        [part for part in PurePath(path).with_suffix("").parts if part not in ignored] or [path] for path in checkpoints
    ]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["-".join(part[-depth:]) for part in parts]
        if len({*names}) == len(names):
            return {name: out / name if len(names) > 1 else out for name in names}
    raise ConfigError(f"--checkpoint names a network twice: {', '.join(checkpoints)}")


def _measure(
    subject: Subject,
    listed: VideoList,
    data: Tree,
    boxes: Mapping[str, Boxes] | None,
    measure: Measure,
    out: Path,
    title: str,
) -> Results:
    """Measure one network, unless its results exist."""
    test = subject.test
    names, left_out = choose_transformations(measure.transformations, test.clip.frames, boxes is not None)
    request = subject.request(
        invariance={
            "variant": measure.variant,
            "top_k": measure.top_k,
            "population": measure.population,
            "transformations": {name: TRANSFORMATIONS[name].amounts for name in names},
        },
        list=listed.fingerprint,
        classes=class_hash(listed),
        data=data,
        boxes=None if measure.boxes is None else file_hash(measure.boxes),
    )
    with only_run_in(out):
        existing = distributed.on_main(lambda: existing_results(out, request))
        if existing is not None:
            return existing
        trajectories = Trajectories(test.clip, test.clips, test.size, names, test.short_side)
        dataset = trajectories.dataset(listed, test, boxes, test.allow_missing)
        columns, missing = encode_videos(subject.backbone, dataset, test, subject.device, trajectories.encode, title)
        features = trajectories.features(*columns)

        def score() -> Results:
            numbers, details, without = score_features(features, trajectories, listed, measure)
            results = {
                **numbers,
                "details": details,
                "left_out": {**left_out, **without},
                "num_videos": len({*features.index.tolist()}),
                "num_samples": len(features.x),
                "num_units": features.x.shape[1],
                "missing": [{"path": path, "reason": reason} for path, reason in missing],
                "list": str(listed.path),
                "boxes": None if measure.boxes is None else str(measure.boxes),
                "measure": request["invariance"],
                **subject.describe(),
                "request": request,
            }
            write_json(out / "results.json", results)
            return results

        return distributed.on_main(score)


# Printing and drawing ---------------------------------------------------------------------------------------


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw the scores of networks, one colour each, as PNG."""
    names = _measured(found)
    first = next(iter(found.values()))
    top, variant = first["measure"]["top_k"], first["measure"]["variant"]
    figure = grouped_bars(
        names,
        {label: [_means(results).get(f"invariance_{name}") for name in names] for label, results in found.items()},
        title=f"Invariance of the {top} best units of {'each class' if variant == 'class' else 'all'}: "
        f"{first['num_samples']} clips",
        unit="invariance score",
        levels={"1: ignores\nthe clip": 1.0, "perfect": _means(first)["invariance_ceiling"]},
        apart=COMPARED,
    )
    return png(figure)


def _means(results: Results) -> Results:
    """The numbers by name; for several splits their means."""
    means: Results = results.get("mean", results)
    return means


def _measured(found: Mapping[str, Results]) -> list[str]:
    """The rows: transformations, baselines, and the mean if all networks have the same transformations."""
    own = [[name for name in TRANSFORMATIONS if f"invariance_{name}" in _means(r)] for r in found.values()]
    names = [name for name in TRANSFORMATIONS if any(name in names for names in own)]
    return [COMPARED[0], *names, *(["mean"] if all(names == own[0] for names in own) else []), COMPARED[1]]


def summary(found: Mapping[str, Results]) -> str:
    """Format the scores of networks as a short table."""
    first, names = next(iter(found.values())), _measured(found)
    splits = list(first.get("splits", {}).values())
    videos = ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in splits or [first])
    clips = "" if splits else f", {first['num_samples']} clips"
    rows = [["", *found]]
    rows += [[name, *(_cell(results, f"invariance_{name}") for results in found.values())] for name in names]
    lines = [
        f"{videos}{clips}; the {first['measure']['top_k']} best of {first['num_units']} units; 1: a unit that ignores "
        f"the clip, {_means(first)['invariance_ceiling']:.4g}: perfect"
        + f"; mean ± standard deviation of {len(splits)} splits"
        * (len(splits) > 1),
        *format_table(rows, "<" + ">" * len(found)),
    ]
    for label, results in found.items():
        of = f" of {label}" if len(found) > 1 else ""
        lines += [f"not measured{of}: {name} ({why})" for name, why in results["left_out"].items()]
    if "mean" not in names:
        lines.append("no mean: the networks were not measured with the same transformations")
    return "\n".join(lines)


def _cell(results: Results, name: str) -> str:
    mean, spread = _means(results).get(name), results.get("spread", {}).get(name)
    if mean is None:
        return "–"
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"
