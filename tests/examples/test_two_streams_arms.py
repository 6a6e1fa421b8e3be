"""Additions to two streams: their losses against the formulas, and their configs."""

from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML

from vidssl.base.config import build
from vidssl.base.types import Batch
from vidssl.engine.run_config import load_run
from vidssl.methods import METHODS
from vidssl.models.backbones import build_backbone

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "two_streams"
HEAD = {"layers": 2, "hidden": 12, "out": 6, "norm": "none"}


@pytest.fixture(scope="module")
def arms(import_from):
    return import_from(FOLDER, "arms")


def built(name, **more):
    network = build_backbone("resnet3d18", width=4, zero_init=False)
    config = METHODS[name].Config(projector=HEAD, queue=8, momentum=0.9, temperature=0.2, key_views=(0, 1), **more)
    method = METHODS[name](config, network)
    method.allocate(20)
    return method.train()


def batch(views=2, size=5):
    source = torch.Generator().manual_seed(0)
    clips = tuple(torch.randn(size, 3, 4, 16, 16, generator=source) for _ in range(views))
    return Batch(clips, torch.zeros(size, dtype=torch.int64), torch.arange(size))


def test_nce_with_negatives_of_each_row(arms):
    torch.manual_seed(0)
    query, key, queue, own = (torch.randn(shape) for shape in ((3, 4), (3, 4), (7, 4), (3, 2, 4)))
    total = 0.0
    for n in range(3):
        positive = (query[n] @ key[n] / 0.3).exp()
        others = (query[n] @ queue.T / 0.3).exp().sum() + (own[n] @ query[n] / 0.3).exp().sum()
        total -= (positive / (positive + others)).log() / 3
    torch.testing.assert_close(arms.nce(query, key, queue, own, temperature=0.3), total)


@pytest.mark.parametrize("name", ["shuffled_negatives", "distant_negatives", "order_pretext"])
def test_methods_train(arms, name):
    torch.manual_seed(1)
    method = built(name)
    scalars = method(batch(3 if name == "distant_negatives" else 2))
    scalars["loss"].backward()
    assert torch.isfinite(scalars["loss"]) and method.backbone.net.blocks[0].conv.weight.grad.any()


def test_cross_streams_weigh_both_comparisons(arms):
    streams = {name: {"name": "resnet3d18", "width": 4, "zero_init": False} for name in ("rgb", "differences")}
    inner = {"name": "frame_invariance", "projector": HEAD, "queue": 8, "momentum": 0.9, "key_views": [0, 1]}
    torch.manual_seed(0)
    method = METHODS["cross_streams"](
        METHODS["cross_streams"].Config(method=inner, cross_weight=0.25), build_backbone("two_streams", streams=streams)
    )
    method.allocate(20)
    actual = method.train()(batch())
    own = actual["rgb.loss"] + actual["differences.loss"]
    torch.testing.assert_close(actual["loss"], 0.75 * own + 0.5 * actual["cross"])
    kept = [part.branches["kept"].encoded for part in method.parts]
    tau = method.parts[0].config.temperature.at(0.0)
    expected = torch.stack(
        [
            arms.nce(kept[n].queries[v], kept[1 - n].keys[1 - v], method.parts[1 - n].queue.keys, temperature=tau)
            for n in (0, 1)
            for v in (0, 1)
        ]
    ).mean()
    torch.testing.assert_close(actual["cross"], expected)


def test_clips_of_other_times_are_those_of_other_videos(arms):
    torch.manual_seed(0)
    network = build_backbone("resnet3d18", width=4, zero_init=False)
    method = arms.OtherTimes(arms.OtherTimes.Config(projector=HEAD, temperature=0.2), network).eval()
    one = batch(size=3)
    embedding, group = method.embed(one), method.group(one)
    back = Batch(tuple(view.flip(2) for view in one.views), one.label, one.index)
    torch.testing.assert_close(embedding[3:], method.embed(back)[:3])
    assert group.tolist() == [0, 1, 2, -1, -2, -3]
    rows, own = embedding.flatten(0, 1), group.repeat_interleave(2)
    losses = []
    for n in range(12):
        others = [m for m in range(12) if m != n]
        positive = next(m for m in others if own[m] == own[n])
        losses.append(-torch.log_softmax(rows[n] @ rows[others].T / 0.2, dim=0)[others.index(positive)])
    torch.testing.assert_close(method.train(False)(one)["loss"], torch.stack(losses).mean())


def test_far_differences_are_those_of_frames_some_apart(arms):
    torch.manual_seed(0)
    far = build_backbone("far_differences", width=4, zero_init=False, distance=2).eval()
    near = build_backbone("resnet3d18", width=4, zero_init=False, frame_differences=True).eval()
    near.load_state_dict(far.state_dict())
    clips = torch.randn(2, 3, 7, 16, 16)
    moved = torch.cat([torch.zeros(2, 3, 1, 16, 16), (clips[:, :, 2:] - clips[:, :, :-2]).cumsum(2)], dim=2)
    torch.testing.assert_close(far(clips), near(moved), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["study", "motion", "finetuning"])
def test_the_studies_can_be_run(arms, import_from, name):
    import_from(FOLDER, "finetuning")
    study = YAML(typ="safe").load(FOLDER / f"{name}.yaml")
    for settings in study["runs"].values():
        run = load_run(ROOT / study["config"], settings, split=1 if name == "finetuning" else None)
        assert build(METHODS, run.method, build_backbone(**run.backbone.model_dump()))
