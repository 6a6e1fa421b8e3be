"""`analyze robustness`: its numbers are those of `vidssl test` and of its parts, and what is refused."""

import json
from pathlib import Path

import pytest

from vidssl import cli
from vidssl.apps.analysis.corrupted_clips import ROBUSTNESS
from vidssl.apps.analysis.robustness import ORIGINAL, analyze_robustness, summarise
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.jobs.test import test as measure

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
PROTOCOLS = [{"name": "accuracy"}, {"name": "knn", "k": 5}, {"name": "retrieval", "ks": [1, 5]}]


def measure_robustness(model, out, **options):
    """Measure one network, on the CPU."""
    (results,) = analyze_robustness(model, out=out, protocol=PROTOCOLS, device="cpu", **options).values()
    return results


@pytest.fixture(scope="module")
def asked(digits):
    lists = {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv"}
    return {**lists, "corruptions": ["gamma_bright", "rain", "freeze"], "severities": (1, 4), "workers": 0}


@pytest.fixture(scope="module")
def measured(trained, asked, tmp_path_factory):
    out = tmp_path_factory.mktemp("measured")
    return measure_robustness(trained, out, **asked), out


def test_clean_numbers_are_those_of_vidssl_test(trained, measured, digits, tmp_path):
    results, _ = measured
    lists = {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv", "protocol": PROTOCOLS}
    expected = measure(trained, out=tmp_path, clips=1, crops=1, workers=0, device="cpu", **lists)
    for name in ("top1", "top5", "mean_class", "ece", "knn", "R@1", "R@5", "chance"):
        assert results[name] == pytest.approx(expected[name]), name


def test_counts_are_of_the_videos_that_were_read(trained, asked, digits, tmp_path):
    rows = (digits / "motion/train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join([*rows[:17], "videos/none.mp4,0"]) + "\n")
    for name in ("classes.txt", "root.txt"):
        (tmp_path / name).write_text((digits / "motion" / name).read_text())
    (tmp_path / "root.txt").write_text(f"{read_list(digits / 'motion/train.csv').root.resolve()}\n")
    few = {"corruptions": ["gamma_bright"], "severities": (1,), "train_list": tmp_path / "train.csv"}
    results = measure_robustness(trained, tmp_path / "out", **asked | few, allow_missing=True)
    assert results["num_train"] == 16 and [Path(gap["path"]).name for gap in results["missing_train"]] == ["none.mp4"]


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
    actual, out = measured
    monkeypatch.setattr("vidssl.apps.analysis.robustness.Robustness.measure", lambda _: pytest.fail("measured again"))
    assert measure_robustness(trained, out, **asked) == actual
    monkeypatch.undo()
    less = {"corruptions": ["rain"], "severities": (4,), "workers": 1, "batch_size": 3}
    own = measure_robustness(trained, tmp_path, **asked | less)
    of_rain = [results["corruptions"]["rain"]["severities"]["4"] for results in (actual, own)]
    assert of_rain[0].pop("amount") == of_rain[1].pop("amount") and of_rain[1] == pytest.approx(of_rain[0])


def test_the_command(trained, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(digits / "motion/test.csv"), "--checkpoint", "random", trained, "--cfg", str(TOY)]
    words += ["--train-list", str(digits / "motion/train.csv"), "--workers", "0", "--device", "cpu", "--out", "o"]
    words += ["--protocol", "knn", "k=5", "--corruptions", "contrast", "h264_rate", "--severities", "5", "2"]
    cli.run("analyze", ["robustness", *words, "data.moving_digits=null", "data.train=none.csv"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "16 videos; 1 clip x 1 crop of 32²; 40 training videos"
    assert lines[1].split() == ["kNN", "on", "corrupted", "videos,", "percent", "random", "run"]
    names = ["clean", "severity 2", "severity 5", "light", "compression", "mPC", "majority"]
    assert [line[: len(name)] for name, line in zip(names, lines[2:9], strict=True)] == names
    actual = {name: json.loads((tmp_path / "o" / name / "results.json").read_text()) for name in ("random", "run")}
    keys = {"severity 5": lambda of: of["severities"]["5"]["knn"], "light": lambda of: of["groups"]["light"]["knn"]}
    for name, key in {**keys, "mPC": lambda of: of["knn_mPC"]}.items():
        (line,) = (line for line in lines[2:9] if line.startswith(name))
        assert line.split()[-2:] == [f"{100 * key(results):.1f}" for results in actual.values()]
    assert {path.name for path in (tmp_path / "o").glob("[!.]*")} == {"random", "run", "index.html"}
    page = (tmp_path / "o/index.html").read_text()
    assert "kNN of each corruption: random, percent" in page and "h264 rate" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--severities", "0"], "--severities 0: write numbers from 1 to 5"),
        (["--crops", "3"], "--crops 3: only the central square"),
        (["--protocol", "svm", "--train-list", "TRAIN"], "accuracy, knn, retrieval, not svm"),
        (["--protocol", "knn"], "protocol knn compares with training videos"),
        (["--corruptions", "snow"], "no corruption 'snow'"),
    ],
)
def test_what_is_refused(trained, digits, tmp_path, words, message):
    options = [str(digits / "motion/test.csv"), "--checkpoint", trained, "--out", str(tmp_path / "o"), "--workers", "0"]
    with pytest.raises(ConfigError, match=message):
        cli.run("analyze", ["robustness", *options, *(w.replace("TRAIN", f"{digits}/motion/train.csv") for w in words)])


def test_lists_without_labels_and_help(trained, digits, tmp_path, capsys):
    words = ["--checkpoint", trained, "--out", str(tmp_path / "o"), "--workers", "0"]
    expected = r"robustness is that of accuracies: the videos of .* do not have one label"
    with pytest.raises(DataError, match=expected):
        cli.run("analyze", ["robustness", f"{digits}/videos/test", *words, "--train-list", f"{digits}/videos/train"])
    with pytest.raises(SystemExit):
        cli.run("analyze", ["robustness", "--help"])
    assert ", ".join(ROBUSTNESS) in " ".join(capsys.readouterr().out.split()).replace("- ", "-")


@pytest.mark.parametrize(("clean", "mpc", "rpc"), [(73.0, 59.2, 81.1), (66.2, 53.3, 80.5)])
def test_published_rows_follow_the_definition(clean, mpc, rpc):
    """R3D-50 and R3D-18 on Mini-Kinetics-C (Yi et al., 2021)."""
    numbers = {("fog", 0): mpc + 10, ("fog", 1): mpc - 10, ("rain", 0): mpc, ("rain", 1): mpc}
    found = [summarise({k: {"top1": v} for k, v in {ORIGINAL: of, **numbers}.items()}) for of in (clean, 0.0)]
    assert 100 * found[0]["top1_rPC"] == pytest.approx(rpc, abs=0.05) and "top1_rPC" not in found[1]


def test_a_group_is_the_mean_of_its_corruptions():
    scores = {("jpeg", 0): 0.8, ("jpeg", 2): 0.6, ("fog", 0): 0.5, ("fog", 2): 0.1, ("rain", 0): 0.4, ("rain", 2): 0.0}
    groups = summarise({k: {"knn": v} for k, v in {ORIGINAL: 1.0, **scores}.items()})["groups"]
    assert groups == {"compression": {"knn": pytest.approx(0.7)}, "weather": {"knn": pytest.approx(0.25)}}
