"""Data runs no code: a module is imported if a user names it or trusts the file, not because weights name it."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vidssl
from vidssl import cli
from vidssl.apps.export import save_backbone
from vidssl.base.config import build, read
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.base.plugins import import_modules, modules_of
from vidssl.cli import ANALYSES, COMMANDS, Group
from vidssl.engine.run_config import load_run
from vidssl.methods.base import METHODS
from vidssl.models import load_backbone
from vidssl.models.backbones import BACKBONES
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
MODULE = """from pathlib import Path
from vidssl.methods.base import METHODS
from vidssl.methods.supervised import Supervised
Path(__file__).with_name("ran").write_text("code of the data")

@METHODS.register("named_by_data")
class NamedByData(Supervised):
    '''A method of a plug-in.'''
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a package beside weights that name it, in the working folder of a user, who has it on the path."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "hidden.py").write_text(MODULE)
    run = load_run(TOY, ["backbone.width=4", "data.workers=0", "data.moving_digits=null", "data.train=list.csv"])
    config = run.model_dump(mode="json")
    config |= {"imports": ["model.hidden"], "method": {**config["method"], "name": "named_by_data"}}
    method = build(METHODS, run.method, build(BACKBONES, run.backbone)).state_dict()
    content = {"format": CHECKPOINT_FORMAT, "step": 3, "config": config, "method": method, "classes": []}
    torch.save(content, tmp_path / "model" / "last.pt")
    save_backbone(tmp_path / "model" / "last.pt", tmp_path / "model" / "model.safetensors")
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "model" / "config.yaml").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    METHODS._entries.pop("named_by_data", None)
    for name in ("model", "model.hidden"):
        sys.modules.pop(name, None)


def ran(folder):
    return (folder / "model" / "ran").exists()


LOADING = {
    "test": ["x.csv", "--out", "o"],
    "test of boxes": ["x.json", "--out", "o"],
    "retrieval": ["--gallery", "x.csv", "--query", "x.csv", "--out", "o"],
    "extract": ["x.csv", "--out", "o"],
    "map": ["x.csv", "--out", "o"],
    "track": ["x.csv", "--out", "o"],
    "show": ["x.csv", "--out", "o"],
    "compare": ["plain.csv", "--out", "o"],
    "predict": ["z.mp4", "--labels", "x.csv", "--out", "o"],
    **{
        f"export {to}": ["--to", to, "--out", f"o{suffix}"]
        for to, suffix in [
            ("safetensors", ".safetensors"),
            ("onnx", ".onnx"),
            ("pt2", ".pt2"),
            ("folder", ""),
            ("detectron2", ".pkl"),
        ]
    },
    **{f"analyze {name}": ["x.csv", "--out", "o"] for name in ANALYSES.jobs},
}
LOADING["analyze background"] += ["--masks", "."]


def test_every_command_that_loads_weights_is_here_and_has_the_option():
    collected = set()
    for command, job in COMMANDS.items():
        for words in [[command, name] for name in job.jobs] if isinstance(job, Group) else [[command]]:
            options = {action.dest for action in cli.parser_of(" ".join(words))[1]._actions}
            if options & {"model", "checkpoint"}:
                assert "imports" in options, words
                collected.add(" ".join(words))
    assert collected == {name if name.startswith("analyze") else name.split()[0] for name in LOADING}


@pytest.mark.parametrize("command", LOADING)
def test_no_command_imports_what_weights_name(folder, digits, command):
    name, *first = command.split()
    for video in ("x.mp4", "y.mp4", "z.mp4"):
        (folder / video).write_bytes(next(digits.rglob("*.mp4")).read_bytes())
    (folder / "x.csv").write_text("path,label\nx.mp4,0\ny.mp4,1\n")
    (folder / "plain.csv").write_text("path\nx.mp4\ny.mp4\n")
    (folder / "x.json").write_text("{}")
    weights = "model/last.pt" if command == "analyze uniformity" else "model"  # of a folder it takes all checkpoints
    arguments = ["--checkpoint", weights] if name != "export" else [weights]
    words = [*(first if name == "analyze" else []), *LOADING[command], *arguments]
    with pytest.raises(ConfigError) as caught:
        cli.run(name, words)
    assert not ran(folder) and "model.hidden" not in sys.modules
    message = str(caught.value)
    wrong = "has no detector" if command == "test of boxes" else "no 'named_by_data'"
    assert wrong in message and "\n" not in message
    assert (
        "weights run no code: model.hidden; if you trust them: vidssl COMMAND --imports model.hidden (Python: imports="
        in message
    )


