"""The video networks of `torchvision.models.video`, under their names there.

Shapes: B clips, T frames, H x W pixels; dim features of a clip.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.models.backbones import BACKBONES, Backbone, run_stages

# torchvision.models.list_models(module=torchvision.models.video), without the slow import.
TORCHVISION_NETWORKS = ("mvit_v1_b", "mvit_v2_s", "s3d", "swin3d_b", "swin3d_s", "swin3d_t")
# The modules with the last maps. MViT's last block reads out its class token, so its maps are those before that block.
LAST_MAPS = {"mvit": "net.blocks.14", "s3d": "net.features", "swin3d": "net.norm"}
RESNETS = ("mc3_18", "r2plus1d_18", "r3d_18")


class TorchvisionVideo(Backbone):
    """An untrained torchvision video network without its classifier."""

    class Config(Settings):
        """The name; everything else is torchvision's default."""

        name: str

    def __init__(self, config: Config) -> None:
        from torchvision.models import get_model  # slow import

        super().__init__()
        self.name = config.name
        self.kind = config.name.split("_")[0]
        self.last_maps = LAST_MAPS.get(self.kind, self.last_maps)
        self.net = get_model(config.name, weights=None)
        # The classifier is the last linear layer; in s3d it is a 1x1x1 convolution.
        path, layer = [(n, m) for n, m in self.net.named_modules() if isinstance(m, nn.Linear | nn.Conv3d)][-1]
        self.net.set_submodule(path, nn.Identity())
        self.dim = layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) as features (B, dim)."""
        try:
            features: Tensor = self.net(x)
        except RuntimeError as error:
            if "smaller than kernel size" not in str(error):
                raise
            clip = " x ".join(map(str, x.shape[2:]))
            raise ConfigError(f"{self.name} cannot pool {clip} clips: use 16 frames of 224 pixels or more") from error
        return features

    def as_maps(self, output: Any, clips: int) -> Tensor:
        """Return the output of a module as maps: Swin's have channels last, those of MViT's blocks are tokens."""
        if self.kind == "swin3d" and isinstance(output, Tensor) and output.ndim == 5:
            return output.movedim(-1, 1)
        if self.kind == "mvit" and isinstance(output, tuple):
            tokens, sides = output  # (B, 1 + T' H' W', C), the class token first
            maps: Tensor = tokens[:, 1:].transpose(1, 2).unflatten(2, sides)
            return maps
        return super().as_maps(output, clips)


class TorchvisionResNet(TorchvisionVideo):
    """A torchvision video ResNet, whose layers have feature maps."""

    feature_layers = ("stem", "layer1", "layer2", "layer3", "layer4")

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T', H', W') of the layers named in `out` for clips (B, 3, T, H, W)."""
        self.check_layers(out)
        return run_stages(x, {name: getattr(self.net, name) for name in self.feature_layers}, out)

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module whose output has the maps of a layer."""
        return super().layer_module(f"net.{layer}" if layer in self.feature_layers else layer)


for _name in RESNETS:
    BACKBONES.register(_name)(TorchvisionResNet)
for _name in TORCHVISION_NETWORKS:
    BACKBONES.register(_name)(TorchvisionVideo)
