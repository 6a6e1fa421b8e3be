"""Train a config, once or for several splits with their tests."""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from vidssl.base import distributed
from vidssl.base.config import Tree, find_config, override, read, set_value
from vidssl.base.distributed import choose_device
from vidssl.base.errors import ConfigError
from vidssl.base.output_folder import check_file_names, only_run_in
from vidssl.base.progress import Report
from vidssl.base.registry import load_app
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList, read_list
from vidssl.data.write_lists import write_lists
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.periodic_evaluation import Monitor, evaluation_clips
from vidssl.engine.run_config import Run, RunSettings, bind_run, bind_split, fill_split, names_split, run_kind
from vidssl.engine.run_setup import claim_output
from vidssl.engine.train import train as train_run
from vidssl.engine.training_lists import training_list
from vidssl.evaluation.result_files import Results
from vidssl.evaluation.train_test_overlap import check_disjoint
from vidssl.jobs.job import File, Videos, job
from vidssl.jobs.measurement_runner import JobResults, claim_results, load_measured, over_splits
from vidssl.jobs.test import Protocols, format_measured
from vidssl.jobs.training_report import report_training
from vidssl.models.read_and_write_weights import weights_file

# Commands look these two up by their names: vidssl/cli/options_from_signatures.py.
Config = str | Path | Mapping[str, Any]  # a YAML file, the name of an installed config, or the content of one
Setting = str | Mapping[str, Any]  # "KEY=VALUE", or {"optimizer.lr": 0.1}


@job
def train(
    cfg: Config, *settings: Setting, videos: Videos | None = None, labels: File | None = None, progress: Report = None
) -> Path:
    """Pre-train, finetune, probe or train from scratch, or continue a run; return the path of the last checkpoint.

    At the end `training.html` in the output has the curves, kNN beside the untrained network, and what to do next.

    Args:
        cfg: Config: a YAML file, the name of one that is installed, as small_cpu, or its content as a dictionary.
        settings: Settings that override the config's, `"KEY=VALUE"` or `{"optimizer.lr": 0.1}`; the last one counts.
        videos: What to train on instead of `data.train`: an input of `read_input`, or a list that was read.
        labels: Labels by which the network is evaluated, as of `test`, in place of `evaluate.labels`.
        progress: Called with (steps done, all steps, title); False: no progress; None: a bar.

    Raises:
        VidsslError: The config, the videos or the training failed; the message has the remedy.
        KeyboardInterrupt: Ctrl-C or a notebook's stop button; the run is saved first. A second one ends the process.
        Interrupted: SIGTERM or SIGUSR1; the run is saved.
    """
    tree, source = read_config(cfg, _with_labels(settings, labels))
    new = set_list(tree, source, listed_videos(videos))
    if names_split(tree):
        raise ConfigError(f"{source} is for several splits: its texts hold {{split}}; name them: splits=[1, 2, 3]")
    run, start = bind_config(tree, source)
    claim_output(run)
    _write_for_run(new)
    checkpoint = start(run)
    if isinstance(run, Run):
        report_training(run, checkpoint)
    return weights_file(checkpoint)  # itself, if it is a link to the newest one


def _with_labels(settings: tuple[Setting, ...], labels: File | None) -> tuple[Setting, ...]:
    return settings if labels is None else (*settings, {"evaluate.labels": str(labels)})


def bind_config(tree: Tree, source: str) -> tuple[RunSettings, Callable[[Any], Path]]:
    """Bind a config; return the run and the function that trains it: of an app, if the config is not of a method."""
    kind = run_kind(tree, source)
    if kind == "method":
        return bind_run(tree, source), train_run
    app = load_app("run", kind)
    return app.bind_run(tree, source), app.train


@job
def train_splits(
    cfg: Config,
    *settings: Setting,
    splits: Sequence[int],
    videos: Videos | None = None,
    labels: File | None = None,
    progress: Report = None,
) -> JobResults:
    """Train and test a config for each split, whose number replaces `{split}`; finished splits are not repeated.

    Args:
        cfg: As of `train`; `evaluate.query` is the list to test on.
        settings: As of `train`.
        splits: Numbers of the splits.
        videos: As of `train`.
        labels: As of `train`.
        progress: As of `train`.

    Returns:
        All numbers, their mean and spread; `results.json` in the output has them.
    """
    settings = _with_labels(settings, labels)
    tree, source = read_config(cfg, settings)
    listed = listed_videos(videos)
    new = set_list(tree, source, listed)
    runs = {}
    for split in splits:
        of_split, _ = read_config(cfg, fill_split([*settings], split))
        set_list(of_split, source, listed)
        runs[split] = bind_split(tree, of_split, split, source)
    first = runs[splits[0]]
    if first.evaluate.query is None:
        raise ConfigError(f"{source}: splits test each network: set evaluate.query to the list")
    out = Path(first.output).parent
    claim_results(out, "splits", {}, [None if isinstance(cfg, Mapping) else Path(source)])
    _write_for_run(new)
    stop = StopRequest("finished splits are saved, the same command goes on")
    with distributed.joined(choose_device(first.device)), stop.listening() as request:
        for run in runs.values():  # errors in any list are raised before the first split is trained
            train_list = training_list(run)
            query = Monitor(run, train_list).query  # warns of an overlap
            if run.objective[0].classifies:
                check_disjoint(train_list, query, "the classifier")

        def measure(split: int, folder: Path | None) -> Results:
            distributed.together(request.check)  # training listens to signals itself
            return _test(runs[split], train_run(runs[split]), folder, request.check)

        results = JobResults(over_splits(splits, out, measure))
    results.text, results.file = format_measured({"": results}), out / "results.json"
    return results


