"""Optimizers against formulas written as loops, and which tensors they treat how."""

import copy
import io
import math

import pytest
import torch
from torch import nn

from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, constant
from vidssl.engine.optim import LARS, AdamWConfig, LARSConfig, SGDConfig, build_optimizer, set_lr
from vidssl.models.batch_norms import SyncBatchNorm


def lars_loop(p, v, g, lr, momentum, decay, trust, matrix, nesterov=False):
    """One step on lists of numbers: new weights and new momentum."""
    if matrix:
        g = [gi + decay * pi for gi, pi in zip(g, p, strict=True)]
        p_norm, g_norm = (math.sqrt(sum(x * x for x in values)) for values in (p, g))
        if p_norm > 0 and g_norm > 0:
            g = [gi * trust * p_norm / g_norm for gi in g]
    v = [momentum * vi + gi for vi, gi in zip(v, g, strict=True)]
    moves = [gi + momentum * vi for vi, gi in zip(v, g, strict=True)] if nesterov else v
    return [pi - lr * move for pi, move in zip(p, moves, strict=True)], v


@pytest.mark.parametrize("nesterov", [False, True])
def test_lars_is_its_formula_over_several_steps(nesterov):
    source = torch.Generator().manual_seed(0)
    shapes = {"conv": (4, 3, 1, 2, 2), "linear": (3, 5), "bias": (3,), "scalar": (), "zero": (2, 2), "still": (2, 3)}
    params, loops = {}, {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=source, dtype=torch.float64) * (name not in ("zero", "still"))
        params[name] = nn.Parameter(value)
        loops[name] = (value.flatten().tolist(), [0.0] * value.numel())
    settings = {"momentum": 0.9, "weight_decay": 0.1, "trust": 0.001}
    optimizer = LARS(params.values(), lr=0.0, nesterov=nesterov, **settings)
    for lr in (0.5, 1.5, 1.0, 0.1):
        optimizer.param_groups[0]["lr"] = lr
        for name, p in params.items():
            # `zero` starts as 0 and has a gradient; of `still` both are 0
            p.grad = torch.randn(p.shape, generator=source, dtype=torch.float64) * (name != "still")
            loops[name] = lars_loop(*loops[name], p.grad.flatten().tolist(), lr, 0.9, 0.1, 0.001, p.ndim > 1, nesterov)
        optimizer.step()
        for name, p in params.items():
            torch.testing.assert_close(p.detach().flatten().tolist(), loops[name][0], rtol=1e-10, atol=1e-12)
    assert all(torch.isfinite(p).all() for p in params.values())
    assert params["zero"].abs().sum() > 1  # with a norm of 0 the gradient is taken as it is
    assert not params["still"].any()


def test_lars_skips_what_has_no_gradient_and_saves_its_momentum():
    still, moving = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([still, moving], 1.0, 0.9, 0.0, 0.001)
    moving.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(still, torch.ones(2, 2)) and not torch.equal(moving, torch.ones(2, 2))
    twin_weight = nn.Parameter(moving.detach().clone())
    twin = LARS([nn.Parameter(torch.ones(2, 2)), twin_weight], 1.0, 0.9, 0.0, 0.001)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for weight in (moving, twin_weight):
        weight.grad = torch.ones(2, 2)
    for each in (optimizer, twin):
        each.step()
    assert torch.equal(twin_weight, moving)


