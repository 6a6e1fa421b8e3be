"""Runs of detectors: training, resuming, evaluation, errors."""

import json
import sys
from pathlib import Path

import pytest
import torch

import vidssl
from vidssl.apps.detection.config import bind_run
from vidssl.apps.detection.train_and_test import train
from vidssl.base.config import read
from vidssl.base.errors import CheckpointError, ConfigError, DataError
from vidssl.cli import main
from vidssl.models import convolution_check as bfloat16_check

ROOT = Path(__file__).parents[3]
TOY = ROOT / "configs" / "detection" / "toy.yaml"
C4 = "{name: c4, anchor: 8, regions: 8, proposals: 16}"


def bound(path, settings=()):
    return bind_run(read(path, settings), str(path))


def losses(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def trained(toy_run, tmp_path_factory):
    """A finished run, which was measured in between."""
    run = toy_run(tmp_path_factory.mktemp("trained"), "evaluate.every=2", "data.flip=0.0", "optimizer.lr=0.01")
    return run, train(run)


def check_numbers(output, kinds):
    results = json.loads((output / "results.json").read_text())
    names = {f"{kind}_{name}" for kind in kinds for name in ("AP", "AP50", "AP75")} | {"voc_AP50", "voc07_AP50"}
    assert {*results["numbers"]} == names and results["images"] == 8 and results["objects"] == 16
    return results


def test_a_toy_learns_and_is_measured_in_between(trained):
    output = Path(trained[0].output)
    values = losses(output)
    assert len(values) == 6 and values[-1] < 0.95 * values[0]
    results = check_numbers(output, ["box"])
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "box_AP50" in line] == [2, 4, 6]
    assert lines[-1]["box_AP50"] == results["numbers"]["box_AP50"]


C4 = pytest.param(f"detector={C4}", "voc", ["box"], marks=[pytest.mark.long])


@pytest.mark.parametrize(("setting", "form", "kinds"), [C4, ("detector.masks=true", "coco", ["box", "mask"])])
def test_other_detectors_are_trained_and_measured(toy_run, tmp_path, setting, form, kinds):
    train(toy_run(tmp_path, setting, "steps=2", form=form))
    check_numbers(tmp_path, kinds)


def test_bfloat16_is_checked_in_the_pyramid_too(toy_run, tmp_path, monkeypatch):
    """In the first step, at the sizes of its images."""
    seen = []

    def wrong(layers):
        seen.extend((layer, size[2:], trains) for layer, size, trains in layers)
        return {"the output of a layer": 0.5}

    monkeypatch.setattr(bfloat16_check, "_wrong", wrong)
    run = toy_run(tmp_path / "a", "detector.name=fpn", "precision=bfloat16", "steps=1")
    with pytest.raises(ConfigError, match="bfloat16 is wrong on this CPU"):
        train(run)
    pyramid = [one for one in seen if isinstance(one[0], torch.nn.Conv2d) and one[0].in_channels != 3]
    assert any(isinstance(layer, torch.nn.Conv2d) and layer.out_channels == 256 for layer, *_ in pyramid)
    assert all(trains for *_, trains in pyramid)


def test_resuming_is_exact(toy_run, trained, tmp_path):
    run, last = trained
    settings = ("evaluate.every=2", "data.flip=0.0", "optimizer.lr=0.01")
    straight, stopped = torch.load(last, weights_only=True), tmp_path / "stopped"
    train(toy_run(stopped, *settings, "data.workers=1"), until=3)
    assert losses(stopped) == losses(Path(run.output))[:3]
    resumed = torch.load(train(toy_run(stopped, *settings)), weights_only=True)
    assert losses(stopped) == losses(Path(run.output))
    for name, weight in straight["method"].items():
        assert name == "_extra_state" or torch.equal(weight, resumed["method"][name]), name
    assert torch.equal(straight["rng"][0]["cpu"], resumed["rng"][0]["cpu"]) and resumed["classes"] == ["disc", "square"]
    again = bound(stopped / "config.yaml")
    assert again.model_dump() == bind_run(again.model_dump(mode="json"), "again").model_dump()
    with pytest.raises(CheckpointError, match=r"detector.anchor 8, now 16"):
        train(toy_run(stopped, *settings, "detector.anchor=16"))


