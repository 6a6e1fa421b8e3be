"""Which part of an object is where, told from one vector: how much of an object's layout a representation keeps."""

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from vidssl.config import Settings
from vidssl.data.masks import NOT_COUNTED
from vidssl.errors import ConfigError
from vidssl.losses import full, full_precision
from vidssl.methods.base import METHODS, Method
from vidssl.models.backbones import Backbone
from vidssl.types import Batch


@METHODS.register("part_segmentation")
class PartSegmentation(Method):
    """A small decoder from the backbone's vector to a map of parts (Purushwalkam & Gupta, 2020, section C).

    Four transposed convolutions, 1 -> 4 -> 8 -> 16 -> 32, compared with the mask by cross-entropy. The paper says no
    more of them; batch norm and ReLU between them are those of DCGAN (Radford et al., 2016): they make the decoder
    indifferent to the scale of the vector, which differs from backbone to backbone.
    """

    class Config(Settings):
        """Settings of the decoder."""

        parts: int = Field(
            ge=2, le=NOT_COUNTED
        )  # masks hold 0 ... parts - 1, and 255 where nothing is counted
        channels: int = Field(
            default=64, ge=1
        )  # before the last convolution; twice and four times as many before
        freeze: bool = True  # the backbone, batch norms included

    def __init__(self, config: Config, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.config = config
        if config.freeze:
            backbone.requires_grad_(False)
        wide, middle, narrow = 4 * config.channels, 2 * config.channels, config.channels
        self.decoder = nn.Sequential(
            *_grow(backbone.dim, wide, stride=1, padding=0),  # 1 -> 4
            *_grow(wide, middle),
            *_grow(middle, narrow),
            nn.ConvTranspose2d(narrow, config.parts, 4, stride=2, padding=1),
        )

    def train(self, mode: bool = True) -> "PartSegmentation":
        """Switch to training, or not; a frozen backbone stays as it is."""
        super().train(mode)
        if self.config.freeze:
            self.backbone.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy and accuracy, the mean over images of the mean over each one's counted pixels."""
        if batch.mask is None or len(batch.views) != 1:
            raise ConfigError(
                f"part_segmentation compares one view with its mask: {len(batch.views)} views, "
                + (
                    "and the list has no column 'mask'"
                    if batch.mask is None
                    else "give data.views one recipe"
                )
            )
        mask = batch.mask
        logits = self.segment(batch.views[0], mask.shape[-1])
        with full_precision(mask.device):
            return part_losses(logits, mask)

    def segment(self, clips: Tensor, size: int) -> Tensor:
        """Compute float32 logits of the parts (B, parts, size, size) for clips (B, C, T, S, S)."""
        vectors = self.backbone(clips)
        with full_precision(vectors.device):
            logits = self.decoder(full(vectors)[:, :, None, None])  # (B, parts, 32, 32)
            # To the mask, not the mask to 32x32: thin parts stay, and the loss is about the pixels that are counted.
            return functional.interpolate(logits, (size, size), mode="bilinear", align_corners=False)


def part_losses(logits: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Compare logits of parts with masks; pixels of 255 are not counted, and each image counts alike.

    The mean within each image comes first, so that the loss depends neither on micro-batches nor on processes: their
    images are of one number, their counted pixels are not. An image without a counted pixel adds nothing.

    Args:
        logits: (B, parts, S, S).
        mask: (B, S, S) int64 in [0, parts), or 255.

    Returns:
        `loss`, and `pixel_accuracy` in [0, 1].

    Raises:
        ConfigError: The masks hold a part that there are no logits for.
    """
    counted = counted_pixels(mask, logits.shape[1])
    # Pixels as rows: the kernel for maps has no deterministic form on a GPU.
    rows = logits.movedim(1, -1).flatten(0, -2)
    losses = functional.cross_entropy(rows, mask.flatten(), ignore_index=NOT_COUNTED, reduction="none").view(
        mask.shape
    )
    pixels = counted.sum(dim=(1, 2)).clamp(min=1)
    right = (logits.argmax(dim=1) == mask) & counted
    return {
        "loss": (losses.sum(dim=(1, 2)) / pixels).mean(),
        "pixel_accuracy": (right.sum(dim=(1, 2)) / pixels).mean(),
    }


def counted_pixels(mask: Tensor, parts: int) -> Tensor:
    """Tell which pixels of masks (B, S, S) are counted.

    Raises:
        ConfigError: They hold a part that is none of `parts`.
    """
    counted = mask != NOT_COUNTED
    largest = int((mask * counted).max())
    if largest >= parts:
        raise ConfigError(
            f"a mask holds part {largest}, from 0, and method.parts is {parts}: give method.parts={largest + 1}"
        )
    return counted


def _grow(inner: int, outer: int, stride: int = 2, padding: int = 1) -> list[nn.Module]:
    convolution = nn.ConvTranspose2d(inner, outer, 4, stride=stride, padding=padding, bias=False)
    return [convolution, nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]
