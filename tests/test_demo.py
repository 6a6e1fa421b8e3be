"""`make demo` runs, from nothing to the pages; what its training learns is in docs/results/reproduce.md."""

import json
import os
import subprocess
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
SHORTER = (
    "steps=2",
    "batch_size=4",
    "data.moving_digits.train=20",
    "data.moving_digits.test=10",
    "data.workers=0",
    "evaluate.every=2",
)


@pytest.mark.long
def test_the_commands_of_the_demo(forked_python, tmp_path):
    """In a folder that has what they take from the checkout, with a training of two steps on a few videos."""
    for name in ("Makefile", "configs"):
        (tmp_path / name).symlink_to(TOP / name)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    shorter = f'if [ "$3" = train ]; then set -- "$@" {" ".join(SHORTER)}; fi'
    python.write_text(f'#!/usr/bin/env bash\n{shorter}\nexec {forked_python} "$@"\n')
    python.chmod(0o755)
    words = ["make", "-o", ".venv/.installed", "demo"]  # what runs this test is installed
    done = subprocess.run(words, cwd=tmp_path, env={**os.environ}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    output = tmp_path / "output/demo"
    for labels in ("motion", "colour"):
        results = json.loads((output / "trained" / labels / "results.json").read_text())
        assert 0 <= results["R@1"] <= 1
        assert (output / f"trained/{labels}/index.html").exists()
    assert (output / "compare/index.html").exists()
