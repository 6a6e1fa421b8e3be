"""The description of an exported network, and its model card: facts from the config and from results.json only."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import vidssl
from vidssl.commands.results import Results, format_clips
from vidssl.config import Tree
from vidssl.engine.config_schema import Run
from vidssl.errors import ConfigError
from vidssl.evaluation.features import TestClips
from vidssl.read_files import read_json

_log = logging.getLogger(__name__)
_FORMAT = "vidssl-network-1"


def describe_network(run: Run, test: TestClips, num_features: int, checkpoint: Tree) -> Tree:
    """State all that is needed to use a network, as plain data: the content of `config.json`.

    Lists are named by file and folder. `checkpoint` has its file, sha256 and step.
    """
    mean, std = (list(values) if len(values) == 3 else [*values] * 3 for values in (test.mean, test.std))
    return {
        "format": _FORMAT,
        "backbone": {"name": run.backbone.name, **run.backbone.model_dump(mode="json")},
        "num_features": num_features,
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
            **test.model_dump(mode="json", include={"clips", "crops", "layer", "grid", "grid_frames", "precision"}),
            "pooling": "mean of the features of all clips and crops",
        },
        "training": {
            "method": run.method.name,
            "lists": [Path(*Path(each.list).parts[-2:]).as_posix() for each in run.data.lists],
            "steps": checkpoint["step"],
            "batch_size": run.batch_size,
        },
        "checkpoint": checkpoint,
        "versions": {"vidssl": vidssl.__version__, "torch": str(torch.__version__)},
    }


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
            same = results["checkpoint"]["sha256"] == sha256
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; give the results.json of a test") from None
        except (ValueError, LookupError, TypeError):
            same = False
        if same:
            found.append((path.relative_to(folder).as_posix() if in_run and not given else path.name, results))
        elif given:
            raise ConfigError(f"{path} holds no results of this checkpoint (sha256 {sha256[:12]}…): leave it out")
        else:
            _log.info("%s holds results of another checkpoint: not in the model card", path)
    return found


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
        f"{training['batch_size']} videos",
        "checkpoint": f"{description['checkpoint']['file']}, sha256 {description['checkpoint']['sha256']}",
        "versions": ", ".join(f"{key} {value}" for key, value in description["versions"].items()),
    }
    lines = ["---", "library_name: vidssl", "tags:", "- video", "- self-supervised-learning", "---", f"# {name}", ""]
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
        numbers = [f"{key} {value:.4f}" for key, value in content.items() if isinstance(value, float)]
        if numbers:
            test = content["protocol"]
            # Of a test, or of a retrieval.
            tested = content.get("list") or content.get("query")
            compared = content.get("train_list") or content.get("gallery")
            count = content.get("num_videos", content.get("num_queries"))
            clips = f"{test['clips']} x {test['crops']}, {test['size']}²"
            cells = (_short(tested), count, _short(compared), clips, ", ".join(numbers), path)
            rows.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    if not rows:
        return []
    head = [
        "| list | videos | gallery or training list | clips x crops | numbers | file |",
        "|---|---|---|---|---|---|",
    ]
    return ["## Results", "", "Numbers as in the results.json of vidssl.", "", *head, *rows, ""]


_GALLERY = "train_list", "gallery"


def _short(path: Any) -> str:
    return "" if path is None else Path(*Path(str(path)).parts[-2:]).as_posix()


def _cell(value: Any) -> str:
    """Escape the text of a cell."""
    return " ".join(str("" if value is None else value).replace("|", "\\|").replace("<", "&lt;").split())
