"""Clusters of videos beside those that were drawn, and whether they are more than recordings."""

import csv

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score, silhouette_samples

import vidssl
from vidssl.apps.map.clusters import find_clusters, typical
from vidssl.base.errors import ConfigError


def drawn(clusters=5, recordings=20, videos=4, dim=10, follow=False, seed=0):
    """Features of clusters; with `follow` a recording is of one cluster."""
    rng = np.random.RandomState(seed)
    recording = np.repeat(np.arange(recordings), videos)
    kind = (np.arange(recordings) % clusters)[recording] if follow else rng.randint(0, clusters, len(recording))
    x = 4 * rng.randn(clusters, dim)[kind] + 0.5 * rng.randn(len(kind), dim)
    return torch.from_numpy(x.astype(np.float32)), kind, recording


def test_the_number_and_the_clusters_are_found():
    x, kind, recording = drawn()
    clusters = find_clusters(x, recording, "auto", 0)
    assert adjusted_rand_score(kind, clusters.number) == 1
    assert [*np.bincount(clusters.number)] == sorted(np.bincount(kind), reverse=True)
    values = silhouette_samples(torch.nn.functional.normalize(x, dim=1).numpy(), clusters.number)
    mean = np.mean([values[recording == n].mean() for n in range(20)])
    assert clusters.silhouette == pytest.approx(mean)
    assert len(np.unique(find_clusters(x, recording, "3", 0).number)) == 3


@pytest.mark.parametrize(
    ("follow", "own", "words"),
    [
        (False, False, "clusters do not follow recordings"),
        (True, False, "clusters follow recordings, 4 in the median cluster"),
        (True, True, "clusters are hardly more than recordings"),
    ],
)
def test_clusters_beside_recordings(follow, own, words):
    x, _, recording = drawn(follow=follow, recordings=5 if own else 20, videos=8)
    assert words in find_clusters(x, recording, "auto", 0).line


def test_typical_videos_are_of_different_recordings():
    x, _, recording = drawn(follow=True)
    clusters = find_clusters(x, recording, "5", 0)
    for number, rows in enumerate(typical(clusters, recording)):
        assert len(rows) == 6 and (clusters.number[rows] == number).all()
        assert len({*recording[rows[:4]]}) == 4  # each recording of the cluster first, then again
        assert clusters.distance[rows[0]] == clusters.distance[clusters.number == number].min()


@pytest.mark.parametrize("clusters", ["1", "many", "90", "0"])
def test_mistakes(clusters):
    x, _, recording = drawn()
    with pytest.raises(ConfigError, match=f"clusters={clusters}"):
        find_clusters(x, recording, clusters, 0)


def test_the_map_has_them(digits, tmp_path):
    videos, out = digits / "motion/test.csv", tmp_path / "map"
    options = {"clips": 1, "workers": 0, "thumbnails": 4, "layout": "pca"}
    results = vidssl.map(videos, "floor:thumbnails", out=out, clusters="3", **options)
    with open(out / "clusters.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    assert np.bincount([int(row["cluster"]) for row in rows])[1:].tolist() == results["clusters"]["sizes"]
    assert "3 clusters of" in str(results) and results["clusters"]["recordings"] in str(results)
    page = (out / "index.html").read_text()
    assert "Typical of cluster 3" in page and ">cluster</option>" in page
