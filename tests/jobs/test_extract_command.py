"""The commands extract and merge: parts, their merging, and each mistake to its one line."""

import logging
import re
from pathlib import Path

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

    def run(*arguments, command="extract"):
        capsys.readouterr()
        try:
            cli.guarded(lambda: cli.run(command, [str(word) for word in arguments]))
        except SystemExit as end:
            message = capsys.readouterr().err
            return message[message.rindex("error: ") :].rstrip("\n"), end.code
        return capsys.readouterr().out.rstrip("\n"), 0

    return run


def test_parts_and_their_merging(few, run_tool, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    out = tmp_path / "x"
    for n in (0, 1, 1):
        line, status = run_tool(*few, "--out", out, "--shard", f"{n}/2")
        assert status == 0 and line.startswith(f"{3 - n} videos x") and line.endswith(f"x.{n}-of-2")
    assert caplog.text.count("already") == 1 and f"{out}.1-of-2 holds these features already" in caplog.text
    merged, status = run_tool("--out", out, command="merge")
    assert status == 0 and re.fullmatch(rf"5 videos x \d+ features in {out}", merged)
    for command, arguments in (("extract", few), ("merge", [])):
        caplog.clear()
        line, status = run_tool(*arguments, "--out", out, command=command)
        assert status == 0 and line == merged and f"{out} holds these features already" in caplog.text


def test_what_is_required(few, run_tool, tmp_path):
    out = ["--out", tmp_path / "x"]
    for command, arguments, message in (
        ("merge", [*out, *few], "unrecognized arguments: "),
        ("merge", [*out, "--shard", "0/2"], "unrecognized arguments: "),
        ("merge", out, "found n = none"),
        ("merge", [], "the following arguments are required: --out"),
        ("extract", few, "the following arguments are required: --out"),
        ("extract", [*out, *few[1:]], "data.moving_digits=null does not exist"),
        ("extract", [*out, *few[1:5]], "the following arguments are required: INPUT"),
        ("extract", out, "the following arguments are required: --checkpoint"),
    ):
        line, status = run_tool(*arguments, command=command)
        assert status == 2 and message in line and "\n" not in line
