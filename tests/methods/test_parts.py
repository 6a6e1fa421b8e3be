"""The parts of methods: a queue against a deque, the moving average and the statistics against plain formulas."""

import math
from collections import deque
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from vidssl import distributed
from vidssl.config import Settings, bind, build
from vidssl.engine.run_config import load_run
from vidssl.errors import ConfigError
from vidssl.methods import METHODS
from vidssl.methods.parts import (
    KeyQueue,
    Temperature,
    check_batch_norm,
    effective_rank,
    key_statistics,
    move_towards,
    shuffled,
    unit,
)
from vidssl.models.backbones import BACKBONES
from vidssl.models.heads import Head, mlp
from vidssl.types import Batch

CONFIGS = Path(__file__).parents[2] / "configs" / "toy"
CPU = torch.device("cpu")
DIM = 3


def rows(count, source):
    return normalize(torch.randn(count, DIM, generator=source), dim=1)


def oldest_first(queue):
    return torch.roll(queue.keys, -int(queue.pointer), dims=0).tolist()


@pytest.mark.parametrize("size", [1, 5, 8, 13])
def test_queue_is_a_deque(size):
    source = torch.Generator().manual_seed(0)
    queue = KeyQueue(size, DIM)
    reference = deque(queue.keys.tolist(), maxlen=size)
    for count in (3, 1, 8, 20, 5, 13, 4):  # fits, wraps around, is all of it, is more than all of it
        keys = rows(count, source)
        queue.hold(keys)
        queue.enqueue()
        reference.extend(keys.tolist())
        assert oldest_first(queue) == list(reference)


def test_queue_takes_held_keys_at_the_end_of_the_step_only():
    source = torch.Generator().manual_seed(1)
    queue = KeyQueue(8, DIM)
    before = queue.keys.clone()
    micro_batches = [rows(2, source), rows(3, source)]
    for keys in micro_batches:
        queue.hold(keys)
        assert torch.equal(queue.keys, before)
    queue.enqueue()
    assert torch.equal(queue.keys[:5], torch.cat(micro_batches)) and torch.equal(queue.keys[5:], before[5:])
    queue.hold(rows(1, source))
    queue.enqueue()  # what was held is gone: only the new key enters
    assert torch.equal(queue.keys[:5], torch.cat(micro_batches)) and int(queue.pointer) == 6


def test_queue_starts_with_different_unit_rows():
    queue = KeyQueue(200, 16)
    torch.testing.assert_close(queue.keys.norm(dim=1), torch.ones(200))
    assert queue.keys.mean(dim=0).norm() < 0.3
    assert len(torch.unique(queue.keys, dim=0)) == 200


def test_queue_is_saved_and_is_no_parameter():
    source = torch.Generator().manual_seed(2)
    queue, other = KeyQueue(5, DIM), KeyQueue(5, DIM)
    queue.hold(rows(3, source))
    queue.enqueue()
    assert set(queue.state_dict()) == {"keys", "pointer"} and not list(queue.parameters())
    other.load_state_dict(queue.state_dict())
    assert oldest_first(other) == oldest_first(queue) and int(other.pointer) == 3


def test_queue_lets_no_gradient_in_and_spares_the_graph_of_the_step():
    queue, source = KeyQueue(5, DIM), torch.Generator().manual_seed(3)
    query, keys = (rows(2, source).requires_grad_() for _ in range(2))
    expected = queue.keys.sum(dim=0).expand(2, -1).clone()
    loss = (query @ queue.keys.T).sum()
    queue.hold(keys * 1.0)
    queue.enqueue()
    assert not queue.keys.requires_grad
    loss.backward()
    torch.testing.assert_close(query.grad, expected)


def global_keys(rank, world):
    """Keys (N, V, d) of the micro-batches of two steps, of one process or, with world 1, of all in order."""
    source = torch.Generator().manual_seed(4)
    every = normalize(torch.randn(2, 2, 3, 2, 2, DIM, generator=source), dim=-1)  # step, rank, micro, N, V, d
    parts = every[:, rank].unbind(dim=1) if world == 2 else [every.flatten(1, 3)]
    return [[part[step] for part in parts] for step in range(2)]


def queues():
    """Feed queues of some sizes; give their keys and pointers after each step."""
    with distributed.joined(CPU):
        found = []
        for size in (1, 5, 24, 31, 100):
            torch.manual_seed(0)
            queue = KeyQueue(size, DIM)
            for step in global_keys(distributed.rank(), distributed.world()):
                for keys in step:
                    queue.hold(keys)
                queue.enqueue()
                found.append((queue.keys, int(queue.pointer)))
        return found


def test_queue_of_two_processes_is_that_of_one(run_world):
    alone = queues()
    assert [pointer for _, pointer in alone] == [0, 0, 0, 0, 0, 0, 24, 17, 24, 48]  # 24 keys a step
    for found in run_world(2, queues):
        for (keys, pointer), (expected, place) in zip(found, alone, strict=True):
            assert torch.equal(keys, expected) and pointer == place


SHARE = 4  # rows of each process


