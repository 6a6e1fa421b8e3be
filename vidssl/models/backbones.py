"""What a backbone is, and how one is made by name."""

from collections.abc import Callable
from typing import Any

import torch
from pydantic import create_model
from torch import Tensor, nn

from vidssl.config import bind, build, choice
from vidssl.errors import ConfigError
from vidssl.registry import Registry

_WITH_REGIONS = "choose a ResNet of vidssl: resnet18, resnet50, resnet3d18, resnet3d50"


class Backbone(nn.Module):
    """Maps clips (B, 3, T, H, W) to vectors (B, dim).

    A ResNet can also be asked for the maps of its third stage, where regions are looked at: then
    `forward(x)` is `layer4(layer3(x))`.
    """

    dim: int

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips."""
        raise NotImplementedError

    def layer3(self, x: Tensor) -> Tensor:
        """Map clips (B, 3, T, H, W) to the output of the third stage (B, C, T', H', W').

        Raises:
            ConfigError: The network has no such stage.
        """
        raise ConfigError(f"{type(self).__name__} has no layer 3 to look at regions with: {_WITH_REGIONS}")

    def layer4(self, maps: Tensor) -> Tensor:
        """Map the output of the third stage (B, C, T', H', W') to vectors (B, dim)."""
        raise ConfigError(f"{type(self).__name__} has no layer 4: {_WITH_REGIONS}")

    @classmethod
    def check_regions(cls) -> None:
        """Refuse a network that regions cannot be looked at with: to be asked before long work.

        Raises:
            ConfigError: It has no third stage.
        """
        if cls.layer3 is Backbone.layer3:
            raise ConfigError(f"{cls.__name__} has no layer 3 to look at regions with: {_WITH_REGIONS}")


def compile_backbone(backbone: Backbone, backend: str | Callable[..., Any] = "inductor") -> None:
    """Compile a backbone in place; `layer3` and `layer4` separately, as methods with regions call them on their own."""
    if type(backbone).layer3 is Backbone.layer3:
        backbone.compile(backend=backend)
        return
    for half in ("layer3", "layer4"):
        setattr(backbone, half, torch.compile(getattr(backbone, half), backend=backend))


BACKBONES: Registry[type[Backbone]] = Registry("backbone", "vidssl.models")


def build_backbone(name: str, **settings: Any) -> Backbone:
    """Make an untrained backbone: `build_backbone("resnet3d18", width=64)`.

    Args:
        name: One of `BACKBONES`.
        settings: Fields of its `Config`.

    Raises:
        ConfigError: There is no such backbone, or it has no such setting.
    """
    BACKBONES[name]  # names the nearest one where there is none
    schema = create_model("BackboneChoice", backbone=(choice(BACKBONES), ...))
    config = bind(schema, {"backbone": {"name": name, **settings}}, "build_backbone").backbone  # type: ignore[attr-defined]
    backbone: Backbone = build(BACKBONES, config)
    return backbone