@pytest.fixture
def network():
    """A frozen and a learning part; matrices, biases, norms."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2), nn.Linear(2, 2))
    network[3].requires_grad_(False)
    return network


@pytest.mark.parametrize("name", ["lars", "sgd", "adamw"])
def test_frozen_weights_are_left_out(name, network):
    config = {"lars": LARSConfig, "sgd": SGDConfig, "adamw": AdamWConfig}[name](name=name, lr=constant(0.1))
    optimizer = build_optimizer(config, network)
    actual = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert actual == {id(p) for p in network[:3].parameters()}


def test_adamw_decays_matrices_only(network):
    optimizer = build_optimizer(
        AdamWConfig(name="adamw", lr=constant(0.1), weight_decay=0.3, betas=(0.8, 0.9)), network
    )
    decayed, free = optimizer.param_groups
    assert {id(p) for p in decayed["params"]} == {id(network[0].weight), id(network[2].weight)}
    assert len(free["params"]) == 4
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.3, 0.0)
    assert all(group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)
    before = {key: value.clone() for key, value in network.named_parameters()}
    for p in network.parameters():
        p.grad = torch.zeros_like(p)
    set_lr(optimizer, AdamWConfig(name="adamw", lr=constant(0.1)), 0.0, 8)
    optimizer.step()
    for key, value in network.named_parameters():
        factor = 1 - 0.1 * 0.3 if key in ("0.weight", "2.weight") else 1.0
        torch.testing.assert_close(value.detach(), before[key] * factor)


@pytest.mark.parametrize(("nesterov", "decay"), [(False, True), (False, False), (True, False)])
def test_sgd_is_its_formula(nesterov, decay, network):
    config = SGDConfig(
        name="sgd", lr=constant(0.5), weight_decay=0.2, sgd_momentum=0.7, nesterov=nesterov, decay_norms=decay
    )
    optimizer = build_optimizer(config, network)
    weight = network[1].weight
    expected, velocity = weight.detach().double(), torch.zeros(4, dtype=torch.float64)
    for step in range(3):
        g = torch.arange(4.0) + step
        for p in network[:3].parameters():
            p.grad = torch.zeros_like(p)
        weight.grad = g.clone()
        set_lr(optimizer, config, step / 3, 8)
        optimizer.step()
        g = g + 0.2 * decay * expected
        velocity = 0.7 * velocity + g
        expected = expected - 0.5 * (g + 0.7 * velocity if nesterov else velocity)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_sgd_without_decay_of_norms_still_decays_biases(network):
    """As SlowFast's code does with BN.WEIGHT_DECAY 0: biases of layers that are no norms decay."""
    config = SGDConfig(name="sgd", lr=constant(0.5), weight_decay=0.2, decay_norms=False)
    before = {key: value.clone() for key, value in network.named_parameters()}
    optimizer = build_optimizer(config, network)
    for p in network[:3].parameters():
        p.grad = torch.zeros_like(p)
    set_lr(optimizer, config, 0.0, 8)
    optimizer.step()
    factors = {"0": 1 - 0.5 * 0.2, "1": 1.0, "2": 1 - 0.5 * 0.2, "3": 1.0}  # 1 is the norm, 3 is frozen
    for key, value in network.named_parameters():
        torch.testing.assert_close(value.detach(), before[key] * factors[key[0]])


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.BatchNorm3d(4), nn.GroupNorm(2, 4), nn.LayerNorm(4), SyncBatchNorm(4)]
)
def test_all_kinds_of_norms_are_free_of_decay(layer):
    network = nn.Sequential(nn.Linear(3, 4), layer)
    config = SGDConfig(name="sgd", lr=constant(0.5), weight_decay=0.2, decay_norms=False)
    decayed, free = build_optimizer(config, network).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.2, 0.0)
    assert {id(p) for p in free["params"]} == {id(p) for p in layer.parameters()}
    assert {id(p) for p in decayed["params"]} == {id(p) for p in network[0].parameters()}


@pytest.mark.parametrize(("config", "name"), [(SGDConfig, "sgd"), (LARSConfig, "lars")])
def test_nesterov_needs_momentum(config, name):
    with pytest.raises(ConfigError, match="nesterov needs an sgd_momentum above 0"):
        config(name=name, lr=constant(0.1), nesterov=True, sgd_momentum=0.0)


