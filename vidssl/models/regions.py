"""Region features: RoI pooling of feature maps.

Shapes: B clips, C channels, T frames, H x W cells of a map; R regions, xyxy in pixels.
"""

import torch
from torch import Tensor


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
