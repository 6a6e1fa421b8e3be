"""Features of an inner layer: its maps, pooled to a small grid.

Shapes: B clips, T frames, H x W pixels; C channels of a feature map.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vidssl.models.backbones import Backbone
from vidssl.models.eval_mode import eval_mode


def pooled_maps(backbone: Backbone, clips: Tensor, layer: str, grid: int, frames: int) -> Tensor:
    """Average the maps of a layer over `frames` x `grid` x `grid` cells: (B, C * frames * grid²), channels first."""
    (maps,) = backbone.features(clips, (layer,))
    return functional.adaptive_avg_pool3d(maps, (frames, grid, grid)).flatten(1)


@torch.no_grad()
def count_channels(backbone: Backbone, layer: str) -> int:
    """Count the channels of a layer by encoding a small black clip; the statistics of batch norm are not touched."""
    device = next(backbone.parameters()).device
    with eval_mode(backbone):
        (maps,) = backbone.features(torch.zeros(1, 3, 2, 32, 32, device=device), (layer,))
    return maps.shape[1]


def check_grid(settings: Any) -> None:
    """Raise a ValueError if settings have a grid and no layer whose maps it divides."""
    if settings.layer is None and (settings.grid, settings.grid_frames) != (1, 1):
        raise ValueError(
            f"grid {settings.grid} x {settings.grid_frames} frames divides the maps of a layer: set layer too"
        )


class LayerFeatures(Backbone):
    """A backbone whose features are the pooled maps of one of its layers; `dim` is C * frames * grid²."""

    def __init__(self, backbone: Backbone, layer: str, grid: int = 1, frames: int = 1) -> None:
        backbone.check_layers((layer,))
        super().__init__()
        self.backbone, self.layer, self.grid, self.frames = backbone, layer, grid, frames
        self.dim = count_channels(backbone, layer) * frames * grid**2
        self.last_maps = layer

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        return pooled_maps(self.backbone, x, self.layer, self.grid, self.frames)

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module of the backbone whose output has the maps of a layer."""
        return self.backbone.layer_module(layer)

    def as_maps(self, output: Any, clips: int) -> Tensor:
        """Return the output of a module of the backbone as maps (B, C, T', H', W')."""
        return self.backbone.as_maps(output, clips)
