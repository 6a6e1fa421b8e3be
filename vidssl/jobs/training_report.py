"""What a training says at its end: how the loss fell, what kNN gained, and the commands that come next."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from vidssl.base import distributed
from vidssl.base.atomic import write_json
from vidssl.base.config import Tree
from vidssl.base.errors import DataError, VidsslError, first_few
from vidssl.base.output_folder import only_run_in
from vidssl.base.safe_parse import parse_json, read_json
from vidssl.base.types import Features
from vidssl.data.find_same_videos import own_rows
from vidssl.data.label_videos import describe_labels, label_videos
from vidssl.data.recordings_and_class_folders import labelled_by_folders, of_several_recordings, recording_groups
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.run_config import Run
from vidssl.engine.run_setup import fresh_backbone
from vidssl.engine.training_lists import training_list
from vidssl.evaluation.features import join_features
from vidssl.evaluation.leave_recording_out import num_neighbours, vote_of_others
from vidssl.evaluation.metrics import majority
from vidssl.evaluation.protocols import KNN
from vidssl.evaluation.statistics import beside, proportions
from vidssl.jobs.job import NetworkOptions
from vidssl.jobs.load_network import Subject, extract_together, joined_clips, load_parts, load_subject
from vidssl.jobs.measurement_runner import format_clips
from vidssl.models.joined_features import EncoderPart, parts_of
from vidssl.page.charts import training_curves
from vidssl.page.figure_style import png
from vidssl.page.render import TEMPLATES, render_page
from vidssl.page.section import Point, Quantity, Section

_log = logging.getLogger(__name__)
PAGE, NUMBERS = "training.html", "training.json"
_ALWAYS = 60.0  # seconds that the measurement may take, however short the training was
_AT_MOST = 600.0  # seconds
_FRACTION = 0.1  # of the time of the training
_BESIDE = 0.15  # seconds of a video that `vidssl-default` takes on two cores; it may double the time
_TRAINED = "trained"
_OfNetworks = dict[str, Features]  # by the names of networks


def report_training(run: Run, checkpoint: Path) -> None:
    """Write `training.html` and `training.json` of a finished run, and log what they say; all processes together.

    The network is measured by kNN if its videos have labels or class folders, and only if that is quick beside the
    training. What fails here is a warning: the run is complete.
    """
    output = Path(run.output)
    try:
        with distributed.joined(distributed.choose_device(run.device)), only_run_in(output):
            videos = training_list(run)
            request = {
                "step": run.total_steps(videos.samples_per_epoch),
                "list": videos.fingerprint,
                "evaluate": run.evaluate.model_dump(mode="json"),
            }
            content = distributed.on_main(lambda: _written(output, request))
            if content is None:
                content = {"request": request, **_report(run, checkpoint, videos)}
                distributed.on_main(lambda: _write(run, content))
            if distributed.is_main():
                _log.info("%s", format_report(content, output / PAGE))
    except (VidsslError, OSError) as error:
        if distributed.is_main():
            _log.warning("the run is complete, but its report cannot be written: %s", error)


def _written(output: Path, request: Tree) -> Tree | None:
    """The numbers that are there already: the command of a finished run measures nothing."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        content: Tree = read_json(output / NUMBERS)
        lacking = content["knn"] is not None and content["knn"]["lacking"]  # it may be installed by now
        if content["request"] == request and (output / PAGE).exists() and format_report(content, output / PAGE):
            return None if lacking else content
    return None


def _report(run: Run, checkpoint: Path, videos: VideoList) -> Tree:
    lines = distributed.on_main(lambda: read_metrics(Path(run.output)))
    losses = [line for line in lines if "loss" in line]
    loss = {name: {key: losses[n].get(key) for key in ("step", "loss")} for name, n in (("first", 0), ("last", -1))}
    test = choose_test(run, videos)
    content: Tree = {"loss": loss, "knn": None, "labels": None, "reason": test if isinstance(test, str) else None}
    if not isinstance(test, str):
        content["labels"] = test.labels
        seconds, allowed = _seconds(run, test, losses)
        if seconds > allowed:
            content["reason"] = f"it may take {seconds / 60:.0f} minutes to measure it; the commands below do"
        else:
            beside, more = run.evaluate.beside, _BESIDE * test.num_videos
            reason = f"without {beside}, which may take {more / 60:.0f} minutes more: name it in --checkpoint"
            slow, beside = (reason, None) if beside is not None and seconds + more > 2 * allowed else (None, beside)
            if beside is not None and distributed.is_main():
                said = "kNN of %d videos, also of %s, may take %.1f minutes; evaluate.beside=null leaves %s out"
                _log.info(said, test.num_videos, beside, (seconds + more) / 60, beside)
            try:
                content["knn"] = {**_measure(run, checkpoint, test, beside), "slow": slow}
            except DataError as error:  # none of its videos can be read
                content["reason"] = str(error)
    return {**content, "commands": [list(command) for command in next_commands(run)]}


