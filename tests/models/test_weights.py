"""Weights from files: the backbone of a real run comes back bit by bit, and no bad file does harm."""

import pickle
from pathlib import Path

import pytest
import torch

from vidssl.config import build
from vidssl.engine.run import load_run
from vidssl.engine.train import train
from vidssl.errors import CheckpointError
from vidssl.methods import METHODS
from vidssl.models import build_backbone, load_backbone
from vidssl.models.weights import FORMAT, backbone_weights, load_weights, read_checkpoint

TOY = Path(__file__).parents[2] / "configs" / "toy" / "sce.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps on a few videos, and its checkpoint."""
    folder = tmp_path_factory.mktemp("weights")
    digits = f"{{out: {folder}/data, train: 8, test: 0, frames: 24, size: 48}}"
    data = [f"data.moving_digits={digits}", f"data.train={folder}/data/motion/train.csv", "data.workers=0"]
    run = load_run(TOY, [f"output={folder}/run", "steps=2", "batch_size=4", "device=cpu", *data])
    return run, train(run)


def one_line(call, *arguments):
    with pytest.raises(CheckpointError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_backbone_comes_back_as_it_was(trained):
    run, path = trained
    content = torch.load(path, weights_only=True)
    method = build(METHODS, run.method, build_backbone("resnet3d18", width=8))
    method.load_state_dict(content["method"])
    backbone, untrained = load_backbone(path), build_backbone("resnet3d18", width=8).eval()
    assert not any(module.training for module in backbone.modules())
    x = torch.randn(2, 3, 4, 32, 32)
    with torch.no_grad():
        expected = method.backbone.eval()(x)
        assert torch.equal(backbone(x), expected)
        assert not torch.allclose(untrained(x), expected)
        assert not torch.equal(method.target[0].eval()(x), expected)  # the online backbone, not its average


def test_a_checkpoint_is_tensors_and_plain_data_only(trained):
    def kinds(value):
        if isinstance(value, dict):
            return {type(value)} | {kind for item in [*value, *value.values()] for kind in kinds(item)}
        if isinstance(value, list | tuple):
            return {type(value)} | {kind for item in value for kind in kinds(item)}
        return {type(value)}

    content = read_checkpoint(trained[1])
    assert {"format", "step", "config", "method", "optimizer", "rng", "versions", "fingerprint"} <= set(
        content
    )
    assert {kind.__name__ for kind in kinds(content)} <= {
        "dict", "OrderedDict", "list", "tuple", "Tensor", "str", "int", "float", "bool", "NoneType"
    }  # fmt: skip


@pytest.fixture
def altered(trained, tmp_path):
    """Write the checkpoint again after a change."""

    def alter(change):
        content = torch.load(trained[1], weights_only=True)
        change(content)
        path = tmp_path / "altered.pt"
        torch.save(content, path)
        return path

    return alter


NAME = "backbone.net.blocks.0.conv.weight"
CHANGES = {
    "missing": (lambda c: c["method"].pop(NAME), "1 weights missing, 0 unknown, 0 of another shape"),
    "unknown": (
        lambda c: c["method"].update({"backbone.more": torch.ones(1)}),
        "0 weights missing, 1 unknown",
    ),
    "shape": (lambda c: c["method"].update({NAME: torch.ones(1)}), "0 unknown, 1 of another shape"),
    "width": (lambda c: c["config"]["backbone"].update(width=4), "0 weights missing, 0 unknown, "),
    "other": (
        lambda c: c["config"].update(backbone={"name": "r3d_18"}),
        "choose the backbone that the checkpoint was",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fault_26_weights_that_do_not_fit(change, altered):
    alter, said = CHANGES[change]
    told = one_line(load_backbone, altered(alter))
    assert said in told and "altered.pt does not fit the backbone" in told


def test_fault_26_weights_are_loaded_all_or_none(trained):
    backbone = build_backbone("resnet3d18", width=8)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    weights = backbone_weights(read_checkpoint(trained[1]))
    weights.pop(next(reversed(weights)))
    one_line(load_weights, backbone, weights, "test")
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())


class Malicious:
    """Runs code when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (Path(self.target),)


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle"])
def test_fault_25_a_malicious_checkpoint_runs_nothing(how, tmp_path):
    target, path = tmp_path / "executed", tmp_path / "bad.pt"
    content = {"format": FORMAT, "method": Malicious(target)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "torch")
    assert "is damaged, or holds more than tensors and plain data" in one_line(load_backbone, path)
    assert not target.exists()
    torch.load(path, weights_only=False) if how != "pickle" else pickle.loads(path.read_bytes())
    assert target.exists()  # it would have


@pytest.mark.parametrize("content", [b"", b"<html>not found</html>", b"PK\x03\x04", b"\x80\x02", bytes(1000)])
def test_fault_24_files_that_are_no_checkpoint(content, tmp_path):
    path = tmp_path / "file.pt"
    path.write_bytes(content)
    assert str(path) in one_line(read_checkpoint, path)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_fault_24_truncated(share, trained, tmp_path):
    whole = Path(trained[1]).read_bytes()
    path = tmp_path / "cut.pt"
    path.write_bytes(whole[: int(len(whole) * share)])
    assert str(path) in one_line(read_checkpoint, path)


def test_fault_24_missing_or_other(tmp_path):
    assert "No such file" in one_line(read_checkpoint, tmp_path / "no.pt")
    assert "Is a directory" in one_line(read_checkpoint, tmp_path)
    for content in ({"model": torch.ones(1)}, torch.ones(3), [1], {"format": "other"}):
        path = tmp_path / "other.pt"
        torch.save(content, path)
        assert f"is no checkpoint of vidssl (format {FORMAT})" in one_line(read_checkpoint, path)
