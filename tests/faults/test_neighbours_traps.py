"""What other projects of the field fell into, asked of this one: queues, targets, schedules, the order of training."""

import json
import math
import runpy
from pathlib import Path

import pytest
import torch

from vidssl.base import distributed
from vidssl.base.schedule import Schedule
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.methods import METHODS
from vidssl.methods.momentum_method import KeyQueue

PLACES = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))


@pytest.fixture
def toy(digits, tmp_path):
    """Bind a toy; `toy("moco", "a", "steps=3")` writes to tmp_path / "a"."""

    def bind(name, output, *overrides):
        where = PLACES["placed"](name, digits, tmp_path / output)
        return load_run(PLACES["CONFIGS"] / f"{name}.yaml", [*where, "checkpoint.every=1", *overrides])

    return bind


def state(run, step):
    path = Path(run.output) / "checkpoints" / f"step-{step:08d}.pt"
    return torch.load(path, weights_only=True)["method"]


def logged(run, key):
    lines = (Path(run.output) / "metrics.jsonl").read_text().splitlines()
    return [line[key] for line in map(json.loads, lines) if key in line]


# The queue ----------------------------------------------------------------------------------------------------


def enqueued():
    """Three steps of two micro-batches of 3 keys a process, into a queue of 17: no batch divides it."""
    with distributed.joined(torch.device("cpu")):
        queue, kept = KeyQueue(17, 1), []
        for step in range(3):
            for micro in range(2):
                queue.hold(torch.arange(3.0).view(3, 1) + 100 * step + 10 * distributed.rank() + 3 * micro)
            queue.enqueue()
            kept.append((queue.keys.flatten().tolist(), int(queue.pointer)))
        return kept


def test_keys_of_all_processes_enter_the_queue_and_a_wrap_drops_none(run_world):
    first, second = run_world(2, enqueued)
    assert first == second  # the queue of every process is the same
    ring, pointer = {}, 0
    for step, (keys, given) in enumerate(first):
        for rank in (0, 1):  # the order of the global batch: all of a process, then all of the next
            for n in range(6):
                ring[pointer] = 100 * step + 10 * rank + n
                pointer = (pointer + 1) % 17
        assert {place: keys[place] for place in ring} == ring and given == pointer
    assert len(ring) == 17


def train_with_a_small_queue(overrides):
    run = load_run(PLACES["CONFIGS"] / "moco.yaml", overrides)
    return torch.load(train(run), weights_only=True)["method"]["queue.pointer"].item()


def test_a_queue_needs_no_batch_that_divides_it(digits, tmp_path, run_world):
    """Shorter than a step's 16 keys, and longer."""
    for queue in (7, 21):
        where = PLACES["placed"]("moco", digits, tmp_path / str(queue))
        given = [*where, f"method.queue={queue}", "steps=2", "sync_bn=local"]
        # A step of more keys than there are places leaves the newest 7: the pointer comes round.
        expected = {7: (2 * 7) % 7, 21: (2 * 16) % 21}[queue]
        assert run_world(2, train_with_a_small_queue, given) == [expected] * 2


def test_queue_and_pointer_are_in_the_checkpoint_and_come_back(toy):
    run = toy("moco", "a", "steps=4")
    train(run, until=3)
    before = state(run, 3)
    assert before["queue.keys"].shape == (50, 16) and before["queue.pointer"] == 48
    train(run)
    after = state(run, 4)
    assert after["queue.pointer"] == (48 + 16) % 50
    changed = (after["queue.keys"] != before["queue.keys"]).any(dim=1)
    assert changed.nonzero().flatten().tolist() == [*range(14), 48, 49]  # all others came back, none was dropped


# The target ---------------------------------------------------------------------------------------------------


def check_move(before, after, momentum):
    """Target at the end of a step: m · target + (1 - m) · online, once, from the weights after that step."""
    names = [name for name in after if name.startswith("target.0.") and name.endswith("weight")]
    moved = 0.0
    for name in names:
        online = after[name.replace("target.0.", "backbone.")].double()
        expected = momentum * before[name].double() + (1 - momentum) * online
        torch.testing.assert_close(after[name].double(), expected, rtol=0, atol=2e-7)
        moved = max(moved, (after[name] - before[name]).abs().max().item())
    assert moved > 1e-4, "too little moved to tell"


def test_the_target_moves_once_a_step_not_once_a_micro_batch(toy):
    run = toy("moco", "a", "steps=3", "micro_batch_size=2", "method.momentum=0.9")
    train(run)
    check_move(state(run, 2), state(run, 3), 0.9)


def test_the_momentum_right_after_a_resume_is_that_of_its_step(toy):
    run = toy("moco", "a", "steps=4", "method.momentum={start: 0.5, end: 0.9}")
    train(run, until=2)
    before = state(run, 2)
    train(run, until=3)
    momentum = 0.9 + 0.5 * (0.5 - 0.9) * (1 + math.cos(math.pi * 3 / 4))
    assert 0.82 < momentum < 0.85  # that of the start would be 0.5, that of the step before 0.7
    check_move(before, state(run, 3), momentum)


# Schedules ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_a_schedule_stays_what_it_is_when_it_is_used_twice(shape):
    schedule = Schedule(start=0.4, end=0.1, shape=shape, warmup=0.25)
    given = schedule.model_dump()
    first, second = ([schedule.at(n / 40) for n in range(41)] for _ in range(2))
    assert first == second and schedule.model_dump() == given and max(first) == pytest.approx(0.4)


def test_one_config_trains_twice_with_the_same_rates_and_a_warm_up_of_one_step(toy):
    rates = "optimizer.lr={start: 0.01, end: 0.0, warmup: 0.25}"
    run = toy("supervised", "a", "steps=4", rates)
    train(run)
    first = logged(run, "lr")
    again = run.model_copy(update={"output": f"{run.output}-again"})
    train(again)
    expected = [0.0, *(0.005 * (1 + math.cos(math.pi * n / 3)) for n in range(3))]
    assert logged(again, "lr") == first == pytest.approx(expected)
    assert all(map(math.isfinite, logged(again, "loss")))


# The order of training ----------------------------------------------------------------------------------------


def test_the_list_is_shuffled_on_one_device_and_anew_each_epoch(toy, digits, monkeypatch):
    forward, seen = METHODS["supervised"].forward, []

    def seeing(self, batch):
        seen.append(batch.index.clone())
        return forward(self, batch)

    monkeypatch.setattr(METHODS["supervised"], "forward", seeing)
    train(toy("supervised", "a", "steps=10"))
    first, second = (torch.cat(seen[part : part + 5]).tolist() for part in (0, 5))
    labels = [record.label for record in read_list(digits / "motion" / "train.csv").records]
    assert sorted(first) == sorted(second) == list(range(40))
    assert first != list(range(40)) and first != second
    assert len({labels[index] for index in first[:8]}) > 2  # no batch of one class
