"""Starting from weights of torchvision by name, and from 2D ResNets that are inflated."""

import re
import runpy
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

import vidssl
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.models import InitialWeights, build_backbone, load_initial
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT, Normalization, normalization_of
from vidssl.models.resnet3d import ResNet3D18, ResNet3D50

TESTS = Path(__file__).parents[1]
TOYS = TESTS.parent / "configs" / "toy"
KINETICS = Normalization((0.43216, 0.394666, 0.37645), (0.22803, 0.22145, 0.216989))
IMAGENET = Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
OURS = Normalization((0.45,), (0.225,))


class Threes18(ResNet3D18):
    kernels = ((3, 3, 3),) * 4


class Threes50(ResNet3D50):
    kernels = ((3, 1, 1),) * 4


SAME = {"rtol": 1e-9, "atol": 1e-9}
BUILT = {"threes18": Threes18, "threes50": Threes50}


def drawn(network):
    """Weights and statistics of all batch norms that are far from 0 and 1."""
    torch.manual_seed(0)
    for norm in network.modules():
        if isinstance(norm, nn.BatchNorm2d | nn.BatchNorm3d):
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.normal_(norm.bias, std=0.2)
            nn.init.normal_(norm.running_mean, std=0.2)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return network.eval()


@pytest.fixture
def offline(monkeypatch):
    """What torchvision downloads is drawn instead; returns the networks by name."""
    made = {}

    def get_model(name, weights=None, **settings):
        network = real(name, weights=None, **settings)
        if weights is not None:
            made[name] = drawn(network)
        return network

    real = torchvision.models.get_model
    monkeypatch.setattr("vidssl.models.external.load_from_libraries.get_model", get_model)
    return made


def load(name, file, normalization=OURS, settings=None, **init):
    backbone = BUILT[name](BUILT[name].Config()) if name in BUILT else build_backbone(name, **(settings or {}))
    match = load_initial(backbone, InitialWeights(file=str(file), **init), False, name, normalization)
    return backbone.eval(), match


def refused(error, name, file, settings=None, **init):
    with pytest.raises(error) as caught:
        load(name, file, settings=settings, **init)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "clip"),
    [("r3d_18", (4, 34, 46)), ("mc3_18", (3, 34, 46)), ("r2plus1d_18", (4, 34, 46)), ("s3d", (14, 224, 224))],
)
def test_a_name_loads_the_weights_of_the_same_architecture(name, clip, offline, caplog):
    backbone, match = load(name, f"torchvision:{name}@KINETICS400_V1")
    x = torch.randn(1, 3, *clip)
    with torch.no_grad():
        torch.testing.assert_close(backbone(x), offline[name].eval()(x), rtol=1e-5, atol=1e-5)
    assert f"torchvision:{name}@KINETICS400_V1: all " in str(match) and not match.unused
    assert [r.message for r in caplog.records] == [
        f"torchvision:{name}@KINETICS400_V1 was trained with another mean and std: set 'data.mean=[0.43216, 0.394666, "
        "0.37645]' 'data.std=[0.22803, 0.22145, 0.216989]'"
    ]
    caplog.clear()
    load(name, f"torchvision:{name}", KINETICS)
    assert not caplog.records


def test_names_that_do_not_fit(offline):
    message = refused(CheckpointError, "mc3_18", "torchvision:r3d_18@KINETICS400_V1")
    assert message.startswith("torchvision:r3d_18@KINETICS400_V1 is r3d_18, and the backbone mc3_18 (net.layer2.0.")
    assert message.endswith("): set backbone={name: r3d_18}")
    message = refused(CheckpointError, "resnet3d18", "torchvision:vit_b_16")
    assert message.startswith("torchvision:vit_b_16 is vit_b_16, and the backbone resnet3d18 (")
    assert message.endswith("): name other weights")
    message = refused(CheckpointError, "resnet3d18", "torchvision:resnet18")
    assert message.endswith("): set backbone={name: resnet18}, or init.inflate=true")
    assert "leave init out" in refused(ConfigError, "r3d_18", "torchvision:r3d_18@none")
    assert "leave out ,count=4" in refused(ConfigError, "r3d_18", "torchvision:r3d_18,count=4")
    assert "init takes names of torchvision: and timm:" in refused(ConfigError, "r3d_18", "onnx:net.onnx")
    assert "did you mean 'r3d_18'" in refused(CheckpointError, "r3d_18", "torchvision:r3d_81")
    assert "has no weights X: KINETICS400_V1" in refused(CheckpointError, "r3d_18", "torchvision:r3d_18@X")