def read_metrics(output: Path) -> list[Tree]:
    """Read the lines of `metrics.jsonl`; a DataError if they are damaged or have no loss."""
    file = output / "metrics.jsonl"
    try:
        lines = [dict(parse_json(line)) for line in file.read_text(encoding="utf-8").splitlines()]
    except (ValueError, TypeError) as error:
        raise DataError(f"{file} is damaged: {error}") from None
    if not any("loss" in line for line in lines):
        raise DataError(f"{file} has no loss")
    return lines


# The measurement --------------------------------------------------------------------------------------------


class Test(NamedTuple):
    """The videos that a network is measured on."""

    tested: VideoList
    gallery: VideoList | None  # None: each tested video is compared with those of other recordings
    what: str  # the tested videos, in words
    labels: str  # what their labels are, in words

    @property
    def num_videos(self) -> int:
        """Number of all videos."""
        return len(self.tested) + (0 if self.gallery is None else len(self.gallery))


def choose_test(run: Run, videos: VideoList) -> Test | str:
    """Choose the lists of `evaluate`, else the training videos by their labels or folders; else say what is missing."""
    where, rule, kind = run.evaluate, (run.data.root, run.data.allow_external), run.objective[0]
    if where.query is None and (kind.needs_labels or kind.classifies):
        return "it was trained with the labels of its videos: only videos of another list can test it"
    if getattr(run.objective[1], "freeze", False):
        return "the backbone was frozen: vidssl test measures the classifier"
    tested = label_videos(videos if where.query is None else read_list(where.query, *rule), where.labels)
    tested = labelled_by_folders(tested) if where.query is None else tested
    query, line, gallery = _with_labels(tested), describe_labels(tested), None
    if query is None:
        return f"no two classes; {line}"
    if where.query is not None and where.gallery is not None:
        gallery = _with_labels(label_videos(read_list(where.gallery, *rule), where.labels))
        if gallery is None:
            return f"no two classes in {where.gallery}"
    elif not of_several_recordings(query.labels, recording_groups(query).number).any():
        return f"no class has videos of two recordings; {line}"
    return Test(query, gallery, "training videos" if where.query is None else f"videos of {query.path}", line)


def _with_labels(videos: VideoList) -> VideoList | None:
    """The rows that have labels; None if these are of fewer than two classes."""
    labels = videos.labels
    return None if len(np.unique(labels[labels >= 0])) < 2 else videos.rows(np.flatnonzero(labels >= 0).tolist())


def _seconds(run: Run, test: Test, losses: Sequence[Tree]) -> tuple[float, float]:
    """Seconds that the measurement will take, if it makes as many clips per second as the training; and may take."""
    rate = median([float(line["clips_per_second"]) for line in losses])
    trained = losses[-1]["step"] * run.batch_size * len(run.data.views)
    allowed = max(_ALWAYS, min(_AT_MOST, _FRACTION * trained / rate))
    return test.num_videos * run.evaluate.clips * run.evaluate.crops / rate, allowed


def _measure(run: Run, checkpoint: Path, test: Test, beside: str | None) -> Tree:
    """Measure kNN of the network, of what it was before, and of `beside` without and with it.

    Each video is decoded once for all of them.
    """
    options: NetworkOptions = {"device": run.device, "workers": run.data.workers, "trust": run.checkpoint.trust}
    options["allow_missing"] = True
    subject = load_subject(checkpoint, options)
    with torch.random.fork_rng([]):
        torch.manual_seed(run.seed)
        fresh = fresh_backbone(run).to(subject.device).eval()
    parts, others, lacking = list[EncoderPart](), list[Subject](), None
    try:
        parts = [] if beside is None else parts_of(beside) or [EncoderPart(beside)]
        others = load_parts(parts, {**options, "precision": subject.test.precision})
        joined_clips([subject.test, *(network.test for network in others)])
    except VidsslError as error:  # its weights are not installed
        others, lacking = [], f"without {beside}: {error}"
    networks = [subject, replace(subject, backbone=fresh), *others]
    with StopRequest(f"the run is complete and saved, the same command writes {PAGE}").listening() as request:
        extract = partial(extract_together, networks, check=request.check)
        g = None if test.gallery is None else extract(test.gallery, title="gallery")
        q = extract(test.tested, title="tested")
    if test.gallery is not None:
        subject.count_overlap(test.tested, test.gallery)
    before = "untrained" if run.init is None else "before training"
    named = partial(_of_networks, before, str(beside), [part.weight for part in parts])
    numbers = distributed.on_main(lambda: _numbers(test, named(q), None if g is None else named(g)))
    return {**numbers, "lacking": lacking, "clips": format_clips(subject.describe()["protocol"])}


