"""examples/mteb_videos.py: its features are those of `vidssl.extract`, and MTEB's own tasks run on it."""

import os
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl.data import read_list

os.environ.setdefault("HF_HUB_OFFLINE", "1")
mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")

from mteb.models.models_protocols import EncoderProtocol  # noqa: E402

VideoEncoder = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mteb_videos.py"))["VideoEncoder"]
OPTIONS = {"clips": 2, "crops": 1, "workers": 0}


@pytest.fixture(scope="module")
def listed(digits):
    return read_list(digits / "motion" / "test.csv")


def dataset(listed):
    paths = [record.path for record in listed.records]
    rows = [{"bytes": open(path, "rb").read(), "path": None} for path in paths]
    made = datasets.Dataset.from_dict({"video": rows, "label": listed.labels.tolist()})
    return made.cast_column("video", datasets.Video())


def test_features_are_those_of_extract(listed):
    encoder = VideoEncoder("vidssl-small", device="cpu", **OPTIONS)
    assert isinstance(encoder, EncoderProtocol)
    loader = torch.utils.data.DataLoader(dataset(listed))
    actual = encoder.encode(loader, task_metadata=None, hf_split="test", hf_subset="default", show_progress_bar=False)
    expected = vidssl.extract("vidssl-small", listed, progress=False, **OPTIONS).x.numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
