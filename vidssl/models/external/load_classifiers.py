"""Classifiers without their last layer: `torchvision:NAME[@WEIGHTS]`, `timm:NAME[.TAG]`; `@none` is untrained."""

import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.transforms.functional import to_pil_image

from vidssl.errors import CheckpointError
from vidssl.models.external import Encoder, facts_of, preprocessed_by, seconds_of
from vidssl.registry import did_you_mean

_CLIP = re.compile(r"`?(frame_rate|clip_len)=([\d.]+)")  # in torchvision's text about weights of video networks


def load_torchvision(name: str, trust: bool) -> Encoder:
    """Load a network of images or videos, by default with torchvision's default weights."""
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
    """Load a network of images; weights come from timm's own cache."""
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
