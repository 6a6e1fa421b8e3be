"""Splits of a clip into two views: colour channels, frequencies, learned colours (Tian et al., 2020, B.2, B.3, B.5).

Shapes: clips and views (B, 3, T, H, W). A view of one or two channels has zeros in the others: a convolution of three
channels then computes what one of fewer channels would, since zeros contribute nothing.
"""

import math
from functools import cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.projects.views.color_spaces import SPACES, Space
from vidssl.projects.views.invertible_colors import ColorFlow


class Channels(Settings):
    """The first channel of a colour space, and the other two (section B.2)."""

    name: Literal["channels"]
    space: Space = "lab"


class Frequency(Settings):
    """A Gaussian blur, and the rest: v1 = Blur(x, sigma), v2 = x - v1 (section B.3)."""

    name: Literal["frequency"]
    sigma: float = Field(default=1.0, gt=0)  # pixels


class Learned(Settings):
    """The first channel, and the other two, of the output of a `color_flow`, which is not trained.

    `init` loads its weights; the settings are those that it was trained with.
    """

    name: Literal["learned"]
    flow: ColorFlow.Config = ColorFlow.Config()


SplitConfig = Annotated[Channels | Frequency | Learned, Field(discriminator="name")]


class Split(nn.Module):
    """Makes two views of a clip."""

    def __init__(self, config: Channels | Frequency | Learned) -> None:
        super().__init__()
        self.config = config
        if isinstance(config, Learned):
            self.flow = ColorFlow(config.flow).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Split a clip (B, 3, T, H, W) into two, in its own precision: autocast does not apply."""
        with torch.autocast(x.device.type, enabled=False):
            if isinstance(self.config, Frequency):
                low = gaussian_blur(x, self.config.sigma)
                return low, x - low
            if isinstance(self.config, Learned):
                return first_and_others(self.flow.transform(x))
            if x.min() < -1e-3 or x.max() > 1 + 1e-3:
                raise ConfigError(
                    f"the split channels needs pixels in [0, 1], got {x.min():.2f} to {x.max():.2f}: set "
                    "data.mean=[0.0] and data.std=[1.0]"
                )
            return first_and_others(SPACES[self.config.space](x))


def first_and_others(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first channel and the other two, each with zeros in place of the rest."""
    first = x.new_tensor([1.0, 0.0, 0.0]).view(3, 1, 1, 1)
    return x * first, x * (1 - first)


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Blur the frames of clips (B, C, T, H, W), reflected at their border; the kernel ends at 4 sigma."""
    rows, columns = (_blur_matrix(side, sigma).to(x) for side in x.shape[3:])
    return rows @ x @ columns.T


@cache
def _blur_matrix(side: int, sigma: float) -> Tensor:
    """Return the blur along one axis as a matrix (side, side): unlike a padded convolution of any kernel length."""
    radius = math.ceil(4 * sigma)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2)
    rows, period = np.arange(side)[:, None], max(2 * side - 2, 1)
    columns = side - 1 - np.abs((rows + offsets) % period - (side - 1))  # reflected at the centre of the border pixel
    matrix = np.zeros((side, side))
    for row, column in zip(matrix, columns, strict=True):
        np.add.at(row, column, weights / weights.sum())
    return torch.from_numpy(matrix)
