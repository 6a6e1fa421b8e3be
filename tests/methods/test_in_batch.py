"""Contrast within the batch: NT-Xent and L_out against loops, and the two methods that use them."""

import math
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vidssl.base.errors import ConfigError
from vidssl.losses import nt_xent
from vidssl.methods import METHODS
from vidssl.methods.in_batch import group_statistics
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
Tiny, batch = TINY["Tiny"], partial(TINY["batch"], size=4, label=(0, 1, 1, 2), index=(4, 9, 2, 7))

TAU = 0.2
HEAD = Head(layers=2, hidden=16, out=5, norm="none")


def rows(count, seed=3):
    source = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(count, 6, generator=source, dtype=torch.float64), dim=1)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def anchor_loss(z, group, i):
    """Khosla et al., 2020, Eq. 2, of one anchor; None where it has no positive."""
    others = [a for a in range(len(z)) if a != i]
    positives = [p for p in others if group[p] == group[i]]
    total = sum(math.exp(dot(z[i], z[a]) / TAU) for a in others)
    terms = [math.log(math.exp(dot(z[i], z[p]) / TAU) / total) for p in positives]
    return -sum(terms) / len(positives) if positives else None


def loop(z, group, anchors=None):
    actual = [anchor_loss(z.tolist(), group, i) for i in (anchors or range(len(z)))]
    actual = [loss for loss in actual if loss is not None]
    return sum(actual) / len(actual) if actual else 0.0


GROUPS = {
    "pairs": [0, 1, 2, 3, 0, 1, 2, 3],
    "four views": [5, 5, 5, 5, 2, 2, 2, 2],
    "classes of all sizes": [7, 7, 7, 1, 1, 4, 0, 0],
    "one class": [1] * 8,
    "nobody has a positive": list(range(8)),
}


@pytest.mark.parametrize("name", GROUPS)
def test_value_is_that_of_the_formula(name):
    z, group = rows(8), GROUPS[name]
    assert nt_xent(z, torch.tensor(group), TAU).item() == pytest.approx(loop(z, group), rel=1e-12)
    # So the differences of these values are those of the formula.
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: nt_xent(x, torch.tensor(group), TAU), z, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", GROUPS)
def test_losses_of_the_processes_average_to_that_of_all_anchors(name):
    z, group = rows(8), torch.tensor(GROUPS[name])
    parts = [nt_xent(z, group, TAU, slice(n, n + 4)) for n in (0, 4)]
    torch.testing.assert_close(sum(parts) / 2, nt_xent(z, group, TAU), rtol=1e-12, atol=1e-12)


def test_a_row_all_alone_has_no_loss_and_a_gradient():
    z = rows(1).requires_grad_()
    loss = nt_xent(z, torch.zeros(1, dtype=torch.int64), TAU)
    loss.backward()
    assert loss == 0 and torch.equal(z.grad, torch.zeros_like(z))


def test_statistics_are_those_of_loops():
    z, group = rows(7), [0, 0, 1, 1, 1, 2, 3]
    pairs = [(i, j) for i in range(7) for j in range(7) if i != j]
    positive = [float(dot(z[i], z[j])) for i, j in pairs if group[i] == group[j]]
    negative = [float(dot(z[i], z[j])) for i, j in pairs if group[i] != group[j]]
    mean = sum(negative) / len(negative)
    statistics = group_statistics(z, torch.tensor(group))
    assert statistics["positive_similarity"].item() == pytest.approx(sum(positive) / len(positive))
    assert statistics["negative_similarity"].item() == pytest.approx(mean)
    spread = math.sqrt(sum((x - mean) ** 2 for x in negative) / len(negative))
    assert statistics["negative_spread"].item() == pytest.approx(spread)
    first = [group.index(number) for number in (0, 1, 2, 3)]
    values = np.linalg.svd(z[first].numpy(), compute_uv=False)
    shares = values / values.sum()
    assert statistics["key_rank"].item() == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    assert statistics["key_rank_limit"] == 4
    assert group_statistics(torch.eye(4), torch.arange(4))["key_rank"].item() == pytest.approx(4)


@pytest.mark.parametrize("group", [[0, 0, 0], [0, 1, 2]])
def test_statistics_without_pairs_are_0(group):
    statistics = group_statistics(rows(3), torch.tensor(group))
    missing = {0: "positive_similarity", 1: "negative_similarity"}[int(group[1] == 0)]
    assert statistics[missing] == 0 and all(torch.isfinite(value) for value in statistics.values())


def make(name):
    torch.manual_seed(0)
    return METHODS[name](METHODS[name].Config(projector=HEAD, temperature=TAU), Tiny()).train()


@pytest.mark.parametrize(("name", "views"), [("supcon", 1), ("supcon", 3), ("simclr", 2)])
def test_all_views_of_all_samples_are_anchors(name, views):
    method, data = make(name), batch(views)
    with torch.no_grad():
        z = torch.cat([method.projector(method.backbone(view)) for view in data.views])
    group = (data.index if name == "simclr" else data.label).repeat(views).tolist()
    scalars = method(data)
    assert scalars["loss"].item() == pytest.approx(loop(normalize(z.double(), dim=1), group), rel=1e-5)
    if name == "simclr":
        assert scalars["i_nce"].item() == pytest.approx(math.log(4 * views - 1) - scalars["loss"].item(), abs=1e-6)
    names = {"loss", "positive_similarity", "negative_similarity", "negative_spread"}
    names |= {"key_rank", "key_rank_limit"}
    assert set(scalars) == names | ({"i_nce"} if name == "simclr" else set())
    method.watched = False
    assert set(method(data)) == {"loss"}


def test_a_video_that_is_drawn_twice_is_not_its_own_negative():
    method, data = make("simclr"), batch(2, index=(4, 9, 4, 7))
    with torch.no_grad():
        z = torch.cat([method.projector(method.backbone(view)) for view in data.views])
    expected = loop(normalize(z.double(), dim=1), data.index.repeat(2).tolist())
    assert method(data)["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_simclr_needs_two_views():
    with pytest.raises(ConfigError, match=r"^1 view has no positives: data.views needs 2 recipes"):
        make("simclr")(batch(1))
