"""Protocols: what they measure, with and without centring, and that a video is never its own neighbour."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from vidssl.data.records import read_list
from vidssl.evaluation.protocols import KNN, PROTOCOLS, Retrieval, Uniformity, own_rows
from vidssl.randomness import generator
from vidssl.types import Features


def features(count, seed, shift=0.0, classes=4):
    random = generator(seed)
    label = torch.from_numpy(random.integers(classes, size=count))
    centres = generator(77).normal(size=(classes, 6))
    x = centres[label] + random.normal(size=(count, 6)) + shift
    return Features(torch.from_numpy(x.astype(np.float32)), label, torch.arange(count))


NOBODY = torch.full((40,), -1)


def loop_recall(gallery, query, k, center):
    g, q = gallery.x.double().numpy(), query.x.double().numpy()
    if center:
        g, q = g - g.mean(axis=0), q - q.mean(axis=0)
    hits = []
    for n in range(len(q)):
        similarity = [q[n] @ row / np.sqrt((q[n] @ q[n]) * (row @ row)) for row in g]
        best = np.argsort(-np.array(similarity))[:k]
        hits.append(any(gallery.label[b] == query.label[n] for b in best))
    return np.mean(hits)


@pytest.mark.parametrize("center", [False, True])
def test_retrieval(center):
    gallery, query = features(90, 0, shift=3.0), features(40, 1, shift=-3.0)
    before = gallery.x.clone(), query.x.clone()
    found = Retrieval(Retrieval.Config(ks=(1, 3, 7), center=center))(gallery, query, NOBODY)
    assert set(found) == {"R@1", "R@3", "R@7", "chance"}
    for k in (1, 3, 7):
        assert found[f"R@{k}"] == pytest.approx(loop_recall(gallery, query, k, center), abs=1e-6)
    assert torch.equal(before[0], gallery.x) and torch.equal(before[1], query.x)


def test_centring_takes_away_a_shift_of_either_set():
    gallery, query = features(90, 0), features(40, 1)
    moved = (
        Features(gallery.x + 5, gallery.label, gallery.index),
        Features(query.x - 5, query.label, query.index),
    )
    centred = Retrieval(Retrieval.Config(center=True))
    assert centred(gallery, query, NOBODY) == centred(*moved, NOBODY)
    plain = Retrieval(Retrieval.Config())
    assert plain(gallery, query, NOBODY)["R@1"] > plain(*moved, NOBODY)["R@1"] + 0.1


def test_search_is_what_the_numbers_are_about():
    gallery, query = features(90, 0), features(40, 1)
    protocol = Retrieval(Retrieval.Config(ks=(1, 5)))
    neighbours = protocol.search(gallery, query, NOBODY)
    assert neighbours.index.shape == (40, 5)
    first = (gallery.label[neighbours.index[:, 0]] == query.label).float().mean().item()
    assert protocol(gallery, query, NOBODY)["R@1"] == first


@pytest.mark.parametrize("name", ["retrieval", "knn"])
def test_29_the_query_itself_is_left_out(name):
    """Features without any meaning: a set searched in itself must be at chance, not at 100 %."""
    random = generator(3)
    label = torch.from_numpy(random.integers(4, size=400))
    x = torch.from_numpy(random.normal(size=(400, 16)).astype(np.float32))
    every = Features(x, label, torch.arange(400))
    protocol = PROTOCOLS[name](PROTOCOLS[name].Config(**({"k": 1} if name == "knn" else {})))
    key = "knn" if name == "knn" else "R@1"
    assert protocol(every, every, torch.full((400,), -1))[key] == 1
    assert protocol(every, every, torch.arange(400))[key] < 0.35


def test_knn_and_uniformity():
    gallery, query = features(90, 0), features(40, 1)
    one = KNN(KNN.Config(k=1))(gallery, query, NOBODY)
    assert one == {"knn": pytest.approx(loop_recall(gallery, query, 1, False), abs=1e-6)}
    found = Uniformity(Uniformity.Config())(gallery, query, NOBODY)
    assert set(found) == {"uniformity"} and -4 < found["uniformity"] < 0
    other = Uniformity(Uniformity.Config())(query, gallery, NOBODY)
    assert found != other  # that of the gallery


def test_settings_that_are_refused():
    for settings in ({"k": 0}, {"temperature": 0.0}, {"neighbours": 3}):
        with pytest.raises(ValidationError):
            KNN.Config(**settings)
    with pytest.raises(ValidationError):
        Retrieval.Config(center=1)


def test_own_rows(tmp_path):
    (tmp_path / "gallery.csv").write_text(
        "path,label,start,end\na.mp4,0,,\nb.mp4,0,0,1\nb.mp4,0,1,2\nc.mp4,0,,\n"
    )
    (tmp_path / "query.csv").write_text(
        "path,label,start,end\nc.mp4,1,,\nb.mp4,0,1,2\nb.mp4,0,1,3\nd.mp4,0,,\na.mp4,0,0,\n"
    )
    gallery, query = (read_list(tmp_path / f"{name}.csv") for name in ("gallery", "query"))
    assert own_rows(gallery, query).tolist() == [3, 2, -1, -1, -1]
    assert own_rows(gallery, gallery).tolist() == [0, 1, 2, 3]
