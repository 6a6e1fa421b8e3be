"""Heads on a backbone: projector and predictor."""

from typing import Literal

from pydantic import Field
from torch import nn

from vidssl.config import Settings


class Head(Settings):
    """Shape of a projector or predictor, in the words of SCE's Table 24."""

    layers: int = Field(default=3, ge=1)
    hidden: int = Field(default=1024, ge=1)
    out: int = Field(default=256, ge=1)
    norm: Literal["all", "hidden", "none"] = "all"


def mlp(dim: int, head: Head) -> nn.Sequential:
    """Make the layers of a head on `dim` inputs: linear, batch norm, ReLU, …, linear (and batch norm).

    With `norm: all` the last batch norm has no scale and shift (the authors' code). Where batch norm
    follows, a linear layer needs no bias; where there is none at all (MoCo v2's head), it has one.
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
