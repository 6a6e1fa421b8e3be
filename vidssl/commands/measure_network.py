"""Measure a network on a list with the evaluation protocols, for one split or several."""

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import Field, create_model

from vidssl import distributed
from vidssl.atomic import check_folder, write_json
from vidssl.commands.extract_features import mismatches
from vidssl.commands.load import LoadOptions, Subject, fill_split, format_count, load_subject
from vidssl.commands.predictions import write_predictions
from vidssl.config import Tree, bind, choice
from vidssl.data.fingerprint import check_copies, identify
from vidssl.data.video_list import VideoList, read_list
from vidssl.engine import train as engine
from vidssl.engine.config_schema import Run, choose_device, load_run
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.periodic_evaluation import Monitor
from vidssl.engine.resume import only_run_in
from vidssl.engine.setup import training_list
from vidssl.errors import ConfigError
from vidssl.evaluation.measure import Measurement, chosen_protocols, measure
from vidssl.evaluation.preconditions import check_disjoint, check_measurable, check_names
from vidssl.evaluation.protocols import PROTOCOLS, EvaluationProtocol
from vidssl.methods import METHODS

_log = logging.getLogger(__name__)

Results = dict[str, Any]
# What each split has its own of, beside numbers.
_PER_SPLIT = (
    *("num_videos", "num_train", "missing", "missing_train"),
    *("list", "train_list", "checkpoint", "details"),
)


def measure_network(
    options: LoadOptions,
    videos: Path,
    out: Path,
    train: Path | None = None,
    protocols: Sequence[Tree] | None = None,
    check: Callable[[], None] = lambda: None,
) -> Results:
    """Measure a network; write `results.json`, and for each protocol that predicts classes its predictions.

    Results of the same request that exist already are returned.

    Args:
        options: The network and its clips.
        videos: The list that is tested.
        out: Folder for the results.
        train: The list of training videos, for protocols that need a gallery.
        protocols: Plain data, `{"name": "knn", "k": 20}`; None: the defaults of `chosen_protocols`.
        check: As of `extract`.

    Returns:
        The content of `results.json`, on every process.

    Raises:
        ConfigError: A protocol is unknown or lacks what it needs.
        DataError: A list or a video cannot be used, or the lists do not fit the network or each other; a list of
            original videos does not fit one of shrunk copies.
    """
    check_folder(out)
    with distributed.joined(choose_device(options.device)):
        plan = _plan(options, videos, train, protocols)
        subject, chosen, gallery, query = plan
        request = distributed.on_main(lambda: _request(*plan))
        with only_run_in(out):
            existing = distributed.on_main(lambda: results_there(out, request))
            if existing is not None:
                return existing
            network = subject.backbone, chosen, gallery, query, subject.test, subject.device
            found = measure(*network, subject.classify, subject.classes, check)
            results = _results(found, subject, request, videos, train)
            distributed.on_main(lambda: _write(out, results, found))
    return results


def over_splits(splits: Sequence[int], out: Path, one: Callable[[int, Path], Results]) -> Results:
    """Run the job `one` for each split in `out/splitN`; write all numbers, mean and spread to `out/results.json`.

    Returns:
        The content of `results.json`: `splits` (what differs between them), `mean`, `spread` (the standard deviation,
        n - 1; empty for a single split), and the rest from the results of the first split.
    """
    found = {split: one(split, out / f"split{split}") for split in splits}
    own = {
        str(split): {n: v for n, v in results.items() if isinstance(v, float) or n in _PER_SPLIT}
        for split, results in found.items()
    }
    first = found[splits[0]]
    columns = {
        name: [results[name] for results in found.values()]
        for name, value in first.items()
        if isinstance(value, float) and all(name in results for results in found.values())
    }
    results = {
        "splits": own,
        "mean": {name: mean(column) for name, column in columns.items()},
        "spread": {name: stdev(column) for name, column in columns.items()} if len(splits) > 1 else {},
        **{name: v for name, v in first.items() if name not in {*own[str(splits[0])], *_PER_SPLIT, "request"}},
    }
    distributed.on_main(lambda: write_json(out / "results.json", results))
    return results


def measure_splits(
    options: LoadOptions,
    videos: Path,
    out: Path,
    splits: Sequence[int],
    train: Path | None = None,
    protocols: Sequence[Tree] | None = None,
) -> Results:
    """Run `test` for each split, whose number replaces `{split}` in the checkpoint, the lists and the settings.

    Raises:
        ConfigError: The test is the same for all splits, or as of `measure_network`.
    """
    if not any("{split}" in str(text) for text in (videos, options.checkpoint, *options.overrides)):
        raise ConfigError(f"{videos} does not contain {{split}}: the test would be the same for every split")

    def of_split(split: int) -> tuple[LoadOptions, Path, Path | None]:
        gallery = None if train is None else Path(fill_split(split, train))
        return options.of_split(split), Path(fill_split(split, videos)), gallery

    def one(split: int, folder: Path) -> Results:
        chosen, query, gallery = of_split(split)
        return measure_network(chosen, query, folder, gallery, protocols)

    with distributed.joined(choose_device(options.device)):
        for split in splits:  # errors of any split are raised before the first one is measured
            _plan(*of_split(split), protocols)
        return over_splits(splits, out, one)


