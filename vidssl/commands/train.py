"""The command `train`, for one run or for several splits with their tests."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from vidssl import distributed
from vidssl.commands.arguments import print_results
from vidssl.commands.load import LoadOptions
from vidssl.commands.results import claim_results
from vidssl.commands.splits import over_splits
from vidssl.commands.test import measure_network, summary
from vidssl.config import Tree, read
from vidssl.data.read_input import read_input
from vidssl.data.video_list import VideoList
from vidssl.data.write_lists import write_lists
from vidssl.distributed import choose_device
from vidssl.engine import train as engine
from vidssl.engine.clip_training import training_list
from vidssl.engine.config_schema import Run, load_run, require_videos
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.periodic_evaluation import Monitor
from vidssl.errors import ConfigError
from vidssl.evaluation.overlap import check_disjoint
from vidssl.evaluation.result_files import Results
from vidssl.output_folder import check_names


def run(parsed: argparse.Namespace) -> None:
    """Train, and with `--splits` test."""
    parsed.overrides = with_input(parsed.cfg, parsed.overrides)
    if parsed.splits is None:
        last = engine.train(load_run(parsed.cfg, parsed.overrides))
        print_results(parsed, {"checkpoint": last}, last)
    else:
        results, path = train_splits(parsed.cfg, parsed.overrides, parsed.splits)
        print_results(parsed, results, summary(results), path)


def with_input(cfg: Path, words: Sequence[str], folder: Path | None = None) -> list[str]:
    """Replace an input among the settings, a word without `=`, by the settings that train on it.

    Its list is written to `train.csv` in a folder, by default `OUTPUT/videos`, unless it is a list already.
    """
    inputs, settings = [word for word in words if "=" not in word], [word for word in words if "=" in word]
    if not inputs:
        return settings
    if len(inputs) > 1:
        raise ConfigError(f"one input is possible, got {' and '.join(inputs)}: quote a pattern, or set data.train")
    path, tree = Path(inputs[0]), read(cfg, settings)
    found = settings_of_input(tree, path if path.suffix.lower() == ".csv" else read_input(path), folder)
    return [*settings, *(f"{key}={json.dumps(value)}" for key, value in found.items())]


def settings_of_input(tree: Tree, videos: Path | VideoList, folder: Path | None = None) -> Tree:
    """Return the settings that let a config, a tree of plain data, train on a list; a `VideoList` is written first.

    It goes to `folder`, else to `OUTPUT/videos`.
    """
    if isinstance(videos, VideoList):
        folder = folder or Path(str(tree.get("output"))) / "videos"
        check_names(folder.parent, [f"{folder.name}/train.csv"])
        rows = map(videos.records.row, range(len(videos.records)))
        write_lists(folder, videos.root, {"train": rows}, videos.classes, [videos.path])
        videos = folder / "train.csv"
    data = tree.get("data") or {}
    others = {f"data.{key}": None for key in ("moving_digits", "root") if data.get(key) is not None}
    return {**others, "data.train": str(videos)}


def train_splits(cfg: Path, overrides: Sequence[str], splits: Sequence[int]) -> tuple[Results, Path]:
    """Train and test a config for each split, whose number replaces `{split}`; finished splits are not repeated.

    Returns the results, as of `over_splits`, and the file that they are in.
    """
    runs = {split: require_videos(load_run(cfg, overrides, split), str(cfg)) for split in splits}
    first = runs[splits[0]]
    if first.evaluate.query is None:
        raise ConfigError(f"{cfg}: --splits tests each network: set evaluate.query to the list")
    out = Path(first.output).parent
    with distributed.joined(choose_device(first.device)), StopRequest().listening() as request:
        for run in runs.values():  # errors in any list are raised before the first split is trained
            videos = training_list(run)
            query = Monitor(run, videos).query  # warns of an overlap
            if run.objective[0].classifies:
                check_disjoint(videos, query, "the classifier")
        claim_results(out, "splits", {}, [cfg])

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
