"""Checkpoints of other projects and weights by name: their features are reproduced, from the names that they write."""

import argparse
import functools
import os
import pathlib
import pickle
import re
import sys
import types

import pytest
import torch
import torchvision
from pytorchvideo.models.hub import slow_r50
from ruamel.yaml import YAML
from torch import nn

import vidssl
from vidssl.base.config import Settings, bind, dump
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.models import BACKBONES, Initial, InitialWeights, build_backbone, load_backbone, load_initial
from vidssl.models.backbones import Backbone
from vidssl.models.match_checkpoints import choose_match, match_backbones
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT, Normalization
from vidssl.models.resnet3d import ResNet3D18, ResNet3D50

CLIPS = torch.randn(2, 3, 3, 48, 40, generator=torch.Generator().manual_seed(4))
VIDEO_NETWORKS = torchvision.models.list_models(module=torchvision.models.video)


def unlike(network, seed=0):
    """Give all batch norms numbers of their own, so that one in a wrong place shows; eval mode."""
    source = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                values.data = torch.rand(values.shape, generator=source) + 0.5
            module.num_batches_tracked += seed + 7
    return network.eval()


def of_torchvision(name, seed=0, **options):
    torch.manual_seed(seed)
    return unlike(torchvision.models.get_model(name, weights=None, **options), seed)


def save(path, content, **options):
    torch.save(content, path, **options)
    return path


def features(network, clips=CLIPS):
    with torch.no_grad():
        return network(clips)


def same(one, other, tolerance=1e-5):
    assert one.std() > 0
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def refused(call, *arguments, error=CheckpointError, **named):
    with pytest.raises(error) as caught:
        call(*arguments, **named)
    assert error is ConfigError or "\n" not in str(caught.value)
    return str(caught.value)


def initialised(backbone, file, **settings):
    """Load a file into a backbone as `init` does; returns the match."""
    return load_initial(backbone, InitialWeights(file=str(file), **settings))


# Networks by the names of SlowFast ---------------------------------------------------------------------------


def as_slowfast(name):
    """The name that SlowFast gives to a weight of a backbone."""
    stage, *words = name.removeprefix("net.blocks.").split(".")
    if stage == "0":
        return f"s1.pathway0_stem.{words[0].replace('norm', 'bn')}.{words[1]}"
    block, branch, *words = f"s{int(stage) + 1}.pathway0_res{words[1]}", *words[2:]
    if branch != "branch2":
        return f"{block}.{branch.replace('_conv', '').replace('_norm', '_bn')}.{words[0]}"
    letters = {"0": "a", "1": "a_bn", "3": "b", "4": "b_bn"}  # of basic blocks, which are sequences
    letters |= {f"{kind}_{letter}": letter + end for kind, end in (("conv", ""), ("norm", "_bn")) for letter in "abc"}
    return f"{block}.branch2.{letters[words[0]]}.{words[1]}"


class Slow(nn.Module):
    """A network of one path with a classifier, whose weights have the names of SlowFast."""

    def __init__(self, width=8, basic=False, classes=5):
        super().__init__()
        self.backbone = build_backbone("resnet3d18" if basic else "resnet3d50", width=width)
        self.head = nn.Linear(self.backbone.dim, classes)

    def forward(self, x):
        return self.backbone(x)

    def state_dict(self):
        head = renamed(self.head.state_dict(), "head.projection.")
        return renamed(self.backbone.state_dict(), name=as_slowfast) | head


def as_pytorchvideo(name):
    """The name that pytorchvideo, and eztorch after it, give to a weight of SlowFast."""
    words = name.split(".")
    if words[0] == "head":
        return "blocks.5.proj." + words[-1]
    place = f"blocks.{int(words[0][1]) - 1}"
    if words[0] == "s1":
        return f"{place}.{ {'conv': 'conv', 'bn': 'norm'}[words[2]] }.{words[3]}"
    block = f"{place}.res_blocks.{words[1].removeprefix('pathway0_res')}"
    if words[2].startswith("branch1"):
        return f"{block}.{ {'branch1': 'branch1_conv', 'branch1_bn': 'branch1_norm'}[words[2]] }.{words[3]}"
    letter, _, norm = words[3].partition("_")
    return f"{block}.branch2.{'norm' if norm else 'conv'}_{letter}.{words[4]}"


def renamed(state, before="", name=lambda name: name):
    return {before + name(key): value for key, value in state.items()}


