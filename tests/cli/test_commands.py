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
    overrides = settings(digits, folder, "data.workers=0")
    train(load_run(TOY, overrides), until=4)
    log = logging.Handler()
    lines = []
    log.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("vidssl").addHandler(log)
    logging.getLogger("vidssl").setLevel(logging.INFO)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            cli.run("train", ["--cfg", str(TOY), *overrides])
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["no_equals_sign"], r"^error: [^\n]*no_equals_sign[^\n]*$"),
        (
            ["batch_size=many", "data.workers=-1", "backbone.widht=8"],
            r"^error: .*supervised\.yaml: 3 mistakes: (?=.*batch_size)(?=.*data\.workers)"
            r".*widht: [^\n]*did you mean 'width'.*$",
        ),
        (["data.train=OUT/one.csv"], r"^error: data\.train: \S+/one\.csv:3: label 2 is out of range[^\n]*$"),
        (["device=cuda"], r"^error: device: cuda was asked for and torch sees no GPU here; use device: auto or cpu$"),
    ],
)
def test_a_mistake_of_a_training_is_named_before_it_begins(changes, message, refused, digits, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "classes.txt").write_text("a\nb\n")
    (tmp_path / "one.csv").write_text("path,label\na.mp4,1\nb.mp4,2\n")
    overrides = [*settings(digits, tmp_path / "run", "data.workers=0"), *changes]
    shown = refused("train", "--cfg", TOY, *(word.replace("OUT", str(tmp_path)) for word in overrides))
    assert re.search(message, shown, re.DOTALL), shown
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (["FOLDER/none.pt"], "error: cannot read checkpoint FOLDER/none.pt: "),
        (["FOLDER/cut.pt"], "cut.pt"),
        (["random"], "needs a config, --cfg FILE"),
        (["TRAINED", "--cfg", TOY], "brings its own config"),
        (["TRAINED", "seed=1"], "brings its own config"),
        (["random", "--cfg", TOY, "data.moving_digits=null", "--device", "cuda"], "torch sees no GPU"),
    ],
)
def test_a_network_that_cannot_be_used(network, message, refused, digits, tmp_path, checkpoint, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (tmp_path / "cut.pt").write_bytes(checkpoint.read_bytes()[:5000])
    named = [str(word).replace("FOLDER", str(tmp_path)).replace("TRAINED", str(checkpoint)) for word in network]
    shown = refused("extract", digits / "motion/test.csv", "--out", tmp_path / "x", "--checkpoint", *named)
    assert message.replace("FOLDER", str(tmp_path)) in shown and "\n" not in shown
    assert not (tmp_path / "x").exists()


def test_log_lines_have_time_and_rank(monkeypatch, capsys):
    """Each line; the rank is that of the environment, which Slurm's processes set after the start."""
    monkeypatch.setattr(logging.root, "handlers", [])
    cli.start_log()
    log = logging.getLogger("vidssl.some")
    log.warning("alone")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    log.warning("together\n  in two lines")
    stamp, shown = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", capsys.readouterr().err
    assert re.fullmatch(
        f"{stamp} WARNING alone\n{stamp} WARNING rank 3 together\n{stamp} WARNING rank 3   in two lines\n", shown
    ), shown


def test_ctrl_c_is_one_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        cli.guarded(interrupted)
    assert caught.value.code == 130 and capsys.readouterr().err == "interrupted: Ctrl-C\n"
