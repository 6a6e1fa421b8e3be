"""benchmarks/same_results.py: equal checkouts are equal, and what differs is named by its file and place."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

TOP = Path(__file__).parents[2]
SCRIPT = TOP / "benchmarks" / "same_results.py"
SAME = runpy.run_path(str(SCRIPT), run_name="same")


def test_differences_are_named(tmp_path):
    for name, value in (("old", 1.0), ("new", 1.5)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps({"R@1": value, "same": [1, {"x": 2}]}))
        (folder / "index.html").write_text(f"<p>\n{value}\n</p>")
        np.save(folder / "x.npy", np.array([value]))
        torch.save({"weights": torch.tensor([0.0, value])}, folder / "last.pt")
        (folder / "equal.csv").write_text("path\n")
    (tmp_path / "new" / "more.csv").write_text("path\n")
    actual = SAME["differing_files"](tmp_path / "old", tmp_path / "new")
    assert actual.keys() == {"results.json.0.R@1", "index.html.1", "x.npy", "last.pt.weights", "more.csv"}
    assert actual["results.json.0.R@1"] == "1.0 | 1.5" and actual["more.csv"] == "only in new"
    assert SAME["differing_files"](tmp_path / "old", tmp_path / "old") == {}


@pytest.mark.long
def test_a_checkout_equals_itself():
    command = [sys.executable, str(SCRIPT), str(TOP), str(TOP), "--only", "digits"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "1 commands, 0 differences" in done.stdout, done.stdout + done.stderr
