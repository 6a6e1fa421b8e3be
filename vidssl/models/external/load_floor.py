"""What a trained network must exceed, without weights: `floor:thumbnails` and `floor:differences`."""

from torch import Tensor, nn
from torch.nn import functional

from vidssl.errors import CheckpointError
from vidssl.models.external import Encoder
from vidssl.models.external.facts import Facts
from vidssl.version import __version__

SIDE = 16  # pixels
_SIZE = 64


def load(name: str, trust: bool = False) -> Encoder:
    """Return a floor; see `vidssl.models.external`."""
    floors: dict[str, nn.Module] = {"thumbnails": _Thumbnails(), "differences": _Differences()}
    if name not in floors:
        raise CheckpointError(f"there is no floor:{name}: floor:thumbnails, floor:differences")
    return Encoder(
        network=floors[name],
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
