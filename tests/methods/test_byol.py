"""BYOL: the loss against loops, a predictor on one side only, and no negatives anywhere."""

import copy
import math
import runpy
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from vidssl.base.errors import ConfigError
from vidssl.base.schedule import constant
from vidssl.methods import METHODS
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
TinyNorm, batch = TINY["TinyNorm"], partial(TINY["batch"], dtype=torch.float64)

HEAD = Head(layers=2, hidden=12, out=5, norm="hidden")


def make(**settings):
    torch.manual_seed(0)
    options = {"projector": HEAD, "predictor": HEAD, "momentum": constant(0.9), **settings}
    method = METHODS["byol"](METHODS["byol"].Config(**options), TinyNorm())
    with torch.no_grad():  # a target that is not the online network, as in the middle of a run
        for p in method.target.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    return method.double().train()


def encoded(method, views):
    """Queries and keys of each view, from copies: batch norms count."""
    method = copy.deepcopy(method)
    with torch.no_grad():
        online = [method.predictor(method.projector(method.backbone(view))) for view in views]
        target = [method.target[1](method.target[0](view)) for view in views]
    return [normalize(x, dim=1) for x in online], [normalize(x, dim=1) for x in target]


def distance_loop(query, key):  # Eq. (2)
    rows = zip(query.tolist(), key.tolist(), strict=True)
    return sum(sum((a - b) ** 2 for a, b in zip(q, k, strict=True)) for q, k in rows) / len(query)


@pytest.mark.parametrize(
    ("views", "key_views", "pairs"),
    [
        (2, (0, 1), [(0, 1), (1, 0)]),
        (2, (1,), [(0, 1)]),
        (4, (0, 1, 2, 3), [(q, k) for q in range(4) for k in range(4) if q != k]),
    ],
)
def test_the_loss_is_that_of_loops(views, key_views, pairs):
    method, data = make(key_views=key_views), batch(views)
    queries, keys = encoded(method, data.views)
    expected = sum(distance_loop(queries[q], keys[k]) for q, k in pairs) / len(pairs)
    assert method(data)["loss"].item() == pytest.approx(expected, rel=1e-9)


def test_the_predictor_is_on_the_online_branch_only():
    method, data = make(), batch()
    assert {name.split(".")[0] for name, _ in method.target.named_parameters()} == {"0", "1"}
    assert len(list(method.target.parameters())) == len([*method.backbone.parameters(), *method.projector.parameters()])
    before = method(data)
    before["loss"].backward()
    assert all(p.grad is not None for p in method.predictor.parameters())
    assert all(p.grad is None for p in method.target.parameters())
    other = make(predictor=None)
    queries, keys = encoded(other, data.views)  # without one: identity
    expected = (distance_loop(queries[0], keys[1]) + distance_loop(queries[1], keys[0])) / 2
    actual = other(data)["loss"].item()
    assert actual == pytest.approx(expected, rel=1e-9) and abs(actual - before["loss"].item()) > 1e-3


def test_statistics_are_of_the_first_pair_and_of_other_videos():
    method, data = make(), batch()
    queries, keys = encoded(method, data.views)
    scalars = method(data)
    query, key = queries[0].tolist(), keys[1].tolist()

    def dot(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    others = [dot(a, b) for i, a in enumerate(key) for j, b in enumerate(key) if i != j]
    positive = [dot(a, b) for a, b in zip(query, key, strict=True)]
    values = np.linalg.svd(np.array(key), compute_uv=False)
    shares = values / values.sum()
    assert {name: value.item() for name, value in scalars.items() if name != "loss"} == {
        "positive_similarity": pytest.approx(sum(positive) / 6, rel=1e-9),
        "negative_similarity": pytest.approx(sum(others) / 30, rel=1e-9),
        "negative_spread": pytest.approx(np.std(others, ddof=1), rel=1e-9),
        "key_rank": pytest.approx(math.exp(-sum(x * math.log(x) for x in shares)), rel=1e-6),
        "key_rank_limit": min(np.array(key).shape),
    }  # and no i_nce, which is a bound of methods with negatives


def test_byol_refuses_queue_and_temperature():
    for name in ("queue", "temperature", "margin"):
        with pytest.raises(ConfigError, match=name):
            METHODS["byol"].Config(**{name: 1})
