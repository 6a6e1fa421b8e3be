"""PIRL's branch: patches against loops over pixels that know where they come from, and its weight in the loss."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from torch import nn
from torch.nn.functional import normalize

from vidssl import losses
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.schedule import constant
from vidssl.base.types import Batch
from vidssl.methods import METHODS, Method
from vidssl.methods.jigsaw_branch import Jigsaw, JigsawBranch, cut
from vidssl.models import Head
from vidssl.models.backbones import Backbone

HEAD = Head(layers=2, hidden=12, out=5, norm="none")
RECORDS = 20


def sources(count, seed=0):
    return [generator(seed, n) for n in range(count)]


def numbered(batch, frames, side):
    """Clips (B, 3, T, S, S) each of whose numbers is its place, as they lie in memory on a device: channels last."""
    shape = (batch, 3, frames, side, side)
    clips = torch.arange(float(np.prod(shape)), dtype=torch.float64).view(shape)
    return clips.contiguous(memory_format=torch.channels_last_3d)


@pytest.mark.parametrize(("side", "grid", "patch"), [(32, 3, 8), (12, 4, 2), (3, 3, 1), (255, 3, 64)])
def test_each_patch_lies_in_its_cell_and_each_cell_has_one(side, grid, patch):
    clips = numbered(2, 2, side)
    patches = cut(clips, grid, sources(2))
    assert patches.shape == (2, grid**2, 3, 2, patch, patch)
    cell = side // grid
    for b in range(2):
        cells = []
        for n in range(grid**2):
            first = int(patches[b, n, 0, 0, 0, 0])
            top, left = np.unravel_index(first, clips.shape)[3:]
            expected = clips[b, :, :, top : top + patch, left : left + patch]  # all channels, all frames
            assert torch.equal(patches[b, n], expected)
            cells.append((top // cell, left // cell))
            for start in (top, left):
                assert start // cell == (start + patch - 1) // cell < grid
        assert sorted(cells) == [(row, column) for row in range(grid) for column in range(grid)]


def test_orders_and_places_are_equally_likely():
    clips = numbered(1, 1, 16).expand(600, -1, -1, -1, -1)  # cells of 8, patches of 6: places 0, 1, 2
    first = cut(clips, 2, sources(600))[:, :, 0, 0, 0, 0].long().numpy()
    top, left = first // 16, first % 16
    cells = top // 8 * 2 + left // 8
    orders, counts = np.unique(cells, axis=0, return_counts=True)
    assert len(orders) == 24 and chisquare(counts).pvalue > 1e-3
    for place in (top % 8, left % 8):
        counts = np.bincount(place.ravel())
        assert len(counts) == 3 and chisquare(counts).pvalue > 1e-3
    assert abs(np.corrcoef((top % 8).ravel(), (left % 8).ravel())[0, 1]) < 0.1


@pytest.mark.parametrize(("side", "grid"), [(2, 3), (7, 8)])
def test_a_view_that_is_too_small(side, grid):
    with pytest.raises(ConfigError, match=rf"^a view of {side} pixels is too small for jigsaw.grid {grid}: lower it$"):
        cut(numbered(1, 1, side), grid, sources(1))


class Tiny(Backbone):
    """Mean and first pixel of each frame through a linear layer: no norm, so any share of a batch gives the same."""

    dim = 8

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2 * 3 * 2, 8)

    def forward(self, x):
        return self.layer(torch.cat([x.mean(dim=(3, 4)), x[..., 0, 0]], dim=1).flatten(1)).tanh()


def branch(seed=0, grid=2, head="linear"):
    torch.manual_seed(seed)
    return JigsawBranch(Jigsaw(grid=grid, head=head), 8, 5).double()


def clips_of(index, view=0, side=8):
    """Clips that are a function of record and view."""
    sources = [torch.Generator().manual_seed(10 * n + view) for n in index]
    return torch.stack([torch.randn(3, 2, side, side, generator=source, dtype=torch.float64) for source in sources])


def embed(jigsaw, backbone, clips, index, step, view, seed=0):
    host = Method(Method.Config(), backbone)
    host.step, host.seed = step, seed
    views = (clips,) * (view + 1)
    return jigsaw.embed(host, Batch(views, torch.zeros_like(index), index), view)


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_the_branch_joins_the_vectors_of_all_patches_in_their_order(head):
    """The mlp is InfoMin's: linear, ReLU, linear, as wide as the backbone, then one linear layer over all patches."""
    torch.manual_seed(1)
    backbone, jigsaw = Tiny().double(), branch(grid=3, head=head)
    clips, index = clips_of([4, 9], side=12), torch.tensor([4, 9])
    embedded = embed(jigsaw, backbone, clips, index, 6, 1)
    patches = cut(clips, 3, [generator(0, 6, record, 1, 2) for record in (4, 9)])
    last = jigsaw.patch if head == "linear" else jigsaw.patch[2]
    for b in range(2):
        joined = []
        for n in range(9):
            h = backbone(patches[b, n][None])[0]
            if head == "mlp":
                h = (jigsaw.patch[0].weight @ h + jigsaw.patch[0].bias).clamp(min=0)
            joined.append(last.weight @ h + last.bias)
        expected = jigsaw.join.weight @ torch.cat(joined) + jigsaw.join.bias
        torch.testing.assert_close(embedded[b], normalize(expected, dim=0), rtol=1e-9, atol=1e-12)


def test_the_sizes_of_infomins_head():
    weights = {
        name: p for name, p in JigsawBranch(Jigsaw(head="mlp"), 2048, 128).named_parameters() if "weight" in name
    }
    expected = {"patch.0.weight": (2048, 2048), "patch.2.weight": (128, 2048), "join.weight": (128, 1152)}
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == expected


