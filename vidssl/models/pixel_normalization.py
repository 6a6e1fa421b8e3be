"""The mean and standard deviation of pixels that weights were trained with, and those of a run.

Shapes: O output channels of a convolution, 3 colours.
"""

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vidssl.errors import ConfigError
from vidssl.models.backbones import Backbone


class Normalization(NamedTuple):
    """The input of a network is (x / 255 - mean) / std; one value, or one per colour. `str()` has the settings."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __str__(self) -> str:
        mean, std = (json.dumps(list(dict.fromkeys(v)) if len(set(v)) == 1 else list(v)) for v in self)
        return f"'data.mean={mean}' 'data.std={std}'"

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Return mean and std (3,) in double precision."""
        mean, std = (torch.tensor(values, dtype=torch.float64).expand(3) for values in self)
        return mean, std

    def is_close(self, other: "Normalization") -> bool:
        """Whether both are the same but for rounding."""
        return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(self.tensors(), other.tensors(), strict=True))


def normalization_of(config: Mapping[str, Any]) -> Normalization | None:
    """Return the normalisation that the stored config of a run states; None if it states none."""
    data = config.get("data")
    values: list[Any] = [data.get(name) for name in ("mean", "std")] if isinstance(data, Mapping) else []
    for each in values:  # a file may hold anything
        if not isinstance(each, list | tuple) or len(each) not in (1, 3):
            return None
        if not all(isinstance(x, float | int) and math.isfinite(x) for x in each):
            return None
    return Normalization(tuple(values[0]), tuple(values[1])) if values else None


def why_not_folded(backbone: Backbone) -> str:
    """Say why no normalisation can be folded into a backbone; nothing if one can."""
    if getattr(backbone, "frame_differences", False):
        return "encodes differences of frames"
    found = _first_convolutions(backbone)
    if len(found) != 1:
        return f"has {len(found)} convolutions of three colours"
    conv, norm = found[0]
    takes_shift = conv.bias is not None or (isinstance(norm, _BatchNorm) and norm.running_mean is not None)
    return "" if takes_shift else "has a first convolution without bias, and no batch norm after it"


def _first_convolutions(backbone: Backbone) -> list[tuple[nn.Conv2d | nn.Conv3d, nn.Module]]:
    """List the convolutions of three colours, each with the module after it."""
    layers = [module for module in backbone.modules() if not [*module.children()]]
    return [
        (conv, after)
        for conv, after in pairwise([*layers, nn.Identity()])
        if isinstance(conv, nn.Conv2d | nn.Conv3d) and conv.weight.shape[1] == 3
    ]


@torch.no_grad()
def fold_normalization(backbone: Backbone, trained: Normalization, run: Normalization) -> None:
    """Change the first convolution so that input normalised as in `run` gives the features of that as in `trained`.

    With a and b such that the trained input is a x + b, kernels are multiplied by a, and b is added by the bias, or
    taken from the mean of the batch norm that follows. Where the convolution pads its input the result is not equal
    if the means differ: zeros there are now the mean of the run.

    Raises:
        ConfigError: The backbone has several first convolutions, or encodes differences of frames.
    """
    if reason := why_not_folded(backbone):
        raise ConfigError(f"init.fold: the backbone {reason}: leave fold out, and set {trained}")
    conv, norm = _first_convolutions(backbone)[0]
    (mean, std), (run_mean, run_std) = trained.tensors(), run.tensors()
    weight = conv.weight.double()
    shape = (1, 3, *(1 for _ in weight.shape[2:]))
    shift = (weight * ((run_mean - mean) / std).view(shape)).flatten(1).sum(dim=1)  # (O,)
    if conv.bias is not None:
        conv.bias.copy_(conv.bias + shift)
    elif isinstance(norm, _BatchNorm) and norm.running_mean is not None:
        norm.running_mean.copy_(norm.running_mean - shift)
    conv.weight.copy_(weight * (run_std / std).view(shape))
