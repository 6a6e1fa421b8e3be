"""The description of an exported network, and its model card: facts from the config and from results.json only."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vidssl.api.format_results import format_clips, format_features
from vidssl.config import Tree
from vidssl.engine.config_schema import Run
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips
from vidssl.evaluation.result_files import Results, weights_of
from vidssl.models.backbones import Backbone
from vidssl.models.initial_weights import InitialWeights
from vidssl.models.two_streams import TwoStreams
from vidssl.untrusted_files import read_json
from vidssl.version import __version__

_log = logging.getLogger(__name__)
_FORMAT = "vidssl-network-1"
_TEST = {"clips", "crops", "stream", "layer", "grid", "grid_frames", "precision"}


def describe_network(run: Run, test: TestClips, network: Backbone, checkpoint: Tree) -> Tree:
    """State all that is needed to use a network, as plain data: the content of `config.json`.

    Lists are named by file and folder. `checkpoint` has its file, sha256 and step.
    """
    mean, std = (list(values) if len(values) == 3 else [*values] * 3 for values in (test.mean, test.std))
    streams = {name: one.dim for name, one in network.streams()} if isinstance(network, TwoStreams) else {}
    scaled = ", then the part of each stream scaled to length 1" if streams else ""
    return {
        "format": _FORMAT,
        "backbone": {"name": run.backbone.name, **run.backbone.model_dump(mode="json")},
        "num_features": network.dim,
        **({"streams": streams} if streams else {}),
        "input": {
            "shape": ["batch", 3, test.clip.frames, test.size, test.size],
            "colors": "RGB",
            "normalization": "(pixel / 255 - mean) / std",
            "mean": mean,
            "std": std,
        },
        "clip": test.clip.model_dump(mode="json"),
        "test": {
            "size": test.size,
            "short_side": test.short_side or test.size,
            **test.model_dump(mode="json", include=_TEST),
            "pooling": f"mean of the features of all clips and crops{scaled}",
        },
        "training": {
            "method": run.method_in_words,
            "lists": [Path(*Path(each.list).parts[-2:]).as_posix() for each in run.data.lists],
            "steps": checkpoint["step"],
            "batch_size": run.batch_size,
            **({} if run.init is None else {"init": _named(run.init)}),
        },
        "checkpoint": checkpoint,
        "versions": {"vidssl": __version__, "torch": str(torch.__version__)},
    }


def _named(init: InitialWeights) -> str:
    """Name what a run started from: a file by name and folder, or the name of a library."""
    file = Path(*Path(init.file).parts[-2:]).as_posix()
    changes = ", ".join(name for name in ("partial", "inflate") if getattr(init, name))
    return f"{file} ({changes})" if changes else file


def results_of(sha256: str, checkpoint: Path, paths: Sequence[Path] | None) -> list[tuple[str, Results]]:
    """Read the results of a checkpoint: path and content of each results.json.

    With `paths` None those below the folder of its run are read, and those of other checkpoints are left out; of
    `paths` they are a ConfigError.
    """
    given, in_run = paths is not None, checkpoint.parent.name == "checkpoints"
    folder = checkpoint.parents[1]
    if paths is None:
        paths = sorted(folder.rglob("results.json")) if in_run else []
    found = []
    for path in paths:
        try:
            results = read_json(path)
            tested = weights_of(results)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; give the results.json of a test") from None
        except ValueError:
            results, tested = {}, None
        if tested == sha256 and not {"list", "query"}.isdisjoint(results):
            found.append((path.relative_to(folder).as_posix() if in_run and not given else path.name, results))
        elif given:
            raise ConfigError(f"{path} holds no results of this checkpoint (sha256 {sha256[:12]}…): leave it out")
        elif tested not in (None, sha256):  # else a map, which holds no test
            _log.info("%s holds results of another checkpoint: not in the model card", path)
    return found


def of_the_same_features(
    results: Sequence[tuple[str, Results]], description: Tree, given: bool
) -> list[tuple[str, Results]]:
    """Leave out results of other features than those of the description: of another layer or grid.

    Results that were `given` are a ConfigError instead.
    """
    exported, kept = format_features(description["test"]), []
    for path, content in results:
        found = format_features(content.get("protocol", {}))
        if found == exported:
            kept.append((path, content))
        elif given:
            raise ConfigError(f"{path} holds results of the {found}, and the {exported} are exported: leave it out")
        else:
            _log.info("%s holds results of the %s: not in the model card, which is of the %s", path, found, exported)
    return kept


def model_card(name: str, description: Tree, results: Sequence[tuple[str, Results]]) -> str:
    """Write the model card, Markdown with the header of the Hugging Face Hub."""
    of, test, training = description["input"], description["test"], description["training"]
    clip = {key: value for key, value in description["clip"].items() if value is not None}
    layer = "" if test["layer"] is None else f", layer {test['layer']}"
    backbone = dict(description["backbone"])
    rows = {
        "backbone": f"{backbone.pop('name')}{_settings(backbone)}",
        "features": f"{description['num_features']}{layer}; {test['pooling']}",
        "input": f"float {' x '.join(map(str, of['shape']))}, {of['colors']}, {of['normalization']}",
        "mean, std": f"{of['mean']}, {of['std']}",
        "clip": ", ".join(f"{key} {value}" for key, value in clip.items()),
        "test": f"{format_clips(test)}, short side {test['short_side']}",
        "training": f"{training['method']} on {', '.join(training['lists'])}: {training['steps']} steps of "
        f"{training['batch_size']} videos" + (f", from {training['init']}" if "init" in training else ""),
        "checkpoint": f"{description['checkpoint']['file']}, sha256 {description['checkpoint']['sha256']}",
        "versions": ", ".join(f"{key} {value}" for key, value in description["versions"].items()),
    }
    lines = ["---", "library_name: vidssl", "tags:", "- video", "- self-supervised-learning", "---"]
    lines += [f"# {name}: {description['backbone']['name']}, {training['method']}", ""]
    lines += ["| | |", "|---|---|", *(f"| {key} | {_cell(value)} |" for key, value in rows.items()), ""]
    lines += [
        "```python",
        "import vidssl",
        "",
        f"backbone = vidssl.load_backbone({json.dumps(name)})  # the path of this folder",
    ]
    lines += ['features = vidssl.extract(backbone, "VIDEOS")', "```", "", "`config.json` holds these settings.", ""]
    return "\n".join(lines + _results_table(results))


def _settings(settings: Tree) -> str:
    return f" ({', '.join(f'{key} {value}' for key, value in settings.items())})" if settings else ""


def _results_table(results: Sequence[tuple[str, Results]]) -> list[str]:
    rows = []
    for path, content in results:
        of = " of centred features" if _centred(content) else ""
        numbers = [
            f"{key}{of * key.startswith('R@')} {value:.4f}"
            for key, value in content.items()
            if isinstance(value, float)
        ]
        if numbers:
            # Of a test, or of a retrieval.
            tested = content.get("list") or content.get("query")
            compared = content.get("train_list") or content.get("gallery")
            count = content.get("num_videos", content.get("num_queries"))
            cells = (_short(tested), count, _short(compared), _how(content), ", ".join(numbers), path)
            rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    if not rows:
        return []
    head = ["| list | videos | gallery or training list | features | numbers | file |", "|---|---|---|---|---|---|"]
    return ["## Results", "", "Numbers as in the results.json of vidssl.", "", *head, *rows, ""]


def _how(content: Results) -> str:
    """State what the numbers of results are of: layer, clips, precision, and what was left out."""
    test = content["protocol"]
    parts = [format_clips(test), test["precision"]]
    if windows := content.get("windows"):
        parts.append(f"windows of {windows['window']:g} s")
    parts += ["duplicates ignored"] * bool(content.get("drop_duplicates"))
    parts += ["one per video"] * bool(content.get("one_per_video"))
    for name in ("missing", "missing_queries", "missing_train", "missing_gallery"):
        if content.get(name):
            parts.append(f"{len(content[name])} {name.replace('_', ' ')}")
    settings = content.get("config", {}).get("data", {})
    if Path(str(content.get("list") or content.get("query"))).resolve() in _training_lists(settings):
        parts.append("tested on the training list")
    return ", ".join(parts)


def _training_lists(data: Tree) -> list[Path]:
    """Return the lists that a run was trained on, of its settings `data`."""
    given = data.get("train")
    several = given if isinstance(given, list) else [given]
    return [Path(str(each["list"] if isinstance(each, dict) else each)).resolve() for each in several]


def _centred(content: Results) -> bool:
    """Whether the R@k of results are those of centred features."""
    protocols = content.get("protocols") or ()
    return bool(content.get("centered") or any(each.get("center") for each in protocols))


def _short(path: Any) -> str:
    return "" if path is None else Path(*Path(str(path)).parts[-2:]).as_posix()


def _cell(value: Any) -> str:
    """Escape the text of a cell."""
    return " ".join(str("" if value is None else value).replace("|", "\\|").replace("<", "&lt;").split())
