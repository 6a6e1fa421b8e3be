"""SwAV: Sinkhorn steps and the loss against loops, collapse, frozen prototypes, many views."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from vidssl.base.errors import ConfigError
from vidssl.losses import sinkhorn, swapped_prediction
from vidssl.methods import METHODS
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
Tiny = TINY["Tiny"]


def cosines(*shape, seed=5):
    source = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, generator=source, dtype=torch.float64) * 2 - 1


def batch(views=2):
    return TINY["batch"](sides=(4, 4, 3)[:views], seed=1, dtype=torch.float64)  # one is smaller, as in multi-crop


def codes(scores, epsilon, iterations):
    """The algorithm of the paper's appendix: prototypes in rows, each iteration scales rows, then columns."""
    q = np.exp(np.array(scores) / epsilon).T
    q /= q.sum()
    k, n = q.shape
    for _ in range(iterations):
        for row in range(k):
            q[row] *= 1 / k / sum(q[row])
        for column in range(n):
            q[:, column] *= 1 / n / sum(q[:, column])
    return (q * n).T


@pytest.mark.parametrize(("samples", "prototypes", "iterations"), [(6, 4, 1), (6, 4, 3), (3, 8, 3), (5, 5, 40)])
def test_assignments_are_those_of_the_algorithm(samples, prototypes, iterations):
    scores = cosines(samples, prototypes)
    actual = sinkhorn(scores, 0.05 if iterations < 40 else 0.5, iterations)
    expected = codes(scores.tolist(), 0.05 if iterations < 40 else 0.5, iterations)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(actual.sum(dim=1), torch.ones(samples, dtype=torch.float64))
    if iterations == 40:  # converged: each prototype is used equally
        torch.testing.assert_close(actual.sum(dim=0), torch.full((prototypes,), samples / prototypes).double())


@pytest.mark.parametrize(("views", "keys"), [(2, (0, 1)), (3, (0, 1)), (4, (2,))])
def test_the_loss_is_that_of_the_formula(views, keys):
    scores, tau = cosines(5, views, 6), 0.1
    terms = []
    for key in keys:
        q = codes(scores[:, key].tolist(), 0.05, 3)
        for v in range(views):
            for n in range(5):
                row = scores[n, v].tolist()
                total = math.log(sum(math.exp(s / tau) for s in row))
                if v != key:
                    terms.append(-sum(q[n][k] * (row[k] / tau - total) for k in range(6)))
    actual = swapped_prediction(scores, keys, tau, 0.05, 3)
    assert actual.item() == pytest.approx(sum(terms) / len(terms), rel=1e-10)


def swav(**settings):
    torch.manual_seed(0)
    kind = METHODS["swav"]
    head = Head(layers=2, hidden=16, out=5, norm="none")
    method = kind(kind.Config(projector=head, prototypes=7, **settings), Tiny()).double()
    method.after_step(0.0)  # normalises the prototypes in double precision
    return method


@pytest.mark.parametrize("views", [2, 3])
def test_the_scores_are_cosines_with_the_prototypes(views):
    method, data = swav(frozen=0.0), batch(views)
    z = [functional.normalize(method.projector(method.backbone(view)), dim=1) for view in data.views]
    scores = torch.stack([rows @ functional.normalize(method.prototypes, dim=1).T for rows in z], dim=1)
    expected = swapped_prediction(scores, (0, 1), 0.1, 0.05, 3)
    loss = method(data)["loss"]
    torch.testing.assert_close(loss, expected)
    (gradient,) = torch.autograd.grad(loss, method.prototypes, retain_graph=True)
    # That of normalised prototypes is its part along the sphere.
    (tangential,) = torch.autograd.grad(expected, method.prototypes)
    radial = (gradient * method.prototypes).sum(dim=1, keepdim=True) * method.prototypes
    torch.testing.assert_close(gradient - radial, tangential)


def test_prototypes_are_frozen_at_first_and_keep_unit_length():
    method = swav(frozen=0.5)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    before, moved = method.prototypes.detach().clone(), []
    for progress in (0.25, 0.5, 0.75):
        optimizer.zero_grad()
        method(batch())["loss"].backward()
        optimizer.step()
        method.after_step(progress)
        moved.append((method.prototypes.detach() - before).abs().max().item())
        torch.testing.assert_close(method.prototypes.norm(dim=1), torch.ones(7, dtype=torch.float64))
    assert max(moved[:2]) < 1e-7 and moved[2] > 1e-3


@pytest.mark.parametrize("keys", [(), (0, 2), (-1,)])
def test_key_views_must_be_there(keys):
    with pytest.raises(ConfigError, match=r"method.key_views \[.*\] do not fit the 2 views of data.views"):
        swav(key_views=keys)(batch())


def test_far_fewer_videos_than_prototypes_are_a_warning(caplog):
    swav()(batch())
    assert not caplog.messages
    kind = METHODS["swav"]
    kind(kind.Config(projector=Head(layers=1, out=5), prototypes=25), Tiny()).double()(batch())
    assert "6 videos per step are divided equally among 25 prototypes" in caplog.text
