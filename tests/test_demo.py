"""`make demo`, as the README has it: from nothing to a network that has learned motions, and its page."""

import json
import os
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]


@pytest.mark.covers("Makefile", "configs/demo", "vidssl/commands", "vidssl/data/synthetic")
@pytest.mark.long
def test_the_demo_learns_motions(tmp_path):
    for name in ("Makefile", "configs", ".venv"):
        (tmp_path / name).symlink_to(TOP / name)
    environment = {**os.environ, "PYTHONPATH": str(TOP)}
    words = ["make", "-o", ".venv/.installed", "demo"]  # what runs this test is installed
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = {
        name: json.loads((tmp_path / f"output/demo/{name}/motion/results.json").read_text())["R@1"]
        for name in ("random", "trained")
    }
    assert found["trained"] > found["random"] + 0.1 and (tmp_path / "output/demo/index.html").exists()