def train_splits(cfg: Path, overrides: Sequence[str], splits: Sequence[int]) -> tuple[Results, Path]:
    """Train and test a config for each split, whose number replaces `{split}`; finished splits are not repeated.

    Returns:
        The results, as of `over_splits`, and the file that they are in.

    Raises:
        VidsslError: As training and `test` raise them.
        Interrupted: A signal requested to stop. A training run is saved; an interrupted test starts again next time.
    """
    runs = {split: load_run(cfg, overrides, split) for split in splits}
    first = runs[splits[0]]
    if first.evaluate.query is None:
        raise ConfigError(f"{cfg}: --splits tests each network: set evaluate.query to the list")
    out = Path(first.output).parent
    with distributed.joined(choose_device(first.device)), StopRequest().listening() as request:
        for run in runs.values():  # errors in any list are raised before the first split is trained
            videos = training_list(run)
            query = Monitor(run, videos).query
            if METHODS[run.method.name].classifies:
                check_disjoint(videos, query, "the classifier")

        def one(split: int, folder: Path) -> Results:
            distributed.together(request.check)  # training listens to signals itself
            return _test_run(runs[split], engine.train(runs[split]), folder, request.check)

        return over_splits(splits, out, one), out / "results.json"


def _test_run(run: Run, checkpoint: Path, out: Path, check: Callable[[], None]) -> Results:
    # Settings are those of the run as it is now: the checkpoint of a finished run holds those of its training.
    root, gallery = (None if text is None else Path(text) for text in (run.data.root, run.evaluate.gallery))
    options = LoadOptions(
        str(checkpoint),
        size=run.test_size,
        short_side=run.evaluate.short_side or run.test_size,
        workers=run.data.workers,
        device=run.device,
        root=root,
        allow_external=run.data.allow_external,
        trust_checkpoint=run.checkpoint.trust,
        **run.evaluate.model_dump(include={"clips", "crops", "precision", "batch_size"}),
    )
    chosen = run.evaluate.protocols
    protocols = None if chosen is None else [protocol.model_dump(mode="json") for protocol in chosen]
    return measure_network(options, Path(str(run.evaluate.query)), out, gallery, protocols, check)


_Plan = tuple[Subject, dict[str, EvaluationProtocol], VideoList | None, VideoList]  # gallery, query


def _plan(options: LoadOptions, videos: Path, train: Path | None, protocols: Sequence[Tree] | None) -> _Plan:
    """Read the lists, load the network, and check that they and the protocols fit each other."""
    several = [path for path in (videos, train) if "{split}" in str(path)]
    if several:
        raise ConfigError(f"{several[0]} contains {{split}}; name the splits: --splits 1 2 3")
    query = read_list(videos, options.root, options.allow_external)
    gallery = None if train is None else read_list(train, options.root, options.allow_external)
    subject = load_subject(options)
    # Bound only now: modules that the run imports may register protocols.
    bound = None if protocols is None else _bind(protocols)
    chosen = chosen_protocols(bound, subject.classify is not None, gallery, query)
    check_measurable(chosen, gallery, query, subject.classes)
    if any(protocol.probabilities for protocol in chosen.values()):
        check_names(query, subject.class_names, f"when {options.checkpoint} was trained")
    return subject, chosen, gallery, query


def _request(
    subject: Subject, protocols: dict[str, EvaluationProtocol], gallery: VideoList | None, query: VideoList
) -> Tree:
    """What decides the results; reads the size of each file."""
    data, train_list, train_data = identify(query), None, None
    if gallery is not None:
        train_list, train_data = gallery.fingerprint, identify(gallery)
        check_copies(gallery.path, train_data, query.path, data)
    settings = [
        {"name": name, **protocol.config.model_dump(mode="json", exclude={"name"})}
        for name, protocol in protocols.items()
    ]
    return subject.request({"protocols": settings, "train_list": train_list, "train_data": train_data}, query, data)


def _bind(choices: Sequence[Tree]) -> tuple[Any, ...]:
    protocol = choice(PROTOCOLS)
    schema = create_model("Protocols", protocols=(tuple[protocol, ...], Field()))  # type: ignore[valid-type]
    return bind(schema, {"protocols": list(choices)}, "--protocol").protocols  # type: ignore[attr-defined, no-any-return]


def summary(results: Results) -> str:
    """Format the numbers of a test as a short table."""
    test, splits = results["protocol"], list(results.get("splits", {}).values())
    counts = ", ".join(f"{format_count(one['num_videos'], one['missing'])} videos" for one in splits or [results])
    lines = [
        f"{counts}; {test['clips']} clips x {test['crops']} crops of {test['size']}², percent"
        + (f"; mean ± standard deviation of {len(splits)} splits" if len(splits) > 1 else "")
    ]
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
    return "\n".join(lines)


def _cell(name: str, value: float) -> str:
    # The uniformity loss is a logarithm, not a percentage.
    return f"{value:.3f}" if name == "uniformity_loss" else f"{100 * value:.1f}"


def _results(found: Measurement, subject: Subject, request: Tree, videos: Path, train: Path | None) -> Results:
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
    """Return existing results of the same request. Others are replaced: the log states what differs."""
    path = out / "results.json"
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        results: Results = content if isinstance(content, dict) else {}
        stored = results.get("request")
        if stored == request:
            _log.info("%s holds the results of this test; delete it to measure again", path)
            return results
        if isinstance(stored, dict) and "data" in stored:
            differs = mismatches(stored, request)
        else:
            differs = "an earlier version wrote it and did not record the files"
        _log.info("%s holds results of another test (%s): replacing it", path, differs)
    return None


def _write(out: Path, results: Results, found: Measurement) -> None:
    (out / "results.json").unlink(missing_ok=True)
    for kind in ("predictions_*.csv", "per_class_*.csv", "confusion_*.png"):  # also of other protocols
        for path in out.glob(kind):
            path.unlink()
    for name, measured in found.found.items():
        if measured.predicted is not None:
            write_predictions(out, name, found.query, measured.predicted)
    write_json(out / "results.json", results)  # last: if it exists, the rest is complete
