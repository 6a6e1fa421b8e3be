import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vidssl.apps.map.layout_2d import choose_layout, import_umap, is_installed, kept_neighbours, layout
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator

needs_umap = pytest.mark.skipif(not is_installed("umap"), reason="needs umap-learn")


def clusters(count=3, each=20, dim=16, noise=0.1, seed=0):
    rng = generator(seed)
    label = np.repeat(np.arange(count), each)
    x = np.eye(dim, dtype=np.float32)[label] + noise * rng.normal(size=(count * each, dim)).astype(np.float32)
    return x * rng.uniform(0.5, 5, size=(len(x), 1)).astype(np.float32), label  # lengths do not matter


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)


def assert_equal_up_to_signs(actual, expected):
    signs = np.sign((actual * expected).sum(axis=0))
    np.testing.assert_allclose(actual * signs, expected, rtol=0, atol=1e-5)


def test_pca_is_that_of_sklearn_and_of_the_covariance():
    x, _ = clusters()
    points = layout(x, "pca")
    assert points.shape == (60, 2) and points.dtype == np.float32
    assert_equal_up_to_signs(points, PCA(2, svd_solver="full").fit_transform(unit(x)))
    centred = unit(x) - unit(x).mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    assert_equal_up_to_signs(points, centred @ vectors[:, :-3:-1])


@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (3, 8), (4, 1)])
def test_pca_of_few_videos_or_one_dimension_is_filled_with_zeros(shape):
    x = generator(1).normal(size=shape).astype(np.float32)
    points = layout(x, "pca")
    rank = min(2, shape[0] - 1, shape[1])
    assert points.shape == (shape[0], 2) and not points[:, rank:].any() and np.isfinite(points).all()


@needs_umap
@pytest.mark.long  # numba compiles UMAP
def test_umap_keeps_clusters_apart_and_depends_on_the_seed_alone():
    x, label = clusters()
    points = layout(x, "umap", seed=3)
    assert torch.get_num_threads() == 1
    assert points.shape == (60, 2) and points.dtype == np.float32
    np.testing.assert_array_equal(layout(x * 2, "umap", seed=3), points)  # by cosine
    assert not np.array_equal(layout(x, "umap", seed=4), points)
    distance = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e9 * np.eye(60)
    assert (label[distance.argmin(axis=1)] == label).all()
    assert np.isfinite(layout(clusters(1, 5)[0], "umap")).all()


@pytest.mark.parametrize(
    ("installed", "name", "count", "result"),
    [
        (True, "auto", 5, ("umap", "")),
        (True, "auto", 4, ("pca", "as UMAP needs 5 videos or more")),
        (False, "auto", 5, ("pca", "as umap-learn is not installed: pip install 'vidssl[map]'")),
        (False, "pca", 1, ("pca", "")),
        (True, "umap", 4, 'needs 5 videos or more, got 4: use layout="pca"'),
        (False, "umap", 5, "pip install 'vidssl[map]', or use layout=\"pca\""),
    ],
)
def test_the_layout_that_is_chosen(monkeypatch, installed, name, count, result):
    monkeypatch.setattr("vidssl.apps.map.layout_2d.is_installed", lambda module: installed)
    if isinstance(result, tuple):
        assert choose_layout(name, count) == result
    else:
        with pytest.raises(ConfigError, match=re.escape(result)):
            choose_layout(name, count)


def test_a_module_whose_import_was_blocked(monkeypatch):
    monkeypatch.setitem(sys.modules, "umap", None)
    assert not is_installed("umap")


def test_kept_neighbours_against_a_loop():
    x, _ = clusters(noise=0.5)
    places = generator(2).normal(size=(60, 2)).astype(np.float32)
    places[:30] = layout(x, "pca")[:30]
    expected = []
    for n in range(60):
        similarity = unit(x) @ unit(x)[n]
        similarity[n] = -np.inf
        distance = ((places - places[n]) ** 2).sum(axis=1)
        distance[n] = np.inf
        expected.append(len({*np.argsort(-similarity)[:10]} & {*np.argsort(distance)[:10]}) / 10)
    assert kept_neighbours(x, places) == pytest.approx(np.mean(expected))
    assert 0.05 < np.mean(expected) < 0.9
    assert kept_neighbours(x, places, most=2) == pytest.approx((expected[0] + expected[59]) / 2)


def test_all_neighbours_of_equal_places_are_kept_and_few_videos_have_none():
    x = unit(generator(5).normal(size=(30, 2))).astype(np.float32)
    assert kept_neighbours(x, x) == 1.0
    assert kept_neighbours(np.repeat(x, 2, axis=0), np.repeat(x, 2, axis=0), k=1) == 1.0  # copies find each other
    assert kept_neighbours(x[:11], x[:11]) is None  # all others are among the nearest ten
    assert kept_neighbours(x[:12], x[:12]) == 1.0


@needs_umap
def test_umap_where_neither_packages_nor_home_can_be_written(monkeypatch):
    """numba keeps what it compiles in a folder of this process, and the second import is whole."""
    from numba.core import config

    tried = []

    def imported(name):
        tried.append(name)
        if len(tried) == 1:
            raise RuntimeError("cannot cache function 'f': no locator available for file 'umap.py'")
        return config.CACHE_DIR

    monkeypatch.setenv("NUMBA_CACHE_DIR", "/nowhere")
    monkeypatch.setattr("vidssl.apps.map.layout_2d.importlib.import_module", imported)
    folder = import_umap()
    assert tried == ["umap", "umap"] and Path(folder).is_dir() and Path(folder).name.startswith("numba-")
    monkeypatch.undo()
    config.reload_config()
