"""Settings of methods that are refused: schedules out of range, batch norm of one clip."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from vidssl.base.config import Settings, bind
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature
from vidssl.engine.run_config import load_run
from vidssl.models.heads import Head, check_batch_norm, mlp

CONFIGS = Path(__file__).parents[2] / "configs" / "toy"


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("moco.temperature", "0", "must be above 0"),
        ("npid.temperature", "-0.1", "must be above 0"),
        ("simclr.temperature", "{start: 0.2, end: 0.0}", "must be above 0"),
        ("interclr_byol.inter.temperature", "{start: 0.1, end: 0.2, warmup: 0.1}", "must be above 0"),
        ("ressl.target_temperature", "0", "must be above 0"),
        ("sce.target_temperature", "0", "must be above 0"),
        ("byol.momentum", "1.01", "must stay between 0 and 1"),
        ("sce.coefficient", "{start: 0.9, end: 2.0}", "must stay between 0 and 1"),
    ],
)
def test_values_that_a_schedule_may_never_have(place, value, words):
    toy, key = place.split(".", 1)
    with pytest.raises(ConfigError, match=f"method.{key}: {words}"):
        load_run(CONFIGS / f"{toy}.yaml", [f"method.{key}={value}"])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("norm", ["none", "hidden"])
def test_batch_norm_of_one_clip_is_refused(norm, rows):
    head = mlp(3, Head(layers=2, hidden=4, out=2, norm=norm))
    fails = norm == "hidden" and rows == 1
    with pytest.raises(ConfigError, match="needs 2 samples") if fails else nullcontext():
        check_batch_norm(rows, head)
        head(torch.ones(rows, 3))
    check_batch_norm(rows, head.eval())


class Warm(Settings):
    temperature: Temperature


def test_a_temperature_may_warm_up_from_above_0():
    tree = {"start": 0.1, "end": 0.2, "shape": "linear", "warmup": 0.5, "warmup_start": 0.05}
    bound = bind(Warm, {"temperature": tree}, "test").temperature
    assert [bound.at(progress) for progress in (0, 0.25, 0.5, 1)] == pytest.approx([0.05, 0.075, 0.1, 0.2])


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
