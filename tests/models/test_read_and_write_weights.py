"""Checkpoints: the backbone of a real run is restored bit by bit, and invalid files do no harm."""

import importlib
import json
import pickle
import re
import shutil
import sys
import types
import zipfile
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vidssl.apps.export import save_backbone
from vidssl.base.config import build
from vidssl.base.errors import CheckpointError, ConfigError, UntrustedError
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.load_network import load_subject
from vidssl.methods import METHODS
from vidssl.models import build_backbone, load_backbone
from vidssl.models import read_and_write_weights as weights
from vidssl.models.match_checkpoints import InitialWeights, load_initial
from vidssl.models.read_and_write_weights import (
    CHECKPOINT_FORMAT,
    Normalization,
    load_state,
    normalization_of,
    read_anything,
    read_checkpoint,
    weights_file,
)

TOY = Path(__file__).parents[2] / "configs" / "toy" / "sce.yaml"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps on a few videos, and its checkpoint."""
    folder = tmp_path_factory.mktemp("weights")
    digits = f"{{out: {folder}/data, train: 8, test: 0, frames: 24, size: 48}}"
    data = [f"data.moving_digits={digits}", f"data.train={folder}/data/motion/train.csv", "data.workers=0"]
    run = load_run(TOY, [f"output={folder}/run", "steps=2", "batch_size=4", "device=cpu", *data])
    return run, train(run)


def same_weights(state, expected):
    return state.keys() == expected.keys() and all(
        torch.equal(value, expected[key]) if isinstance(value, torch.Tensor) else value == expected[key]
        for key, value in state.items()
    )


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
    assert {"format", "step", "config", "method", "optimizer", "rng", "versions", "fingerprint"} <= set(content)
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
    "missing": (lambda c: c["method"].pop(NAME), 'Missing key(s) in state_dict: "net.blocks.0.conv.weight"'),
    "unknown": (lambda c: c["method"].update({"backbone.more": torch.ones(1)}), 'Unexpected key(s) in state_dict: "mo'),
    "shape": (lambda c: c["method"].update({NAME: torch.ones(1)}), "size mismatch for net.blocks.0.conv.weight: "),
    "no tensor": (lambda c: c["method"].update({NAME: "text"}), "received <class 'str'>"),
    "width": (lambda c: c["config"]["backbone"].update(width=4), "use the config of its run"),
    "other": (lambda c: c["config"].update(backbone={"name": "r3d_18"}), "Missing key(s) in state_dict: "),
}


@pytest.mark.parametrize("change", CHANGES)
def test_fault_26_weights_that_do_not_fit(change, altered):
    alter, text = CHANGES[change]
    message = one_line(load_backbone, altered(alter))
    assert text in message and "altered.pt does not fit the backbone" in message


def test_arch_may_repeat_the_checkpoints_backbone(trained):
    assert load_backbone(trained[1], "resnet3d18").dim == 64
    assert "holds a resnet3d18, not a resnet3d50: leave out arch" in one_line(load_backbone, trained[1], "resnet3d50")
    with pytest.raises(ConfigError, match=r"no backbone 'resnet3d8' \(did you mean 'resnet3d18'\?\)"):
        load_backbone(trained[1], "resnet3d8")


def test_a_run_can_be_initialised_from_another(trained):
    path, backbone = str(trained[1]), build_backbone("resnet3d18", width=8)
    matched = load_initial(backbone, InitialWeights(file=path))
    expected = load_backbone(path).state_dict()
    assert same_weights(backbone.state_dict(), expected)
    assert str(matched).startswith(
        f"{path}: all 120 weights of the backbone are loaded, named as in vidssl, from backbone; "
    )
    assert "queue.keys" in matched.unused
    message = one_line(load_initial, build_backbone("resnet3d18", width=4), InitialWeights(file=path))
    assert "does not fit the backbone: 20 of 120 weights fit (net.blocks.0.conv.weight: (8, " in message


class Malicious:
    """Runs code when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (Path(self.target),)


