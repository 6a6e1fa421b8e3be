"""`analyze robustness`: its numbers are those of `vidssl test` and of its parts, and what is refused."""

import json
from pathlib import Path

import pytest

from vidssl import cli
from vidssl.apps.analysis.corrupted_clips import ROBUSTNESS
from vidssl.apps.analysis.robustness import analyze_robustness
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.test import test as measure

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
PROTOCOLS = [{"name": "accuracy"}, {"name": "knn", "k": 5}, {"name": "retrieval", "ks": [1, 5]}]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("robustness") / "run"
    given = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    train(load_run(TOY, [*given, f"output={out}", "steps=8", "checkpoint.every=8"]))
    return out / "checkpoints" / "last.pt"


def measure_robustness(model, out, **options):
    """Measure one network, on the CPU."""
    (found,) = analyze_robustness(model, out=out, protocol=PROTOCOLS, device="cpu", **options).values()
    return found


@pytest.fixture(scope="module")
def asked(digits):
    lists = {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv"}
    return {**lists, "corruptions": ["gamma_bright", "rain", "freeze"], "severities": (1, 4), "workers": 0}


@pytest.fixture(scope="module")
def measured(trained, asked, tmp_path_factory):
    out = tmp_path_factory.mktemp("measured")
    return measure_robustness(trained, out, **asked), out


def test_clean_numbers_are_those_of_vidssl_test(trained, measured, digits, tmp_path):
    found, _ = measured
    lists = {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv", "protocol": PROTOCOLS}
    wanted = measure(trained, out=tmp_path, clips=1, crops=1, workers=0, device="cpu", **lists)
    for name in ("top1", "top5", "mean_class", "ece", "knn", "R@1", "R@5", "chance"):
        assert found[name] == pytest.approx(wanted[name]), name


def test_counts_are_of_the_videos_that_were_read(trained, asked, digits, tmp_path):
    rows = (digits / "motion/train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([*rows[:17], "videos/none.mp4,0"]) + "\n")
    for name in ("classes.txt", "root.txt"):
        (tmp_path / name).write_text((digits / "motion" / name).read_text())
    (tmp_path / "root.txt").write_text(f"{read_list(digits / 'motion/train.csv').root.resolve()}\n")
    few = {"corruptions": ["gamma_bright"], "severities": (1,), "train_list": tmp_path / "train.csv"}
    found = measure_robustness(trained, tmp_path / "out", **asked | few, allow_missing=True)
    assert found["num_train"] == 16 and [Path(gap["path"]).name for gap in found["missing_train"]] == ["none.mp4"]


def test_summaries_follow_from_the_numbers_of_each_severity(measured):
    found, out = measured
    assert json.loads((out / "results.json").read_text()) == found
    table = {name: corruption["severities"] for name, corruption in found["corruptions"].items()}
    assert {name: [*of] for name, of in table.items()} == {
        name: ["1", "4"] for name in ("rain", "gamma_bright", "freeze")
    }
    assert table["gamma_bright"]["4"]["amount"] == 0.3
    for metric in ("top1", "knn", "R@1", "R@5"):
        values = {name: [numbers[metric] for numbers in of.values()] for name, of in table.items()}
        mpc = sum(sum(own) / 2 for own in values.values()) / 3
        assert found[f"{metric}_mPC"] == pytest.approx(mpc)
        assert found[f"{metric}_rPC"] == pytest.approx(mpc / found[metric])
        assert found["groups"]["time"][metric] == pytest.approx(sum(values["freeze"]) / 2)
        assert found["severities"]["4"][metric] == pytest.approx(sum(own[1] for own in values.values()) / 3)
    errors = [of[n]["ece"] for of in table.values() for n in ("1", "4")]
    assert found["ece_mean"] == pytest.approx(sum(errors) / 6) and "ece_mPC" not in found and "chance_mPC" not in found


def test_results_depend_on_the_seed_alone(trained, measured, asked, tmp_path, monkeypatch):
    found, out = measured
    monkeypatch.setattr("vidssl.apps.analysis.robustness._measure", lambda *_: pytest.fail("measured again"))
    assert measure_robustness(trained, out, **asked) == found
    monkeypatch.undo()
    less = {"corruptions": ["rain"], "severities": (4,), "workers": 1, "batch_size": 3}
    own = measure_robustness(trained, tmp_path, **asked | less)
    of_rain = [results["corruptions"]["rain"]["severities"]["4"] for results in (found, own)]
    assert of_rain[0].pop("amount") == of_rain[1].pop("amount") and of_rain[1] == pytest.approx(of_rain[0])


def test_the_command(trained, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(digits / "motion/test.csv"), "--checkpoint", "random", str(trained), "--cfg", str(TOY)]
    words += ["--train-list", str(digits / "motion/train.csv"), "--workers", "0", "--device", "cpu", "--out", "o"]
    words += ["--protocol", "knn", "k=5", "--corruptions", "contrast", "h264_rate", "--severities", "5", "2"]
    cli.run("analyze", ["robustness", *words, "data.moving_digits=null", "data.train=none.csv"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "random:" and lines[1] == "16 videos; 1 clip x 1 crop of 32²; percent, mean over severities 2 5"
    names = ["kNN", "clean", "majority", "light", "compression", "mPC", "rPC"]
    assert [line.split()[0] for line in lines[2:9]] == names
    assert (tmp_path / "o/robustness.png").read_bytes()[:4] == b"\x89PNG"
    assert {path.name for path in (tmp_path / "o").glob("[!.]*")} == {"random", "run", "robustness.png"}


def test_what_is_refused(trained, digits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [str(digits / "motion/test.csv"), "--checkpoint", str(trained), "--out", "o", "--workers", "0"]
    for more, message in (
        (["--severities", "0"], "--severities 0: write numbers from 1 to 5"),
        (["--crops", "3"], "--crops 3: only the central square"),
        (["--protocol", "svm", "--train-list", str(digits / "motion/train.csv")], "accuracy, knn, retrieval, not svm"),
        (["--protocol", "knn"], "protocol knn compares with training videos"),
        (["--corruptions", "snow"], "no corruption 'snow'"),
    ):
        with pytest.raises(ConfigError, match=message):
            cli.run("analyze", ["robustness", *words, *more])
    words[0] = str(digits / "videos/test")
    with pytest.raises(
        DataError, match=r"robustness is that of accuracies, and the videos of .* do not have one label"
    ):
        cli.run("analyze", ["robustness", *words, "--train-list", str(digits / "videos/train")])


def test_help_names_every_corruption(capsys):
    with pytest.raises(SystemExit):
        cli.run("analyze", ["robustness", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert ", ".join(ROBUSTNESS) in text.replace("- ", "-")
