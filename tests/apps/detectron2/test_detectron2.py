"""Weights for detectron2: its names, values, settings, and the same outputs in a network that is built like its own."""

import ast
import pickle
import pickletools
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vidssl import cli
from vidssl.apps.detectron2 import detectron2_name, save_detectron2
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.engine.run_config import load_run
from vidssl.models import build_backbone
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT

TOY = Path(__file__).parents[3] / "configs" / "toy" / "moco.yaml"
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Written from detectron2's listing of R50; the other blocks of a stage are named as its second one.
NAMES = {
    "conv1.weight": "stem.conv1.weight",
    "bn1.weight": "stem.conv1.norm.weight",
    "bn1.bias": "stem.conv1.norm.bias",
    "bn1.running_mean": "stem.conv1.norm.running_mean",
    "bn1.running_var": "stem.conv1.norm.running_var",
    "bn1.num_batches_tracked": "stem.conv1.norm.num_batches_tracked",
    "layer1.0.conv1.weight": "res2.0.conv1.weight",
    "layer1.0.bn2.bias": "res2.0.conv2.norm.bias",
    "layer1.0.bn3.running_mean": "res2.0.conv3.norm.running_mean",
    "layer1.0.downsample.0.weight": "res2.0.shortcut.weight",
    "layer1.0.downsample.1.weight": "res2.0.shortcut.norm.weight",
    "layer2.3.bn3.weight": "res3.3.conv3.norm.weight",
    "layer3.0.downsample.1.bias": "res4.0.shortcut.norm.bias",
    "layer3.5.conv2.weight": "res4.5.conv2.weight",
    "layer4.0.conv3.weight": "res5.0.conv3.weight",
    "layer4.2.bn2.num_batches_tracked": "res5.2.conv2.norm.num_batches_tracked",
}


class Conv(nn.Conv2d):
    """A convolution that owns the norm after it."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, bias=False, **named)
        self.norm = nn.BatchNorm2d(self.out_channels)

    def forward(self, x):
        return self.norm(super().forward(x))


class Block(nn.Module):
    def __init__(self, dim, inner, out, stride, groups, basic):
        super().__init__()
        self.shortcut = Conv(dim, out, 1, stride) if dim != out else None
        if basic:
            self.conv1, self.conv2 = Conv(dim, out, 3, stride, 1), Conv(out, out, 3, 1, 1)
        else:
            self.conv1 = Conv(dim, inner, 1)
            self.conv2 = Conv(inner, inner, 3, stride, 1, groups=groups)  # STRIDE_IN_1X1 is false
            self.conv3 = Conv(inner, out, 1)

    def forward(self, x):
        convs = [getattr(self, name) for name in ("conv1", "conv2", "conv3") if hasattr(self, name)]
        y = x
        for conv in convs[:-1]:
            y = conv(y).relu()
        return (convs[-1](y) + (x if self.shortcut is None else self.shortcut(x))).relu()


class Theirs(nn.Module):
    """A ResNet that is built from detectron2's settings."""

    def __init__(self, settings):
        super().__init__()
        part = {name.removeprefix("MODEL.RESNETS."): value for name, value in settings.items()}
        depths = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}[part["DEPTH"]]
        assert part["STRIDE_IN_1X1"] is False
        self.stem = nn.Module()
        self.stem.conv1 = Conv(3, 64, 7, 2, 3)
        dim, out = 64, part["RES2_OUT_CHANNELS"]
        inner = part["NUM_GROUPS"] * part["WIDTH_PER_GROUP"]
        for stage, depth in enumerate(depths):
            blocks = []
            for n in range(depth):
                stride = 2 if stage and n == 0 else 1
                blocks.append(Block(dim, inner, out, stride, part["NUM_GROUPS"], part["DEPTH"] == 18))
                dim = out
            self.add_module(f"res{stage + 2}", nn.Sequential(*blocks))
            inner, out = inner * 2, out * 2

    def forward(self, x):
        x = nn.functional.max_pool2d(self.stem.conv1(x).relu(), 3, 2, 1)
        return self.res5(self.res4(self.res3(self.res2(x))))


def made(name):
    """A backbone whose batch norms all differ."""
    torch.manual_seed(3)
    backbone = build_backbone(name)
    for key, value in backbone.state_dict().items():
        if value.ndim == 1:
            value.copy_(torch.rand(value.shape) + 0.5)
        elif key.endswith("num_batches_tracked"):
            value.fill_(7)
    return backbone.eval()


def read(path):
    """What detectron2's checkpointer does with a .pkl file."""
    with open(path, "rb") as file:
        return pickle.load(file, encoding="latin1")


def exported(backbone, tmp_path):
    settings = save_detectron2(backbone, tmp_path / "x.pkl", *IMAGENET)
    return settings, read(tmp_path / "x.pkl")