def test_the_backbone_comes_from_a_run_and_goes_to_one(toy_run, trained, tmp_path):
    backbone = vidssl.load_backbone(trained[1])
    run = toy_run(tmp_path, "steps=1", f"init={trained[1]}", "optimizer.lr=1e-9", "evaluate.list=null")
    second = vidssl.load_backbone(train(run))
    for (name, one), other in zip(backbone.state_dict().items(), second.state_dict().values(), strict=True):
        # Running statistics follow the images.
        assert "running" in name or "num_batches" in name or torch.allclose(one, other, atol=1e-5), name


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("detector.masks=true", "has objects without outlines: set detector.masks=false"),
        ("evaluate.list={shapes}/lists/coco/toy.json", "has other classes than"),
        ("data.train=missing.json", "missing.json: No such file"),
        ("detector.nmae=fpn", "detector.nmae: unknown key"),
        ("method={{name: moco}}", "set one of method and detector"),
    ],
)
def test_mistakes_are_found_before_training(toy_run, shapes, tmp_path, setting, message):
    with pytest.raises((ConfigError, DataError), match=message):
        train(toy_run(tmp_path / "a", setting.format(shapes=shapes)))


def test_other_lists_refuse_a_detector_in_one_line(trained, tmp_path, monkeypatch, capsys):
    videos = tmp_path / "videos.csv"
    videos.write_text("path,label\na.mp4,0\nb.mp4,1\n")
    options = ["--checkpoint", str(trained[1]), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["vidssl", "test", str(videos), *options])
    with pytest.raises(SystemExit) as end:
        main()
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        end.value.code == 2 and "has detector instead of method: it works with vidssl train, launch and test" in error
    )


def test_a_checkpoint_is_tested_as_at_the_end_of_the_run(trained, tmp_path, monkeypatch, capsys, caplog):
    run, last = trained
    options = ["--checkpoint", str(last), "--out", str(tmp_path / "test"), "--device", "cpu"]

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["vidssl", "test", *map(str, arguments), *options])
        main()

    command(run.evaluate.list)
    assert "box_AP50" in capsys.readouterr().out
    tested, at_end = (
        json.loads((folder / "results.json").read_text()) for folder in (tmp_path / "test", Path(run.output))
    )
    assert tested["numbers"] == at_end["numbers"] and tested["checkpoint"]["step"] == 6
    for results, weights in ((tested, "sha256"), (at_end, "step")):  # both lists are the same one
        overlap, fingerprint = results["overlap"]["training"], results["fingerprints"]["query"]
        assert (overlap["videos"], overlap["tested"], overlap["copies"], overlap["changed"]) == (8, 8, 0, False)
        assert overlap["fingerprint"] == fingerprint == results["request"]["list"]
        assert results["fingerprints"]["training"] == fingerprint and weights in results["request"]["weights"]
        assert results["format"] and results["date"] and results["command"] and results["versions"]
    (line,) = {r.getMessage() for r in caplog.records if "8 of 8" in r.getMessage()}
    assert f"are in the list that the network was trained on, {run.data.train} too" in line
    options[3] = str(tmp_path / "other")
    for arguments, message in (
        ([run.evaluate.list, "--clips", 3], "clips does not fit a list of boxes"),
        ([run.evaluate.list, "--train-list", "a.csv"], "train_list does not fit a list of boxes"),
        ([run.evaluate.list, "--protocol", "knn"], "protocol does not fit a list of boxes"),
        ([run.evaluate.list, "--splits", 1], "splits does not fit a list of boxes"),
        ([Path(run.evaluate.list).parents[1] / "coco/toy.json"], "has other classes than the detector"),
    ):
        with pytest.raises(SystemExit):
            command(*arguments)
        error = capsys.readouterr().err
        assert message in error and error.count("error:") == 1


def train_one_of(path, overrides):
    """Train in one of several processes; return all weights."""
    content = torch.load(train(bound(path, overrides)), weights_only=True)
    return {name: weight for name, weight in content["method"].items() if name != "_extra_state"}


@pytest.mark.long
def test_two_processes_stay_equal(toy_run, run_world, tmp_path):
    """`verify_every` compares their weights and state; each detects half of the images."""
    boxes = toy_run(tmp_path / "a").data.train
    overrides = [f"data.train={boxes}", f"evaluate.list={boxes}", "device=cpu"]
    overrides += ["verify_every=1", "steps=3", f"output={tmp_path / 'both'}"]
    first, second = run_world(2, train_one_of, TOY, overrides)
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    assert json.loads((tmp_path / "both/results.json").read_text())["images"] == 8
