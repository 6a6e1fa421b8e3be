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

from mteb.abstasks import AbsTaskClustering  # noqa: E402
from mteb.abstasks.task_metadata import TaskMetadata  # noqa: E402
from mteb.models.models_protocols import EncoderProtocol  # noqa: E402

VideoEncoder = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "mteb_videos.py"))["VideoEncoder"]
OPTIONS = {"clips": 2, "crops": 1, "workers": 0}


@pytest.fixture(scope="module")
def listed(digits):
    return read_list(digits / "motion" / "test.csv")


def dataset(listed, as_bytes):
    paths = [record.path for record in listed.records]
    rows = [{"bytes": open(path, "rb").read(), "path": None} if as_bytes else path for path in paths]
    made = datasets.Dataset.from_dict({"video": rows, "label": listed.labels.tolist()})
    return made.cast_column("video", datasets.Video())


@pytest.mark.parametrize("as_bytes", [True, False])
def test_features_are_those_of_extract(as_bytes, listed):
    encoder = VideoEncoder("vidssl-small", device="cpu", **OPTIONS)
    assert isinstance(encoder, EncoderProtocol)
    loader = torch.utils.data.DataLoader(dataset(listed, as_bytes))
    found = encoder.encode(loader, task_metadata=None, hf_split="test", hf_subset="default", show_progress_bar=False)
    expected = vidssl.extract("vidssl-small", listed, progress=False, **OPTIONS).x.numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_a_task_of_mteb_runs(listed):
    """MTEB's own clustering of videos, on a local set; k-means and V-measure are MTEB's."""

    class Digits(AbsTaskClustering):
        metadata = TaskMetadata(
            name="MovingDigitsClustering",
            description="Clustering of the motions of digits.",
            dataset={"path": "local/digits", "revision": "1"},
            type="VideoClustering",
            category="v2c",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="v_measure",
            modalities=["video"],
        )
        max_fraction_of_documents_to_embed = None
        input_column_name = "video"
        label_column_name = "label"

        def load_data(self, **_):
            self.dataset = datasets.DatasetDict({"test": dataset(listed, as_bytes=True)})
            self.data_loaded = True

    encoder = VideoEncoder("vidssl-small", device="cpu", **OPTIONS)
    result = mteb.evaluate(encoder, Digits(), cache=None, show_progress_bar=False)
    score = result.task_results[0].get_score()
    assert 0 < score <= 1 and result.model_name == "vidssl/vidssl-small"