def test_names_and_values_are_those_of_the_table(tmp_path):
    backbone = made("resnet50")
    settings = save_detectron2(backbone, tmp_path / "x.pkl", (0.45,), (0.225,))  # of all channels
    assert settings["MODEL.PIXEL_MEAN"] == [114.75] * 3 and settings["MODEL.PIXEL_STD"] == [57.375] * 3
    content = read(tmp_path / "x.pkl")
    assert content.keys() == {"model", "__author__", "matching_heuristics"}
    assert content["matching_heuristics"] is True and content["__author__"] == "vidssl"
    weights, state = content["model"], backbone.state_dict()
    assert len(weights) == len(state) == 318
    assert {name: detectron2_name(f"net.{name}") for name in NAMES} == NAMES
    for name, theirs in NAMES.items():
        value, expected = weights[theirs], state[f"net.{name}"]
        assert type(value) is np.ndarray and value.flags.writeable
        assert torch.equal(torch.from_numpy(value), expected) and torch.from_numpy(value).dtype == expected.dtype


@pytest.mark.parametrize(
    ("name", "depth", "groups", "width", "out"), [("resnet18", 18, 1, 64, 64), ("resnext50_32x4d", 50, 32, 4, 256)]
)
def test_a_network_built_by_the_settings_computes_the_same(name, depth, groups, width, out, tmp_path):
    backbone = made(name)
    settings, content = exported(backbone, tmp_path)
    own = ("DEPTH", "NUM_GROUPS", "WIDTH_PER_GROUP", "RES2_OUT_CHANNELS")
    assert [settings[f"MODEL.RESNETS.{key}"] for key in own] == [depth, groups, width, out]
    theirs = Theirs(settings).eval()
    theirs.load_state_dict({key: torch.from_numpy(value) for key, value in content["model"].items()})
    images = torch.randn(2, 3, 64, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        maps = backbone.features(images.unsqueeze(2), ("layer4",))[0].squeeze(2)
        torch.testing.assert_close(theirs(images), maps, rtol=1e-5, atol=1e-5)


def test_the_file_needs_public_names_only(tmp_path):
    """numpy 2 itself writes `numpy._core` into pickles, which numpy 1 does not have."""
    exported(made("resnet18"), tmp_path)
    words = [arg for code, arg, _ in pickletools.genops((tmp_path / "x.pkl").read_bytes()) if isinstance(arg, str)]
    assert {word for word in words if "numpy" in word} == {"numpy"}
    assert {"ndarray", "bytearray"} <= {*words}


@pytest.mark.parametrize(
    ("backbone", "out", "message"),
    [
        ({"name": "resnet3d18", "width": 4}, "x.pkl", r"detectron2 has no ResNet3D18: use .* resnet18, resnet50, "),
        ({"name": "resnet18", "stem": "cifar"}, "x.pkl", r"detectron2 has no ResNet2D with stem: cifar: use "),
        ({"name": "resnet18"}, "x.pth", r"cannot write \S+x.pth: detectron2 reads this format from .pkl only; name "),
    ],
)
def test_what_does_not_fit_is_an_error_of_one_line(backbone, out, message, tmp_path):
    with pytest.raises(ConfigError, match=message) as caught:
        save_detectron2(build_backbone(**backbone), tmp_path / out, (0.45,), (0.225,))
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


# The command ------------------------------------------------------------------------------------------------


def checkpoint(tmp_path, *overrides):
    run = load_run(TOY, [f"output={tmp_path}", "backbone={name: resnet18}", *overrides])
    backbone = made("resnet18")
    weights = {f"backbone.{name}": value for name, value in backbone.state_dict().items()}
    content = {"format": CHECKPOINT_FORMAT, "config": run.model_dump(mode="json"), "step": 1, "method": weights}
    torch.save(content, tmp_path / "x.pt")
    return backbone, str(tmp_path / "x.pt")


def test_the_command_prints_the_settings_of_the_run(tmp_path, capsys):
    backbone, path = checkpoint(tmp_path, "data.mean=[0.485, 0.456, 0.406]", "data.std=[0.229, 0.224, 0.225]")
    out = tmp_path / "new" / "r18.pkl"
    cli.run("export", [path, "--to", "detectron2", "--out", str(out)])
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == f"{out}: resnet18 for detectron2, with these settings:"
    printed = dict(shlex.split(line) for line in lines)
    assert printed["MODEL.WEIGHTS"] == str(out) and printed["INPUT.FORMAT"] == "RGB"
    assert ast.literal_eval(printed["MODEL.PIXEL_MEAN"]) == [123.675, 116.28, 103.53]
    assert ast.literal_eval(printed["MODEL.PIXEL_STD"]) == [58.395, 57.12, 57.375]
    assert ast.literal_eval(printed["MODEL.RESNETS.STRIDE_IN_1X1"]) is False  # detectron2 parses Python, not YAML
    weights = read(out)["model"]
    for name, value in backbone.state_dict().items():
        assert torch.equal(torch.from_numpy(weights[detectron2_name(name)]), value)


def test_files_of_other_projects_are_refused(tmp_path):
    torch.save({"conv1.weight": torch.ones(1)}, tmp_path / "x.pt")
    with pytest.raises(CheckpointError, match=r"x.pt is not a vidssl checkpoint \(format "):
        cli.run("export", [str(tmp_path / "x.pt"), "--to", "detectron2", "--out", str(tmp_path / "x.pkl")])
