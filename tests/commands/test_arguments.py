"""The options that commands share: configs by name, one spelling, --json and --quiet, and the CPUs of the machine."""

import argparse
import json
import logging
import os
from pathlib import Path

import pytest

from vidssl import commands, progress
from vidssl.commands.arguments import add_file_options, config_file

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"


def error_of(capsys, command, *words):
    """The message of a command that is refused before its job."""
    with pytest.raises(SystemExit) as caught:
        commands.run(command, [str(word) for word in words], f"vidssl {command}")
    assert caught.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_as_many_workers_as_cpus_that_may_be_used():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        parser = argparse.ArgumentParser()
        add_file_options(parser)
        assert parser.parse_args(["list.csv", "--out", "out"]).workers == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(
    "name", ["sce_small", "pretrain/sce_small", "sce_small.yaml", "configs/pretrain/sce_small.yaml"]
)
def test_configs_are_found_by_name_in_any_folder(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_file(name) == TOP / "configs/pretrain/sce_small.yaml"


def test_a_path_wins_over_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("sce_small").write_text("steps: 1")
    assert config_file("sce_small") == Path("sce_small")
    Path("toy").mkdir()
    assert config_file("toy/sce") == TOP / "configs/toy/sce.yaml"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sce_smal", "sce_smal is neither a file nor the name of a config (did you mean 'sce_small'?)"),
        ("my/run.yaml", "my/run.yaml is neither a file nor the name of a config"),
        ("small", "small is the name of 4 configs: detection/small, finetune/small, linear/small, scratch/small"),
    ],
)
def test_a_name_of_no_or_several_configs(name, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert error_of(capsys, "train", "--cfg", name).endswith(f"error: argument --cfg: {message}")


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("train", ["--cfg", "toy/sce", "--splits", "1,2,3"], "1,2,3 is not a number: write --splits 1 2 3"),
        ("train", ["--cfg", "toy/sce", "--splits", "1", "1"], "--splits needs different values, got 1 1"),
        ("train", ["--cfg", "toy/sce", "--splits", "steps=3"], "--splits needs different values, got none"),
    ],
)
def test_other_spellings_name_the_right_one(command, words, message, capsys):
    assert message in error_of(capsys, command, *words)


def test_settings_may_follow_several_values(digits, tmp_path, capsys):
    """`--splits 1 2 seed=3`: the setting is none of the splits."""
    where = ["--out", tmp_path / "out", "--clips", "1", "--crops", "1", "--workers", "0"]
    where += ["--train-list", digits / "motion/train.csv"]
    words = [digits / "motion/test.csv", "--checkpoint", "random", "--cfg", TOY, "--protocol", "uniformity", *where]
    words += ["--splits", "1", "2", "seed={split}", "data.moving_digits=null"]
    commands.run("test", [str(word) for word in words])
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert [*results["splits"]] == ["1", "2"] and results["config"]["data"]["moving_digits"] is None


def test_json_is_one_object_on_stdout(digits, tmp_path, capsys):
    words = [digits / "motion/test.csv", "--out", tmp_path / "checked", "--json", "--workers", "1"]
    commands.run("check", [str(word) for word in words])
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["kept"], found["findings"]) == (16, 16, [])
    assert found["list"] == str(tmp_path / "checked/test.csv")
    network = ["--checkpoint", "random", "--cfg", TOY, "--clips", "1", "--crops", "1", "--workers", "0", "--json"]
    network += ["data.moving_digits=null"]
    commands.run("extract", [str(w) for w in (digits / "motion/test.csv", *network, "--out", tmp_path / "x")])
    found = json.loads(capsys.readouterr().out)
    assert found["count"] == 16 and found["path"] == str(tmp_path / "x")
    lists = ["--gallery", digits / "motion/train.csv", "--query", digits / "motion/test.csv"]
    commands.run("retrieval", [str(w) for w in (*lists, *network, "--out", tmp_path / "page", "--page-queries", 0)])
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "page/results.json").read_text())
    commands.run("prepare", ["folder", str(digits), "--out", str(tmp_path / "lists"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["out"] == str(tmp_path / "lists") and found["report"][0].startswith("112 videos found")
    commands.run("doctor", ["--json"])
    assert json.loads(capsys.readouterr().out)["decoding with pyav"]["works"]


def test_quiet_hides_progress_and_information(digits, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_INTERVAL", 0.0)  # lines of progress at once
    log = logging.getLogger("vidssl")
    level = log.level
    words = [str(digits / "motion/test.csv"), "--out", str(tmp_path / "a"), "--workers", "1"]
    try:
        commands.run("check", words)
        assert "check:" in capsys.readouterr().err
        commands.run("check", [*words[:2], str(tmp_path / "b"), *words[3:], "--quiet"])
        assert not log.isEnabledFor(logging.INFO) and log.isEnabledFor(logging.WARNING)
        shown = capsys.readouterr()
        assert not shown.err and "16 rows kept" in shown.out
    finally:
        log.setLevel(level)
