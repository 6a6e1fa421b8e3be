"""The command test, from the command line to the files and the one line."""

import json
from pathlib import Path

import pytest

from vidssl import cli
from vidssl.base.config import plain
from vidssl.base.errors import ConfigError
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.test import protocol_choices

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    settings = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    return train(load_run(TOY, [*settings, f"output={output}", "steps=2"]))


def asked(capsys, *words):
    """Run a command in this process; give what it prints, what it says as an error, and its status."""
    capsys.readouterr()
    status = 0
    try:
        cli.guarded(lambda: cli.run("test", [str(word) for word in words]))
    except SystemExit as end:
        status = end.code
    printed = capsys.readouterr()
    return printed.out, printed.err, status


def test_the_command(checkpoint, digits, tmp_path, capsys):
    arguments = ["--checkpoint", checkpoint, digits / "motion/test.csv", "--out", tmp_path / "out"]
    more = ["--train-list", digits / "motion/train.csv", "--clips", "2", "--crops", "5", "--workers", "0"]
    options = ["--protocol", "accuracy", "knn", "k=3", "temperature=0.5", "lowshot", "shots=[1, 2]"]
    out, err, status = asked(capsys, *arguments, *more, *options)
    assert status == 0, err
    results = json.loads((tmp_path / "out/results.json").read_text())
    lines = out.splitlines()
    head = "16 videos; 2 clips x 5 crops of 32², percent; ± standard deviation over draws"
    assert lines[:2] == ["labels: the list's, 8 classes", head]
    assert lines[-1] == f"{tmp_path}/out/results.json"
    assert lines[-2] == "knn: k = 3"
    shown = {line.split()[0]: line.split()[1] for line in lines[2:-2]}
    assert list(shown) == ["top1", "top5", "mean_class", "ece", "knn", "knn_mean_class", "lowshot@1", "lowshot@2"]
    assert all(value == f"{100 * results[name]:.1f}" for name, value in shown.items())
    words = next(line for line in lines if line.startswith("lowshot@2")).split()
    assert words[3:] == [f"{100 * results['lowshot@2_spread']:.1f}", "majority", f"{100 * results['majority']:.1f}"]
    assert results["protocols"][1:] == [
        {"name": "knn", "k": 3, "temperature": 0.5},
        {"name": "lowshot", "shots": [1, 2], "draws": 5, "costs": [0.01, 0.1, 1.0, 10.0, 100.0], "folds": 3, "seed": 0},
    ]
    assert (results["protocol"]["clips"], results["protocol"]["crops"]) == (2, 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--protocol", "kn"], r"no 'kn' (did you mean 'knn'?); there are: accuracy, knn"),
        (["--protocol", "knn", "q=3"], "unknown key"),
        (["--protocol", "k=3", "knn"], "protocol begins with the setting k=3: name the protocol before it"),
        (["--protocol", "svm"], "protocol svm compares with training videos: give their list, --train-list FILE"),
        (["--splits", "1", "1"], "--splits needs different values, got 1 1"),
        (["--splits", "1", "b"], "b is not a number: write --splits 1 2 3"),
    ],
)
def test_mistakes(words, message, checkpoint, digits, tmp_path, capsys):
    arguments = ["--checkpoint", checkpoint, digits / "motion/test.csv", "--out", tmp_path / "out", *words]
    out, error, status = asked(capsys, *arguments)
    assert status == 2 and not out
    assert message in error and "Traceback" not in error
    assert not (tmp_path / "out/results.json").exists()


def test_settings_of_the_config_after_the_protocols(capsys, digits, tmp_path):
    """They are separated from those of the protocols; what both have is the protocol's."""
    lists = [digits / "motion/test.csv", "--train-list", digits / "motion/train.csv"]
    where = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0"]
    arguments = ["--protocol", "knn", "k=3", *where, "svm", "seed=5", "costs=[1.0]", "device=cpu"]
    chosen = ["--checkpoint", "random", "--cfg", TOY, "--clips", "1", "--crops", "1", *lists]
    _, err, status = asked(capsys, *chosen, "--out", tmp_path, *arguments)
    assert status == 0, err
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["config"]["data"]["workers"] == 0 and results["config"]["device"] == "cpu"
    assert results["config"]["seed"] == 0
    knn, svm = results["protocols"]
    assert (knn["name"], knn["k"], svm["name"], svm["seed"]) == ("knn", 3, "svm", 5)


def test_settings_of_a_protocol_of_a_plug_in_stay_with_it():
    choices, rest = protocol_choices(["mine", "q=3", "data.workers=0", "depth.max=2"])
    assert plain(choices, "") == [{"name": "mine", "q": 3, "depth": {"max": 2}}] and rest == ["data.workers=0"]
    choices, rest = protocol_choices(["mine", "seed=1", "k=2"])  # the config has a seed too
    assert plain(choices, "") == [{"name": "mine", "seed": 1, "k": 2}] and rest == []
    with pytest.raises(ConfigError, match=r"protocol data\.workers=0 names no protocol"):
        protocol_choices(["data.workers=0"])
