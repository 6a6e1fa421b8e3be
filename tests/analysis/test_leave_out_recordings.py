"""Numbers without each recording: against the same numbers of a list that lacks it."""

import numpy as np
import pytest
import torch

from vidssl.analysis import leave_out_recordings
from vidssl.analysis.leave_out_recordings import without_recordings
from vidssl.api.analyze_uniformity import class_numbers
from vidssl.keyed_generators import generator


@pytest.mark.parametrize("chunk", [1024, 4])
def test_they_are_those_of_the_other_videos(monkeypatch, chunk):
    monkeypatch.setattr(leave_out_recordings, "_CHUNK", chunk)
    rng = generator(0)
    x = torch.from_numpy(rng.normal(size=(30, 6)).astype(np.float32) + 0.4)
    label, groups = np.arange(30) % 3, np.arange(30) // 3 // 2 * 7
    label[:6] = 4  # a class of one recording
    found = without_recordings(x, torch.from_numpy(label), groups, 5)
    for place, group in enumerate(np.unique(groups)):
        rest = torch.from_numpy(np.flatnonzero(groups != group))
        wanted = class_numbers(x[rest], torch.from_numpy(label)[rest], [*"abcde"])
        for name in ("uniformity", "distance_within", "distance_between"):
            assert found[name][place] == pytest.approx(wanted[name], abs=1e-6), name


def test_what_is_undefined_is_nan():
    found = without_recordings(torch.eye(2), torch.tensor([0, 1]), np.array([3, 8]), 2)
    assert np.isnan([value for values in found.values() for value in values]).all()
