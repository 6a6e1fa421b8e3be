"""VICReg: its terms against loops, what they reach at their minimum, and the method that weights them."""

import math
import runpy
from pathlib import Path

import pytest
import torch

from vidssl.base.errors import ConfigError
from vidssl.losses import vicreg
from vidssl.methods import METHODS
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
Tiny, batch = TINY["Tiny"], TINY["batch"]


def rows(count, views, d=4, seed=3):
    source = torch.Generator().manual_seed(seed)
    return 0.7 * torch.randn(count, views, d, generator=source, dtype=torch.float64) + 0.3


def loops(z):
    """The terms by Eq. 1-5 of the paper, with the means of its released code, over all pairs of views."""
    n, views, d = len(z), len(z[0]), len(z[0][0])
    mean = [[sum(z[i][v][j] for i in range(n)) / n for j in range(d)] for v in range(views)]

    def covariance(v, j, k):
        return sum((z[i][v][j] - mean[v][j]) * (z[i][v][k] - mean[v][k]) for i in range(n)) / (n - 1)

    hinge = [sum(max(0, 1 - math.sqrt(covariance(v, j, j) + 1e-4)) for j in range(d)) / d for v in range(views)]
    off = [sum(covariance(v, j, k) ** 2 for j in range(d) for k in range(d) if j != k) / d for v in range(views)]
    actual = {"invariance": 0, "variance": 0, "covariance": 0}
    pairs = [(v, w) for v in range(views) for w in range(v)]
    for v, w in pairs:
        squares = [(z[i][v][j] - z[i][w][j]) ** 2 for i in range(n) for j in range(d)]
        actual["invariance"] += sum(squares) / (n * d) / len(pairs)
        actual["variance"] += (hinge[v] + hinge[w]) / 2 / len(pairs)
        actual["covariance"] += (off[v] + off[w]) / len(pairs)
    return actual


@pytest.mark.parametrize(("count", "views"), [(2, 2), (6, 2), (6, 3), (5, 5)])
def test_terms_are_those_of_loops(count, views):
    z = rows(count, views)
    actual = vicreg(z)
    assert {name: term.item() for name, term in actual.items()} == pytest.approx(loops(z.tolist()), rel=1e-12)
    assert all(term > 1e-3 for term in actual.values())


def test_gradients_are_those_of_differences():
    z = rows(5, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: tuple(vicreg(x).values()), z)


def make(**settings):
    torch.manual_seed(0)
    config = METHODS["vicreg"].Config(projector=Head(layers=2, hidden=16, out=5, norm="none"), **settings)
    return METHODS["vicreg"](config, Tiny()).train()


@pytest.mark.parametrize("sides", [(4, 4), (4, 4, 6, 2)])
def test_the_loss_weights_the_terms(sides):
    method, data = make(invariance=7.0, variance=11.0, covariance=3.0), batch(sides=sides)
    with torch.no_grad():
        z = torch.stack([method.projector(method.backbone(view)) for view in data.views], dim=1)
    assert not torch.allclose(z.norm(dim=2), torch.ones(6, len(sides)))  # rows keep their length
    terms = loops(z.double().tolist())
    scalars = method(data)
    assert {name: scalars[name].item() for name in terms} == pytest.approx(terms, rel=1e-4)
    expected = 7 * terms["invariance"] + 11 * terms["variance"] + 3 * terms["covariance"]
    assert scalars["loss"].item() == pytest.approx(expected, rel=1e-4)
    assert scalars["embedding_std"].item() == pytest.approx(z.std(dim=0).mean().item(), rel=1e-5)
    assert scalars["key_rank_limit"] == 5
    method.watched = False
    assert method(data)["loss"] == scalars["loss"]


def test_one_video_is_refused():
    with pytest.raises(
        ConfigError, match=r"^the variance over videos needs at least 2 of them in a step, got 1: raise"
    ):
        make()(batch(size=1))


def test_one_view_is_refused():
    with pytest.raises(ConfigError, match=r"^1 view has no positives: data.views needs 2 recipes"):
        make()(batch(views=1))
