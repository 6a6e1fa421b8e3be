"""benchmarks/pairs.py: each process has the vidssl of its checkout, and a slower one is seen."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


@pytest.mark.long
def test_a_slower_checkout_is_seen(digits, tmp_path):
    for name in ("old", "new"):
        shutil.copytree(TOP / "vidssl", tmp_path / name / "vidssl", ignore=shutil.ignore_patterns("__pycache__"))
    slow = "\n_read = read_list\ndef read_list(*args):\n    _read(*args)\n    _read(*args)\n    return _read(*args)\n"
    init = tmp_path / "new" / "vidssl" / "data" / "__init__.py"
    init.write_text(init.read_text() + slow)
    (tmp_path / "videos").mkdir()
    for path in sorted((digits / "videos" / "test").glob("*.mp4"))[:3]:
        shutil.copy(path, tmp_path / "videos")
    command = [sys.executable, str(TOP / "benchmarks" / "pairs.py"), str(tmp_path / "old"), str(tmp_path / "new")]
    more = ["--videos", str(tmp_path / "videos"), "--rounds", "1", "--rows", "20000"]
    printed = subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout
    ratios = {name: float(ratio) for name, ratio in re.findall(r"^\| (\w+) \| ([\d.]+) \|", printed, re.MULTILINE)}
    assert ratios.keys() == {"loader", "decode", "lists", "extract", "train"}
    assert 2 < ratios["lists"] < 4 and all(0 < each < 100 for each in ratios.values())
