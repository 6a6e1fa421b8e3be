"""examples/to_fiftyone.py and to_lightly_studio.py: with stand-ins for the libraries, and with FiftyOne where it is."""

import runpy
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import vidssl

EXAMPLES = Path(__file__).parents[2] / "examples"
CLIPS = {"clips": 1, "crops": 1, "workers": 0, "progress": False}


@pytest.fixture(scope="module")
def map_folder(digits, tmp_path_factory):
    pytest.importorskip("pyarrow")
    out = tmp_path_factory.mktemp("map") / "map"
    vidssl.map(digits / "motion/test.csv", "vidssl-small", out=out, to="parquet", thumbnails=0, layout="pca", **CLIPS)
    return out


def test_lightly_studio_gets_the_features_by_path(map_folder, monkeypatch):
    """CI cannot run LightlyStudio, which needs pandas 2: this is the part that vidssl adds."""
    studio, serve, embedder = (types.ModuleType(name) for name in ("lightly_studio", "serve", "embedder"))
    embedder.VideoPathEmbedder = object
    studio.EmbeddingSpaceSpec = studio.EmbeddingResult = lambda **options: types.SimpleNamespace(**options)
    monkeypatch.setitem(sys.modules, "lightly_studio", studio)
    monkeypatch.setitem(sys.modules, "lightly_studio_serve", serve)
    monkeypatch.setitem(sys.modules, "lightly_studio_serve.embedder", embedder)
    names = runpy.run_path(str(EXAMPLES / "to_lightly_studio.py"))
    stored, x = names["Stored"](names["loaded"](map_folder / "features")), np.load(map_folder / "features/features.npy")
    records = names["loaded"](map_folder / "features").records
    assert stored.embedding_space_spec().dimension == x.shape[1]
    actual = stored.embed_videos([records[3].path, "/other.mp4", records[0].path])
    assert actual.kept_indices == [0, 2] and (actual.embeddings == x[[3, 0]]).all()
    assert stored.embed_videos([]).embeddings.shape == (0, x.shape[1])
