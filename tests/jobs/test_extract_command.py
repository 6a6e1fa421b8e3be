"""The commands extract and merge: parts, their merging, and each mistake to its one line."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest

from vidssl import cli
from vidssl.data.video_list import read_list

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"
UNTRAINED = ("--checkpoint", "random", "--cfg", TOY, "data.moving_digits=null")


@pytest.fixture
def few(digits, tmp_path):
    """A list of five videos, and the arguments that make their features quickly."""
    names = read_list(digits / "motion/test.csv").names[:5]
    (tmp_path / "few.csv").write_text("\n".join(["path", *names]) + "\n")
    return [tmp_path / "few.csv", *UNTRAINED, "--root", digits, "--clips", "1", "--workers", "0"]


@pytest.fixture
def run_tool(capsys):
    """Run the tool, or another command; give what it prints and its exit status."""

    def run(*given, command="extract"):
        capsys.readouterr()
        try:
            cli.guarded(lambda: cli.run(command, [str(word) for word in given]))
        except SystemExit as end:
            message = capsys.readouterr().err
            return message[message.rindex("error: ") :].rstrip("\n"), end.code
        return capsys.readouterr().out.rstrip("\n"), 0

    return run


def assert_alike(one, other):
    x, y = (np.load(folder / "features.npy") for folder in (one, other))
    np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
    assert (one / "rows.csv").read_text() == (other / "rows.csv").read_text()
    meta, other_meta = (json.loads((folder / "meta.json").read_text()) for folder in (one, other))
    assert {**meta, "sha256": None} == {**other_meta, "sha256": None}


def test_parts_and_their_merging(few, run_tool, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    whole, out = tmp_path / "whole", tmp_path / "x"
    line, status = run_tool(*few, "--out", whole)
    assert status == 0 and re.fullmatch(rf"5 videos x \d+ features in {whole}", line)
    for n in range(2):
        line, status = run_tool(*few, "--out", out, "--shard", f"{n}/2")
        assert status == 0 and line.startswith(f"{3 - n} videos x") and line.endswith(f"x.{n}-of-2")
    assert "already" not in caplog.text
    line, status = run_tool(*few, "--out", out, "--shard", "1/2")
    assert status == 0 and line.endswith("x.1-of-2") and f"{out}.1-of-2 holds these features already" in caplog.text
    merged, status = run_tool("--out", out, command="merge")
    assert status == 0 and re.fullmatch(rf"5 videos x \d+ features in {out}", merged)
    assert f"{out} holds" not in caplog.text
    assert_alike(out, whole)
    for command, given in (("extract", few), ("merge", [])):
        caplog.clear()
        line, status = run_tool(*given, "--out", out, command=command)
        assert status == 0 and line == merged and f"{out} holds these features already" in caplog.text


def test_what_is_required(few, run_tool, tmp_path):
    for given in (few, ["--shard", "0/2"], ["--checkpoint", "random"]):
        line, status = run_tool("--out", tmp_path / "x", *given, command="merge")
        assert status == 2 and "unrecognized arguments: " in line and "\n" not in line
    line, status = run_tool("--out", tmp_path / "x", *few[1:])
    assert status == 2 and "data.moving_digits=null does not exist" in line
    for given, missing in ((few[1:5], "INPUT"), ([few[0], *few[6:]], "--checkpoint"), ([], "--checkpoint")):
        line, status = run_tool("--out", tmp_path / "x", *given)
        assert status == 2 and line.endswith(f"the following arguments are required: {missing}") and "\n" not in line
    line, status = run_tool("--out", tmp_path / "x", command="merge")
    assert status == 2 and "found n = none" in line
    for command, given in (("extract", few), ("merge", [])):
        line, status = run_tool(*given, command=command)
        assert status == 2 and line.endswith("the following arguments are required: --out")
