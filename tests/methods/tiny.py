"""Networks of a few numbers, and clips for them, for methods that are computed by hand beside them."""

import torch
from torch import nn

from vidssl.base.types import Batch
from vidssl.models.backbones import Backbone


class Tiny(Backbone):
    """The mean colour of each of two frames through a linear layer: any share of a batch gives the same."""

    dim = 8

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3 * 2, 8)

    def forward(self, x):
        return self.layer(x.mean(dim=(3, 4)).flatten(1)).tanh()


class TinyNorm(Backbone):
    """The same with a batch norm; it notes of each pass how many clips it saw, and their side."""

    dim = 8

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3 * 2, 8), nn.BatchNorm1d(8))
        self.passes = []

    def forward(self, x):
        self.passes.append((len(x), x.shape[-1]))
        return self.layers(x.mean(dim=(3, 4)).flatten(1))


def batch(views=2, size=6, sides=None, label=None, index=None, seed=7, dtype=torch.float32):
    """Noise of so many views of 4 pixels, or of views of these sides."""
    source = torch.Generator().manual_seed(seed)
    sides = sides or (4,) * views
    clips = tuple(torch.randn(size, 3, 2, side, side, generator=source, dtype=dtype) for side in sides)
    zeros = torch.zeros(size, dtype=torch.int64)
    return Batch(clips, torch.tensor(label) if label else zeros, torch.tensor(index) if index else torch.arange(size))
