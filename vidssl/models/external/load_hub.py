"""Networks of torch.hub: `hub:OWNER/REPOSITORY:ENTRY`, or `hub:FOLDER:ENTRY`. They are code of others: --trust."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import center_crop, resize

from vidssl.errors import CheckpointError, UntrustedError
from vidssl.models.external import Encoder, as_frames, pooled
from vidssl.models.external.facts import facts_of
from vidssl.types import Frames

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def load(name: str, trust: bool = False) -> Encoder:
    """Load a network of V-JEPA 2 or DINOv2; see `vidssl.models.external`."""
    repository, _, entry = name.rpartition(":")
    if not repository:
        raise CheckpointError(f"hub:{name} is not hub:OWNER/REPOSITORY:ENTRY")
    if not trust:
        raise UntrustedError(f"hub:{name} runs the code of {repository}: give --trust if you know its author")
    if not entry.startswith(("vjepa2", "dinov2")):
        raise CheckpointError(f"how {entry} prepares its frames is not known: use python:MODULE:FUNCTION")
    source = "local" if Path(repository).is_dir() else "github"
    of_hub: Any = partial(torch.hub.load, repository, source=source, trust_repo=True)
    network = of_hub(entry)
    network = network[0] if isinstance(network, tuple) else network  # V-JEPA 2: the encoder, and a predictor
    shared: dict[str, Any] = {"network": _Features(network), "mean": _MEAN, "std": _STD}
    shared |= {"version": f"torch {torch.__version__}", "facts": facts_of("hub", f"{repository} {entry}")}
    if entry.startswith("dinov2"):
        return Encoder(**shared, crop=_imagenet, size=224, images=True)
    size = int(found[1]) if (found := re.search(r"_(\d{3})$", entry)) else 256
    prepare = of_hub("vjepa2_preprocessor", crop_size=size)
    frames = int(getattr(network, "num_frames", 64))
    return Encoder(
        **shared, crop=partial(_unnormalised, prepare=prepare), size=size, frames=frames, seconds=frames * 4 / 30
    )


def _imagenet(frames: Frames) -> Frames:
    """The evaluation of DINOv2 (Oquab et al., 2023): bicubic, 256, the central 224."""
    cut: Frames = center_crop(resize(as_frames(frames), [256], InterpolationMode.BICUBIC), [224]).numpy()
    return cut


def _unnormalised(frames: Frames, prepare: Any) -> Frames:
    """Take back what the preprocessing does to each pixel, exactly: it is done to bytes, on the device."""
    (clip,) = prepare(frames.transpose(0, 2, 3, 1))  # (3, T, S, S)
    mean, std = torch.tensor(_MEAN).view(3, 1, 1, 1), torch.tensor(_STD).view(3, 1, 1, 1)
    pixels: Frames = (255 * (clip * std + mean)).round().to(torch.uint8).transpose(0, 1).contiguous().numpy()
    return pixels


class _Features(nn.Module):
    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips or images."""
        return pooled(self.network(x))
