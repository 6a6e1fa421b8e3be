"""NPID: the loss against loops, its negatives, and the rows of its bank."""

import math
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.nn.functional import normalize

from vidssl.base.errors import ConfigError
from vidssl.base.schedule import constant
from vidssl.methods import METHODS
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
Tiny, batch = TINY["Tiny"], partial(TINY["batch"], size=4, index=(3, 11, 0, 7), dtype=torch.float64)

HEAD = Head(layers=2, hidden=12, out=5, norm="none")
RECORDS = 20


def make(**settings):
    torch.manual_seed(0)
    config = METHODS["npid"].Config(**{"projector": HEAD, "negatives": 9, **settings})
    method = METHODS["npid"](config, Tiny())
    method.allocate(RECORDS)
    return method.double().train()


def embeddings(method, data):
    """Of each view (N, d)."""
    with torch.no_grad():
        return [normalize(method.projector(method.backbone(view)), dim=1) for view in data.views]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def loss_loop(queries, data, bank, picks, tau, margin):  # InterCLR, Eq. (1) and (5)
    total = []
    for rows in queries:
        for n, query in enumerate(rows.tolist()):
            top = math.exp((dot(query, bank[int(data.index[n])]) - margin) / tau)
            rest = sum(math.exp(dot(query, bank[k]) / tau) for k in picks[n])
            total.append(-math.log(top / (top + rest)))
    return sum(total) / len(total)


@pytest.mark.parametrize("margin", [-0.5])
@pytest.mark.parametrize("views", [1, 3])
def test_the_loss_is_that_of_loops(views, margin):
    method = make(margin=margin, temperature=constant(0.2))
    for step in range(3):  # the bank has rows that were written, and others
        data = batch(views, index=(step, step + 1, 11, 7), seed=step)
        queries, bank = embeddings(method, data), method.bank.rows.tolist()
        picks = method.draw(data.index).tolist()
        scalars = method(data)
        expected = loss_loop(queries, data, bank, picks, 0.2, margin)
        assert scalars["loss"].item() == pytest.approx(expected, rel=1e-9)
        # The bound on the information is of InfoNCE, whatever the margin.
        plain = loss_loop(queries, data, bank, picks, 0.2, 0.0)
        assert scalars["i_nce"].item() == pytest.approx(math.log(10) - plain, rel=1e-9)
        method.after_step(0.1)


def test_negatives_are_any_others_equally_often():
    method, index = make(), torch.tensor([0, 11, 19])
    drawn = []
    for step in range(200):
        method.step = step
        drawn.append(method.draw(index).numpy())
    drawn = np.stack(drawn)
    assert drawn.shape == (200, 3, 9)
    for n, record in enumerate(index.tolist()):
        counts = np.bincount(drawn[:, n].ravel(), minlength=RECORDS)
        assert counts[record] == 0
        assert chisquare(np.delete(counts, record)).pvalue > 1e-3


def test_negatives_are_a_function_of_seed_and_step_whatever_the_micro_batches():
    method, index = make(), torch.arange(8)
    picks = method.draw(index)
    for count in (2, 4, 8):
        parts = []
        for n, part in enumerate(index.chunk(count)):
            method.micro_batch = n, count
            parts.append(method.draw(part))
        assert torch.equal(torch.cat(parts), picks)
    method.micro_batch = 0, 1
    assert len({tuple(row) for row in picks.tolist()}) == 8
    seed = method.seed
    for method.step, method.seed in ((1, seed), (0, seed + 1)):
        assert not torch.equal(method.draw(index), picks)


def test_the_bank_stores_the_mean_of_the_views_after_the_step():
    method = make(bank_momentum=0.25)
    for step in range(2):
        data = batch(views=2, seed=step)
        rows = normalize(sum(embeddings(method, data)), dim=1)
        before = method.bank.rows.clone()
        method(data)
        assert torch.equal(method.bank.rows, before)
        method.after_step(0.1)
        expected = before.clone()
        share = 0.25 if step else 1.0  # the first is taken as it is
        expected[data.index] = normalize((1 - share) * before[data.index] + share * rows, dim=1)
        torch.testing.assert_close(method.bank.rows, expected)
    assert method.step == 2 and method.progress == 0.1


def test_one_video_has_no_negatives():
    method = METHODS["npid"](METHODS["npid"].Config(projector=HEAD), Tiny())
    with pytest.raises(ConfigError, match=r"^npid needs at least 2 videos, to have negatives; the list has 1$"):
        method.allocate(1)
