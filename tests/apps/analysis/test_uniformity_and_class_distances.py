"""Uniformity and distances of classes: against loops over pairs of recordings, and what is said of random classes."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl import cli
from vidssl.apps.analysis import uniformity_and_class_distances as module
from vidssl.apps.analysis.uniformity_and_class_distances import (
    analyze_uniformity,
    class_distances,
    class_numbers,
    distance_estimates,
    without_recordings,
)
from vidssl.apps.analysis.verdicts import ScoreSample, classes
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.data.video_list import read_list
from vidssl.jobs.extract import extract
from vidssl.jobs.test import test as measure

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"


def loop(x, label, groups, one, other):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [(a, b) for a in np.flatnonzero(label == one) for b in np.flatnonzero(label == other)]
    actual = [((unit[a] - unit[b]) ** 2).sum() for a, b in pairs if groups[a] != groups[b]]
    return np.mean(actual) if actual else np.nan


@pytest.mark.parametrize(
    "groups",
    [np.arange(30), np.arange(30) // 3 * 7, np.arange(30) % 4],
    ids=["a video each", "of one class or two", "of all classes"],
)
def test_distances_are_those_of_a_loop(groups):
    rng = generator(0)
    x, label = rng.normal(size=(30, 5)) + 0.3, np.array([0] * 12 + [1] * 9 + [3] * 8 + [4])  # no 2, one 4
    distances = class_distances(torch.from_numpy(x), torch.from_numpy(label), groups, 5)
    for i in range(5):
        for j in range(5):
            assert distances[i, j].item() == pytest.approx(loop(x, label, groups, i, j), abs=1e-12, nan_ok=True)
    assert distances[2].isnan().all() and distances[4, 4].isnan() and not distances[4, 0].isnan()


def test_a_class_of_one_recording_has_no_distance_within():
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-3.0, 0.0], [-1.0, 0.0]])
    distances = class_distances(x, torch.tensor([0, 0, 1, 1]), np.array([0, 0, 1, 2]), 2)
    assert distances[0, 0].isnan() and distances[1, 1] == 0 and distances[0, 1] == 4


@pytest.mark.parametrize("chunk", [1024, 4])
def test_they_are_those_of_the_other_videos(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    rng = generator(0)
    x = torch.from_numpy(rng.normal(size=(30, 6)).astype(np.float32) + 0.4)
    label, groups = np.arange(30) % 3, np.arange(30) // 3 // 2 * 7
    label[:6] = 4  # a class of one recording
    actual = without_recordings(x, torch.from_numpy(label), groups, 5)
    for place, group in enumerate(np.unique(groups)):
        rest = torch.from_numpy(np.flatnonzero(groups != group))
        expected = class_numbers(x[rest], torch.from_numpy(label)[rest], groups[groups != group], [*"abcde"])
        for name in ("uniformity", "distance_within", "distance_between"):
            assert actual[name][place] == pytest.approx(expected[name], abs=1e-6), name


def test_what_is_undefined_is_nan():
    actual = without_recordings(torch.eye(2), torch.tensor([0, 1]), np.array([3, 8]), 2)
    assert np.isnan([value for values in actual.values() for value in values]).all()


@pytest.mark.parametrize(
    ("recordings", "clips", "number", "noise"),
    [
        (24, 4, 2, 0.5),
        (60, 4, 3, 0.5),
        (60, 4, 6, 0.5),
        (30, 2, 5, 0.7),
        (24, 1, 2, 1.0),
        (36, 4, 6, 0.2),
        (40, 3, 0.8, 0.5),
    ],
)
def test_classes_given_to_recordings_at_random_are_not_separated(recordings, clips, number, noise):
    """At most 6.5 % of 30 sets, and by how much that may be exceeded (binomial, 1 in 1,000)."""
    separated = 0
    for seed in range(30):
        rng = generator(seed, 1)
        groups = np.repeat(np.arange(recordings), clips)
        if number < 1:  # the share of the larger of two classes
            classes_of = (np.arange(recordings) >= number * recordings).astype(np.int64)
        else:
            classes_of = np.arange(recordings) % number
        label = torch.from_numpy(rng.permutation(classes_of)[groups])
        x = rng.normal(size=(recordings, 16))[groups] + noise * rng.normal(size=(len(groups), 16))
        x = torch.from_numpy(x.astype(np.float32))
        names = [str(one) for one in range(int(label.max()) + 1)]
        numbers = class_numbers(x, label, groups, names)
        actual = distance_estimates({**numbers, "without_recording": without_recordings(x, label, groups, len(names))})
        said = classes(ScoreSample(len(groups), recordings), actual["ratio"], numbers["uniformity"]).verdict
        separated += said.startswith("Classes are separated")
    assert separated <= 7


def test_classes_of_recordings_that_differ_are_separated():
    rng = generator(0)
    groups = np.repeat(np.arange(24), 4)
    label = groups % 2
    x = rng.normal(size=(24, 16))[groups] + 0.5 * rng.normal(size=(96, 16)) + 3 * label[:, None]
    x, label = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(label)
    numbers = class_numbers(x, label, groups, ["a", "b"])
    actual = distance_estimates({**numbers, "without_recording": without_recordings(x, label, groups, 2)})
    assert classes(ScoreSample(96, 24), actual["ratio"], 1.0).verdict.startswith("Classes are separated")


# On real files ----------------------------------------------------------------------------------------------


def measure_classes(model, videos, out, **options):
    """Measure one network, on the CPU."""
    (results,) = analyze_uniformity(model, videos, out=out, workers=0, device="cpu", **options).values()
    return results


def read_features(checkpoint, path, out):
    extract(checkpoint, path, out=out, workers=0, device="cpu")
    return np.load(out / "features.npy").astype(np.float64), read_list(path).labels


def unit_pairs(x, label=None, same=True):
    """Squared distances of all pairs of different videos."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(unit)
    pairs = [(i, j) for i in range(n) for j in range(i) if label is None or (label[i] == label[j]) == same]
    return np.array([((unit[i] - unit[j]) ** 2).sum() for i, j in pairs])


