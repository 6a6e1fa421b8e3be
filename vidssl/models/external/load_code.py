"""Encoders that are code: `python:PACKAGE.MODULE:FUNCTION` of users, and torch.hub's, `hub:OWNER/REPOSITORY:ENTRY`."""

import importlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torchvision.transforms import CenterCrop, Compose, ConvertImageDtype, InterpolationMode, Normalize, Resize

from vidssl.errors import CheckpointError, ConfigError, UntrustedError
from vidssl.models.external import Called, Encoder, facts_of, preprocessed_by, seconds_of
from vidssl.plugins import code_of

_NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Of the evaluation of DINOv2 (Oquab et al., 2023).
_DINOV2 = Compose([Resize(256, InterpolationMode.BICUBIC), CenterCrop(224), ConvertImageDtype(torch.float), _NORMALIZE])


def load_hub(name: str, trust: bool) -> Encoder:
    """Load a network of V-JEPA 2 or DINOv2, whose preprocessing is known; it is code of others: trust=True."""
    repository, _, entry = name.rpartition(":")
    if not repository:
        raise CheckpointError(f"hub:{name} is not hub:OWNER/REPOSITORY:ENTRY")
    if not trust:
        raise UntrustedError(f"hub:{name} runs the code of {repository}: give trust=True if you know its author")
    if not entry.startswith(("vjepa2", "dinov2")):
        raise CheckpointError(f"how {entry} prepares its frames is not known: use python:MODULE:FUNCTION")
    source = "local" if Path(repository).is_dir() else "github"
    of_hub: Any = partial(torch.hub.load, repository, source=source, trust_repo=True)
    network, facts = of_hub(entry), facts_of(f"hub {repository} {entry}")
    if entry.startswith("dinov2"):
        return preprocessed_by(_DINOV2, Called(network), images=True, **facts)
    network = network[0] if isinstance(network, tuple) else network  # the encoder, and a predictor
    size, frames = re.search(r"_(\d{3})$", entry), int(getattr(network, "num_frames", 64))
    prepare = partial(_clip, prepare=of_hub("vjepa2_preprocessor", crop_size=int(size[1]) if size else 256))
    return preprocessed_by(prepare, Called(network), frames=frames, seconds=seconds_of(frames, 4), **facts)


def _clip(frames: Tensor, prepare: Any) -> Tensor:
    clip: Tensor = prepare(frames.permute(0, 2, 3, 1).contiguous().numpy())[0]  # (T, H, W, 3) to a list of (3, T, S, S)
    return clip


def load_python(name: str, trust: bool) -> Encoder:
    """Call a function, which returns a module and a dictionary of fields of `Encoder`, `size` among them."""
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"python:{name} is not python:PACKAGE.MODULE:FUNCTION")
    try:
        load = getattr(importlib.import_module(module), function)
    except AttributeError as error:
        raise ConfigError(f"python:{name}: {error}") from None
    made: Any = load()
    network, stated = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
    known = Encoder.__dataclass_fields__.keys() - {"network", "features", "code", "test"}
    if not isinstance(network, nn.Module) or "size" not in stated or not stated.keys() <= known:
        given, keys = f"{type(network).__name__} and {[*stated]}", ", ".join(sorted(known - {"size", "version"}))
        raise ConfigError(f"python:{name} gave {given}, not a module and a dictionary: size, and any of {keys}")
    entries = [load, stated.get("crop"), *(type(each) for each in network.modules())]
    try:
        return Encoder(network, **stated, code=code_of(*entries).get("code", ""))
    except ValidationError as error:
        wrong = [f"{each['loc'][0]} is {each['input']!r} ({each['msg'].lower()})" for each in error.errors()]
        raise ConfigError(f"python:{name}: {', '.join(dict.fromkeys(wrong))}") from None
