"""Region features against integrals by loops and torchvision, and layer 4 of layer 3 against the network."""

import numpy as np
import pytest
import torch
from torchvision.ops import roi_align

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.models import BACKBONES, build_backbone
from vidssl.models.backbones import Backbone
from vidssl.models.layer_features import region_maps, region_means


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
    found = region_means(torch.from_numpy(maps), torch.from_numpy(boxes), 64, 110)
    expected = [mean_by_loops(maps, box, 64, 110) for box in boxes]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
    np.testing.assert_allclose(found[0], maps.mean(axis=(1, 2)), rtol=1e-10)


def test_region_maps_equal_torchvisions_roi_align():
    rng = generator(1)
    maps = torch.from_numpy(rng.normal(size=(2, 3, 2, 4, 4)))
    boxes = torch.tensor([[3.0, 10.0, 40.0, 63.0], [0.0, 0.0, 20.5, 31.0]], dtype=torch.float64)
    found = region_maps(maps, boxes, 64)
    assert found.shape == maps.shape
    for b in range(2):
        for t in range(2):
            (expected,) = roi_align(maps[b, :, t][None], [boxes[b : b + 1]], 4, 1 / 16, 1, aligned=True)
            torch.testing.assert_close(found[b, :, t], expected)


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
        found = region_maps(maps.bfloat16(), boxes, 448)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected.bfloat16(), rtol=0, atol=0)


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
