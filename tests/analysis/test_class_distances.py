"""Distances of classes: against a loop over pairs of different recordings, and what is said of random classes."""

import numpy as np
import pytest
import torch

from vidssl.apps.analysis import uniformity_and_class_distances as module
from vidssl.apps.analysis.sections import _distances
from vidssl.apps.analysis.uniformity_and_class_distances import class_distances, class_numbers, without_recordings
from vidssl.apps.analysis.verdicts import ScoreSample, classes
from vidssl.base.keyed_generators import generator


def loop(x, label, groups, one, other):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = [(a, b) for a in np.flatnonzero(label == one) for b in np.flatnonzero(label == other)]
    found = [((unit[a] - unit[b]) ** 2).sum() for a, b in pairs if groups[a] != groups[b]]
    return np.mean(found) if found else np.nan


@pytest.mark.parametrize(
    "groups",
    [np.arange(30), np.arange(30) // 3 * 7, np.arange(30) % 4],
    ids=["a video each", "of one class or two", "of all classes"],
)
def test_distances_are_those_of_a_loop(groups):
    rng = generator(0)
    x, label = rng.normal(size=(30, 5)) + 0.3, np.array([0] * 12 + [1] * 9 + [3] * 8 + [4])  # no 2, one 4
    found = class_distances(torch.from_numpy(x), torch.from_numpy(label), groups, 5)
    for i in range(5):
        for j in range(5):
            assert found[i, j].item() == pytest.approx(loop(x, label, groups, i, j), abs=1e-12, nan_ok=True)
    assert found[2].isnan().all() and found[4, 4].isnan() and not found[4, 0].isnan()


def test_equal_and_opposite_features():
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-3.0, 0.0], [-1.0, 0.0]])
    assert class_distances(x, torch.tensor([0, 0, 1, 1]), np.arange(4), 2).tolist() == [[0, 4], [4, 0]]


def test_a_class_of_one_recording_has_no_distance_within():
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-3.0, 0.0], [-1.0, 0.0]])
    found = class_distances(x, torch.tensor([0, 0, 1, 1]), np.array([0, 0, 1, 2]), 2)
    assert found[0, 0].isnan() and found[1, 1] == 0 and found[0, 1] == 4


@pytest.mark.parametrize("chunk", [1024, 4])
def test_they_are_those_of_the_other_videos(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    rng = generator(0)
    x = torch.from_numpy(rng.normal(size=(30, 6)).astype(np.float32) + 0.4)
    label, groups = np.arange(30) % 3, np.arange(30) // 3 // 2 * 7
    label[:6] = 4  # a class of one recording
    found = without_recordings(x, torch.from_numpy(label), groups, 5)
    for place, group in enumerate(np.unique(groups)):
        rest = torch.from_numpy(np.flatnonzero(groups != group))
        wanted = class_numbers(x[rest], torch.from_numpy(label)[rest], groups[groups != group], [*"abcde"])
        for name in ("uniformity", "distance_within", "distance_between"):
            assert found[name][place] == pytest.approx(wanted[name], abs=1e-6), name


def test_what_is_undefined_is_nan():
    found = without_recordings(torch.eye(2), torch.tensor([0, 1]), np.array([3, 8]), 2)
    assert np.isnan([value for values in found.values() for value in values]).all()


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
    """At most 6.5 % of 60 sets, and by how much that may be exceeded (binomial, 1 in 1,000)."""
    separated = 0
    for seed in range(60):
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
        found = _distances({**numbers, "without_recording": without_recordings(x, label, groups, len(names))})
        said = classes(ScoreSample(len(groups), recordings), found["ratio"], numbers["uniformity"]).text
        separated += said.startswith("Classes are separated")
    assert separated <= 10


def test_classes_of_recordings_that_differ_are_separated():
    rng = generator(0)
    groups = np.repeat(np.arange(24), 4)
    label = groups % 2
    x = rng.normal(size=(24, 16))[groups] + 0.5 * rng.normal(size=(96, 16)) + 3 * label[:, None]
    x, label = torch.from_numpy(x.astype(np.float32)), torch.from_numpy(label)
    numbers = class_numbers(x, label, groups, ["a", "b"])
    found = _distances({**numbers, "without_recording": without_recordings(x, label, groups, 2)})
    assert classes(ScoreSample(96, 24), found["ratio"], 1.0).text.startswith("Classes are separated")
