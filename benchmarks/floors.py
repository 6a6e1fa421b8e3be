"""Trivial features of clips, the floors that a trained network must exceed: backbones without weights.

    PYTHONPATH=benchmarks vidssl test TEST.csv --train-list TRAIN.csv --imports floors --checkpoint random --clips 1 \
        --cfg sce_small 'backbone={name: thumbnails}' --crops 1 --protocol retrieval knn svm --out output/floor

`thumbnails` sees one frame, colours and background only; `frame_differences` sees motion only.
"""

from pydantic import Field
from torch import Tensor
from torch.nn import functional

from vidssl.base.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone


@BACKBONES.register("thumbnails")
class Thumbnails(Backbone):
    """The middle frame, averaged to `side` x `side` pixels."""

    class Config(Settings):
        side: int = Field(default=16, ge=1)

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.side = config.side
        self.dim = 3 * self.side**2

    def image(self, x: Tensor) -> Tensor:
        """Reduce clips (B, 3, T, H, W) to images (B, 3, H, W)."""
        return x[:, :, x.shape[2] // 2]

    def forward(self, x: Tensor) -> Tensor:
        """Compute features (B, 3 side²)."""
        return functional.adaptive_avg_pool2d(self.image(x), self.side).flatten(1)


@BACKBONES.register("frame_differences")
class FrameDifferences(Thumbnails):
    """The mean absolute difference of consecutive frames, averaged to `side` x `side` pixels."""

    def image(self, x: Tensor) -> Tensor:
        """Reduce clips (B, 3, T, H, W) to images (B, 3, H, W)."""
        return x.diff(dim=2).abs().mean(dim=2)
