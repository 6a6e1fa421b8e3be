"""A step that is not finite: it is read a step later, so that nothing waits for a GPU, and leaves no trace in files."""

import json
import runpy
import traceback
from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import vidssl
from vidssl.base.errors import TrainingError
from vidssl.engine import train
from vidssl.methods import METHODS

TOYS = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))["TOYS"]
same = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))["same"]
aten = torch.ops.aten
PACKAGE = f"{Path(vidssl.__file__).parent}/"
# Operations whose result or its shape the host must read.
WAITS = {aten._local_scalar_dense, aten.nonzero, aten.masked_select, aten._unique2, aten.unique_dim, aten.equal}
# On the device, all operations that there are.
AUGMENTED = ("data.augment=device", "data.views.0.operations=6", "data.views.1.solarize_probability=0.5")
# The bank takes the last of several rows of a record, whose number is not known before.
KNOWN = {"npid": "write", "interclr_npid": "write", "interclr_moco": "write", "interclr_byol": "write"}


class _Waits(TorchDispatchMode):
    """Counts the operations that make the host wait for a GPU, by the function of vidssl that calls them."""

    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in WAITS:
            self.found[
                [frame.name for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGE)][-1]
            ] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "more"), [*((name, ()) for name in TOYS), ("sce", AUGMENTED)])
def test_no_step_waits_for_the_host_but_by_the_check_of_the_last(name, more, toy_run, monkeypatch):
    counted, steps, set_lr = _Waits(), iter(range(4)), train.set_lr

    def count(*arguments):  # called first in each step: counts those of the second and the third
        step = next(steps)
        if step == 1:
            counted.__enter__()
        elif step == 3:
            counted.__exit__(None, None, None)
        return set_lr(*arguments)

    monkeypatch.setattr(train, "set_lr", count)
    train.train(toy_run(name, "a", "steps=4", "log_every=100", *more))
    assert counted.found.pop("settle") == 2  # of the step before, which a GPU has computed by then
    assert set(counted.found) <= {KNOWN.get(name)}


def _spoiled(monkeypatch, step):
    """Make the loss of a step NaN."""
    pair_loss = METHODS["moco"].pair_loss

    def loss(self, query, key):
        return pair_loss(self, query, key) * (float("nan") if self.step == step - 1 else 1.0)

    monkeypatch.setattr(METHODS["moco"], "pair_loss", loss)


@pytest.mark.parametrize("settings", [["log_every=100", "checkpoint.every=6"], ["verify_every=6"]])
def test_fault_23_nothing_of_the_step_remains(settings, toy_run, tmp_path, monkeypatch):
    straight = torch.load(train.train(toy_run("moco", "straight", *settings)), weights_only=True)
    with monkeypatch.context() as spoiled:
        _spoiled(spoiled, step=6)
        train.train(toy_run("moco", "a", *settings), until=5)
        with pytest.raises(TrainingError, match=r"^the loss of step 6 is nan, or its gradients are not finite"):
            train.train(toy_run("moco", "a", *settings))
    content = json.loads((tmp_path / "a" / "not-finite-step-00000006.json").read_text())
    assert len(content[0]["records"]) == 8
    assert (tmp_path / "a/checkpoints/last.pt").resolve().name == "step-00000005.pt"
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert all(line["step"] <= 5 for line in lines)
    resumed = torch.load(train.train(toy_run("moco", "a", *settings)), weights_only=True)
    for name in ("method", "optimizer", "step", "rng"):
        same(resumed[name], straight[name])


def test_the_last_step_is_checked(toy_run, tmp_path, monkeypatch):
    _spoiled(monkeypatch, step=12)
    with pytest.raises(TrainingError, match="the loss of step 12 is nan"):
        train.train(toy_run("moco", "a", "log_every=100"))
    assert "step-00000012.pt" not in {path.name for path in (tmp_path / "a/checkpoints").iterdir()}
