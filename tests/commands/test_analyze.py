"""`tools/analyze.py`, from the command line to the files and the one line."""

import json
from pathlib import Path

import pytest

from vidssl import cli

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "sce.yaml"
TOLD = ["data.moving_digits=null", "data.train=none.csv"]


def asked(capsys, *words):
    """Run a command in this process; give what it prints, what it says as an error, and its status."""
    capsys.readouterr()
    status = 0
    try:
        cli.guarded(lambda: cli.run("analyze", [str(word) for word in words]))
    except SystemExit as end:
        status = end.code
    given = capsys.readouterr()
    return given.out, given.err, status


def test_the_script(run_script, digits, tmp_path):
    arguments = [digits / "motion/test.csv", "--checkpoint", "random", "--cfg", TOY, *TOLD]
    more = ["--transformations", "instance", "colour", "--top-k", "4", "--boxes", digits / "boxes.csv"]
    more += ["--workers", "0", "--device", "cpu", "--size", "24", "--out", "out"]
    status, out, err = run_script(TOP / "tools/analyze.py", "invariance", *arguments, *more, cwd=tmp_path)
    assert status == 0 and "Traceback" not in err, err
    results = json.loads((tmp_path / "out/results.json").read_text())
    lines = out.splitlines()
    assert (
        "; the 4 best of" in lines[0]
        and lines[0].startswith("16 videos, 16 clips; 1 clip x 1 crop of ")
        and lines[-1] == "out/invariance.png"
    )
    assert lines[0].endswith("1: a unit that ignores the clip, 8: perfect")
    shown = {line.split()[0]: line.split()[1] for line in lines[2:-1]}
    assert list(shown) == ["unchanged", "colour", "instance", "mean", "shuffled"]
    assert all(value == f"{results[f'invariance_{name}']:.2f}" for name, value in shown.items())
    assert (tmp_path / "out/invariance.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--transformations", "colur"], "no transformation 'colur' (did you mean 'colour'?)"),
        (["--variant", "other"], "invalid choice: 'other'"),
        (["--top-k", "0"], "0 is less than 1"),
        (["--boxes", "nowhere.csv"], "nowhere.csv"),
        (["--crops", "2"], "--crops 2: only the central square is measured"),
    ],
)
def test_mistakes_are_one_line(words, message, digits, tmp_path, capsys):
    arguments = [digits / "motion/test.csv", "--checkpoint", "random", "--cfg", TOY, *TOLD]
    out, err, status = asked(capsys, "invariance", *arguments, "--out", tmp_path / "out", *words)
    assert status == 2 and message in err.splitlines()[-1] and not out
    assert not (tmp_path / "out").exists()


def test_help_names_what_there_is(capsys):
    out, _, status = asked(capsys, "invariance", "--help")
    assert status == 0 and "occlusion, viewpoint, rotation" in " ".join(out.split())
    _, err, status = asked(capsys, "invarianc", "list.csv", "--checkpoint", "random", "--out", "out")
    assert status == 2 and "invalid choice" in err
