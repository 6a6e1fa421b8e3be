"""What a trained network must exceed, without weights: `floor:thumbnails`, `floor:differences`, `floor:untrained`."""

from torch import Tensor, nn
from torch.nn import functional

from vidssl.config import installed_configs, read
from vidssl.errors import CheckpointError
from vidssl.models.backbones import build_backbone
from vidssl.models.external import Encoder
from vidssl.models.external.facts import Facts
from vidssl.version import __version__

SIDE = 16  # pixels
_SIZE = 64


def load(name: str, trust: bool = False) -> Encoder:
    """Return a floor; see `vidssl.models.external`. All have the clips of the config `small_cpu`."""
    if name not in FLOORS:
        raise CheckpointError(f"there is no floor:{name}: {', '.join(f'floor:{known}' for known in FLOORS)}")
    return Encoder(
        network=FLOORS[name](),
        size=_SIZE,
        mean=(0.45,),
        std=(0.225,),
        frames=4,
        seconds=1.28,
        version=f"vidssl {__version__}",
        facts=Facts("none needed", ("none",)),
    )


class _Thumbnails(nn.Module):
    """The middle frame, averaged to 16 x 16 pixels: colours and background."""

    def image(self, x: Tensor) -> Tensor:
        """Reduce clips (B, 3, T, H, W) to images (B, 3, H, W)."""
        return x[:, :, x.shape[2] // 2]

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (B, 768)."""
        return functional.adaptive_avg_pool2d(self.image(x), SIDE).flatten(1)


class _Differences(_Thumbnails):
    """The mean absolute difference of consecutive frames, averaged likewise: motion."""

    def image(self, x: Tensor) -> Tensor:
        """Reduce clips (B, 3, T, H, W) to images (B, 3, H, W)."""
        return x.diff(dim=2).abs().mean(dim=2)


class _Untrained(nn.Module):
    """The two streams of the config `small_cpu` with random weights, of seed 0 as the caller draws them."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = build_backbone(**read(installed_configs()["pretrain/small_cpu"])["backbone"])

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (B, 256), unit vectors of each stream, so that both count alike in the mean of clips too."""
        return self.backbone.finish(self.backbone(x))


FLOORS: dict[str, type[nn.Module]] = {"thumbnails": _Thumbnails, "differences": _Differences, "untrained": _Untrained}
