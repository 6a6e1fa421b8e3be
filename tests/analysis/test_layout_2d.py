import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vidssl.apps.map.layout_2d import check_layout, has_umap, kept_neighbours, layout
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator

needs_umap = pytest.mark.skipif(not has_umap(), reason="needs umap-learn")


def clusters(count=3, each=20, dim=16, noise=0.1, seed=0):
    rng = generator(seed)
    label = np.repeat(np.arange(count), each)
    x = np.eye(dim, dtype=np.float32)[label] + noise * rng.normal(size=(count * each, dim)).astype(np.float32)
    return x * rng.uniform(0.5, 5, size=(len(x), 1)).astype(np.float32), label  # lengths do not matter


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float64)


def assert_equal_up_to_signs(found, wanted):
    signs = np.sign((found * wanted).sum(axis=0))
    np.testing.assert_allclose(found * signs, wanted, rtol=0, atol=1e-5)


def test_pca_is_that_of_sklearn_and_of_the_covariance():
    x, _ = clusters()
    found = layout(x, "pca")
    assert found.shape == (60, 2) and found.dtype == np.float32
    assert_equal_up_to_signs(found, PCA(2, svd_solver="full").fit_transform(unit(x)))
    centred = unit(x) - unit(x).mean(axis=0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    assert_equal_up_to_signs(found, centred @ vectors[:, :-3:-1])


@pytest.mark.parametrize("shape", [(1, 8), (2, 8), (3, 8), (4, 1)])
def test_pca_of_few_videos_or_one_dimension_is_filled_with_zeros(shape):
    x = generator(1).normal(size=shape).astype(np.float32)
    found = layout(x, "pca")
    rank = min(2, shape[0] - 1, shape[1])
    assert found.shape == (shape[0], 2) and not found[:, rank:].any() and np.isfinite(found).all()


@needs_umap
@pytest.mark.covers("vidssl/apps/map")
@pytest.mark.long  # numba compiles UMAP
def test_umap_keeps_clusters_apart_and_depends_on_the_seed_alone():
    x, label = clusters()
    found = layout(x, "umap", seed=3)
    assert torch.get_num_threads() == 1
    assert found.shape == (60, 2) and found.dtype == np.float32
    np.testing.assert_array_equal(layout(x * 2, "umap", seed=3), found)  # by cosine
    assert not np.array_equal(layout(x, "umap", seed=4), found)
    distance = np.linalg.norm(found[:, None] - found[None], axis=2) + 1e9 * np.eye(60)
    assert (label[distance.argmin(axis=1)] == label).all()


@needs_umap
@pytest.mark.covers("vidssl/apps/map")
@pytest.mark.long  # numba compiles UMAP
def test_umap_of_five_videos():
    assert np.isfinite(layout(clusters(1, 5)[0], "umap")).all()


def test_what_cannot_be_laid_out_is_an_error(monkeypatch):
    x, _ = clusters()
    with pytest.raises(ConfigError, match='needs 5 videos or more, got 4: use layout="pca"'):
        monkeypatch.setitem(sys.modules, "umap", sys.modules[__name__])  # as if it was installed
        monkeypatch.setattr("vidssl.apps.map.layout_2d.has_umap", lambda: True)
        check_layout("umap", 4)
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "umap", None)
    assert not has_umap()
    with pytest.raises(ConfigError, match=r"""pip install 'vidssl\[map\]', or use layout="pca\""""):
        layout(x, "umap")
    x[7, 3] = np.nan
    with pytest.raises(DataError, match="row 7 of 60 is not finite"):
        layout(x, "pca")


def test_kept_neighbours_against_a_loop():
    x, _ = clusters(noise=0.5)
    places = generator(2).normal(size=(60, 2)).astype(np.float32)
    places[:30] = layout(x, "pca")[:30]
    wanted = []
    for n in range(60):
        similarity = unit(x) @ unit(x)[n]
        similarity[n] = -np.inf
        distance = ((places - places[n]) ** 2).sum(axis=1)
        distance[n] = np.inf
        wanted.append(len({*np.argsort(-similarity)[:10]} & {*np.argsort(distance)[:10]}) / 10)
    assert kept_neighbours(x, places) == pytest.approx(np.mean(wanted))
    assert 0.05 < np.mean(wanted) < 0.9
    assert kept_neighbours(x, places, most=2) == pytest.approx((wanted[0] + wanted[59]) / 2)


def test_all_neighbours_of_equal_places_are_kept_and_few_videos_have_none():
    x = unit(generator(5).normal(size=(30, 2))).astype(np.float32)
    assert kept_neighbours(x, x) == 1.0
    assert kept_neighbours(np.repeat(x, 2, axis=0), np.repeat(x, 2, axis=0), k=1) == 1.0  # copies find each other
    assert kept_neighbours(x[:11], x[:11]) is None  # all others are among the nearest ten
    assert kept_neighbours(x[:12], x[:12]) == 1.0


READ_ONLY = """
import os
from numba.core import caching
from vidssl.apps.map.layout_2d import import_umap
for name in ("CacheImpl", "_CacheImpl"):
    if hasattr(caching, name):
        getattr(caching, name)._locator_classes = [caching.UserProvidedCacheLocator]  # no other can write
print(import_umap().UMAP.__name__, os.environ["NUMBA_CACHE_DIR"])
"""


@needs_umap
def test_umap_where_neither_packages_nor_home_can_be_written(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    run = [sys.executable, "-c", READ_ONLY]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"UMAP {tmp_path}/numba-"), done.stderr
    assert not [*tmp_path.glob("numba-*")]
