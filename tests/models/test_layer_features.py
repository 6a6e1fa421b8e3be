"""Maps of layers against torchvision's feature extractor and hooks, and their pooled features."""

import pytest
import torch
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor

from vidssl.base.errors import ConfigError
from vidssl.models import build_backbone
from vidssl.models.layer_features import LayerFeatures

LAYERS = ("stem", "layer1", "layer2", "layer3", "layer4")


def clips(frames=4, size=32):
    return torch.randn(2, 3, frames, size, size, generator=torch.Generator().manual_seed(0))


def small(name, **settings):
    torch.manual_seed(0)
    return build_backbone(name, **settings).eval()


@pytest.mark.parametrize("name", ["resnet18", "resnext50_32x4d"])
@torch.no_grad()
def test_maps_of_2d_networks_equal_those_of_torchvision(name):
    network, x = small(name), clips()
    nodes = {"maxpool": "stem", **{layer: layer for layer in LAYERS[1:]}}
    expected = create_feature_extractor(network.net, return_nodes=nodes)(x.transpose(1, 2).flatten(0, 1))
    for layer, maps in zip(LAYERS, network.features(x, LAYERS), strict=True):
        torch.testing.assert_close(maps, expected[layer].unflatten(0, (2, 4)).transpose(1, 2))


@pytest.mark.parametrize(
    ("name", "path"),
    [("resnet3d18", "net.blocks.{}"), ("r3d_18", "net.{}"), ("mc3_18", "net.{}"), ("r2plus1d_18", "net.{}")],
)
@torch.no_grad()
def test_maps_of_3d_networks_are_the_outputs_of_their_stages(name, path):
    network, x = small(name), clips()
    seen = {}
    for n, layer in enumerate(LAYERS):
        stage = network.get_submodule(path.format(n if name == "resnet3d18" else layer))
        stage.register_forward_hook(lambda _, inputs, output, layer=layer: seen.update({layer: output}))
    features = network(x)
    maps = network.features(x, ("layer4", "layer2"))
    torch.testing.assert_close(maps[0], seen["layer4"])
    torch.testing.assert_close(maps[1], seen["layer2"])
    torch.testing.assert_close(maps[0].mean(dim=(2, 3, 4)), features)


@torch.no_grad()
def test_stages_after_the_last_layer_are_not_computed():
    network, x = small("resnet3d18", width=4), clips()
    network.net.blocks[3] = nn.Identity()
    network.net.blocks[4] = None
    assert network.features(x, ("layer2",))[0].shape == (2, 8, 4, 4, 4)


@pytest.mark.parametrize("grid", [1, 2])
@torch.no_grad()
def test_pooled_maps_are_means_of_cells(grid):
    network, x = small("resnet3d18", width=4), clips()
    features = LayerFeatures(network, "layer2", grid=grid, frames=2)
    (maps,) = network.features(x, ("layer2",))  # (2, 8, 4, 4, 4)
    side = 4 // grid
    cells = [
        maps[:, :, 2 * t : 2 * t + 2, side * i : side * (i + 1), side * j : side * (j + 1)].mean(dim=(2, 3, 4))
        for t in range(2)
        for i in range(grid)
        for j in range(grid)
    ]
    assert features.dim == 8 * 2 * grid**2
    torch.testing.assert_close(features(x), torch.stack(cells, dim=2).flatten(1))


def test_a_layer_that_is_not_there():
    with pytest.raises(ConfigError, match="ResNet3D18 has no layer 'layer5' with feature maps: it has stem, layer1"):
        LayerFeatures(build_backbone("resnet3d18", width=4), "layer5")
    with torch.device("meta"):
        transformer = build_backbone("mvit_v2_s")
    with pytest.raises(ConfigError, match="has no layer 'layer1' with feature maps: use resnet18"):
        transformer.features(clips(), ("layer1",))
