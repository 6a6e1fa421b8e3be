"""NPID: the loss against loops, its negatives, and the rows of its bank."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch.nn.functional import normalize

from vidssl.base import distributed
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, constant
from vidssl.base.types import Batch
from vidssl.methods import METHODS
from vidssl.models import Head

Tiny = runpy.run_path(str(Path(__file__).with_name("tiny.py")))["Tiny"]

HEAD = Head(layers=2, hidden=12, out=5, norm="none")
RECORDS = 20


def make(**settings):
    torch.manual_seed(0)
    config = METHODS["npid"].Config(**{"projector": HEAD, "negatives": 9, **settings})
    method = METHODS["npid"](config, Tiny())
    method.allocate(RECORDS)
    return method.double().train()


def batch(index=(3, 11, 0, 7), views=1, seed=7):
    source = torch.Generator().manual_seed(seed)
    clips = tuple(torch.randn(len(index), 3, 2, 4, 4, generator=source, dtype=torch.float64) for _ in range(views))
    return Batch(clips, torch.zeros(len(index), dtype=torch.int64), torch.tensor(index))


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
        data = batch((step, step + 1, 11, 7), views, seed=step)
        queries, bank = embeddings(method, data), method.bank.rows.tolist()
        picks = method.draw(data.index).tolist()
        scalars = method(data)
        expected = loss_loop(queries, data, bank, picks, 0.2, margin)
        assert scalars["loss"].item() == pytest.approx(expected, rel=1e-9)
        # The bound on the information is of InfoNCE, whatever the margin.
        plain = loss_loop(queries, data, bank, picks, 0.2, 0.0)
        assert scalars["i_nce"].item() == pytest.approx(math.log(10) - plain, rel=1e-9)
        method.after_step(0.1)


def test_statistics_use_rows_of_the_bank():
    method, data = make(), batch(views=2)
    first, second = embeddings(method, data)
    remembered = method.bank.rows[data.index]
    scalars = method(data)
    similarity = torch.stack([(rows * remembered).sum(dim=1) for rows in (first, second)]).mean()
    torch.testing.assert_close(scalars["positive_similarity"], similarity)
    torch.testing.assert_close(scalars["negative_similarity"], (remembered @ method.bank.rows.T).mean())
    assert not any(value.requires_grad for name, value in scalars.items() if name != "loss")
    method.watched = False
    assert set(method(data)) == {"loss"}


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


def slices():
    """Draws of a process for its slice of a batch of 8."""
    with distributed.joined(torch.device("cpu")):
        method, index = make(), torch.arange(8).chunk(distributed.world())[distributed.rank()]
        return method.draw(index)


def test_negatives_of_two_processes_are_those_of_one(run_world):
    assert torch.equal(torch.cat(run_world(2, slices)), slices())


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


def test_gradients_are_those_of_the_query_alone():
    method, data = make(), batch()
    loss = method(data)["loss"]
    gradients = torch.autograd.grad(loss, list(method.parameters()))
    weight, position, change = method.backbone.layer.weight, (2, 3), 1e-6
    sides = []
    for sign in (1, -1):  # of the loss with the same bank
        with torch.no_grad():
            weight[position] += sign * change
            queries, bank = embeddings(method, data), method.bank.rows.tolist()
            sides.append(loss_loop(queries, data, bank, method.draw(data.index).tolist(), 0.1, 0.0))
            weight[position] -= sign * change
    found = dict(zip((name for name, _ in method.named_parameters()), gradients, strict=True))
    numeric = (sides[0] - sides[1]) / (2 * change)
    assert found["backbone.layer.weight"][position].item() == pytest.approx(numeric, rel=1e-5)


def test_temperature_follows_its_schedule():
    method, cold = make(temperature=Schedule(start=0.5, end=0.1)), make(temperature=constant(0.1))
    data = batch()
    assert abs(method(data)["loss"] - cold(data)["loss"]) > 0.1
    method.progress = 1.0
    assert torch.equal(method(data)["loss"], cold(data)["loss"])


def test_one_video_has_no_negatives():
    method = METHODS["npid"](METHODS["npid"].Config(projector=HEAD), Tiny())
    with pytest.raises(ConfigError, match=r"^npid needs at least 2 videos, to have negatives; the list has 1$"):
        method.allocate(1)


@pytest.mark.parametrize("settings", [{"negatives": 0}, {"bank_momentum": 0.0}, {"bank_momentum": 1.5}])
def test_invalid_settings(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        METHODS["npid"].Config(**settings)
