"""Runs of detectors: training, resuming, evaluation, errors."""

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import vidssl
from vidssl.apps.detection.config import bind_run
from vidssl.apps.detection.prepare_voc_coco_ava import prepare_voc
from vidssl.apps.detection.train import train
from vidssl.base.config import read
from vidssl.base.errors import CheckpointError, ConfigError, DataError
from vidssl.cli import main
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train as pretrain
from vidssl.models import convolution_check as bfloat16_check

ROOT = Path(__file__).parents[3]
TOY = ROOT / "configs" / "detection" / "toy.yaml"
TOYS = runpy.run_path(str(ROOT / "tests" / "toys.py"))
C4 = "{name: c4, anchor: 8, regions: 8, proposals: 16}"


def bound(path, settings=()):
    return bind_run(read(path, settings), str(path))


def losses(output):
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


SLOW = pytest.param(f"detector={C4}", marks=[pytest.mark.long, pytest.mark.covers("vidssl/apps/detection")])


@pytest.mark.parametrize("setting", ["detector.name=fpn", SLOW, "detector.masks=true"])
def test_a_toy_learns_and_is_measured(toy_run, tmp_path, setting):
    form = "coco" if "masks" in setting else "voc"
    rest = ["data.flip=0.0", "optimizer.lr=0.01", "steps=10", "checkpoint.every=10"]
    train(toy_run("a", setting, *rest, form=form))
    values = losses(tmp_path / "a")
    assert len(values) == 10 and sum(values[-3:]) < 0.9 * sum(values[:3])
    results = json.loads((tmp_path / "a/results.json").read_text())
    kinds = ["box", "mask"] if form == "coco" else ["box"]
    names = {f"{kind}_{name}" for kind in kinds for name in ("AP", "AP50", "AP75")} | {"voc_AP50", "voc07_AP50"}
    assert {*results["numbers"]} == names and results["images"] == 8 and results["objects"] == 16
    last = json.loads((tmp_path / "a/metrics.jsonl").read_text().splitlines()[-1])
    assert last["step"] == 10 and last["box_AP50"] == results["numbers"]["box_AP50"]


def test_bfloat16_is_checked_in_the_pyramid_too(toy_run, monkeypatch):
    """In the first step, at the sizes of its images."""
    seen = []

    def wrong(layers):
        seen.extend((layer, size[2:], trains) for layer, size, trains in layers)
        return {"the output of a layer": 0.5}

    monkeypatch.setattr(bfloat16_check, "_wrong", wrong)
    run = toy_run("a", "detector.name=fpn", "precision=bfloat16", "steps=1")
    with pytest.raises(ConfigError, match="bfloat16 is wrong on this CPU"):
        train(run)
    pyramid = [one for one in seen if isinstance(one[0], torch.nn.Conv2d) and one[0].in_channels != 3]
    assert any(isinstance(layer, torch.nn.Conv2d) and layer.out_channels == 256 for layer, *_ in pyramid)
    assert all(trains for *_, trains in pyramid)


def test_resuming_is_exact(toy_run, tmp_path):
    straight = torch.load(train(toy_run("straight")), weights_only=True)
    train(toy_run("stopped", "data.workers=1"), until=3)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")[:3]
    resumed = torch.load(train(toy_run("stopped")), weights_only=True)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "straight")
    for name, weight in straight["method"].items():
        assert name == "_extra_state" or torch.equal(weight, resumed["method"][name]), name
    assert torch.equal(straight["rng"][0]["cpu"], resumed["rng"][0]["cpu"]) and resumed["classes"] == ["disc", "square"]
    assert (tmp_path / "stopped/results.json").exists()
    again = bound(tmp_path / "stopped/config.yaml")
    assert again.model_dump() == bind_run(again.model_dump(mode="json"), "again").model_dump()
    with pytest.raises(CheckpointError, match=r"detector.anchor 8, now 16"):
        train(toy_run("stopped", "detector.anchor=16"))


def test_the_backbone_comes_from_a_run_and_goes_to_one(toy_run, tmp_path):
    torch.manual_seed(5)
    first = train(toy_run("first", "steps=1", "seed=5"))
    backbone = vidssl.load_backbone(first)
    run = toy_run("second", "steps=1", f"init={first}", "optimizer.lr=1e-9")
    second = vidssl.load_backbone(train(run))
    for (name, one), other in zip(backbone.state_dict().items(), second.state_dict().values(), strict=True):
        # Running statistics follow the images.
        assert "running" in name or "num_batches" in name or torch.allclose(one, other, atol=1e-5), name