def test_draws_are_a_function_of_seed_step_record_and_view():
    torch.manual_seed(1)
    backbone, jigsaw = Tiny().double(), branch()
    index = torch.tensor([3, 8, 15, 1, 0, 19])
    clips = clips_of(index.tolist())
    expected = embed(jigsaw, backbone, clips, index, 4, 0)
    for size in (1, 2, 3):  # micro-batches, and shares of processes
        parts = [embed(jigsaw, backbone, c, i, 4, 0) for c, i in zip(clips.split(size), index.split(size), strict=True)]
        torch.testing.assert_close(torch.cat(parts), expected, rtol=1e-12, atol=1e-12)
    for other in (
        embed(jigsaw, backbone, clips, index, 5, 0),
        embed(jigsaw, backbone, clips, index, 4, 1),
        embed(jigsaw, backbone, clips, index + 1, 4, 0),
        embed(jigsaw, backbone, clips, index, 4, 0, seed=5),
    ):
        assert not torch.allclose(other, expected, atol=1e-3)


def make(name, weight, **settings):
    torch.manual_seed(0)
    of_method = {
        "moco": {"queue": 11, "momentum": constant(0.9)},
        "byol": {"predictor": HEAD, "momentum": constant(0.9)},
        "npid": {"negatives": 9},
    }[name]
    jigsaw = Jigsaw(grid=2, weight=weight, **settings)
    config = METHODS[name].Config(projector=HEAD, jigsaw=jigsaw, **of_method)
    method = METHODS[name](config, Tiny())
    method.allocate(RECORDS)
    return method.double().train()


def batch(index=(3, 11, 0, 7, 16), views=2):
    clips = tuple(clips_of(index, view) for view in range(views))
    return Batch(clips, torch.zeros(len(index), dtype=torch.int64), torch.tensor(index))


def compared(name, method, rows, key, picks):
    """The method's own loss of unit rows."""
    if name == "npid":
        bank = method.bank.rows
        parts = [losses.info_nce(rows[n : n + 1], key[n : n + 1], bank[picks[n]], 0.1) for n in range(len(rows))]
        return sum(parts) / len(parts)
    if name == "byol":
        return ((rows - key) ** 2).sum(dim=1).mean()
    return losses.info_nce(rows, key, method.queue.keys, 0.1)


@pytest.mark.parametrize(("name", "weight"), [("moco", 0.3), ("byol", 1.0), ("npid", 0.3), ("npid", 0.0)])
def test_the_branch_is_weighted_in_the_loss(name, weight):
    method, data = make(name, weight), batch()
    for _ in range(2):  # steps that the draws follow
        method(data)
        method.after_step(0.2)
    twin = copy.deepcopy(method)
    picks = None if name != "npid" else twin.draw(data.index)
    parts = []
    with torch.no_grad():
        predictor = getattr(twin, "predictor", nn.Identity())
        for view, clips in enumerate(data.views):
            whole = normalize(predictor(twin.projector(twin.backbone(clips))), dim=1)
            shuffled = twin.branches["jigsaw"].embed(twin, data, view)
            if name == "npid":
                key = twin.bank.rows[data.index]
            else:
                key = normalize(twin.target(data.views[1 - view]), dim=1)
            parts.append([compared(name, twin, rows, key, picks).item() for rows in (whole, shuffled)])
    whole, shuffled = np.mean(parts, axis=0)
    assert abs(whole - shuffled) > 1e-4
    assert method(data)["loss"].item() == pytest.approx((1 - weight) * whole + weight * shuffled, rel=1e-9)


@pytest.mark.parametrize(("name", "head"), [("moco", "linear"), ("npid", "mlp")])
def test_only_a_reserved_view_is_cut(name, head):
    """View 1 is there for the branch alone: neither query nor key, and compared with the keys of all others."""
    method, data = make(name, 0.3, head=head, view=1), batch(views=3)
    if name != "npid":
        method.config = method.config.model_copy(update={"key_views": (0, 2)})
    larger = tuple(clips_of(data.index.tolist(), 7, side=12) if n == 1 else x for n, x in enumerate(data.views))
    data = Batch(larger, data.label, data.index)
    twin = copy.deepcopy(method)
    picks = None if name != "npid" else twin.draw(data.index)
    with torch.no_grad():
        predictor = getattr(twin, "predictor", nn.Identity())
        puzzle = twin.branches["jigsaw"].embed(twin, data, 1)
        query = {n: normalize(predictor(twin.projector(twin.backbone(data.views[n]))), dim=1) for n in (0, 2)}
        if name == "npid":
            key = dict.fromkeys((0, 2), twin.bank.rows[data.index])
        else:
            key = {n: normalize(twin.target(data.views[2 - n]), dim=1) for n in (0, 2)}
        whole = np.mean([compared(name, twin, query[n], key[n], picks).item() for n in (0, 2)])
        cut_up = np.mean([compared(name, twin, puzzle, key[n], picks).item() for n in (0, 2)])
    assert method(data)["loss"].item() == pytest.approx(0.7 * whole + 0.3 * cut_up, rel=1e-9)


def test_a_reserved_view_that_does_not_exist():
    with pytest.raises(ConfigError, match=r"^jigsaw.view 3 does not fit 3 views: data.views needs a recipe"):
        make("moco", 0.5, view=3)(batch(views=3))
    with pytest.raises(ConfigError, match=r"^key_views \(0, 1\) do not fit the views \[0, 2\]"):
        make("moco", 0.5, view=1)(batch(views=3))  # a key view, which is not to be cut
