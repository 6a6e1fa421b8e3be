"""What learned nothing, and a trained network must exceed: encoders by the names `floor:NAME`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from vidssl.config import installed_configs, read
from vidssl.errors import CheckpointError
from vidssl.models.backbones import build_backbone
from vidssl.models.external import Called, Encoder


def load_floor(name: str, trust: bool) -> Encoder:
    """Return a floor, which has no weights."""
    if name not in FLOORS:
        raise CheckpointError(f"there is no floor:{name}: {', '.join(f'floor:{known}' for known in FLOORS)}")
    clips: dict[str, Any] = {"size": 64, "mean": (0.45,), "std": (0.225,), "frames": 4, "seconds": 1.28}
    network = FLOORS[name]()
    finish = getattr(network, "finish", None)
    return Encoder(network, **clips, finish=finish, licence="none needed", training=("none",))


def _small(image: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Reduce clips (B, 3, T, H, W) to images, averaged to 16 x 16 pixels: (B, 768)."""
    return functional.adaptive_avg_pool2d(image(x), 16).flatten(1)


FLOORS: dict[str, Callable[[], nn.Module]] = {
    "thumbnails": partial(Called, lambda x: x[:, :, x.shape[2] // 2], _small),  # middle frames: colours and background
    "differences": partial(Called, lambda x: x.diff(dim=2).abs().mean(dim=2), _small),  # of consecutive frames: motion
    # The two streams of the config `small_cpu` with random weights, of the seed that the caller sets.
    "untrained": lambda: build_backbone(**read(installed_configs()["pretrain/small_cpu"])["backbone"]),
}