def test_all_checkpoints_of_a_run(run_folder, digits, tmp_path, monkeypatch, capsys):
    path, out = digits / "motion/train.csv", tmp_path / "out"
    monkeypatch.chdir(tmp_path)
    words = [str(path), "--checkpoint", str(run_folder), "--workers", "0", "--device", "cpu", "--out", "out"]
    cli.run("analyze", ["uniformity", *words])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "40 videos; 2 clips x 1 crop of 32²; 40 recordings, 8 classes"
    assert lines[1].endswith("run step 1  run step 2  run step 3")
    stored = json.loads((out / "results.json").read_text())
    assert [point["step"] for point in stored["curve"]] == [1, 2, 3]
    for point in stored["curve"]:
        checkpoint = run_folder / "checkpoints" / f"step-{point['step']:08d}.pt"
        x, label = read_features(checkpoint, path, tmp_path / str(point["step"]))
        assert point["uniformity"] == pytest.approx(-np.log(np.exp(-2 * unit_pairs(x)).mean()), abs=1e-5)
        own = [-np.log(np.exp(-2 * unit_pairs(x[label == n])).mean()) for n in range(8)]
        assert list(point["uniformity_per_class"].values()) == pytest.approx(own, abs=1e-5)
        assert point["uniformity_class_mean"] == pytest.approx(np.mean(own), abs=1e-5)
        # All classes have five videos: the mean over classes is the mean over pairs.
        assert point["distance_within"] == pytest.approx(unit_pairs(x, label).mean(), abs=1e-5)
        assert point["distance_between"] == pytest.approx(unit_pairs(x, label, same=False).mean(), abs=1e-5)
        assert 0 <= point["ece"] <= 1 and point["top1"] * 40 == pytest.approx(round(point["top1"] * 40))
    values = [line.split()[-3:] for line in lines if line.startswith("distance between")]
    assert values == [[f"{point['distance_between']:.3f}" for point in stored["curve"]]]
    page = (out / "index.html").read_text()
    assert "data:image/png" in page and all(value in page for value in values[0])


def test_the_classifier_is_that_of_vidssl_test(trained, digits, tmp_path):
    path, checkpoint = digits / "motion/test.csv", trained
    results = measure_classes(checkpoint, path, tmp_path / "out")
    expected = measure(checkpoint, path, out=tmp_path / "test", protocol=["accuracy"], workers=0, device="cpu")
    assert (results["top1"], results["ece"]) == (expected["top1"], expected["ece"]) and results["left_out"] == {}
    other = measure_classes(checkpoint, digits / "digit/test.csv", tmp_path / "other")
    assert "ece" not in other and "10 classes" in other["left_out"]["ece"]


def test_several_networks(trained, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["uniformity", str(digits / "motion/test.csv"), "--checkpoint", "random", trained, "--cfg", str(TOY)]
    words += ["data.moving_digits=null", "data.train=none.csv", "--workers", "0", "--device", "cpu", "--out", "o"]
    cli.run("analyze", words)
    text = capsys.readouterr().out
    assert "random: no ECE, the network has no classifier" in text and "run: no ECE" not in text
    assert {path.name for path in (tmp_path / "o").glob("[!.]*")} == {"random", "run", "index.html"}


def test_what_is_refused(trained, digits, tmp_path):
    with pytest.raises(ConfigError, match=r"no checkpoints/step-N\.pt"):
        measure_classes(tmp_path, digits / "motion/test.csv", tmp_path / "out")
    listed = read_list(digits / "motion/test.csv")
    alike = tmp_path / "alike.csv"
    alike.write_text("path,label\n" + "".join(f"{name},0\n" for name in listed.names))
    with pytest.raises(DataError, match="two classes or more"):
        measure_classes(trained, alike, tmp_path / "out", root=listed.root)
