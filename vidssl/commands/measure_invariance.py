"""Measure how invariant networks are to transformations of the clips of a list, several networks side by side."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from vidssl import distributed
from vidssl.analysis.object_occlusion import Boxes, read_boxes
from vidssl.analysis.scores import Measure, score_features
from vidssl.analysis.transformed_features import TRANSFORMATIONS, Trajectories, choose_transformations
from vidssl.atomic import check_folder, write_json, write_whole
from vidssl.commands.invariance_chart import chart
from vidssl.commands.load import LoadOptions, Subject, class_hash, fill_split, load_subject
from vidssl.commands.measure_network import Results, over_splits, results_there
from vidssl.config import Tree
from vidssl.data.fingerprint import identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.config_schema import choose_device
from vidssl.engine.resume import only_run_in
from vidssl.errors import ConfigError, DataError
from vidssl.evaluation.features import encode_videos
from vidssl.models.weights import is_checkpoint, read_anything


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
    names = _names(checkpoints)
    with distributed.joined(choose_device(options.device)):
        listed = read_list(videos, options.root, options.allow_external)
        if measure.variant == "class":
            _check_labels(listed)
        boxes = None if measure.boxes is None else read_boxes(measure.boxes, listed)
        data = distributed.on_main(lambda: identify(listed))
        requests = [
            _request(_options_for(options, checkpoint, len(checkpoints) > 1), listed, data, boxes, measure)
            for checkpoint in checkpoints
        ]
        with only_run_in(out):
            found = {
                name: _measure(request, listed, boxes, measure, videos, out if len(names) == 1 else out / name, name)
                for name, request in zip(names, requests, strict=True)
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
        ConfigError: A network is the same for all splits, or as for `measure_invariance`.
    """

    def options_of(checkpoint: str, split: int) -> LoadOptions:
        return _options_for(options.of_split(split), fill_split(split, checkpoint), len(checkpoints) > 1)

    for checkpoint in checkpoints:
        settings = options.overrides if options_of(checkpoint, splits[0]).overrides else ()
        if not any("{split}" in str(text) for text in (checkpoint, videos, *settings)):
            raise ConfigError(f"neither {checkpoint} nor the list contains {{split}}: all splits would be the same")
    names = _names(checkpoints)

    def network(name: str, checkpoint: str) -> Results:
        def one(split: int, folder: Path) -> Results:
            inputs = (options_of(checkpoint, split), [fill_split(split, checkpoint)], Path(fill_split(split, videos)))
            return next(iter(measure_invariance(*inputs, folder, measure).values()))

        return over_splits(splits, out if len(names) == 1 else out / name, one)

    with distributed.joined(choose_device(options.device)):
        found = {name: network(name, checkpoint) for name, checkpoint in zip(names, checkpoints, strict=True)}
        distributed.on_main(lambda: write_whole(out / "invariance.png", chart(found)))
    return found


def _names(checkpoints: Sequence[str]) -> list[str]:
    """Name networks by the ends of their paths that differ: `output/a/checkpoints/last.pt` is a."""
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
            f"invariance of classes needs labels, but {len(without)} videos of {videos.path} have none (the first: "
            f"{without[0]!r}): use a list with labels, or --variant goodfellow"
        )
    if len({record.label for record in videos.records}) < 2:
        raise DataError(
            f"all videos of {videos.path} have one class, but invariance is measured between classes: use a list with "
            "more classes, or --variant goodfellow"
        )


def _options_for(options: LoadOptions, checkpoint: str, several: bool) -> LoadOptions:
    """The options of one network; of several networks, those with a config of their own do not get another one."""
    own = replace(options, checkpoint=checkpoint, clips=options.clips or 1, crops=1)
    if not several or checkpoint == "random" or not (options.cfg or options.overrides):
        return own
    has_config = is_checkpoint(read_anything(Path(checkpoint), options.trust_checkpoint))
    return replace(own, cfg=None, overrides=()) if has_config else own


@dataclass(frozen=True)
class _Request:
    """A validated measurement of one network."""

    subject: Subject
    trajectories: Trajectories
    left_out: Mapping[str, str]  # transformations that do not apply, and why
    content: Tree  # determines the results


def _request(
    options: LoadOptions, videos: VideoList, data: Tree, boxes: Mapping[str, Boxes] | None, measure: Measure
) -> _Request:
    subject = load_subject(options)
    test = subject.test
    if measure.top_k > subject.backbone.dim:
        raise ConfigError(
            f"--top-k {measure.top_k} is more than the {subject.backbone.dim} units of {options.checkpoint}"
        )
    names, left_out = choose_transformations(measure.transformations, test.clip.frames, boxes is not None)
    content = {
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
        "boxes": None if boxes is None else _boxes_hash(boxes, videos),
    }
    content = json.loads(json.dumps(content))  # with lists for tuples, as it is read from results.json
    return _Request(subject, Trajectories(test.clip, test.clips, test.size, names, test.short_side), left_out, content)


def _boxes_hash(boxes: Mapping[str, Boxes], videos: VideoList) -> str:
    rows = [
        (name, sorted(boxes.get(record.path, {}).items()))
        for name, record in zip(videos.names, videos.records, strict=True)
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _measure(
    request: _Request,
    listed: VideoList,
    boxes: Mapping[str, Boxes] | None,
    measure: Measure,
    videos: Path,
    out: Path,
    name: str,
) -> Results:
    """Measure one network, unless its results exist."""
    there = distributed.on_main(lambda: results_there(out, request.content))
    if there is not None:
        return there
    subject, trajectories = request.subject, request.trajectories
    test = subject.test
    dataset = trajectories.dataset(listed, test, boxes, test.allow_missing)
    columns, missing = encode_videos(subject.backbone, dataset, test, subject.device, trajectories.encode, name)
    features = trajectories.features(*columns)

    def score() -> Results:
        numbers, details, without = score_features(features, trajectories, listed, measure)
        results = {
            **numbers,
            "details": details,
            "left_out": {**request.left_out, **without},
            "num_videos": len({*features.index.tolist()}),
            "num_samples": len(features.x),
            "num_units": features.x.shape[1],
            "missing": [{"path": path, "reason": reason} for path, reason in missing],
            "list": str(videos),
            "boxes": None if measure.boxes is None else str(measure.boxes),
            "measure": request.content["invariance"],
            **subject.describe(),
            "request": request.content,
        }
        write_json(out / "results.json", results)
        return results

    return distributed.on_main(score)
