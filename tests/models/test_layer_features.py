"""Maps of layers against torchvision's feature extractor and hooks, and their pooled features."""

import numpy as np
import pytest
import torch
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.ops import roi_align

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.models import BACKBONES, build_backbone
from vidssl.models.backbones import Backbone
from vidssl.models.layer_features import LayerFeatures, region_maps, region_means

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


# Region features against integrals by loops and torchvision, and layer 4 of layer 3 against the network -------


def mean_by_loops(maps, box, height, width):
    """The integral over a box of maps that are constant within each cell, over its area."""
    channels, rows, columns = maps.shape
    total, area = np.zeros(channels), 0.0
    for r in range(rows):
        for c in range(columns):
            high = min(box[3], (r + 1) * height / rows) - max(box[1], r * height / rows)
            wide = min(box[2], (c + 1) * width / columns) - max(box[0], c * width / columns)
            if high > 0 and wide > 0:
                total += maps[:, r, c] * high * wide
                area += high * wide
    return total / area


def test_region_means_are_integrals():
    rng = generator(0)
    maps = rng.normal(size=(5, 4, 7))
    corners = rng.uniform(0, [90, 60], size=(20, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(0.5, 40, size=(20, 2))], axis=1)
    boxes = np.clip(boxes, 0, [110, 64, 110, 64])
    boxes[0] = [0, 0, 110, 64]
    actual = region_means(torch.from_numpy(maps), torch.from_numpy(boxes), 64, 110)
    expected = [mean_by_loops(maps, box, 64, 110) for box in boxes]
    np.testing.assert_allclose(actual, expected, rtol=1e-10)
    np.testing.assert_allclose(actual[0], maps.mean(axis=(1, 2)), rtol=1e-10)


def test_region_maps_equal_torchvisions_roi_align():
    rng = generator(1)
    maps = torch.from_numpy(rng.normal(size=(2, 3, 2, 4, 4)))
    boxes = torch.tensor([[3.0, 10.0, 40.0, 63.0], [0.0, 0.0, 20.5, 31.0]], dtype=torch.float64)
    actual = region_maps(maps, boxes, 64)
    assert actual.shape == maps.shape
    for b in range(2):
        for t in range(2):
            (expected,) = roi_align(maps[b, :, t][None], [boxes[b : b + 1]], 4, 1 / 16, 1, aligned=True)
            torch.testing.assert_close(actual[b, :, t], expected)


def test_region_map_of_the_whole_clip_is_the_map():
    maps = torch.from_numpy(generator(2).normal(size=(2, 3, 2, 7, 7)))
    torch.testing.assert_close(region_maps(maps, torch.tensor([[0, 0, 112, 112]] * 2), 112), maps)


@pytest.mark.parametrize("autocast", [False, True])
def test_in_half_precision_each_clip_keeps_its_region(autocast):
    """bfloat16 has no number between 256 and 258: neither clips nor pixels may be counted in it."""
    numbers = torch.arange(300.0) % 7
    maps = numbers.view(300, 1, 1, 1, 1) * torch.arange(16.0).view(4, 4)  # exact in bfloat16
    boxes = torch.tensor([[300.5, 261.0, 391.5, 447.0]]).repeat(300, 1)
    expected = region_maps(maps, boxes, 448)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual = region_maps(maps.bfloat16(), boxes, 448)
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, expected.bfloat16(), rtol=0, atol=0)


def test_gradients_reach_the_maps_and_nothing_outside_of_the_box():
    maps = torch.zeros(1, 1, 1, 8, 8, requires_grad=True)
    region_maps(maps, torch.tensor([[0.0, 0.0, 24.0, 24.0]]), 64).sum().backward()
    assert maps.grad[..., :3, :3].min() > 0 and maps.grad[..., 5:, 5:].abs().max() == 0


@pytest.mark.parametrize(
    ("name", "settings", "side"),
    [
        ("resnet18", {}, 64),
        ("resnet18", {"stem": "cifar"}, 32),
        ("resnet3d18", {"width": 8}, 64),
        ("resnet3d50", {"width": 8}, 64),
    ],
)
def test_the_network_is_layer_4_of_layer_3(name, settings, side):
    torch.manual_seed(0)
    backbone = build_backbone(name, **settings).eval()
    x = torch.randn(2, 3, 2, side, side)
    with torch.no_grad():
        maps = backbone.layer3(x)
        cells = 8 if "stem" in settings else 4
        assert maps.shape[0] == 2 and maps.shape[2:] == (2, cells, cells)
        features = backbone.layer4(maps)
        torch.testing.assert_close(features, backbone(x), rtol=0, atol=0)
        if "3d" not in name:  # torchvision's own way through the network
            alone = backbone.net(x.transpose(1, 2).flatten(0, 1)).unflatten(0, (2, 2)).mean(dim=1)
        else:
            alone = backbone.net(x).mean(dim=(2, 3, 4))
        torch.testing.assert_close(features, alone)
    backbone.check_regions()


def test_other_networks_have_no_third_stage():
    other = next(name for name in BACKBONES if not name.startswith("resnet"))
    with pytest.raises(ConfigError, match="no layer 3, which regions need"):
        build_backbone(other).check_regions()
    with pytest.raises(ConfigError, match="use resnet18, resnet50, resnet3d18 or resnet3d50"):
        build_backbone(other).layer3(torch.zeros(1, 3, 2, 32, 32))
    with pytest.raises(ConfigError, match="Backbone has no layer 3"):
        Backbone().check_regions()
