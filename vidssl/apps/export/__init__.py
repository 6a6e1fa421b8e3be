"""Write a trained backbone for other programs."""

import io
import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.export import Dim

from vidssl.base.atomic import creating_folder, file_hash, write_json, write_whole
from vidssl.base.config import Tree, build
from vidssl.base.errors import ConfigError
from vidssl.base.output_folder import check_file, check_writable, kind_of, writing_file
from vidssl.base.registry import APPS, load_app
from vidssl.base.safe_parse import read_json
from vidssl.engine.periodic_evaluation import evaluation_clips
from vidssl.engine.run_config import Run, bind_stored
from vidssl.evaluation.features import LibraryClips, TestClips
from vidssl.evaluation.result_files import Results, weights_of
from vidssl.jobs.job import File, Model, NetworkOptions, job
from vidssl.jobs.load_network import load_network, load_parts, load_subject, run_of_module
from vidssl.jobs.measurement_runner import JobResults, format_clips, format_features
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.models.eval_mode import eval_mode, usual_torch
from vidssl.models.external import is_external
from vidssl.models.external.load_from_libraries import import_onnxruntime
from vidssl.models.floors import has_no_graph
from vidssl.models.joined_features import EncoderPart, parts_of
from vidssl.models.read_and_write_weights import (
    CHECKPOINT_FORMAT,
    EXPORTED,
    load_state,
    read_checkpoint,
    weights_file,
    write_backbone,
)
from vidssl.models.two_streams import TwoStreams
from vidssl.version import __version__

_log = logging.getLogger(__name__)
_FORMAT = "vidssl-network-1"
# What results may state of their videos: in words, or as a list of those that are missing.
_NOTED = (*("drop_duplicates", "one_per_video"), *("missing", "missing_queries", "missing_train", "missing_gallery"))
_TEST = {"clips", "crops", "stream", "layer", "grid", "grid_frames", "precision", "join"}


def describe_export(run: Run | None, test: TestClips, network: Backbone, checkpoint: Tree) -> Tree:
    """State all that is needed to use a network, as plain data: the content of `config.json`.

    Lists are named by file and folder. `checkpoint` has its file, sha256 and step, or what another library states.
    """
    streams = {name: stream.dim for name, stream in network.streams()} if isinstance(network, TwoStreams) else {}
    trained = {} if run is None else _describe_training(run, checkpoint["step"])
    return {
        "format": _FORMAT,
        **trained,
        "num_features": network.dim,
        **({"streams": streams} if streams else {}),
        **describe_clips_of_graph(test, network),
        "checkpoint": checkpoint,
        "versions": {"vidssl": __version__, "torch": str(torch.__version__)},
    }


# How a file of N frames becomes the input of a graph, and its output features, in words, with the numbers of `clip`,
# `test` and `reading`; T: frames of a clip.
_RULES = read_json(Path(__file__).with_name("reading.json"))