def _of_networks(before: str, beside: str, weights: Sequence[float], features: Sequence[Features]) -> _OfNetworks:
    """Return the features of each network, and of the trained one joined with `beside`, by name."""
    trained, untrained, *others = features
    rows = {_TRAINED: trained, before: untrained}
    if others:
        rows[f"{beside}+{_TRAINED}"] = join_features([*others, trained], [*weights, 1.0])
        rows[beside] = join_features(others, weights) if len(weights) > 1 else others[0]
    return rows


def _numbers(test: Test, queries: _OfNetworks, galleries: _OfNetworks | None) -> Tree:
    """Compute the accuracies of networks by kNN, and their gains, of the features of the test's two lists."""
    q = queries[_TRAINED]
    tested = test.tested.rows(q.index.tolist())
    groups, label, level = recording_groups(tested), tested.labels, {"majority": majority(q.label)["majority"]}
    doubt = "no recording is read from the names: each file counts as one, and clips cut from one make"
    # The number of `vidssl test`, or that of `vidssl compare`: the next command shows the same.
    if galleries is None or test.gallery is None:
        predicted = {name: vote_of_others(x, groups.number)[0] for name, x in queries.items()}
        several = of_several_recordings(label, groups.number)
        compared = f"each compared with the {num_neighbours(label)} nearest "
        compared += "of other recordings" if groups.stated else "others"
        doubt += " numbers too high: vidssl compare --group REGEX keeps them apart"
    else:
        knn, own_pairs = KNN(KNN.Config()), own_rows(test.gallery.rows(galleries[_TRAINED].index.tolist()), tested)
        measured = {name: knn(galleries[name], x, own_pairs).predicted for name, x in queries.items()}
        predicted = {name: labels for name, labels in measured.items() if labels is not None}
        several = np.zeros_like(label, bool)
        compared = f"compared with the {knn.config.k} nearest of {len(galleries[_TRAINED])} of {test.gallery.path}"
        doubt += " the intervals too narrow"
    kept, classes = np.ones_like(several), None
    if several.any():
        kept, classes, level = several, label[several], {"1 / classes": 1 / len({*label[several].tolist()})}
    alone = [tested.class_name(number) for number in np.unique(label[~kept]).tolist()]
    right = {name: (labels == q.label).double().numpy()[kept] for name, labels in predicted.items()}
    means = proportions(np.stack([*right.values()]), groups.number[kept], classes)
    gains = [
        {"of": [name, base], **beside(right[name], right[base], groups.number[kept], classes).difference._asdict()}
        for name, base in zip([*right][::2], [*right][1::2], strict=True)
    ]
    return {
        "numbers": {name: mean.value for name, mean in zip(right, means, strict=True)},
        "level": level,
        "gains": gains,
        "what": f"{len(q)} {test.what}, {compared}"
        + ("" if classes is None else ", a mean over classes")
        + (f", without {first_few(alone)} of one recording" if alone else ""),
        "recordings": int(groups.number.max()) + 1,
        "doubt": None if groups.stated else doubt,
        "left_out": len(test.tested) - len(q),
    }


# What comes next --------------------------------------------------------------------------------------------


