"""Clusters of features, for videos without labels, and whether they are more than recordings."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator

MOST = 20  # clusters that `auto` chooses from, from 2
TYPICAL = 6  # videos that stand for a cluster
_JUDGED = 2000  # videos by which the number of clusters is chosen: the time grows with their square
_SHUFFLES = 200
_STREAM = 39
_Rows = NDArray[np.int64]


class Clusters(NamedTuple):
    """The clusters of videos (N,)."""

    number: _Rows  # from 0, the largest first
    distance: NDArray[np.float64]  # to the middle of the cluster
    silhouette: float | None  # mean over recordings; None: the number was given
    line: str  # whether they are more than recordings


def check_clusters(clusters: str) -> None:
    """Raise a ConfigError if it is neither a number above 1 nor `auto`."""
    if clusters != "auto" and not (clusters.isdecimal() and int(clusters) > 1):
        raise ConfigError(f"clusters={clusters} is neither auto nor a whole number of 2 or more")


def find_clusters(x: Tensor, recordings: _Rows, clusters: str, seed: int) -> Clusters:
    """Divide features (N, D) of unit length by k-means into so many clusters, or `auto`: those of the best silhouette.

    The silhouette (Rousseeuw, 1987) is a mean over recordings (N,) of the means of their videos, so that recordings of
    many videos do not decide alone; of long lists it is that of 2,000 videos.

    Raises:
        ConfigError: There are fewer videos than clusters, or `clusters` is neither a number above 1 nor `auto`.
    """
    from sklearn.cluster import KMeans

    check_clusters(clusters)
    unit = functional.normalize(x.float(), dim=1).numpy()
    counts = range(2, min(MOST, len(unit) - 1) + 1) if clusters == "auto" else [int(clusters)]
    if not counts or counts[-1] > len(unit):
        raise ConfigError(f"{len(unit)} videos are too few for clusters={clusters}")
    fits = {count: KMeans(count, n_init=4, random_state=seed).fit(unit) for count in counts}
    scores = {}
    if clusters == "auto":
        scores = {count: _silhouette(unit, fit.labels_, recordings, seed) for count, fit in fits.items()}
    best = max(scores, key=scores.__getitem__) if scores else counts[0]
    distance = np.linalg.norm(unit - fits[best].cluster_centers_[fits[best].labels_], axis=1)
    order = np.argsort(-np.bincount(fits[best].labels_, minlength=best), kind="stable")
    number = np.argsort(order)[fits[best].labels_]
    return Clusters(number, distance.astype(np.float64), scores.get(best), _beside_recordings(number, recordings, seed))


def _silhouette(x: NDArray[np.float32], number: _Rows, recordings: _Rows, seed: int) -> float:
    from sklearn.metrics import silhouette_samples

    rows = np.sort(generator(seed, _STREAM).permutation(len(x))[:_JUDGED])
    if len(np.unique(number[rows])) < 2 or len(np.unique(number[rows])) == len(rows):
        return -1.0
    values, group = silhouette_samples(x[rows], number[rows]), recordings[rows]
    return float(np.mean([values[group == recording].mean() for recording in np.unique(group)]))


def _beside_recordings(number: _Rows, recordings: _Rows, seed: int) -> str:
    """Say how much of a recording is in one cluster, and how much after videos are shuffled among recordings."""
    several = [rows for recording in np.unique(recordings) if len(rows := np.flatnonzero(recordings == recording)) > 1]
    if len(several) < 2:
        return "Whether clusters are more than recordings is not known: there are no two recordings of several videos."
    rng = generator(seed, _STREAM, 1)
    share = np.mean([np.bincount(number[rows]).max() / len(rows) for rows in several])
    flat, ends = np.concatenate(several), np.cumsum([len(rows) for rows in several])[:-1]
    shuffled = [
        np.mean([np.bincount(part).max() / len(part) for part in np.split(rng.permutation(number[flat]), ends)])
        for _ in range(_SHUFFLES)
    ]
    low, high = np.quantile(shuffled, [0.025, 0.975])
    per_cluster = np.median([len(np.unique(recordings[number == n])) for n in np.unique(number)])
    together = f"{100 * share:.0f} % of a recording's videos are in one cluster"
    chance = f"{100 * low:.0f} to {100 * high:.0f} % if they are shuffled among recordings"
    if per_cluster < 2:
        verdict = "clusters are hardly more than recordings"
    elif share <= high:
        verdict = "clusters do not follow recordings"
    else:
        verdict = f"clusters follow recordings, {per_cluster:.0f} in the median cluster: perhaps places or persons"
    return f"{together}, {chance}: {verdict}"


def typical(clusters: Clusters, recordings: _Rows) -> list[list[int]]:
    """Return the rows that stand for each cluster: the nearest to its middle, of different recordings first."""
    rows_of_clusters = []
    for number in range(int(clusters.number.max()) + 1):
        rows = np.flatnonzero(clusters.number == number)
        rows = rows[np.argsort(clusters.distance[rows], kind="stable")]
        _, first = np.unique(recordings[rows], return_index=True)
        firsts = np.sort(first)
        ranked = [*rows[firsts].tolist(), *np.delete(rows, firsts).tolist()]
        rows_of_clusters.append(ranked[:TYPICAL])
    return rows_of_clusters
