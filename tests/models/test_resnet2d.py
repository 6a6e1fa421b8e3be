"""The stem for small images: shapes and weights against torchvision's, layers 3 and 4, and checkpoints."""

import pytest
import torch
import torchvision
from torch import nn

from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.models import build_backbone
from vidssl.models.match_checkpoints import InitialWeights, load_initial


def theirs(name, seed=0):
    """torchvision's network with the stem that SimCLR describes for CIFAR, by hand, without a classifier."""
    torch.manual_seed(seed)
    network = torchvision.models.get_model(name, weights=None)
    first = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    parts = list(network.children())
    assert isinstance(parts[0], nn.Conv2d) and isinstance(parts[3], nn.MaxPool2d)
    return nn.Sequential(first, *parts[1:3], *parts[4:9], nn.Flatten()).eval()


@pytest.mark.parametrize(("name", "stated"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)])
def test_weights_equal_torchvisions_except_the_first_kernel(name, stated):
    """`stated` is what torchvision documents, with a classifier of 1,000 classes."""
    with torch.device("meta"):
        network = build_backbone(name, stem="cifar")
    counted = sum(p.numel() for p in network.parameters())
    assert counted == stated - 1000 * (network.dim + 1) - 3 * 64 * (7 * 7 - 3 * 3)


def test_the_default_stem_is_torchvisions():
    torch.manual_seed(0)
    usual = build_backbone("resnet18")
    torch.manual_seed(0)
    expected = torchvision.models.get_model("resnet18", weights=None).state_dict()
    assert all(torch.equal(weight, expected[name.removeprefix("net.")]) for name, weight in usual.state_dict().items())


def test_weights_of_another_project_fit_their_own_stem_only(tmp_path):
    network = theirs("resnet18", seed=3)
    names = torchvision.models.get_model("resnet18", weights=None).state_dict()
    state = dict(zip((n for n in names if not n.startswith("fc.")), network.state_dict().values(), strict=True))
    torch.save({"state_dict": {f"module.encoder.{n}": w for n, w in state.items()}}, tmp_path / "theirs.pth")
    file = InitialWeights(file=str(tmp_path / "theirs.pth"))
    ours = build_backbone("resnet18", stem="cifar").eval()
    load_initial(ours, file)
    clips = torch.randn(2, 3, 1, 32, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = network(clips[:, :, 0])
        torch.testing.assert_close(ours(clips), features, rtol=1e-5, atol=1e-6)
    assert features.std() > 0 and ours.dim == features.shape[-1]
    with pytest.raises(CheckpointError, match=r"119 of 120 weights fit \(net\.conv1\.weight"):
        load_initial(build_backbone("resnet18"), file)


def test_unknown_stem():
    with pytest.raises(ConfigError, match=r"backbone\.stem: .*'imagenet' or 'cifar', got \"cifr\""):
        build_backbone("resnet18", stem="cifr")
