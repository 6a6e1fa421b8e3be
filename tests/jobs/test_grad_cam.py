"""Grad-CAM against formulas, finite differences, and the sanity checks that a map must pass."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.jobs.grad_cam import (
    class_cam,
    coarse,
    grad_cam,
    mass_inside,
    randomized,
    rank_correlation,
    similarity_cam,
    upsampled,
)
from vidssl.models.backbones import Backbone, build_backbone
from vidssl.models.layer_features import LayerFeatures

BIG = pytest.mark.long
KINDS = {"resnet3d18": {"width": 8}, "resnet18": {}, "r3d_18": {}}


def clips(count=2, frames=4, size=32):
    return torch.from_numpy(generator(0).normal(size=(count, 3, frames, size, size))).float()


def network(name, **settings):
    torch.manual_seed(0)
    return build_backbone(name, **(settings or KINDS[name])).eval()


@pytest.mark.parametrize("name", KINDS)
def test_before_pooling_it_is_cam(name):
    """Zhou et al., 2016: where pooling and a linear layer follow, the weights are those of the class."""
    backbone, x = network(name), clips(size=64)
    head = nn.Linear(backbone.dim, 5)
    with torch.no_grad():
        (maps,) = backbone.features(x, ("layer4",))
    actual, classes, probability = class_cam(backbone, x, "layer4", head)
    logits = head(maps.mean(dim=(2, 3, 4)))
    assert classes.tolist() == logits.argmax(dim=1).tolist()
    assert torch.allclose(probability, logits.softmax(dim=1).max(dim=1).values, atol=1e-5)
    positions = maps[0, 0].numel()
    for n, label in enumerate(classes.tolist()):
        cam = sum(head.weight[label, c] * maps[n, c] for c in range(maps.shape[1])) / positions
        assert torch.allclose(actual[n], cam.clamp(min=0).detach(), atol=1e-6) and actual[n].max() > 0
    assert maps.shape[2] == (1 if name == "r3d_18" else 4)  # the slow path and 2D networks keep the frames
    chosen = torch.tensor([3, 1])
    assert class_cam(backbone, x, "layer4", head, chosen)[1] is chosen


class _Tiny(Backbone):
    """Two convolutions in float64, the second one after the layer that is explained."""

    dim, feature_layers = 4, ("first", "second")

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv3d(3, 3, 3, padding=1), nn.Conv3d(3, 4, 2)
        self.double()

    def after(self, maps):
        return self.second(maps.tanh()).square().mean(dim=(2, 3, 4))

    def forward(self, x):
        return self.after(self.first(x))


def test_the_similarity_by_finite_differences():
    torch.manual_seed(1)
    tiny, x = _Tiny(), clips(count=2, frames=3, size=4).double()
    with torch.no_grad():
        maps = tiny.first(x)
        fixed = [tiny.after(maps)[n].numpy() for n in (0, 1)]

        def cosine(own, n):
            a, b = tiny.after(own[None])[0].numpy(), fixed[1 - n]
            return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

        expected = []
        for n in (0, 1):
            slopes = torch.zeros_like(maps[n])
            for place in np.ndindex(*maps[n].shape):
                up, down = maps[n].clone(), maps[n].clone()
                up[place] += 1e-5
                down[place] -= 1e-5
                slopes[place] = (cosine(up, n) - cosine(down, n)) / 2e-5
            expected.append((slopes.mean(dim=(1, 2, 3), keepdim=True) * maps[n]).sum(dim=0).clamp(min=0))
        plain = cosine(maps[0], 0)
    mine, theirs, similarity = similarity_cam(tiny, x[:1], x[1:], "first")
    assert torch.allclose(mine[0], expected[0], rtol=1e-5, atol=1e-12) and mine.max() > 0
    assert torch.allclose(theirs[0], expected[1], rtol=1e-5, atol=1e-12) and theirs.max() > 0
    assert similarity.item() == pytest.approx(plain, abs=1e-12)


def test_what_a_channel_reads_is_where_the_map_is():
    """One channel sees red and the score reads it: the map is the red square, in its frames."""
    tiny = _Tiny()
    with torch.no_grad():
        tiny.first.weight.zero_()
        tiny.first.weight[0, 0, 1, 1, 1] = 1.0
        tiny.first.bias.zero_()
    x = torch.zeros(1, 3, 4, 6, 6, dtype=torch.float64)
    x[0, 0, 2:, 1:3, 4:] = 1.0
    x[0, 1, :2, 4:] = 1.0  # green, which nothing reads
    with torch.no_grad():
        tiny.second.weight.fill_(0.1)
        tiny.second.bias.zero_()
    actual = grad_cam(tiny, x, "first", lambda h: h[:, 0])
    assert torch.equal(actual.maps[0] > 0, x[0, 0] > 0)


@pytest.mark.parametrize(("name", "layer"), [("resnet3d18", "stem"), ("resnet18", "layer3"), ("r3d_18", "layer3")])
def test_clips_do_not_depend_on_one_another_and_the_network_stays(name, layer):
    backbone, x = network(name), clips()
    backbone.requires_grad_(False).train()  # as a linear probe has it
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    together = grad_cam(backbone, x, layer, lambda h: h.square().sum(dim=1))
    alone = grad_cam(backbone, x[1:], layer, lambda h: h.square().sum(dim=1))
    assert torch.allclose(together.maps[1], alone.maps[0], atol=1e-4, rtol=1e-3)
    assert backbone.training and not backbone.layer_module(layer)._forward_hooks
    assert all(torch.equal(value, before[key]) for key, value in backbone.state_dict().items())
    assert together.maps.shape[1:] == backbone.eval().features(x, (layer,))[0].shape[2:]


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        pytest.param("s3d", (2, 7, 7), marks=BIG),
        ("swin3d_t", (4, 2, 2)),
        pytest.param("mvit_v2_s", (8, 7, 7), marks=BIG),
    ],
)
def test_networks_without_layers(name, cells):
    sizes = {"s3d": (16, 224), "swin3d_t": (8, 64), "mvit_v2_s": (16, 224)}
    backbone, x = build_backbone(name).eval(), clips(1, *sizes[name])
    actual = grad_cam(backbone, x, backbone.last_maps, lambda h: h.square().sum(dim=1))
    assert tuple(actual.maps.shape[1:]) == cells and actual.maps.max() > 0
    assert torch.allclose(actual.features, backbone(x), atol=1e-4)


def test_layers_that_cannot_be_explained():
    backbone, x = network("resnet3d18"), clips()
    with pytest.raises(ConfigError, match=r"no module 'layer9': name a layer.*stem, layer1"):
        grad_cam(backbone, x, "layer9", lambda h: h[:, 0])
    with pytest.raises(ConfigError, match=r"computed 0 times"):
        grad_cam(LayerFeatures(backbone, "layer2"), x, "layer3", lambda h: h[:, 0])
    with pytest.raises(ConfigError, match=r"do not depend on layer layer2"):
        grad_cam(backbone, x, "layer2", lambda h: torch.ones(2, requires_grad=True))
    probe = LayerFeatures(backbone, "layer2")
    assert probe.last_maps == "layer2" and grad_cam(probe, x, "layer2", lambda h: h[:, 0]).maps.shape == (2, 4, 4, 4)


def test_resizing_and_mass():
    rng = generator(1)
    maps = rng.random((2, 3, 4, 4)).astype(np.float32)
    same = upsampled(torch.from_numpy(maps), (3, 4, 4))
    assert np.allclose(same, maps) and upsampled(torch.ones(1, 2, 2, 2), (5, 7, 9)).eq(1).all()
    inside = np.zeros((3, 4, 4), np.float32)
    inside[:2, 1:3, :2] = 1  # no box in the last frame, which does not count
    mass = sum(maps[0, t, y, x] for t in (0, 1) for y in (1, 2) for x in (0, 1)) / maps[0, :2].sum()
    assert mass_inside(maps[0], inside) == pytest.approx((mass, 8 / 32), rel=1e-5)
    assert np.isnan(mass_inside(0 * maps[0], inside)[0]) and np.isnan(mass_inside(maps[0], 0 * inside)).all()
    half = coarse(np.repeat(np.arange(2, dtype=np.float32), 8).reshape(1, 4, 4), (1, 2, 2))
    assert half[0, :, 0].tolist() == [0, 0.25, 0.75, 1]  # linear between the centres of the cells


def test_rank_correlation_is_that_of_scipy():
    rng = generator(2)
    a, b = (rng.normal(size=(4, 3, 5, 5)).astype(np.float32).clip(0) for _ in range(2))  # many ties at 0
    b[3] = 1.0
    expected = [spearmanr(a[n].ravel(), b[n].ravel()).statistic for n in range(3)]
    assert rank_correlation(a, b)[:3] == pytest.approx(expected, abs=1e-12)
    assert rank_correlation(a, b)[3] == 0 and rank_correlation(a, a) == pytest.approx(np.ones(4))


# The sanity check -------------------------------------------------------------------------------------------


def squares(count, key):
    """Clips with a bright or a dark square that jumps, on noise: two classes."""
    rng = generator(3, key)
    x = rng.normal(scale=0.3, size=(count, 3, 2, 32, 32)).astype(np.float32)
    label, inside = rng.integers(0, 2, count), np.zeros((count, 2, 32, 32), np.float32)
    for n in range(count):
        for t, (top, left) in enumerate(rng.integers(0, 24, (2, 2))):
            x[n, :, t, top : top + 8, left : left + 8] += 2.0 if label[n] else -2.0
            inside[n, t, top : top + 8, left : left + 8] = 1
    return torch.from_numpy(x), torch.from_numpy(label), inside


@pytest.fixture(scope="module")
def learned():
    """A network that separates bright from dark squares, as it was before and after."""
    backbone = network("resnet3d18", width=8, zero_init=False)
    head = nn.Linear(backbone.dim, 2)
    untrained = copy.deepcopy(backbone)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=2e-3)
    backbone.train()
    for step in range(80):
        x, label, _ = squares(16, step)
        loss = nn.functional.cross_entropy(head(backbone(x)), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1
    return backbone.eval(), head, untrained.eval()


def test_the_mass_lies_on_what_decides(learned):
    backbone, head, untrained = learned
    x, label, inside = squares(24, 1000)
    masses = []
    for one in (untrained, backbone):
        maps = upsampled(class_cam(one, x, "layer2", head, label)[0], (2, 32, 32)).numpy()
        masses.append(np.nanmean([mass_inside(*pair)[0] for pair in zip(maps, inside, strict=True)]))
    assert masses[1] > 1.6 * inside.mean() and masses[1] > 1.6 * masses[0]  # coarse maps: 0.37 at most, area 0.06


def test_cascading_randomisation_destroys_the_map(learned):
    backbone, head, _ = learned
    x, label, _ = squares(24, 1001)
    torch.manual_seed(7)
    fresh = build_backbone("resnet3d18", width=8, zero_init=False)
    changed, correlation = copy.deepcopy(backbone), {}
    original = class_cam(backbone, x, "layer2", head, label)[0].numpy()
    for stage in randomized(changed, fresh):
        maps = class_cam(changed, x, "layer2", head, label)[0].numpy()
        correlation[stage] = rank_correlation(original, maps).mean()
    assert [*correlation] == ["layer4", "layer3", "layer2", "layer1", "stem"]
    shown = original.reshape(24, -1).any(axis=1)  # a map without heat has no order
    again = class_cam(backbone, x, "layer2", head, label)[0].numpy()
    assert shown.sum() > 16 and rank_correlation(original[shown], again[shown]).min() > 0.999
    assert abs(correlation["stem"]) < 0.4 and correlation["layer2"] < 0.5
    for name, weight in fresh.state_dict().items():
        assert torch.equal(weight, changed.state_dict()[name])