def describe_clips_of_graph(test: TestClips, network: nn.Module) -> Tree:
    """State how the input of a network is made from a file, and features from its output: numbers, and rules in words.

    `examples/embed_without_vidssl.py` follows them.
    """
    clip, mean, std = test.clip, *([*values] * (3 // len(values)) for values in (test.mean, test.std))
    rate, target = clip.sampling_rate, clip.target_fps
    parts, rules = network.dims if isinstance(network, TwoStreams) else [], _RULES
    if isinstance(test, LibraryClips) and test.crop:
        rules = {**rules, "resize": f"by {test.library}, whose rule is not stated here", "crop": "as resize"}
    if getattr(network, "_finish", None):  # of an encoder of another library
        rules = {**rules, "pooling": "the mean of the output for all clips and crops, then `finish` of the encoder"}
    pooled = "mean of the features of all clips and crops" if test.join == "mean" else "features of all clips in order"
    pooled += ", then the part of each stream scaled to length 1" * bool(parts)
    return {
        "input": {
            "shape": ["batch", 3, clip.frames, test.size, test.size],
            "colors": "RGB",
            "normalization": "(pixel / 255 - mean) / std",
            "mean": mean,
            "std": std,
        },
        "clip": clip.model_dump(mode="json"),
        "test": {
            "size": test.size,
            "short_side": test.short_side or test.size,
            **test.model_dump(mode="json", include=_TEST),
            "pooling": pooled,
        },
        "reading": {
            "seconds": clip.frames * rate / target if rate and target else clip.seconds,
            "span": (clip.frames - 1) * rate + 1 if rate and not target else None,
            "unit_parts": parts,
            **rules,
        },
    }


def _describe_training(run: Run, steps: int) -> Tree:
    training: Tree = {
        "method": run.method_in_words,
        "lists": [_short(part.list) for part in run.data.train_lists],
        "steps": steps,
        "batch_size": run.batch_size,
    }
    if run.init is not None:  # a file by name and folder, or the name of a library
        changes = ", ".join(name for name in ("partial", "inflate") if getattr(run.init, name))
        training["init"] = _short(run.init.file) + (f" ({changes})" if changes else "")
    return {"backbone": {"name": run.backbone.name, **run.backbone.model_dump(mode="json")}, "training": training}


def results_for_card(description: Tree, checkpoint: Path, paths: Sequence[Path] | None) -> list[tuple[str, Results]]:
    """Read the tests of the exported weights and features: path and content of each results.json.

    With `paths` None those below the folder of the run are read, and others are left out; of `paths` they are a
    ConfigError.
    """
    named, in_run = paths is not None, checkpoint.parent.name == "checkpoints"
    folder, sha256 = checkpoint.parents[1], description["checkpoint"]["sha256"]
    if paths is None:
        paths = sorted(folder.rglob("results.json")) if in_run else []
    exported, tests = format_features(description["test"]), []
    for path in paths:
        try:
            results = read_json(path)
            tested = weights_of(results)
            is_test = tested == sha256 and not {"list", "query"}.isdisjoint(results)
            features = format_features(dict(results["protocol"])) if is_test else ""
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; give the results.json of a test") from None
        except (ValueError, LookupError, TypeError):
            results, tested, is_test, features = {}, None, False, ""
        if is_test and features == exported:
            tests.append((path.relative_to(folder).as_posix() if in_run and not named else path.name, results))
            continue
        why = f"results of the {features}, not of the {exported}" if is_test else "no results of it"
        if named:
            raise ConfigError(f"{path} holds {why} (sha256 {sha256[:12]}…): leave it out")
        if is_test:
            _log.info("%s holds %s: not in the model card", path, why)
        elif tested not in (None, sha256):  # else a map, which holds no test
            _log.info("%s holds results of another checkpoint: not in the model card", path)
    return tests


def model_card(name: str, description: Tree, results: Sequence[tuple[str, Results]]) -> str:
    """Write the model card, Markdown with the header of the Hugging Face Hub."""
    title = f"# {name}: {description['backbone']['name']}, {description['training']['method']}"
    lines = ["---", "library_name: vidssl", "tags:", "- video", "- self-supervised-learning", "---", title, ""]
    lines += ["```python", "import vidssl", ""]
    lines += [f"backbone = vidssl.load_backbone({json.dumps(name)})  # the path of this folder"]
    lines += ['features = vidssl.extract(backbone, "VIDEOS")', "```", ""]
    lines += ["`config.json`:", "", "```json", json.dumps(description, indent=2), "```", ""]
    rows = [
        _results_row(path, content)
        for path, content in results
        if any(isinstance(value, float) for value in content.values())
    ]
    if rows:
        lines += ["## Results", "", "Numbers as in the results.json of vidssl.", ""]
        lines += [
            "| list | videos | gallery or training list | features | numbers | file |",
            "|---|---|---|---|---|---|",
        ]
    return "\n".join([*lines, *rows, ""])


def _results_row(path: str, content: Results) -> str:
    """State the numbers of a test, or of a retrieval, and what they are of."""
    test, training = content["protocol"], (content.get("overlap") or {}).get("training") or {}
    notes = [format_clips(test), test["precision"]]
    centred = content.get("centered") or any(protocol.get("center") for protocol in content.get("protocols") or ())
    notes += ["R@k of centred features"] * bool(centred)
    for name in _NOTED:
        if value := content.get(name):
            notes.append(f"{len(value)} {name}" if isinstance(value, list) else name)
    if windows := content.get("windows"):
        notes.append(f"windows of {windows['window']:g} s")
    if training.get("videos"):
        notes.append(f"{training['videos']} videos of the training list")
    numbers = [f"{key} {value:.4f}" for key, value in content.items() if isinstance(value, float)]
    tested = _short(content.get("list") or content.get("query"))
    compared = _short(content.get("train_list") or content.get("gallery"))
    count = content.get("num_videos", content.get("num_queries", ""))
    cells = (tested, count, compared, ", ".join(notes).replace("_", " "), ", ".join(numbers), path)
    return f"| {' | '.join(str(cell).replace('|', '&#124;').replace('<', '&lt;') for cell in cells)} |"


def _short(path: Any) -> str:
    return "" if path is None else Path(*Path(str(path)).parts[-2:]).as_posix()


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
        checkpoint: Checkpoint of vidssl, folder of a run, file of save_backbone, or a backbone, as in `save_backbone`;
            a folder of predictions by one network, whose graph has the classifier too; of a sum `A+B` the graphs of its
            networks are written to a folder, with sum.json, which joins them.
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
            weights = Path(saved) / f"{type(checkpoint).__name__}.safetensors"
            save_backbone(checkpoint, weights, cfg=cfg)
            return export(weights, to=to, out=out, results=results, imports=imports)
    name, path = str(checkpoint), Path(out)
    if results and to != "folder":
        raise ConfigError('results are for the model card, which only to="folder" writes')
    if to in APPS["export format"]:
        return cast(JobResults, load_app("export format", to).export(name, path, trust=trust))
    if (kind := kind_of(Path(name))) in APPS["network"]:
        return _export_network_of(str(kind), Path(name), to, path, trust)
    parts = parts_of(name)
    file = None if parts or is_external(name) else weights_file(name)
    if file is None and to not in ("onnx", "pt2"):
        raise ConfigError(f'{name} is not one network of vidssl: to="onnx" or to="pt2" writes its networks as graphs')
    if to == "folder" or parts:
        if os.path.lexists(path):
            raise ConfigError(f"{path} exists already: choose another folder")
        check_writable(path.parent)
    elif path.suffix != _SUFFIXES[to]:
        raise ConfigError(f'cannot write {path}: to="{to}" writes a file named *{_SUFFIXES[to]}')
    else:
        check_file(path, [] if file is None else [file])
    options = NetworkOptions(trust=trust, device="cpu")
    if parts:
        return _export_sum(name, parts, to, path, options)
    if file is None:
        subject = load_subject(name, options)  # of another library, or `vidssl-frames`
        if has_no_graph(subject.encoder):
            raise ConfigError(f"{name} has no graph, OpenCV computes it: export a network")
        description = describe_export(None, subject.test, subject.encoder, subject.origin)
        return _write_graph(subject.encoder.eval(), subject.test, path, description)
    content = read_checkpoint(file, trust)
    run = bind_stored(content["config"], f"config of {name}", trust)
    test = evaluation_clips(run)
    network = test.encoder(load_network(run, content, name)).eval()
    # A file that was exported before describes the checkpoint that it was made of.
    origin = content.get("network", {}).get("checkpoint")
    origin = origin or {"file": file.resolve().name, "sha256": file_hash(file), "step": content["step"]}
    description = describe_export(run, test, network, origin)
    if to in ("onnx", "pt2"):
        return _write_graph(network, test, path, description, [file])
    if to == "folder":
        paths = None if results is None else [*map(Path, results)]
        tested = results_for_card(description, file.absolute(), paths)
        with creating_folder(path) as folder:
            write_backbone(content, str(file), folder / EXPORTED, network=description)
            write_json(folder / "config.json", description)
            write_whole(folder / "README.md", model_card(path.name, description, tested).encode())
    else:
        with writing_file(path, [file]):
            write_backbone(content, str(file), path, network=description)
    return _written(path, description)


def _write_graph(
    network: nn.Module, test: TestClips, path: Path, description: Tree, inputs: Sequence[Path] = ()
) -> JobResults:
    with writing_file(path, inputs):
        worst = save_graph(network, path, test.clip.frames, test.size, description)
    return _written(path, description, worst)


def _written(path: Path, description: Tree, worst: float | None = None) -> JobResults:
    """Say what was written; `worst` is the largest difference of the features of a graph to torch's."""
    written = JobResults({**description, "largest_difference": worst})
    name = f"{description['backbone']['name']}, " if "backbone" in description else ""
    output = description.get("output") or f"{description['num_features']} features"
    written.text = f"{path}: {name}{' x '.join(map(str, description['input']['shape']))} to {output}"
    written.text += "" if worst is None else f"; largest difference to torch {worst:.1g}"
    return written


def _export_network_of(kind: str, folder: Path, to: str, path: Path, trust: bool) -> JobResults:
    """Write the network of another command's folder as a graph."""
    if to not in ("onnx", "pt2") or path.suffix != _SUFFIXES[to]:
        raise ConfigError(f'to="{to}", {path}: {kind} are written with to="onnx" (*.onnx) or to="pt2" (*.pt2)')
    check_file(path)
    network, test, description = load_app("network", kind).network_of(folder, trust)
    clips = describe_clips_of_graph(test, network)
    description |= clips | {"input": {**clips["input"], **description["input"]}}
    return _write_graph(network, test, path, description)


def _export_sum(name: str, parts: Sequence[EncoderPart], to: str, path: Path, options: NetworkOptions) -> JobResults:
    """Write the networks of a sum that have a graph to a folder, and `sum.json`, which says how they are joined."""
    described = []
    with creating_folder(path) as folder:
        for number, (part, subject) in enumerate(zip(parts, load_parts(parts, options), strict=True), 1):
            network = subject.encoder.eval()
            origin = subject.origin if subject.run is None else {**subject.origin, "path": Path(subject.name).name}
            description = describe_export(subject.run, subject.test, network, origin)
            file = None if has_no_graph(network) else f"{number}{_SUFFIXES[to]}"
            worst = file and save_graph(
                network, folder / file, subject.test.clip.frames, subject.test.size, description
            )
            stated = {"name": part.model, "weight": part.weight, "file": file, "largest_difference": worst}
            described.append({**stated, **description})
        rule = "the part of each network scaled to length 1, times its weight, one after another"
        write_json(folder / "sum.json", {"name": name, "features": rule, "parts": described})
    written = JobResults({"name": name, "features": rule, "parts": described})
    without = [part["name"] for part in described if part["file"] is None]
    if without:
        _log.warning("%s: vidssl alone computes %s, which has no graph", path, ", ".join(without))
    written.text = f"{path}: {len(parts) - len(without)} of {len(parts)} graphs, sum.json"
    return written


@usual_torch()
def save_backbone(
    model: File | nn.Module, path: File, *, cfg: str | Path | None = None, half: bool = False, trust: bool = False
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
        write_backbone(read_checkpoint(model, trust), str(model), path, half=half)
        return
    run = run_of_module(model, cfg)
    if run is None:
        raise ConfigError(f"this {type(model).__name__} does not state its clips: give cfg, a config with its backbone")
    weights = model.state_dict()
    stated: Backbone = build(BACKBONES, run.backbone)
    load_state(stated, weights, f"this {type(model).__name__}")
    _check_same_features(model, stated, run)
    named = {f"backbone.{name}": weight for name, weight in weights.items()}
    content = {"format": CHECKPOINT_FORMAT, "config": run.model_dump(mode="json"), "step": 0, "method": named}
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
        backbone = f"the backbone {run.backbone.name} of the config with its weights"
        remedy = "give cfg, the config that it was built from, with its settings such as frame_differences"
        raise ConfigError(f"this {type(model).__name__} gives other features than {backbone}: {remedy}")


OPSET = 18  # of ONNX
TOLERANCE = 1e-4  # largest difference to torch, relative to the largest feature if that is above 1
_INPUT = "clips"
_DYNAMIC = ({0: Dim("batch")},)


def check_onnx() -> None:
    """Raise a ConfigError if a package for ONNX is missing."""
    try:
        import onnx  # noqa: F401

        import_onnxruntime()
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise ConfigError(f"ONNX needs the package {error.name}: pip install 'vidssl[export]'") from None


def version() -> str:
    """Name the versions of the packages for ONNX, for `vidssl doctor`; a ConfigError if one is missing."""
    check_onnx()
    return f"onnx {metadata.version('onnx')}, onnxruntime {metadata.version('onnxruntime')}"


def save_graph(network: nn.Module, path: Path, frames: int, size: int, description: Tree) -> float:
    """Write a network on the CPU, in eval mode, to a file .onnx or .pt2; return the largest difference of its features.

    `description` is in the file: in the `metadata_props` of ONNX, its values as JSON, or as `config.json` of .pt2.

    Raises:
        ConfigError: A package is missing, or the network cannot be exported or then computes other features.
    """
    if path.suffix == ".onnx":
        check_onnx()
    # Two clips: torch would take a batch of one for a constant.
    clips = torch.randn(2, 3, frames, size, size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        network(clips)  # a mistake of the network is not one of the exporter
        with _explained(path):
            export = _export_onnx if path.suffix == ".onnx" else _export_pt2
            content, exported = export(network, clips, description)
    worst = _compare(network, exported, clips, path)
    write_whole(path, content)
    return worst


def _export_onnx(network: nn.Module, clips: Tensor, description: Tree) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    import onnx

    settings: dict[str, Any] = {
        "input_names": [_INPUT],
        "output_names": [description.get("output", "features")],
        "opset_version": OPSET,
    }
    settings |= {"dynamo": True, "dynamic_shapes": _DYNAMIC, "verbose": False, "external_data": False}
    for name in ("onnxscript", "onnx_ir"):  # they log each pass of an optimiser
        logging.getLogger(name).setLevel(logging.WARNING)
    program = torch.onnx.export(network, (clips,), **settings)
    assert program is not None  # with dynamo
    model = program.model_proto
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in description.items()})
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    session = import_onnxruntime().InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda x: torch.from_numpy(session.run(None, {_INPUT: x.numpy()})[0])


def _export_pt2(network: nn.Module, clips: Tensor, description: Tree) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    file = io.BytesIO()
    program = torch.export.export(network, (clips,), dynamic_shapes=_DYNAMIC)
    torch.export.save(program, file, extra_files={"config.json": json.dumps(description)})
    file.seek(0)
    return file.getvalue(), torch.export.load(file).module()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn any error of an exporter, of which there are many types, into a ConfigError."""
    try:
        yield
    except Exception as error:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # onnx writes in colours
        reason = " ".join(f"{type(error).__name__}: {plain}".split())[:300]
        why = f"torch {torch.__version__} does not export this network ({reason})"
        raise ConfigError(f"cannot write {path}: {why}; write safetensors or pt2") from error


@torch.no_grad()
def _compare(network: nn.Module, exported: Callable[[Tensor], Tensor], clips: Tensor, path: Path) -> float:
    """Return the largest difference of features for one clip and for three, neither of which was the example."""
    worst = 0.0
    for count in (1, 3):
        x = clips[:1].expand(count, -1, -1, -1, -1).flip(3).contiguous()
        expected = network(x)
        with _explained(path):  # for example, if a size of the batch has become a constant
            features = exported(x)
        difference = (features - expected).abs().max().item() / max(1.0, expected.abs().max().item())
        worst = max(worst, difference)
    if not worst <= TOLERANCE:
        change = f"its features would differ by {worst:.1g}, more than {TOLERANCE:g}"
        raise ConfigError(f"cannot write {path}: {change}; write safetensors")
    return worst
