"""A small ConvNet for each frame and an LSTM over the frames (Tian et al., 2020, "Good Views", section B.4).

Shapes: B clips, T frames, H x W pixels; dim features of a clip.
"""

from itertools import pairwise
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone

_Count = Annotated[int, Field(ge=1, le=4096)]


@BACKBONES.register("convnet_lstm")
class ConvNetLSTM(Backbone):
    """A ConvNet with average pooling encodes each frame; the features are the last output of a single-layer LSTM.

    Clips may have any number of frames. The supplement states filters, pooling and sizes; kernel, stride 2 and batch
    norms are those of vidssl.
    """

    class Config(Settings):
        filters: tuple[_Count, ...] = Field(default=(8, 16, 32, 64), min_length=1)
        kernel: int = Field(default=3, ge=1, le=31)  # side of the convolutions, pixels
        hidden: int = Field(default=64, ge=1, le=4096)  # of the LSTM, which is also its output

    def __init__(self, config: Config) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((3, *config.filters)):
            conv = nn.Conv2d(inputs, outputs, config.kernel, stride=2, padding=config.kernel // 2, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        self.convnet = nn.Sequential(*layers)
        self.lstm = nn.LSTM(config.filters[-1], config.hidden, batch_first=True)
        self.dim = config.hidden

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        frames = x.transpose(1, 2)  # (B, T, 3, H, W)
        pooled = self.convnet(frames.flatten(0, 1)).mean(dim=(2, 3))
        outputs: Tensor = self.lstm(pooled.view(*frames.shape[:2], -1))[0]  # (B, T, dim)
        return outputs[:, -1]
