"""Checkpoints of other projects: their features are reproduced, from the weight names that they write."""

import argparse
import functools
import os
import pathlib
import subprocess
import sys
import types

import pytest
import torch
import torchvision
from pytorchvideo.models.hub import slow_r50
from pytorchvideo.models.resnet import create_resnet
from torch import nn

import vidssl
from vidssl.base.config import Settings, bind, dump
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.models import BACKBONES, Initial, InitialWeights, build_backbone, load_backbone, load_initial
from vidssl.models.backbones import Backbone
from vidssl.models.match_checkpoints import BRANCHES, CHECKPOINT_LAYOUTS, choose_match, match_backbones

BIG = [pytest.mark.long, pytest.mark.covers("vidssl/models")]
CLIPS = torch.randn(2, 3, 3, 48, 40, generator=torch.Generator().manual_seed(4))


def unlike(network, seed=0):
    """Give all batch norms numbers of their own, so that one in a wrong place shows; eval mode."""
    source = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for values in (module.weight, module.bias, module.running_mean, module.running_var):
                values.data = torch.rand(values.shape, generator=source) + 0.5
            module.num_batches_tracked += seed + 7
    return network.eval()


def save(path, content, **options):
    torch.save(content, path, **options)
    return path


def features(network, clips=CLIPS):
    with torch.no_grad():
        return network(clips)


