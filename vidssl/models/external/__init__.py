"""Encoders of other libraries by name, `LIBRARY:NAME`; a library is imported, and weights read, when one is named."""

import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vidssl.errors import CheckpointError, ConfigError, UntrustedError
from vidssl.models.backbones import Backbone
from vidssl.models.external.facts import NOT_STATED, Facts
from vidssl.types import Frames

# The module that loads the encoders of a library: load(name, trust) -> Encoder.
LIBRARIES = {
    name: f"{__name__}.load_{name}"
    for name in ("torchvision", "timm", "transformers", "hub", "onnx", "python", "floor")
}
Joined = Literal["mean", "concatenate", "differences"]
_SETTING = re.compile(r",(frames|count|seconds)=([^,]*)$")


@dataclass(frozen=True)
class Encoder:
    """An encoder of another library, and the clips that it is used with there.

    The spatial part of the library's preprocessing is `crop`, the other part `mean` and `std`.
    """

    network: nn.Module  # normalised clips (B, 3, T, S, S) to features (B, D); if `images`, images (B, 3, S, S)
    size: int  # S, pixels
    mean: tuple[float, ...] = (0.0,)  # of pixels in [0, 1]
    std: tuple[float, ...] = (1.0,)
    # Decoded frames (T, 3, H, W), uint8, to (T, 3, S, S); None: vidssl's, the central square of the short side.
    crop: Callable[[Frames], Frames] | None = None
    short_side: int | None = None  # pixels; None: size
    any_shape: bool = False  # `crop` keeps the shape of the frames, so that videos go one at a time
    images: bool = False  # it encodes frames, not clips
    frames: int = 8  # T
    seconds: float | Literal["whole"] = "whole"  # span of a clip
    facts: Facts = field(default_factory=Facts)
    version: str = ""  # of the library


def is_external(name: object) -> bool:
    """Whether a name is that of an encoder of another library, `LIBRARY:NAME`."""
    return isinstance(name, str) and name.partition(":")[0] in LIBRARIES and ":" in name


def load_external(name: str, trust: bool = False) -> tuple[Encoder, Backbone]:
    """Load an encoder by its name, which may end with settings: `timm:NAME,frames=differences,count=9,seconds=2`.

    `frames` says how the features of the frames of an image encoder are joined (mean), `count` is the number of frames
    of a clip, `seconds` its span or whole.

    Raises:
        CheckpointError: The library is not installed, has no such encoder, or its weights cannot be loaded.
        ConfigError: A setting is wrong.
        UntrustedError: The encoder is code of others, and `trust` is False.
    """
    plain, settings = _split(name)
    encoder = load_encoder(plain, trust)
    chosen = {"frames": settings.get("count", encoder.frames), "seconds": settings.get("seconds", encoder.seconds)}
    encoder = Encoder(**{**encoder.__dict__, **chosen})
    if "frames" in settings and not encoder.images:
        raise ConfigError(f"{plain} encodes clips: frames={settings['frames']} is for encoders of images")
    return encoder, ExternalBackbone(encoder, settings.get("frames", "mean"))


def load_encoder(name: str, trust: bool = False) -> Encoder:
    """Load an encoder by its name without settings; errors are those of `load_external`."""
    library, _, inner = name.partition(":")
    try:
        load = importlib.import_module(LIBRARIES[library]).load
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)  # weights that are drawn are the same each time
            encoder: Encoder = load(inner, trust)
    except (CheckpointError, ConfigError, UntrustedError):
        raise
    except ImportError as error:
        package = {"onnx": "onnxruntime", "hub": "torch"}.get(library, library)
        raise CheckpointError(
            f"{name} needs a package that is not installed ({error}): pip install {package}"
        ) from None
    except Exception as error:  # of the library: no such name, no network, damaged files
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckpointError(f"{library} cannot load {inner}: {reason}") from None
    return encoder


def _split(name: str) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    while found := _SETTING.search(name):
        name, key, value = name[: found.start()], found[1], found[2]
        try:
            if key == "frames":
                if value not in ("mean", "concatenate", "differences"):
                    raise ValueError("mean, concatenate or differences")
                settings[key] = value
            elif key == "count":
                settings[key] = int(value)
                if settings[key] < 1:
                    raise ValueError("a number of frames")
            else:
                settings[key] = value if value == "whole" else float(value)
                if value != "whole" and not settings[key] > 0:
                    raise ValueError("a number of seconds, or whole")
        except ValueError:
            limits = {
                "frames": "mean, concatenate or differences",
                "count": "1 or more",
                "seconds": "above 0, or whole",
            }
            raise ConfigError(f"{found[0][1:]} of {name}: {key} is {limits[key]}") from None
    return name, settings


class ExternalBackbone(Backbone):
    """An encoder of another library as a backbone, without layers."""

    def __init__(self, encoder: Encoder, frames: Joined) -> None:
        super().__init__()
        self.network, self._frames, self._images = encoder.network.eval(), frames, encoder.images
        if encoder.images and frames == "differences" and encoder.frames < 2:
            raise ConfigError("frames=differences needs two frames or more: count=8")
        clip = torch.zeros(1, 3, encoder.frames, encoder.size, encoder.size)
        with torch.inference_mode():
            features: Any = self(clip)
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 1:
            shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise CheckpointError(f"the encoder makes {shape} of a clip {tuple(clip.shape)}, not features (1, D)")
        self.dim = features.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        if not self._images:
            features: Tensor = self.network(x)
            return features
        each: Tensor = self.network(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (len(x), -1))  # (B, T, D)
        if self._frames == "mean":
            return each.mean(dim=1)
        return (each if self._frames == "concatenate" else each.diff(dim=1)).flatten(1)


def pooled(output: Any) -> Tensor:
    """Return features (B, D) of what a network returns: a tensor, tokens (B, N, D), or an output of transformers."""
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            output = getattr(output, name)
            break
    if isinstance(output, tuple | list):
        output = output[0]
    return output.mean(dim=1) if isinstance(output, Tensor) and output.ndim == 3 else output


def as_frames(frames: Frames) -> Tensor:
    """Return frames (T, 3, H, W) as a tensor of the same memory order that libraries expect: contiguous."""
    return torch.from_numpy(np.ascontiguousarray(frames))


__all__ = ["NOT_STATED", "Encoder", "ExternalBackbone", "Facts", "is_external", "load_encoder", "load_external"]
