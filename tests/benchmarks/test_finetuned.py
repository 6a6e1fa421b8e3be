"""Top-1 accuracies of classifiers over splits and seeds, against counts by hand."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def finetuned(import_from):
    return import_from(BENCHMARKS, "finetuned").main


def write(folder, right):
    """Predictions of videos of two groups, of which so many are right."""
    folder.mkdir(parents=True)
    rows = [f"a_g0{n % 2}_c{n}.avi,a,{'a' if n < right else 'b'}" for n in range(8)]
    (folder / "predictions_accuracy.csv").write_text("\n".join(["path,class,predicted", *rows, ""]))


def test_accuracies_and_the_difference(finetuned, tmp_path, monkeypatch, capsys):
    for (split, seed), right in {("1", 0): 8, ("1", 1): 6, ("2", 0): 4, ("2", 1): 6}.items():
        write(tmp_path / f"tuned/{split}-{seed}", right)
        write(tmp_path / f"scratch/{split}-{seed}", 2)
    arguments = [f"{name}={tmp_path}/{name}/{{split}}-{{seed}}" for name in ("tuned", "scratch")]
    words = ["finetuned.py", *arguments, "--splits", "1", "2", "--seeds", "0", "1", "--out", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", words)
    finetuned()
    printed = capsys.readouterr().out
    assert "| tuned | 75.0 ± 17.7 |" in printed and "| scratch | 25.0 ± 0.0 |" in printed
    kept = json.loads((tmp_path / "out.json").read_text())
    assert kept["accuracies"]["tuned"] == {"1, seed 0": 1, "1, seed 1": 0.75, "2, seed 0": 0.5, "2, seed 1": 0.75}
    ((difference, low, high),) = kept["differences"]["scratch"]
    assert difference == 50 and low < 50 < high
    file = tmp_path / "scratch/2-1/predictions_accuracy.csv"
    file.write_text(file.read_text().replace("_c0", "_c9"))
    with pytest.raises(SystemExit, match="is not a test of the videos of the first one of split 2"):
        finetuned()
    monkeypatch.setattr(sys, "argv", [*words, "--group", "(person)"])
    file.write_text(file.read_text().replace("_c9", "_c0"))
    with pytest.raises(SystemExit, match=r"--group \(person\) finds nothing in a_g00_c0.avi"):
        finetuned()