def same(one, other):
    assert one.std() > 0
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def refused(call, *arguments, **named):
    with pytest.raises(CheckpointError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Networks by the names of SlowFast, written from its listings ------------------------------------------------


class SlowBlock(nn.Module):
    """branch1 (a shortcut where the shape changes) and branch2 (a, b and, in bottlenecks, c)."""

    def __init__(self, dim_in, inner, out, time, stride, basic):
        super().__init__()
        if dim_in != out or stride != 1:
            self.branch1 = nn.Conv3d(dim_in, out, 1, (1, stride, stride), bias=False)
            self.branch1_bn = nn.BatchNorm3d(out)
        convs = {
            "a": (dim_in, inner, (time, 3, 3) if basic else (time, 1, 1), stride if basic else 1),
            "b": (inner, inner, (1, 3, 3), 1 if basic else stride),
            "c": (inner, out, (1, 1, 1), 1),
        }
        self.branch2 = nn.Module()
        for name in "ab" if basic else "abc":
            i, o, kernel, s = convs[name]
            padding = [k // 2 for k in kernel]
            self.branch2.add_module(name, nn.Conv3d(i, o, kernel, (1, s, s), padding, bias=False))
            self.branch2.add_module(f"{name}_bn", nn.BatchNorm3d(o))

    def forward(self, x):
        short = self.branch1_bn(self.branch1(x)) if hasattr(self, "branch1") else x
        names = [name for name in "abc" if hasattr(self.branch2, name)]
        for name in names:
            x = getattr(self.branch2, f"{name}_bn")(getattr(self.branch2, name)(x))
            x = x if name == names[-1] else x.relu()
        return (short + x).relu()


class Slow(nn.Module):
    """The slow path alone, `s1` to `s5` and `head`."""

    def __init__(self, width=64, basic=False, times=(1, 1, 3, 3), depths=(3, 4, 6, 3), classes=5):
        super().__init__()
        self.s1 = nn.Module()
        self.s1.pathway0_stem = nn.Module()
        self.s1.pathway0_stem.conv = nn.Conv3d(3, width, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False)
        self.s1.pathway0_stem.bn = nn.BatchNorm3d(width)
        dim = width
        self.depths = (2, 2, 2, 2) if basic else depths
        for n, (depth, time) in enumerate(zip(self.depths, times, strict=True)):
            inner = width * 2**n
            out = inner if basic else inner * 4
            stage = nn.Module()
            for k in range(depth):
                stride = 2 if n > 0 and k == 0 else 1
                stage.add_module(f"pathway0_res{k}", SlowBlock(dim, inner, out, time, stride, basic))
                dim = out
            self.add_module(f"s{n + 2}", stage)
        self.head = nn.Module()
        self.head.projection = nn.Linear(dim, classes)

    def forward(self, x):
        x = self.s1.pathway0_stem.bn(self.s1.pathway0_stem.conv(x)).relu()
        x = nn.functional.max_pool3d(x, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        for n, depth in enumerate(self.depths):
            for k in range(depth):
                x = self.get_submodule(f"s{n + 2}.pathway0_res{k}")(x)
        return x.mean(dim=(2, 3, 4))


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
    return unlike(Slow(width=8))


@pytest.fixture(scope="module")
def slow18():
    torch.manual_seed(0)
    return unlike(Slow(width=8, basic=True), seed=2)


# pytorchvideo -----------------------------------------------------------------------------------------------


def test_slow_r50_of_the_hub_computes_the_same(tmp_path):
    network = unlike(slow_r50())
    path = save(tmp_path / "SLOW_8x8_R50.pyth", {"model_state": network.state_dict()})
    backbone = vidssl.load_backbone(path)
    assert type(backbone) is BACKBONES["resnet3d50"] and backbone.dim == 2048
    assert not any(module.training for module in backbone.modules())
    with torch.no_grad():
        x = CLIPS
        for block in network.blocks[:5]:
            x = block(x)
    same(features(backbone), x.mean(dim=(2, 3, 4)))
    theirs = network.state_dict()
    for key, value in backbone.state_dict().items():
        assert torch.equal(value, theirs[key.removeprefix("net.")]), key


@pytest.mark.parametrize("width", [4, 12])
def test_width_is_that_of_the_stem(width, tmp_path):
    network = unlike(create_resnet(stem_conv_kernel_size=(1, 7, 7), stem_dim_out=width, head=None))
    backbone = load_backbone(save(tmp_path / "narrow.pyth", {"model_state": network.state_dict()}))
    assert backbone.dim == width * 32
    same(features(backbone), features(network).mean(dim=(2, 3, 4)))


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("C2D", {"stage_conv_a_kernel_size": (1, 1, 1)}, "309 weights fit, 9 do not (net.blocks.3.res_blocks.0.br"),
        ("I3D", {"stem_conv_kernel_size": (5, 7, 7)}, "1 do not (net.blocks.0.conv.weight: (8, 3, 5, 7, 7), here (8,"),
        ("R101", {"model_depth": 101}, "318 weights fit, 306 do not (net.blocks.3.res_blocks.6.branch2"),
    ],
)
def test_similar_networks_are_refused(name, settings, text, tmp_path):
    network = create_resnet(**{"stem_conv_kernel_size": (1, 7, 7), "stem_dim_out": 8, **settings})
    path = save(tmp_path / f"{name}.pyth", {"model_state": network.state_dict()})
    message = refused(load_backbone, path)
    assert message.startswith(f"{path} does not fit resnet3d50: ") and text in message
    assert "names read as those of pytorchvideo after 'model_state.'" in message
    assert message.endswith("or load what fits with init.partial=true (Python: arch=, partial=True)")
    assert refused(load_backbone, path, "resnet3d50") == message


# SlowFast ---------------------------------------------------------------------------------------------------


def test_names_of_slowfast_are_those_of_pytorchvideo():
    with torch.device("meta"):
        ours, theirs = Slow(classes=400).state_dict(), slow_r50().state_dict()
    assert len(ours) == 320
    assert {as_pytorchvideo(key): value.shape for key, value in ours.items()} == {
        key: value.shape for key, value in theirs.items()
    }


def test_every_weight_of_a_full_slowfast_r50(tmp_path):
    network = Slow()
    path = save(tmp_path / "SLOWONLY_8x8_R50.pyth", {"model_state": network.state_dict(), "cfg": "MODEL: …"})
    backbone = load_backbone(path)
    ours, theirs = backbone.state_dict(), network.state_dict()
    names = {f"net.{as_pytorchvideo(key)}": key for key in theirs if not key.startswith("head.")}
    assert ours.keys() == names.keys() and len(names) == 318
    assert all(torch.equal(ours[key], theirs[name]) for key, name in names.items())


@pytest.mark.parametrize("before", ["module.", "backbone.", "encoder.", "module.backbone.", "model._orig_mod."])
def test_slowfast_computes_the_same_with_any_prefix(before, slow, tmp_path):
    path = save(tmp_path / "checkpoint.pyth", {"epoch": 3, "model_state": renamed(slow.state_dict(), before)})
    same(features(load_backbone(path, "resnet3d50")), features(slow))


@pytest.mark.parametrize("zipped", [True, False])
def test_slowfast_computes_the_same_from_new_and_old_files(zipped, slow, tmp_path):
    content = {"epoch": 3, "model_state": slow.state_dict(), "cfg": "TRAIN:\n  ENABLE: True\n"}
    path = save(tmp_path / "checkpoint.pyth", content, _use_new_zipfile_serialization=zipped)
    assert path.read_bytes().startswith(b"PK" if zipped else b"\x80")
    same(features(load_backbone(path)), features(slow))


def test_slowfast_with_basic_blocks(slow18, tmp_path):
    backbone = load_backbone(save(tmp_path / "r18.pyth", {"model_state": slow18.state_dict()}))
    assert type(backbone) is BACKBONES["resnet3d18"]
    same(features(backbone), features(slow18))


def test_slowfast_contrastive_gives_the_online_network(slow, tmp_path):
    history = unlike(Slow(width=8), seed=5)
    state = {
        **renamed(history.state_dict(), "backbone_hist."),
        **renamed(slow.state_dict(), "backbone."),
        "ptr": torch.tensor([0]),
        "iter": torch.zeros(1, dtype=torch.long),
        "queue_x": torch.rand(16, 8),
        "knn_mem.memory": torch.rand(4, 1, 8),
    }
    path = save(tmp_path / "moco.pyth", {"model_state": state})
    same(features(load_backbone(path)), features(slow))
    matched = load_initial(build_backbone("resnet3d50", width=8), InitialWeights(file=str(path)))
    assert len(matched.unused) == 2 + 320 + 4 and "model_state.queue_x" in matched.unused
    chosen = load_backbone(path, "resnet3d50", keys={"model_state.backbone_hist.": ""})
    same(features(chosen), features(history))


def test_networks_with_extra_layers_are_refused(slow, tmp_path):
    state = {**slow.state_dict(), "s3.pathway0_nonlocal1.conv_theta.weight": torch.rand(4, 8, 1, 1, 1)}
    message = refused(load_backbone, save(tmp_path / "nonlocal.pyth", {"model_state": state}))
    assert "318 weights fit, 1 do not (net.blocks.2.pathway0_nonlocal1.conv_theta.weight: unknown);" in message


# eztorch, Lightning -----------------------------------------------------------------------------------------


@pytest.fixture
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
    yield {
        "hyper_parameters": {"trunk": module.DictConfig(a=module.Metadata(), b=[module.Kind.A, dict, int])},
        "callbacks": {"ModelCheckpoint{'mode': 'min'}": {"path": pathlib.Path("x"), "best": torch.ones(())}},
        "args": argparse.Namespace(lr=0.1),
        "partial": functools.partial(module.build, 1),
        "number": torch.ones(1, dtype=torch.float64).numpy()[0],
        "pytorch-lightning_version": "2.0.4",
    }
    sys.modules.pop("omegaconf_like", None)


def save_and_forget(path, content, **options):
    save(path, content, **options)
    sys.modules.pop("omegaconf_like", None)
    return path


@pytest.mark.parametrize(("arch", "zipped"), [("resnet3d18", True), ("resnet3d50", True), ("resnet3d50", False)])
def test_lightning_checkpoint_of_eztorch(arch, zipped, slow, slow18, objects, tmp_path):
    online = slow18 if arch == "resnet3d18" else slow
    momentum = unlike(Slow(width=8, basic=arch == "resnet3d18"), seed=9)

    def trunk(network, before):
        state = {key: value for key, value in network.state_dict().items() if not key.startswith("head.")}
        return renamed(state, before, as_pytorchvideo)

    state = {
        **trunk(online, "trunk.model."),
        "projector.layers.0.weight": torch.rand(4, 4),
        **trunk(momentum, "momentum_trunk.model."),
        "momentum_projector.layers.0.weight": torch.rand(4, 4),
        "queue.queue": torch.rand(4, 16),
    }
    content = {"epoch": 1, "state_dict": state, "optimizer_states": [{"state": {0: torch.ones(1)}}], **objects}
    path = save_and_forget(tmp_path / "last.ckpt", content, _use_new_zipfile_serialization=zipped)
    backbone = load_backbone(path)
    assert type(backbone) is BACKBONES[arch] and "omegaconf_like" not in sys.modules
    same(features(backbone), features(online))
    # The published files hold the encoder alone.
    same(features(load_backbone(save(tmp_path / "r3d.ckpt", trunk(online, "model.")), arch)), features(online))


class CfgNode(dict):
    """A dictionary of a class of its own, as yacs and mmengine have them."""


def test_dictionary_subclasses_are_read_as_dictionaries(slow, tmp_path):
    path = save(tmp_path / "cfg.pth", {"cfg": CfgNode(a=CfgNode(b=1)), "model": CfgNode(slow.state_dict())})
    same(features(load_backbone(path, "resnet3d50")), features(slow))


class Runs:
    """Calls a function with an argument when it is unpickled."""

    def __init__(self, function, argument):
        self.call = function, (argument,)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("how", ["os.system", "eval", "exec", "Popen", "torch"])
def test_fault_25_a_malicious_checkpoint_of_others_runs_nothing(how, zipped, slow, tmp_path):
    target = tmp_path / "executed"
    code = f"open({str(target)!r}, 'w')"
    bad = {
        "os.system": Runs(os.system, f"touch '{target}'"),
        "eval": Runs(eval, code),
        "exec": Runs(exec, code),
        "Popen": Runs(subprocess.check_output, ["touch", str(target)]),
        "torch": Runs(torch.hub._remove_if_exists, str(tmp_path / "precious")),
    }[how]
    (tmp_path / "precious").touch()
    content = {"state_dict": {"first": bad, **slow.state_dict()}, "hyper_parameters": bad}
    path = save(tmp_path / "bad.ckpt", content, _use_new_zipfile_serialization=zipped)
    if how == "os.system":
        message = refused(load_backbone, path, "resnet3d50")
        assert f"holds {os.system.__module__}.system: only tensors and plain data" in message
    else:
        backbone = build_backbone("resnet3d50", width=8).eval()
        load_initial(backbone, InitialWeights(file=str(path)))
        same(features(backbone), features(slow))
    assert not target.exists() and (tmp_path / "precious").exists()
    torch.load(path, weights_only=False)
    assert target.exists() or not (tmp_path / "precious").exists()  # it would have


# torchvision, timm, MoCo ------------------------------------------------------------------------------------


def without_classifier(network):
    for name in ("fc", "head", "classifier"):
        part = getattr(network, name, None)
        if isinstance(part, nn.Sequential):
            part[-1] = nn.Identity()
        elif part is not None:
            setattr(network, name, nn.Identity())
    return network


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param("r3d_18", (4, 32, 32), marks=BIG),
        ("mc3_18", (4, 32, 32)),
        pytest.param("r2plus1d_18", (4, 32, 32), marks=BIG),
        pytest.param("s3d", (16, 224, 224), marks=BIG),
        ("swin3d_t", (4, 64, 64)),
        pytest.param("mvit_v2_s", (16, 224, 224), marks=BIG),
    ],
)
def test_torchvision_video_networks(name, shape, tmp_path):
    network = unlike(torchvision.models.get_model(name, weights=None))
    path = save(tmp_path / f"{name}-b3b3357e.pth", network.state_dict())
    backbone = load_backbone(path)
    assert type(backbone) is BACKBONES[name]
    clip = torch.randn(1, 3, *shape, generator=torch.Generator().manual_seed(1))
    same(features(backbone, clip), features(without_classifier(network), clip))