@pytest.mark.parametrize("weights", ["model/model.safetensors", "model/last.pt", "model"])
def test_python_imports_no_module_that_weights_name(folder, digits, weights):
    video = next(digits.rglob("*.mp4"))
    backbone = load_backbone(weights)  # the backbone is vidssl's: only the clips need the method
    for model in (weights, backbone):
        with pytest.raises(ConfigError, match=r"no 'named_by_data'.*--imports model\.hidden"):
            vidssl.extract(model, video, progress=False)
    assert not ran(folder)


@pytest.mark.parametrize("how", ["imports", "trust", "cfg", "imported"])
def test_what_a_user_names_is_imported(folder, digits, how):
    video = next(digits.rglob("*.mp4"))
    if how == "imported":
        import_modules(["model.hidden"], "here")
    options = {"imports": {"imports": ["model.hidden"]}, "trust": {"trust": True}, "cfg": {"cfg": "config.yaml"}}
    weights = "random" if how == "cfg" else "model/last.pt"
    assert len(vidssl.extract(weights, video, progress=False, **options.get(how, {})).x) == 1
    assert ran(folder)


def test_the_command_line_imports_what_it_names(folder, digits):
    video = str(next(digits.rglob("*.mp4")))
    cli.run("extract", [video, "--out", "o", "--checkpoint", "model", "--imports", "model.hidden", "--quiet"])
    assert ran(folder) and (folder / "o" / "features.npy").exists()


def test_a_config_that_works_without_its_modules_says_what_was_left_out(folder, digits, caplog):
    content = torch.load("model/last.pt", weights_only=True)
    content["config"]["method"]["name"] = "supervised"
    torch.save(content, "model/last.pt")
    vidssl.extract("model/last.pt", next(digits.rglob("*.mp4")), progress=False)
    assert not ran(folder)
    assert [r.getMessage() for r in caplog.records if "--imports model.hidden" in r.getMessage()]


def test_a_backbone_of_a_module_that_is_not_imported(folder):
    content = torch.load("model/last.pt", weights_only=True)
    content["config"]["backbone"]["name"] = "unknown_net"
    torch.save(content, "model/last.pt")
    with pytest.raises(ConfigError, match=r"no backbone 'unknown_net'.*--imports model\.hidden"):
        load_backbone("model/last.pt")
    assert not ran(folder)


@pytest.mark.parametrize("names", ["model.hidden", [""], [1], [".hidden"], ["a b"], {"a": 1}, 7])
def test_imports_that_are_no_list_of_modules(names):
    with pytest.raises(ConfigError, match="imports is a list of modules"):
        modules_of({"imports": names}, "x.yaml")


@pytest.mark.parametrize(
    ("kind", "value"), [("last.pt", float("nan")), ("model.safetensors", float("inf")), ("other.pth", -float("inf"))]
)
def test_weights_that_are_not_finite_are_refused(folder, value, kind):
    path = folder / "model" / kind
    name = "net.blocks.0.conv.weight"
    if kind == "model.safetensors":
        header = path.read_bytes()
        metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
        weights = load_file(path)
        next(weights[key] for key in weights if key.endswith("weight"))[0] = value
        save_file(weights, path, metadata)
    else:
        content = torch.load(folder / "model" / "last.pt", weights_only=True)
        weights = content["method"]
        next(weights[key] for key in weights if key.startswith("backbone.") and key.endswith("weight"))[0] = value
        other = {
            key.removeprefix("backbone."): weight for key, weight in weights.items() if key.startswith("backbone.")
        }
        torch.save(other if kind == "other.pth" else content, path)
    with pytest.raises(CheckpointError, match=r"weights are NaN or infinite \(.*weight.*use an earlier checkpoint"):
        load_backbone(path)
    if kind != "other.pth":
        with pytest.raises(CheckpointError, match="NaN or infinite"):
            save_backbone(path, folder / "copy.safetensors")
    assert name


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("config", None),
        ("config", []),
        ("config", {}),
        ("config", {"backbone": "resnet3d18"}),
        ("step", "3"),
        ("method", None),
        ("method", {3: torch.zeros(1)}),
        ("classes", "ab"),
        ("classes", None),
    ],
)
def test_a_checkpoint_with_a_part_of_another_type(folder, part, value):
    content = torch.load("model/last.pt", weights_only=True)
    torch.save({**content, part: value}, "model/last.pt")
    for load in (load_backbone, lambda path: save_backbone(path, "copy.safetensors")):
        with pytest.raises(CheckpointError, match=f"its {part} is not that of a checkpoint: the file is damaged"):
            load("model/last.pt")


def test_the_config_of_a_run_is_passed_by_its_user(folder):
    """A YAML that is passed counts, also the config.yaml of a run."""
    assert read("model/config.yaml")["imports"] == ["model.hidden"]
    load_run("model/config.yaml")
    assert ran(folder)
