"""measure.py: pixel accuracy and its baselines against plain counts, files written, and errors."""

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.data.moving_digits import MovingDigits, ensure
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.models import build_backbone
from vidssl.video.reader import open_video

EXAMPLE = Path(__file__).parents[2] / "examples" / "part_segmentation"


@pytest.fixture(scope="module", autouse=True)
def names(plug_in):
    """What the tests use of the example."""
    global Counts, segment_parts, table, PartSegmentation, read_mask
    method, measure = plug_in("part_segmentation"), plug_in("measure")
    PartSegmentation, read_mask = method.PartSegmentation, method.read_mask
    Counts, segment_parts, table = measure.Counts, measure.segment_parts, measure.table


@pytest.fixture(scope="module")
def digits32(tmp_path_factory):
    """Crops of digits; those of the test list are cut out anew where a test needs other masks."""
    out = tmp_path_factory.mktemp("parts") / "set"
    ensure(out, MovingDigits(train=80, test=40, frames=1, size=32, masks=True))
    return out


@pytest.fixture(scope="module")
def run(names, digits32, tmp_path_factory):
    """A decoder after a few steps, on a frozen network that was never trained."""
    overrides = [
        "data.moving_digits=null",
        f"data.train={digits32}/parts/train.csv",
        "data.views=[{name: center_crop, size: 32}]",
        "data.workers=0",
        "method={name: part_segmentation, parts: 3, channels: 16}",
        "optimizer={name: adamw, lr: {start: 0.01, end: 0.0}}",
        "batch_size=16",
        "steps=10",
        "device=cpu",
        "checkpoint.every=10",
        f"output={tmp_path_factory.mktemp('run')}/run",
    ]
    return train(load_run(EXAMPLE / "toy.yaml", overrides))


def options(**arguments):
    return {"workers": 0, "device": "cpu", **arguments}


@pytest.fixture(scope="module")
def found(run, digits32, tmp_path_factory):
    out = tmp_path_factory.mktemp("found") / "out"
    return segment_parts(run, digits32 / "parts/test.csv", out=out, **options()), out


def test_numbers_are_those_of_a_plain_count(run, digits32, found):
    """Image by image with OpenCV and numpy, the network put together by hand."""
    results, _ = found
    crops = read_list(digits32 / "parts/test.csv")
    content = torch.load(run, weights_only=True)
    backbone = build_backbone("resnet3d18", width=8, zero_init=False)
    method = PartSegmentation(PartSegmentation.Config(parts=3, channels=16), backbone)
    method.load_state_dict(content["method"])
    method.eval()
    right, pixels = np.zeros(10), np.zeros(10)
    hits, totals = np.zeros(3), np.zeros(3)
    masks = []
    for record in crops.records:
        with open_video(record.path) as video:
            image = video.frames([0])[0].transpose(1, 2, 0)
        mask = read_mask(record.mask, *image.shape[:2])
        image = cv2.resize(image, (32, 32), interpolation=cv2.INTER_LINEAR)
        mask = cv2.resize(mask, (32, 32), interpolation=cv2.INTER_NEAREST_EXACT)
        clip = (torch.from_numpy(image).permute(2, 0, 1).float() / 255 - 0.45) / 0.225
        with torch.no_grad():
            said = method.decoder(backbone(clip[None, :, None])[:, :, None, None])[0].argmax(dim=0).numpy()
        right[record.label] += (said == mask).sum()
        pixels[record.label] += 32 * 32
        for part in range(3):
            hits[part] += ((said == mask) & (mask == part)).sum()
            totals[part] += (mask == part).sum()
        masks.append(mask)
    # Sums in another order flip a pixel here and there.
    assert results["pixel_accuracy"] == pytest.approx(right.sum() / pixels.sum(), abs=1e-3)
    for row, accuracy in zip(results["per_class"], right / pixels, strict=True):
        assert row["pixel_accuracy"] == pytest.approx(accuracy, abs=1e-3)
        assert (row["crops"], row["pixels"]) == (4, 4 * 32 * 32)
    assert results["pixel_accuracy_mean_class"] == pytest.approx((right / pixels).mean(), abs=1e-3)
    assert list(results["per_part"].values()) == pytest.approx(list(hits / totals), abs=2e-3)
    stacked = np.stack(masks)
    shares = np.stack([(stacked == part).mean(axis=0) for part in range(3)])
    assert results["layout"] == pytest.approx(shares.max(axis=0).mean(), rel=1e-12)
    assert results["most_frequent"] == pytest.approx((stacked == 0).mean(), rel=1e-12)


def test_counts_against_loops():
    source = generator(0)
    counts, parts, size = Counts.zeros(4, 5), 4, 5
    truths, saids, kept = [], [], []
    for _ in range(6):
        truth, said = source.integers(0, parts, (2, size, size))
        counted = source.random((size, size)) < 0.7
        mask = np.where(counted, truth, 255)
        counts.add(torch.from_numpy(mask), torch.from_numpy(said), torch.from_numpy(counted))
        truths.append(truth)
        saids.append(said)
        kept.append(counted)
    total = sum(int(k.sum()) for k in kept)
    right = frequent = layout = 0
    for truth, said, counted in zip(truths, saids, kept, strict=True):
        right += sum(int(counted[y, x] and truth[y, x] == said[y, x]) for y in range(size) for x in range(size))
    for part in range(parts):
        frequent = max(frequent, sum(int((t[k] == part).sum()) for t, k in zip(truths, kept, strict=True)))
    for y in range(size):
        for x in range(size):
            there = [int(t[y, x]) for t, k in zip(truths, kept, strict=True) if k[y, x]]
            layout += max((there.count(part) for part in range(parts)), default=0)
    numbers = counts.numbers()
    assert numbers == {"pixel_accuracy": right / total, "layout": layout / total, "most_frequent": frequent / total}
    assert counts.crops == 6 and numbers["most_frequent"] <= numbers["layout"]
    kept = np.stack(kept)
    expected = jaccard_score(np.stack(truths)[kept], np.stack(saids)[kept], average=None)
    assert list(counts.iou().values()) == pytest.approx(list(expected), rel=1e-12) and len(expected) == parts


def test_what_is_refused(run, digits32, tmp_path):
    crops = digits32 / "parts/test.csv"
    with pytest.raises(ConfigError, match="has no column 'mask'"):
        segment_parts(run, digits32 / "digit/test.csv", out=tmp_path / "a", **options())
    with pytest.raises(ConfigError, match="leave out clips and crops"):
        segment_parts(run, crops, out=tmp_path / "a", **options(clips=3))
    random = options(cfg=EXAMPLE / "toy.yaml", settings=["data.moving_digits=null"])
    with pytest.raises(ConfigError, match="random has no decoder of parts"):
        segment_parts("random", crops, out=tmp_path / "a", **random)
    assert not (tmp_path / "a/results.json").exists()
