"""The sign of the study of spatial bias on scikit-learn's digits: configs/studies/spatial_bias/shuffles_small.yaml."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vidssl import cli

TOP = Path(__file__).parents[2]
CONFIG = TOP / "configs/studies/spatial_bias/shuffles_small.yaml"


@pytest.mark.long
def test_training_on_shuffled_patches_helps_on_shuffles_and_costs_on_whole_images(tmp_path):
    script = [sys.executable, TOP / "benchmarks/coloured_digits.py", "--plain", "--out", tmp_path / "digits"]
    subprocess.run(script, check=True, capture_output=True)
    smaller = ["backbone.width=8", "steps=150", "batch_size=64", f"data.train={tmp_path}/digits/train.csv", "--quiet"]
    for name, grid in (("whole", 1), ("shuffled", 2)):
        settings = [f"data.views.0.distortion.global_shuffle={grid}", f"output={tmp_path / name}", *smaller]
        cli.run("train", ["--cfg", str(CONFIG), *settings])
    networks = [str(tmp_path / name / "checkpoints/last.pt") for name in ("whole", "shuffled")]
    chosen = ["--corruptions", "global_shuffle", "--severities", "1"]  # severity 1: 2x2 patches
    words = [str(tmp_path / "digits/test.csv"), "--checkpoint", *networks, *chosen, "--out", str(tmp_path / "out")]
    cli.run("analyze", ["robustness", *words, "--quiet"])
    scores = {name: json.loads((tmp_path / f"out/{name}/results.json").read_text()) for name in ("whole", "shuffled")}
    whole, shuffled = ({name: results[name] for name in ("top1", "top1_mPC")} for results in scores.values())
    assert whole["top1"] > shuffled["top1"] + 0.1
    assert whole["top1_mPC"] < 0.4 < 0.5 < shuffled["top1_mPC"]
