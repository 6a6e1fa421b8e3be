"""What only a GPU can show; skipped where there is none."""

import runpy
from functools import partial
from pathlib import Path

import pytest
import torch

from vidssl.engine.train import train

TOYS = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))["TOYS"]

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")]


# Not every OpenCV has the selective search that makes the tracks of this one.
NEEDS = {"frame_invariance_tracks": "cv2.ximgproc.segmentation"}


@pytest.fixture
def float32(monkeypatch):
    """Convolutions and random numbers of a GPU as on a CPU.

    Untrained networks of few videos amplify differences: 1e-3 in the weights, that of TF32, are 5 % of the loss two
    steps later.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    for name in ("rand", "randn", "randperm"):
        monkeypatch.setattr(torch, name, partial(drawn, getattr(torch, name)))


def drawn(draw, *size, generator=None, device=None, **more):
    """Draw on the CPU, from the seed of the generator, whatever device is asked for."""
    if generator is not None:
        generator = torch.Generator().manual_seed(generator.initial_seed())
    return draw(*size, generator=generator, **more).to(device or "cpu")


@pytest.fixture
def as_before():
    """Deterministic mode is the process's."""
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TOYS)
def test_fault_19_resume_is_exact_on_a_gpu(name, precision, toy_run, metrics, as_before):
    pytest.importorskip(NEEDS.get(name, "torch"))
    more = ("device=cuda", "deterministic=true", f"precision={precision}", "micro_batch_size=4")
    straight = torch.load(train(toy_run(name, "straight", *more)), weights_only=True)
    for until in (3, 9, None):
        last = train(toy_run(name, "parts", *more), until)
    parts = torch.load(last, weights_only=True)
    for key, value in straight["method"].items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, parts["method"][key]), key
    assert metrics("parts") == metrics("straight")


@pytest.mark.parametrize("name", TOYS)
def test_a_gpu_computes_what_a_cpu_does(name, toy_run, metrics, float32):
    pytest.importorskip(NEEDS.get(name, "torch"))
    for device in ("cpu", "cuda"):
        train(toy_run(name, device, "steps=3", "log_every=1", f"device={device}", "optimizer={name: sgd, lr: 0.01}"))
    actual, expected = ([step["loss"] for step in metrics(device)] for device in ("cuda", "cpu"))
    assert len(actual) == 3 and actual == pytest.approx(expected, rel=1e-2)
