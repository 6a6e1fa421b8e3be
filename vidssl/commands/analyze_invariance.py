"""The command `analyze invariance`: how invariant networks are to transformations, as numbers and as a chart."""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from vidssl import distributed
from vidssl.analysis.score_transformations import Measure, score_features
from vidssl.analysis.transformed_clips import TRANSFORMATIONS, Trajectories, choose_transformations
from vidssl.atomic import file_hash, write_whole
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions, class_hash, load_subject, network_options
from vidssl.commands.results import claim_results, format_count, format_table, format_tests
from vidssl.commands.several_networks import each_network
from vidssl.commands.splits import for_splits
from vidssl.data.fingerprint import identify
from vidssl.data.instance_boxes import read_instance_boxes
from vidssl.data.read_input import read_input
from vidssl.distributed import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import encode_videos
from vidssl.evaluation.result_files import Results, complete, existing_results, write_results
from vidssl.output_folder import only_run_in
from vidssl.viz.bars import grouped_bars
from vidssl.viz.figure import png

COMPARED = ("unchanged", "shuffled")  # the baselines of the transformations


def run(parsed: argparse.Namespace) -> None:
    """Measure the invariance of networks, and print the scores."""
    found = measure_parsed(parsed)
    print_results(parsed, found, summary(found), parsed.out / "invariance.png")


def measure_parsed(parsed: argparse.Namespace) -> dict[str, Results]:
    """Measure networks as the arguments describe: `results.json` of each, by its name, and the chart `invariance.png`.

    Several networks have folders of their own, and share the config: those that have one ignore it.
    """
    claim_results(parsed.out, "invariance", {"list": parsed.input}, [*parsed.checkpoint, parsed.cfg, parsed.boxes])
    if parsed.crops not in (None, 1):
        raise ConfigError(f"--crops {parsed.crops}: only the central square is measured; leave --crops out")
    measure = Measure(**{field.name: getattr(parsed, field.name) for field in fields(Measure)})
    parsed.clips, parsed.crops, found = parsed.clips or 1, 1, {}
    with distributed.joined(choose_device(parsed.device)):
        for name, one in each_network(parsed):
            found[name] = for_splits(one, lambda one: _measure(network_options(one), one.input, measure, one.out))
        distributed.on_main(lambda: write_whole(parsed.out / "invariance.png", chart(found)))
    return found


def _measure(options: LoadOptions, videos: Path, measure: Measure, out: Path) -> Results:
    """Measure one network, unless its results exist."""
    claim_results(out, "invariance", {"list": videos}, [options.checkpoint, options.cfg, measure.boxes])
    listed = read_input(videos, options.root, options.allow_external)
    labels = {record.label for record in listed.records}
    if measure.variant == "class" and (-1 in labels or len(labels) < 2):
        raise DataError(f"--variant class needs labels of two classes or more in {videos}; or use --variant goodfellow")
    boxes = None if measure.boxes is None else read_instance_boxes(measure.boxes, listed)
    subject = load_subject(options)
    test, units = subject.test, subject.encoder.dim
    if measure.top_k > units:
        raise ConfigError(f"--top-k {measure.top_k} is more than the {units} units of {options.checkpoint}")
    names, left_out = choose_transformations(measure.transformations, test.clip.frames, boxes is not None)
    settings = {"variant": measure.variant, "top_k": measure.top_k, "population": measure.population}
    request = subject.request(
        command="analyze invariance",
        invariance={**settings, "transformations": {name: TRANSFORMATIONS[name].amounts for name in names}},
        list=listed.fingerprint,
        classes=class_hash(listed),
        data=distributed.on_main(lambda: identify(listed)),
        boxes=None if measure.boxes is None else file_hash(measure.boxes),
    )
    with only_run_in(out):
        existing = distributed.on_main(lambda: existing_results(out, request))
        if existing is not None:
            return existing
        overlap = subject.check_overlap(listed)
        trajectories = Trajectories(test.clip, test.clips, test.size, names, test.short_side)
        dataset = trajectories.dataset(listed, test, boxes, test.allow_missing)
        encode, title = trajectories.encode, options.checkpoint
        # A video has as many versions of each clip as there are transformations.
        fewer = test.model_copy(update={"batch_size": max(1, test.batch_size // test.clips)})
        columns, missing = encode_videos(subject.encoder, dataset, fewer, subject.device, encode, title)
        features = trajectories.features(*columns)
        scores = distributed.on_main(lambda: score_features(features, trajectories, listed, measure))
        numbers, details, without = scores
        results: Results = {
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
        }
        results = complete(results, request=request, overlap=overlap, query=listed.fingerprint)
        distributed.on_main(lambda: write_results(out, results))
    return results


def chart(found: Mapping[str, Results]) -> bytes:
    """Draw the scores of networks, one colour each, as PNG."""
    names = _measured(found)
    first = next(iter(found.values()))
    means = {label: results.get("mean", results) for label, results in found.items()}
    top, variant = first["measure"]["top_k"], first["measure"]["variant"]
    figure = grouped_bars(
        names,
        {label: [numbers.get(f"invariance_{name}") for name in names] for label, numbers in means.items()},
        title=f"Invariance of the {top} best units {'of each class' if variant == 'class' else 'of all'}: "
        f"{first['num_samples']} clips",
        unit="invariance score",
        levels={"1: ignores\nthe clip": 1.0, "perfect": first.get("mean", first)["invariance_ceiling"]},
        apart=COMPARED,
    )
    return png(figure)


def _measured(found: Mapping[str, Results]) -> list[str]:
    """The rows: transformations, baselines, and the mean if all networks have the same transformations."""
    own = [[name for name in TRANSFORMATIONS if f"invariance_{name}" in r.get("mean", r)] for r in found.values()]
    names = [name for name in TRANSFORMATIONS if any(name in names for names in own)]
    return [COMPARED[0], *names, *(["mean"] if all(names == own[0] for names in own) else []), COMPARED[1]]


def summary(found: Mapping[str, Results]) -> str:
    """Format the scores of networks as a short table."""
    first, names = next(iter(found.values())), _measured(found)
    splits = list(first.get("splits", {}).values())
    videos = ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in splits or [first])
    clips = "" if splits else f", {first['num_samples']} clips"
    head = (
        f"{videos}{clips}; {format_tests(found)}; the {first['measure']['top_k']} best of {first['num_units']} units; "
        f"1: a unit that ignores the clip, {first.get('mean', first)['invariance_ceiling']:.4g}: perfect"
    )
    head += f"; mean ± standard deviation of {len(splits)} splits" if len(splits) > 1 else ""
    rows = [[name, *(_cell(results, f"invariance_{name}") for results in found.values())] for name in names]
    lines = [head, *format_table([["", *found], *rows], "<" + ">" * len(found))]
    for label, results in found.items():
        of = f" of {label}" if len(found) > 1 else ""
        lines += [f"not measured{of}: {name} ({why})" for name, why in results["left_out"].items()]
    if "mean" not in names:
        lines.append("no mean: the networks were not measured with the same transformations")
    return "\n".join(lines)


def _cell(results: Results, name: str) -> str:
    mean, spread = results.get("mean", results).get(name), results.get("spread", {}).get(name)
    if mean is None:
        return "–"
    return f"{mean:.2f}" if spread is None else f"{mean:.2f} ± {spread:.2f}"