@pytest.fixture(scope="module")
def slow():
    torch.manual_seed(0)
    return unlike(Slow())


@pytest.fixture(scope="module")
def slow18():
    torch.manual_seed(0)
    return unlike(Slow(basic=True), seed=2)


# Some of those of its own networks.
LISTED = """s1.pathway0_stem.conv.weight s1.pathway0_stem.bn.running_var s2.pathway0_res0.branch1.weight
    s2.pathway0_res0.branch1_bn.bias s2.pathway0_res0.branch2.a.weight s2.pathway0_res2.branch2.a_bn.running_mean
    s3.pathway0_res3.branch2.b.weight s4.pathway0_res5.branch2.b_bn.weight s5.pathway0_res2.branch2.c.weight
    s5.pathway0_res2.branch2.c_bn.num_batches_tracked head.projection.weight head.projection.bias"""


def test_names_of_slowfast_are_those_of_pytorchvideo():
    """At full size, of which no weight is left out or taken for another."""
    with torch.device("meta"):
        slowfast, theirs = Slow(64, classes=400).state_dict(), slow_r50().state_dict()
    assert {*LISTED.split()} < slowfast.keys() | Slow(basic=True).state_dict().keys()
    shapes = {as_pytorchvideo(key): value.shape for key, value in slowfast.items()}
    assert shapes == {key: value.shape for key, value in theirs.items()}
    for weights, name in ((slowfast, as_pytorchvideo), (theirs, str)):
        match = choose_match(match_backbones(weights, {}, "file", None), weights, "file", partial=False)
        assert match.backbone == {"name": "resnet3d50", "width": 64} and len(match.weights) == 318
        assert all(
            name(old) == new.removeprefix("net.") for new, old in match.network.names.items() if "head" not in new
        )


@pytest.mark.parametrize("name", VIDEO_NETWORKS)
def test_every_torchvision_video_network_is_distinguished_from_the_others(name):
    with torch.device("meta"):
        weights = renamed(torchvision.models.get_model(name, weights=None).state_dict(), "model.module.")
    match = choose_match(match_backbones(weights, {}, "file", None), weights, "file", partial=False)
    assert match.backbone == {"name": name} and 1 <= len(match.unused) <= 4  # the classifier


# One file of each maker --------------------------------------------------------------------------------------


class CfgNode(dict):
    """A dictionary of a class of its own, as yacs and mmengine have them."""


def objects():
    """Objects as Lightning and Hydra leave them; their module is gone when the file is read."""
    module = types.ModuleType("omegaconf_like")
    exec(
        "import enum\n"
        "class DictConfig:\n    def __init__(self, **content): self.content = content\n"
        "class Metadata:\n    def __getstate__(self): return (1, [2], self.__class__)\n"
        "class Kind(enum.Enum):\n    A = 1\n"
        "def build(): raise SystemExit('it ran')\n",
        module.__dict__,
    )
    for name in ("DictConfig", "Metadata", "Kind", "build"):
        getattr(module, name).__module__ = "omegaconf_like"
    sys.modules["omegaconf_like"] = module
    return {
        "hyper_parameters": {"trunk": module.DictConfig(a=module.Metadata(), b=[module.Kind.A, dict, int])},
        "callbacks": {"ModelCheckpoint{'mode': 'min'}": {"path": pathlib.Path("x"), "best": torch.ones(())}},
        "args": argparse.Namespace(lr=0.1),
        "partial": functools.partial(module.build, 1),
        "number": torch.ones(1, dtype=torch.float64).numpy()[0],
        "pytorch-lightning_version": "2.0.4",
    }


def slowfast(network, other):
    return {"epoch": 3, "model_state": renamed(network.state_dict(), "module.backbone."), "cfg": "TRAIN:\n  A: True\n"}


def slowfast_contrastive(network, other):
    queue = {"ptr": torch.tensor([0]), "queue_x": torch.rand(16, 8), "knn_mem.memory": torch.rand(4, 1, 8)}
    online, history = renamed(network.state_dict(), "backbone."), renamed(other.state_dict(), "backbone_hist.")
    return {"model_state": {**history, **online, **queue}}


def compiled(network, other):
    return renamed(network.state_dict(), "model._orig_mod.")


