"""Methods with a target and a queue: which pairs they average, when keys enter, what follows a step."""

import copy
import math
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from vidssl import losses
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, constant
from vidssl.methods import METHODS
from vidssl.models import Head

TINY = runpy.run_path(str(Path(__file__).with_name("tiny.py")))
TinyNorm, batch = TINY["TinyNorm"], TINY["batch"]

NAMES = ("moco", "ressl", "sce")
HEAD = Head(layers=2, hidden=32, out=5, norm="hidden")


def make(name, **settings):
    torch.manual_seed(0)
    defaults = {"projector": HEAD, "queue": 11, "momentum": constant(0.9), "key_views": (0, 1)}
    if name == "sce":
        defaults["predictor"] = HEAD
    method = METHODS[name](METHODS[name].Config(**{**defaults, **settings}), TinyNorm())
    with torch.no_grad():  # a target that is not the online network, as in the middle of a run
        for p in method.target.parameters():
            p.add_(torch.randn_like(p), alpha=0.3)
    return method.train()


def queries_and_keys(method, views):
    """What the networks give for each view, from copies: batch norms count."""
    method = copy.deepcopy(method)
    online = [method.predictor(method.projector(method.backbone(view))) for view in views]
    target = [method.target[1](method.target[0](view)) for view in views]
    return [normalize(x, dim=1) for x in online], [normalize(x, dim=1) for x in target]


def pair_loss(name, query, key, queue):
    if name == "moco":
        return losses.info_nce(query, key, queue, 0.1)
    if name == "ressl":
        return losses.ressl(query, key, queue, 0.1, 0.05)
    return losses.sce(query, key, queue, 0.1, 0.05, 0.5)


def test_the_free_weights_of_equation_11_reach_the_loss():
    """lambda 0, mu 1, eta 0 is ReSSL; mu and eta may be schedules."""
    data = batch()
    weights = {"coefficient": constant(0.0), "relational": constant(1.0), "ceiling": Schedule(start=0.0, end=1.0)}
    method = make("sce", **weights)
    queries, keys = queries_and_keys(method, data.views)
    pairs = [(queries[0], keys[1]), (queries[1], keys[0])]
    expected = sum(pair_loss("ressl", query, key, method.queue.keys) for query, key in pairs) / 2
    torch.testing.assert_close(method(data)["loss"], expected)
    method.progress = 1.0
    with_ceiling = losses.sce(*pairs[0], method.queue.keys, 0.1, 0.05, 0.0)
    torch.testing.assert_close(method.pair_loss(*pairs[0]), with_ceiling)