@pytest.mark.parametrize("how", ["torch", "old torch", "pickle"])
def test_fault_25_a_malicious_checkpoint_runs_nothing(how, tmp_path):
    target, path = tmp_path / "executed", tmp_path / "bad.pt"
    content = {"format": CHECKPOINT_FORMAT, "method": Malicious(target)}
    if how == "pickle":
        path.write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "torch")
    text = r"holds \S+: only tensors and plain data are loaded, .* trust=True .*trust its author"
    assert re.search(text, one_line(load_backbone, path))
    assert not target.exists()
    torch.load(path, weights_only=False) if how != "pickle" else pickle.loads(path.read_bytes())
    assert target.exists()  # it would have


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """A module of somebody's own, with a class whose objects are saved; it notes when it is imported."""
    (tmp_path / "plug_in.py").write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'imported')!r}).touch()\n"
        "class Extra:\n    def __init__(self, number):\n        self.number = number\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("plug_in")
    sys.modules.pop("plug_in", None)


def test_fault_25_objects_of_a_plug_in_need_trust(plug_in, altered, trained, tmp_path, monkeypatch):
    path = altered(lambda c: c["method"].update(_extra_state={"mine": plug_in.Extra(7)}))
    del sys.modules["plug_in"]
    (tmp_path / "imported").unlink()
    with pytest.raises(UntrustedError, match=r"altered.pt holds plug_in.Extra: only tensors .* trust its author$"):
        read_checkpoint(path)
    with pytest.raises(UntrustedError):
        load_subject(str(path), {"device": "cpu"})
    assert not (tmp_path / "imported").exists() and "plug_in" not in sys.modules
    assert read_checkpoint(path, trust=True)["method"]["_extra_state"]["mine"].number == 7
    assert (tmp_path / "imported").exists()
    expected = load_backbone(trained[1]).state_dict()
    trusted = load_subject(str(path), {"trust": True, "device": "cpu"}).backbone
    for backbone in (load_backbone(path, trust=True), trusted):
        assert same_weights(backbone.state_dict(), expected)

    del sys.modules["plug_in"]
    (tmp_path / "plug_in.py").unlink()
    importlib.invalidate_caches()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    message = one_line(lambda: read_checkpoint(path, trust=True))
    assert "(ModuleNotFoundError: No module named 'plug_in')" in message