def lightning_of_eztorch(network, other):
    online = {key: value for key, value in network.state_dict().items() if "head" not in key}
    momentum = {key: value for key, value in other.state_dict().items() if "head" not in key}
    state = {
        **renamed(online, "trunk.model.", as_pytorchvideo),
        "projector.layers.0.weight": torch.rand(4, 4),
        **renamed(momentum, "momentum_trunk.model.", as_pytorchvideo),
        "momentum_projector.layers.0.weight": torch.rand(4, 4),
        "queue.queue": torch.rand(4, 16),
    }
    return {"epoch": 1, "state_dict": state, "optimizer_states": [{"state": {0: torch.ones(1)}}], **objects()}


def published_by_eztorch(network, other):
    return renamed({k: v for k, v in network.state_dict().items() if "head" not in k}, "model.", as_pytorchvideo)


def of_yacs(network, other):
    return {"cfg": CfgNode(a=CfgNode(b=1)), "model": CfgNode(network.state_dict())}


def v_jepa(network, other, average="target_encoder"):
    return {
        "encoder": renamed(other.state_dict(), "module.backbone."),
        "predictor": {"module.backbone.predictor_embed.weight": torch.rand(3, 3)},
        "opt": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []},
        average: renamed(network.state_dict(), "module.backbone."),
    }


def v_jepa_2(network, other):
    return v_jepa(network, other, "ema_encoder")


def moco(network, other):
    """A file of torch before 1.6; the head of MoCo v2 is an MLP."""
    return {
        "arch": "resnet18",
        "optimizer": {"state": {0: {"momentum_buffer": 1}}},
        "state_dict": {
            "module.queue": torch.rand(8, 16),
            "module.queue_ptr": torch.zeros(1, dtype=torch.long),
            **renamed(other.state_dict(), "module.encoder_k."),
            **renamed(network.state_dict(), "module.encoder_q.", lambda k: k.replace("fc.", "fc.2.")),
            "module.encoder_q.fc.0.weight": torch.rand(4, 4),
        },
    }


def before_torch_0_4_1(network, other):
    return {key: value for key, value in network.state_dict().items() if not key.endswith("batches_tracked")}


def half(network, other):
    return {key: value.half() if value.is_floating_point() else value for key, value in network.state_dict().items()}


# Who made it: names as of, kind of network, and how many weights of the file are not used.
MAKERS = {
    slowfast: ("SlowFast", "slow", 2),
    slowfast_contrastive: ("SlowFast", "slow", 2 + 320 + 3),
    compiled: ("SlowFast, basic blocks", "slow18", 2),
    lightning_of_eztorch: ("pytorchvideo", "slow", 318 + 3 + 1),
    published_by_eztorch: ("eztorch, basic blocks", "slow18", 0),
    of_yacs: ("SlowFast", "slow", 2),
    v_jepa: ("SlowFast", "slow", 320 + 2 + 1),
    v_jepa_2: ("SlowFast", "slow", 320 + 2 + 1),
    moco: ("torchvision", "resnet18", 122 + 2 + 3),
    before_torch_0_4_1: ("torchvision", "resnet18", 2),
    half: ("torchvision", "mc3_18", 2),
}


def of_frames(network):
    """Give the mean features over frames of a network of images; leave others as they are, without their classifier."""
    network.fc = nn.Identity()
    return lambda clips: sum(network(clips[:, :, t]) for t in range(clips.shape[2])) / clips.shape[2]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda maker: maker.__name__)
def test_features_are_those_of_the_makers_network(maker, slow, slow18, tmp_path):
    layout, kind, unused = MAKERS[maker]
    other = unlike(Slow(basic=kind == "slow18"), 9) if "slow" in kind else of_torchvision(kind, 9)
    network = {"slow": slow, "slow18": slow18}.get(kind) or of_torchvision(kind)
    content = maker(network, other)
    old = maker in (lightning_of_eztorch, moco)  # a pickle, not an archive
    path = save(tmp_path / "theirs.ckpt", content, _use_new_zipfile_serialization=not old)
    sys.modules.pop("omegaconf_like", None)
    backbone = load_backbone(path)
    assert path.read_bytes().startswith(b"\x80" if old else b"PK") and "omegaconf_like" not in sys.modules
    assert type(backbone) is BACKBONES[{"slow": "resnet3d50", "slow18": "resnet3d18"}.get(kind, kind)]
    assert not any(module.training for module in backbone.modules())
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    if kind == "mc3_18":
        network.fc = nn.Identity()
    expected = features(of_frames(network) if kind == "resnet18" else network)
    same(features(backbone), expected, 1e-2 if maker is half else 1e-5)
    match = initialised(backbone, path)
    assert match.network.layout == layout and not match.misfits and len(match.unused) == unused


