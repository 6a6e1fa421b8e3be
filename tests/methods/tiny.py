"""Networks of a few numbers, for methods that are computed by hand beside them."""

from torch import nn

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
