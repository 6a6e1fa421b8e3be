"""What a run sends is what `benchmarks/scaling.py`, and the page about several processes, say."""

import runpy
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
RUNS = runpy.run_path(str(Path(__file__).with_name("runs.py")))
sys.path.insert(0, str(ROOT / "benchmarks"))  # where `measure` is
SCALING = runpy.run_path(str(ROOT / "benchmarks" / "scaling.py"), run_name="scaling")
sys.path.pop(0)


@pytest.mark.parametrize(
    ("name", "world", "more"),
    [("moco", 3, ("batch_size=12", "micro_batch_size=2", "method.key_views=[1]")), ("sce", 2, ("sync_bn=local",))],
)
def test_a_step_sends_what_the_model_says(name, world, more, run_world, digits, tmp_path):
    overrides = ("steps=3", "log_every=3", *more)
    run = RUNS["toy"](name, digits, tmp_path, overrides)
    method = SCALING["untrained"](run)
    outcome = run_world(world, RUNS["counted"], name, digits, tmp_path, overrides)
    micro = run.batch_size // world // (run.micro_batch_size or run.batch_size // world)
    expected = SCALING["gradients"](method) + SCALING["keys"](run, method, world)
    messages = (name != "supervised") * micro  # keys
    if run.sync_bn == "local":
        norms = [part for part in method.modules() if isinstance(part, torch.nn.modules.batchnorm._BatchNorm)]
        expected += 4 * 2 * sum(norm.num_features for norm in norms)  # the averages of running statistics
        messages += 1
    else:
        norm, count = SCALING["batch_norm"](run, method, world, own_form=True)
        expected, messages = expected + norm, messages + count
    expected += 8 * micro  # flags of the processes before each micro-batch
    expected += 4  # loss; other scalars are averaged when they are logged
    messages += 1 + micro + 1  # gradients, flags, and loss
    for sent in outcome:
        assert "all_gather_object" not in sent, "no pickles in a step"
        assert sum(map(sum, sent.values())) == expected
        assert sum(map(len, sent.values())) == messages


def test_gradients_that_torch_averages_are_as_large(run_world, digits, tmp_path):
    run = RUNS["toy"]("sce", digits, tmp_path, ())
    method = SCALING["untrained"](run)
    assert run_world(2, bucket_bytes, digits, tmp_path) == [SCALING["gradients"](method)] * 2


def bucket_bytes(digits, output):
    from vidssl.base import distributed
    from vidssl.base.config import build
    from vidssl.engine.parallel import over_processes
    from vidssl.methods import METHODS
    from vidssl.models.backbones import BACKBONES

    cpu = torch.device("cpu")
    with distributed.joined(cpu):
        run = RUNS["toy"]("sce", digits, output, ())
        parallel = over_processes(build(METHODS, run.method, build(BACKBONES, run.backbone)), cpu, exact=False)
        return sum(map(int, parallel._get_ddp_logging_data()["bucket_sizes"].split(",")))


def test_the_state_of_a_process(digits, tmp_path):
    for name in ("sce", "supervised"):
        run = RUNS["toy"](name, digits, tmp_path, ("steps=1",))
        RUNS["outcome"](name, digits, tmp_path, ("steps=1",))
        content = torch.load(tmp_path / "checkpoints" / "last.pt", weights_only=True)
        state = SCALING["state"](run, SCALING["untrained"](run))
        optimizer = sum(
            value.numel() * 4
            for part in content["optimizer"]["state"].values()
            for value in part.values()
            if isinstance(value, torch.Tensor) and value.ndim
        )
        assert state["optimizer"] == optimizer
        assert state["queue"] == (content["method"]["queue.keys"].numel() * 4 if name == "sce" else 0)
        (tmp_path / "checkpoints").rename(tmp_path / f"checkpoints-{name}")
