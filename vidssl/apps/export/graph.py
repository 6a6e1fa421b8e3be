"""Write a network as a graph that runs without vidssl: ONNX and torch.export (.pt2).

The input is a normalised float clip (B, 3, T, S, S), the output features (B, dim). B is dynamic; T and S are fixed.
"""

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

from vidssl.base.atomic import write_whole
from vidssl.base.config import Tree
from vidssl.base.errors import ConfigError
from vidssl.models.backbones import Backbone

OPSET = 18  # of ONNX
TOLERANCE = 1e-4  # largest difference to torch, relative to the largest feature if that is above 1
_INPUT, _OUTPUT = "clips", "features"
_DYNAMIC = ({0: Dim("batch")},)


def check_onnx() -> None:
    """Raise a ConfigError if a package for ONNX is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401 - torch.onnx needs it
    except ImportError as error:
        raise ConfigError(f"ONNX needs the package {error.name}: pip install 'vidssl[export]'") from None


def version() -> str:
    """Name the versions of the packages for ONNX, for `vidssl doctor`; a ConfigError if one is missing."""
    check_onnx()
    return f"onnx {metadata.version('onnx')}, onnxruntime {metadata.version('onnxruntime')}"


def save_graph(network: Backbone, path: Path, frames: int, size: int, description: Tree) -> float:
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


def _export_onnx(network: Backbone, clips: Tensor, description: Tree) -> tuple[bytes, Callable[[Tensor], Tensor]]:
    import onnx
    import onnxruntime

    for package in ("onnxscript", "onnx_ir"):  # they log each pass of an optimiser
        logging.getLogger(package).setLevel(logging.WARNING)
    settings: dict[str, Any] = {"input_names": [_INPUT], "output_names": [_OUTPUT], "opset_version": OPSET}
    settings |= {"dynamo": True, "dynamic_shapes": _DYNAMIC, "verbose": False, "external_data": False}
    program = torch.onnx.export(network, (clips,), **settings)
    assert program is not None  # with dynamo
    model = program.model_proto
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in description.items()})
    onnx.checker.check_model(model)
    content = model.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda x: torch.from_numpy(session.run(None, {_INPUT: x.numpy()})[0])


def _export_pt2(network: Backbone, clips: Tensor, description: Tree) -> tuple[bytes, Callable[[Tensor], Tensor]]:
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
        raise ConfigError(
            f"cannot write {path}: torch {torch.__version__} does not export this network ({reason}); write "
            "safetensors or pt2"
        ) from error


@torch.no_grad()
def _compare(network: Backbone, exported: Callable[[Tensor], Tensor], clips: Tensor, path: Path) -> float:
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
        raise ConfigError(
            f"cannot write {path}: its features would differ by {worst:.1g}, more than {TOLERANCE:g}; write safetensors"
        )
    return worst
