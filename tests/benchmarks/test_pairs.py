"""benchmarks/pairs.py: each process has the vidssl of its checkout, and a slower one is seen."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.fixture
def videos(digits, tmp_path):
    for path in sorted((digits / "videos" / "test").glob("*.mp4"))[:3]:
        (tmp_path / "videos").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "videos")
    return tmp_path / "videos"


@pytest.mark.long
def test_a_slower_checkout_is_seen(videos, tmp_path):
    for name in ("old", "new"):
        shutil.copytree(TOP / "vidssl", tmp_path / name / "vidssl", ignore=shutil.ignore_patterns("__pycache__"))
    slow = "\n_read = read_list\ndef read_list(*args):\n    _read(*args)\n    _read(*args)\n    return _read(*args)\n"
    init = tmp_path / "new" / "vidssl" / "data" / "__init__.py"
    init.write_text(init.read_text() + slow)
    command = [sys.executable, str(TOP / "benchmarks" / "pairs.py"), str(tmp_path / "old"), str(tmp_path / "new")]
    more = ["--videos", str(videos), "--rounds", "1", "--rows", "20000", "--kinds", "lists"]
    printed = subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout
    ((name, ratio),) = re.findall(r"^\| (\w+) \| ([\d.]+) \|", printed, re.MULTILINE)
    assert name == "lists" and 2 < float(ratio) < 4


@pytest.mark.parametrize("kind", ["loader", "decode", "extract", "train"])
def test_what_is_timed_runs(kind, videos):
    runpy.run_path(str(TOP / "benchmarks" / "pairs.py"))["work"](kind, videos, 1)()