SAFETENSORS = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
OTHER = {
    "empty": (b"", "is empty: give a file"),
    "safetensors": (len(SAFETENSORS).to_bytes(8, "little") + SAFETENSORS + bytes(4), "is not a vidssl checkpoint"),
    "web page": (b"\n<!DOCTYPE html><html>not found</html>", "is a web page: give a file"),
    "old web page": (b"<HTML>not found", "is a web page: give a file"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a git-lfs pointer (fetch the file"),
    "text": (("path,label\n" + "ü" * 600).encode(), "is not a checkpoint: give a file"),
    "zeros": (bytes(1000), "is not a checkpoint: give a file"),
    "cut": (b"PK\x03\x04", "it is damaged: replace it"),
}


@pytest.mark.parametrize("kind", OTHER)
def test_fault_24_other_files(kind, tmp_path):
    content, text = OTHER[kind]
    path = tmp_path / "file.mp4"
    path.write_bytes(content)
    message = one_line(read_checkpoint, path)
    assert str(path) in message and text in message
    if kind != "safetensors":  # which may be somebody's weights
        assert one_line(load_backbone, path) == message
    if kind != "cut":
        assert one_line(lambda: read_checkpoint(path, trust=True)) == message


def test_fault_24_another_zip_file(tmp_path):
    with zipfile.ZipFile(tmp_path / "features.pt", "w") as archive:
        archive.writestr("word/document.xml", "text")
    message = one_line(read_checkpoint, tmp_path / "features.pt")
    assert "cannot load checkpoint " in message and "or a program of torch.export (.pt2)" in message


def test_fault_24_the_suffix_does_not_matter(trained, tmp_path):
    path = tmp_path / "renamed.safetensors"
    path.write_bytes(Path(trained[1]).read_bytes())
    assert read_checkpoint(path)["step"] == 2


def test_fault_24_missing_or_other(tmp_path):
    assert "No such file" in one_line(read_checkpoint, tmp_path / "no.pt")
    assert "holds neither model.safetensors" in one_line(read_checkpoint, tmp_path)
    path = tmp_path / "other.pt"
    for content in ({"model": torch.ones(1)}, torch.ones(3), [1], {"format": "other"}, {"format": CHECKPOINT_FORMAT}):
        torch.save(content, path)
        assert f"{path} is not a vidssl checkpoint (format {CHECKPOINT_FORMAT}): use" in one_line(read_checkpoint, path)


def test_a_checkpoint_of_another_format_is_named(altered):
    path = altered(lambda c: c.update(format="vidssl-checkpoint-1"))
    for read in (read_checkpoint, read_anything, load_backbone):
        assert one_line(read, path).startswith(f"{path} has format vidssl-checkpoint-1, not {CHECKPOINT_FORMAT}: ")


# A backbone alone -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
def test_a_saved_backbone_is_that_of_the_checkpoint(half, trained, tmp_path, monkeypatch):
    save_backbone(trained[1], tmp_path / "own.safetensors", half=half)
    monkeypatch.setattr(weights, "_OWN", {"own": tmp_path / "own.safetensors"})
    expected = load_backbone(trained[1]).state_dict()
    for name in (tmp_path / "own.safetensors", "own"):  # a file, and the name of a network that comes with vidssl
        actual = load_backbone(name).state_dict()
        assert actual.keys() == expected.keys()
        for key, weight in expected.items():
            rounded = weight.half().float() if half and weight.is_floating_point() else weight
            assert actual[key].dtype == weight.dtype and torch.equal(actual[key], rounded), key
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    assert load_backbone("own").dim == load_backbone(trained[1]).dim
    (tmp_path / "own").rmdir()
    (tmp_path / "own").write_text("not a network")
    assert "own is not a checkpoint" in one_line(load_backbone, "own")  # a file of that name goes first


def test_a_saved_backbone_keeps_its_config_and_step(trained, tmp_path):
    save_backbone(trained[1], tmp_path / "own.safetensors")
    before, after = read_checkpoint(trained[1]), read_checkpoint(tmp_path / "own.safetensors")
    for name in ("format", "config", "step"):
        assert after[name] == json.loads(json.dumps(before[name]))
    assert {name.split(".")[0] for name in after["method"]} == {"backbone"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda method: method.update({"backbone.running_var": torch.tensor([1e6])}), "running_var exceeds 65504"),
        (lambda method: method.update({"backbone._extra_state": {"a": 1}}), "_extra_state is not a dense tensor"),
        (lambda method: [method.pop(name) for name in [*method] if name.startswith("backbone.")], "nothing to save"),
    ],
)
def test_weights_that_cannot_be_saved(change, text, altered, tmp_path):
    path = altered(lambda content: change(content["method"]))
    assert text in one_line(partial(save_backbone, half=True), path, tmp_path / "own.safetensors")
    assert not (tmp_path / "own.safetensors").exists()


def test_weights_that_share_memory_are_saved(altered, tmp_path):
    shared = torch.arange(4.0)
    path = altered(lambda c: c["method"].update({"backbone.a": shared, "backbone.b": shared}))
    save_backbone(path, tmp_path / "own.safetensors")
    method = read_checkpoint(tmp_path / "own.safetensors")["method"]
    assert torch.equal(method["backbone.a"], shared) and torch.equal(method["backbone.b"], shared)


@pytest.mark.parametrize("metadata", ["[]", "{}", '{"config": [], "step": 1}', "[" * 9000, '{"config": {}}'])
def test_damaged_metadata_are_errors_of_one_line(metadata, tmp_path):
    save_file({"backbone.a": torch.ones(1)}, tmp_path / "own.safetensors", metadata={"vidssl": metadata})
    assert "cannot load checkpoint" in one_line(load_backbone, tmp_path / "own.safetensors")


