"""PIRL's JigSaw branch (Misra & van der Maaten, 2020): a view cut into shuffled patches is still the same video."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import RngStream, generator
from vidssl.base.types import Batch
from vidssl.losses import unit
from vidssl.methods.base import Branch, Encoded, Method
from vidssl.models.heads import Head, mlp


class Jigsaw(Settings):
    """Settings of the branch."""

    grid: int = Field(default=3, ge=2)  # cells per side
    weight: float = Field(default=0.5, ge=0, le=1)  # of the branch in the loss
    # of each patch, before a linear layer joins them. linear: one layer, PIRL's; mlp: two layers with a ReLU, InfoMin's
    head: Literal["linear", "mlp"] = "linear"
    # number of the view that is cut, from 0, which is then neither query nor key; None: each query view is cut
    view: int | None = Field(default=None, ge=0)


class JigsawBranch(Branch):
    """Embeds each patch separately, joins them in random order by a linear layer, and compares the result with keys."""

    def __init__(self, config: Jigsaw, dim: int, out: int) -> None:  # of the backbone's output and the embedding
        super().__init__()
        self.config = config
        self.own_view = config.view
        two = Head(layers=2, hidden=dim, out=out, norm="none")
        self.patch = nn.Linear(dim, out) if config.head == "linear" else mlp(dim, two)
        self.join = nn.Linear(config.grid**2 * out, out)

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Weight the loss with that of the cut views as queries."""
        views = [*encoded.queries] if self.own_view is None else [self.own_view]
        queries = {view: self.embed(host, batch, view) for view in views}
        term, weight = host.compare(Encoded(queries, encoded.keys, encoded.negatives)), self.config.weight
        return {"loss": (1 - weight) * loss + weight * term}

    def embed(self, host: Method, batch: Batch, view: int) -> Tensor:
        """Embed one view, cut and shuffled, as unit rows (B, d)."""
        clips = batch.views[view]
        keys = ((host.step, record, view, RngStream.JIGSAW) for record in batch.index.tolist())
        patches = cut(clips, self.config.grid, [generator(host.seed, *key) for key in keys])
        vectors: Tensor = self.patch(host.backbone(patches.flatten(0, 1)))
        return unit(self.join(vectors.view(len(clips), -1)))


def cut(clips: Tensor, grid: int, sources: list[np.random.Generator]) -> Tensor:
    """Cut clips (B, C, T, S, S) into patches (B, grid², C, T, P, P), shuffled and at random places of their cells."""
    cell = clips.shape[-1] // grid
    side = round(0.75 * cell)  # of a patch: 64 of 85 pixels in PIRL
    if side < 1:
        raise ConfigError(f"a view of {clips.shape[-1]} pixels is too small for jigsaw.grid {grid}: lower it")
    corners = []
    for source in sources:
        order = source.permutation(grid**2)
        corner = cell * np.stack([order // grid, order % grid])
        # At a random place of its cell, so that edges do not reveal which cells are neighbours.
        corners.append(corner + source.integers(cell - side, endpoint=True, size=corner.shape))
    top, left = torch.from_numpy(np.stack(corners, axis=1)).to(clips.device)  # each (B, grid²)
    along = torch.arange(side, device=clips.device)
    rows, columns = (start.unsqueeze(2) + along for start in (top, left))  # (B, grid², P)
    sample = torch.arange(len(clips), device=clips.device).view(-1, 1, 1, 1)
    patches = clips[sample, :, :, rows.unsqueeze(3), columns.unsqueeze(2)]  # (B, grid², P, P, C, T)
    return patches.permute(0, 1, 4, 5, 2, 3)
