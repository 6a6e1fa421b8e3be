"""Two encoders, one for each of two views of a clip (Contrastive Multiview Coding, Tian et al., 2020).

Shapes: B clips, T frames, H x W pixels; dim features of a clip.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl.config import Settings, bind_choice, build
from vidssl.models.backbones import BACKBONES, Backbone
from vidssl.projects.views.view_splits import Split, SplitConfig


@BACKBONES.register("two_encoders")
class TwoEncoders(Backbone):
    """Two networks of one kind with separate weights; the features are those of both, joined.

    The split belongs to the network, so that tests see the views that it was trained on.
    """

    class Config(Settings):
        encoder: dict[str, Any] = Field(default={"name": "resnet18"})  # a backbone and its settings
        split: SplitConfig | None = None  # None: each encoder sees whole clips

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.split = None if config.split is None else Split(config.split)
        encoder = bind_choice(BACKBONES, config.encoder, "encoder")
        first, second = build(BACKBONES, encoder), build(BACKBONES, encoder)
        self.encoders = nn.ModuleList([first, second])
        self.dims = first.dim, second.dim
        self.dim = sum(self.dims)

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim); the second encoder sees `other` if it is given."""
        views = self._views(x, other)
        return torch.cat([encoder(view) for encoder, view in zip(self.encoders, views, strict=True)], dim=1)

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T', H', W') of layers of both encoders, joined along C."""
        maps = []
        for encoder, view in zip(self.encoders, self._views(x), strict=True):
            assert isinstance(encoder, Backbone)
            maps.append(encoder.features(view, out))
        return [torch.cat(pair, dim=1) for pair in zip(*maps, strict=True)]

    def _views(self, x: Tensor, other: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what each encoder sees."""
        if self.split is None:
            return x, x if other is None else other
        whole = self.split(x)
        return whole if other is None else (whole[0], self.split(other)[1])
