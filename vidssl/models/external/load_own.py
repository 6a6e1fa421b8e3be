"""Encoders of vidssl and its users: `onnx:FILE`, `python:PACKAGE.MODULE:FUNCTION`, `floor:NAME`."""

import importlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vidssl.config import installed_configs, read
from vidssl.errors import CheckpointError, ConfigError
from vidssl.models.backbones import build_backbone
from vidssl.models.external import Called, Encoder


def load_onnx(name: str, trust: bool) -> Encoder:
    """Load a file of `vidssl export --to onnx`, which runs on the CPU."""
    import onnxruntime

    if not Path(name).is_file():
        raise CheckpointError(f"there is no file {name}")
    session = onnxruntime.InferenceSession(name, providers=["CPUExecutionProvider"])
    try:
        stated = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
        clips, clip, short_side = stated["input"], stated["clip"], int(stated["test"]["short_side"])
        frames, size = (int(length) for length in clips["shape"][2:4])
    except (KeyError, ValueError, TypeError):
        raise CheckpointError(f"{name} states no clips, as `vidssl export` does: use python:MODULE:FUNCTION") from None
    return Encoder(
        network=Called(session, _run),
        size=size,
        mean=tuple(clips["mean"]),
        std=tuple(clips["std"]),
        short_side=short_side,
        frames=frames,
        seconds=clip.get("seconds") or frames * clip.get("sampling_rate", 1) / (clip.get("target_fps") or 30),
        training=tuple(stated.get("training", {}).get("lists", ())) or Encoder.training,
    )


def _run(session: Any, x: Tensor) -> Tensor:
    (features,) = session.run(None, {session.get_inputs()[0].name: x.cpu().contiguous().numpy()})
    return torch.from_numpy(features).to(x.device)


def load_python(name: str, trust: bool) -> Encoder:
    """Call a function, which returns a module and a dictionary of fields of `Encoder`, `size` among them."""
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"python:{name} is not python:PACKAGE.MODULE:FUNCTION")
    try:
        made: Any = getattr(importlib.import_module(module), function)()
    except AttributeError as error:
        raise ConfigError(f"python:{name}: {error}") from None
    network, stated = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    known = Encoder.__dataclass_fields__.keys() - {"network"}
    if not isinstance(network, nn.Module) or "size" not in stated or not stated.keys() <= known:
        given, keys = f"{type(network).__name__} and {[*stated]}", ", ".join(sorted(known - {"size", "version"}))
        raise ConfigError(f"python:{name} gave {given}, not a module and a dictionary: size, and any of {keys}")
    return Encoder(network, **stated)


def load_floor(name: str, trust: bool) -> Encoder:
    """Return a floor, which has no weights."""
    if name not in FLOORS:
        raise CheckpointError(f"there is no floor:{name}: {', '.join(f'floor:{known}' for known in FLOORS)}")
    clips: dict[str, Any] = {"size": 64, "mean": (0.45,), "std": (0.225,), "frames": 4, "seconds": 1.28}
    return Encoder(FLOORS[name](), **clips, licence="none needed", training=("none",))


def _small(image: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Reduce clips (B, 3, T, H, W) to images, averaged to 16 x 16 pixels: (B, 768)."""
    return functional.adaptive_avg_pool2d(image(x), 16).flatten(1)


# What a trained network must exceed.
FLOORS: dict[str, Callable[[], nn.Module]] = {
    "thumbnails": partial(Called, lambda x: x[:, :, x.shape[2] // 2], _small),  # middle frames: colours and background
    "differences": partial(Called, lambda x: x.diff(dim=2).abs().mean(dim=2), _small),  # of consecutive frames: motion
    # The two streams of the config `small_cpu` with random weights, of the seed that the caller sets.
    "untrained": lambda: Called(
        build_backbone(**read(installed_configs()["pretrain/small_cpu"])["backbone"]), lambda net, x: net.finish(net(x))
    ),
}
