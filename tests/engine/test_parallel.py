"""A method on several processes: what its norms become, whose gradients it gets, and what differs where."""

import math
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from vidssl.base import distributed
from vidssl.base.errors import ConfigError, TrainingError
from vidssl.engine.parallel import (
    average_gradients,
    check_equal,
    compile_backbones,
    gradient_norm,
    over_processes,
    set_batch_norm,
    without_averaging,
)
from vidssl.methods import METHODS
from vidssl.models import Head, build_backbone
from vidssl.models.backbones import Backbone
from vidssl.models.batch_norms import SyncBatchNorm, batch_norms

CPU = torch.device("cpu")


class Plain(Backbone):
    """A backbone without batch norms."""

    dim = 4

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x):
        return self.layer(x.mean(dim=(2, 3, 4)))


def make(name, plain=False):
    backbone = Plain() if plain else build_backbone("resnet3d18", width=4)
    settings = {"classes": 3} if name == "supervised" else {"projector": Head(layers=1, out=4, norm="none"), "queue": 8}
    return METHODS[name](METHODS[name].Config(**settings), backbone)


MODES = [
    (name, plain, wanted)
    for name, plain in (("moco", False), ("moco", True), ("supervised", False), ("supervised", True))
    for wanted in ("auto", "sync", "shuffle", "local")
]


def becomes(name, plain, expected):
    """What a mode makes of a method: the word for it, its kind of norms, whether keys are shuffled."""
    method = make(name, plain)
    norms = len(batch_norms(method))
    try:
        made, word = set_batch_norm(method, expected, CPU)
    except ConfigError as error:
        return str(error)
    assert made is method and len(batch_norms(made)) == norms and bool(norms) is not plain
    synced = {type(norm) is SyncBatchNorm for norm in batch_norms(made)}
    return word, synced, getattr(made, "shuffle", False)


def net():
    torch.manual_seed(3)
    layers = [
        nn.Conv3d(3, 4, 2),
        nn.BatchNorm3d(4).requires_grad_(False).eval(),  # the frozen part: it has no gradients
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(4, 5),
    ]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last_3d)


def losses(module, rank, world):
    """Give the micro-batches' losses of one process, or of the whole batch."""
    x = torch.randn(8, 3, 2, 2, 2, generator=torch.Generator().manual_seed(4))
    x = x.chunk(world)[rank]
    for part in x.chunk(2):
        yield lambda part=part: module(part).sin().pow(2).mean() / 2


def gradients(exact):
    """Two steps of two micro-batches; the gradients of each, and how often they were averaged on the way."""
    method, averaged = net(), []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel = over_processes(method, CPU, exact)
    assert isinstance(parallel, DistributedDataParallel) is (distributed.world() > 1 and not exact)
    if isinstance(parallel, DistributedDataParallel):

        def counting(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            averaged.append(bucket.index())
            return allreduce_hook(None, bucket)

        parallel.register_comm_hook(None, counting)
    collected = []
    for _ in range(2):
        first, second = losses(parallel, distributed.rank(), distributed.world())
        with without_averaging(parallel):
            first().backward()
        second().backward()
        average_gradients(parallel)
        collected.append({name: None if p.grad is None else p.grad.clone() for name, p in method.named_parameters()})
        assert all(p.grad.stride() == p.stride() for p in method.parameters() if p.grad is not None)
        with torch.no_grad():
            for p in method.parameters():
                if p.grad is not None:
                    p -= p.grad
        method.zero_grad(set_to_none=True)
    return collected, averaged


def drifts():
    """What is said where something differs on some processes."""

    def run_tool(change, step=7):
        torch.manual_seed(0)
        method = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Flatten())
        method.register_buffer("seen", torch.tensor([True, False]))
        optimizer = torch.optim.AdamW(method.parameters())
        method(torch.ones(2, 2)).sum().backward()
        optimizer.step()
        change(distributed.rank(), method, optimizer)
        try:
            check_equal(step, method, optimizer)
        except TrainingError as error:
            return str(error)

    def weight(rank, method, optimizer):
        if rank == 1:
            method[0].weight.data[1, 1] += 1e-7

    def statistic(rank, method, optimizer):
        method[1].running_var += float(rank == 0)

    def flag(rank, method, optimizer):
        method.seen[1] = rank == 1

    def moment(rank, method, optimizer):
        optimizer.state[method[0].bias]["exp_avg_sq"][0] += rank

    def extra(rank, method, optimizer):
        if rank == 1:
            method.register_buffer("more", torch.zeros(2))

    def several(rank, method, optimizer):
        weight(rank, method, optimizer)
        moment(rank, method, optimizer)

    def nothing(rank, method, optimizer):
        method[0].weight.grad += rank  # gradients are no state

    changes = (nothing, weight, statistic, flag, moment, extra, several)
    return {change.__name__: run_tool(change) for change in changes}


