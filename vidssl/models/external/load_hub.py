"""Networks of torch.hub: `hub:OWNER/REPOSITORY:ENTRY`, or `hub:FOLDER:ENTRY`. They are code of others: trust=True."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import CenterCrop, Compose, ConvertImageDtype, InterpolationMode, Normalize, Resize

from vidssl.errors import CheckpointError, UntrustedError
from vidssl.models.external import Called, Encoder, facts_of, preprocessed_by

_NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
# Of the evaluation of DINOv2 (Oquab et al., 2023).
_DINOV2 = Compose([Resize(256, InterpolationMode.BICUBIC), CenterCrop(224), ConvertImageDtype(torch.float), _NORMALIZE])


def load(name: str, trust: bool) -> Encoder:
    """Load a network of V-JEPA 2 or DINOv2, whose preprocessing is known."""
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
    return preprocessed_by(prepare, Called(network), frames=frames, seconds=frames * 4 / 30, **facts)


def _clip(frames: Tensor, prepare: Any) -> Tensor:
    clip: Tensor = prepare(frames.permute(0, 2, 3, 1).contiguous().numpy())[0]  # (T, H, W, 3) to a list of (3, T, S, S)
    return clip
