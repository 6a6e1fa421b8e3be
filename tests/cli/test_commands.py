"""Every tool from its command line to its files, and every mistake to its one line."""

import contextlib
import io
import json
import logging
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"


def vidssl_command(monkeypatch, capsys, *arguments):
    """Run the command `vidssl` in this process; give what it prints."""
    monkeypatch.setattr(sys, "argv", ["vidssl", *map(str, arguments)])
    capsys.readouterr()
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
    return capsys.readouterr().out


def settings(digits, output, *more):
    return [f"data.train={digits}/motion/train.csv", f"output={output}", "data.moving_digits=null", "steps=6", *more]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """Folder of a run that was interrupted after step 4 and finished by the command; what it printed and logged."""
    folder = tmp_path_factory.mktemp("run") / "run"
    given = settings(digits, folder, "data.workers=0")
    train(load_run(TOY, given), until=4)
    log = logging.Handler()
    lines = []
    log.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("vidssl").addHandler(log)
    logging.getLogger("vidssl").setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            cli.run("train", ["--cfg", str(TOY), *given])
    finally:
        logging.getLogger("vidssl").removeHandler(log)
    return folder, out.getvalue(), "\n".join(lines)


@pytest.fixture(scope="module")
def checkpoint(trained):
    return trained[0] / "checkpoints" / "last.pt"


def test_training_is_taken_up_again(trained, digits):
    folder, out, log = trained
    assert out.strip().endswith("run/checkpoints/last.pt")
    assert f"resumed {folder} at step 4" in log and "supervised on resnet3d18" in log and "40 videos" in log
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in steps if "loss" in line] == [1, 2, 3, 4, 5, 6]
    times = [line["time"] for line in steps]
    assert times == sorted(times) and 0 <= time.time() - times[-1] < 3600
    names = {path.name for path in (folder / "checkpoints").iterdir()}
    assert {"step-00000006.pt", "step-00000004.pt", "last.pt"} <= names
    assert not [name for name in names if "tmp" in name]
    # The config beside the checkpoint is a config by itself.
    again = load_run(folder / "config.yaml")
    assert (again.steps, again.batch_size, again.data.train) == (6, 8, f"{digits}/motion/train.csv")


def test_a_finished_run_is_left_as_it_is(trained, digits, capsys):
    folder = trained[0]
    before = (folder / "metrics.jsonl").read_bytes(), sorted((folder / "checkpoints").iterdir())
    cli.run("train", ["--cfg", str(TOY), *settings(digits, folder, "data.workers=0")])
    assert capsys.readouterr().out.strip().endswith("last.pt")
    assert before == ((folder / "metrics.jsonl").read_bytes(), sorted((folder / "checkpoints").iterdir()))


def test_help_and_schema(monkeypatch, capsys):
    out = vidssl_command(monkeypatch, capsys, "--help")
    assert all(name in out for name in ("train", "retrieval", "extract", "schema"))
    assert vidssl_command(monkeypatch, capsys, "--version").strip() == vidssl.__version__
    schema = json.loads(vidssl_command(monkeypatch, capsys, "schema"))
    assert {"data", "method", "backbone", "optimizer", "output"} <= {*schema["properties"]}
    assert "sce" in json.dumps(schema) and "resnet3d18" in json.dumps(schema)


# Mistakes ---------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(capsys):
    """Run a command that must end with status 2; give its message."""

    def run(tool, *arguments):
        with pytest.raises(SystemExit) as caught:
            cli.guarded(lambda: cli.run(tool, [str(a) for a in arguments]))
        assert caught.value.code == 2
        message = capsys.readouterr().err
        assert "Traceback" not in message
        start = message.rindex("error: ")
        assert start == 0 or message[start - 1] in "\n\r "  # after argparse's usage or a cleared bar
        return message[start:].rstrip("\n")

    return run


@pytest.fixture
def training(refused, digits, tmp_path):
    def run(*changes):
        return refused("train", "--cfg", TOY, *settings(digits, tmp_path / "run", "data.workers=0"), *changes)

    return run