def test_partial_loads_what_fits_of_another_architecture(offline):
    backbone, match = load("mc3_18", "torchvision:r3d_18", partial=True)
    assert match.misfits
    torch.testing.assert_close(backbone.net.stem[0].weight, offline["r3d_18"].stem[0].weight)


def test_timm_has_the_same_weights_under_the_same_names(monkeypatch):
    timm = pytest.importorskip("timm")
    made, real = [], timm.create_model

    def create_model(name, pretrained, **settings):
        assert pretrained
        made.append(drawn(real(name, pretrained=False, **settings)))
        return made[-1]

    monkeypatch.setattr(timm, "create_model", create_model)
    image = torch.randn(2, 3, 41, 66, dtype=torch.float64)
    for name, tag in (("resnet18", ""), ("resnet50", ".a1_in1k")):
        backbone, _ = load(name, f"timm:{name}{tag}")
        inflated, _ = load(name.replace("resnet", "resnet3d"), f"timm:{name}{tag}", inflate=True)
        with torch.no_grad():
            expected = made[-1].double()(image)
            torch.testing.assert_close(backbone.double()(image[:, :, None]), expected, **SAME)
            torch.testing.assert_close(inflated.double()(still(image, 3)), expected, **SAME)
    assert "of timm, init takes resnet18" in refused(CheckpointError, "resnet50", "timm:resnetaa50")


def still(image, frames):
    return image[:, :, None].expand(-1, -1, frames, -1, -1)


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize(
    ("flat", "name"),
    [("resnet18", "resnet3d18"), ("resnet18", "threes18"), ("resnet50", "resnet3d50"), ("resnet50", "threes50")],
)
def test_an_inflated_network_sees_a_still_video_as_the_image(flat, name, frames, tmp_path):
    network = drawn(torchvision.models.get_model(flat, weights=None))
    torch.save({"state_dict": {f"module.{n}": w for n, w in network.state_dict().items()}}, tmp_path / "flat.pth")
    backbone, match = load(name, tmp_path / "flat.pth", inflate=True)
    assert not match.misfits and len(match.unused) == 2  # the classifier
    frame_by_frame = build_backbone(flat).eval()
    load_initial(frame_by_frame, InitialWeights(file=str(tmp_path / "flat.pth")))
    network.fc = nn.Identity()
    for one in (network, backbone, frame_by_frame):
        one.double()  # so that the order of sums is no difference
    image = torch.randn(2, 3, 45, 70, dtype=torch.float64)
    clip, layers = still(image, frames), ("stem", "layer1", "layer2", "layer3", "layer4")
    with torch.no_grad():
        torch.testing.assert_close(backbone(clip), network(image), **SAME)
        # All frames, those at the border too.
        for ours, theirs in zip(backbone.features(clip, layers), frame_by_frame.features(clip, layers), strict=True):
            torch.testing.assert_close(ours, theirs, **SAME)
    kernels = {m.kernel_size[0] for m in backbone.modules() if isinstance(m, nn.Conv3d)}
    assert kernels == {1, 3}


