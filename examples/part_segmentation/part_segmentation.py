"""Plug-in: a decoder that predicts the parts of an object from one feature vector or map, and the reader of its masks.

A config loads it with `imports: [part_segmentation]`; this folder must be on PYTHONPATH.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import Batch
from vidssl.data.dataset import ClipDataset
from vidssl.losses import full, full_precision
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import Backbone
from vidssl.models.layer_features import count_channels

IGNORED = 255  # label of pixels that are not counted


def read_mask(path: str, height: int, width: int) -> NDArray[np.uint8]:
    """Read the mask of a frame: a PNG with one channel of 8 bits, or with a palette, whose indices are the labels.

    Args:
        path: The file.
        height: Of the frame, pixels.
        width: Of the frame, pixels.

    Returns:
        (H, W) uint8: part of each pixel, `IGNORED` where it is not counted.

    Raises:
        DataError: The file is missing, damaged, not such a PNG, or not of the size of the frame.
    """
    try:
        with Image.open(path, formats=("PNG",)) as image:
            # Pillow scales gray values of 2 and 4 bits to 0-255, which would change the labels.
            if image.mode not in ("L", "P") or (image.mode == "L" and image.tile[0][3] != "L"):
                raise DataError(f"mask {path} has mode {image.mode}, not one channel of 8 bits")
            if image.size != (width, height):  # known from the header: nothing is decoded yet
                size = "x".join(map(str, image.size))
                raise DataError(f"mask {path} is {size}, the frame is {width}x{height}")
            return np.asarray(image, np.uint8).copy()
    except FileNotFoundError:
        raise DataError(f"mask {path}: No such file") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"mask {path} is not a PNG, or damaged: {error}") from None


ClipDataset.read_mask = read_mask  # from now on samples have the masks of their list


@METHODS.register("part_segmentation")
class PartSegmentation(Method):
    """A small decoder from the backbone's vector to a map of parts (Purushwalkam & Gupta, 2020, section C).

    Four transposed convolutions, 1 -> 4 -> 8 -> 16 -> 32, trained by cross-entropy. With `map_layer` it starts from the
    map of that layer, mean over time, and each convolution doubles it (Tian et al., *What Makes for Good Views for
    Contrastive Learning?*, 2020, section B.2). Batch norm and ReLU between them are those of DCGAN (Radford et al.,
    2016), since neither paper names any: they make the decoder independent of the scale of the features, which differs
    between backbones.
    """

    class Config(Settings):
        """Settings of the decoder."""

        parts: int = Field(ge=2, le=IGNORED)  # masks hold 0 ... parts - 1, and IGNORED
        channels: int = Field(default=64, ge=1)  # before the last convolution; doubled at each one before
        freeze: bool = True  # the backbone, batch norms included
        map_layer: str | None = None  # whose map is decoded; None: the pooled vector

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(config, backbone)
        if config.freeze:
            backbone.requires_grad_(False)
        wide, middle, narrow = 4 * config.channels, 2 * config.channels, config.channels
        first_layers = (
            _upsample(backbone.dim, wide, stride=1, padding=0)  # 1 -> 4
            if config.map_layer is None
            else _upsample(count_channels(backbone, config.map_layer), wide)
        )
        self.decoder = nn.Sequential(
            *first_layers,
            *_upsample(wide, middle),
            *_upsample(middle, narrow),
            nn.ConvTranspose2d(narrow, config.parts, 4, stride=2, padding=1),
        )

    def train(self, mode: bool = True) -> "PartSegmentation":
        """Set the mode; a frozen backbone stays in eval mode."""
        super().train(mode)
        if self.config.freeze:
            self.backbone.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and accuracy over pixels: mean within each image, then over images."""
        if batch.mask is None:
            raise ConfigError("part_segmentation needs a list with a column 'mask'")
        if len(batch.views) != 1:
            raise ConfigError(f"part_segmentation needs one recipe in data.views, got {len(batch.views)}")
        logits = self.segment(batch.views[0], batch.mask.shape[-1])
        with full_precision(batch.mask.device):
            return part_losses(logits, batch.mask)

    def segment(self, clips: Tensor, size: int) -> Tensor:
        """Float32 logits (B, parts, size, size) for clips (B, C, T, S, S)."""
        if self.config.map_layer is None:
            maps = self.backbone(clips)[:, :, None, None]
        else:
            maps = self.backbone.features(clips, (self.config.map_layer,))[0].mean(dim=2)
        with full_precision(maps.device):
            logits = self.decoder(full(maps))  # (B, parts, 32, 32), of a layer 16 times its map
            # The logits are resized, not the mask: 32x32 would lose thin parts.
            return functional.interpolate(logits, (size, size), mode="bilinear", align_corners=False)


def part_losses(logits: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Cross-entropy and pixel accuracy; each image has the same weight, pixels of 255 have none.

    With the mean within each image first, the result does not depend on how images are split into micro-batches or
    over processes. An image without a counted pixel contributes 0.

    Args:
        logits: (B, parts, S, S).
        mask: (B, S, S) int64 in [0, parts), or 255.

    Returns:
        `loss`, and `pixel_accuracy` in [0, 1].

    Raises:
        ConfigError: A mask holds a label outside [0, parts).
    """
    counted = counted_pixels(mask, logits.shape[1])
    # Pixels as rows: cross_entropy on maps has no deterministic kernel on GPUs.
    rows = logits.movedim(1, -1).flatten(0, -2)
    losses = functional.cross_entropy(rows, mask.flatten(), ignore_index=IGNORED, reduction="none")
    pixels = counted.sum(dim=(1, 2)).clamp(min=1)
    right = (logits.argmax(dim=1) == mask) & counted
    return {
        "loss": (losses.view(mask.shape).sum(dim=(1, 2)) / pixels).mean(),
        "pixel_accuracy": (right.sum(dim=(1, 2)) / pixels).mean(),
    }


def counted_pixels(mask: Tensor, parts: int) -> Tensor:
    """Boolean map of the counted pixels of masks (B, S, S).

    Raises:
        ConfigError: A mask holds a label outside [0, parts).
    """
    counted = mask != IGNORED
    largest = int((mask * counted).max())
    if largest >= parts:
        raise ConfigError(f"a mask holds part {largest}, method.parts is {parts}: set method.parts={largest + 1}")
    return counted


def _upsample(inner: int, outer: int, stride: int = 2, padding: int = 1) -> list[nn.Module]:
    convolution = nn.ConvTranspose2d(inner, outer, 4, stride=stride, padding=padding, bias=False)
    return [convolution, nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