@pytest.mark.parametrize("name", torchvision.models.list_models(module=torchvision.models.video))
def test_every_torchvision_video_network_is_distinguished_from_the_others(name):
    with torch.device("meta"):
        weights = renamed(torchvision.models.get_model(name, weights=None).state_dict(), "model.module.")
    found = choose_match(match_backbones(weights, {}, "file", None), weights, "file", partial=False)
    assert found.backbone == {"name": name} and 1 <= len(found.unused) <= 4  # the classifier


@pytest.fixture(scope="module", params=["resnet18", pytest.param("resnet50", marks=BIG)])
def resnet(request):
    torch.manual_seed(1)
    return request.param, unlike(torchvision.models.get_model(request.param, weights=None))


def of_frames(network, clips):
    """Features of each frame on its own, then their mean."""
    frames = [features(without_classifier(network), clips[:, :, t]) for t in range(clips.shape[2])]
    return sum(frames) / len(frames)


@pytest.mark.parametrize("counters", [True, False])
def test_torchvision_resnets_encode_frames(resnet, counters, tmp_path):
    name, network = resnet
    state = {k: v for k, v in network.state_dict().items() if counters or not k.endswith("batches_tracked")}
    backbone = load_backbone(save(tmp_path / f"{name}-f37072fd.pth", state))
    assert type(backbone) is BACKBONES[name] and backbone.dim == network.layer4[-1].conv1.in_channels
    same(features(backbone), of_frames(network, CLIPS))
    same(features(backbone, CLIPS[:, :, :1]), of_frames(network, CLIPS[:, :, :1]))