def test_a_run_on_images_and_a_name_can_be_inflated(offline, tmp_path):
    trained = drawn(build_backbone("resnet18"))
    state = {f"{part}.{n}": w for part in ("backbone", "target.0") for n, w in trained.state_dict().items()}
    for name, weight in state.items():
        if name.startswith("target") and weight.is_floating_point():
            state[name] = weight + 1
    data = {"mean": list(IMAGENET.mean), "std": list(IMAGENET.std)}
    config = {"backbone": {"name": "resnet18"}, "data": data}
    torch.save({"format": CHECKPOINT_FORMAT, "step": 1, "method": state, "config": config}, tmp_path / "last.pt")
    image = torch.randn(1, 3, 45, 70)
    backbone, match = load("resnet3d18", tmp_path / "last.pt", IMAGENET, inflate=True)
    with torch.no_grad():
        torch.testing.assert_close(backbone(still(image, 3)), trained(image[:, :, None]), rtol=1e-5, atol=1e-5)
    assert "from backbone; " in str(match)
    backbone, _ = load("resnet3d50", "torchvision:resnet50@IMAGENET1K_V1", IMAGENET, inflate=True)
    with torch.no_grad():
        expected = offline["resnet50"].double()(image.double())
        torch.testing.assert_close(backbone.double()(still(image.double(), 3)), expected, **SAME)


def test_what_cannot_be_inflated(offline, tmp_path):
    for name, reason in {
        "r3d_18": "its stem has no max pooling",
        "mc3_18": "its stem has no max pooling",
        "r2plus1d_18": "its kernels are split into space and time",
        "s3d": "it is no 3D ResNet of vidssl",
        "resnet18": "it is no 3D ResNet of vidssl",
        "two_streams": "it is no 3D ResNet of vidssl",
    }.items():
        message = refused(CheckpointError, name, "torchvision:resnet18", inflate=True)
        assert message.startswith(f"torchvision:resnet18 cannot be inflated into {name}: {reason}")
    for file, name, settings, text in (
        ("resnet50", "resnet3d18", {}, "bottlenecks, not basic blocks; 3-4-6-3 blocks, not 2-2-2-2 blocks; choose"),
        ("resnet34", "resnet3d18", {}, "it has 3-4-6-3 blocks, not 2-2-2-2 blocks; choose"),
        ("resnet101", "resnet3d50", {}, "it has 3-4-23-3 blocks, not 3-4-6-3 blocks; choose"),
        ("resnet18", "resnet3d18", {"width": 8}, "it has 64 channels in the stem, not 8 channels in the stem; choose"),
        ("resnet18", "resnet3d18", {"frame_differences": True}, "with frame_differences it does not see frames"),
        ("resnext50_32x4d", "resnet3d50", {}, "resnext50_32x4d, and the backbone resnet3d50 (net.blocks.1.res_blocks"),
        ("r3d_18", "resnet3d18", {}, "holds no 2D ResNet"),
    ):
        assert text in refused(CheckpointError, name, f"torchvision:{file}", settings, inflate=True)
    small = {f"backbone.{n}": w for n, w in build_backbone("resnet18", stem="cifar").state_dict().items()}
    torch.save(small, tmp_path / "cifar.pth")
    text = "it has a stem of 3 x 3, not a stem of 7 x 7; choose"
    assert text in refused(CheckpointError, "resnet3d18", tmp_path / "cifar.pth", inflate=True)
    torch.save(build_backbone("resnet3d18").state_dict(), tmp_path / "deep.pth")
    assert "holds no 2D ResNet" in refused(CheckpointError, "resnet3d18", tmp_path / "deep.pth", inflate=True)