@pytest.mark.parametrize(
    ("base", "batch", "factor"), [(None, 512, 1.0), (256, 512, 2.0), (256, 8, 1 / 32), (8, 8, 1.0)]
)
def test_learning_rate_scales_with_the_batch(base, batch, factor, network):
    config = AdamWConfig(name="adamw", lr=Schedule(start=2.4, end=0.0, warmup=0.5), base_batch=base)
    optimizer = build_optimizer(config, network)
    for progress, share in ((0.0, 0.0), (0.25, 0.5), (0.5, 1.0), (0.75, 0.5), (1.0, 0.0)):
        lr = set_lr(optimizer, config, progress, batch)
        assert lr == pytest.approx(2.4 * share * factor, abs=1e-9)
        assert {group["lr"] for group in optimizer.param_groups} == {lr}


CONFIGS = {
    "lars": LARSConfig(name="lars", lr=constant(0.3), weight_decay=0.1),
    "sgd": SGDConfig(name="sgd", lr=constant(0.1), weight_decay=0.1),
    "adamw": AdamWConfig(name="adamw", lr=constant(0.1), weight_decay=0.1),
}


def run_steps(config, network, steps, optimizer=None):
    """Steps with the same gradients for everybody; gives the optimizer."""
    optimizer = optimizer or build_optimizer(config, network)
    for step in steps:
        source = torch.Generator().manual_seed(step)
        for p in network.parameters():
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=source))
        set_lr(optimizer, config, 0.5, 8)
        optimizer.step()
    return optimizer


def video_network():
    torch.manual_seed(0)
    layers = nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.Conv3d(8, 4, (1, 3, 3), bias=False), nn.Linear(4, 2)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_fused_steps_are_those_of_the_loop(name):
    fused, plain = video_network(), video_network()
    optimizer = build_optimizer(CONFIGS[name], plain)
    for group in optimizer.param_groups:
        group.update(fused=False, foreach=False)
    run_steps(CONFIGS[name], plain, range(5), optimizer)
    assert all(group["fused"] for group in run_steps(CONFIGS[name], fused, range(5)).param_groups)
    for one, other in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
def test_saved_state_goes_on_bit_by_bit(name, layout):
    config, whole, first = CONFIGS[name], video_network().to(memory_format=layout), video_network()
    run_steps(config, whole, range(5))
    state = run_steps(config, first.to(memory_format=layout), range(2)).state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    second = copy.deepcopy(first)
    optimizer = build_optimizer(config, second)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    run_steps(config, second, range(2, 5), optimizer)
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", CONFIGS)
def test_state_of_another_memory_format_is_read_right(name):
    config, whole, first = CONFIGS[name], video_network(), video_network()
    run_steps(config, whole, range(5))
    state = copy.deepcopy(run_steps(config, first, range(2)).state_dict())
    second = copy.deepcopy(first).to(memory_format=torch.channels_last_3d)
    optimizer = build_optimizer(config, second)
    optimizer.load_state_dict(state)
    run_steps(config, second, range(2, 5), optimizer)
    for one, other in zip(whole.parameters(), second.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CONFIGS)
def test_backbone_and_classifier_with_rates_of_their_own(name):
    """Two optimizers, one for each part, with the two rates, do the same."""

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.backbone(x)).square().sum()

    one, other = Both(), Both()
    config = CONFIGS[name]
    scaled = build_optimizer(config.model_copy(update={"backbone_scale": 0.01}), one)
    parts = [build_optimizer(config, part) for part in (other.backbone, other.head)]
    for step in range(4):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        assert set_lr(scaled, config, 0.5, 8) == pytest.approx(config.lr.at(0.5))
        for part, scale in zip(parts, (0.01, 1.0), strict=True):
            for group in part.param_groups:
                group["lr"] = scale * config.lr.at(0.5)
        for model, optimizers in ((one, [scaled]), (other, parts)):
            model.zero_grad()
            model(x).backward()
            for optimizer in optimizers:
                optimizer.step()
    start = Both().state_dict()
    for key, value in one.state_dict().items():
        torch.testing.assert_close(value, other.state_dict()[key], rtol=1e-6, atol=1e-7)
        assert not torch.equal(value, start[key])