@pytest.mark.parametrize(
    ("name", "nearest", "text"),
    [
        ("resnet34", "resnet50", "185 weights fit, 116 do not (net.layer1.0.conv1.weight: (64, 64, 3, 3), "),
        ("wide_resnet50_2", "resnext50_32x4d", "302 weights fit, 16 do not (net.layer1.0.conv2.weight: "),
    ],
)
def test_other_resnets_are_refused(name, nearest, text):
    with torch.device("meta"):
        weights = torchvision.models.get_model(name, weights=None).state_dict()
    matches = match_backbones(weights, {}, "file", None)
    message = refused(choose_match, matches, weights, "file", partial=False)
    assert message.startswith(f"file does not fit {nearest}: {text}")


def test_moco_gives_the_query_encoder(resnet, tmp_path):
    name, network = resnet
    key = unlike(torchvision.models.get_model(name, weights=None), seed=3)
    state = {
        "module.queue": torch.rand(8, 16),
        "module.queue_ptr": torch.zeros(1, dtype=torch.long),
        **renamed(key.state_dict(), "module.encoder_k."),
        **renamed(network.state_dict(), "module.encoder_q.", lambda k: k.replace("fc.", "fc.2.")),
        "module.encoder_q.fc.0.weight": torch.rand(4, 4),
    }
    content = {"epoch": 200, "arch": name, "state_dict": state, "optimizer": {"state": {0: {"momentum_buffer": 1}}}}
    path = save(tmp_path / "moco_v2.pth.tar", content, _use_new_zipfile_serialization=False)
    backbone = build_backbone(name).eval()
    matched = load_initial(backbone, InitialWeights(file=str(path)))
    same(features(backbone), of_frames(network, CLIPS))
    assert str(matched).startswith(
        f"{path}: all {len(matched.weights)} weights of the backbone, named as in torchvision, "
        "from state_dict.module.encoder_q; "
    )


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_timm_resnets(name, tmp_path):
    timm = pytest.importorskip("timm")
    network = unlike(timm.create_model(name, pretrained=False))
    backbone = load_backbone(save(tmp_path / "timm.pth", network.state_dict()))
    expected = sum(features(network.forward_features, CLIPS[:, :, t]).mean(dim=(2, 3)) for t in range(3)) / 3
    same(features(backbone), expected)


