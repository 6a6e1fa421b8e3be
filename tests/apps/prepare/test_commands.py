"""The scripts in datasets/, which are `vidssl prepare`: each is its command, writes lists, and fails in one line."""

import runpy
import sys
from pathlib import Path

import pytest

from vidssl.base.registry import APPS
from vidssl.data.video_list import read_list

DATASETS = Path(__file__).parents[3] / "datasets"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run the script of a data set; return status, stdout and stderr."""

    def run(name, *arguments):
        monkeypatch.chdir(tmp_path)
        script = DATASETS / f"prepare_{name}.py"
        monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        status = 0
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            status = end.code
        return status, *capsys.readouterr()

    return run


def test_each_script_is_its_command(monkeypatch):
    started = []
    monkeypatch.setattr("vidssl.cli.main", lambda *words: started.append(words))
    names = [script.stem.removeprefix("prepare_") for script in sorted(DATASETS.glob("prepare_*.py"))]
    for name in names:
        runpy.run_path(str(DATASETS / f"prepare_{name}.py"), run_name="__main__")
    assert started == [("prepare", name.replace("_", "-")) for name in names] and len(names) > 10
    assert {*names} <= {*APPS["data set"]}


def test_a_script_writes_lists_or_fails_in_one_line_that_names_options(command, tmp_path):
    for name in ("net/TRAIN_0/frames/-a_0/0.jpg", "net/TRAIN_0/anno/-a_0.txt", "empty/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1,2,3,4\n")
    status, out, err = command("trackingnet", "net", "--chunks", "0", "--fps", "29.97", "--out", "lists")
    assert (status, err) == (0, "") and out.endswith("lists written to lists\n")
    assert "train: 1 listed, 1 found, 0 missing" in out and "set --fps RATE" in out
    (record,) = read_list(tmp_path / "lists/train.csv").records
    assert record.fps == 29.97 and Path(record.path).is_dir()
    (tmp_path / "list.txt").write_text("wave/b.avi,3\n")
    words = ("list.txt", "--form", "mmaction2", "--root", "empty", "--separator", ",", "--name", "some")
    assert command("list", *words, "--out", "none") == (
        2,
        "",
        "error: some: 1 of 1 listed files are not in empty, a fraction of 1, the limit is 0.05 (--max-missing "
        "FRACTION): 'wave/b.avi'; is it the right folder, and the right list?\n",
    )
    assert not (tmp_path / "none").exists()
