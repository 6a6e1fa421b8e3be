"""The JigSaw branch of PIRL: a view cut into patches and shuffled is still the same video."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.models.backbones import Backbone
from vidssl.models.heads import Head, mlp
from vidssl.randomness import generator

_DRAWS = 2  # the draws of a record in a step, beside those of other parts
_SIDE = 0.75  # of a patch, in sides of its cell: 64 of 85 pixels in PIRL


class Jigsaw(Settings):
    """Settings of the branch."""

    grid: int = Field(default=3, ge=2)  # cells of a side
    weight: float = Field(default=0.5, ge=0, le=1)  # of the branch in the loss
    # Of each patch, before they are joined: PIRL's linear layer, or the hidden layer and ReLU that InfoMin adds.
    head: Literal["linear", "mlp"] = "linear"
    view: int | None = Field(
        default=None, ge=0
    )  # the only view that is cut; None: all that are compared are cut


def whole_views(jigsaw: Jigsaw | None, views: int) -> list[int]:
    """List the views that a method compares whole: all except `jigsaw.view`.

    Raises:
        ConfigError: `jigsaw.view` does not exist, or is the only view.
    """
    if jigsaw is None or jigsaw.view is None:
        return list(range(views))
    if jigsaw.view >= views or views == 1:
        raise ConfigError(
            f"jigsaw.view {jigsaw.view} and {views} views do not fit: data.views needs a recipe for it beside others"
        )
    return [n for n in range(views) if n != jigsaw.view]


class JigsawBranch(nn.Module):
    """Encodes each patch alone; the vectors, in random order, are joined by a linear layer to one embedding.

    All frames of a clip are cut alike. Each patch lies at a random place of its cell, so that edges do not tell which
    cells are neighbours. (Misra & van der Maaten, 2020, section 3.2; the head `mlp`: Tian et al., 2020, C.3.)

    Args:
        config: Of the branch.
        dim: Of the backbone's output.
        out: Of the embedding.
    """

    def __init__(self, config: Jigsaw, dim: int, out: int) -> None:
        super().__init__()
        self.config = config
        two = Head(layers=2, hidden=dim, out=out, norm="none")
        self.patch = nn.Linear(dim, out) if config.head == "linear" else mlp(dim, two)
        self.join = nn.Linear(config.grid**2 * out, out)
        self._seed = torch.initial_seed()  # that of the run, when it is built

    def forward(self, backbone: Backbone, clips: Tensor, index: Tensor, step: int, view: int) -> Tensor:
        """Embed clips (B, C, T, S, S) of the records `index` (B,), cut and shuffled, to (B, out)."""
        sources = [generator(self._seed, step, record, view, _DRAWS) for record in index.tolist()]
        patches = cut(clips, self.config.grid, sources)
        vectors: Tensor = self.patch(backbone(patches.flatten(0, 1)))
        embedding: Tensor = self.join(vectors.view(len(clips), -1))
        return embedding


def cut(clips: Tensor, grid: int, sources: list[np.random.Generator]) -> Tensor:
    """Cut clips (B, C, T, S, S) into patches (B, grid², C, T, P, P), shuffled and at random places of their cells.

    Raises:
        ConfigError: The clips are smaller than the grid.
    """
    cell = clips.shape[-1] // grid
    side = round(_SIDE * cell)
    if side < 1:
        raise ConfigError(f"a view of {clips.shape[-1]} pixels has no room for jigsaw.grid {grid}: lower it")
    corners = []
    for source in sources:
        order = source.permutation(grid**2)
        corner = cell * np.stack([order // grid, order % grid])
        corners.append(corner + source.integers(cell - side, endpoint=True, size=corner.shape))
    top, left = torch.from_numpy(np.stack(corners, axis=1)).to(clips.device)  # each (B, grid²)
    along = torch.arange(side, device=clips.device)
    rows, columns = (start.unsqueeze(2) + along for start in (top, left))  # (B, grid², P)
    sample = torch.arange(len(clips), device=clips.device).view(-1, 1, 1, 1)
    patches = clips[sample, :, :, rows.unsqueeze(3), columns.unsqueeze(2)]  # (B, grid², P, P, C, T)
    return patches.permute(0, 1, 4, 5, 2, 3)
