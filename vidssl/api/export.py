"""Write a trained backbone for other programs."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from torch import nn

from vidssl.api.job_arguments import File, Model, job
from vidssl.api.measure_networks import JobResults
from vidssl.api.measured_network import run_of_module
from vidssl.api.model_card import describe_network, model_card, of_the_same_features, results_of
from vidssl.atomic import creating_folder, file_hash, write_json, write_whole
from vidssl.config import Tree, build
from vidssl.engine.config_schema import bind_stored
from vidssl.engine.evaluation_clips import evaluation_clips
from vidssl.errors import ConfigError
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.export_graph import save_onnx, save_pt2
from vidssl.models.weights import (
    EXPORTED,
    FORMAT,
    backbone_weights,
    load_state,
    read_checkpoint,
    save_checkpoint_backbone,
    weights_file,
    write_backbone,
)
from vidssl.output_folder import check_file, check_writable, writing_file
from vidssl.registry import PROJECTS, load_project

_SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "pt2": ".pt2"}


@job
def export(
    checkpoint: Model,
    *,
    to: Literal["safetensors", "onnx", "pt2", "folder", "detectron2"],
    out: File,
    results: Sequence[File] | None = None,
    cfg: str | Path | None = None,
    trust: bool = False,
    imports: Sequence[str] = (),
) -> JobResults:
    """Write the backbone of a checkpoint for other programs: safetensors, ONNX, torch.export, detectron2.

    The graphs of `onnx` and `pt2` compute the features that the run evaluates, also those of a layer; the largest
    difference of their features to torch's is returned.

    Args:
        checkpoint: Checkpoint of vidssl, folder of a run, file of save_backbone, or a backbone, as of `save_backbone`.
        to: Folder is safetensors, config.json and a model card, as on the Hugging Face Hub; detectron2 a 2D ResNet.
        out: File to write, named *.safetensors, *.onnx, *.pt2, *.pkl, or folder.
        results: Files results.json of this checkpoint for the model card (default: those below the folder of its run).
        trust: Load pickled objects; such a file can run any code.
        cfg: Config of the clips of a backbone that is no file, as of `save_backbone`.
        imports: Modules with your own backbones.

    Returns:
        What belongs to the file: its description, or the settings of detectron2.
    """
    if isinstance(checkpoint, nn.Module):
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"{type(checkpoint).__name__}.safetensors"
            save_backbone(checkpoint, file, cfg=cfg)
            return export(file, to=to, out=out, results=results, imports=imports)
    name, path = str(checkpoint), Path(out)
    if results and to != "folder":
        raise ConfigError('results are for the model card, which only to="folder" writes')
    if to in PROJECTS["export format"]:
        described: JobResults = load_project("export format", to).export(name, path, trust=trust)
        return described
    files = None if results is None else [Path(file) for file in results]
    description, worst = export_network(name, path, to, files, trust=trust)
    found = JobResults({**description, "largest_difference": worst})
    shape = " x ".join(map(str, description["input"]["shape"]))
    found.text = f"{path}: {description['backbone']['name']}, {shape} to {description['num_features']} features"
    if worst is not None:
        found.text += f"; largest difference to torch {worst:.1g}"
    return found


def save_backbone(
    model: Model, path: File, *, cfg: str | Path | None = None, half: bool = False, trust: bool = False
) -> None:
    """Write the backbone of a checkpoint, or one that was trained in a loop of your own, to a safetensors file.

    `load_backbone`, `init`, `vidssl.extract` and `--checkpoint` take the file.

    Args:
        model: A checkpoint of vidssl, the folder of a run, or a backbone of `build_backbone` or `load_backbone`.
        path: The file to write.
        cfg: Config, a YAML file or the name of one that is installed, whose backbone this is and whose clips it was
            trained on. A backbone of `load_backbone` has one.
        half: Round the weights to float16.
        trust: Load a checkpoint with pickled objects; such a file can run any code.

    Raises:
        CheckpointError: The file is missing, damaged or not a checkpoint of vidssl, or a weight cannot be written.
        ConfigError: The backbone is another one than that of the config, or has none.
    """
    if not isinstance(model, nn.Module):
        save_checkpoint_backbone(model, path, half=half, trust=trust)
        return
    run = run_of_module(model, cfg)
    if run is None:
        raise ConfigError(f"this {type(model).__name__} does not state its clips: give cfg, a config with its backbone")
    weights = model.state_dict()
    load_state(build(BACKBONES, run.backbone), weights, f"this {type(model).__name__}")
    named = {f"backbone.{name}": weight for name, weight in weights.items()}
    content = {"format": FORMAT, "config": run.model_dump(mode="json"), "step": 0, "method": named}
    write_backbone(content, f"this {type(model).__name__}", path, half=half)


def export_network(
    checkpoint: str, out: Path, to: str, results: Sequence[Path] | None = None, *, trust: bool = False
) -> tuple[Tree, float | None]:
    """Write the backbone of a checkpoint, or of the last one of a run's folder, with a description.

    `to` is `safetensors` (a file for `load_backbone`), `onnx`, `pt2` (torch.export), or `folder`: the safetensors file,
    `config.json` and a model card, `README.md`, with the numbers of `results`, paths of results.json. None: all that
    lie below the folder of the checkpoint's run and are of this checkpoint. The graphs of `onnx` and `pt2` compute the
    features that the run evaluates, also those of a layer.

    Returns the description (`describe_network`) and, of a graph, the largest difference of its features to torch's.
    """
    if to != "folder" and out.suffix != _SUFFIXES[to]:
        raise ConfigError(f'cannot write {out}: to="{to}" writes a file named *{_SUFFIXES[to]}')
    if to == "folder" and os.path.lexists(out):
        raise ConfigError(f"{out} exists already: choose another folder")
    path = weights_file(checkpoint)
    if to == "folder":
        check_writable(out.parent)
    else:
        check_file(out, [path])
    content = read_checkpoint(path, trust)
    run = bind_stored(content["config"], f"config of {checkpoint}", trust)
    backbone, test = _backbone(run, content, checkpoint), evaluation_clips(run)
    network = test.encoder(backbone)
    # A file that was exported before describes the checkpoint that it was made of.
    origin = content.get("network", {}).get("checkpoint")
    origin = origin or {"file": path.resolve().name, "sha256": file_hash(path), "step": content["step"]}
    description = describe_network(run, test, network, origin)
    if to == "folder":
        found = results_of(origin["sha256"], path.absolute(), results)
        found = of_the_same_features(found, description, given=results is not None)
        with creating_folder(out) as folder:
            save_checkpoint_backbone(path, folder / EXPORTED, trust=trust, network=description)
            write_json(folder / "config.json", description)
            write_whole(folder / "README.md", model_card(out.name, description, found).encode())
        return description, None
    if to == "safetensors":
        with writing_file(out, [path]):
            save_checkpoint_backbone(path, out, trust=trust, network=description)
        return description, None
    save = save_onnx if to == "onnx" else save_pt2
    with writing_file(out, [path]):
        return description, save(network.eval(), out, test.clip.frames, test.size, description)


def _backbone(run: Any, content: Tree, source: str) -> Backbone:
    backbone: Backbone = build(BACKBONES, run.backbone)
    load_state(backbone, backbone_weights(content), source)
    return backbone.eval()