@pytest.mark.parametrize(("key_views", "first"), [((1,), 1), ((0, 1), 1), ((2, 0), 2)])
def test_the_rank_is_that_of_one_key_of_each_video(key_views, first):
    head = HEAD.model_copy(update={"out": 24})
    method, data = make("moco", projector=head, key_views=key_views), batch(3)
    keys = queries_and_keys(method, data.views)[1][first]
    scalars = method(data)
    values = torch.linalg.svdvals(keys)
    rank = torch.distributions.Categorical(values / values.sum()).entropy().exp()
    torch.testing.assert_close(scalars["key_rank"], rank, rtol=1e-4, atol=0)
    assert scalars["key_rank"] < scalars["key_rank_limit"] == 6


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_the_online_network_only(name):
    method, data = make(name), batch()
    queries, keys = queries_and_keys(method, data.views)
    twin = copy.deepcopy(method)
    method(data)["loss"].backward()
    assert all(p.grad is None for p in method.target.parameters())
    online = [p for p in method.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in method.backbone.layers[1].parameters())
    # The keys are constants: the same gradient as with keys that were computed elsewhere.
    keys = [key.detach() for key in keys]
    queries = [normalize(twin.predictor(twin.projector(twin.backbone(view))), dim=1) for view in data.views]
    loss = (
        pair_loss(name, queries[0], keys[1], twin.queue.keys) + pair_loss(name, queries[1], keys[0], twin.queue.keys)
    ) / 2
    gradients = torch.autograd.grad(loss, [p for p in twin.parameters() if p.requires_grad])
    for p, expected in zip(online, gradients, strict=True):
        torch.testing.assert_close(p.grad, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key_views", [(0, 1), (1,)])
def test_keys_enter_the_queue_after_the_step(name, key_views):
    method, data = make(name, key_views=key_views, queue=40), batch()
    _, keys = queries_and_keys(method, data.views)
    before = method.queue.keys.clone()
    method(data)
    assert torch.equal(method.queue.keys, before)
    method.after_step(0.1)
    new = torch.stack([keys[k] for k in key_views], dim=1).flatten(0, 1)  # all keys of a video together
    torch.testing.assert_close(method.queue.keys[: len(new)], new, rtol=1e-5, atol=1e-6)
    assert torch.equal(method.queue.keys[len(new) :], before[len(new) :])


@pytest.mark.parametrize("progress", [0.0, 0.5, 1.0])
def test_target_moves_by_the_momentum_of_the_schedule(progress):
    method = make("moco", momentum=Schedule(start=0.9, end=1.0))
    names = dict(method.target.named_parameters())
    before = {name: p.detach().clone() for name, p in names.items()}
    online = dict(nn.Sequential(method.backbone, method.projector).named_parameters())
    method(batch())
    buffers = {name: value.clone() for name, value in method.target.named_buffers()}
    method.after_step(progress)
    assert all(torch.equal(value, buffers[name]) for name, value in method.target.named_buffers())
    momentum = {0.0: 0.9, 0.5: 0.95, 1.0: 1.0}[progress]
    for name, p in names.items():
        expected = momentum * before[name] + (1 - momentum) * online[name].detach()
        torch.testing.assert_close(p.detach(), expected, rtol=1e-5, atol=1e-6)


def test_coefficient_follows_its_schedule():
    data = batch()
    falling = make("sce", coefficient=Schedule(start=1.0, end=0.0, shape="linear"))
    contrast, relation = make("moco"), make("sce", coefficient=constant(0.0))
    relation.predictor = contrast.predictor = falling.predictor
    for method in (contrast, relation):
        method.load_state_dict(falling.state_dict())
    expected = [contrast(data)["loss"], relation(data)["loss"]]
    assert abs(expected[0] - expected[1]) > 1e-3
    for progress, loss in zip((0.0, 1.0, 0.5), [*expected, sum(expected) / 2], strict=True):
        falling.progress = progress
        torch.testing.assert_close(falling(data)["loss"], loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("views", "key_views"), [(1, (0,)), (2, (0, 2)), (2, (2,))])
def test_too_few_views(views, key_views):
    with pytest.raises(ConfigError, match=r"key_views .* do not fit the views \[0.*\]: data.views needs more recipes"):
        make("moco", key_views=key_views)(batch(views))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key_views", [(), (-1,), (1, 1)])
def test_invalid_key_views(name, key_views):
    with pytest.raises(ConfigError, match="key_views"):
        METHODS[name].Config(key_views=key_views)


def test_predictor_and_projector_have_equal_outputs():
    with pytest.raises(ConfigError, match=r"predictor.out 6 is not projector.out 5: make them equal"):
        make("sce", predictor=Head(layers=2, hidden=12, out=6))


# Views of several sizes: local views of multi-crop.


@pytest.mark.parametrize(
    ("sides", "key_views", "queries", "keys"),
    [
        ((4, 4), (0, 1), [(6, 4), (6, 4)], 2),
        ((4, 4, 4), (0, 1), [(6, 4), (6, 4), (6, 4)], 2),  # a key view goes alone, of whatever size it is
        ((4, 4, 3, 3, 3), (0, 1), [(6, 4), (6, 4), (18, 3)], 2),
        ((4, 4, 3, 2, 3, 2), (0, 1), [(6, 4), (6, 4), (12, 3), (12, 2)], 2),
        ((4, 4, 4, 3), (1,), [(12, 4), (6, 3)], 1),  # view 1, the only key, is no query
        ((3, 4, 3), (1, 2), [(6, 3), (6, 4), (6, 3)], 2),
    ],
)
def test_local_views_of_one_size_are_one_batch_and_key_views_separate(sides, key_views, queries, keys):
    method = make("sce", key_views=key_views)
    method(batch(sides=sides))
    assert method.backbone.passes == queries
    assert method.target_backbone.passes == [(6, sides[k]) for k in key_views] and len(key_views) == keys


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("sides", "key_views", "together"),
    [
        ((4, 4), (0, 1), [(0,), (1,)]),
        ((4, 4), (1,), [(0,)]),
        ((4, 4), (0,), [(1,)]),
        ((4, 4, 4), (0, 1), [(0,), (1,), (2,)]),
        ((4, 4, 4), (0, 1, 2), [(0,), (1,), (2,)]),
        ((4, 4, 3, 2, 3, 2), (0, 1), [(0,), (1,), (2, 4), (3, 5)]),
        ((4, 4, 4, 3, 2), (1,), [(0, 2), (3,), (4,)]),
        ((3, 4, 4), (2,), [(0,), (1,)]),
    ],
)
def test_loss_is_the_mean_over_pairs(name, sides, key_views, together):
    method, data = make(name, key_views=key_views), batch(sides=sides)
    twin = copy.deepcopy(method)
    keys = {k: normalize(twin.target(data.views[k]), dim=1) for k in key_views}
    queries = {}
    for group in together:  # a batch norm sees those that go together
        rows = torch.cat([data.views[q] for q in group])
        encoded = normalize(twin.predictor(twin.projector(twin.backbone(rows))), dim=1)
        queries.update(zip(group, encoded.split(6), strict=True))
    pairs = [(q, k) for q in sorted(queries) for k in key_views if q != k]
    expected = sum(pair_loss(name, queries[q], keys[k], method.queue.keys) for q, k in pairs) / len(pairs)
    scalars = method(data)
    torch.testing.assert_close(scalars["loss"], expected, rtol=1e-5, atol=1e-6)
    similarity = sum((queries[q] * keys[k]).sum(dim=1).mean() for q, k in pairs) / len(pairs)
    torch.testing.assert_close(scalars["positive_similarity"], similarity, rtol=1e-4, atol=1e-6)


