"""Schedules against their formulas, and in configs."""

import math

import pytest
from ruamel.yaml import YAML

from vidssl.base.config import Settings, bind, dump
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Schedule, Scheduled, constant


class Holder(Settings):
    value: Scheduled = constant(0.5)


def cosine(start, end, share):
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def test_cosine_is_the_default_and_its_formula():
    schedule = Schedule(start=0.99, end=1.0)
    for step in range(101):
        assert schedule.at(step / 100) == pytest.approx(cosine(0.99, 1.0, step / 100), abs=1e-12)


@pytest.mark.parametrize("shape", ["cosine", "linear", "constant"])
def test_warmup_climbs_to_start_and_the_rest_follows_rescaled(shape):
    end = 2.4 if shape == "constant" else 0.0
    schedule = Schedule(start=2.4, end=end, shape=shape, warmup=0.175)
    for share in (0.0, 0.05, 0.17):
        assert schedule.at(share) == pytest.approx(2.4 * share / 0.175, abs=1e-9)
    for share in (0.175, 0.3, 0.6, 1.0):
        rest = (share - 0.175) / 0.825
        expected = {"cosine": cosine(2.4, end, rest), "linear": 2.4 + (end - 2.4) * rest, "constant": 2.4}[shape]
        assert schedule.at(share) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("shape", ["cosine", "linear"])
def test_a_warmup_that_climbs_to_a_curve_over_the_whole_run(shape):
    """SlowFast's learning rate: a curve from epoch 0, and a line to its value at the end of the warm-up."""
    curve = {
        "cosine": lambda epoch: 2.4 * (1 + math.cos(math.pi * epoch / 200)) / 2,
        "linear": lambda epoch: 2.4 * (1 - epoch / 200),
    }[shape]
    schedule = Schedule(start=2.4, end=0.0, shape=shape, warmup=0.175, warmup_start=0.02, after_warmup=False)
    for epoch in (0, 1, 10, 34.99):
        expected = 0.02 + (curve(35) - 0.02) * epoch / 35
        assert schedule.at(epoch / 200) == pytest.approx(expected, rel=1e-12)
    for epoch in (35, 36, 99.9, 100, 150, 199):
        assert schedule.at(epoch / 200) == pytest.approx(curve(epoch), rel=1e-12)


def test_a_warmup_that_does_not_start_at_0():
    schedule = Schedule(start=2.0, end=0.0, warmup=0.5, warmup_start=1.0)
    assert [schedule.at(share) for share in (0, 0.25, 0.5, 0.75, 1)] == pytest.approx([1, 1.5, 2, 1, 0])


@pytest.mark.parametrize("schedule", [Schedule(start=3, end=1), Schedule(start=3, end=1, shape="linear", warmup=0.5)])
def test_progress_outside_the_run_is_its_nearest_end(schedule):
    assert schedule.at(-0.5) == schedule.at(0.0)
    assert schedule.at(1.0000001) == schedule.at(1.0) == pytest.approx(1.0)


def test_a_number_in_a_config_is_a_constant():
    bound = bind(Holder, {"value": 2}, "test")
    assert [bound.value.at(share) for share in (0, 0.3, 1)] == [2.0, 2.0, 2.0]
    assert dump(bound) == "value: 2.0\n"
    assert dump(Holder()) == "value: 0.5\n"


def test_a_constant_with_warmup_is_not_written_as_a_number():
    holder = bind(Holder, {"value": {"start": 2, "end": 2, "shape": "constant", "warmup": 0.5}}, "test")
    assert "warmup: 0.5" in dump(holder)


STEPS, TO_A_CURVE = {"shape": "steps", "milestones": [0.5]}, {"warmup": 0.2, "after_warmup": False}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"shape": "constant"}, "shape: constant cannot go from 1.0 to 0.1: choose linear or cosine"),
        ({"warmup": 1.0}, "value.warmup: .*less than 1"),
        ({"warmup": -0.1}, "value.warmup: .*greater than or equal to 0"),
        ({"after_warmup": False}, "warmup_start and after_warmup need a warmup above 0"),
        ({"warmup_start": 0.1}, "warmup_start and after_warmup need a warmup above 0"),
        ({"end": 1, "shape": "constant", **TO_A_CURVE}, "after_warmup: false has no effect with shape: constant"),
        ({**STEPS, **TO_A_CURVE}, "after_warmup: false has no effect with shape: steps"),
        ({"shape": "steps"}, "milestones and shape: steps need each other"),
        ({"milestones": [0.5]}, "milestones and shape: steps need each other"),
        ({"shape": "steps", "milestones": [0.5, 0.5]}, "must increase and come after the warm-up"),
        ({"shape": "steps", "milestones": [0.1], "warmup": 0.2}, "must increase and come after the warm-up"),
        ({**STEPS, "end": 0.0}, "needs start and end above 0"),
        ({"shape": "steps", "milestones": [1.0]}, "less than 1"),
        ({"shape": "cosin"}, "value.shape: "),
        ({"end": None}, "value.end: "),
        ({"warm_up": 0.1}, r"value.warm_up: unknown key \(did you mean 'warmup'\?\)"),
        (True, "value: "),
        ("0.1", "value: "),
        (float("nan"), "value"),
    ],
)
def test_invalid_schedules(value, message):
    tree = {"start": 1.0, "end": 0.1, **value} if isinstance(value, dict) else value
    with pytest.raises(ConfigError, match=message):
        bind(Holder, {"value": tree}, "test")


def test_steps_fall_by_equal_factors():
    """InterCLR's finetuning: a fifth from epochs 12 and 16 of 20 on."""
    schedule = Schedule(start=1.0, end=0.04, shape="steps", milestones=(0.6, 0.8))
    for epoch in range(21):
        assert schedule.at(epoch / 20) == pytest.approx(1.0 if epoch < 12 else 0.2 if epoch < 16 else 0.04)
    warm = Schedule(start=1.0, end=0.1, shape="steps", milestones=(0.5,), warmup=0.2)
    assert [warm.at(share) for share in (0.0, 0.1, 0.2, 0.49, 0.5, 1.0)] == pytest.approx([0, 0.5, 1, 1, 0.1, 0.1])


def test_steps_come_back_from_a_config():
    tree = {"value": {"start": 1.0, "end": 0.04, "shape": "steps", "milestones": [0.6, 0.8]}}
    bound = bind(Holder, tree, "test")
    assert bound.value.milestones == (0.6, 0.8)
    assert bind(Holder, YAML(typ="safe", pure=True).load(dump(bound)), "dumped") == bound
