"""Write a trained backbone for other programs."""

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import torch
from torch import nn

from vidssl.api.job_arguments import File, Model, job
from vidssl.api.measure_networks import JobResults
from vidssl.api.measured_network import load_network, run_of_module
from vidssl.api.model_card import describe_network, model_card, of_the_same_features, results_of
from vidssl.atomic import creating_folder, file_hash, write_json, write_whole
from vidssl.config import build
from vidssl.engine.config_schema import Run, bind_stored
from vidssl.engine.evaluation_settings import evaluation_clips
from vidssl.errors import ConfigError
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.eval_mode import eval_mode, usual_torch
from vidssl.models.export_graph import save_onnx, save_pt2
from vidssl.models.weights import (
    EXPORTED,
    FORMAT,
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
        checkpoint: Checkpoint of vidssl, folder of a run, file of save_backbone, or a backbone, as in `save_backbone`.
        to: Folder is safetensors, config.json and a model card, as on the Hugging Face Hub; detectron2 a 2D ResNet.
        out: File to write, named *.safetensors, *.onnx, *.pt2, *.pkl, or folder.
        results: Files results.json of this checkpoint for the model card (default: those below the folder of its run).
        trust: Load pickled objects; such a file can run any code.
        cfg: Config that states the clips of a backbone given as a module, as in `save_backbone`.
        imports: Modules with your own backbones.

    Returns:
        What belongs to the file: its description, or the settings of detectron2.
    """
    if isinstance(checkpoint, nn.Module):
        with TemporaryDirectory() as saved:
            file = Path(saved) / f"{type(checkpoint).__name__}.safetensors"
            save_backbone(checkpoint, file, cfg=cfg)
            return export(file, to=to, out=out, results=results, imports=imports)
    name, path = str(checkpoint), Path(out)
    if results and to != "folder":
        raise ConfigError('results are for the model card, which only to="folder" writes')
    if to in PROJECTS["export format"]:
        described: JobResults = load_project("export format", to).export(name, path, trust=trust)
        return described
    if to != "folder" and path.suffix != _SUFFIXES[to]:
        raise ConfigError(f'cannot write {path}: to="{to}" writes a file named *{_SUFFIXES[to]}')
    if to == "folder" and os.path.lexists(path):
        raise ConfigError(f"{path} exists already: choose another folder")
    file = weights_file(name)
    if to == "folder":
        check_writable(path.parent)
    else:
        check_file(path, [file])
    content = read_checkpoint(file, trust)
    run = bind_stored(content["config"], f"config of {name}", trust)
    test = evaluation_clips(run)
    network = test.encoder(load_network(run, content, name)).eval()
    # A file that was exported before describes the checkpoint that it was made of.
    origin = content.get("network", {}).get("checkpoint")
    origin = origin or {"file": file.resolve().name, "sha256": file_hash(file), "step": content["step"]}
    description = describe_network(run, test, network, origin)
    worst = None  # the largest difference of the features of a graph to torch's
    if to == "folder":
        given = None if results is None else [Path(each) for each in results]
        tested = results_of(origin["sha256"], file.absolute(), given)
        tested = of_the_same_features(tested, description, given=given is not None)
        with creating_folder(path) as folder:
            save_checkpoint_backbone(file, folder / EXPORTED, trust=trust, network=description)
            write_json(folder / "config.json", description)
            write_whole(folder / "README.md", model_card(path.name, description, tested).encode())
    else:
        with writing_file(path, [file]):
            if to == "safetensors":
                save_checkpoint_backbone(file, path, trust=trust, network=description)
            else:
                save = save_onnx if to == "onnx" else save_pt2
                worst = save(network, path, test.clip.frames, test.size, description)
    found = JobResults({**description, "largest_difference": worst})
    shape = " x ".join(map(str, description["input"]["shape"]))
    found.text = f"{path}: {description['backbone']['name']}, {shape} to {description['num_features']} features"
    if worst is not None:
        found.text += f"; largest difference to torch {worst:.1g}"
    return found


@usual_torch()
def save_backbone(
    model: Model, path: File, *, cfg: str | Path | None = None, half: bool = False, trust: bool = False
) -> None:
    """Write the backbone of a checkpoint, or one that was trained in a loop of your own, to a safetensors file.

    `load_backbone`, `init`, `vidssl.extract` and `--checkpoint` take the file. A module encodes a clip first: that
    shows whether it is the backbone of its config.

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
    stated: Backbone = build(BACKBONES, run.backbone)
    load_state(stated, weights, f"this {type(model).__name__}")
    _check_same_features(model, stated, run)
    named = {f"backbone.{name}": weight for name, weight in weights.items()}
    content = {"format": FORMAT, "config": run.model_dump(mode="json"), "step": 0, "method": named}
    write_backbone(content, f"this {type(model).__name__}", path, half=half)


@torch.no_grad()
def _check_same_features(model: nn.Module, stated: Backbone, run: Run) -> None:
    """Raise a ConfigError if a model gives other features than the backbone of the config with the same weights."""
    frames, size = run.data.sampler.frames, run.test_size
    weight = next(model.parameters(), torch.zeros(()))
    stated.to(weight)
    clips = torch.randn(1, 3, frames, size, size, generator=torch.Generator().manual_seed(0)).to(weight)
    with eval_mode(model), eval_mode(stated):
        ours, theirs = (network(clips).float() for network in (model, stated))
    if not torch.allclose(ours, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max())):
        raise ConfigError(
            f"this {type(model).__name__} gives other features than the backbone {run.backbone.name} of the config "
            "with its weights: give cfg, the config that it was built from, with its settings such as frame_differences"
        )
