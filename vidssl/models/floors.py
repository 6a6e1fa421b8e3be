"""What learned nothing, and a trained network must exceed: encoders by the names `floor:NAME`."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.config import installed_configs, read
from vidssl.base.errors import CheckpointError
from vidssl.base.types import Frames
from vidssl.models.backbones import build_backbone
from vidssl.models.external import Called, Encoder
from vidssl.transforms.crops import Box, crop_resize


def load_floor(name: str, trust: bool) -> Encoder:
    """Return a floor, which has no weights."""
    if name not in FLOORS:
        raise CheckpointError(f"there is no floor:{name}: {', '.join(f'floor:{known}' for known in FLOORS)}")
    clips: dict[str, Any] = {"size": 64, "mean": (0.45,), "std": (0.225,), "frames": 4, "seconds": 1.28}
    if name == "motion":  # the course of the whole video, of its whole frames
        parts = {"clips": _PARTS, "join": "order"}
        clips |= {"frames": _FRAMES, "seconds": _FRAMES / _RATE, "crop": partial(_whole, size=64), "test": parts}
    network = FLOORS[name]()
    finish = getattr(network, "finish", None)
    return Encoder(network, **clips, finish=finish, licence="none needed", training=("none",), version=_VERSION)


_VERSION = "floors 1"  # is raised when features change, so that a release of vidssl alone invalidates none
_PARTS, _FRAMES, _RATE = 6, 9, 15  # of the video; of each part, and in a second
_DIRECTIONS, _CELLS = 8, 4  # cells in height and in width
_LEAST = 0.1  # pixels: shorter vectors are noise


class MotionHistogram(nn.Module):
    """Optical flow (DIS, Kroeger et al., 2016) of clips: lengths of its vectors by cell of the frame and direction.

    A histogram (B, 4 * 4 * 8) of lengths in pixels, a mean over the frames, and the roots of it (Hellinger's kernel).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, S, S)."""
        gray = (255 * (0.225 * x.mean(dim=1) + 0.45)).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
        flow = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        flow.setFinestScale(0)  # of small frames the flow of each pixel costs little
        calc: Callable[..., Any] = flow.calc
        flows = [np.stack([calc(*pair, None) for pair in pairwise(clip)]) for clip in gray]
        return torch.from_numpy(np.stack([*map(_histogram, flows)])).to(x.device)


def _histogram(flow: Any) -> Any:
    """Return the roots of the sums of lengths of vectors (N, S, S, 2) by cell and direction: (4 * 4 * 8)."""
    length, angle = np.hypot(flow[..., 0], flow[..., 1]), np.arctan2(flow[..., 1], flow[..., 0])
    direction = np.rint(angle / (2 * np.pi) * _DIRECTIONS).astype(np.int64) % _DIRECTIONS
    row, column = np.ogrid[: flow.shape[1], : flow.shape[2]]
    cell = row * _CELLS // flow.shape[1] * _CELLS + column * _CELLS // flow.shape[2]
    lengths = np.where(length > _LEAST, length, 0).ravel() / (len(flow) * flow[0, ..., 0].size / _CELLS**2)
    sums = np.bincount((cell * _DIRECTIONS + direction).ravel(), lengths, _CELLS**2 * _DIRECTIONS)
    return np.sqrt(sums.astype(np.float32))


def has_no_graph(network: nn.Module) -> bool:
    """Whether OpenCV computes the features: they cannot be exported."""
    return any(isinstance(module, MotionHistogram) for module in network.modules())


def _whole(frames: Frames, size: int) -> Frames:
    """Resize whole frames to squares: what moves at the sides counts too."""
    return crop_resize(frames, Box(0, 0, frames.shape[3], frames.shape[2]), size, size)


def _small(image: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Reduce clips (B, 3, T, H, W) to images, averaged to 16 x 16 pixels: (B, 768)."""
    return functional.adaptive_avg_pool2d(image(x), 16).flatten(1)


FLOORS: dict[str, Callable[[], nn.Module]] = {
    "thumbnails": partial(Called, lambda x: x[:, :, x.shape[2] // 2], _small),  # middle frames: colours and background
    "differences": partial(Called, lambda x: x.diff(dim=2).abs().mean(dim=2), _small),  # of consecutive frames: motion
    "motion": MotionHistogram,
    # The two streams of the config `small_cpu` with random weights, of the seed that the caller sets.
    "untrained": lambda: build_backbone(**read(installed_configs()["pretrain/small_cpu"])["backbone"]),
}
