"""What only a GPU can show; skipped where there is none."""

import runpy
from pathlib import Path

import pytest
import torch

from vidssl.engine.train import train

TOYS = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))["TOYS"]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")]


@pytest.fixture
def as_before():
    """Deterministic mode is the process's."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TOYS)
def test_fault_19_resume_is_exact_on_a_gpu(name, precision, toy_run, metrics, as_before):
    more = ("device=cuda", "deterministic=true", f"precision={precision}", "micro_batch_size=4")
    straight = torch.load(train(toy_run(name, "straight", *more)), weights_only=True)
    for until in (3, 9, None):
        last = train(toy_run(name, "parts", *more), until)
    parts = torch.load(last, weights_only=True)
    for key, value in straight["method"].items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, parts["method"][key]), key
    assert metrics("parts") == metrics("straight")


@pytest.mark.parametrize("name", TOYS)
def test_a_gpu_computes_what_a_cpu_does(name, toy_run, metrics):
    for device in ("cpu", "cuda"):
        train(toy_run(name, device, "steps=3", f"device={device}", "optimizer={name: sgd, lr: 0.01}"))
    for found, expected in zip(metrics("cuda"), metrics("cpu"), strict=True):
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-2)
