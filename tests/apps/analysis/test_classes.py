"""`analyze uniformity`: the numbers against loops, the checkpoints of a run, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from vidssl import cli
from vidssl.apps.analysis.uniformity_and_class_distances import analyze_uniformity
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.extract import extract
from vidssl.jobs.test import test as measure

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("classes") / "run"
    given = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    train(load_run(TOY, [*given, f"output={out}", "steps=3", "checkpoint.every=1", "checkpoint.keep=5"]))
    return out


def measure_classes(model, videos, out, **options):
    """Measure one network, on the CPU."""
    (found,) = analyze_uniformity(model, videos, out=out, workers=0, device="cpu", **options).values()
    return found


def read_features(checkpoint, path, out):
    extract(checkpoint, path, out=out, workers=0, device="cpu")
    return np.load(out / "features.npy").astype(np.float64), read_list(path).labels


def unit_pairs(x, label=None, same=True):
    """Squared distances of all pairs of different videos."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(unit)
    pairs = [(i, j) for i in range(n) for j in range(i) if label is None or (label[i] == label[j]) == same]
    return np.array([((unit[i] - unit[j]) ** 2).sum() for i, j in pairs])


def test_all_checkpoints_of_a_run(trained, digits, tmp_path, monkeypatch, capsys):
    path, out = digits / "motion/train.csv", tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    words = [str(path), "--checkpoint", str(trained), "--workers", "0", "--device", "cpu", "--out", "out"]
    cli.run("analyze", ["uniformity", *words])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "40 videos, 40 recordings, 8 classes; 2 clips x 1 crop of 32²"
    assert [line.split()[1] for line in lines[2:5]] == ["1", "2", "3"]
    found = json.loads((out / "results.json").read_text())
    assert [point["step"] for point in found["curve"]] == [1, 2, 3]
    for point in found["curve"]:
        checkpoint = trained / "checkpoints" / f"step-{point['step']:08d}.pt"
        x, label = read_features(checkpoint, path, tmp_path / str(point["step"]))
        assert point["uniformity"] == pytest.approx(-np.log(np.exp(-2 * unit_pairs(x)).mean()), abs=1e-5)
        own = [-np.log(np.exp(-2 * unit_pairs(x[label == n])).mean()) for n in range(8)]
        assert list(point["uniformity_per_class"].values()) == pytest.approx(own, abs=1e-5)
        assert point["uniformity_class_mean"] == pytest.approx(np.mean(own), abs=1e-5)
        # All classes have five videos: the mean over classes is the mean over pairs.
        assert point["distance_within"] == pytest.approx(unit_pairs(x, label).mean(), abs=1e-5)
        assert point["distance_between"] == pytest.approx(unit_pairs(x, label, same=False).mean(), abs=1e-5)
        assert 0 <= point["ece"] <= 1 and point["top1"] * 40 == pytest.approx(round(point["top1"] * 40))
    assert (out / "classes.png").read_bytes()[:4] == b"\x89PNG"


def test_the_classifier_is_that_of_vidssl_test(trained, digits, tmp_path):
    path, checkpoint = digits / "motion/test.csv", trained / "checkpoints/last.pt"
    found = measure_classes(checkpoint, path, tmp_path / "out")
    wanted = measure(checkpoint, path, out=tmp_path / "test", protocol=["accuracy"], workers=0, device="cpu")
    assert (found["top1"], found["ece"]) == (wanted["top1"], wanted["ece"]) and found["left_out"] == {}
    other = measure_classes(checkpoint, digits / "digit/test.csv", tmp_path / "other")
    assert "ece" not in other and "10 classes" in other["left_out"]["ece"]


def test_several_networks_and_bars(trained, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    last = str(trained / "checkpoints/last.pt")
    words = ["uniformity", str(digits / "motion/test.csv"), "--checkpoint", "random", last, "--cfg", str(TOY)]
    words += ["data.moving_digits=null", "data.train=none.csv", "--workers", "0", "--device", "cpu", "--out", "o"]
    cli.run("analyze", words)
    text = capsys.readouterr().out
    assert "random: no ECE, the network has no classifier" in text and "run: no ECE" not in text
    assert {path.name for path in (tmp_path / "o").glob("[!.]*")} == {"random", "run", "classes.png"}


def test_what_is_there_is_not_measured_again(trained, digits, tmp_path, monkeypatch):
    first = measure_classes(trained, digits / "motion/test.csv", tmp_path / "out")
    monkeypatch.setattr("vidssl.evaluation.features.encode_videos", None)
    assert measure_classes(trained, digits / "motion/test.csv", tmp_path / "out") == first


def test_what_is_refused(trained, digits, tmp_path):
    with pytest.raises(ConfigError, match=r"no checkpoints/step-N\.pt"):
        measure_classes(tmp_path, digits / "motion/test.csv", tmp_path / "out")
    listed = read_list(digits / "motion/test.csv")
    alike = tmp_path / "alike.csv"
    alike.write_text("path,label\n" + "".join(f"{name},0\n" for name in listed.names))
    with pytest.raises(DataError, match="two classes or more"):
        measure_classes(trained, alike, tmp_path / "out", root=listed.root)
