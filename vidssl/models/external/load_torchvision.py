"""torchvision's classifiers without their last layer: `torchvision:NAME[@WEIGHTS]`; `@none` is untrained."""

import re
from functools import partial
from typing import Any

import torchvision
from torch import nn
from torchvision.models import get_model, get_model_weights, list_models
from torchvision.transforms.functional import center_crop, resize

from vidssl.errors import CheckpointError
from vidssl.models.external import Encoder, as_frames
from vidssl.models.external.facts import Facts, facts_of
from vidssl.registry import did_you_mean
from vidssl.types import Frames

_SIXTEEN = re.compile(r"`?(frame_rate|clip_len)=([\d.]+)")  # in the text about weights of video networks


def load(name: str, trust: bool = False) -> Encoder:
    """Load a network with the weights named, by default torchvision's own; see `vidssl.models.external`."""
    name, _, tag = name.partition("@")
    if name not in list_models():
        raise CheckpointError(f"torchvision has no network {name}{did_you_mean(name, list_models())}")
    known: Any = get_model_weights(name)
    if tag not in ("", "none", *known.__members__):
        raise CheckpointError(f"torchvision:{name} has no weights {tag}: {', '.join((*known.__members__, 'none'))}")
    weights = (
        known[tag] if tag in known.__members__ else known.DEFAULT
    )  # whose preprocessing those without weights share
    preset = weights.transforms()
    if not hasattr(preset, "crop_size") or not hasattr(preset, "resize_size"):
        raise CheckpointError(f"torchvision:{name} is no classifier of images or videos")
    network = without_classifier(get_model(name, weights=None if tag == "none" else weights))
    shared: dict[str, Any] = {
        "network": network,
        "crop": partial(_crop, preset=preset),
        "size": preset.crop_size[0],
        "mean": tuple(preset.mean),
        "std": tuple(preset.std),
        "version": f"torchvision {torchvision.__version__}",
        "facts": Facts(training=("none",))
        if tag == "none"
        else facts_of("torchvision", weights.name, weights.meta.get("license"), weights.meta.get("recipe")),
    }
    if not type(preset).__name__.startswith("Video"):
        return Encoder(**shared, images=True)
    clip = dict(_SIXTEEN.findall(weights.meta.get("_docs", "")))
    frames = int(clip.get("clip_len", 16))
    return Encoder(**shared, frames=frames, seconds=frames / float(clip.get("frame_rate", 15)))


def _crop(frames: Frames, preset: Any) -> Frames:
    antialias = getattr(preset, "antialias", False)  # the preset of videos has none
    resized = resize(as_frames(frames), list(preset.resize_size), preset.interpolation, antialias=antialias)
    cut: Frames = center_crop(resized, list(preset.crop_size)).numpy()
    return cut


def without_classifier(network: nn.Module) -> nn.Module:
    """Replace the classifier, the last linear layer or 1x1x1 convolution, by the identity."""
    path = [n for n, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv3d)][-1]
    network.set_submodule(path, nn.Identity())
    return network
