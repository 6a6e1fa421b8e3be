"""Heads on a backbone: projector and predictor."""

from typing import Literal

from pydantic import Field
from torch import nn

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError


class Head(Settings):
    """Shape of a projector or predictor, named as in SCE's Table 24."""

    layers: int = Field(default=3, ge=1)
    hidden: int = Field(default=1024, ge=1)
    out: int = Field(default=256, ge=1)
    norm: Literal["all", "hidden", "none"] = "all"  # which layers batch norm follows


def mlp(dim: int, head: Head) -> nn.Sequential:
    """Make a head on `dim` inputs: linear, batch norm, ReLU, …, linear (and batch norm).

    With `norm: all` the last batch norm has no scale and shift, as in SCE's released code. Linear layers have a bias
    only with `norm: none` (MoCo v2's head).
    """
    layers: list[nn.Module] = []
    for n in range(1, head.layers + 1):
        last = n == head.layers
        out = head.out if last else head.hidden
        layers.append(nn.Linear(dim, out, bias=head.norm == "none"))
        if head.norm == "all" or (head.norm == "hidden" and not last):
            layers.append(nn.BatchNorm1d(out, affine=not last))
        if not last:
            layers.append(nn.ReLU(inplace=True))
        dim = out
    return nn.Sequential(*layers)


def check_batch_norm(samples: int, *heads: nn.Module) -> None:
    """Raise a ConfigError if batch norm in a head would see a single sample; a synchronised one sees more."""
    norms = [m for head in heads for m in head.modules() if isinstance(m, nn.BatchNorm1d) and m.training]
    if samples == 1 and norms:
        raise ConfigError("BatchNorm needs 2 samples per process, got 1: raise (micro_)batch_size, or set norm: none")
