"""Features of an inner layer: its maps, pooled to a small grid.

Shapes: B clips, T frames, H x W pixels; C channels of a feature map.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vidssl.models.backbones import Backbone
from vidssl.models.eval_mode import eval_mode


def region_maps(maps: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Resize one region of each clip, `boxes` (B, 4), to the whole map (RoIAlign; He et al., 2017).

    `maps` (B, C, T, H, W) are those of `Backbone.layer3`, and the result has their shape; the clips have `size` pixels.
    """
    from torchvision.ops import roi_align  # slow import

    batch, _, frames, height, width = maps.shape
    exact = torch.promote_types(maps.dtype, torch.float32)  # bfloat16 cannot hold row numbers above 256
    flat = maps.transpose(1, 2).flatten(0, 1).to(exact)  # (B * T, C, H, W)
    rows = torch.arange(len(flat), device=maps.device, dtype=exact)[:, None]
    rois = torch.cat([rows, boxes.to(exact).repeat_interleave(frames, dim=0)], dim=1)
    # One sample per bin: a bin is at most one cell of the map, and the region of the whole clip is then the map itself.
    pooled: Tensor = roi_align(flat, rois, (height, width), width / size, sampling_ratio=1, aligned=True)
    return pooled.to(maps.dtype).view(batch, frames, *pooled.shape[1:]).transpose(1, 2)


def region_means(maps: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Average the map (C, H, W) of a frame over regions (R, 4); the result is (R, C).

    Each cell has the weight of the fraction that the region covers: exact, unlike RoIAlign, which samples. The frame
    has `height` x `width` pixels.
    """
    rows = _coverage(boxes[:, 1], boxes[:, 3], maps.shape[1], height)
    columns = _coverage(boxes[:, 0], boxes[:, 2], maps.shape[2], width)
    weights = (rows[:, :, None] * columns[:, None, :]).flatten(1)  # (R, H * W), rows sum to 1
    return weights @ maps.flatten(1).T


def _coverage(low: Tensor, high: Tensor, cells: int, pixels: int) -> Tensor:
    """Return (R, cells): the fraction of each interval [low, high] (R,) that lies in each cell of an axis."""
    edges = torch.arange(cells + 1, device=low.device, dtype=low.dtype) * (pixels / cells)
    inner = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    inner = inner.clamp(min=0)
    return inner / inner.sum(dim=1, keepdim=True).clamp(min=1e-9)


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
        raise ValueError(f"grid {settings.grid} x {settings.grid_frames} frames divides maps of a layer: set layer too")


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
        (maps,) = self.backbone.features(x, (self.layer,))
        return functional.adaptive_avg_pool3d(maps, (self.frames, self.grid, self.grid)).flatten(1)

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module of the backbone whose output has the maps of a layer."""
        return self.backbone.layer_module(layer)

    def as_maps(self, output: Any, clips: int) -> Tensor:
        """Return the output of a module of the backbone as maps (B, C, T', H', W')."""
        return self.backbone.as_maps(output, clips)
