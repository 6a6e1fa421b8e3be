"""The queue of keys against a deque, with one process and two."""

from collections import deque

import pytest
import torch
from torch.nn.functional import normalize

from vidssl.base import distributed
from vidssl.methods.momentum_method import KeyQueue

CPU = torch.device("cpu")
DIM = 3


def rows(count, source):
    return normalize(torch.randn(count, DIM, generator=source), dim=1)


def oldest_first(queue):
    return torch.roll(queue.keys, -int(queue.pointer), dims=0).tolist()


@pytest.mark.parametrize("size", [1, 5, 13])
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


def test_enqueue_detaches_keys_and_keeps_the_graph_of_the_step():
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
        collected = []
        for size in (1, 5, 24, 31, 100):
            torch.manual_seed(0)
            queue = KeyQueue(size, DIM)
            for step in global_keys(distributed.rank(), distributed.world()):
                for keys in step:
                    queue.hold(keys)
                queue.enqueue()
                collected.append((queue.keys, int(queue.pointer)))
        return collected


def test_queue_of_two_processes_is_that_of_one(run_world):
    alone = queues()
    assert [pointer for _, pointer in alone] == [0, 0, 0, 0, 0, 0, 24, 17, 24, 48]  # 24 keys a step
    for outcome in run_world(2, queues):
        for (keys, pointer), (expected, place) in zip(outcome, alone, strict=True):
            assert torch.equal(keys, expected) and pointer == place
