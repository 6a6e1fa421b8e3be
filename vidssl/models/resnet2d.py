"""ResNets for pictures, applied frame by frame: He et al. (2016), by torchvision."""

import torchvision
from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone


class ResNet2D(Backbone):
    """torchvision's ResNet without its classifier; the features of a clip are the mean over its frames.

    It sees no motion. A clip of one frame is a picture.
    """

    class Config(Settings):
        """Settings of the network."""

        name: str
        # Start the last batch norm of each residual block from gamma 0 (torchvision: zero_init_residual).
        zero_init: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.net = torchvision.models.get_model(
            config.name, weights=None, zero_init_residual=config.zero_init
        )
        self.dim = self.net.fc.in_features
        self.net.fc = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) to (B, dim)."""
        frames = x.transpose(1, 2)  # (B, T, 3, H, W)
        features: Tensor = self.net(frames.flatten(0, 1))
        return features.view(*frames.shape[:2], self.dim).mean(dim=1)


for _name in ("resnet18", "resnet50"):
    BACKBONES.register(_name)(ResNet2D)