def clips(world):
    source = torch.Generator().manual_seed(6)
    x = torch.randn(SHARE * world, DIM, 2, 4, 4, generator=source, dtype=torch.float64)
    # Rows of one process are alike: its own statistics are not those of mixed rows.
    x = x + torch.arange(float(world)).repeat_interleave(SHARE).view(-1, 1, 1, 1, 1)
    return x.to(memory_format=torch.channels_last_3d)


def encoder():
    torch.manual_seed(8)
    layers = [nn.Conv3d(DIM, 5, 2), nn.BatchNorm3d(5), nn.Flatten(), nn.Linear(45, 4), nn.BatchNorm1d(4)]
    return nn.Sequential(*layers).double().train()


def shuffling():
    with distributed.joined(CPU):
        rank = distributed.rank()
        x = clips(distributed.world())[rank * SHARE : (rank + 1) * SHARE]
        found = {}
        for name, context in (("grad", torch.no_grad), ("inference", torch.inference_mode)):
            norm = encoder()
            torch.manual_seed(100 + rank)  # each process has random numbers of its own
            with context():
                back = shuffled(nn.Identity(), x)
                orders = [shuffled(norm, x), shuffled(norm, x)]
            # numpy, as tensors of inference mode are not sent
            found[name] = (back.numpy(), [y.numpy() for y in orders], norm[1].running_mean.clone())
        found["random"] = distributed.gather_objects(float(torch.rand(())))
        return found


@pytest.mark.parametrize("world", [2, 3])
def test_shuffled_rows_come_back_after_a_norm_over_others(world, run_world):
    x, norm = clips(world), encoder()
    torch.manual_seed(100)  # the main process's order is that of all
    torch.randperm(len(x))  # that of the identity
    expected, plain = [], []
    with torch.no_grad():
        for _ in range(2):
            order = torch.randperm(len(x))
            mixed = torch.cat([norm(part) for part in x[order].split(SHARE)])
            expected.append(mixed[torch.argsort(order)])
            plain.append(torch.cat([norm(part) for part in x.split(SHARE)]))
    assert not torch.allclose(expected[0], plain[0], atol=0.1)
    results = run_world(world, shuffling)
    for name in ("grad", "inference"):
        assert np.array_equal(np.concatenate([found[name][0] for found in results]), x.numpy())
        for n in range(2):  # another order each time
            y = np.concatenate([found[name][1][n] for found in results])
            np.testing.assert_allclose(y, expected[n].numpy(), rtol=1e-9, atol=1e-9)
    assert not torch.equal(results[0]["grad"][2], results[1]["grad"][2])  # each norm saw one slice
    assert len(set(results[0]["random"])) == world  # and what follows stays each process's own


def test_alone_there_is_nobody_to_shuffle_with():
    x = clips(1)
    expected = encoder()(x)
    norm = encoder()
    state = torch.get_rng_state()
    assert torch.equal(shuffled(norm, x), expected)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("momentum", [0.0, 0.25, 0.996, 1.0])
def test_move_towards(momentum):
    torch.manual_seed(0)
    target, online = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2))
    for module in (target, online):
        module(torch.randn(16, 3))  # moves the buffers
        nn.init.normal_(module[1].weight)
    t, o = ({key: value.clone() for key, value in module.state_dict().items()} for module in (target, online))
    move_towards(target, online, momentum)
    names = {name for name, _ in target.named_parameters()}
    for key, value in target.state_dict().items():
        expected = momentum * t[key] + (1 - momentum) * o[key] if key in names else t[key]
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(value, o[key]) for key, value in online.state_dict().items())


def test_unit_is_float32_and_of_length_1():
    x = torch.randn(4, 7).bfloat16() * 100
    assert unit(x).dtype == torch.float32
    torch.testing.assert_close(unit(x), x.float() / x.float().pow(2).sum(dim=1, keepdim=True).sqrt())
    assert torch.equal(unit(torch.zeros(1, 3)), torch.zeros(1, 3))


def test_key_statistics_are_those_of_loops():
    source = torch.Generator().manual_seed(5)
    query, key, negatives = rows(6, source), rows(6, source), rows(9, source)
    found = {name: value.item() for name, value in key_statistics(query, key, negatives, key[::2]).items()}
    q, k, n = (x.double().numpy() for x in (query, key, negatives))
    similarities = [float(sum(a * b for a, b in zip(x, y, strict=True))) for x in k for y in n]
    mean = sum(similarities) / len(similarities)
    spread = math.sqrt(sum((x - mean) ** 2 for x in similarities) / (len(similarities) - 1))
    values = np.linalg.svd(k[::2], compute_uv=False)
    shares = values / values.sum()
    assert found == {
        "positive_similarity": pytest.approx(sum(float(q[i] @ k[i]) for i in range(6)) / 6, abs=1e-6),
        "negative_similarity": pytest.approx(mean, abs=1e-6),
        "negative_spread": pytest.approx(spread, abs=1e-6),
        "key_rank": pytest.approx(math.exp(-sum(x * math.log(x) for x in shares)), rel=1e-5),
        "key_rank_limit": 3,
    }