@pytest.mark.parametrize("name", ["vidssl-small", "vidssl-free"])
def test_the_networks_that_come_with_vidssl(name):
    file = weights.weights_file(name)
    assert file.stat().st_size <= 6e6 and file.name in (file.parent / "LICENSE").read_text()
    config = read_checkpoint(name)["config"]
    assert not re.search(r"(?<![\w.])/\w", json.dumps(config)), "no paths of the machine that trained it"
    features = load_backbone(name)(torch.zeros(1, 3, 4, 64, 64))
    assert features.shape == (1, 256) and features.isfinite().all()
    origin = load_subject(name, {"device": "cpu"}).origin
    assert origin["path"] == name and origin["licence"] != "not stated" and "not stated" not in origin["training"]


# Whole methods ----------------------------------------------------------------------------------------------


@pytest.fixture
def method(trained):
    """A method as it is before training."""
    torch.manual_seed(5)
    return build(METHODS, trained[0].method, build_backbone("resnet3d18", width=8))


def test_fault_26_a_whole_method_comes_back(trained, method):
    state = read_checkpoint(trained[1])["method"]
    assert "_extra_state" in state
    load_state(method, state, "test")
    assert method.progress == 1.0 and same_weights(method.state_dict(), state)


BAD = {
    "missing": (lambda s: s.pop("_extra_state"), r'Missing key\(s\) in state_dict: "_extra_state"'),
    "unknown": (lambda s: s.update(n1=1), r'Unexpected key\(s\) in state_dict: "n1"'),
    "queue": (lambda s: s.update({"queue.keys": torch.ones(7, 16)}), r"queue.keys: .*\[7, 16\].*\[50, 16\]"),
    "unfit extra": (lambda s: s.update(_extra_state={"other": 1}), "its extra state has no progress"),
    "extra of no kind": (lambda s: s.update(_extra_state=None), "its extra state has no progress"),
}


@pytest.mark.parametrize("change", BAD)
def test_fault_26_a_method_that_does_not_fit(change, trained, method):
    state = dict(read_checkpoint(trained[1])["method"])
    alter, text = BAD[change]
    alter(state)
    message = one_line(load_state, method, state, "run/step-2.pt")
    assert message.startswith("run/step-2.pt does not fit the method (") and re.search(text, message)


# Names of networks: folders, runs and the Hugging Face Hub, whose client is replaced by a local folder --------


@pytest.fixture
def run_folder(tmp_path):
    """The folder of a run with one checkpoint."""
    run = load_run(TOY, [f"output={tmp_path}/run", "backbone={name: resnet3d18, width: 4}"])
    torch.manual_seed(1)
    weights = build_backbone(**run.backbone.model_dump()).state_dict()
    content = {"format": CHECKPOINT_FORMAT, "config": run.model_dump(mode="json"), "step": 7}
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save({**content, "method": {f"backbone.{name}": w for name, w in weights.items()}}, folder / "step-7.pt")
    (folder / "last.pt").symlink_to("step-7.pt")
    return tmp_path / "run"


@pytest.fixture
def hub(monkeypatch, tmp_path, run_folder):
    """A hub with one network, `someone/net`; returns the calls of its client."""
    cache, calls = tmp_path / "cache", []
    cache.mkdir()
    save_backbone(run_folder / "checkpoints" / "last.pt", cache / "model.safetensors")
    (cache / "config.json").write_text("{}")

    def snapshot_download(repo_id, *, revision=None, allow_patterns=None):
        calls.append((repo_id, revision, allow_patterns))
        if repo_id == "someone/empty":
            (tmp_path / "empty").mkdir(exist_ok=True)
            return str(tmp_path / "empty")
        if repo_id != "someone/net":
            raise OSError("404 Client Error\n\nnot found")
        return str(cache)

    fake = types.ModuleType("huggingface_hub")
    fake.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    monkeypatch.chdir(tmp_path)
    return calls