# V-JEPA -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("average", ["target_encoder", "ema_encoder"])
def test_wrappers_of_v_jepa_give_the_moving_average(average, slow, tmp_path):
    moving = unlike(Slow(width=8), seed=2)
    content = {
        "encoder": renamed(slow.state_dict(), "module.backbone."),
        "predictor": {"module.backbone.predictor_embed.weight": torch.rand(3, 3)},
        "opt": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []},
        average: renamed(moving.state_dict(), "module.backbone."),
    }
    path = save(tmp_path / "vjepa.pt", content)
    same(features(load_backbone(path, "resnet3d50")), features(moving))
    chosen = load_backbone(path, "resnet3d50", keys={"encoder.module.backbone.": ""})
    same(features(chosen), features(slow))


# Names of anybody -------------------------------------------------------------------------------------------


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
    backbone = build_backbone("resnet3d50", width=8)
    load_initial(backbone, InitialWeights(file=str(path), keys=keys))
    same(features(backbone.eval()), features(slow))


def test_keys_that_match_nothing_or_collide(slow, tmp_path):
    path = save(tmp_path / "file.pth", slow.state_dict())
    message = refused(load_backbone, path, "resnet3d50", keys={"modul.": ""})
    assert "no weight uses the prefix 'modul.' of keys; names in the file: s1.pathway0_" in message
    message = refused(load_backbone, path, "resnet3d50", keys={"s2.": "", "s3.": ""})
    assert "keys would rename both s2.pathway0_res0.branch1.weight and s3." in message


