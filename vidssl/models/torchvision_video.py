"""Any network of `torchvision.models.video`, by its name there."""

from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.models.backbones import BACKBONES, Backbone

# torchvision.models.list_models(module=torchvision.models.video), without the import.
NETWORKS = (
    "mc3_18",
    "mvit_v1_b",
    "mvit_v2_s",
    "r2plus1d_18",
    "r3d_18",
    "s3d",
    "swin3d_b",
    "swin3d_s",
    "swin3d_t",
)


class TorchvisionVideo(Backbone):
    """A torchvision video network without its classifier, untrained."""

    class Config(Settings):
        """torchvision's own settings are kept."""

        name: str

    def __init__(self, config: Config) -> None:
        from torchvision.models import get_model  # seconds to import

        super().__init__()
        self.net = get_model(config.name, weights=None)
        # The classifier is the last linear (or, in s3d, 1x1x1 convolutional) layer, after which nothing
        # learns.
        path, layer = [(n, m) for n, m in self.net.named_modules() if isinstance(m, nn.Linear | nn.Conv3d)][
            -1
        ]
        parent = self.net.get_submodule(path.rpartition(".")[0])
        setattr(parent, path.rpartition(".")[2], nn.Identity())
        if isinstance(layer, nn.Linear):
            self.dim = layer.in_features
        elif isinstance(layer, nn.Conv3d):
            self.dim = layer.in_channels
        else:
            raise ConfigError(f"backbone '{config.name}' has no classifier to take off")

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, H, W) to (B, dim)."""
        features: Tensor = self.net(x)
        return features


for _name in NETWORKS:
    BACKBONES.register(_name)(TorchvisionVideo)
