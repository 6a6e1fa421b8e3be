"""2D ResNets (He et al., 2016), applied frame by frame.

Shapes: B clips, T frames, H x W pixels; C channels of a feature map; dim features of a clip.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from vidssl.base.config import Settings
from vidssl.models.backbones import BACKBONES, ResNet, run_stages


class ResNet2D(ResNet):
    """torchvision's ResNet or ResNeXt without its classifier; the features of a clip are the mean over its frames.

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
        from torchvision.models import get_model, resnet  # slow import

        super().__init__()
        if config.name == "resnext152_32x8d":  # torchvision has no builder for it
            wide = {"groups": 32, "width_per_group": 8}
            self.net = resnet.ResNet(resnet.Bottleneck, [3, 8, 36, 3], zero_init_residual=config.zero_init, **wide)
        else:
            self.net = get_model(config.name, weights=None, zero_init_residual=config.zero_init)
        self.dim = self.net.fc.in_features
        self.net.fc = nn.Identity()
        if config.stem == "cifar":
            self.net.conv1 = nn.Conv2d(3, self.net.conv1.out_channels, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(self.net.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.net.maxpool = nn.Identity()

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T, H', W') of the layers named in `out` for clips (B, 3, T, H, W)."""
        self.check_layers(out)
        net, frames = self.net, x.transpose(1, 2)  # (B, T, 3, H, W)
        stages: dict[str, Callable[[Tensor], Tensor]] = {name: getattr(net, name) for name in self.feature_layers[1:]}
        stem = {"stem": lambda x: net.maxpool(net.relu(net.bn1(net.conv1(x))))}
        outputs = run_stages(frames.flatten(0, 1), {**stem, **stages}, out)
        return [maps.view(*frames.shape[:2], *maps.shape[1:]).transpose(1, 2) for maps in outputs]

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module whose output has the maps of a layer."""
        path = {"stem": "net.maxpool"} | {name: f"net.{name}" for name in self.feature_layers[1:]}
        return super().layer_module(path.get(layer, layer))

    def layer4(self, maps: Tensor) -> Tensor:
        """Compute features (B, dim), the mean over frames, from the output of the third stage."""
        frames = maps.transpose(1, 2)  # (B, T, C, H, W)
        features: Tensor = self.net.avgpool(self.net.layer4(frames.flatten(0, 1))).flatten(1)
        return features.view(*frames.shape[:2], self.dim).mean(dim=1)


_RESNEXTS = ("resnext50_32x4d", "resnext101_32x8d", "resnext152_32x8d")
RESNETS_2D = ("resnet18", "resnet50", "resnet101", "resnet152", *_RESNEXTS)
for _name in RESNETS_2D:
    BACKBONES.register(_name)(ResNet2D)
