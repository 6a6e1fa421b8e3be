"""The method part_segmentation: loss against loops, shapes, frozen backbones, golden losses and resuming."""

import json
import math
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
    actual = part_losses(torch.from_numpy(logits), torch.from_numpy(mask))
    assert actual["loss"].item() == pytest.approx(sum(losses) / 4, rel=1e-12)
    assert actual["pixel_accuracy"].item() == pytest.approx(sum(shares) / 4, rel=1e-6)


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


def test_losses_of_the_toy_config_are_those_of_the_golden_file(digit_parts, tmp_path):
    train(toy(digit_parts, tmp_path / "out"))
    golden = json.loads(Path(__file__).with_name("golden_part_segmentation.json").read_text())["loss"]
    # Rounding differs between processors and grows with each step.
    for step, (loss, expected) in enumerate(zip(logged(tmp_path / "out").values(), golden, strict=True)):
        assert loss == pytest.approx(expected, rel=min(1e-4 * 3**step, 0.2))


@pytest.mark.parametrize("config", ["digits", "nyu_depth", "pascal_parts", "toy"])
def test_the_configs_bind(config):
    assert load_run(TOY.with_name(f"{config}.yaml")).method.name == "part_segmentation"
