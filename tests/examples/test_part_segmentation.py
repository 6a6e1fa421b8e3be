"""The method part_segmentation: loss against loops, shapes, frozen backbones, golden losses and resuming."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

from vidssl.base.config import bind
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Batch
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.models import build_backbone

TOY = Path(__file__).parents[2] / "examples" / "part_segmentation" / "toy.yaml"


@pytest.fixture(scope="module", autouse=True)
def names(plug_in):
    """What the tests use of the example."""
    global PartSegmentation, part_losses
    method = plug_in("part_segmentation")
    PartSegmentation, part_losses = method.PartSegmentation, method.part_losses


def make(seed=0, **settings):
    torch.manual_seed(seed)
    backbone = build_backbone("resnet3d18", width=4)
    return PartSegmentation(PartSegmentation.Config(**{"parts": 3, "channels": 4, **settings}), backbone)


def batch(parts=3, size=16, count=4):
    source = torch.Generator().manual_seed(1)
    clips = torch.randn(count, 3, 1, size, size, generator=source)
    mask = torch.randint(0, parts, (count, size, size), generator=source)
    mask[:, 3:7] = 255
    mask[1, 8:] = 255  # the images have different numbers of counted pixels
    return Batch((clips,), torch.arange(count), torch.arange(count), mask=mask)


def test_loss_and_accuracy_against_loops():
    """In float64, pixel by pixel: 255 is not counted, every image counts alike, one without pixels adds nothing."""
    source = generator(0)
    logits, mask = source.normal(size=(4, 5, 6, 6)), source.integers(0, 5, (4, 6, 6))
    mask[0, :, 2:5] = 255
    mask[2] = 255
    losses, shares = [], []
    for b in range(4):
        loss, right, pixels = 0.0, 0, 0
        for y in range(6):
            for x in range(6):
                if mask[b, y, x] == 255:
                    continue
                row = [float(logits[b, part, y, x]) for part in range(5)]
                loss += math.log(sum(math.exp(value) for value in row)) - row[mask[b, y, x]]
                right += row.index(max(row)) == mask[b, y, x]
                pixels += 1
        losses.append(loss / pixels if pixels else 0.0)
        shares.append(right / pixels if pixels else 0.0)
    found = part_losses(torch.from_numpy(logits), torch.from_numpy(mask))
    assert found["loss"].item() == pytest.approx(sum(losses) / 4, rel=1e-12)
    assert found["pixel_accuracy"].item() == pytest.approx(sum(shares) / 4, rel=1e-6)


def test_pixels_that_are_not_counted_have_no_gradient():
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    mask = torch.randint(0, 3, (2, 4, 4))
    mask[0, :2], mask[1] = 255, 255
    part_losses(logits, mask)["loss"].backward()
    assert not logits.grad[0, :, :2].any() and not logits.grad[1].any() and logits.grad[0, :, 2:].all()


def test_micro_batches_add_up():
    """The loss of a batch is the mean over its parts, whatever is not counted in them."""
    logits, mask = torch.randn(6, 3, 8, 8), torch.randint(0, 3, (6, 8, 8))
    mask[:2, 1:] = 255
    whole = part_losses(logits, mask)
    halves = [part_losses(logits[half], mask[half]) for half in (slice(0, 3), slice(3, 6))]
    for name, value in whole.items():
        torch.testing.assert_close(value, (halves[0][name] + halves[1][name]) / 2)


@pytest.mark.parametrize("parts", [2, 7])
def test_shapes(parts):
    """1 -> 4 -> 8 -> 16 -> 32, and to any size from there."""
    method = make(parts=parts, channels=6).eval()
    sizes = []
    for layer in method.decoder:
        if isinstance(layer, torch.nn.ConvTranspose2d):
            layer.register_forward_hook(lambda _, given, made: sizes.append((given[0].shape, made.shape)))
    clips = torch.randn(2, 3, 1, 16, 16)
    at_32 = method.segment(clips, 32)
    found = [(tuple(given[1:]), tuple(made[1:])) for given, made in sizes]
    dim = method.backbone.dim
    assert found == [
        ((dim, 1, 1), (24, 4, 4)),
        ((24, 4, 4), (12, 8, 8)),
        ((12, 8, 8), (6, 16, 16)),
        ((6, 16, 16), (parts, 32, 32)),
    ]
    assert at_32.shape == (2, parts, 32, 32) and method.segment(clips, 50).shape == (2, parts, 50, 50)
    torch.testing.assert_close(at_32, method.decoder(method.backbone(clips)[:, :, None, None]))
    at_64 = method.segment(clips, 64)  # bilinear: pixels between two are 3/4 of the near one and 1/4 of the other
    expected = 0.75 * at_32[..., 10, 10:20] + 0.25 * at_32[..., 10, 11:21]
    expected = 0.75 * expected + 0.25 * (0.75 * at_32[..., 11, 10:20] + 0.25 * at_32[..., 11, 11:21])
    torch.testing.assert_close(at_64[..., 21, 21:41:2], expected)


def test_a_map_of_a_layer_is_doubled_by_each_convolution():
    method = make(parts=5, channels=6, map_layer="layer2").eval()
    clips = torch.randn(2, 3, 4, 32, 32)
    (maps,) = method.backbone.features(clips, ("layer2",))
    logits = method.decoder(maps.mean(dim=2))
    assert logits.shape == (2, 5, 16 * maps.shape[3], 16 * maps.shape[4])
    expected = torch.nn.functional.interpolate(logits, (40, 40), mode="bilinear", align_corners=False)
    torch.testing.assert_close(method.segment(clips, 40), expected)


def test_the_loss_is_that_of_what_is_segmented():
    method, data = make().eval(), batch()
    expected = part_losses(method.segment(data.views[0], 16), data.mask)
    found = method(data)
    assert found.keys() == {"loss", "pixel_accuracy"}
    torch.testing.assert_close(found, expected)


def test_logits_are_float32_under_bfloat16(monkeypatch):
    """The backbone runs in bfloat16, the decoder does not."""
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # see test_contract.py
    method, clips = make().eval(), batch().views[0]
    with torch.autocast("cpu", torch.bfloat16):
        vectors = method.backbone(clips)
        logits = method.segment(clips, 32)
    assert vectors.dtype == torch.bfloat16 and logits.dtype == torch.float32
    exact = method.double().decoder(vectors.double()[:, :, None, None])
    torch.testing.assert_close(logits.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_frozen_backbone_stays_bit_by_bit(freeze):
    method = make(freeze=freeze).train()
    before = {key: value.clone() for key, value in method.backbone.state_dict().items()}
    decoder = method.decoder[0].weight.clone()
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        method(batch())["loss"].backward()
        optimizer.step()
    assert not torch.equal(method.decoder[0].weight, decoder) and method.decoder[1].training
    changed = [key for key, value in method.backbone.state_dict().items() if not torch.equal(value, before[key])]
    assert bool(changed) is not freeze


def test_what_does_not_fit():
    data = batch()
    with pytest.raises(ConfigError, match="needs a list with a column 'mask'"):
        make()(Batch(data.views, data.label, data.index))
    with pytest.raises(ConfigError, match=r"one recipe in data\.views, got 2"):
        make()(Batch(data.views * 2, data.label, data.index, mask=data.mask))
    with pytest.raises(ConfigError, match=r"part 2, method\.parts is 2: set method\.parts=3"):
        make(parts=2)(data)
    with pytest.raises(ConfigError, match="parts"):
        bind(PartSegmentation.Config, {"parts": 1}, "a config")


def toy(digit_parts, output, *overrides):
    """The toy config, with its data rendered already."""
    where = [f"data.moving_digits.out={digit_parts}", f"data.train={digit_parts}/parts/train.csv"]
    return load_run(TOY, [*where, f"output={output}", "data.workers=0", "device=cpu", *overrides])


def logged(output):
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def test_training_on_a_list_without_masks(digit_parts, tmp_path):
    with pytest.raises(ConfigError, match="needs a list with a column 'mask'"):
        train(toy(digit_parts, tmp_path / "out", f"data.train={digit_parts}/digit/train.csv"))


def test_losses_of_the_toy_config_are_those_of_the_golden_file(digit_parts, tmp_path):
    train(toy(digit_parts, tmp_path / "out"))
    golden = json.loads(Path(__file__).with_name("golden_part_segmentation.json").read_text())["loss"]
    # Rounding differs between processors and grows with each step.
    for step, (loss, expected) in enumerate(zip(logged(tmp_path / "out").values(), golden, strict=True)):
        assert loss == pytest.approx(expected, rel=min(1e-4 * 3**step, 0.2))


def test_resuming_is_exact(digit_parts, tmp_path):
    straight = torch.load(train(toy(digit_parts, tmp_path / "a", "steps=8")), weights_only=True)
    train(toy(digit_parts, tmp_path / "b", "steps=8"), until=5)
    resumed = torch.load(train(toy(digit_parts, tmp_path / "b", "steps=8")), weights_only=True)
    assert logged(tmp_path / "a") == logged(tmp_path / "b")
    for name, value in straight["method"].items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, resumed["method"][name]), name


@pytest.mark.parametrize("config", ["digits", "nyu_depth", "pascal_parts", "toy"])
def test_the_configs_bind(config):
    assert load_run(TOY.with_name(f"{config}.yaml")).method.name == "part_segmentation"


def train_toy(digit_parts, output, *overrides):
    """Train in a process of its own; returns the losses."""
    sys.path.insert(0, str(TOY.parent))
    train(toy(digit_parts, output, *overrides))
    return logged(output)


@pytest.mark.long
def test_two_processes_have_the_losses_of_one(digit_parts, tmp_path, run_world):
    """The masks differ in their numbers of counted pixels; the loss does not depend on how they are grouped."""
    frozen = ("steps=4", "method.freeze=true")
    (one,) = run_world(1, train_toy, digit_parts, tmp_path / "one", *frozen)
    two, _ = run_world(2, train_toy, digit_parts, tmp_path / "two", *frozen)
    assert two == pytest.approx(one, rel=1e-4)
