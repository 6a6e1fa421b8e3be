"""Networks against the tables of the paper, against pytorchvideo's own, and by name."""

import pytest
import torch
import torchvision
from pytorchvideo.models.resnet import create_resnet
from torch import nn

from vidssl.base.errors import ConfigError
from vidssl.models import BACKBONES, build_backbone, resnet3d

TORCHVISION = torchvision.models.list_models(module=torchvision.models.video)


def on_meta(name, **settings):
    """A network without memory: shapes and counts only."""
    with torch.device("meta"):
        return build_backbone(name, **settings)


def parameters(module):
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("name", "millions", "dim"), [("resnet3d18", 20.02, 512), ("resnet3d50", 31.63, 2048)])
def test_parameters(name, millions, dim):
    network = on_meta(name)
    assert parameters(network) / 1e6 == pytest.approx(millions, abs=0.005)
    assert network.dim == dim


def stem():
    return [("conv", (1, 7, 7), (1, 2, 2), 64), ("pool", (1, 3, 3), (1, 2, 2), None)]


def stage(blocks, inner, stride, shortcut, *convs):
    """Rows of one stage of Table 23: `convs` are (kernel, channels, whether it has the stride)."""
    rows = []
    for n in range(blocks):
        first = stride if n == 0 else (1, 1, 1)
        if n == 0 and shortcut:
            rows.append(("conv", (1, 1, 1), first, convs[-1][1]))
        rows += [("conv", kernel, first if strided else (1, 1, 1), out) for kernel, out, strided in convs]
    return rows


def basic(inner, stride, temporal, shortcut=True):
    return stage(2, inner, stride, shortcut, ((temporal, 3, 3), inner, True), ((1, 3, 3), inner, False))


def bottleneck(blocks, inner, stride, temporal):
    convs = ((temporal, 1, 1), inner, False), ((1, 3, 3), inner, True), ((1, 1, 1), 4 * inner, False)
    return stage(blocks, inner, stride, True, *convs)


ONE, TWO = (1, 1, 1), (1, 2, 2)
TABLE_23 = {
    "resnet3d18": [*stem(), *basic(64, ONE, 1, False), *basic(128, TWO, 1), *basic(256, TWO, 3), *basic(512, TWO, 3)],
    "resnet3d50": [
        *stem(),
        *bottleneck(3, 64, ONE, 1),
        *bottleneck(4, 128, TWO, 1),
        *bottleneck(6, 256, TWO, 3),
        *bottleneck(3, 512, TWO, 3),
    ],
}


@pytest.mark.parametrize("name", TABLE_23)
def test_layers_are_table_23(name):
    collected = []
    for module in on_meta(name).modules():
        if isinstance(module, nn.Conv3d):
            collected.append(("conv", module.kernel_size, module.stride, module.out_channels))
            assert module.padding == tuple(k // 2 for k in module.kernel_size)
            assert module.bias is None
        elif isinstance(module, nn.MaxPool2d):  # frame by frame
            collected.append(("pool", (1, *module.kernel_size), (1, *module.stride), None))
    assert collected == TABLE_23[name]


@pytest.mark.parametrize(("name", "blocks"), [("resnet3d18", 8), ("resnet3d50", 16)])
def test_zero_initialised_residual_branches(name, blocks):
    network = build_backbone(name, width=4)
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm3d)]
    zero = [bool((norm.weight == 0).all()) for norm in norms]
    assert zero.count(True) == blocks
    assert all(bool((norm.weight == 1).all()) for norm, is_zero in zip(norms, zero, strict=True) if not is_zero)
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-5, 0.1)}
    for convolution in (m for m in network.modules() if isinstance(m, nn.Conv3d)):
        fan_out = convolution.weight[:, 0].numel()
        if convolution.weight.numel() > 2000:  # enough numbers for their spread to say something
            assert convolution.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)


def test_resnet3d50_computes_what_pytorchvideos_slow_r50_does():
    ours = build_backbone("resnet3d50", width=8).eval()
    theirs = create_resnet(head=None, stem_conv_kernel_size=(1, 7, 7), stem_dim_out=8).eval()
    source = torch.Generator().manual_seed(0)
    weights = {}
    for key, value in ours.state_dict().items():
        if value.ndim == 1:  # batch norms: gammas of 0 would hide whole branches
            value = torch.rand(value.shape, generator=source) + 0.5
        weights[key] = value
    ours.load_state_dict(weights)
    theirs.load_state_dict({key.removeprefix("net."): value for key, value in weights.items()})
    x = torch.randn(2, 3, 3, 48, 40, generator=source)
    with torch.no_grad():
        features, expected = ours(x), theirs(x).mean(dim=(2, 3, 4))
    assert features.std() > 0
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision_network_without_its_classifier(name):
    with torch.device("meta"):
        original = torchvision.models.get_model(name, weights=None)
    network = on_meta(name).eval()
    classifier = [m for m in original.modules() if isinstance(m, nn.Linear | nn.Conv3d)][-1]
    assert parameters(original) - parameters(network) == parameters(classifier)
    assert network.dim == (classifier.in_features if isinstance(classifier, nn.Linear) else classifier.in_channels)