def test_two_networks_in_a_file_need_keys(slow, tmp_path):
    networks = {"student.backbone.": slow, "teacher.backbone.": unlike(Slow(width=8), seed=2)}
    state = {k: v for name, network in networks.items() for k, v in renamed(network.state_dict(), name).items()}
    path = save(tmp_path / "dino.pth", state)
    message = refused(load_backbone, path, "resnet3d50")
    assert "can be resnet3d50 from 'student.backbone.' or resnet3d50 from 'teacher.backbone.': choose" in message
    for name, network in networks.items():
        same(features(load_backbone(path, "resnet3d50", keys={name: ""})), features(network))


@pytest.fixture
def registered():
    """Register backbones for one test."""
    before = dict(BACKBONES._all())
    yield BACKBONES.register
    BACKBONES._entries = before


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


def test_registered_backbones_are_recognised(registered, tmp_path):
    registered("plain")(Plain)
    registered("needy")(Needy)
    network = build_backbone("plain")
    path = save(tmp_path / "plain.pth", {"state_dict": renamed(network.state_dict(), "module.")})
    state = load_backbone(path).state_dict()
    assert all(torch.equal(state[key], value) for key, value in network.state_dict().items())
    with pytest.raises(ConfigError, match="size: is required"):
        load_backbone(path, "needy")
    registered("twin")(Plain)
    message = refused(load_backbone, path)
    assert "can be plain from 'state_dict.module.' or twin from 'state_dict.module.': choose the backbone" in message
    assert load_backbone(path, "twin").dim == 3


@pytest.mark.parametrize(
    ("arch", "below"), [("resnet3d18", ""), ("resnet3d18", "net."), ("resnet18", "net."), ("mc3_18", "")]
)
def test_state_dict_of_a_vidssl_backbone(arch, below, tmp_path):
    network = unlike(build_backbone(arch, **({"width": 8} if "3d" in arch else {})))
    state = {key.removeprefix("net."): value for key, value in network.state_dict().items()}
    backbone = load_backbone(save(tmp_path / "own.pt", renamed(state, below)))
    assert type(backbone) is type(network)
    assert all(torch.equal(value, network.state_dict()[k]) for k, value in backbone.state_dict().items())


# What does not fit ------------------------------------------------------------------------------------------


def test_missing_and_reshaped_weights_are_named_and_nothing_is_changed(slow, tmp_path):
    state = dict(slow.state_dict())
    for key in [key for key in state if key.startswith("s5.pathway0_res2.")]:
        del state[key]
    state["s2.pathway0_res0.branch1.weight"] = torch.rand(2, 2)
    path = save(tmp_path / "cut.pyth", {"model_state": state})
    backbone = unlike(build_backbone("resnet3d50", width=8), seed=6)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    message = refused(load_initial, backbone, InitialWeights(file=str(path)))
    last = "net.blocks.4.res_blocks.2.branch2"
    assert message == (
        f"{path} does not fit the backbone: {318 - 19} weights fit, 16 do not (net.blocks.1.res_blocks.0.branch1_conv."
        f"weight: (2, 2), here (32, 8, 1, 1, 1); {last}.conv_a.weight: missing; {last}.norm_a.weight: missing and 13 "
        "more); names read as those of SlowFast after 'model_state.'; use the backbone that was trained, or load what "
        "fits with init.partial=true (Python: arch=, partial=True)"
    )
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())

    matched = load_initial(backbone, InitialWeights(file=str(path), partial=True))
    assert str(matched).startswith(f"{path}: {len(matched.weights)} weights of the backbone, named as in SlowFast")
    assert "\n" not in str(matched) and "; 16 do not fit (net.blocks.1" in str(matched)
    names = {key: f"net.{as_pytorchvideo(key)}" for key in state}
    for key, value in backbone.state_dict().items():
        theirs = [value for name, value in state.items() if names[name] == key and value.ndim != 2]
        assert torch.equal(value, theirs[0] if theirs else before[key]), key
    assert load_backbone(path, "resnet3d50", partial=True).dim == 256