# What a query tells of its key, and the count of steps.


@pytest.mark.parametrize("name", [*NAMES, "frame_invariance"])
def test_i_nce_is_the_bound_that_info_nce_gives(name):
    settings = {"margin": 0.2} if name == "moco" else {}  # the bound knows no margin
    method, data = make(name, temperature=Schedule(start=0.3, end=0.1), **settings), batch(3)
    queries, keys = queries_and_keys(method, data.views)
    queue, tau = method.queue.keys.double(), 0.2
    method.progress = 0.5
    total = []
    for q, k in [(0, 1), (1, 0), (2, 0), (2, 1)]:
        for query, key in zip(queries[q].detach().double(), keys[k].detach().double(), strict=True):
            terms = [math.exp(float(query @ z) / tau) for z in (key, *queue)]
            total.append(-math.log(terms[0] / sum(terms)))
    actual = method(data)["i_nce"]
    assert actual.item() == pytest.approx(math.log(len(queue) + 1) - sum(total) / len(total), abs=1e-5)
    assert not actual.requires_grad
    method.watched = False
    assert set(method(data)) == {"loss"}


def test_a_margin_is_taken_from_the_positive():
    data, loose, plain = batch(), make("moco", margin=-0.5), make("moco")
    plain.load_state_dict(loose.state_dict())
    queries, keys = queries_and_keys(loose, data.views)
    expected = sum(losses.margin_nce(queries[q], keys[k], loose.queue.keys, 0.1, -0.5) for q, k in [(0, 1), (1, 0)])
    actual = loose(data)["loss"]
    torch.testing.assert_close(actual, expected / 2, rtol=1e-5, atol=1e-6)
    assert actual < plain(data)["loss"]
