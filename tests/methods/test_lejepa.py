"""LeJEPA: the Epps-Pulley statistic against an integral, SIGReg's minimum, and the method."""

import cmath
import math
import runpy
from pathlib import Path

import pytest
import torch
from scipy.integrate import quad

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import RngStream
from vidssl.losses import epps_pulley, sigreg
from vidssl.methods import METHODS
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
Tiny, batch = TINY["Tiny"], TINY["batch"]


def normal(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def integral(samples):
    """N ∫ |φ_N(t) - φ(t)|² φ(t) dt over all t, by adaptive quadrature of the definition."""

    def integrand(t):
        empirical = sum(cmath.exp(1j * t * x) for x in samples) / len(samples)
        return abs(empirical - math.exp(-t * t / 2)) ** 2 * math.exp(-t * t / 2)

    return len(samples) * quad(integrand, -12, 12, limit=200)[0]


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.2, 0.0), (2.0, 0.0), (1.0, 1.5), (0.0, 0.0)])
@pytest.mark.parametrize("count", [1, 2, 24])
def test_the_statistic_is_the_integral(count, scale, shift):
    samples = scale * normal(count) + shift
    assert epps_pulley(samples).item() == pytest.approx(integral(samples.tolist()), rel=1e-4, abs=1e-4)


def test_sigreg_is_the_mean_over_views_and_directions():
    z, directions = normal(6, 2, 4), normal(4, 3, seed=5)
    total = 0.0
    for view in range(2):
        for m in range(3):
            direction = directions[:, m].tolist()
            length = math.sqrt(sum(x * x for x in direction))
            total += integral([sum(row[j] * direction[j] for j in range(4)) / length for row in z[:, view].tolist()])
    assert sigreg(z, directions).item() == pytest.approx(total / 6, rel=1e-4)
    assert torch.autograd.gradcheck(lambda x: sigreg(x, directions), z.requires_grad_())


def make(**settings):
    torch.manual_seed(0)
    config = METHODS["lejepa"].Config(projector=Head(layers=2, hidden=16, out=5, norm="none"), **settings)
    return METHODS["lejepa"](config, Tiny()).train()


@pytest.mark.parametrize(("sides", "first"), [((4, 4), None), ((4, 4, 6, 2), None), ((4, 4, 2), 2), ((4, 2, 2), 1)])
def test_the_loss_pulls_all_views_to_the_mean_of_the_global_ones(sides, first):
    method, data = make(coefficient=0.3, directions=7, global_views=first), batch(sides=sides)
    with torch.no_grad():
        z = torch.stack([method.projector(method.backbone(view)) for view in data.views], dim=1)
    squares = []
    for video in z.double():
        target = sum(video[: first or len(sides)]) / (first or len(sides))
        squares += [float((view[j] - target[j]) ** 2) for view in video for j in range(5)]
    invariance = sum(squares) / len(squares)
    source = method.generator(RngStream.DIRECTIONS, 0, z.device)
    regular = sigreg(z, torch.randn(5, 7, generator=source)).item()
    scalars = method(data)
    assert scalars["invariance"].item() == pytest.approx(invariance, rel=1e-4)
    assert scalars["sigreg"].item() == pytest.approx(regular, rel=1e-4)
    assert scalars["loss"].item() == pytest.approx(0.7 * invariance + 0.3 * regular, rel=1e-4)
    assert scalars["embedding_std"].item() == pytest.approx(z.std(dim=0, correction=0).mean().item(), rel=1e-5)
    assert scalars["key_rank_limit"] == 5
    method.watched = False
    assert method(data)["loss"] == scalars["loss"]


def test_directions_are_drawn_anew_in_each_step():
    method, data = make(directions=2), batch()
    first = method(data)
    assert method(data)["sigreg"] == first["sigreg"]  # a function of seed and step
    method.after_step(0.5)
    again = method(data)
    assert again["sigreg"] != first["sigreg"] and again["invariance"] == first["invariance"]


def test_more_global_views_than_views_are_refused():
    with pytest.raises(ConfigError, match=r"^method.global_views 3 exceeds the 2 views of data.views$"):
        make(global_views=3)(batch())
