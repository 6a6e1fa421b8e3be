"""The target network: keys that are encoded in batches shuffled over processes."""

import numpy as np
import pytest
import torch
from torch import nn

from vidssl.base import distributed
from vidssl.methods.momentum_method import shuffled

CPU = torch.device("cpu")
DIM = 3
ROWS = 4  # rows of each process


def clips(world):
    source = torch.Generator().manual_seed(6)
    x = torch.randn(ROWS * world, DIM, 2, 4, 4, generator=source, dtype=torch.float64)
    # Rows of one process are alike: its own statistics are not those of mixed rows.
    x = x + torch.arange(float(world)).repeat_interleave(ROWS).view(-1, 1, 1, 1, 1)
    return x.to(memory_format=torch.channels_last_3d)


def encoder():
    torch.manual_seed(8)
    layers = [nn.Conv3d(DIM, 5, 2), nn.BatchNorm3d(5), nn.Flatten(), nn.Linear(45, 4), nn.BatchNorm1d(4)]
    return nn.Sequential(*layers).double().train()


def shuffling():
    with distributed.joined(CPU):
        rank = distributed.rank()
        x = clips(distributed.world())[rank * ROWS : (rank + 1) * ROWS]
        collected = {}
        for name, context in (("grad", torch.no_grad), ("inference", torch.inference_mode)):
            norm = encoder()
            torch.manual_seed(100 + rank)  # each process has random numbers of its own
            with context():
                back = shuffled(nn.Identity(), x)
                orders = [shuffled(norm, x), shuffled(norm, x)]
            # numpy, as tensors of inference mode are not sent
            collected[name] = (back.numpy(), [y.numpy() for y in orders], norm[1].running_mean.clone())
        collected["random"] = distributed.gather_objects(float(torch.rand(())))
        return collected


@pytest.mark.parametrize("world", [2])
def test_shuffled_rows_come_back_after_a_norm_over_others(world, run_world):
    x, norm = clips(world), encoder()
    torch.manual_seed(100)  # the main process's order is that of all
    torch.randperm(len(x))  # that of the identity
    expected, plain = [], []
    with torch.no_grad():
        for _ in range(2):
            order = torch.randperm(len(x))
            mixed = torch.cat([norm(part) for part in x[order].split(ROWS)])
            expected.append(mixed[torch.argsort(order)])
            plain.append(torch.cat([norm(part) for part in x.split(ROWS)]))
    assert not torch.allclose(expected[0], plain[0], atol=0.1)
    results = run_world(world, shuffling)
    for name in ("grad", "inference"):
        assert np.array_equal(np.concatenate([outcome[name][0] for outcome in results]), x.numpy())
        for n in range(2):  # another order each time
            y = np.concatenate([outcome[name][1][n] for outcome in results])
            np.testing.assert_allclose(y, expected[n].numpy(), rtol=1e-9, atol=1e-9)
    assert not torch.equal(results[0]["grad"][2], results[1]["grad"][2])  # each norm saw one slice
    assert len(set(results[0]["random"])) == world  # and what follows stays each process's own


def test_one_process_does_not_shuffle():
    x = clips(1)
    expected = encoder()(x)
    norm = encoder()
    state = torch.get_rng_state()
    assert torch.equal(shuffled(norm, x), expected)
    assert torch.equal(torch.get_rng_state(), state)
