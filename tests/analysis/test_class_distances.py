"""Distances of classes against a loop over pairs."""

import numpy as np
import pytest
import torch

from vidssl.analysis.class_distances import class_distances
from vidssl.keyed_generators import generator


def loop(x, label, one, other):
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    rows = [(a, b) for a in np.flatnonzero(label == one) for b in np.flatnonzero(label == other) if a != b]
    return np.mean([((unit[a] - unit[b]) ** 2).sum() for a, b in rows]) if rows else np.nan


def test_distances_are_those_of_a_loop():
    rng = generator(0)
    x, label = rng.normal(size=(30, 5)) + 0.3, np.array([0] * 12 + [1] * 9 + [3] * 8 + [4])  # no 2, one 4
    found = class_distances(torch.from_numpy(x), torch.from_numpy(label), 5)
    for i in range(5):
        for j in range(5):
            assert found[i, j].item() == pytest.approx(loop(x, label, i, j), abs=1e-12, nan_ok=True)
    assert found[2].isnan().all() and found[4, 4].isnan() and not found[4, 0].isnan()


def test_equal_and_opposite_features():
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-3.0, 0.0], [-1.0, 0.0]])
    assert class_distances(x, torch.tensor([0, 0, 1, 1]), 2).tolist() == [[0, 4], [4, 0]]
