"""Commands where no home folder can be written: a container, a job of a cluster."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import vidssl
from vidssl import cli
from vidssl.base.errors import CheckpointError

# Runs commands one after another in one process.
RUN = """
import json, sys
from vidssl import cli
for words in json.loads(sys.argv[1]):
    print("COMMAND", *words, file=sys.stderr, flush=True)
    sys.argv = ["vidssl", *words]
    cli.main()
"""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (INFO|WARNING) |COMMAND |[\w ]+: .* elapsed")
COMMANDS = """
doctor
prepare folder VIDEOS --out lists
check lists/train.csv --out checked.csv
show lists/train.csv --cfg small_cpu --out show
train lists/train.csv --cfg small_cpu steps=1 batch_size=4 output=run
extract VIDEOS --checkpoint vidssl-free --out features
test lists/test.csv --train-list lists/train.csv --checkpoint vidssl-free --protocol knn retrieval --out test
retrieval --gallery VIDEOS --query VIDEOS --checkpoint vidssl-free --out search
map --features features --layout pca --out map
export run --to onnx --out run.onnx
compare VIDEOS --checkpoint vidssl-free --out compare
predict VIDEOS --labels labels.csv --checkpoint vidssl-free --out predictions
analyze gradcam lists/test.csv --checkpoint vidssl-free --out maps
shrink VIDEOS --out small
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_video):
    """Twelve videos of two classes, `labels.csv` with some labels, and a file in place of a home folder."""
    folder = tmp_path_factory.mktemp("work")
    rng = np.random.RandomState(0)
    for n in range(12):
        pixels = rng.randint(0, 90, (60, 48, 64, 3)) + np.array([60 * (n % 2), 90, 60 * (1 - n % 2)])
        write_video(folder / "videos" / ("blue", "red")[n % 2] / f"{n}.mp4", pixels.astype(np.uint8))
    rows = [f"{name}/{n}.mp4,{name}" for name, first in (("blue", 0), ("red", 1)) for n in range(first, 8, 2)]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows, ""]))
    (folder / "no_folder").write_text("")
    return folder


@pytest.mark.long
def test_all_commands(folder):
    """Nothing fails, and each line on stderr is one of vidssl: no warning of another package without time and level."""
    commands = [line.replace("VIDEOS", "videos").split() for line in COMMANDS.strip().splitlines()]
    environment = {"PATH": os.defpath, "HOME": f"{folder}/no_folder/home", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = str(Path(vidssl.__file__).parents[1])
    words = [sys.executable, "-c", RUN, json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    lines = re.split("[\r\n]+", done.stderr.strip())
    assert done.returncode == 0, lines[-8:]
    assert [line for line in lines if line.startswith("COMMAND")] == [
        f"COMMAND {' '.join(words)}" for words in commands
    ]
    assert [line for line in lines if not LINE.match(line)] == []
    assert not [line for line in lines if "matplotlib" in line.lower() or "fontManager" in line]


def test_weights_that_cannot_be_kept(folder, monkeypatch):
    """The line names the variables that say where libraries keep their downloads."""
    monkeypatch.setenv("TORCH_HOME", f"{folder}/no_folder/torch")
    with pytest.raises(CheckpointError, match=r"no_folder/torch.*; set TORCH_HOME .* HF_HOME .* to writable folders$"):
        vidssl.extract("torchvision:r3d_18", folder / "videos", workers=0)


def test_a_user_without_home_has_the_temporary_folder(monkeypatch, tmp_path):
    """Else libraries make a folder named `~` for their caches."""
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def unknown(number):
        raise KeyError(number)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    cli.guarded(lambda: None)
    assert Path("~/cache").expanduser() == tmp_path / "cache"


def test_only_the_result_is_on_stdout(monkeypatch, capsys):
    """Libraries print what they download."""

    def noisy():
        print("Downloading")
        return {"path": "there"}

    monkeypatch.setattr("vidssl.jobs.doctor.doctor", noisy)
    cli.run("doctor", ["--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"path": "there"} and printed.err == "Downloading\n"
