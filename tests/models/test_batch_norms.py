"""Batch norm over processes equals torch's batch norm on the whole batch."""

import copy

import pytest
import torch
from torch import nn

from vidssl.base import distributed
from vidssl.models.batch_norms import BatchNorm3d, SyncBatchNorm, average_statistics, batch_norms, synchronise

CPU = torch.device("cpu")
STEPS, CHANNELS = 3, 5
SPLITS = {1: [12], 2: [6, 6], 3: [4, 4, 4]}
UNEQUAL = {1: [12], 2: [9, 3], 3: [2, 9, 1]}  # rows of each process

# name -> (settings of the norm, type of the input, its shape after (N, C), its centre, splits)
CASES = {
    "rows": ({}, torch.float64, (), 0.5, SPLITS),
    "clips": ({}, torch.float64, (2, 3, 4), 0.5, SPLITS),
    "channels last": ({}, torch.float64, (2, 3, 4), 0.5, SPLITS),
    "unequal rows": ({}, torch.float64, (), 0.5, UNEQUAL),
    "unequal clips": ({}, torch.float64, (2, 3, 4), 0.5, UNEQUAL),
    "not affine": ({"affine": False}, torch.float64, (), 0.5, UNEQUAL),
    "cumulative": ({"momentum": None}, torch.float64, (), 0.5, UNEQUAL),
    "other momentum": ({"momentum": 0.3, "eps": 0.1}, torch.float64, (), 0.5, UNEQUAL),
    "no statistics": ({"track_running_stats": False}, torch.float64, (), 0.5, UNEQUAL),
    "large mean": ({}, torch.float32, (), 1e4, UNEQUAL),
    "bfloat16": ({}, torch.bfloat16, (), 3.0, UNEQUAL),
    "half": ({}, torch.float16, (2, 2, 2), 3.0, UNEQUAL),
}


def layer(case):
    settings, dtype, trailing, *_ = CASES[case]
    norm = (nn.BatchNorm3d if trailing else nn.BatchNorm1d)(CHANNELS, **settings)
    if norm.affine:
        source = torch.Generator().manual_seed(2)
        nn.init.normal_(norm.weight, 0.5, generator=source)
        nn.init.normal_(norm.bias, generator=source)
    return norm.double() if dtype == torch.float64 else norm


def inputs(case, dtype=None):
    """The batches of all steps and one for evaluation, each (12, C, …); processes see other means."""
    _, own, trailing, centre, _ = CASES[case]
    source = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS + 1, 12, CHANNELS, *trailing, generator=source, dtype=torch.float64)
    x = x + torch.arange(12.0).view(1, 12, 1, *(1 for _ in trailing)) / 4 + centre
    x = x.to(own).to(dtype or own)
    if case == "channels last":
        return [batch.to(memory_format=torch.channels_last_3d) for batch in x]
    return list(x)


def steps(norm, batches, rows):
    """What a norm gives, and what flows back through it; rows are those of this process."""
    weights = torch.linspace(0.5, 2.0, 12, dtype=torch.float64)[rows]
    collected = []
    for x in batches[:-1]:
        x = x[rows].clone().requires_grad_()
        y = norm(x)
        loss = (y.double().sin().flatten(1).sum(dim=1) * weights).sum()
        norm.zero_grad(set_to_none=True)
        loss.backward()
        gradients = {name: p.grad for name, p in norm.named_parameters()}
        collected.append({"y": y.detach(), "x.grad": x.grad, **gradients})
    # Without running statistics evaluation takes those of the rows that are there: nothing to compare.
    evaluated = norm.eval()(batches[-1][rows]).detach() if norm.track_running_stats else batches[-1][rows]
    return collected, evaluated, norm.state_dict()


