"""Test a network on a list by the protocols of the field, over one split or several."""

import csv
import hashlib
import io
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from pydantic import Field, create_model
from torch import Tensor

from vidssl import distributed
from vidssl.atomic import check_folder, write_json, write_whole
from vidssl.commands.extract import mismatches
from vidssl.commands.load import Options, Subject, load_subject, of
from vidssl.config import Tree, bind, choice
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine import train as engine
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.resume import only_run_in
from vidssl.engine.run_config import choose_device, load_run
from vidssl.errors import ConfigError
from vidssl.evaluation.measure import Measurement, chosen_protocols, measure
from vidssl.evaluation.metrics import confusion
from vidssl.evaluation.preconditions import check_apart, check_measurable, check_names
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol, Measured
from vidssl.methods import METHODS
from vidssl.viz import confusion_picture

_log = logging.getLogger(__name__)

Results = dict[str, Any]
# What each split has its own of, beside numbers.
_OWN = ("num_videos", "num_train", "missing", "missing_train", "list", "train_list", "checkpoint", "details")


def test(
    options: Options,
    videos: Path,
    out: Path,
    train: Path | None = None,
    protocols: Sequence[Tree] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Results:
    """Measure a network; write `results.json`, and of each protocol that names classes who was taken for what.

    Those are `predictions_NAME.csv` (each video, its class, the predicted one), `per_class_NAME.csv` and the picture
    `confusion_NAME.png`. Results of the same request that are there already are given back.

    Args:
        options: Which network, which clips.
        videos: The list that is tested.
        out: Folder for the results, made where it is missing.
        train: The list of training videos, for protocols that compare with them.
        protocols: Plain data, `{"name": "knn", "k": 20}`; None: as `chosen_protocols` says.
        check: As of `extract`.

    Returns:
        What is in `results.json`, on every process; the main one alone writes.

    Raises:
        ConfigError: A protocol is unknown or lacks what it needs.
        DataError: A list or a video cannot be used, or the lists do not fit the network or each other; one that names
            original videos does not fit one that names shrunk copies.
    """
    check_folder(out)
    with distributed.joined(choose_device(options.device)):
        asked = _ask(options, videos, train, protocols)
        subject, request = asked.subject, distributed.on_main(asked.request)
        with only_run_in(out):
            there = distributed.on_main(lambda: results_there(out, request))
            if there is not None:
                return there
            found = measure(
                subject.backbone,
                asked.protocols,
                asked.gallery,
                asked.query,
                subject.test,
                subject.device,
                subject.classify,
                subject.classes,
                check,
            )
            results = _results(found, subject, request, videos, train)
            distributed.on_main(lambda: _write(out, results, found))
    return results


test.__test__ = False  # type: ignore[attr-defined]  # no test, whatever pytest thinks of the name


def over_splits(splits: Sequence[int], out: Path, one: Callable[[int, Path], Results]) -> Results:
    """Do a job for each split into `out/splitN`; write the numbers of all, their mean and spread to `out/results.json`.

    Args:
        splits: Their numbers.
        out: The folder.
        one: Does the job for a split, in a folder, and gives its results.

    Returns:
        What is in `results.json`: `splits` (what differs between them), `mean`, `spread` (the standard deviation over
        splits, n - 1; of several splits only), and what the results of the first say otherwise.
    """
    found = {split: one(split, out / f"split{split}") for split in splits}
    first = found[splits[0]]
    numbers = {
        split: {name: value for name, value in results.items() if isinstance(value, float)}
        for split, results in found.items()
    }
    shared = [name for name in numbers[splits[0]] if all(name in of_split for of_split in numbers.values())]
    columns = {name: [of_split[name] for of_split in numbers.values()] for name in shared}
    own = {*numbers[splits[0]], *_OWN, "request"}
    results = {
        "splits": {
            str(split): {**numbers[split], **{name: results[name] for name in _OWN if name in results}}
            for split, results in found.items()
        },
        "mean": {name: mean(column) for name, column in columns.items()},
        "spread": {name: stdev(column) for name, column in columns.items()} if len(splits) > 1 else {},
        **{name: value for name, value in first.items() if name not in own},
    }
    distributed.on_main(lambda: write_json(out / "results.json", results))
    return results


def measure_splits(
    options: Options,
    videos: Path,
    out: Path,
    splits: Sequence[int],
    train: Path | None = None,
    protocols: Sequence[Tree] | None = None,
) -> Results:
    """Do `test` for each split, whose number stands for `{split}` in the checkpoint, the lists and the settings.

    Raises:
        ConfigError: The test is the same for all splits, or as of `test`.
    """
    if not any("{split}" in str(told) for told in (videos, options.checkpoint, *options.overrides)):
        raise ConfigError(f"{videos} names no {{split}}: it would be the same test for every split")

    def of_split(split: int) -> tuple[Options, Path, Path | None]:
        gallery = None if train is None else Path(of(split, train))
        return options.of_split(split), Path(of(split, videos)), gallery

    def one(split: int, folder: Path) -> Results:
        told, query, gallery = of_split(split)
        return test(told, query, folder, gallery, protocols)

    with distributed.joined(choose_device(options.device)):
        for split in splits:  # a mistake in the last shows before the first is measured
            _ask(*of_split(split), protocols)
        return over_splits(splits, out, one)


def train_splits(cfg: Path, overrides: Sequence[str], splits: Sequence[int]) -> tuple[Results, Path]:
    """Train and test for each split what a config describes; a split that is done is not done again.

    Args:
        cfg: Its texts hold `{split}`, for which the number of the split is put.
        overrides: `KEY=VALUE`.
        splits: Their numbers.

    Returns:
        The results, as of `over_splits`, and the file that they are in.

    Raises:
        VidsslError: As training and `test` raise them.
        Interrupted: A signal asked to stop. A split in training is saved; one in test is tested anew next time.
    """
    runs = {split: load_run(cfg, overrides, split) for split in splits}
    first = runs[splits[0]]
    if first.evaluate.query is None:
        raise ConfigError(f"{cfg}: --splits tests each network: name the list in evaluate.query")
    out = Path(first.output).parent
    with distributed.joined(choose_device(first.device)), StopRequest().listening() as request:
        for run in runs.values():  # a mistake in the lists of the last shows before the first is trained
            videos = engine.training_list(run)
            query = engine.tested(run, videos).query
            if METHODS[run.method.name].classifies:
                check_apart(videos, query, "the classifier")

        def one(split: int, folder: Path) -> Results:
            distributed.together(request.check)  # training hears signals itself
            run = runs[split]
            # Of a run that is done the checkpoint holds what it was told then: how it is tested may have changed.
            options = Options(
                str(engine.train(run)),
                clips=run.evaluate.clips,
                crops=run.evaluate.crops,
                size=run.test_size,
                short_side=run.evaluate.short_side or run.test_size,
                precision=run.evaluate.precision,
                batch_size=run.evaluate.batch_size,
                workers=run.data.workers,
                device=run.device,
                root=_path(run.data.root),
                allow_external=run.data.allow_external,
                trust_checkpoint=run.checkpoint.trust,
            )
            told = run.evaluate.protocols
            protocols = None if told is None else [protocol.model_dump(mode="json") for protocol in told]
            lists = Path(str(run.evaluate.query)), folder, _path(run.evaluate.gallery)
            return test(options, *lists, protocols, request.check)

        return over_splits(splits, out, one), out / "results.json"


@dataclass(frozen=True)
class _Asked:
    """A test that can be made, as far as can be known before it is."""

    subject: Subject
    protocols: dict[str, EvaluationProtocol]
    gallery: VideoList | None
    query: VideoList

    def request(self) -> Tree:
        """Collect what decides the results; two tests of one request have the same. Looks at each file.

        Raises:
            DataError: One list names originals, the other shrunk copies.
        """
        data = identify(self.query)
        train_data = None if self.gallery is None else identify(self.gallery)
        if self.gallery is not None and train_data is not None:
            check_copies(self.gallery.path, train_data, self.query.path, data)
        return {
            **self.subject.made_with,
            "protocols": [
                {"name": name, **protocol.config.model_dump(mode="json", exclude={"name"})}
                for name, protocol in self.protocols.items()
            ],
            "list": self.query.fingerprint,
            "train_list": None if self.gallery is None else self.gallery.fingerprint,
            "classes": class_hash(self.query),
            "data": data,
            "train_data": train_data,
        }


def _ask(options: Options, videos: Path, train: Path | None, protocols: Sequence[Tree] | None) -> _Asked:
    """Read the lists, load the network, and see whether they and the protocols fit each other."""
    several = [path for path in (videos, train) if "{split}" in str(path)]
    if several:
        raise ConfigError(f"{several[0]} is for several splits; name them: --splits 1 2 3")
    query = read_list(videos, options.root, options.allow_external)
    gallery = None if train is None else read_list(train, options.root, options.allow_external)
    subject = load_subject(options)
    # Bound only now: the run's own modules, which may register protocols, are imported.
    bound = None if protocols is None else _bind(protocols)
    chosen = chosen_protocols(bound, subject.classify is not None, gallery, query)
    check_measurable(chosen, gallery, query, subject.classes)
    if any(protocol.probabilities for protocol in chosen.values()):
        check_names(query, subject.class_names, f"when {options.checkpoint} was trained")
    return _Asked(subject, chosen, gallery, query)


def _bind(choices: Sequence[Tree]) -> tuple[Any, ...]:
    protocol = choice(PROTOCOLS)
    schema = create_model("Protocols", protocols=(tuple[protocol, ...], Field()))  # type: ignore[valid-type]
    return bind(schema, {"protocols": list(choices)}, "--protocol").protocols  # type: ignore[attr-defined, no-any-return]


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def summary(results: Results) -> str:
    """Write the numbers of a test as a short table for a terminal."""
    test, splits = results["protocol"], list(results.get("splits", {}).values())
    counts = ", ".join(map(_count, splits or [results]))
    lines = [
        f"{counts}; {test['clips']} clips x {test['crops']} crops of {test['size']}², percent"
        + (f"; mean ± standard deviation of {len(splits)} splits" if len(splits) > 1 else "")
    ]
    numbers = results["mean"] if splits else {n: v for n, v in results.items() if isinstance(v, float)}
    spread = (
        results["spread"]
        if splits
        else {n.removesuffix("_spread"): v for n, v in numbers.items() if n.endswith("_spread")}
    )
    width = max((len(name) for name in numbers), default=0)
    for name, value in numbers.items():
        if name.endswith("_spread"):
            continue
        line = f"{name:<{width}} {_cell(name, value):>7}"
        if name in spread:
            line += f" ± {_cell(name, spread[name]):>5}"
        if len(splits) > 1:
            line += f"   ({', '.join(_cell(name, of_split[name]) for of_split in splits)})"
        lines.append(line)
    return "\n".join(lines)


def _cell(name: str, value: float) -> str:
    # The uniformity loss is a logarithm, not a percentage.
    return f"{value:.3f}" if name == "uniformity_loss" else f"{100 * value:.1f}"


def _count(results: Results) -> str:
    lacking = len(results["missing"])
    count = results["num_videos"]
    return f"{count} of {count + lacking} videos ({lacking} missing)" if lacking else f"{count} videos"


def _results(
    found: Measurement,
    subject: Subject,
    request: Tree,
    videos: Path,
    train: Path | None,
) -> Results:
    return {
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
        "request": request,
    }


def results_there(out: Path, request: Tree) -> Results | None:
    """Find results of the same request; others are written over, and the log says what differs."""
    path = out / "results.json"
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        results: Results = content if isinstance(content, dict) else {}
        there = results.get("request")
        if there == request:
            _log.info("%s is of the same test: it is not made again; delete it to have it made anew", path)
            return results
        if isinstance(there, dict) and "data" in there:
            differs = mismatches(there, request)
        else:
            differs = "an earlier version wrote it and did not record the files that it is of"
        _log.info("%s holds results of another test (%s): it is replaced", path, differs)
    return None


def class_hash(videos: VideoList) -> str | None:
    """Hash the names of the classes, which results repeat; None where the list has none."""
    return hashlib.sha256("\n".join(videos.classes).encode()).hexdigest()[:16] if videos.classes else None


def _write(out: Path, results: Results, found: Measurement) -> None:
    (out / "results.json").unlink(missing_ok=True)
    for kind in ("predictions_*.csv", "per_class_*.csv", "confusion_*.png"):  # of what is asked for no longer
        for path in out.glob(kind):
            path.unlink()
    for name, measured in found.found.items():
        if measured.predicted is not None:
            _write_predictions(out, name, found.query, measured)
    write_json(out / "results.json", results)  # last: what is there is complete


def _write_predictions(out: Path, name: str, videos: VideoList, measured: Measured) -> None:
    assert measured.predicted is not None
    label = torch.tensor([record.label for record in videos.records])
    classes = max(len(videos.classes), int(max(label.max(), measured.predicted.max())) + 1)
    names = [videos.classes[n] if n < len(videos.classes) else str(n) for n in range(classes)]
    counts = confusion(measured.predicted, label, classes)
    predicted = measured.predicted.tolist()
    rows = [
        (path, names[record.label], names[p] if p >= 0 else "")
        for path, record, p in zip(videos.names, videos.records, predicted, strict=True)
    ]
    _write_csv(out / f"predictions_{name}.csv", ("path", "class", "predicted"), rows)
    _write_csv(
        out / f"per_class_{name}.csv",
        ("class", "videos", "right", "accuracy", "most often taken for"),
        [_class_row(n, names, counts) for n in range(classes) if int(counts[n].sum())],
    )
    write_whole(out / f"confusion_{name}.png", confusion_picture(counts.numpy(), names))


def _class_row(n: int, names: list[str], counts: Tensor) -> tuple[str, int, int, str, str]:
    total, right = int(counts[n].sum()), int(counts[n, n])
    others = counts[n, :-1].clone()
    others[n] = 0
    other = names[int(others.argmax())] if int(others.max()) else ""
    return names[n], total, right, f"{right / total:.4f}", other


def _write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_whole(path, text.getvalue().encode())
