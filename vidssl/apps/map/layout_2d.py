"""Layouts of features in two dimensions: UMAP and PCA."""

import importlib.util
import os
from importlib import metadata
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vidssl.base.errors import ConfigError

Points = NDArray[np.float32]
LAYOUTS = ("umap", "pca")
UMAP_NEEDS = 5  # videos; its initialisation fails with fewer
_caches: list[TemporaryDirectory[str]] = []  # of compiled functions; removed when the process ends


def is_installed(module: str) -> bool:
    """Whether a module is installed; it is not imported, which takes seconds."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # its import was blocked
        return False


def import_umap() -> Any:
    """Import umap, whose compiled functions numba caches beside them or in the home folder, else for this process."""
    try:
        return importlib.import_module("umap")
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
    from numba.core import config

    _caches.append(TemporaryDirectory(prefix="numba-"))
    os.environ["NUMBA_CACHE_DIR"] = _caches[-1].name
    config.reload_config()  # type: ignore[no-untyped-call]
    return importlib.import_module("umap")


def choose_layout(name: str, count: int) -> tuple[str, str]:
    """Return the layout for `count` videos, and why `auto` is this one; a ConfigError if it cannot be computed.

    Call it before long work.
    """
    missing = not is_installed("umap")
    if name == "auto" and missing:
        return "pca", "as umap-learn is not installed: pip install 'vidssl[map]'"
    if name == "auto":
        return ("pca", f"as UMAP needs {UMAP_NEEDS} videos or more") if count < UMAP_NEEDS else ("umap", "")
    if name == "umap" and missing:
        raise ConfigError("the layout umap needs umap-learn: pip install 'vidssl[map]', or use layout=\"pca\"")
    if name == "umap" and count < UMAP_NEEDS:
        raise ConfigError(f'the layout umap needs {UMAP_NEEDS} videos or more, got {count}: use layout="pca"')
    return name, ""


def version() -> str:
    """Name the version of umap-learn, for `vidssl doctor`; a ConfigError if it is missing."""
    choose_layout("umap", UMAP_NEEDS)
    return f"umap-learn {metadata.version('umap-learn')}"


def layout(x: Points, name: str, seed: int = 0) -> Points:
    """Place features (N, D) in two dimensions (N, 2), by cosine similarity: both layouts use unit vectors.

    `pca` are the first two principal components, `umap` is UMAP (McInnes et al., 2018) with 15 neighbours and one
    thread, so that equal seeds give equal layouts. The features are finite, as `nearest` has checked.
    """
    unit = _unit(x)
    if name == "umap":
        from threadpoolctl import threadpool_limits

        settings = {"n_neighbors": min(15, len(x) - 1), "metric": "euclidean", "n_jobs": 1, "random_state": seed}
        # numba gives OpenMP, which torch shares, a thread for each core: the limit ends with the number from before.
        with threadpool_limits(1):
            umap = import_umap()
            return np.asarray(umap.UMAP(**settings).fit_transform(unit), np.float32)
    places = np.zeros((len(x), 2), np.float32)
    kept = min(2, len(x) - 1, x.shape[1])
    if kept:
        from sklearn.decomposition import PCA

        places[:, :kept] = PCA(kept, svd_solver="covariance_eigh").fit_transform(unit)
    return places


def kept_neighbours(x: Points, places: Points, k: int = 10, most: int = 2000) -> float | None:
    """Return the fraction of the k nearest rows by features (N, D), by cosine, that are also nearest by places (N, 2).

    With more than `most` rows it is the mean over that many, evenly spaced. None for k + 1 rows and fewer: all others
    are among the nearest.
    """
    from sklearn.neighbors import NearestNeighbors

    if len(x) <= k + 1:
        return None
    rows = np.linspace(0, len(x) - 1, min(most, len(x))).round().astype(int)
    neighbours = []
    for points in (_unit(x), places):
        index = NearestNeighbors(n_neighbors=k + 1).fit(points).kneighbors(points[rows], return_distance=False)
        is_itself = index == rows[:, None]
        is_itself[~is_itself.any(axis=1), -1] = True  # of several equal rows another may be found in its place
        neighbours.append(index[~is_itself].reshape(len(rows), k))
    return float((neighbours[0][:, :, None] == neighbours[1][:, None, :]).any(axis=2).mean())


def _unit(x: Points) -> Points:
    norm = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return (x / np.where(norm > 0, norm, 1)).astype(np.float32)