def test_it_is_measured_in_between(toy_run, tmp_path):
    train(toy_run("a", "evaluate.every=2", "steps=5"))
    lines = [json.loads(line) for line in (tmp_path / "a/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "box_AP" in line] == [2, 4, 5]


def test_mistakes_are_found_before_training(toy_run, shapes, tmp_path):
    with pytest.raises(ConfigError, match=r"has objects without outlines: set detector.masks=false"):
        train(toy_run("a", "detector.masks=true"))
    with pytest.raises(DataError, match="has other classes than"):
        train(toy_run("a", f"evaluate.list={shapes}/lists/coco/toy.json"))
    with pytest.raises(DataError, match=r"missing.json: No such file"):
        train(toy_run("a", "data.train=missing.json"))
    with pytest.raises(ConfigError, match=r"detector.nmae: unknown key"):
        toy_run("a", "detector.nmae=fpn")
    with pytest.raises(ConfigError, match="set one of method and detector"):
        toy_run("a", "method={name: moco}")
    with pytest.raises(DataError, match="header"):
        read_list(shapes / "lists/voc/trainval.json")


def test_other_commands_refuse_a_detector_in_one_line(toy_run, tmp_path, monkeypatch, capsys):
    videos = tmp_path / "videos.csv"
    videos.write_text("path,label\na.mp4,0\nb.mp4,1\n")
    options = ["--checkpoint", str(train(toy_run("a", "steps=1"))), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["vidssl", "test", str(videos), *options])
    with pytest.raises(SystemExit) as end:
        main()
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        end.value.code == 2 and "has detector instead of method: it works with vidssl train, launch and test" in error
    )


def test_a_checkpoint_is_tested_as_at_the_end_of_the_run(toy_run, tmp_path, monkeypatch, capsys, caplog):
    run = toy_run("a")
    options = ["--checkpoint", str(train(run)), "--out", str(tmp_path / "test"), "--device", "cpu"]

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["vidssl", "test", *map(str, arguments), *options])
        main()

    command(run.evaluate.list)
    assert "box_AP50" in capsys.readouterr().out
    tested, trained = (json.loads((tmp_path / n / "results.json").read_text()) for n in ("test", "a"))
    assert tested["numbers"] == trained["numbers"] and tested["checkpoint"]["step"] == 6
    for results, weights in ((tested, "sha256"), (trained, "step")):  # both lists are the same one
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


def train_one_of(path, overrides, until):
    """Train in one of several processes; return all weights."""
    content = torch.load(train(bound(path, overrides), until), weights_only=True)
    return {name: weight for name, weight in content["method"].items() if name != "_extra_state"}


@pytest.mark.long
def test_two_processes_stay_equal_and_resume_exactly(toy_run, run_world, tmp_path):
    """`verify_every` compares their weights and state; each detects half of the images."""
    boxes = toy_run("a").data.train
    overrides = [f"data.train={boxes}", f"evaluate.list={boxes}", "device=cpu"]
    straight, stopped = (
        [*overrides, "verify_every=1", f"output={tmp_path / name}"] for name in ("straight", "stopped")
    )
    (one, other) = run_world(2, train_one_of, TOY, straight, None)
    run_world(2, train_one_of, TOY, stopped, 3)
    (resumed, _) = run_world(2, train_one_of, TOY, stopped, None)
    assert all(torch.equal(one[name], other[name]) and torch.equal(one[name], resumed[name]) for name in one)
    assert json.loads((tmp_path / "stopped/results.json").read_text())["images"] == 8


@pytest.mark.covers("vidssl/apps/detection", "vidssl/engine")
@pytest.mark.long
def test_it_learns_forty_images_of_blood_cells(real, digits, tmp_path):
    """From a checkpoint of vidssl, on the CPU, in at most five minutes: AP50 above 0.8 on images that it has seen."""
    source = real / "boxes" / "bccd"
    if not source.is_dir():
        pytest.skip("../shared/data has no boxes/bccd")
    prepare_voc(source, tmp_path / "lists")
    content = json.loads((tmp_path / "lists/train.json").read_text())
    content["images"] = content["images"][:40]
    kept = {image["id"] for image in content["images"]}
    content["annotations"] = [item for item in content["annotations"] if item["image_id"] in kept]
    (tmp_path / "lists/forty.json").write_text(json.dumps(content))
    where = TOYS["placed"]("supervised", digits, tmp_path / "pretrained")
    first = pretrain(load_run(TOYS["CONFIGS"] / "supervised.yaml", [*where, "backbone={name: resnet18}", "steps=2"]))
    boxes = tmp_path / "lists/forty.json"
    rest = [
        f"data.train={boxes}",
        f"evaluate.list={boxes}",
        f"init={first}",
        f"output={tmp_path / 'run'}",
        "device=cpu",
    ]
    train(
        bound(
            ROOT / "configs/detection/small.yaml", [*rest, "steps=240", "data.flip=0.0", "data.workers=0", "device=cpu"]
        )
    )
    numbers = json.loads((tmp_path / "run/results.json").read_text())["numbers"]
    assert numbers["box_AP50"] > 0.8 and numbers["voc07_AP50"] > 0.8, numbers