def _test(run: Run, checkpoint: Path, out: Path | None, check: Callable[[], None]) -> Results:
    # Settings are those of the run as it is now: the checkpoint of a finished run holds those of its training.
    fixed = {"short_side": run.evaluate.short_side or run.test_size, "allow_missing": False}
    options: Any = {  # None: as left out
        "test": evaluation_clips(run).model_copy(update=fixed),
        "device": run.device,
        "allow_external": run.data.allow_external,
        "trust": run.checkpoint.trust,
        "root": run.data.root,
        "labels": run.evaluate.labels,
    }
    chosen = run.evaluate.protocols
    protocols = None if chosen is None else [protocol.model_dump(mode="json") for protocol in chosen]
    query, gallery = Path(str(run.evaluate.query)), run.evaluate.gallery
    train_list = None if gallery is None else Path(gallery)
    # The folder is that of the run, which has claimed it.
    return load_measured(Protocols(protocols, check), checkpoint, query, options, train_list).results(out)


def read_config(config: Config, settings: Sequence[Setting]) -> tuple[Tree, str]:
    """Return a config with settings as plain data, and its name for errors."""
    if isinstance(config, Mapping):
        tree, source = copy.deepcopy(dict(config)), "the config"
    else:
        path = find_config(str(config))
        tree, source = read(path), str(path)
    for setting in settings:
        if isinstance(setting, str):
            override(tree, setting)
        elif not isinstance(setting, Mapping):
            raise ConfigError(f"a setting is 'KEY=VALUE' or {{'KEY': VALUE}}, each an argument; got {setting!r:.100}")
        else:
            for key, value in setting.items():
                set_value(tree, key, str(value) if isinstance(value, Path) else value, f"{key}={value}")
    return tree, source


def listed_videos(videos: Videos | None) -> Path | VideoList | None:
    """Return the file of a list, which a config can name, or the videos of another input."""
    is_csv = isinstance(videos, str | Path) and Path(videos).suffix.lower() == ".csv"
    if videos is None or isinstance(videos, VideoList):
        return videos
    return Path(str(videos)) if is_csv else read_input(videos)


class NewList(NamedTuple):
    """Videos without a list, and the file that they are to be written to."""

    file: Path
    videos: VideoList

    def write(self) -> None:
        """Write the list."""
        folder, videos = self.file.parent, self.videos
        check_file_names(folder.parent, [f"{folder.name}/{self.file.name}"])
        rows = map(videos.records.row, range(len(videos)))
        write_lists(folder, videos.root, {self.file.stem: rows}, videos.classes, [videos.path])


def set_list(tree: Tree, source: str, listed: Path | VideoList | None, folder: Path | None = None) -> NewList | None:
    """Let a config train on a list; return the one that is to be written, of videos without one.

    A run reads its videos from a file, as its processes, the same command later and others need them: it is train.csv
    of `folder`, else of OUTPUT/videos.
    """
    if listed is None:
        return None
    data = tree.get("data")
    for key in ("moving_digits", "root"):
        if isinstance(data, dict) and data.get(key) is not None:
            data[key] = None
    if not isinstance(listed, VideoList):
        set_value(tree, "data.train", str(listed), source)
        return None
    new = NewList((folder or Path(str(tree.get("output"))) / "videos") / "train.csv", listed)
    set_value(tree, "data.train", str(new.file), source)
    if listed.path.suffix.lower() != ".csv":  # a folder, of which nobody has said that all files are good
        tree["data"].setdefault("max_broken", 1.0)
    return new


def _write_for_run(new: NewList | None) -> None:
    """Write the list of a run, whose folder is claimed; never over that of a run that has begun."""
    if new is None or not distributed.is_main():  # the other processes wait for the main one before they read it
        return
    output = new.file.parents[1]
    with only_run_in(output):
        begun = any(chain(output.glob("checkpoints/*.pt"), output.glob("split*/checkpoints/*.pt")))
        if begun and new.file.exists() and read_list(new.file).fingerprint != new.videos.fingerprint:
            remedy = f"choose another output, or continue with the list of then, data.train={new.file}"
            raise ConfigError(f"{new.videos.path} has other videos than when the run in {output} began: {remedy}")
        new.write()
