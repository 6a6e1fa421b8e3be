"""Settings of methods that are refused: schedules out of range, batch norm of one clip."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from vidssl.base.config import Settings, bind, build
from vidssl.base.errors import ConfigError
from vidssl.base.schedule import Temperature
from vidssl.base.types import Batch
from vidssl.engine.run_config import load_run
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES
from vidssl.models.heads import Head, check_batch_norm, mlp

CONFIGS = Path(__file__).parents[2] / "configs" / "toy"


@pytest.mark.parametrize("value", ["0", "-0.1", "{start: 0.2, end: 0.0}", "{start: 0.1, end: 0.2, warmup: 0.1}"])
@pytest.mark.parametrize(
    "place",
    [
        "moco.temperature",
        "frame_invariance.temperature",
        "npid.temperature",
        "simclr.temperature",
        "swav.temperature",
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
@pytest.mark.parametrize("place", ["moco.momentum", "byol.momentum", "frame_invariance.momentum", "sce.coefficient"])
def test_a_value_outside_0_and_1_is_refused(place, value):
    toy, key = place.split(".")
    with pytest.raises(ConfigError, match=f"method.{key}: must stay between 0 and 1"):
        load_run(CONFIGS / f"{toy}.yaml", [f"method.{key}={value}"])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("norm", ["none", "hidden"])
def test_batch_norm_of_one_clip_is_refused(norm, rows):
    head = mlp(3, Head(layers=2, hidden=4, out=2, norm=norm))
    fails = norm == "hidden" and rows == 1
    with pytest.raises(ConfigError, match="at least 2 samples") if fails else nullcontext():
        check_batch_norm(rows, head)
        head(torch.ones(rows, 3))
    check_batch_norm(rows, head.eval())


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
