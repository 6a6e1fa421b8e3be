"""Additions to finetuning: a learning rate for each layer, a classifier that starts as a probe, batch norms."""

from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch.optim import AdamW

from vidssl.base.types import Batch
from vidssl.data.video_list import read_list
from vidssl.models.backbones import build_backbone

FOLDER = Path(__file__).parents[2] / "examples" / "two_streams"


@pytest.fixture(scope="module")
def arms(import_from):
    return import_from(FOLDER, "finetuning")


def built(arms, **settings):
    torch.manual_seed(0)
    network = build_backbone("resnet3d18", width=4, zero_init=False)
    return arms.Finetuned(arms.Finetuned.Config(classes=3, **settings), network).train()


def batch(seed=0, size=6):
    source = torch.Generator().manual_seed(seed)
    return Batch((torch.randn(size, 3, 4, 16, 16, generator=source),), torch.arange(size) % 3, torch.arange(size))


def step(method, optimizer, n=0):
    optimizer.zero_grad()
    method(batch(n))["loss"].backward()
    optimizer.step()
    method.after_step((n + 1) / 10)


def test_layers_learn_as_with_learning_rates_of_their_own(arms):
    method, other = built(arms, layer_decay=0.5), built(arms)
    optimizer = AdamW(method.parameters(), lr=1e-2, weight_decay=0.1)
    layers = ("stem", "layer1", "layer2", "layer3", "layer4")
    groups = [
        {"params": [*other.backbone.layer_module(layer).parameters()], "lr": 1e-2 * 0.5 ** (4 - n)}
        for n, layer in enumerate(layers)
    ]
    expected = AdamW([*groups, {"params": [*other.head.parameters()], "lr": 1e-2}], lr=1e-2, weight_decay=0.1)
    for n in range(3):
        step(method, optimizer, n)
        step(other, expected, n)
    for (name, p), q in zip(method.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, msg=name)


def test_the_classifier_starts_as_the_probe(arms, digits):
    file = digits / "motion" / "train.csv"
    labels = torch.from_numpy(read_list(file).labels)
    classes = int(labels.max()) + 1
    rows = torch.arange(len(labels)).flip(0)[1:]  # in any order, and one is missing
    network = build_backbone("resnet3d18", width=4)
    method = arms.Finetuned(arms.Finetuned.Config(classes=classes, probe=file), network)
    source = torch.Generator().manual_seed(0)
    x = torch.randn(len(rows), network.dim, generator=source) * 3 + torch.nn.functional.one_hot(
        labels[rows] % network.dim, network.dim
    )
    method.begin(lambda net: (rows, x))
    scaled = ((x - x.mean(0)) / x.std(0, correction=0)).double().numpy()
    probabilities = [
        LogisticRegression(C=cost, max_iter=5000).fit(scaled, labels[rows]).predict_proba(scaled) for cost in arms.COSTS
    ]
    actual = method.classify(x).detach()
    assert any(torch.allclose(actual, torch.from_numpy(each).float(), atol=1e-4) for each in probabilities)


def test_averaged_norms_have_the_mean_of_the_last_batches(arms):
    method = built(arms, norms="averaged")
    optimizer = AdamW(method.parameters(), lr=0.0)
    for n in range(8):
        step(method, optimizer, n)
    method.after_step(0.95)
    for n in (20, 21, 22):
        method(batch(n))
    norm = method.backbone.net.blocks[0].norm
    maps = [method.backbone.net.blocks[0].conv(batch(n).views[0]) for n in (20, 21, 22)]
    torch.testing.assert_close(norm.running_mean, torch.stack([m.mean((0, 2, 3, 4)) for m in maps]).mean(0))
    assert norm.num_batches_tracked == 3
