"""benchmarks/gpu/run.sh: every step writes its figures, and none takes the time or the chance of another."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import vidssl

TOP = Path(__file__).parents[2]
RUN = TOP / "benchmarks" / "gpu" / "run.sh"
STEPS = [
    *("versions", "doctor", "tests", "steps_r18", "steps_r50", "steps_r18_16", "compiled_r18", "compiled_r50"),
    *("digits", "list", "data_path_r18", "data_path_r50", "decode", "small_gpu", "network"),
]


def run(out: Path, python: str) -> tuple[int, dict[str, int]]:
    """Run the script in its tiny form: its status, and that of each step."""
    settings = {"DEVICE": "cpu", "TINY": "1", "PYTHON": python, "OMP_NUM_THREADS": "1"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "VIDSSL"))}
    done = subprocess.run([str(RUN), str(out)], env={**kept, **settings}, capture_output=True, text=True, check=False)
    rows = re.findall(r"^(\w+) +(\d+) +\d+  ", (out / "summary.txt").read_text(), re.MULTILINE)
    return done.returncode, {name: int(status) for name, status in rows}


def figures(content: object) -> list[float]:
    """All numbers of a file."""
    if isinstance(content, dict | list):
        return [x for each in (content.values() if isinstance(content, dict) else content) for x in figures(each)]
    return [content] if isinstance(content, int | float) else []


@pytest.fixture
def python(forked_python, tmp_path):
    """A Python with the imports behind it, but where libraries are found by the environment of the start."""
    path = tmp_path / "python"
    real = f'exec {sys.executable} "$@"'
    path.write_text(f'#!/usr/bin/env bash\ncase "$1" in */decode.py) {real} ;; *) exec {forked_python} "$@" ;; esac\n')
    path.chmod(0o755)
    return path


@pytest.mark.long
def test_all_of_it_on_a_cpu(python, tmp_path):
    pytest.importorskip("torchcodec", reason="torchcodec is not installed", exc_type=Exception)
    status, steps = run(tmp_path / "out", str(python))
    texts = {path.stem: path.read_text() for path in sorted((tmp_path / "out").glob("*.txt"))}
    assert (status, steps) == (0, dict.fromkeys(STEPS, 0)), texts
    actual = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
    for name in [name for name in STEPS if name.startswith(("steps", "compiled", "data_path", "decode"))]:
        values = figures({key: value for key, value in actual[name].items() if key != "machine"})
        assert values and all(math.isfinite(value) and value > 0 for value in values), name
    ours, torchs = "**vidssl**, float32", "**vidssl**, float32, norms of torch"
    forms = {"steps_r18": [ours, torchs], "compiled_r18": [ours, f"{ours}, compiled", torchs, f"{torchs}, compiled"]}
    for name, expected in forms.items():
        assert list(actual[name]["train_step"]["resnet3d18, 4 x 32"]) == expected
    assert "aten::" in texts["steps_r18"]
    paths = [f"resnet3d18, 4 x 32, {source}, {place}" for source in ("files", "frames") for place in ("cpu", "device")]
    assert list(actual["data_path_r18"]["data_path"]) == paths
    assert list(actual["decode"]["decode"]) == ["pyav", "torchcodec"]
    assert "skipped" in texts["tests"] and (tmp_path / "out" / "tests.xml").is_file()
    losses = [json.loads(line)["loss"] for line in (tmp_path / "out" / "network.jsonl").read_text().splitlines()]
    assert losses and all(map(math.isfinite, losses))
    backbone = vidssl.load_backbone(tmp_path / "out" / "network.safetensors")
    assert torch.isfinite(backbone(torch.rand(1, 3, 4, 32, 32))).all()


def test_a_step_that_hangs_takes_the_time_of_no_other(tmp_path):
    """Its own time is over; what the second step leaves is for the third."""
    function = re.search(r"^step\(\) \{\n.*?^\}\n", RUN.read_text(), re.MULTILINE | re.DOTALL)[0]
    steps = "step hangs 1 sleep 60; step quick 3 true; step slow 1 sleep 2; step late 1 sleep 60"
    script = f"set -u; OUT=$0 deadline=0 failed=0; {function}\nSECONDS=0; {steps}"
    subprocess.run(["bash", "-c", script, str(tmp_path)], check=True, timeout=30)
    rows = re.findall(r"^(\w+) +(\d+) +\d+  ", (tmp_path / "summary.txt").read_text(), re.MULTILINE)
    assert rows == [("hangs", "124"), ("quick", "0"), ("slow", "0"), ("late", "124")]


def test_it_ends_within_nine_minutes():
    """The sum of the limits, and the time in which the last step may still end."""
    limits = re.findall(r"\b(?:step|measure) [a-z0-9_]+ (\d+) ", RUN.read_text())
    assert len(limits) == len(STEPS) + 1 and sum(map(int, limits)) + 5 <= 540
