"""Image networks of timm: `timm:NAME[.TAG]`; `@none` at the end is untrained. Weights come from timm's own cache."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import timm
from PIL import Image

from vidssl.models.external import Encoder
from vidssl.models.external.facts import Facts, facts_of
from vidssl.types import Frames


def load(name: str, trust: bool = False) -> Encoder:
    """Load a network without its classifier; see `vidssl.models.external`."""
    name, _, tag = name.partition("@")
    network: Any = timm.create_model(name, pretrained=tag != "none", num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    stated = network.pretrained_cfg or {}
    return Encoder(
        network=network,
        crop=crop_of(timm.data.create_transform(**config, is_training=False)),
        size=config["input_size"][-1],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        images=True,
        version=f"timm {timm.__version__}",
        facts=Facts(training=("none",))
        if tag == "none"
        else facts_of(
            "timm",
            f"{stated.get('architecture', name)}.{stated.get('tag', '')}",
            stated.get("license"),
            stated.get("origin_url"),
        ),
    )


def crop_of(transform: Any) -> Callable[[Frames], Frames]:
    """Return the spatial part of a transform of timm: what is left is the arithmetic of each pixel."""
    return partial(
        _crop,
        steps=[step for step in transform.transforms if not type(step).__name__.endswith(("ToTensor", "Normalize"))],
    )


def _crop(frames: Frames, steps: list[Any]) -> Frames:
    images = [Image.fromarray(np.ascontiguousarray(frame.transpose(1, 2, 0))) for frame in frames]
    for step in steps:
        images = [step(image) for image in images]
    return np.stack([np.asarray(image).transpose(2, 0, 1) for image in images])