def synced():
    """All cases on this process, with the gradients of weights added up over all of them."""
    with distributed.joined(CPU):
        collected = {}
        for case, (*_, splits) in CASES.items():
            parts = splits[distributed.world()]
            first = sum(parts[: distributed.rank()])
            norm = synchronise(layer(case), CPU)
            every, evaluated, state = steps(norm, inputs(case), slice(first, first + parts[distributed.rank()]))
            for step in every:
                for name in step.keys() & {"weight", "bias"}:
                    step[name] = distributed.mean(step[name]) * distributed.world()
            collected[case] = every, evaluated, state
        collected["averaged"] = averaged(distributed.rank())
        return collected


def averaged(seed):
    """Statistics before and after they are averaged."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.BatchNorm1d(CHANNELS),
        nn.Linear(CHANNELS, 3),
        nn.BatchNorm1d(3, affine=False),
        nn.BatchNorm1d(3, track_running_stats=False),
    )
    model(torch.randn(8, CHANNELS))
    kept = dict(model.named_buffers())
    before = copy.deepcopy(model.state_dict())
    average_statistics(model)
    average_statistics(nn.Linear(2, 2))  # nothing to do
    same = all(buffer is kept[name] for name, buffer in model.named_buffers())
    return before, model.state_dict(), same


@pytest.fixture(scope="module", params=[2])
def world(request, run_world):
    """What all processes found."""
    return run_world(request.param, synced)


TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-11},
    torch.float32: {"rtol": 5e-3, "atol": 5e-3},  # at 1e4 a number has 1e-3 left
}


@pytest.mark.parametrize("case", [case for case, (_, dtype, *_) in CASES.items() if dtype.itemsize > 2])
def test_sync_norm_equals_the_norm_of_the_whole_batch(case, world):
    _, dtype, *_, splits = CASES[case]
    assert [len(outcome[case][1]) for outcome in world] == splits[len(world)]
    close = TOLERANCE[dtype]
    # The reference has all digits, whatever the input has.
    every, evaluated, state = steps(layer(case).double(), inputs(case, torch.float64), slice(None))
    for n, expected in enumerate(every):
        for name in ("y", "x.grad"):
            rows = torch.cat([outcome[case][0][n][name] for outcome in world])
            assert rows.dtype == dtype
            torch.testing.assert_close(rows.double(), expected[name], **close)
        for outcome in world:
            for name in expected.keys() - {"y", "x.grad"}:
                torch.testing.assert_close(outcome[case][0][n][name].double(), expected[name], **close)
    for outcome in world:
        assert outcome[case][2].keys() == state.keys()
        for name, value in state.items():
            torch.testing.assert_close(outcome[case][2][name].to(value.dtype), value, rtol=close["rtol"], atol=0)
    rows = torch.cat([outcome[case][1] for outcome in world])
    torch.testing.assert_close(rows.double(), evaluated, **close)


def test_clips_stay_channels_last(world):
    for outcome in world:
        for step in outcome["channels last"][0]:
            assert step["y"].is_contiguous(memory_format=torch.channels_last_3d)
            assert not step["y"].is_contiguous()


def test_only_statistics_are_averaged(world):
    befores = [actual["averaged"][0] for actual in world]
    assert not torch.equal(befores[0]["0.running_mean"], befores[1]["0.running_mean"])
    for rank, actual in enumerate(world):
        before, after, same = actual["averaged"]
        assert same and after.keys() == before.keys()
        for name, value in after.items():
            if name.endswith(("running_mean", "running_var")):
                expected = torch.stack([other[name] for other in befores]).mean(dim=0)
                torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
                assert torch.equal(value, world[0]["averaged"][1][name])  # the same, to the last bit
            else:
                assert torch.equal(value, befores[rank][name])


@pytest.mark.parametrize("case", CASES)
def test_with_one_process_it_is_the_plain_norm_bit_by_bit(case):
    results = [steps(norm, inputs(case), slice(None)) for norm in (synchronise(layer(case), CPU), layer(case))]
    (outcome, evaluated, state), (expected, plain_evaluated, plain_state) = results
    for a, b in zip(outcome, expected, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert torch.equal(evaluated, plain_evaluated)
    assert state.keys() == plain_state.keys() and all(torch.equal(state[n], plain_state[n]) for n in state)


def model():
    norm = nn.BatchNorm1d(4)
    return nn.Sequential(
        nn.Conv3d(3, 4, 1), nn.BatchNorm3d(4), nn.Sequential(nn.Flatten(2), norm), nn.LayerNorm(8), norm
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_synchronise_keeps_weights_and_statistics(device):
    plain = model()
    average = plain(torch.randn(2, 3, 2, 2, 2))  # moves the statistics
    assert average.shape == (2, 4, 8)
    parts, names = [*plain.named_parameters(), *plain.named_buffers()], list(plain.state_dict())
    before = copy.deepcopy(plain.state_dict())
    made = synchronise(plain, torch.device(device))
    kind = SyncBatchNorm if device == "cpu" else nn.SyncBatchNorm
    assert [type(norm) for norm in batch_norms(made)] == [kind] * len(batch_norms(made))
    assert len(batch_norms(made)) >= 2 and type(made[3]) is nn.LayerNorm and made is plain
    kept = [*made.named_parameters(), *made.named_buffers()]
    assert [name for name, _ in kept] == [name for name, _ in parts] and list(made.state_dict()) == names
    assert all(a is b for (_, a), (_, b) in zip(kept, parts, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())


def frozen_over_steps():
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(64), nn.BatchNorm1d(64))
    for norm in model:
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.1, 2.0)
    model[0].eval()  # frozen; the other one learns
    before = copy.deepcopy(model.state_dict())
    for _ in range(20):
        model[1](torch.randn(8, 64, generator=torch.Generator().manual_seed(distributed.rank())))
        average_statistics(model)
    return before, model.state_dict()


def test_frozen_statistics_stay_bit_by_bit_whatever_the_number_of_processes(run_world):
    """(x + x + x) / 3 is not x: a mean of what is equal already would drift."""
    for before, after in run_world(3, frozen_over_steps):
        for name in ("running_mean", "running_var"):
            assert torch.equal(before[f"0.{name}"], after[f"0.{name}"])
            assert not torch.equal(before[f"1.{name}"], after[f"1.{name}"])


@pytest.mark.parametrize("training", [True, False])
def test_in_four_dimensions_a_norm_of_clips_is_the_same_and_copies_nothing(training):
    torch.manual_seed(0)
    ours, plain = BatchNorm3d(6).train(training), nn.BatchNorm3d(6).train(training)
    clips = torch.randn(4, 6, 3, 5, 7).to(memory_format=torch.channels_last_3d) * 3 + 2
    actual, expected = (clips.clone().requires_grad_() for _ in range(2))
    y, needed = ours.in_four_dimensions(actual), plain(expected)
    assert y.shape == needed.shape and y.is_contiguous(memory_format=torch.channels_last_3d)
    assert actual.flatten(2, 3).data_ptr() == actual.data_ptr()
    assert actual.flatten(2, 3).is_contiguous(memory_format=torch.channels_last)
    weights = torch.randn(y.shape)
    for out in (y, needed):
        (out * weights).sum().backward()
    torch.testing.assert_close(y, needed, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-4, atol=1e-5)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, msg=name)
    assert torch.equal(ours(clips), plain(clips))  # on a CPU it is torch's own
    with pytest.raises(ValueError, match=r"^BatchNorm3d needs input \(N, C, T, H, W\), got \(2, 6\)$"):
        ours(torch.zeros(2, 6))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_a_norm_of_clips_keeps_channels_last_on_a_gpu():
    norm, plain = BatchNorm3d(64).cuda(), nn.BatchNorm3d(64).cuda()
    clips = torch.randn(4, 64, 3, 16, 16, device="cuda").to(memory_format=torch.channels_last_3d)
    actual, expected = (clips.clone().requires_grad_() for _ in range(2))
    y, needed = norm(actual), plain(expected)
    for out in (y, needed):
        out.square().sum().backward()
    torch.testing.assert_close(y, needed)
    torch.testing.assert_close(actual.grad, expected.grad, rtol=1e-3, atol=1e-3)
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    assert actual.grad.is_contiguous(memory_format=torch.channels_last_3d)
