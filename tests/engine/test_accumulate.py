"""Micro-batches: what contrasts within the batch computes the loss and the gradients of one batch."""

import copy
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from vidssl.apps.views import cmc
from vidssl.base import distributed
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.types import Batch
from vidssl.engine.parallel import average_gradients, over_processes
from vidssl.engine.training_step import accumulate
from vidssl.methods import METHODS
from vidssl.models import Head, build_backbone
from vidssl.models.backbones import Backbone
from vidssl.models.batch_norms import SyncBatchNorm

Tiny = runpy.run_path(str(Path(__file__).parents[1] / "methods" / "tiny.py"))["Tiny"]

CPU = torch.device("cpu")
SETTINGS = {
    "simclr": {"temperature": 0.2},
    "supcon": {"temperature": 0.2},
    "vicreg": {"invariance": 1.0, "variance": 1.0, "covariance": 1.0},  # so that rounding is that of the others
    "lejepa": {"directions": 16},
    "swav": {"prototypes": 7, "frozen": 0.0},
    "learned": {"temperature": 0.2},
}
FREE = {("vicreg", "projector.2.bias")}  # VICReg's loss is the same for embeddings that are all shifted
NAMES = tuple(SETTINGS)


class LearnedTemperature(METHODS["simclr"]):
    """A method of somebody else: its loss has a parameter that embeddings do not depend on."""

    def __init__(self, config, backbone):
        super().__init__(config, backbone)
        self.scale = nn.Parameter(torch.tensor(0.9))

    def objective(self, embedding, group):
        return super().objective(embedding * self.scale, group)


class Noisy(Backbone):
    """Batch norm and dropout; it notes what it gave, and each batch norm's mean after each pass."""

    dim = 8

    def __init__(self, norm=nn.BatchNorm1d):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), norm(8), nn.Dropout(0.5))
        self.given, self.means = [], []

    def forward(self, x):
        given = self.layers(x.mean(dim=(3, 4)).flatten(1))
        self.given.append(given.detach().clone())
        self.means.append(self.layers[1].running_mean.clone())
        return given


def make(name, backbone, dtype=torch.float64):
    torch.manual_seed(0)
    head = Head(layers=2, hidden=16, out=5, norm="none")
    kind = LearnedTemperature if name == "learned" else METHODS[name]
    method = kind(kind.Config(projector=head, **SETTINGS[name]), backbone())
    return method.to(dtype).train()


def batch(dtype=torch.float64):
    """12 samples of 3 classes; record 2 is there twice."""
    source = torch.Generator().manual_seed(7)
    clips = tuple(torch.randn(12, 3, 2, 4, 4, generator=source, dtype=torch.float64) for _ in range(2))
    index = torch.tensor([4, 9, 2, 7, 1, 0, 5, 2, 8, 3, 6, 11])
    return Batch(tuple(clip.to(dtype) for clip in clips), index % 3, index)


def cut(data, sizes):
    views = zip(*(view.split(sizes) for view in data.views), strict=True)
    return [Batch(*part) for part in zip(views, data.label.split(sizes), data.index.split(sizes), strict=True)]


def step(method, parts, half=False, parallel=None):
    """Scalars and gradients of a step."""
    totals, seen = accumulate(method, parallel or method, iter(parts), len(parts), half)
    assert seen.tolist() == [index for part in parts for index in part.index.tolist()]
    average_gradients(parallel or method)
    actual = {key: p.grad.clone() for key, p in method.named_parameters()}
    method.zero_grad()
    return totals, actual


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("sizes", "dtype"), [([1] * 12, torch.float64), ([7, 5], torch.float64), ([4] * 3, torch.float32)]
)
def test_micro_batches_are_one_batch(name, sizes, dtype):
    close = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-14}
    scalars, gradients = step(make(name, Tiny, dtype), [batch(dtype)])
    actual, cached = step(make(name, Tiny, dtype), cut(batch(dtype), sizes))
    torch.testing.assert_close(actual, scalars, **close)  # all of them, those that are watched too
    torch.testing.assert_close(cached, gradients, **close)
    assert all(gradient.abs().max() > 1e-4 for key, gradient in gradients.items() if (name, key) not in FREE)