def test_r3d_18_would_differ(offline):
    """Why it is refused: all kernels have the shapes of ResNet-18, but nothing pools after the stem."""
    flat = drawn(torchvision.models.get_model("resnet18", weights=None))
    deep = build_backbone("r3d_18").eval()
    theirs = [w for n, w in flat.state_dict().items() if not n.startswith("fc.") and "tracked" not in n]
    state = {n: w for n, w in deep.state_dict().items() if "tracked" not in n}
    assert [w[:, :, 0].shape if w.ndim == 5 else w.shape for w in state.values()] == [w.shape for w in theirs]
    for ours, weight in zip(state.values(), theirs, strict=True):
        if ours.ndim == 5:
            ours.zero_()[:, :, ours.shape[2] // 2] = weight
        else:
            ours.copy_(weight)
    image = torch.randn(1, 3, 48, 64)
    flat.fc = nn.Identity()
    with torch.no_grad():
        assert not torch.allclose(deep(still(image, 4)), flat(image), rtol=0.1)
        flat.maxpool = nn.Identity()  # with it they are equal, the strides in time too
        torch.testing.assert_close(deep(still(image, 4)), flat(image), rtol=1e-5, atol=1e-5)


def test_the_normalization_of_a_stored_config():
    assert normalization_of({"data": {"mean": [0.45], "std": [0.225]}}) == OURS
    assert OURS.is_close(Normalization((0.45,) * 3, (0.225,) * 3)) and not OURS.is_close(IMAGENET)
    assert str(OURS) == str(Normalization((0.45,) * 3, (0.225,) * 3)) == "'data.mean=[0.45]' 'data.std=[0.225]'"
    for wrong in ({}, {"data": 3}, {"data": {"mean": [0.45]}}, {"data": {"mean": ["a"], "std": [1.0]}}):
        assert normalization_of(wrong) is None
    assert not re.search(r"\n", str(IMAGENET))


def test_a_run_trains_on_from_a_name_and_resumes_without_it(offline, tmp_path, monkeypatch, caplog):
    digits = f"{{out: {tmp_path}/data, train: 8, test: 4, frames: 24, size: 48}}"
    settings = [
        f"data.moving_digits={digits}",
        f"data.train={tmp_path}/data/motion/train.csv",
        "data.workers=0",
        "device=cpu",
        "steps=2",
        "batch_size=4",
        "checkpoint.every=1",
        "backbone={name: resnet3d18}",
        "init={file: 'torchvision:resnet18@IMAGENET1K_V1', inflate: true}",
        "data.mean=[0.485, 0.456, 0.406]",
        "data.std=[0.229, 0.224, 0.225]",
    ]
    caplog.set_level("INFO")
    straight = torch.load(train(load_run(TOYS / "moco.yaml", [*settings, f"output={tmp_path}/straight"])))
    assert "torchvision:resnet18@IMAGENET1K_V1: all 120 weights of the backbone" in caplog.text
    assert "another mean and std" not in caplog.text
    moved = straight["method"]["backbone.net.blocks.0.conv.weight"][:, :, 0] - offline["resnet18"].conv1.weight
    assert 0 < moved.abs().max() < 0.1
    run = load_run(TOYS / "moco.yaml", [*settings, f"output={tmp_path}/run"])
    train(run, until=1)

    def read_again(*args):
        raise AssertionError("init is read at the first start only")

    monkeypatch.setattr("vidssl.engine.run_setup.load_initial", read_again)
    resumed = torch.load(train(load_run(tmp_path / "run" / "config.yaml")))
    runpy.run_path(str(TESTS / "equal.py"))["same"](straight["method"], resumed["method"])
    lists = tmp_path / "data" / "motion"
    results = vidssl.test(
        tmp_path / "run",
        lists / "test.csv",
        train_list=lists / "train.csv",
        protocol=["knn"],
        out=tmp_path / "run/test",
    )
    assert results["config"]["init"]["file"] == "torchvision:resnet18@IMAGENET1K_V1"
    vidssl.export(tmp_path / "run", to="folder", out=tmp_path / "net")
    card = (tmp_path / "net" / "README.md").read_text()
    assert "2 steps of 4 videos, from torchvision:resnet18@IMAGENET1K_V1 (inflate)" in card


def test_clips_that_are_too_small_for_a_network_of_torchvision():
    network = build_backbone("s3d").eval()
    with pytest.raises(ConfigError, match=r"s3d pools larger maps than clips of 16 x 112 x 112 .* use 16 frames of 2"):
        network(torch.zeros(1, 3, 16, 112, 112))
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 16, 224, 224)).shape == (1, 1024)