def next_commands(run: Run) -> list[tuple[str, str]]:
    """Return commands that run as they are in the folder where the training was started, each after what it does."""
    output, first, where = Path(run.output), run.data.train_lists[0], run.evaluate
    root = first.root or run.data.root
    reading = [] if root is None else ["--root", root]
    reading += ["--allow-external"] if run.data.allow_external else []
    reading += [] if where.labels is None else ["--labels", where.labels]
    reading += ["--imports", *run.imports] if run.imports else []
    network, trust = ["--checkpoint", str(output)], ["--trust-checkpoint"] * run.checkpoint.trust
    arguments = [*network, *reading, *trust]
    query = where.query or first.list
    gallery = first.list if where.query is None else where.gallery or where.query
    search = ["retrieval", "--gallery", gallery, "--query", query, *arguments, "--out", str(output / "search")]
    if where.query is None:
        title = "is it better than networks that learned nothing"
        beside = [] if where.beside is None else [where.beside, f"{where.beside}+{output}"]
        measure = ["compare", first.list, *network, *beside, *reading, *trust, "--out", str(output / "compare")]
        measure += [] if where.precision == "float32" else ["--precision", where.precision]
    else:
        title = "accuracies of the test list, beside networks that learned nothing"
        train_list = [] if where.gallery is None else ["--train-list", where.gallery]
        measure = ["test", query, *train_list, *arguments, "--floors", "--out", str(output / "test")]
    plot = ["map", first.list, *arguments, "--out", str(output / "map")]
    export = ["export", str(output), "--to", "folder", *trust, "--out", str(output / "backbone")]
    return [
        (title, shlex.join(["vidssl", *words]))
        for title, words in (
            ("the nearest videos of each", search),
            (title, measure),
            ("a map of all videos", plot),
            ("the backbone for others", export),
        )
    ]


def format_report(content: Mapping[str, Any], page: Path) -> str:
    """Format what a training became as the lines that the log shows."""
    losses = dict.fromkeys(f"{line['loss']:.3f} at step {line['step']}" for line in content["loss"].values())
    lines = [f"training is complete: loss {', '.join(losses)}"]
    if content["knn"] is not None:
        numbers = {**content["knn"]["numbers"], **content["knn"]["level"]}
        lines.append(f"kNN: {', '.join(f'{name} {100 * value:.1f} %' for name, value in numbers.items())}")
    lines += [*sentences(content), f"page: {page}", "next:"]
    for title, command in content["commands"]:
        lines += [f"  # {title}", f"  {command}"]
    return "\n".join(lines)


def sentences(content: Mapping[str, Any]) -> list[str]:
    """Say what kNN was measured on, whether the training gained, and what to doubt; or why there is no accuracy."""
    knn = content["knn"]
    if knn is None:
        return [f"no accuracy: {content['reason']}"]
    said = [content["labels"], f"of {knn['what']}"]
    for gain in knn["gains"]:
        first, second = gain["of"]
        if gain["low"] is None:
            equal = "are right for the same videos" if gain["identical"] else "have too few recordings for an interval"
            said.append(f"by kNN, {first} and {second} {equal}")
            continue
        low, high = 100 * gain["low"], 100 * gain["high"]
        verdict = "better than" if low > 0 else "worse than" if high < 0 else "not shown to differ from"
        points = f"{100 * gain['value']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}".replace("-", "\u2212")
        unit = "files" if knn["doubt"] else "recordings"
        said.append(f"by kNN, {first} is {verdict} {second}: {points} over {knn['recordings']} {unit}")
    said += [knn[name] for name in ("lacking", "slow", "doubt") if knn[name]]
    if knn["left_out"]:
        said.append(f"{knn['left_out']} video{'s' * (knn['left_out'] != 1)} could not be read")
    return said


def _write(run: Run, content: Tree) -> None:
    output, knn = Path(run.output), content["knn"]
    details = [
        ("Method", run.method_in_words),
        ("Backbone", run.backbone.name),
        ("Videos", ", ".join(training_list.list for training_list in run.data.train_lists)),
        ("Steps", f"{content['loss']['last']['step']:,}, batches of {run.batch_size} videos"),
    ]
    quantities = []
    if knn is not None:
        accuracies = {name: {"kNN": Point(value)} for name, value in knn["numbers"].items()}
        quantities = [Quantity("Accuracy of kNN", accuracies, knn["level"])]
        details += [("Clips", knn["clips"]), ("Labels", content["labels"].removeprefix("labels: "))]
    # What the labels are is in the head of the page.
    said = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences(content) if sentence != content["labels"]]
    # For wide and narrow windows.
    curves, column = (png(training_curves(read_metrics(output), columns=columns)) for columns in (3, 1))
    render_page(
        output / PAGE,
        TEMPLATES / "training.html",
        title=f"Training of {output.name}",
        details=details,
        loss=content["loss"],
        section=Section("knn", "Accuracy after the training", quantities=quantities, notes=said),
        termed=str,
        curves=curves,
        column=column,
        commands=content["commands"],
        folder=str(Path.cwd()),
        sprites={},
    )
    write_json(output / NUMBERS, content)