def test_partial_without_any_fitting_weight_is_an_error(slow, tmp_path):
    path = save(tmp_path / "wide.pyth", {f"x.{key}": torch.rand(1, 2, 3) for key in slow.state_dict()})
    for call in (
        lambda: load_backbone(path, "resnet3d50", partial=True),
        lambda: load_initial(build_backbone("resnet3d50", width=4), InitialWeights(file=str(path), partial=True)),
    ):
        message = refused(call)
        assert ": 0 weights fit, 318 do not (net.blocks.0.conv.weight: (1, 2, 3), here" in message


def test_partial_without_arch_guesses_no_backbone(slow, tmp_path):
    state = {k: v for k, v in slow.state_dict().items() if k.startswith("s1.")}
    path = save(tmp_path / "stem.pth", renamed(state, name=as_pytorchvideo))
    assert "6 weights fit, " in refused(load_backbone, path, partial=True)
    assert load_backbone(path, "resnet3d50", partial=True).dim == 2048 // 8


@pytest.mark.parametrize("content", [{}, {"a": 1}, [torch.ones(1)], torch.ones(2), {"x": {1: torch.ones(1)}}])
def test_files_without_weights(content, tmp_path):
    path = save(tmp_path / "none.pt", content)
    for call in (
        lambda: load_backbone(path),
        lambda: load_initial(build_backbone("resnet3d18", width=4), InitialWeights(file=str(path))),
    ):
        assert f"{path} holds no named weights: save the network's state_dict()" in refused(call)


def test_a_pickled_module_is_refused(slow, tmp_path):
    assert "holds no named weights" in refused(load_backbone, save(tmp_path / "module.pt", slow))
    state = load_backbone(save(tmp_path / "trusted.pt", {"model": slow.state_dict(), "cfg": slow}), trust=True)
    same(features(state), features(slow))


def test_unknown_arch(tmp_path):
    with pytest.raises(ConfigError, match=r"no backbone 'resnet3d5' \(did you mean 'resnet3d50'\?\); there are"):
        load_backbone(tmp_path / "any.pt", "resnet3d5")


def test_half_precision_becomes_single(slow, tmp_path):
    state = {k: v.half() if v.is_floating_point() else v for k, v in slow.state_dict().items()}
    backbone = load_backbone(save(tmp_path / "half.pt", state))
    assert {p.dtype for p in backbone.parameters()} == {torch.float32}
    torch.testing.assert_close(features(backbone), features(slow), rtol=1e-2, atol=1e-2)


# The table and the settings ---------------------------------------------------------------------------------


def test_signs_of_layouts_and_branches_are_distinct():
    signs = [layout.sign for layout in CHECKPOINT_LAYOUTS]
    assert len(set(signs)) == len(signs)
    assert all(better != other for better, other in BRANCHES)


class Run(Settings):
    """As a run has it."""

    init: Initial | None = None


PLAIN = {"file": "a", "partial": False, "keys": {}, "inflate": False}


@pytest.mark.parametrize(
    ("tree", "settings", "dumped"),
    [
        ("a.pyth", {"file": "a.pyth"}, "a.pyth"),
        ({"file": "a.pyth"}, {"file": "a.pyth"}, "a.pyth"),
        ({"file": "a", "partial": True}, {"file": "a", "partial": True}, {**PLAIN, "partial": True}),
        ({"file": "a", "keys": {"x.": ""}}, {"file": "a", "keys": {"x.": ""}}, {**PLAIN, "keys": {"x.": ""}}),
        ({"file": "a", "inflate": True}, {"file": "a", "inflate": True}, {**PLAIN, "inflate": True}),
        (None, None, None),
    ],
)
def test_initial_weights_in_a_config(tree, settings, dumped):
    run = bind(Run, {"init": tree}, "test")
    assert run.init == (InitialWeights(**settings) if settings else None)
    assert run.model_dump(mode="json") == {"init": dumped}
    assert bind(Run, run.model_dump(mode="json"), "again") == run
    assert "init" in dump(run)


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        ("", r"init(\.file)?: String should have at least 1 character"),
        ({"file": "a", "partail": True}, r"init\.partail: unknown key \(did you mean 'partial'\?\)"),
        ({"partial": True}, "init.file: is required"),
        ({"file": "a", "keys": {"x": 1}}, "init.keys.x: Input should be a valid string"),
        (3, "init: "),
    ],
)
def test_invalid_initial_weights_in_a_config(tree, text):
    with pytest.raises(ConfigError, match=text):
        bind(Run, {"init": tree}, "test")
