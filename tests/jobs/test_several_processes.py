"""A command of two processes writes the files of one process, and says what that says, once."""

import contextlib
import io
import json
import os
import re
import shutil
from importlib import import_module
from pathlib import Path

import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.base import distributed
from vidssl.base.errors import DataError, VidsslError

TOY = str(Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml")
UNTRAINED = ["--checkpoint", "random", "--cfg", TOY, "data.moving_digits=null"]
CLIPS = ["--clips", "1", "--workers", "0", "--batch-size", "1", "--device", "cpu"]  # others round otherwise
TRAIN, TEST = "lists1/train.csv", "lists1/test.csv"
INDEX = ["retrieval", "--gallery", TRAIN, "--query", TEST, "--index", "g", "--page-queries", "2"]
COMMANDS = {
    "test": [["test", TEST, "--train-list", TRAIN, "--protocol", "svm", "uniformity", *UNTRAINED, *CLIPS]],
    "retrieval": [[*INDEX, *UNTRAINED, *CLIPS]] * 2,  # makes its index, uses it
    "invariance": [["analyze", "invariance", TEST, "--transformations", "occlusion", "blur", *UNTRAINED, *CLIPS[2:]]],
}
SPLITS = ["train", "--cfg", TOY, "--splits", "1", "2", "data.moving_digits=null", "data.workers=0", "device=cpu"]
SPLITS += ["data.train=lists{split}/train.csv", "evaluate.query=lists{split}/test.csv", "output=out", "steps=2"]


def run_all(folder, commands):
    """Run commands in a folder; give what each printed."""
    os.chdir(folder)
    said = []
    for words in commands:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            cli.run(words[0], words[1:])
        said.append(text.getvalue())
    return said


@pytest.fixture
def folders(digits, tmp_path):
    """Folders of the same lists, for one process and for two."""
    for folder in ("one", "two"):
        for split in (1, 2):
            shutil.copytree(digits / "motion", tmp_path / folder / f"lists{split}")
    return tmp_path / "one", tmp_path / "two"


def content(path):
    if path.suffix in (".html", ".png"):  # of the same results, with the time
        return path.stat().st_size > 1000
    if path.name != "results.json" and not re.search("-[0-9a-f]{8}[.]json$", path.name):
        return path.read_bytes()
    return {key: value for key, value in json.loads(path.read_text()).items() if key != "date"}


def files_of(folder):
    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_fault_28_two_processes_write_what_one_does(name, run_world, folders):
    one, two = folders
    arguments = [[*words, "--out", "out"] for words in COMMANDS[name]]
    (said,) = run_world(1, run_all, one, arguments)
    first, second = run_world(2, run_all, two, arguments)
    assert first == said and all(said) and second == [""] * len(said)
    actual, expected = files_of(two), files_of(one)
    assert actual.keys() == expected.keys() and len(expected) > 4
    for file, value in expected.items():
        assert actual[file] == value, file


def refused(folder, where):
    """Search while the main process alone may not write to a folder, which it learns after they have joined."""
    os.chdir(folder)
    module = import_module(where[0])
    claim = getattr(module, where[1])

    def claim_or_refuse(*arguments, **more):
        if torch.distributed.is_initialized() and distributed.is_main():
            raise DataError("the folder is refused")
        claim(*arguments, **more)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(VidsslError) as error:
        patch.setattr(module, where[1], claim_or_refuse)
        settings = {"cfg": TOY, "settings": ["data.moving_digits=null"], "clips": 1, "workers": 0, "device": "cpu"}
        vidssl.retrieval("random", query=TEST, gallery=TRAIN, index="g", out="out", progress=False, **settings)
    return str(error.value)


@pytest.mark.parametrize("where", [("vidssl.apps.search", "claim"), ("vidssl.evaluation.features", "claim_features")])
def test_an_error_of_the_main_process_alone_ends_all(where, run_world, folders):
    assert run_world(2, refused, folders[1], where) == ["the folder is refused", "process 0: the folder is refused"]


def test_splits_of_a_training_by_two_processes(run_world, folders):
    first, second = run_world(2, run_all, folders[1], [SPLITS])
    assert first[0].endswith("out/results.json\n") and second == [""]
    results = json.loads((folders[1] / "out/results.json").read_text())
    assert {*results["splits"]} == {"1", "2"} and 0 <= results["mean"]["top1"] <= 1