def of_a_world(name, exact):
    """Scalars, averaged over processes, and gradients of this process with its part in two micro-batches."""
    method = make(name, Tiny)
    parallel = over_processes(method, CPU, exact)
    own = cut(batch(), [12 // distributed.world()] * distributed.world())[distributed.rank()]
    size = len(own.index) // 2
    for _ in range(2):  # a second step, for what the first one may leave behind
        scalars, gradients = step(method, cut(own, [size, size]), parallel=parallel)
    return {key: distributed.mean(value).item() for key, value in scalars.items()}, gradients


def of_both_ways():
    with distributed.joined(CPU):
        return {(name, exact): of_a_world(name, exact) for name in NAMES for exact in (True, False)}


def test_processes_with_micro_batches_are_one_batch(run_world):
    for outcome in run_world(2, of_both_ways):
        for (name, _), (scalars, gradients) in outcome.items():
            expected, whole = step(make(name, Tiny), [batch()])
            assert scalars == pytest.approx({key: value.item() for key, value in expected.items()}, rel=1e-9)
            torch.testing.assert_close(gradients, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", [nn.BatchNorm1d, SyncBatchNorm])
def test_both_passes_are_equal_and_statistics_move_once(name, norm):
    method = make(name, lambda: Noisy(norm))
    parts = cut(batch(), [4, 4, 4])
    plain = copy.deepcopy(method)
    step(method, parts)
    backbone = method.backbone
    first, second = backbone.given[:6], backbone.given[6:]  # three micro-batches of two views
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    assert not torch.equal(first[0] == 0, first[1] == 0)  # dropout takes other numbers from view to view
    assert all(torch.equal(mean, torch.zeros(8)) for mean in backbone.means[:6])
    for part in parts:
        plain.embed(part)
    for one, other in zip(method.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert int(backbone.layers[1].num_batches_tracked) == 6


def test_a_frozen_batch_norm_stays_frozen():
    method = make("simclr", Noisy)
    method.backbone.eval()
    scalars, gradients = step(method, [batch()])
    actual, cached = step(method, cut(batch(), [6, 6]))
    torch.testing.assert_close((actual, cached), (scalars, gradients), rtol=1e-12, atol=1e-14)
    assert all(torch.equal(mean, torch.zeros(8, dtype=torch.float64)) for mean in method.backbone.means)


@pytest.mark.parametrize("name", NAMES)
def test_random_numbers_go_on_after_a_step(name):
    """A step leaves the state of one pass, whatever the number of passes: another step draws other numbers."""
    method = make(name, Noisy)
    parts = cut(batch(), [6, 6])
    torch.manual_seed(1)
    step(method, parts)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    for part in parts:
        method.embed(part)
    assert torch.equal(torch.get_rng_state(), after)


def test_other_methods_average_their_micro_batches():
    torch.manual_seed(0)
    method = METHODS["supervised"](METHODS["supervised"].Config(classes=3), Tiny()).double()
    whole = step(method, [batch()])
    torch.testing.assert_close(step(method, cut(batch(), [4, 4, 4])), whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("labels", [(0, 1, 2, 0, -1, -1), (-1, 2, -1, -1, -1, -1), (1, -1, 1, 0, 2, 2), (-1,) * 6])
def test_the_classification_loss_of_views_is_the_mean_over_the_labelled_clips_of_the_step(labels, monkeypatch):
    """However they are divided among micro-batches, or among processes, whose counts are exchanged."""
    torch.manual_seed(0)
    kind = METHODS["view_learning"]
    flow = build_backbone("color_flow")
    method = kind(kind.Config(encoder={"name": "resnet18"}, classes=3), flow).eval()
    clips, index = torch.randn(6, 3, 1, 16, 16), torch.arange(6)
    whole = Batch((clips,), torch.tensor(labels), index)
    parts = [Batch((clips[rows],), whole.label[rows], index[rows]) for rows in (slice(0, 3), slice(3, 6))]

    def gradients(batches, share=1):
        method.zero_grad(set_to_none=True)
        scalars, _ = accumulate(method, method, batches, len(batches), half=False)
        actual = [p.grad.clone() / share for p in method.classifiers.parameters()]
        return actual, {name: value / share for name, value in scalars.items() if "class" in name or "accuracy" in name}

    expected, scalars = gradients([whole])
    # One process after the other, each with the mean count of both.
    count = torch.stack([(part.label >= 0).sum() for part in parts]).double().mean()
    with monkeypatch.context() as patch:
        patch.setattr(cmc.distributed, "mean", lambda x: count)
        first, second = (gradients([part], share=2) for part in parts)
    processes = (
        [a + b for a, b in zip(first[0], second[0], strict=True)],
        {name: value + second[1][name] for name, value in first[1].items()},
    )
    for actual, summed in (processes, gradients(parts)):
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
        for name, value in scalars.items():
            torch.testing.assert_close(summed[name], value, rtol=1e-4, atol=1e-6)


def test_a_method_of_somebody_else_without_a_loss_or_a_projector():
    class WithoutLoss(LearnedTemperature):
        def objective(self, embedding, group):
            return {"error": embedding.sum()}

    class WithoutProjector(LearnedTemperature):
        class Config(Settings):
            temperature: float = 0.1

    torch.manual_seed(0)
    config = METHODS["simclr"].Config(projector=Head(layers=2, hidden=16, out=5, norm="none"))
    method = WithoutLoss(config, Tiny()).double().train()
    for sizes in ([12], [6, 6]):
        with pytest.raises(
            ConfigError, match=r"^WithoutLoss returns \['error', .*\], and no 'loss': see docs/extend.md$"
        ):
            step(method, cut(batch(), sizes))
    with pytest.raises(ConfigError, match=r"^WithoutProjector.Config has no `projector`: derive it from InBatchMethod"):
        WithoutProjector(WithoutProjector.Config(), Tiny())
