"""benchmarks/paired.py: differences are taken within a split, and marked only if they are consistent."""

import json
import runpy
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def paired(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.chdir(tmp_path)
    names = runpy.run_path(str(BENCHMARKS / "paired.py"), run_name="paired")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["paired.py", *arguments])
        names["main"]()

    return run


def write(folder, **numbers):
    Path(folder).mkdir()
    columns = [dict(zip(numbers, column, strict=True)) for column in zip(*numbers.values(), strict=True)]
    Path(folder, "results.json").write_text(json.dumps({"splits": dict(enumerate(columns, 1))}))


def test_the_spread_is_that_of_the_differences(paired, capsys):
    write("a", knn=[0.2, 0.5, 0.8], top1=[0.1, 0.1, 0.1])
    write("b", knn=[0.3, 0.61, 0.89], svm=[0.2, 0.1, 0.3])
    paired("a", "b")
    assert "| minus a | knn |\n| --- | --- |\n| b | +10.0 ± 1.0 * |" in capsys.readouterr().out  # 10, 11 and 9
    paired("a", "b", "--numbers", "knn", "svm:top1")
    assert "| b | +10.0 ± 1.0 * | +10.0 ± 10.0 |" in capsys.readouterr().out


def test_what_differs_between_the_tests_is_named(paired, capsys):
    for name, clips in (("a", 1), ("b", 2), ("c", 1)):
        write(name, knn=[0.5, 0.5])
        file = Path(name, "results.json")
        content = {**json.loads(file.read_text()), "protocol": {"clips": clips, "mean": [clips]}}
        file.write_text(json.dumps(content))
    paired("a", "b", "c")
    out = capsys.readouterr().out
    assert "a and b are of different tests: protocol.clips 1, 2\n" in out and "a and c" not in out
