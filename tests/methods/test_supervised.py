"""Supervised training: the loss, the frozen backbone, weights from a checkpoint, probabilities."""

import pytest
import torch
from torch.nn import functional
from torch.nn.functional import cross_entropy

from vidssl.base.errors import ConfigError
from vidssl.base.types import Batch
from vidssl.methods.supervised import Supervised
from vidssl.models import build_backbone
from vidssl.models.match_checkpoints import InitialWeights, load_initial
from vidssl.models.read_and_write_weights import CHECKPOINT_FORMAT


def make(seed=0, init=None, **settings):
    torch.manual_seed(seed)
    backbone = build_backbone("resnet3d18", width=4)
    if init is not None:
        load_initial(backbone, InitialWeights(file=init))
    return Supervised(Supervised.Config(**{"classes": 4, **settings}), backbone)


def batch(labels=(0, 1, 2, 3), views=1):
    source = torch.Generator().manual_seed(1)
    clips = tuple(torch.randn(len(labels), 3, 2, 16, 16, generator=source) for _ in range(views))
    return Batch(clips, torch.tensor(labels), torch.arange(len(labels)))


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of a backbone whose batch norms have seen something."""
    method = make(seed=9)
    method.train()(batch())
    path = tmp_path / "step-1.pt"
    config = {"backbone": {"name": "resnet3d18"}}
    torch.save({"format": CHECKPOINT_FORMAT, "step": 1, "config": config, "method": method.state_dict()}, path)
    return path, method.backbone.state_dict()


def test_loss_and_accuracy_over_all_views():
    method, data = make().eval(), batch((0, 1, 1, 3), views=2)
    scalars = method(data)
    logits = [method.head(method.backbone(view)) for view in data.views]
    losses = [cross_entropy(x, data.label) for x in logits]
    torch.testing.assert_close(scalars["loss"], sum(losses) / 2)
    hits = [float(x[i].argmax() == data.label[i]) for x in logits for i in range(4)]
    assert scalars["accuracy"].item() == sum(hits) / 8


def test_frozen_backbone_stays_bit_by_bit(checkpoint):
    path, weights = checkpoint
    method = make(init=str(path), freeze=True).train()
    assert not method.backbone.training and not any(m.training for m in method.backbone.modules())
    assert method.head.training
    head = method.head.weight.clone()
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.5, weight_decay=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        method(batch())["loss"].backward()
        optimizer.step()
    assert not torch.equal(method.head.weight, head)
    for key, value in method.backbone.state_dict().items():  # running statistics of the batch norms too
        assert torch.equal(value, weights[key]), key


def test_probabilities():
    method = make(dropout=0.5).eval()
    with torch.no_grad():
        method.head.weight.mul_(300)
    features = method.backbone(batch().views[0]).detach()
    probabilities = method.classify(features)
    assert probabilities.shape == (4, 4)
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(4))
    assert torch.equal(method.classify(features), probabilities)
    logits = method.head(features)
    assert logits.std() > 0.1
    exp = logits.double().exp()
    torch.testing.assert_close(probabilities.double(), exp / exp.sum(dim=1, keepdim=True), rtol=1e-4, atol=1e-6)


def test_dropout_works_in_training_only():
    method, data = make(dropout=0.5), batch()
    with torch.no_grad():
        method.head.weight.mul_(300)
    method.eval()
    assert torch.equal(method(data)["loss"], method(data)["loss"])
    method.train()
    assert not torch.equal(method(data)["loss"], method(data)["loss"])


def test_the_probe_of_a_layer():
    method, data = make(freeze=True, layer="layer2", grid=2, grid_frames=2), batch()
    (maps,) = method.backbone.features(data.views[0], ("layer2",))
    cells = functional.adaptive_avg_pool3d(maps, (2, 2, 2)).flatten(1)
    loss = method(data)["loss"]
    torch.testing.assert_close(loss, cross_entropy(method.head(cells), data.label))
    assert method.head.in_features == 8 * 8
    torch.testing.assert_close(method.classify(cells), torch.softmax(method.head(cells), dim=1))


def test_a_layer_is_for_the_probe():
    with pytest.raises(ConfigError, match="layer2 is for the linear probe: set freeze: true"):
        make(layer="layer2")
    with pytest.raises(ConfigError, match="set layer too"):
        make(freeze=True, grid=2)
