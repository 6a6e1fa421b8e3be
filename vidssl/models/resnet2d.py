"""2D ResNets (He et al., 2016), applied frame by frame.

Shapes: B clips, T frames, H x W pixels; C channels of a feature map; dim features of a clip.
"""

from typing import Literal

from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone


class ResNet2D(Backbone):
    """torchvision's ResNet without its classifier; the features of a clip are the mean over its frames.

    It cannot see motion. A clip of one frame is an image.
    """

    class Config(Settings):
        name: str
        # Initialise the last batch norm of each residual block with gamma 0 (torchvision: zero_init_residual).
        zero_init: bool = False
        # cifar, for images of 32 to 96 pixels: a 3x3 first convolution with stride 1 and no first pooling (SimCLR,
        # section B.9; SCE, section D.1). All maps are four times as high and wide.
        stem: Literal["imagenet", "cifar"] = "imagenet"

    def __init__(self, config: Config) -> None:
        from torchvision.models import get_model  # slow import

        super().__init__()
        self.net = get_model(config.name, weights=None, zero_init_residual=config.zero_init)
        self.dim = self.net.fc.in_features
        self.net.fc = nn.Identity()
        if config.stem == "cifar":
            self.net.conv1 = nn.Conv2d(3, self.net.conv1.out_channels, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(self.net.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.net.maxpool = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        return self.layer4(self.layer3(x))

    def layer3(self, x: Tensor) -> Tensor:
        """Compute the output of the third stage (B, C, T, H / 16, W / 16); with the cifar stem H / 4, W / 4."""
        net, frames = self.net, x.transpose(1, 2)  # (B, T, 3, H, W)
        maps: Tensor = net.maxpool(net.relu(net.bn1(net.conv1(frames.flatten(0, 1)))))
        maps = net.layer3(net.layer2(net.layer1(maps)))
        return maps.view(*frames.shape[:2], *maps.shape[1:]).transpose(1, 2)

    def layer4(self, maps: Tensor) -> Tensor:
        """Compute features (B, dim), the mean over frames, from the output of the third stage."""
        frames = maps.transpose(1, 2)  # (B, T, C, H, W)
        features: Tensor = self.net.avgpool(self.net.layer4(frames.flatten(0, 1))).flatten(1)
        return features.view(*frames.shape[:2], self.dim).mean(dim=1)


for _name in ("resnet18", "resnet50"):
    BACKBONES.register(_name)(ResNet2D)
