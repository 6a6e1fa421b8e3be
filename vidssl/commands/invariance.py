"""How invariant networks are: each transformation of the clips of a list, several networks side by side."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vidssl import distributed
from vidssl.analysis.instances import Boxes, read_boxes
from vidssl.analysis.invariance import Invariance, Population, class_invariance, firing_invariance
from vidssl.analysis.trajectories import (
    TRANSFORMATIONS,
    Trajectories,
    TrajectoryFeatures,
    choose_transformations,
    trajectory_features,
)
from vidssl.atomic import check_folder, write_json, write_whole
from vidssl.commands.invariance_chart import chart
from vidssl.commands.load import LoadOptions as Options
from vidssl.commands.load import Subject, class_hash, load_subject
from vidssl.commands.load import fill_split as of
from vidssl.commands.test import Results, over_splits, results_there
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.resume import only_run_in
from vidssl.engine.run_config import choose_device
from vidssl.errors import ConfigError, DataError
from vidssl.models.weights import is_checkpoint, read_anything
from vidssl.randomness import generator

Variant = Literal["class", "goodfellow"]
_RATE = 0.01  # of firing, of the variant goodfellow


@dataclass(frozen=True)
class Measure:
    """What is measured.

    Attributes:
        transformations: Names; None: all that can be measured.
        top_k: Units that count: the best ones of each class, or of all.
        variant: `class_invariance`, or `firing_invariance` as Goodfellow et al. have it.
        population: Whose values the thresholds divide.
        boxes: File of the instances' boxes.
    """

    transformations: Sequence[str] | None = None
    top_k: int = 10
    variant: Variant = "class"
    population: Population = "all"
    boxes: Path | None = None


def invariance(
    options: Options, checkpoints: Sequence[str], videos: Path, out: Path, measure: Measure
) -> dict[str, Results]:
    """Measure how invariant networks are; write `results.json` and the chart `invariance.png`.

    Of several networks each has its `results.json` in a folder of its own below `out`. Results of the same request that
    are there already are given back.

    Args:
        options: Which clips: one of each video where `clips` is None, and always the central square. Its `checkpoint`
            is not looked at.
        checkpoints: The networks. The config of `options` goes to those that bring none of their own.
        videos: The list.
        out: Folder for the results, made where it is missing.
        measure: What is measured.

    Returns:
        For each network, by its name in the chart, what is in its `results.json`; on every process.

    Raises:
        ConfigError: A transformation is unknown, `top_k` is more than the units, or several crops are asked for.
        DataError: The list has no labels or one class, or it, a video or the boxes cannot be used.
    """
    check_folder(out)
    if options.crops not in (None, 1):
        raise ConfigError(f"--crops {options.crops}: the central square is measured; leave it out")
    names = _names(checkpoints)
    with distributed.joined(choose_device(options.device)):
        listed = read_list(videos, options.root, options.allow_external)
        if measure.variant == "class":
            _check_labels(listed)
        boxes = None if measure.boxes is None else read_boxes(measure.boxes, listed)
        data = distributed.on_main(lambda: identify(listed))
        asked = [
            _ask(_for_one(options, checkpoint, len(checkpoints) > 1), listed, data, boxes, measure)
            for checkpoint in checkpoints
        ]
        with only_run_in(out):
            found = {
                name: _run(one, listed, boxes, measure, videos, out if len(asked) == 1 else out / name, name)
                for name, one in zip(names, asked, strict=True)
            }
            distributed.on_main(lambda: write_whole(out / "invariance.png", chart(found)))
    return found


def invariance_splits(
    options: Options,
    checkpoints: Sequence[str],
    videos: Path,
    out: Path,
    measure: Measure,
    splits: Sequence[int],
) -> dict[str, Results]:
    """Do `invariance` for each split or seed, whose number stands for `{split}` in checkpoints, settings and the list.

    Writes what `invariance` does into `NAME/splitN`, mean and spread into `NAME/results.json`, and the chart of the
    means.

    Raises:
        ConfigError: A network is the same for all splits, or as of `invariance`.
    """

    def of_one(checkpoint: str, split: int) -> Options:
        return _for_one(options.of_split(split), of(split, checkpoint), len(checkpoints) > 1)

    for checkpoint in checkpoints:
        settings = options.overrides if of_one(checkpoint, splits[0]).overrides else ()
        if not any("{split}" in str(told) for told in (checkpoint, videos, *settings)):
            raise ConfigError(
                f"neither {checkpoint} nor the list names {{split}}: all splits would be the same"
            )
    names = _names(checkpoints)

    def network(name: str, checkpoint: str) -> Results:
        def one(split: int, folder: Path) -> Results:
            told = of_one(checkpoint, split), [of(split, checkpoint)], Path(of(split, videos))
            return next(iter(invariance(*told, folder, measure).values()))

        return over_splits(splits, out if len(names) == 1 else out / name, one)

    with distributed.joined(choose_device(options.device)):
        found = {name: network(name, told) for name, told in zip(names, checkpoints, strict=True)}
        distributed.on_main(lambda: write_whole(out / "invariance.png", chart(found)))
    return found


def _names(checkpoints: Sequence[str]) -> list[str]:
    """Name networks by the ends of their paths that tell them apart: `output/a/checkpoints/last.pt` is a."""
    parts = [
        [
            part
            for part in PurePath(path).with_suffix("").parts
            if part not in ("checkpoints", "last", "..", "/", "split{split}")
        ]
        or [path]
        for path in checkpoints
    ]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["-".join(part[-depth:]) for part in parts]
        if len({*names}) == len(names):
            return names
    raise ConfigError(f"--checkpoint names a network twice: {', '.join(checkpoints)}")


def _check_labels(videos: VideoList) -> None:
    without = [name for name, record in zip(videos.names, videos.records, strict=True) if record.label < 0]
    if without:
        raise DataError(
            f"invariance of classes needs labels, and {len(without)} videos of {videos.path} have none, the first "
            f"{without[0]!r}: give a list with labels, or --variant goodfellow"
        )
    if len({record.label for record in videos.records}) < 2:
        raise DataError(
            f"all videos of {videos.path} have one class, and invariance is measured between classes: give a list with "
            "more, or --variant goodfellow"
        )


def _for_one(options: Options, checkpoint: str, several: bool) -> Options:
    """Tell one network what it needs: of several, those that bring a config of their own are not told another."""
    told = replace(options, checkpoint=checkpoint, clips=options.clips or 1, crops=1)
    config = options.cfg is not None or options.overrides
    if not (several and config) or checkpoint == "random":
        return told
    own = is_checkpoint(read_anything(Path(checkpoint), options.trust_checkpoint))
    return replace(told, cfg=None, overrides=()) if own else told


@dataclass(frozen=True)
class _Asked:
    """A measurement that can be made, as far as can be known before it is."""

    subject: Subject
    trajectories: Trajectories
    left_out: Mapping[str, str]
    request: Tree


def _ask(
    options: Options, videos: VideoList, data: Tree, boxes: Mapping[str, Boxes] | None, measure: Measure
) -> _Asked:
    subject = load_subject(options)
    test = subject.test
    if measure.top_k > subject.backbone.dim:
        raise ConfigError(
            f"--top-k {measure.top_k}: {options.checkpoint} has {subject.backbone.dim} units, choose so many at most"
        )
    names, left_out = choose_transformations(measure.transformations, test.clip.frames, boxes is not None)
    request = {
        **subject.made_with,
        "invariance": {
            "variant": measure.variant,
            "top_k": measure.top_k,
            "population": measure.population,
            "transformations": {name: TRANSFORMATIONS[name].amounts for name in names},
        },
        "list": videos.fingerprint,
        "classes": class_hash(videos),
        "data": data,
        "boxes": None if boxes is None else _fingerprint(boxes, videos),
    }
    plain = json.loads(json.dumps(request))  # as it will be read again
    return _Asked(
        subject, Trajectories(test.clip, test.clips, test.size, names, test.short_side), left_out, plain
    )


def _fingerprint(boxes: Mapping[str, Boxes], videos: VideoList) -> str:
    rows = [
        (name, sorted(boxes.get(record.path, {}).items()))
        for name, record in zip(videos.names, videos.records, strict=True)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _run(
    asked: _Asked,
    listed: VideoList,
    boxes: Mapping[str, Boxes] | None,
    measure: Measure,
    videos: Path,
    out: Path,
    name: str,
) -> Results:
    """Measure one network, unless its results are there."""
    there = distributed.on_main(lambda: results_there(out, asked.request))
    if there is not None:
        return there
    subject = asked.subject
    test = subject.test
    features = trajectory_features(
        subject.backbone,
        listed,
        asked.trajectories,
        test,
        subject.device,
        mean=test.mean,
        std=test.std,
        boxes=boxes,
        batch_size=test.batch_size,
        half=test.precision == "bfloat16",
        workers=test.workers,
        prefetch=test.prefetch,
        timeout=test.timeout,
        skip=test.allow_missing,
        title=name,
    )

    def score() -> Results:
        numbers, details, without = _scores(features, asked.trajectories, listed, measure)
        results = {
            **numbers,
            "details": details,
            "left_out": {**asked.left_out, **without},
            "num_videos": len({*features.index.tolist()}),
            "num_samples": len(features.x),
            "num_units": features.x.shape[1],
            "missing": [{"path": path, "reason": reason} for path, reason in features.missing],
            "list": str(videos),
            "boxes": None if measure.boxes is None else str(measure.boxes),
            "measure": asked.request["invariance"],
            **subject.describe(),
            "request": asked.request,
        }
        write_json(out / "results.json", results)
        return results

    return distributed.on_main(score)


def _scores(
    features: TrajectoryFeatures, trajectories: Trajectories, videos: VideoList, measure: Measure
) -> tuple[dict[str, float], dict[str, Any], dict[str, str]]:
    """Give all numbers by name, what is behind them, and why transformations were left out."""
    labels = np.array([videos.records[n].label for n in features.index])
    x, order = features.x, generator(0, len(labels)).permutation(len(labels))

    def score(
        versions: NDArray[np.float32],
        counted: NDArray[np.bool_] | None = None,
        of: NDArray[np.int64] = labels,
        population: Population = measure.population,
    ) -> Invariance:
        top_k = measure.top_k
        if measure.variant == "class":
            return class_invariance(x, versions, of, top_k=top_k, counted=counted, population=population)
        return firing_invariance(x, versions, top_k=top_k, counted=counted, population=population, rate=_RATE)

    # A version that is another sample, or the same, adds nothing to the population.
    if measure.variant == "class":
        nothing = features.versions[:, :0]
        unchanged, shuffled = score(nothing), score(nothing, of=labels[order])
    else:
        unchanged, shuffled = (score(v, population="samples") for v in (x[:, None], x[order, None]))
    scores: dict[str, float] = {}
    details: dict[str, Any] = {}
    without: dict[str, str] = {}
    places = trajectories.places
    for name in trajectories.names:
        counted = features.changed[:, places[name]]
        if not counted.any():
            without[name] = "it changes no clip of the list: there is no room for it in the videos, or no box"
            continue
        found = score(features.versions[:, places[name]], counted)
        scores[name] = found.score
        details[name] = {
            "amounts_are": TRANSFORMATIONS[name].unit,
            "versions": found.versions,
            "unchanged_versions": int(counted.size) - found.versions,
            "samples": found.samples,
            "ceiling": found.ceiling,
            "per_class": {
                videos.class_name(int(label)): float(of_class)
                for label, of_class in zip(found.classes, found.of_class, strict=True)
            },
        }
    if not scores:
        raise DataError(f"no transformation changes any clip of {videos.path}: name others")
    numbers = {
        "invariance_mean": float(np.mean([*scores.values()])),
        **{f"invariance_{name}": value for name, value in scores.items()},
        "invariance_unchanged": unchanged.score,
        "invariance_shuffled": shuffled.score,
        "invariance_ceiling": unchanged.ceiling,
    }
    return numbers, details, without
