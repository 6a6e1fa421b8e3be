"""examples/fiftyone_features.py: with FiftyOne and its database where both are there, else with a stand-in for them."""

import runpy
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import vidssl
from vidssl.data import read_list

EXAMPLE = Path(__file__).parents[2] / "examples" / "fiftyone_features.py"
CLIPS = {"clips": 2, "crops": 1, "workers": 0, "progress": False}


@pytest.fixture
def paths(digits, tmp_path):
    """Four videos, the second of which is damaged."""
    actual = [str(tmp_path / f"{n}.mp4") for n in range(4)]
    for path, record in zip(actual, read_list(digits / "motion" / "test.csv").records, strict=False):
        shutil.copy(record.path, path)
    Path(actual[1]).write_bytes(b"no video")
    return actual


def expected(paths):
    return vidssl.extract("vidssl-small", [paths[0], *paths[2:]], **CLIPS).x.numpy()


class Samples:
    """Stands in for a dataset."""

    def __init__(self, paths):
        self.fields = {"filepath": paths}

    def values(self, name):
        return self.fields[name]

    def set_values(self, name, values):
        assert len(values) == len(self.fields["filepath"])
        self.fields[name] = values

    def exists(self, name):
        return Samples(
            [path for path, value in zip(*map(self.values, ("filepath", name)), strict=True) if value is not None]
        )


def test_samples_get_their_features(paths, monkeypatch, capsys):
    dataset, calls = Samples(paths), []
    fiftyone, brain = types.ModuleType("fiftyone"), types.ModuleType("fiftyone.brain")
    fiftyone.load_dataset, fiftyone.brain = {"mine": dataset}.get, brain
    for name in ("compute_similarity", "compute_visualization"):
        setattr(
            brain, name, lambda samples, name=name, **options: calls.append((name, samples.values("filepath"), options))
        )
    monkeypatch.setitem(sys.modules, "fiftyone", fiftyone)
    monkeypatch.setitem(sys.modules, "fiftyone.brain", brain)
    names = runpy.run_path(str(EXAMPLE))
    names["add_features"](dataset, "vidssl-small", **CLIPS)
    actual = dataset.values("vidssl")
    assert actual[1] is None
    np.testing.assert_allclose(np.stack([actual[0], *actual[2:]]), expected(paths), rtol=0, atol=1e-5)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "mine"])
    names["main"]()
    assert [name for name, *_ in calls] == ["compute_similarity", "compute_visualization"]
    assert all(options["embeddings"] == "vidssl" and left == [paths[0], *paths[2:]] for _, left, options in calls)
    assert f"left out: {paths[1]}: " in capsys.readouterr().out
