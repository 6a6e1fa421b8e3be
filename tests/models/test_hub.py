"""Names of networks: folders, runs and the Hugging Face Hub, whose client is replaced by a local folder."""

import json
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vidssl.base.errors import CheckpointError
from vidssl.engine.run_config import load_run
from vidssl.models import build_backbone, load_backbone
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT, weights_file
from vidssl.models.read_and_write_weights import save_checkpoint_backbone as save_backbone

TOY = Path(__file__).parents[2] / "configs" / "toy" / "moco.yaml"


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


def same(one, other):
    states = one.state_dict(), other.state_dict()
    return states[0].keys() == states[1].keys() and all(torch.equal(states[0][n], states[1][n]) for n in states[0])


@pytest.mark.parametrize(
    ("name", "revision"), [("someone/net", None), ("hf-hub:someone/net", None), ("hf-hub:someone/net@v1", "v1")]
)
def test_a_network_is_loaded_by_its_name(name, revision, hub, run_folder):
    backbone = load_backbone(name)
    assert same(backbone, load_backbone(run_folder / "checkpoints" / "last.pt"))
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
    with pytest.raises(CheckpointError, match=r"^torchvision:r3d_18 can only be measured, or encode videos"):
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
    with pytest.raises(CheckpointError, match=r"no file someone/net; to download .*: pip install huggingface_hub"):
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
    save_backbone(run_folder, tmp_path / "exported" / "model.safetensors", network={"format": "x"})
    assert same(load_backbone(tmp_path / "exported"), load_backbone(run_folder))
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"empty holds neither model.safetensors .* nor checkpoints/step-N.pt"):
        load_backbone(tmp_path / "empty")


def test_a_folder_of_the_name_of_a_packaged_network_does_not_hide_it(monkeypatch, tmp_path):
    (tmp_path / "vidssl-small").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_backbone("vidssl-small").run_config["backbone"]["name"] == "two_streams"


def test_nothing_of_a_config_is_imported(monkeypatch, tmp_path, run_folder):
    """Loading runs no code, also none that a config names."""
    content = torch.load(run_folder / "checkpoints" / "last.pt", weights_only=True)
    content["config"]["imports"] = ["evil_module"]
    torch.save(content, tmp_path / "x.pt")
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_backbone(tmp_path / "x.pt").run_config["imports"] == ["evil_module"]


def test_weights_of_other_projects_have_no_config(tmp_path):
    state = {name.removeprefix("net."): value for name, value in build_backbone("resnet18").state_dict().items()}
    save_file(state, tmp_path / "x.safetensors")
    assert load_backbone(tmp_path / "x.safetensors").run_config is None


def test_the_description_is_in_the_metadata(run_folder, tmp_path):
    path = tmp_path / "x.safetensors"
    save_backbone(run_folder, path, network={"num_features": 32})
    length = int.from_bytes(path.read_bytes()[:8], "little")
    metadata = json.loads(path.read_bytes()[8 : 8 + length])["__metadata__"]
    assert json.loads(metadata["vidssl"])["network"] == {"num_features": 32}