@pytest.mark.parametrize(
    ("key", "rank"),
    [
        (torch.eye(4), 4.0),
        (torch.eye(4)[[0, 0, 0, 0]], 1.0),
        (torch.eye(4)[[0, 0, 1, 1]], 2.0),
        (torch.eye(4)[[0, 0, 0, 0, 1]], 3 / 2 ** (2 / 3)),  # singular values 2 and 1: shares 2/3 and 1/3
    ],
)
def test_effective_rank_of_known_keys(key, rank):
    assert effective_rank(key).item() == pytest.approx(rank, rel=1e-5)


def test_the_limit_of_the_rank_is_the_fewer_of_videos_and_dimensions():
    key = rows(8, torch.Generator().manual_seed(5))
    assert key.shape[1] < 8
    limits = [key_statistics(key, key, key, one_each)["key_rank_limit"].item() for one_each in (key[:2], key)]
    assert limits == [2, key.shape[1]]


def test_statistics_look_at_the_first_4096_negatives():
    key = torch.eye(2)[:1]
    negatives = torch.cat([torch.eye(2)[1:].expand(4096, -1), torch.eye(2)[:1].expand(100, -1)])
    assert key_statistics(key, key, negatives, key)["negative_similarity"] == 0


@pytest.mark.parametrize(
    "value", ["0", "-0.1", "{start: 0.2, end: 0.0}", "{start: 0.1, end: 0.2, warmup: 0.1}"]
)
@pytest.mark.parametrize(
    "place",
    [
        "moco.temperature",
        "frame_invariance.temperature",
        "npid.temperature",
        "simclr.temperature",
        "interclr_byol.inter.temperature",
        "ressl.target_temperature",
        "sce.target_temperature",
    ],
)
def test_a_temperature_that_is_ever_0_is_refused(place, value):
    toy, key = place.split(".", 1)
    with pytest.raises(ConfigError, match=f"method.{key}: must be above 0"):
        load_run(CONFIGS / f"{toy}.yaml", [f"method.{key}={value}"])


@pytest.mark.parametrize("value", ["1.01", "-0.1", "{start: 0.9, end: 2.0}"])
@pytest.mark.parametrize(
    "place", ["moco.momentum", "byol.momentum", "frame_invariance.momentum", "sce.coefficient"]
)
def test_a_share_beyond_0_and_1_is_refused(place, value):
    toy, key = place.split(".")
    with pytest.raises(ConfigError, match=f"method.{key}: must stay between 0 and 1"):
        load_run(CONFIGS / f"{toy}.yaml", [f"method.{key}={value}"])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("norm", ["none", "hidden"])
def test_batch_norm_of_one_clip_is_refused(norm, rows):
    head = mlp(DIM, Head(layers=2, hidden=4, out=2, norm=norm))
    fails = norm == "hidden" and rows == 1
    with pytest.raises(ConfigError, match="2 are the fewest") if fails else nullcontext():
        check_batch_norm(head, rows)
        head(torch.ones(rows, DIM))
    check_batch_norm(head.eval(), rows)


@pytest.mark.parametrize("toy", ["byol", "simclr", "npid"])
def test_a_method_with_batch_norm_refuses_one_clip(toy):
    run = load_run(CONFIGS / f"{toy}.yaml", ["method.projector.norm=hidden"])
    method = build(METHODS, run.method, build(BACKBONES, run.backbone))
    clips = torch.randn(1, 3, 4, 32, 32)
    with pytest.raises(ConfigError, match="batch_size"):
        method(Batch((clips, clips), torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)))


class Warm(Settings):
    temperature: Temperature


def test_a_temperature_may_warm_up_from_above_0():
    tree = {"start": 0.1, "end": 0.2, "shape": "linear", "warmup": 0.5, "warmup_start": 0.05}
    bound = bind(Warm, {"temperature": tree}, "test").temperature
    assert [bound.at(share) for share in (0, 0.25, 0.5, 1)] == pytest.approx([0.05, 0.075, 0.1, 0.2])


@pytest.mark.parametrize(
    "schedule",
    [
        0,
        {"start": 0.1, "end": 0.0},
        {"start": 0.1, "end": 0.2, "warmup": 0.5},
        {"start": 0.1, "end": 0.2, "warmup": 0.5, "warmup_start": -0.1},
    ],
)
def test_a_temperature_is_above_0_all_the_time(schedule):
    with pytest.raises(ConfigError, match=r"temperature: .*above 0 all the time"):
        bind(Warm, {"temperature": schedule}, "test")


@pytest.mark.parametrize("negatives", [0, 1])
def test_one_key_alone_has_no_spread_and_no_nan(negatives):
    key = rows(1, torch.Generator().manual_seed(2))
    found = key_statistics(key, key, rows(negatives, torch.Generator().manual_seed(3)), key)
    assert found["negative_similarity"] == found["negative_spread"] == 0
    assert found["positive_similarity"].item() == pytest.approx(1)
