"""examples/sce_in_one_file.py: the losses of `vidssl train`, and the whole script."""

import json
import runpy
from pathlib import Path

import pytest
import torch

from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

TOP = Path(__file__).parents[2]
SCRIPT = TOP / "examples" / "sce_in_one_file.py"
STEPS = 10  # the queue of 50 keys is full after 7


def test_losses_are_those_of_vidssl_train(digits, tmp_path):
    """The toy config of SCE at a low rate, where differences in rounding change losses by 1e-5 and not by 0.5 %."""
    run = load_run(
        TOP / "configs/toy/sce.yaml",
        [
            "optimizer={name: adamw, lr: {start: 0.00001, end: 0.0, warmup: 0.1}, weight_decay: 0.01}",
            f"steps={STEPS}",
            "backbone.zero_init=false",
            "method.coefficient={start: 0.5, end: 0.25, shape: linear}",
            f"data.moving_digits.out={digits}",
            f"data.train={digits}/motion/train.csv",
            f"output={tmp_path}/out",
            "data.workers=0",
            "device=cpu",
            "method.temperature=0.2",
            "method.target_temperature=0.1",
        ],
    )
    train(run)
    lines = map(json.loads, (tmp_path / "out" / "metrics.jsonl").read_text().splitlines())
    expected = [line["loss"] for line in lines if "loss" in line]
    names = runpy.run_path(str(SCRIPT), run_name="one_file")
    settings = names["Settings"](
        digits / "motion",
        steps=STEPS,
        batch_size=run.batch_size,
        workers=0,
        frames=4,
        span=15,  # 0.6 s at 25 frames per second
        span_jitter=0.2,
        reverse=0.2,
        area=(0.2, 0.766),
        jitter=(0.8, 0.8, 0.4, 0.2),
        blur=(1.0, 0.1),
        solarize=(0.0, 0.2),
        difference=0.2,
        width=8,
        hidden=32,
        dim=16,
        predictor=True,
        queue=50,
        momentum=(0.9, 1.0),
        coefficient=(0.5, 0.25),
        temperature=0.2,
        target_temperature=0.1,
        lr=1e-5,
        warmup=0.1,
    )
    torch.manual_seed(run.seed)
    losses = names["train"](names["SCE"](settings))
    assert len(expected) == STEPS and losses == pytest.approx(expected, rel=1e-4)


def test_it_is_one_page():
    text = SCRIPT.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert "vidssl.engine" not in text and "vidssl.methods" not in text