@pytest.mark.parametrize(
    ("name", "revision"), [("someone/net", None), ("hf-hub:someone/net", None), ("hf-hub:someone/net@v1", "v1")]
)
def test_a_network_is_loaded_by_its_name(name, revision, hub, run_folder):
    backbone = load_backbone(name)
    assert same_weights(backbone.state_dict(), load_backbone(run_folder / "checkpoints" / "last.pt").state_dict())
    assert backbone.run_config["backbone"]["width"] == 4
    assert hub == [("someone/net", revision, ["model.safetensors", "config.json"])]  # only data is downloaded


def test_what_exists_on_disk_comes_first(hub, run_folder, tmp_path):
    (tmp_path / "someone").mkdir()
    save_backbone(run_folder / "checkpoints" / "last.pt", tmp_path / "someone" / "net")
    load_backbone("someone/net")
    assert not hub


@pytest.mark.parametrize("name", ["run/net", "someone/net.pth", "a/b/c", "net.pth", "../net", "/someone/net"])
def test_a_mistyped_path_is_not_looked_up(name, hub):
    with pytest.raises(CheckpointError, match=r"cannot read checkpoint .*No such file"):
        load_backbone(name)
    with pytest.raises(CheckpointError, match=r"^torchvision:r3d_18 is not one backbone of vidssl"):
        load_backbone("torchvision:r3d_18")
    with pytest.raises(CheckpointError, match="net is neither a file nor the name of a network; there are: vidssl-"):
        load_backbone("net")
    assert not hub


def test_errors_of_the_hub_have_one_line(hub):
    with pytest.raises(CheckpointError, match=r"there is no file someone/other, and .*404 .*hf auth") as caught:
        load_backbone("someone/other")
    assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match=r"someone/empty on the Hugging Face Hub has no model.safetensors"):
        load_backbone("someone/empty")


def test_without_the_client_the_error_has_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        CheckpointError, match=r"no file someone/net; for the Hugging Face Hub: pip install huggingface_hub"
    ):
        load_backbone("someone/net")


def test_the_real_client_accepts_these_arguments(monkeypatch, tmp_path, run_folder):
    """Its cache is filled by hand, as a download does; it is offline."""
    hub = pytest.importorskip("huggingface_hub")
    from huggingface_hub import constants

    cache = tmp_path / "hub" / "models--someone--net"
    snapshot = cache / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    save_backbone(run_folder / "checkpoints" / "last.pt", snapshot / "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    real = hub.snapshot_download
    monkeypatch.setattr(hub, "snapshot_download", lambda *a, **k: real(*a, **k, cache_dir=tmp_path / "hub"))
    assert weights_file("someone/net").samefile(snapshot / "model.safetensors")


def test_folders(run_folder, tmp_path):
    assert weights_file(run_folder) == run_folder / "checkpoints" / "last.pt"
    assert load_backbone(run_folder).dim == 32
    (tmp_path / "exported").mkdir()
    save_backbone(run_folder, tmp_path / "exported" / "model.safetensors")
    assert same_weights(load_backbone(tmp_path / "exported").state_dict(), load_backbone(run_folder).state_dict())
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty holds neither model.safetensors .* nor checkpoints/step-N.pt"):
        load_backbone(tmp_path / "empty")


def test_the_normalization_of_a_stored_config():
    assert normalization_of({"data": {"mean": [0.45], "std": [0.225]}}) == Normalization((0.45,), (0.225,))
    same_for_all, of_each = Normalization((0.45,), (0.225,)), Normalization((0.45,) * 3, (0.225,) * 3)
    assert same_for_all.is_close(of_each) and not same_for_all.is_close(Normalization((0.45, 0.45, 0.4), (0.225,)))
    assert str(same_for_all) == str(of_each) == "'data.mean=[0.45]' 'data.std=[0.225]'"
    for wrong in ({}, {"data": 3}, {"data": {"mean": [0.45]}}, {"data": {"mean": ["a"], "std": [1.0]}}):
        assert normalization_of(wrong) is None