@pytest.mark.parametrize(("arch", "below"), [("resnet3d18", "net."), ("resnet18", "")])
def test_state_dict_of_a_vidssl_backbone(arch, below, tmp_path):
    network = unlike(build_backbone(arch, **({"width": 8} if "3d" in arch else {})))
    state = {key.removeprefix("net."): value for key, value in network.state_dict().items()}
    backbone = load_backbone(save(tmp_path / "own.pt", renamed(state, below)))
    assert type(backbone) is type(network)
    assert all(torch.equal(value, network.state_dict()[k]) for k, value in backbone.state_dict().items())


class Runs:
    """Calls a function with an argument when it is unpickled."""

    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


def test_a_plain_pickle_runs_nothing(tmp_path, recwarn):
    """Protocol 4, which torch does not read, and of which it warns."""
    path, target = tmp_path / "bad.pth", tmp_path / "executed"
    path.write_bytes(pickle.dumps({"a": Runs(os.system, f"touch '{target}'")}, protocol=4))
    message = refused(initialised, build_backbone("resnet3d18", width=8), path)
    assert (
        f"cannot load checkpoint {path} (UnpicklingError: a pickle of objects, which can hold code, and is" in message
    )
    assert not target.exists() and not recwarn.list


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("how", ["os.system", "torch"])
def test_fault_25_a_malicious_checkpoint_of_others_runs_nothing(how, zipped, slow18, tmp_path):
    target = tmp_path / "executed"
    bad = {
        "os.system": Runs(os.system, f"touch '{target}'"),
        "torch": Runs(torch.hub._remove_if_exists, str(tmp_path / "precious")),
    }[how]
    (tmp_path / "precious").touch()
    content = {"state_dict": {"first": bad, **slow18.state_dict()}, "hyper_parameters": bad}
    path = save(tmp_path / "bad.ckpt", content, _use_new_zipfile_serialization=zipped)
    backbone = build_backbone("resnet3d18", width=8).eval()
    if how == "os.system":
        message = refused(initialised, backbone, path)
        assert f"holds {os.system.__module__}.system: only tensors and plain data" in message
    else:
        initialised(backbone, path)
        same(features(backbone), features(slow18))
    assert not target.exists() and (tmp_path / "precious").exists()
    torch.load(path, weights_only=False)
    assert target.exists() or not (tmp_path / "precious").exists()  # it would have


# Names of anybody, and several networks ----------------------------------------------------------------------


def test_keys_rename_prefixes(slow, tmp_path):
    def scrambled(name):
        return f"student.deep.{name}".replace(".s1.pathway0_stem.", ".first.").replace(".s2.", ".second.")

    path = save(tmp_path / "own.pth", {"net": renamed(slow.state_dict(), name=scrambled)})
    message = refused(load_backbone, path)
    assert "no known layout has these weight names (net.student.deep.first.conv.weight; " in message
    assert "init.keys={OLD: NEW}" in message
    keys = {"net.student.deep.": "", "net.student.deep.first.": "s1.pathway0_stem.", "net.student.deep.second.": "s2."}
    for renames in (keys, dict(reversed(keys.items()))):
        same(features(load_backbone(path, "resnet3d50", keys=renames)), features(slow))


def test_keys_choose_one_of_two_networks(slow18, tmp_path):
    networks = {"student.backbone.": slow18, "teacher.backbone.": unlike(Slow(basic=True), seed=5)}
    state = {k: v for name, network in networks.items() for k, v in renamed(network.state_dict(), name).items()}
    path = save(tmp_path / "dino.pth", state)
    message = refused(load_backbone, path, "resnet3d18")
    assert "can be resnet3d18 from 'student.backbone.' or resnet3d18 from 'teacher.backbone.': choose" in message
    for name, network in networks.items():
        same(features(load_backbone(path, "resnet3d18", keys={name: ""})), features(network))


class Plain(Backbone):
    """A backbone of somebody's own, whose weights are not below `net.`, with a ResNet's names inside."""

    class Config(Settings):
        name: str

    def __init__(self, config):
        super().__init__()
        self.dim = 3
        self.stem = nn.Linear(2, 3)
        self.inner = nn.Sequential()
        self.inner.layer1 = nn.ModuleList([nn.Module()])
        self.inner.layer1[0].conv1 = nn.Linear(3, 3)


