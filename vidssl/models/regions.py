"""What a network says of regions: RoI pooling of the maps of its third stage."""

import torch
from torch import Tensor


def region_maps(maps: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Cut one region out of the maps of each clip, at the resolution of the maps (RoI pooling; He et al., 2017).

    Args:
        maps: (B, C, T, H, W), of `Backbone.layer3`.
        boxes: (B, 4) xyxy in pixels of the clip.
        size: Side of the clip, pixels.

    Returns:
        (B, C, T, H, W): the region of each clip, stretched to the whole map.
    """
    from torchvision.ops import roi_align  # seconds to import

    batch, _, frames, height, width = maps.shape
    exact = torch.promote_types(maps.dtype, torch.float32)  # bfloat16 cannot count beyond 256
    flat = maps.transpose(1, 2).flatten(0, 1).to(exact)  # (B * T, C, H, W)
    rows = torch.arange(len(flat), device=maps.device, dtype=exact)[:, None]
    rois = torch.cat([rows, boxes.to(exact).repeat_interleave(frames, dim=0)], dim=1)
    # One sample a bin: a bin is never larger than a cell of the map, and the region that is the whole clip is the map.
    pooled: Tensor = roi_align(flat, rois, (height, width), width / size, sampling_ratio=1, aligned=True)
    return pooled.to(maps.dtype).view(batch, frames, *pooled.shape[1:]).transpose(1, 2)


def region_means(maps: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Average the maps of a frame over regions, each cell by the share of it that the region covers.

    One product of matrices: RoI average pooling to a single bin, exact where a sampled one is not.

    Args:
        maps: (C, H, W), of one frame.
        boxes: (R, 4) xyxy in pixels of the frame.
        height: Of the frame, pixels.
        width: Of the frame, pixels.

    Returns:
        (R, C).
    """
    rows = _cover(boxes[:, 1], boxes[:, 3], maps.shape[1], height)
    columns = _cover(boxes[:, 0], boxes[:, 2], maps.shape[2], width)
    weights = (rows[:, :, None] * columns[:, None, :]).flatten(1)  # (R, H * W), rows sum to 1
    return weights @ maps.flatten(1).T


def _cover(low: Tensor, high: Tensor, cells: int, pixels: int) -> Tensor:
    """How much of each of `cells` equal parts of an axis lies between low and high (R,), as shares: (R, cells)."""
    edges = torch.arange(cells + 1, device=low.device, dtype=low.dtype) * (pixels / cells)
    inner = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    inner = inner.clamp(min=0)
    return inner / inner.sum(dim=1, keepdim=True).clamp(min=1e-9)
