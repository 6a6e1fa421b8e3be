"""Networks of torchvision, timm and torch.hub, of files of ONNX, and of functions of users, as encoders."""

import importlib
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.transforms import CenterCrop, Compose, ConvertImageDtype, InterpolationMode, Normalize, Resize
from torchvision.transforms.functional import to_pil_image

from vidssl.base.errors import CheckpointError, ConfigError, UntrustedError
from vidssl.base.plugins import code_of
from vidssl.base.registry import did_you_mean
from vidssl.models.external import Called, Encoder, facts_of, preprocessed_by, seconds_of
from vidssl.models.joined_features import unit_parts

_CLIP = re.compile(r"`?(frame_rate|clip_len)=([\d.]+)")  # in torchvision's text about weights of video networks
_NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Of the evaluation of DINOv2 (Oquab et al., 2023).
_DINOV2 = Compose([Resize(256, InterpolationMode.BICUBIC), CenterCrop(224), ConvertImageDtype(torch.float), _NORMALIZE])


def load_torchvision(name: str, trust: bool) -> Encoder:
    """Load a classifier of images or videos, NAME[@WEIGHTS], without its last layer; default: the default weights."""
    name, _, tag = name.partition("@")
    if name not in list_models():
        raise CheckpointError(f"torchvision has no network {name}{did_you_mean(name, list_models())}")
    known: Any = get_model_weights(name)
    if tag not in ("", "none", *known.__members__):
        raise CheckpointError(f"torchvision:{name} has no weights {tag}: {', '.join((*known.__members__, 'none'))}")
    weights = known.DEFAULT if tag in ("", "none") else known[tag]  # whose preprocessing those without weights share
    preset: Any = weights.transforms()
    if not hasattr(preset, "crop_size"):
        raise CheckpointError(f"torchvision:{name} is no classifier of images or videos")
    network = get_model(name, weights=None if tag == "none" else weights)
    layers = [path for path, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d | nn.Conv3d)]
    network.set_submodule(layers[-1], nn.Identity())  # the classifier
    trained = None if tag == "none" else f"torchvision {weights.name}"
    facts = facts_of(trained, weights.meta.get("license"), weights.meta.get("recipe"))
    if not type(preset).__name__.startswith("Video"):
        return preprocessed_by(preset, network, images=True, **facts)
    clip = dict(_CLIP.findall(weights.meta.get("_docs", "")))
    frames = int(clip.get("clip_len", 16))
    seconds = seconds_of(frames, 30 / float(clip.get("frame_rate", 15)))
    return preprocessed_by(preset, network, frames=frames, seconds=seconds, **facts)


def load_timm(name: str, trust: bool) -> Encoder:
    """Load a network of images, NAME[.TAG], without its classifier; weights come from timm's own cache."""
    import timm

    name, _, tag = name.partition("@")
    network: Any = timm.create_model(name, pretrained=tag != "none", num_classes=0)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network), is_training=False)
    stated = network.pretrained_cfg or {}
    trained = None if tag == "none" else f"timm {stated.get('architecture', name)}.{stated.get('tag', '')}"
    facts = facts_of(trained, stated.get("license"), stated.get("origin_url"))
    return preprocessed_by(partial(_images, transform=transform), network, images=True, **facts)


def _images(frames: Tensor, transform: Any) -> Tensor:
    return torch.stack([transform(to_pil_image(frame)) for frame in frames])  # timm resizes by Pillow


def load_hub(name: str, trust: bool) -> Encoder:
    """Load OWNER/REPOSITORY:ENTRY or FOLDER:ENTRY of V-JEPA 2 or DINOv2, whose preprocessing is known."""
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
    """Call PACKAGE.MODULE:FUNCTION, which returns a module and a dictionary of fields of `Encoder` with `size`."""
    module, _, function = name.partition(":")
    if not function:
        raise ConfigError(f"python:{name} is not python:PACKAGE.MODULE:FUNCTION")
    try:
        load = getattr(importlib.import_module(module), function)
    except AttributeError as error:
        raise ConfigError(f"python:{name}: {error}") from None
    result: Any = load()
    network, stated = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    known = Encoder.__dataclass_fields__.keys() - {"network", "features", "code", "test"}
    unknown = "".join(f", where {key!r} is unknown{did_you_mean(key, known)}" for key in stated if key not in known)
    if not isinstance(network, nn.Module) or "size" not in stated or unknown:
        result = f"{type(network).__name__} and {[*stated]}{unknown}"
        keys = ", ".join(sorted(known - {"size", "version"}))
        raise ConfigError(f"python:{name} gave {result}, not a module and a dictionary: size, and any of {keys}")
    entries = [load, stated.get("crop"), *map(type, network.modules())]
    try:
        return Encoder(network, **stated, code=code_of(*entries).get("code", ""))
    except ValidationError as error:
        mistakes = error.errors()
        wrong = [f"{field['loc'][0]} is {field['input']!r} ({field['msg'].lower()})" for field in mistakes]
        raise ConfigError(f"python:{name}: {', '.join(dict.fromkeys(wrong))}") from None


def import_onnxruntime() -> Any:
    """Import onnxruntime, without the telemetry that it sends from version 1.29 on unless the environment says so."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module("onnxruntime")


class OnnxNetwork(nn.Module):
    """A network in an ONNX file, which runs on the CPU; the file is its weights."""

    def __init__(self, file: str) -> None:
        super().__init__()
        runtime = import_onnxruntime()
        if not Path(file).is_file():
            raise CheckpointError(f"there is no file {file}")
        self.session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
        self.register_buffer("file", torch.from_numpy(np.fromfile(file, np.uint8)))

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        (features,) = self.session.run(None, {self.session.get_inputs()[0].name: x.cpu().contiguous().numpy()})
        return torch.from_numpy(features).to(x.device)


def load_onnx(name: str, trust: bool) -> Encoder:
    """Load a file of `vidssl export --to onnx`, with the clips on which its network is tested."""
    network = OnnxNetwork(name)
    try:
        stated = {key: json.loads(text) for key, text in network.session.get_modelmeta().custom_metadata_map.items()}
        clips, test = stated["input"], stated["test"]
        fields: dict[str, Any] = {"frames": int(clips["shape"][2]), "size": int(clips["shape"][3])}
        fields |= {"mean": tuple(clips["mean"]), "std": tuple(clips["std"]), "short_side": int(test["short_side"])}
        own_test = {"clip": stated["clip"], "clips": test["clips"], "crops": test["crops"]}
    except (KeyError, ValueError, TypeError):
        raise CheckpointError(f"{name} states no clips, as `vidssl export` does: use python:MODULE:FUNCTION") from None
    finish = partial(unit_parts, dims=[*stated["streams"].values()]) if "streams" in stated else None
    training = tuple(stated.get("training", {}).get("lists", ())) or Encoder.training
    return Encoder(network, **fields, test=own_test, finish=finish, training=training)
