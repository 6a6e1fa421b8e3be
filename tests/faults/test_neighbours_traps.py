"""What other projects of the field fell into, asked of this one: targets, schedules, the order of training."""

import json
import math
import runpy
from pathlib import Path

import pytest
import torch

from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.methods import METHODS

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