class Needy(Backbone):
    """A backbone that cannot be made by name alone."""

    class Config(Settings):
        size: int


def test_registered_backbones_are_recognised(monkeypatch, tmp_path):
    monkeypatch.setattr(BACKBONES, "_entries", dict(BACKBONES._all()))
    BACKBONES.register("plain")(Plain)
    BACKBONES.register("needy")(Needy)
    network = build_backbone("plain")
    path = save(tmp_path / "plain.pth", {"state_dict": renamed(network.state_dict(), "module.")})
    state = load_backbone(path).state_dict()
    assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())
    assert "size: is required" in refused(load_backbone, path, "needy", error=ConfigError)
    BACKBONES.register("twin")(Plain)
    message = refused(load_backbone, path)
    assert "can be plain from 'state_dict.module.' or twin from 'state_dict.module.': choose the backbone" in message
    assert load_backbone(path, "twin").dim == 3


# What does not fit ------------------------------------------------------------------------------------------


def test_missing_and_reshaped_weights_are_named_and_nothing_is_changed(slow, tmp_path):
    state = dict(slow.state_dict())
    for key in [key for key in state if key.startswith("s5.pathway0_res2.")]:
        del state[key]
    state["s2.pathway0_res0.branch1.weight"] = torch.rand(2, 2)
    path = save(tmp_path / "cut.pyth", {"model_state": state})
    backbone = unlike(build_backbone("resnet3d50", width=8), seed=6)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    message = refused(initialised, backbone, path)
    last = "net.blocks.4.res_blocks.2.branch2"
    assert message == (
        f"{path} does not fit the backbone: {318 - 19} of 315 weights fit (net.blocks.1.res_blocks.0.branch1_conv."
        f"weight: (2, 2), here (32, 8, 1, 1, 1); {last}.conv_a.weight: missing; {last}.norm_a.weight: missing and 13 "
        "more); named as in SlowFast after 'model_state.'; use the backbone that was trained, or load what "
        "fits with init.partial=true (Python: arch=, partial=True)"
    )
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())

    matched = initialised(backbone, path, partial=True)
    assert str(matched).startswith(f"{path}: {len(matched.weights)} weights of the backbone are loaded, named as in ")
    assert "\n" not in str(matched) and "; 16 do not fit (net.blocks.1" in str(matched)
    names = {key: f"net.{as_pytorchvideo(key)}" for key in state}
    for key, value in backbone.state_dict().items():
        theirs = [value for name, value in state.items() if names[name] == key and value.ndim != 2]
        assert torch.equal(value, theirs[0] if theirs else before[key]), key
    assert load_backbone(path, "resnet3d50", partial=True).dim == 256


def stem(state):
    return renamed({key: value for key, value in state.items() if key.startswith("s1.")}, name=as_pytorchvideo)


NONLOCAL = {"s3.pathway0_nonlocal1.conv_theta.weight": torch.rand(4, 8, 1, 1, 1)}
NONE = "holds no named weights: save the network's state_dict()"
FIT = "none of 318 weights fit (net.blocks.0.conv.weight: (1, 2, 3), here"
# Content of a file from the weights of `slow`, arguments of `load_backbone`, and words of the message.
WRONG = {
    "an extra layer": (
        lambda state: {**state, **NONLOCAL},
        {},
        "318 of 319 weights fit (net.blocks.2.pathway0_nonlocal1.conv_theta.weight: unknown);",
    ),
    "unused keys": (dict, {"keys": {"modul.": ""}}, "no weight has the prefix 'modul.' of keys, but s1.pathway0_"),
    "keys that collide": (
        dict,
        {"keys": {"s2.": "", "s3.": ""}},
        "keys rename s2.pathway0_res0.branch1.weight and s3.",
    ),
    "other shapes": (
        lambda state: {f"x.{key}": torch.rand(1, 2, 3) for key in state},
        {"arch": "resnet3d50", "partial": True},
        FIT,
    ),
    "partial without arch": (stem, {"partial": True}, "6 of 101 weights fit ("),
    "nothing": (lambda state: {}, {}, NONE),
    "no tensors": (lambda state: {"a": 1}, {}, NONE),
    "a list": (lambda state: [torch.ones(1)], {}, NONE),
    "numbers for names": (lambda state: {"x": {1: torch.ones(1)}}, {}, NONE),
    "a module": (lambda state: nn.Linear(1, 1), {}, NONE),
}


