"""ResNet3D-18 and -50, the slow path of SlowFast (SCE, Table 23), built from pytorchvideo's blocks.

Shapes: B clips, T frames, H x W pixels; C channels of a feature map; dim features of a clip.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field
from torch import Tensor, nn

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.registry import importing
from vidssl.models.backbones import BACKBONES, ResNet, run_stages
from vidssl.models.batch_norms import BatchNorm3d

_Kernel = tuple[int, int, int]


class ResNet3D(ResNet):
    """Stem 1x7x7, four stages, global average pooling; no temporal stride. Convolutions use c2_msra initialisation."""

    class Config(Settings):
        width: int = Field(default=64, ge=4, le=512)  # channels of the stem; the paper has 64
        # Initialise the last batch norm of each residual block with gamma 0 (the authors' code; not in the paper).
        # Short runs learn faster without it: untrained blocks then already respond to motion.
        zero_init: bool = True
        # Encode the T - 1 differences of consecutive frames instead of the frames: motion without appearance (Wang et
        # al., TSN, 2016: RGB difference).
        frame_differences: bool = False

    depths: tuple[int, int, int, int]  # blocks of each stage
    kernels: tuple[_Kernel, _Kernel, _Kernel, _Kernel]  # first convolution of a block, for each stage
    basic: bool  # basic blocks, else bottlenecks

    def __init__(self, config: Config) -> None:
        # Imported here because it takes seconds; by one thread at a time, as filters of warnings are global.
        with importing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pytorchvideo 0.1.5 uses torch.jit.script, now deprecated
            from pytorchvideo.models.net import Net
            from pytorchvideo.models.resnet import create_bottleneck_block, create_res_stage
            from pytorchvideo.models.stem import create_res_basic_stem

        super().__init__()
        self.frame_differences = config.frame_differences
        width, expansion = config.width, 1 if self.basic else 4  # output channels of a block, in inner ones
        stem = create_res_basic_stem(
            in_channels=3,
            out_channels=width,
            conv_kernel_size=(1, 7, 7),
            conv_padding=(0, 3, 3),
            norm=BatchNorm3d,
            pool=_FramePool,
        )
        stages, channels = [], width
        for n, (depth, kernel) in enumerate(zip(self.depths, self.kernels, strict=True)):
            inner, stride = width * 2**n, (1, 1, 1) if n == 0 else (1, 2, 2)
            stages.append(
                create_res_stage(
                    depth=depth,
                    dim_in=channels,
                    dim_inner=inner,
                    dim_out=inner * expansion,
                    bottleneck=_basic_block if self.basic else create_bottleneck_block,
                    conv_a_kernel_size=kernel,
                    conv_a_padding=tuple(k // 2 for k in kernel),
                    conv_a_stride=stride if self.basic else (1, 1, 1),
                    conv_b_stride=(1, 1, 1) if self.basic else stride,
                    norm=BatchNorm3d,
                )
            )
            channels = inner * expansion
        self.dim = channels
        self.net = Net(blocks=nn.ModuleList([stem, *stages]))
        for module in self.net.modules():
            if isinstance(module, nn.Conv3d):  # shortcuts have numbers of numpy, which torch.compile takes for tensors
                module.stride = tuple(map(int, module.stride))
            if getattr(module, "block_final_bn", False):
                nn.init.constant_(module.weight, 0.0 if config.zero_init else 1.0)

    def features(self, x: Tensor, out: Sequence[str]) -> list[Tensor]:
        """Compute the feature maps (B, C, T, H', W') of the layers named in `out` for clips (B, 3, T, H, W).

        With `frame_differences` they have T - 1 frames; clips of one frame are a ConfigError.
        """
        self.check_layers(out)
        if self.frame_differences:
            if x.shape[2] < 2:
                raise ConfigError(f"frame_differences needs clips of at least 2 frames, got {x.shape[2]}: raise frames")
            x = x.diff(dim=2)
        return run_stages(x, dict(zip(self.feature_layers, self.net.blocks, strict=True)), out)

    def layer_module(self, layer: str) -> nn.Module:
        """Return the module whose output has the maps of a layer."""
        blocks = dict(zip(self.feature_layers, self.net.blocks, strict=True))
        return blocks[layer] if layer in blocks else super().layer_module(layer)

    def layer4(self, maps: Tensor) -> Tensor:
        """Compute features (B, dim) from the output of res4."""
        features: Tensor = self.net.blocks[-1](maps)
        return features.mean(dim=(2, 3, 4))


@BACKBONES.register("resnet3d18")
class ResNet3D18(ResNet3D):
    """Basic blocks; temporal kernels of 3 in the first convolution of each block of res4 and res5."""

    depths = (2, 2, 2, 2)
    kernels = ((1, 3, 3), (1, 3, 3), (3, 3, 3), (3, 3, 3))
    basic = True


@BACKBONES.register("resnet3d50")
class ResNet3D50(ResNet3D):
    """Bottleneck blocks; temporal kernels of 3 in conv_a of each block of res4 and res5."""

    depths = (3, 4, 6, 3)
    kernels = ((1, 1, 1), (1, 1, 1), (3, 1, 1), (3, 1, 1))
    basic = False


class _FramePool(nn.Module):
    """2D max pooling of each frame: unlike `nn.MaxPool3d` deterministic on GPUs with every torch from 2.6 on."""

    def __init__(self, kernel_size: _Kernel, stride: _Kernel, padding: _Kernel) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(kernel_size[1:], stride[1:], padding[1:])

    def forward(self, x: Tensor) -> Tensor:
        frames = x.transpose(1, 2)  # (B, T, C, H, W); no copy where memory is channels last
        pooled: Tensor = self.pool(frames.flatten(0, 1))
        return pooled.view(*frames.shape[:2], *pooled.shape[1:]).transpose(1, 2)


def _basic_block(
    dim_in: int, dim_inner: int, dim_out: int, norm: Callable[..., nn.Module], activation: type[nn.ReLU], **conv: Any
) -> nn.Module:
    """Build a basic block's residual branch, which pytorchvideo lacks, from the arguments of its bottleneck."""
    kernel, stride, padding = conv["conv_a_kernel_size"], conv["conv_a_stride"], conv["conv_a_padding"]
    final = norm(dim_out)
    final.block_final_bn = True  # type: ignore[assignment]  # as pytorchvideo marks it
    return nn.Sequential(
        nn.Conv3d(dim_in, dim_inner, kernel, stride, padding, bias=False),
        norm(dim_inner),
        activation(inplace=True),
        nn.Conv3d(dim_inner, dim_out, conv["conv_b_kernel_size"], 1, conv["conv_b_padding"], bias=False),
        final,
    )
