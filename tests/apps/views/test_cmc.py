"""CMC and view learning: the loss against a loop, the views that encoders see, and the direction of each gradient."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from vidssl.apps.views.cmc import two_view_nce
from vidssl.base import distributed
from vidssl.base.errors import ConfigError
from vidssl.base.types import Batch
from vidssl.engine.training_step import accumulate
from vidssl.methods import METHODS
from vidssl.models import Head, build_backbone

SMALL = {"name": "resnet3d18", "width": 4}
HEAD = Head(layers=1, out=6, norm="none")


def rows(n, seed=0):
    source = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, 2, 5, generator=source, dtype=torch.float64), dim=2)


def loop(z, group, tau):
    total = 0.0
    for this, other in ((0, 1), (1, 0)):
        for i in range(len(z)):
            scores = [math.exp(float(z[i, this] @ z[j, other]) / tau) for j in range(len(z))]
            positives = [j for j in range(len(z)) if group[j] == group[i]]
            total -= sum(math.log(scores[j] / sum(scores)) for j in positives) / len(positives)
    return total / (2 * len(z))


@pytest.mark.parametrize("group", [[3, 1, 4, 0, 5], [3, 1, 3, 0, 5]])
def test_loss_is_that_of_the_formula(group, monkeypatch):
    z = rows(5)
    assert two_view_nce(z, torch.tensor(group), 0.2).item() == pytest.approx(loop(z, group, 0.2), rel=1e-12)
    monkeypatch.setattr(distributed, "world", lambda: 2)
    parts = []
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        parts.append(two_view_nce(z[:4], torch.tensor(group[:4]), 0.2).item())
    assert sum(parts) / 2 == pytest.approx(loop(z[:4], group[:4], 0.2), rel=1e-12)


def batch(views=1, label=(0, 1, -1, 1), seed=0):
    source = torch.Generator().manual_seed(seed)
    made = tuple(torch.rand(4, 3, 1, 16, 16, generator=source) for _ in range(views))
    return Batch(made, torch.tensor(label), torch.arange(4))


def cmc(split):
    torch.manual_seed(0)
    kind = METHODS["cmc"]
    return kind(kind.Config(projector=HEAD), build_backbone("two_encoders", encoder=SMALL, split=split))


def test_the_bound_is_that_of_the_loss_and_each_encoder_has_its_own_projector():
    method, data = cmc({"name": "frequency", "sigma": 1.0}), batch()
    scalars = method(data)
    assert scalars["i_nce"].item() == pytest.approx(math.log(4) - scalars["loss"].item(), abs=1e-6)
    low, high = method.backbone.split(data.views[0])
    parts = zip(method.projector, method.backbone.encoders, (low, high), strict=True)
    z = torch.stack([normalize(head(encoder(view)), dim=1) for head, encoder, view in parts], dim=1)
    assert scalars["loss"].item() == pytest.approx(loop(z.detach().double(), [0, 1, 2, 3], 0.07), rel=1e-4)


def test_two_views_go_to_one_encoder_each():
    method, data = cmc(None), batch(2)
    method.eval()
    first, second = (
        head(f(v)) for head, f, v in zip(method.projector, method.backbone.encoders, data.views, strict=True)
    )
    expected = normalize(torch.stack([first, second], dim=1), dim=2)
    torch.testing.assert_close(method.embed(data), expected)


def test_micro_batches_are_contrasted_with_each_other():
    data = batch(2)
    parts = [
        Batch(tuple(view[part] for view in data.views), data.label[part], data.index[part])
        for part in (slice(0, 2), slice(2, 4))
    ]
    collected = []
    for batches in ([data], parts):
        method = cmc(None).eval()  # batch norms see each micro-batch alone otherwise
        scalars, _ = accumulate(method, method, batches, len(batches), half=False)
        collected.append((scalars["loss"], scalars["i_nce"], *gradients(method)))
    for one, other in zip(*collected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def learner(classes=None):
    torch.manual_seed(0)
    kind = METHODS["view_learning"]
    flow = build_backbone("color_flow", blocks=3, volume_preserving=False)
    for p in flow.parameters():
        torch.nn.init.normal_(p, std=0.3)
    config = kind.Config(encoder=SMALL, projector=HEAD, temperature=0.2, classes=classes)
    return kind(config, flow)


def views_of(method, data):
    mapped = method.backbone.transform(data.views[0])
    empty = torch.zeros_like(mapped[:, :1])
    return torch.cat([mapped[:, :1], empty, empty], dim=1), torch.cat([empty, mapped[:, 1:]], dim=1)


def contrast(method, data):
    z = [normalize(f(v), dim=1) for f, v in zip(method.encoders, views_of(method, data), strict=True)]
    logits, own = z[0] @ z[1].T / 0.2, torch.arange(4)
    return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2


def gradients(module):
    return [p.grad.clone() for p in module.parameters()]


def test_encoders_minimise_what_the_flow_maximises():
    method, data = learner(), batch()
    scalars = method(data)
    scalars["loss"].backward()
    actual = gradients(method.encoders), gradients(method.backbone)
    method.zero_grad()
    loss = contrast(method, data)
    loss.backward()
    assert scalars["loss"].item() == pytest.approx(loss.item(), rel=1e-5)
    assert scalars["i_nce"].item() == pytest.approx(math.log(4) - loss.item(), abs=1e-5)
    for one, other in zip(actual[0], gradients(method.encoders), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    for one, other in zip(actual[1], gradients(method.backbone), strict=True):
        torch.testing.assert_close(one, -other, rtol=1e-3, atol=1e-5)
    assert any(g.abs().max() > 1e-4 for g in actual[1])


def test_the_flow_helps_the_classifiers_of_labelled_clips():
    method, data = learner(3), batch()
    scalars = method(data)
    scalars["loss"].backward()
    actual = gradients(method.classifiers), gradients(method.backbone)
    method.zero_grad()
    known = torch.tensor([0, 1, 3])
    terms = [
        cross_entropy(c(v)[known], data.label[known])
        for c, v in zip(method.classifiers, views_of(method, data), strict=True)
    ]
    assert scalars["classification_loss"].item() == pytest.approx(sum(terms).item(), rel=1e-4)
    (sum(terms) - contrast(method, data)).backward()
    for part, module in zip(actual, (method.classifiers, method.backbone), strict=True):
        for one, other in zip(part, gradients(module), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_without_labels_in_the_batch_nothing_is_classified():
    assert learner(3)(batch(label=(-1,) * 4))["classification_loss"].item() == 0.0


def test_views_and_backbones_that_do_not_fit():
    for split, views in ((None, 1), (None, 3), ({"name": "frequency"}, 3)):
        with pytest.raises(ConfigError, match=f"cmc compares two views, got {views}: .*data.views.*backbone.split"):
            cmc(split)(batch(views))
    with pytest.raises(ConfigError, match="splits one view, got 2"):
        learner()(batch(2))
    for name, backbone in (("cmc", "two_encoders"), ("view_learning", "color_flow")):
        with pytest.raises(ConfigError, match=f"set backbone.name={backbone}"):
            METHODS[name](METHODS[name].Config(projector=HEAD), build_backbone(**SMALL))