@pytest.mark.parametrize("case", WRONG)
def test_files_that_are_refused(case, slow, tmp_path):
    change, arguments, words = WRONG[case]
    path = save(tmp_path / "wrong.pyth", change(slow.state_dict()))
    message = refused(load_backbone, path, **arguments)
    assert message.startswith(str(path)) and words in message


# Weights by name, and 2D ResNets that are inflated -----------------------------------------------------------


IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
KINETICS = Normalization((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
OURS = Normalization((0.45,), (0.225,))


class Threes18(ResNet3D18):
    kernels = ((3, 3, 3),) * 4


class Threes50(ResNet3D50):
    kernels = ((3, 1, 1),) * 4


@pytest.fixture
def offline(monkeypatch):
    """What torchvision downloads is drawn instead; returns the networks by name."""
    networks = {}

    def get_model(name, weights=None, **settings):
        network = real(name, weights=None, **settings)
        networks[name] = unlike(network)
        return network

    real = torchvision.models.get_model
    monkeypatch.setattr("vidssl.models.external.load_from_libraries.get_model", get_model)
    return networks


def still(image, frames):
    return image[:, :, None].expand(-1, -1, frames, -1, -1)


def test_a_name_loads_the_weights_of_the_same_architecture(offline, caplog):
    name, clips = "torchvision:mc3_18@KINETICS400_V1", torch.randn(1, 3, 3, 34, 46)
    backbone = build_backbone("mc3_18").eval()
    match = load_initial(backbone, InitialWeights(file=name), False, "mc3_18", OURS)
    same(features(backbone, clips), features(offline["mc3_18"], clips))
    assert f"{name}: all " in str(match) and not match.unused
    assert caplog.messages == [
        f"{name} was trained with another mean and std: set 'data.mean=[0.43216, 0.394666, 0.37645]' "
        "'data.std=[0.22803, 0.22145, 0.216989]'"
    ]
    caplog.clear()
    load_initial(backbone, InitialWeights(file="torchvision:mc3_18"), False, "mc3_18", KINETICS)
    assert not caplog.messages


NOT_BY_NAME = {
    "torchvision:r3d_18@KINETICS400_V1": "weights fit (net.layer2.0",
    "torchvision:r3d_18@none": "leave init out",
    "torchvision:r3d_18,count=4": "torchvision has no network r3d_18,count=4",
    "onnx:net.onnx": "init takes names of torchvision: and timm:",
    "torchvision:r3d_81": "did you mean 'r3d_18'",
    "torchvision:r3d_18@X": "has no weights X: KINETICS400_V1",
}


def test_names_that_do_not_fit(offline):
    backbone = build_backbone("mc3_18")
    for name, words in NOT_BY_NAME.items():
        assert words in refused(initialised, backbone, name, error=(CheckpointError, ConfigError)), name
    message = refused(initialised, backbone, "torchvision:r3d_18")
    assert "use the backbone that was trained, 'backbone={name: r3d_18}', or load what fits with" in message
    message = refused(initialised, build_backbone("resnet3d18", width=4), "torchvision:resnet18")
    assert "'backbone={name: resnet18}', or set init.inflate=true" in message
    assert initialised(backbone, "torchvision:r3d_18", partial=True).misfits
    same(backbone.net.stem[0].weight, offline["r3d_18"].stem[0].weight)


def test_timm_by_name(monkeypatch):
    timm = pytest.importorskip("timm")
    networks, real = [], timm.create_model

    def create_model(name, pretrained, **settings):
        assert pretrained
        networks.append(unlike(real(name, pretrained=False, **settings)))
        return networks[-1]

    monkeypatch.setattr(timm, "create_model", create_model)
    backbone = build_backbone("resnet18").eval()
    initialised(backbone, "timm:resnet18.a1_in1k")
    same(features(backbone, CLIPS[:, :, :1]), features(networks[0], CLIPS[:, :, 0]))
    assert "of timm, init takes resnet18" in refused(initialised, backbone, "timm:resnetaa50")


@pytest.mark.parametrize(
    ("flat", "kind", "frames"),
    [("resnet18", ResNet3D18, 2), ("resnet18", Threes18, 1), ("resnet18", Threes18, 5), ("resnet50", Threes50, 3)],
)
def test_an_inflated_network_sees_a_still_video_as_the_image(flat, kind, frames, tmp_path):
    """At all layers, and in all frames, those at the border too; in double precision, for the order of sums."""
    network = of_torchvision(flat)
    path = save(tmp_path / "flat.pth", {"state_dict": renamed(network.state_dict(), "module.")})
    backbone, frame_by_frame = kind(kind.Config()).eval(), build_backbone(flat).eval()
    match = initialised(backbone, path, inflate=True)
    assert not match.misfits and len(match.unused) == 2  # the classifier
    initialised(frame_by_frame, path)
    clip = still(torch.randn(1, 3, 45, 37, dtype=torch.float64), frames)
    layers = ("stem", "layer1", "layer2", "layer3", "layer4")
    with torch.no_grad():
        outputs = (net.double().features(clip, layers) for net in (backbone, frame_by_frame))
        for ours, theirs in zip(*outputs, strict=True):
            same(ours, theirs, 1e-9)
        same(backbone(clip), frame_by_frame(clip), 1e-9)
    assert {m.kernel_size[0] for m in backbone.modules() if isinstance(m, nn.Conv3d)} == {1, 3}


def test_a_run_on_images_can_be_inflated(tmp_path):
    """Its online network, not the target."""
    trained = unlike(build_backbone("resnet18"))
    state = renamed(trained.state_dict(), "backbone.")
    state |= {name: weight + 1 for name, weight in renamed(trained.state_dict(), "target.0.").items()}
    content = {"format": CHECKPOINT_FORMAT, "step": 1, "method": state, "config": {"backbone": {"name": "resnet18"}}}
    backbone = build_backbone("resnet3d18").eval()
    match = initialised(backbone, save(tmp_path / "last.pt", content), inflate=True)
    image = torch.randn(1, 3, 45, 70)
    same(features(backbone, still(image, 3)), features(trained, image[:, :, None]))
    assert "from backbone; " in str(match)


def test_what_cannot_be_inflated(offline, tmp_path):
    for name, settings, file, words in (
        ("r3d_18", {}, "resnet18", "cannot be inflated into this TorchvisionResNet: use resnet3d18"),
        ("resnet3d18", {"frame_differences": True}, "resnet18", "without frame_differences"),
        ("resnet3d18", {"width": 8}, "resnet18", "net.blocks.0.conv.weight: (64, 3, 7, 7), here (8, 3, 1, 7, 7)"),
        ("resnet3d18", {}, "resnet34", "res_blocks.2.branch2.0.weight: unknown"),
        ("resnet3d18", {}, "r3d_18", "holds no 2D ResNet"),
    ):
        backbone = build_backbone(name, **settings)
        assert words in refused(initialised, backbone, f"torchvision:{file}", inflate=True), (name, file)
    path = save(tmp_path / "cifar.pth", renamed(build_backbone("resnet18", stem="cifar").state_dict(), "backbone."))
    message = refused(initialised, build_backbone("resnet3d18"), path, inflate=True)
    assert "119 of 120 weights fit (net.blocks.0.conv.weight: (64, 3, 3, 3), here (64, 3, 1, 7, 7))" in message


# What weights were trained on --------------------------------------------------------------------------------


SMALL = {"name": "resnet3d18", "width": 4}
OF_DIFFERENCES = {**SMALL, "frame_differences": True}
STREAMS = {"name": "two_streams", "streams": {"rgb": SMALL, "differences": OF_DIFFERENCES}}
SWAPPED = {"name": "two_streams", "streams": {"rgb": OF_DIFFERENCES, "differences": SMALL}}


def of_stream(name):
    return {f"method.backbone.encoders.{name}.": ""}


@pytest.mark.parametrize(
    ("trained", "here", "keys", "right"),
    [
        (OF_DIFFERENCES, OF_DIFFERENCES, {}, True),
        (STREAMS, STREAMS, {}, True),
        (STREAMS, SMALL, of_stream("rgb"), True),
        (SMALL, STREAMS, {"method.backbone.": "encoders.rgb."}, True),
        (SMALL, OF_DIFFERENCES, {}, False),
        (OF_DIFFERENCES, SMALL, {}, False),
        (STREAMS, SWAPPED, {}, False),
        (STREAMS, SMALL, of_stream("differences"), False),
        (OF_DIFFERENCES, STREAMS, {"method.backbone.": "encoders.rgb."}, False),
    ],
)
def test_differences_in_frames_warn(trained, here, keys, right, tmp_path, caplog):
    state = renamed(build_backbone(**trained).state_dict(), "backbone.")
    content = {"format": CHECKPOINT_FORMAT, "step": 1, "method": state, "config": {"backbone": trained}}
    initialised(build_backbone(**here), save(tmp_path / "last.pt", content), keys=keys, partial=True)
    assert [record.levelname for record in caplog.records] == ([] if right else ["WARNING"])
    if not right:
        assert "differences of frames" in caplog.text and "set its frame_differences=" in caplog.text


@pytest.mark.parametrize(
    ("name", "pixels", "warned"),
    [
        ("mc3_18", OURS, str(KINETICS)),
        ("resnet18", OURS, str(IMAGENET)),
        ("resnet18", Normalization((0.5,), (0.5,)), str(IMAGENET)),
        ("resnet18", IMAGENET, None),
        ("resnet3d18", OURS, None),
        ("slow_r50", OURS, None),
        ("slow_r50", IMAGENET, str(OURS)),
    ],
)
def test_a_file_named_as_in_a_library_may_have_its_mean_and_std(name, pixels, warned, tmp_path, caplog):
    """Of torchvision and pytorchvideo; names of vidssl say nothing."""
    network = slow_r50() if name == "slow_r50" else build_backbone(name)
    path, name = save(tmp_path / "net.pth", network.state_dict()), name.replace("slow_r50", "resnet3d50")
    caplog.set_level("INFO")
    match = load_initial(build_backbone(name), InitialWeights(file=str(path)), False, name, pixels)
    assert [record.levelname for record in caplog.records] == ["INFO", *(["WARNING"] if warned else [])]
    assert caplog.messages[0] == str(match) and (warned is None or caplog.messages[1].endswith(f"set {warned}"))


# The settings ------------------------------------------------------------------------------------------------


class Run(Settings):
    """As a run has it."""

    init: Initial | None = None


PLAIN = {"file": "a", "partial": False, "keys": {}, "inflate": False}


@pytest.mark.parametrize(
    ("tree", "settings", "dumped"),
    [
        ("a.pyth", {"file": "a.pyth"}, "a.pyth"),
        ({"file": "a.pyth"}, {"file": "a.pyth"}, "a.pyth"),
        ({"file": "a", "keys": {"x.": ""}}, {"file": "a", "keys": {"x.": ""}}, {**PLAIN, "keys": {"x.": ""}}),
        (None, None, None),
    ],
)
def test_initial_weights_in_a_config(tree, settings, dumped):
    run = bind(Run, {"init": tree}, "test")
    assert run.init == (InitialWeights(**settings) if settings else None)
    assert run.model_dump(mode="json") == {"init": dumped}
    assert bind(Run, run.model_dump(mode="json"), "again") == run and "init" in dump(run)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ("", r"init(\.file)?: String should have at least 1 character"),
        ({"file": "a", "partail": True}, r"init\.partail: unknown key \(did you mean 'partial'\?\)"),
        ({"partial": True}, "init.file: is required"),
        (3, "init: "),
    ],
)
def test_invalid_initial_weights_in_a_config(tree, text):
    assert re.search(text, refused(bind, Run, {"init": tree}, "test", error=ConfigError))