def everything():
    with distributed.joined(CPU):
        return {
            "modes": [becomes(*mode) for mode in MODES],
            "gradients": {exact: gradients(exact) for exact in (True, False)},
            "drifts": drifts(),
        }


@pytest.fixture(scope="module")
def both(run_world):
    """What two processes found."""
    return run_world(2, everything)


NO_KEYS = "sync_bn: shuffle needs a method with a target network; set sync_bn to sync or local"
WORDS = {
    "auto": ("sync", {True}, False),
    "sync": ("sync", {True}, False),
    "shuffle": ("shuffle", {False}, True),
    "local": ("local", {False}, False),
}


@pytest.mark.parametrize("mode", MODES)
def test_batch_norms_become_what_is_asked_for(mode, both):
    name, plain, expected = mode
    if name == "supervised" and expected == "shuffle":
        alone = together = NO_KEYS
    elif plain:
        alone = together = ("none", set(), False)
    else:
        alone, together = WORDS["local"], WORDS[expected]
    assert becomes(*mode) == alone
    assert [actual["modes"][MODES.index(mode)] for actual in both] == [together] * 2


def test_gradients_are_those_of_one_process_with_the_whole_batch(both):
    expected, _ = gradients(True)
    assert {name for name, value in expected[0].items() if value is None} == {"1.weight", "1.bias"}
    assert expected[0]["0.weight"].abs().max() > 1e-3
    for exact in (True, False):
        for actual in both:
            for step, whole in zip(actual["gradients"][exact][0], expected, strict=True):
                assert step.keys() == whole.keys()
                for name, value in whole.items():
                    if value is None:
                        assert step[name] is None
                    else:
                        torch.testing.assert_close(step[name], value, rtol=1e-5, atol=1e-6)
        first, second = (actual["gradients"][exact][0] for actual in both)
        for a, b in zip(first, second, strict=True):  # the same on both, to the last bit
            assert all(value is None or torch.equal(value, b[name]) for name, value in a.items())


def test_gradients_travel_once_a_step(both):
    for actual in both:
        assert actual["gradients"][False][1] == [0, 0]  # two steps of two micro-batches, one bucket


@pytest.mark.parametrize(
    ("change", "count", "first"),
    [
        ("weight", 1, "method.0.weight"),
        ("statistic", 1, "method.1.running_var"),
        ("flag", 1, "method.seen"),
        ("moment", 1, "optimizer.state.1.exp_avg_sq"),
        ("extra", 1, "method.more"),
        ("several", 2, "method.0.weight"),
    ],
)
def test_what_differs_is_named(change, count, first, both):
    for actual in both:
        message = actual["drifts"][change]
        assert message.startswith(f"after step 7, {count} of ")
        assert f"; the first is {first}: process 1 differs from 0; the last checkpoint is untouched" in message


@pytest.mark.parametrize("name", ["moco", "supervised"])
def test_compiled_are_the_online_and_the_target_network(name):
    """A backend that notes the graphs that it is asked for, and runs them as they are."""
    method, names = make(name, plain=True).eval(), []
    clips = torch.randn(2, 3, 2, 16, 16)
    networks = {"backbone": method.backbone}
    if name == "moco":
        networks["target"] = method.target_backbone
    expected = {key: network(clips) for key, network in networks.items()}
    state = list(method.state_dict())

    def count(graph, inputs):
        names.append(key)
        return graph

    compile_backbones(method, count)
    for key, network in networks.items():
        torch._dynamo.reset()  # graphs of one network may serve the other
        torch.testing.assert_close(network(clips), expected[key])
    assert set(names) == set(networks) and list(method.state_dict()) == state


def test_what_is_equal_passes(both):
    assert [actual["drifts"]["nothing"] for actual in both] == [None, None]


def test_the_norm_of_gradients():
    method = net()
    for p in method.parameters():
        p.grad = torch.randn_like(p) if p.requires_grad else None
    squares = [x * x for p in method.parameters() if p.grad is not None for x in p.grad.flatten().tolist()]
    assert gradient_norm(method).item() == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-6)
    method[4].bias.grad[2] = math.inf
    assert gradient_norm(method).item() == math.inf
    method[0].weight.grad[0, 1, 0, 1, 1] = math.nan
    assert math.isnan(gradient_norm(method).item())
    method[0].weight.grad[0, 1, 0, 1, 1] = -math.inf
    assert gradient_norm(method).item() == math.inf
