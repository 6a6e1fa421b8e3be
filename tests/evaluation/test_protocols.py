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


NOBODY = torch.empty(0, 2, dtype=torch.int64)


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
def test_fault_29_the_query_itself_is_left_out(name):
    """Features without any meaning: a set searched in itself must be at chance, not at 100 %."""
    random = generator(3)
    label = torch.from_numpy(random.integers(4, size=400))
    x = torch.from_numpy(random.normal(size=(400, 16)).astype(np.float32))
    every = Features(x, label, torch.arange(400))
    protocol = PROTOCOLS[name](PROTOCOLS[name].Config(**({"k": 1} if name == "knn" else {})))
    key = "knn" if name == "knn" else "R@1"
    assert protocol(every, every, NOBODY)[key] == 1
    itself = torch.stack([torch.arange(400)] * 2, dim=1)
    assert protocol(every, every, itself)[key] < 0.35


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
    for ks in ((), (0,), (1, -5)):
        with pytest.raises(ValidationError):
            Retrieval.Config(ks=ks)


def test_fault_29_own_rows(tmp_path):
    """The same span, and what shares time with it; not other files, nor what comes after or before."""
    rows = ["a.mp4,0,,", "b.mp4,0,0,1", "b.mp4,0,1,2", "c.mp4,0,,", "b.mp4,0,1.5,", "b.mp4,0,,"]
    (tmp_path / "gallery.csv").write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    asked = {"c.mp4,1,,": [3], "b.mp4,0,1,2": [2, 4, 5], "b.mp4,0,1,1.5": [2, 5], "d.mp4,0,,": []}
    asked |= {"a.mp4,0,0,": [0], "b.mp4,0,2,9": [4, 5], "b.mp4,0,,": [1, 2, 4, 5], "b.mp4,0,,0.5": [1, 5]}
    (tmp_path / "query.csv").write_text("\n".join(["path,label,start,end", *asked]) + "\n")
    gallery, query = (read_list(tmp_path / f"{name}.csv") for name in ("gallery", "query"))
    expected = [[n, row] for n, found in enumerate(asked.values()) for row in found]
    assert own_rows(gallery, query).tolist() == expected
    (tmp_path / "query.csv").write_text("path\nd.mp4\n")
    nobody = own_rows(gallery, read_list(tmp_path / "query.csv"))
    assert nobody.shape == (0, 2) and nobody.dtype == torch.int64


@pytest.mark.parametrize("name", ["retrieval", "knn"])
def test_fault_29_clips_of_one_video_do_not_find_each_other(name, tmp_path):
    """Overlapping spans of a file have nearly the same feature: to find one in another says nothing."""
    rows = [f"{n}.mp4,{n % 2},{start},{start + 2}" for n in range(40) for start in (0, 1)]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,start,end", *rows]) + "\n")
    videos = read_list(tmp_path / "list.csv")
    random = generator(5)
    x = random.normal(size=(40, 16)).repeat(2, axis=0) + 0.01 * random.normal(size=(80, 16))
    label = torch.tensor([record.label for record in videos.records])
    every = Features(torch.from_numpy(x.astype(np.float32)), label, torch.arange(80))
    protocol = PROTOCOLS[name](PROTOCOLS[name].Config(**({"k": 1} if name == "knn" else {})))
    itself = torch.stack([torch.arange(80)] * 2, dim=1)
    key = "knn" if name == "knn" else "R@1"
    assert protocol(every, every, itself)[key] == 1
    assert protocol(every, every, own_rows(videos, videos))[key] < 0.8