@pytest.mark.parametrize(
    ("trained", "here", "right"),
    [
        ("resnet18", "resnet3d18", "'backbone={name: resnet18}'"),
        ("r3d_18", "resnet3d18", "'backbone={name: r3d_18}'"),
        ("resnet3d18", "resnet18", "'backbone={name: resnet3d18, width: 64}'"),
    ],
)
def test_a_file_of_another_backbone_names_it(trained, here, right, tmp_path):
    path = save(tmp_path / "net.pth", {"model": build_backbone(trained).state_dict()})
    message = refused(initialised, build_backbone(here), path)
    assert message.endswith(f"use the backbone that was trained, {right}")
    load_initial(
        build_backbone(**YAML(typ="safe").load(right.strip("'").partition("=")[2])), InitialWeights(file=str(path))
    )


def test_a_measured_file_states_how_its_weights_matched(tmp_path, digits, caplog):
    path = save(tmp_path / "net.pth", build_backbone("resnet18").state_dict())
    caplog.set_level("INFO")
    options = {"cfg": "toy/sce", "settings": ["backbone={name: resnet18}"], "workers": 0, "clips": 1, "progress": False}
    vidssl.extract(path, digits / "motion/test.csv", **options)
    assert "net.pth: all 120 weights of the backbone are loaded, named as in torchvision" in caplog.text
    assert "whose resnet18 has another mean and std" in caplog.text