def test_mistakes_in_a_config(training):
    assert "unknown key" in (message := training("metod.name=sce")) and "did you mean 'method'" in message
    assert "batch_size" in (message := training("batch_size=many")) and "1 mistake" in message
    message = training("batch_size=many", "data.workers=-1", "backbone.widht=8")
    assert "3 mistakes" in message and message.count("\n") == 3
    assert all(word in message for word in ("batch_size", "data.workers", "widht", "did you mean 'width'"))
    assert "supervised" in training("method.name=supervisd")
    assert "supervised.yaml" in message
    assert "\n" not in training("no_equals_sign")


def test_mistakes_in_lists(training, tmp_path):
    assert training(f"data.train={tmp_path}/none.csv").startswith(
        f"error: data.train: cannot read list {tmp_path}/none.csv: "
    )
    (tmp_path / "empty.csv").write_text("path,label\n")
    assert "has no rows" in training(f"data.train={tmp_path}/empty.csv")
    (tmp_path / "classes.txt").write_text("a\nb\n")
    (tmp_path / "one.csv").write_text("path,label\na.mp4,1\nb.mp4,2\n")
    message = training(f"data.train={tmp_path}/one.csv")
    assert message.startswith(f"error: data.train: {tmp_path}/one.csv:3: label 2 is out of range")
    (tmp_path / "web.csv").write_text("path,label\nhttp://127.0.0.1:9/a.mp4,1\n")
    assert "is a URL" in training(f"data.train={tmp_path}/web.csv")
    assert not (tmp_path / "run/checkpoints").exists()


def test_a_missing_config(refused, tmp_path):
    message = refused("train", "--cfg", tmp_path / "none.yaml")
    assert f"{tmp_path}/none.yaml is neither a file nor the name of a config" in message and "\n" not in message


def test_a_gpu_that_is_absent(training, refused, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert training("device=cuda") == (
        "error: device: cuda was asked for and torch sees no GPU here; use device: auto or cpu"
    )
    message = refused(
        "extract",
        *("--checkpoint", "random", "--cfg", TOY, "--device", "cuda", digits / "motion/test.csv"),
        *("--out", tmp_path / "x", "data.moving_digits=null"),
    )
    assert "torch sees no GPU" in message


def test_mistakes_about_checkpoints(refused, digits, tmp_path, checkpoint):
    rest = (digits / "motion/test.csv", "--out", tmp_path / "x")
    none = tmp_path / "none.pt"
    assert refused("extract", "--checkpoint", none, *rest).startswith(f"error: cannot read checkpoint {none}: ")
    assert "needs a config, --cfg FILE" in refused("extract", "--checkpoint", "random", *rest)
    assert "brings its own config" in refused("extract", "--checkpoint", checkpoint, "--cfg", TOY, *rest)
    assert "brings its own config" in refused("extract", "--checkpoint", checkpoint, *rest, "seed=1")
    (tmp_path / "cut.pt").write_bytes(checkpoint.read_bytes()[:5000])
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"weights": torch.zeros(3)}, tmp_path / "other.pt")
    for name in ("cut", "text", "other"):
        message = refused("extract", "--checkpoint", tmp_path / f"{name}.pt", *rest)
        assert f"{name}.pt" in message and "\n" not in message
    assert not (tmp_path / "x").exists()


def test_log_lines_have_time_and_rank(monkeypatch, capsys):
    """The rank is that of the environment, which Slurm's processes set after the start."""
    monkeypatch.setattr(logging.root, "handlers", [])
    cli.start_log()
    log = logging.getLogger("vidssl.some")
    log.warning("alone")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    log.warning("together")
    stamp, shown = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", capsys.readouterr().err
    assert re.fullmatch(f"{stamp} WARNING alone\n{stamp} WARNING rank 3 together\n", shown), shown


def test_ctrl_c_is_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        cli.guarded(interrupted)
    assert caught.value.code == 130 and capsys.readouterr().err == "interrupted: Ctrl-C\n"
