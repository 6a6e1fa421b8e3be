"""Frame temporal invariance against Algorithm 1 of the paper, written as loops in float64."""

import math

import pytest
import torch
from torch import nn
from torchvision.ops import roi_align

from vidssl.base.errors import ConfigError
from vidssl.base.schedule import constant
from vidssl.base.types import Batch
from vidssl.methods import METHODS
from vidssl.models import Head, build_backbone

SIDE = 32
SETTINGS = {"projector": Head(layers=2, hidden=8, out=5, norm="none"), "queue": 7, "momentum": constant(0.9)}


def make(**settings):
    torch.manual_seed(0)
    config = METHODS["frame_invariance"].Config(**{**SETTINGS, **settings})
    method = METHODS["frame_invariance"](config, build_backbone("resnet3d18", width=4, zero_init=False))
    with torch.no_grad():
        for p in method.target.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    return method.double().train()


def batch(boxes=True, size=4):
    source = torch.Generator().manual_seed(3)
    views = tuple(torch.randn(size, 3, 1, SIDE, SIDE, generator=source).double() for _ in range(2))
    low = torch.rand(size, 2, 2, generator=source) * 12
    regions = torch.cat([low, low + 8 + torch.rand(size, 2, 2, generator=source) * 12], dim=2)
    return Batch(views, torch.zeros(size, dtype=torch.int64), torch.arange(size), boxes=regions if boxes else None)


def frames_and_patches(backbone, head, clips, boxes):
    """Lines 5 to 11 of Algorithm 1, in the order in which the batch norms see frames and patches."""
    maps = backbone.net.blocks[:-1]
    x = clips
    for block in maps:
        x = block(x)
    cut = roi_align(
        x[:, :, 0].float(),
        [box[None] for box in boxes.float()],
        x.shape[-2:],
        x.shape[-1] / SIDE,
        sampling_ratio=1,
        aligned=True,
    ).double()[:, :, None]
    rows = [head(backbone.net.blocks[-1](part).mean(dim=(2, 3, 4))) for part in (x, cut)]
    return [row / row.norm(dim=1, keepdim=True) for row in rows]


def contrast(query, key, queue, temperature):
    total = 0.0
    for q, k in zip(query, key, strict=True):
        positive = math.exp(float(q @ k) / temperature)
        negatives = sum(math.exp(float(q @ row) / temperature) for row in queue)
        total -= math.log(positive / (positive + negatives))
    return total / len(query)


@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_loss_is_that_of_algorithm_1(weight):
    method, data = make(patch_weight=weight), batch()
    with torch.no_grad():
        query = frames_and_patches(method.backbone, method.projector, data.views[0], data.boxes[:, 0])
        key = frames_and_patches(method.target[0], method.target[1], data.views[1], data.boxes[:, 1])
    of_frames, of_patches = (contrast(q, k, method.queue.keys, 0.2) for q, k in zip(query, key, strict=True))
    loss = make(patch_weight=weight)(data)["loss"]
    assert loss.item() == pytest.approx((1 - weight) * of_frames + weight * of_patches, rel=1e-5)
    assert abs(of_frames - of_patches) > 1e-3, "a test that cannot tell one from the other"


def test_keys_of_frames_and_of_patches_enter_the_queue():
    method, data = make(patch_weight=0.5), batch(size=3)
    with torch.no_grad():
        frames, patches = frames_and_patches(method.target[0], method.target[1], data.views[1], data.boxes[:, 1])
    method = make(patch_weight=0.5)
    before = method.queue.keys.clone()
    method(data)["loss"].backward()
    method.after_step(0.5)
    expected = torch.stack([frames, patches], dim=1).flatten(0, 1)  # one video after the other
    assert torch.allclose(method.queue.keys[:6], expected, atol=1e-5)
    assert torch.equal(method.queue.keys[6:], before[6:]) and int(method.queue.pointer) == 6


def test_without_patches_it_is_moco():
    data = batch()
    method = make()
    config = METHODS["moco"].Config(**SETTINGS, temperature=constant(0.2), key_views=(1,))
    moco = METHODS["moco"](config, build_backbone("resnet3d18", width=4, zero_init=False)).double()
    moco.load_state_dict(method.state_dict())
    ours, theirs = method(data), moco.train()(data)
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert torch.equal(ours[name], theirs[name])


def test_a_region_that_is_the_whole_view_is_the_view():
    """So a video without a visible track counts as a frame pair, and the fraction of the others is logged."""
    data = batch()
    data.boxes[1:] = torch.tensor([0.0, 0.0, SIDE, SIDE])
    for batch_norm in (m := make(patch_weight=0.5)).modules():
        if isinstance(batch_norm, nn.modules.batchnorm._BatchNorm):
            batch_norm.eval()
    whole, patch = m.encode_view(m.backbone, data.views[0], data.boxes[:, 0])
    assert torch.allclose(whole[1:], patch[1:]) and not torch.allclose(whole[0], patch[0])
    assert float(m(data)["tracked"]) == 0.25


def test_a_patch_weight_needs_tracks():
    with pytest.raises(ConfigError, match=r"patch_weight needs regions: set tracks\.folder"):
        make(patch_weight=0.5)(batch(boxes=False))
