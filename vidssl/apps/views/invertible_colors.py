"""Invertible maps of the colour space, the generators of learned views (Tian et al., 2020, section B.5, Figure 3).

Shapes: clips (B, 3, T, H, W); every pixel is mapped alone.
"""

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl.base.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone


class _Block(nn.Module):
    """X1 is one channel, X2 the other two; F and G are pixel-wise networks.

    Volume preserving: Y1 = X1 + F(X2), Y2 = X2 + G(Y1). Otherwise: Y1 = X1 exp(tanh F(X2)) + G(X2), Y2 = X2.
    """

    def __init__(self, single: int, hidden: int, volume_preserving: bool) -> None:
        super().__init__()
        self.order = [single, *(channel for channel in range(3) if channel != single)]
        self.volume_preserving = volume_preserving
        self.f = _pixel_wise(2, 1, hidden)
        self.g = _pixel_wise(1, 2, hidden) if volume_preserving else _pixel_wise(2, 1, hidden)

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x[:, self.order[:1]], x[:, self.order[1:]]
        if self.volume_preserving:
            x1 = x1 + self.f(x2)
            x2 = x2 + self.g(x1)
        else:
            x1 = x1 * self.f(x2).tanh().exp() + self.g(x2)
        parts = torch.cat([x1, x2], dim=1)
        return parts[:, [self.order.index(channel) for channel in range(3)]]


def _pixel_wise(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
    """Build two 1x1x1 convolutions. The second starts at zero, so that the map starts as the identity."""
    last = nn.Conv3d(hidden, outputs, 1)
    nn.init.zeros_(last.weight)
    assert last.bias is not None
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Conv3d(inputs, hidden, 1), nn.ReLU(), last)


@BACKBONES.register("color_flow")
class ColorFlow(Backbone):
    """An invertible map of colours, which `view_learning` trains: the views are its first channel and the other two.

    As a backbone its features are the mean of each channel, and its only layer is `views`.
    """

    feature_layers = ("views",)
    dim = 3

    class Config(Settings):
        # X1 is the first channel in the first block, then the second, the third …
        blocks: int = Field(default=6, ge=1, le=256)
        hidden: int = Field(default=16, ge=1, le=4096)  # channels of F and G
        volume_preserving: bool = True

    def __init__(self, config: Config) -> None:
        super().__init__()
        blocks = [_Block(n % 3, config.hidden, config.volume_preserving) for n in range(config.blocks)]
        self.blocks = nn.Sequential(*blocks)

    def transform(self, x: Tensor) -> Tensor:
        """Map the colours of clips (B, 3, T, H, W)."""
        mapped: Tensor = self.blocks(x)
        return mapped

    def forward(self, x: Tensor) -> Tensor:
        """Compute the mean of each channel of the mapped clips: (B, 3)."""
        return self.transform(x).mean(dim=(2, 3, 4))

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the mapped clips (B, 3, T, H, W), the layer `views`."""
        self.check_layers(out)
        return [self.transform(x)] * len(out)
