"""Runs with `data.augment: device`: as on the CPU up to rounding, refused where it cannot work.

That it is exact when resumed: tests/distributed/test_resume.py.
"""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl.apps.show import show_views
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.engine.train import train

same = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))["same"]
DEVICE = "data.augment=device"


def saved(path):
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize("name", ["sce", "sce_multicrop", "frame_invariance", "supervised"])
def test_losses_are_those_of_the_cpu(name, toy_run, metrics):
    """The first ones: differences of rounding grow with each step."""
    for output, augment in (("cpu", "cpu"), ("device", "device")):
        train(toy_run(name, output, "steps=2", "optimizer={name: sgd, lr: 0.001}", f"data.augment={augment}"))
    for actual, expected in zip(metrics("device"), metrics("cpu"), strict=True):
        assert actual["loss"] == pytest.approx(expected["loss"], rel=1e-3)


@pytest.mark.parametrize("where", ["cpu", "device"])
def test_a_run_on_a_cpu_warns(where, toy_run, caplog):
    train(toy_run("supervised", "a", "steps=1", f"data.augment={where}"))
    assert sum("20 times as slow on a CPU" in line for line in caplog.messages) == (where == "device")


def test_shown_views_are_finished(toy_run):
    shown = [list(show_views(toy_run("sce", "a", f"data.augment={where}"), 2, 2)) for where in ("cpu", "device")]
    for one, other in zip(*shown, strict=True):
        for sample, twin in zip(one, other, strict=True):
            assert len(sample.views) == 2
            assert all(np.array_equal(a.frames, b.frames) for a, b in zip(sample.views, twin.views, strict=True))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.views.1.distortion.gamma=2.5"], "augment: device cannot run views.1.distortion: set data.augment=cpu"),
        (["data.views.0.distortion.local_shuffle=4"], "augment: device cannot run views.0.distortion: set data"),
        (
            ["data.views=[{name: center_crop, size: 32}, {name: center_crop, size: 24}]"],
            "augment: device has no operation to run in center_crop: set data.augment=cpu",
        ),
    ],
)
def test_what_the_device_cannot_run_is_refused(overrides, message, toy_run):
    toy_run("sce", "a", *overrides)
    with pytest.raises(ConfigError, match=message):
        toy_run("sce", "a", DEVICE, *overrides)


def test_a_distortion_of_a_view_that_only_crops_is_allowed(toy_run):
    run = toy_run("sce", "a", DEVICE, "data.views.1={name: center_crop, size: 32, distortion: {gamma: 2.5}}")
    assert run.data.augment == "device"


def test_a_run_does_not_change_where_it_augments(toy_run):
    train(toy_run("supervised", "a"), until=1)
    with pytest.raises(CheckpointError, match=r'data\.augment "cpu", now "device"'):
        train(toy_run("supervised", "a", DEVICE), until=2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_resume_is_exact_on_a_gpu(toy_run):
    more = (DEVICE, "device=cuda", "deterministic=true", "data.views.0.operations=3")
    try:
        straight = saved(train(toy_run("sce", "straight", *more)))
        train(toy_run("sce", "parts", *more), 5)
        parts = saved(train(toy_run("sce", "parts", *more)))
    finally:
        torch.use_deterministic_algorithms(False)
    same(straight["method"], parts["method"])