def test_torchvision_network_returns_the_input_of_its_classifier():
    network = build_backbone("mc3_18").eval()
    original = torchvision.models.get_model("mc3_18", weights=None).eval()
    names = original.load_state_dict({k.removeprefix("net."): v for k, v in network.state_dict().items()}, strict=False)
    assert names.missing_keys == ["fc.weight", "fc.bias"] and not names.unexpected_keys
    x = torch.randn(2, 3, 2, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(original.fc(network(x)), original(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "millions", "dim"), [("resnet18", 11.18, 512)])
def test_2d_resnets_average_over_frames(name, millions, dim):
    network = build_backbone(name).eval()
    assert parameters(network) / 1e6 == pytest.approx(millions, abs=0.005) and network.dim == dim
    assert type(network.net) is torchvision.models.ResNet and isinstance(network.net.fc, nn.Identity)
    clips = torch.randn(2, 3, 4, 40, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        features = network(clips)
        frames = torch.stack([network.net(clips[:, :, t]) for t in range(4)])
        torch.testing.assert_close(features, frames.mean(dim=0), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(network(clips[:, :, 2:3]), frames[2], rtol=1e-5, atol=1e-6)
        assert not torch.allclose(frames[0], frames[1], rtol=1e-2)


@pytest.mark.parametrize("zero", [True, False])
def test_residual_branches_of_2d_resnets(zero):
    network, blocks = build_backbone("resnet18", zero_init=zero), 8
    weights = [m.weight for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(bool((weight == 0).all()) for weight in weights) == (blocks if zero else 0)
    assert sum(bool((weight == 1).all()) for weight in weights) == len(weights) - (blocks if zero else 0)


def test_unknown_name():
    with pytest.raises(
        ConfigError, match=r"no backbone 'resnet3d81' \(did you mean 'resnet3d18'\?\); there are: color_flow"
    ):
        build_backbone("resnet3d81")


def test_unknown_setting():
    with pytest.raises(ConfigError, match=r"unknown key \(did you mean 'width'\?\)"):
        build_backbone("resnet3d18", widht=8)
    with pytest.raises(ConfigError, match=r"backbone.width: unknown key; there are: name"):
        build_backbone("r3d_18", width=8)
    with pytest.raises(ConfigError, match=r"backbone.width: .*greater than or equal to 4, got 3"):
        build_backbone("resnet3d18", width=3)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last_3d])
def test_pooling_frame_by_frame_is_pooling(memory):
    ours, theirs = (pool((1, 3, 3), (1, 2, 2), (0, 1, 1)) for pool in (resnet3d._FramePool, nn.MaxPool3d))
    x = torch.randn(2, 5, 3, 9, 12, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=memory)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [pool(clips) for pool, clips in zip((ours, theirs), inputs, strict=True)]
    assert torch.equal(*outputs)
    for output in outputs:
        output.square().sum().backward()
    assert torch.equal(inputs[0].grad, inputs[1].grad)


@pytest.fixture
def networks():
    """The same weights, for frames and for their differences."""
    torch.manual_seed(0)
    frames = build_backbone("resnet3d18", width=4, zero_init=False).eval()
    differences = build_backbone("resnet3d18", width=4, zero_init=False, frame_differences=True).eval()
    differences.load_state_dict(frames.state_dict())
    return frames, differences


def test_frame_differences_are_those_of_consecutive_frames(networks):
    frames, differences = networks
    clips = torch.randn(2, 3, 5, 32, 32)
    expected = frames(clips[:, :, 1:] - clips[:, :, :-1])
    assert torch.equal(differences(clips), expected)
    assert differences.layer3(clips).shape[2] == 4
    assert not torch.allclose(frames(clips), expected)


def test_frame_differences_ignore_a_background(networks):
    _, differences = networks
    clips, background = torch.randn(2, 3, 5, 32, 32), torch.randn(2, 3, 1, 32, 32)
    torch.testing.assert_close(differences(clips + background), differences(clips), rtol=1e-4, atol=1e-5)


def test_frame_differences_of_one_frame_are_an_error(networks):
    with pytest.raises(ConfigError, match="frame_differences needs clips of at least 2 frames, got 1"):
        networks[1](torch.randn(1, 3, 1, 32, 32))


@pytest.mark.parametrize("name", [*BACKBONES])
def test_sizes_of_networks_have_a_limit(name):
    """A damaged file must not ask for a network that no machine can hold."""
    for key, field in BACKBONES[name].Config.model_fields.items():
        several = isinstance(field.default, tuple)
        if type(field.default) is not int and not several:
            continue
        for value in (2**31, 2**63, 2**70):
            with pytest.raises(ConfigError, match=f"{key}.*{value}"):
                build_backbone(name, **{key: [value] if several else value})
