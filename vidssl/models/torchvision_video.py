"""The video networks of `torchvision.models.video`, under their names there.

Shapes: B clips, T frames, H x W pixels; dim features of a clip.
"""

from collections.abc import Sequence

from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone, run_stages

# torchvision.models.list_models(module=torchvision.models.video), without the slow import.
NETWORKS = ("mvit_v1_b", "mvit_v2_s", "s3d", "swin3d_b", "swin3d_s", "swin3d_t")
RESNETS = ("mc3_18", "r2plus1d_18", "r3d_18")


class TorchvisionVideo(Backbone):
    """An untrained torchvision video network without its classifier."""

    class Config(Settings):
        """The name; everything else is torchvision's default."""

        name: str

    def __init__(self, config: Config) -> None:
        from torchvision.models import get_model  # slow import

        super().__init__()
        self.net = get_model(config.name, weights=None)
        # The classifier is the last linear layer; in s3d it is a 1x1x1 convolution.
        layers = [(n, m) for n, m in self.net.named_modules() if isinstance(m, nn.Linear | nn.Conv3d)]
        path, layer = layers[-1]
        self.net.set_submodule(path, nn.Identity())
        self.dim = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        features: Tensor = self.net(x)
        return features


class TorchvisionResNet(TorchvisionVideo):
    """A torchvision video ResNet, whose layers have feature maps."""

    feature_layers = ("stem", "layer1", "layer2", "layer3", "layer4")

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T', H', W') of the layers named in `out` for clips (B, 3, T, H, W)."""
        self.check_layers(out)
        return run_stages(x, {name: getattr(self.net, name) for name in self.feature_layers}, out)


for _name in RESNETS:
    BACKBONES.register(_name)(TorchvisionResNet)
for _name in NETWORKS:
    BACKBONES.register(_name)(TorchvisionVideo)
