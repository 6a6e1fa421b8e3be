"""`vidssl map --to parquet`: the file against independent computation, and in the tools that read it."""

import csv
import io
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vidssl
from vidssl import cli
from vidssl.apps.map.layout_2d import layout
from vidssl.data.video_list import read_list

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
UNTRAINED = ("--checkpoint", "random", "--cfg", str(TOY), "data.moving_digits=null", "--clips", "1", "--workers", "0")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(scope="module")
def page(digits, tmp_path_factory):
    """The folder of a map with the file, of the moving digits by an untrained network."""
    out = tmp_path_factory.mktemp("parquet") / "page"
    arguments = [f"{digits}/motion/test.csv", *UNTRAINED, "--layout", "pca", "--thumbnails", "3", "--quiet"]
    cli.run("map", [*arguments, "--to", "parquet", "--out", str(out)])
    return out


def test_the_file_has_what_independent_computation_gives(page, digits):
    table = parquet.read_table(page / "videos.parquet").to_pydict()
    videos, x = read_list(digits / "motion/test.csv"), np.load(page / "features/features.npy")
    assert [*table] == ["path", "label", "x", "y", "neighbors", "image"]
    assert table["path"] == [record.path for record in videos.records]
    assert table["label"] == [videos.classes[label] for label in videos.labels]
    unit = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)
    distance = 1 - unit @ unit.T
    np.fill_diagonal(distance, np.inf)
    for row, near in enumerate(table["neighbors"]):
        np.testing.assert_allclose(near["distances"], np.sort(distance[row])[:10], atol=1e-5)
        np.testing.assert_allclose(distance[row, near["ids"]], near["distances"], atol=1e-5)
        assert row not in near["ids"] and len({*near["ids"]}) == 10
    np.testing.assert_allclose(np.stack([table["x"], table["y"]], axis=1), layout(x, "pca"), atol=1e-5)


def test_thumbnails_are_animations(page, digits):
    images = parquet.read_table(page / "videos.parquet")["image"].to_pylist()
    assert [row for row, image in enumerate(images) if image is not None] == [0, 5, 10]
    for row in (0, 5, 10):
        shown = Image.open(io.BytesIO(images[row]["bytes"]))
        assert shown.format == "WEBP" and shown.n_frames > 1 and shown.info["loop"] == 0


def test_spans_and_unknown_labels(digits, tmp_path):
    name = read_list(digits / "motion/test.csv").names[0]
    with (tmp_path / "list.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["path", "start", "end"], [name, 0, 0.3], [name, 0.3, 0.6]])
    options = {"settings": ["data.moving_digits=null"], "cfg": TOY, "clips": 1, "workers": 0}
    vidssl.map(tmp_path / "list.csv", "random", out=tmp_path / "out", to="parquet", root=digits, **options)
    table = parquet.read_table(tmp_path / "out/videos.parquet").to_pydict()
    assert table["start"] == [0, 0.3] and table["end"] == [0.3, 0.6] and table["label"] == [None, None]
    assert [near["ids"] for near in table["neighbors"]] == [[1], [0]]


def test_without_pyarrow_it_is_one_line_before_any_work(digits, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arguments = [f"{digits}/motion/test.csv", *UNTRAINED, "--to", "parquet", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        cli.guarded(lambda: cli.run("map", arguments))
    assert "error: --to parquet needs pyarrow: pip install 'vidssl[parquet]'\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
