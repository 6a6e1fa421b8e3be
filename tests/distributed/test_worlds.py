"""Two processes compute what one computes, and hold the same."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from vidssl.methods import METHODS

RUNS = runpy.run_path(str(Path(__file__).with_name("runs.py")))
train_toy = RUNS["train_toy"]
# Gentle: at the rates of the toy configs each step multiplies rounding errors by three.
STILL = ("steps=20", "optimizer={name: sgd, lr: 0.02}", "checkpoint.every=20")


def state(output, rank=0, step=20):
    return torch.load(output / f"rank-{rank}-step-{step}.pt", weights_only=True)


def losses(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "clips_per_second"} for line in lines]


def flat(value, name=""):
    """All tensors of nested values by name."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {key: tensor for k, inner in items for key, tensor in flat(inner, f"{name}.{k}").items()}


def agree(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-3, atol=2e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_are_one(name, run_world, toy_data, tmp_path):
    overrides = (*STILL, *(("method.dropout=0.0",) if name == "supervised" else ()))
    one, two = tmp_path / "one", tmp_path / "two"
    (single,) = run_world(1, train_toy, name, toy_data, one, overrides, None, False, True)
    both = run_world(2, train_toy, name, toy_data, two, overrides, None, True, True)
    for step, gradient in enumerate(single):
        for other in both:
            difference = (other[step] - gradient).norm() / gradient.norm()
            print(step, difference.item())
            assert difference < 1e-3, f"gradients of step {step + 1} differ by {difference:.1e}"
    for a, b in zip(losses(two), losses(one), strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)
    expected = flat(state(one)["method"])
    agree(flat(state(two)["method"]), expected)
    ranks = [flat({**state(two, rank), "rng": None}) for rank in (0, 1)]
    for key, value in ranks[0].items():
        assert torch.equal(value, ranks[1][key]), key  # bit by bit, statistics and queue too
