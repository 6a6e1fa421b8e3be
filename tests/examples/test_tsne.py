"""examples/tsne.py: the views are those of the training, and the map is drawn."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl import cli
from vidssl.base.keyed_generators import generator
from vidssl.data import read_list

EXAMPLE = Path(__file__).parents[2] / "examples" / "tsne.py"


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("tsne")
    data = [f"data.train={digits / 'motion' / 'train.csv'}", "data.moving_digits=null", "data.workers=0"]
    cli.run("train", ["--cfg", "toy/sce", "steps=1", *data, "device=cpu", f"output={out / 'run'}", "--quiet"])
    return out / "run" / "checkpoints" / "last.pt"


def test_each_class_gives_its_videos_and_each_video_its_views(checkpoint, digits):
    names = runpy.run_path(str(EXAMPLE))
    videos = read_list(digits / "motion" / "test.csv")
    rows = names["draw_rows"](videos, classes=3, count=2, seed=0)
    labels = videos.labels[rows].tolist()
    assert labels == sorted(labels) and len({*rows}) == len(rows) and len({*labels}) == 3
    assert all(labels.count(label) <= 2 for label in labels)
    first = generator(0, labels[0]).permutation(np.flatnonzero(videos.labels == labels[0]))[0]
    x = names["encode"](str(checkpoint), videos, [int(first)], 3, 0)
    again = names["encode"](str(checkpoint), videos, [*reversed(rows)], 3, 0)
    assert x.shape == (3, again.shape[1]) and len(again) == 3 * len(rows)
    np.testing.assert_allclose(again[-3:], x, rtol=1e-4, atol=1e-5)  # the same views, wherever in the list
    assert not torch.allclose(torch.from_numpy(x[0]), torch.from_numpy(x[1]))
