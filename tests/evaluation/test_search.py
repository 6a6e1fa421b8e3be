"""Search against all cosines in float64: the same rows but for float32 rounding; equal rows tie, in row order."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.evaluation import search
from vidssl.evaluation.search import equal_rows, nearest

ROUNDING = 1e-6  # of a float32 sum of 2,048 products of unit vectors, with a margin


def drawn(count, dim, seed):
    return torch.from_numpy(generator(seed).normal(size=(count, dim)).astype(np.float32))


def cosines(query, gallery, exclude=()):
    """(Q, G) in float64; -inf for excluded pairs, 0 for rows of zeros."""
    units = []
    for x in (query, gallery):
        x = x.numpy().astype(np.float64)
        norm = np.linalg.norm(x, axis=1, keepdims=True)
        units.append(x / np.where(norm > 0, norm, 1))
    actual = units[0] @ units[1].T
    for n, row in exclude:
        actual[n, row] = -np.inf
    return actual


def assert_near_reference(query, gallery, k, exclude=(), **how):
    """Position by position, the cosine of the row found is the reference's; return how many rows differ."""
    pairs = torch.tensor(exclude, dtype=torch.int64).reshape(-1, 2) if len(exclude) else None
    hits = nearest(query, gallery, k, pairs, **how)
    reference = cosines(query, gallery, exclude)
    order = np.argsort(-reference, axis=1, kind="stable")[:, :k]
    order[np.isneginf(np.take_along_axis(reference, order, axis=1))] = -1  # nothing more to find
    reference = np.concatenate([reference, np.full((len(query), 1), -np.inf)], axis=1)  # of row -1
    rows = hits.index.numpy()
    taken, best = (np.take_along_axis(reference, index, axis=1) for index in (rows, order))
    np.testing.assert_allclose(hits.similarity.numpy(), taken, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(taken, best, rtol=0, atol=2 * ROUNDING)
    assert all(len({*there}) == len(there) for there in ([row for row in rows_of if row >= 0] for rows_of in rows))
    assert np.array_equal(rows == -1, np.isneginf(hits.similarity.numpy()))
    for row, similarity in zip(rows.tolist(), hits.similarity.tolist(), strict=True):
        ranking = list(zip([-value for value in similarity], row, strict=True))
        assert ranking == sorted(ranking)
    return int((rows != order).sum())


@pytest.fixture
def blocks(monkeypatch):
    """Search in blocks of so few numbers that a gallery takes several."""
    return lambda numbers: monkeypatch.setattr(search, "_BLOCK", numbers)


@pytest.mark.parametrize(("k", "chunk"), [(1, 1), (5, 7), (40, 512)])
def test_nearest_is_the_reference(k, chunk):
    assert assert_near_reference(drawn(23, 6, 0), drawn(40, 6, 1), k, chunk=chunk) == 0


def test_neighbours_change_within_float32_rounding_only(record_property):
    """Features as of a network: not negative, of a common direction, in classes. 25,000 neighbours are compared."""
    random = generator(20)
    centres = random.normal(size=(101, 512))
    labels = [random.integers(0, 101, count) for count in (500, 3000)]
    query, gallery = (
        torch.from_numpy(np.maximum(0, centres[of] + random.normal(size=(len(of), 512))).astype(np.float32))
        for of in labels
    )
    differ = assert_near_reference(query, gallery, 50)
    record_property("neighbours that differ from float64, of 25,000", differ)
    assert differ <= 25


def test_fault_29_ties_go_by_gallery_row():
    """Signs in four dimensions: all norms are 2 and all cosines -1, -0.5, 0, 0.5 or 1, exactly."""
    gallery = torch.from_numpy(generator(2).choice([-1.0, 1.0], size=(300, 4)).astype(np.float32))
    query = gallery[generator(3).permutation(300)[:50]]
    hits = nearest(query, gallery, 300)
    for q, row, similarity in zip(query, hits.index, hits.similarity, strict=True):
        exact = (gallery @ q / 4)[row]
        assert torch.equal(exact, similarity)
        expected = sorted(range(300), key=lambda g: (-(gallery[g] @ q).item(), g))
        assert row.tolist() == expected


@pytest.mark.parametrize(
    ("dim", "queries", "count", "numbers"),
    [(6, 1, 37, 1), (64, 3, 403, 2**24), (513, 23, 101, 1500), (513, 3, 403, 2**24)],
)
def test_fault_29_duplicates_tie_wherever_they_lie(blocks, count, queries, dim, numbers):
    """In float32 the products of equal rows differ in the last bit, by their place in the matrix."""
    gallery = drawn(20, dim, 4)[torch.arange(count) % 20]
    blocks(numbers)
    hits = nearest(drawn(queries, dim, 5), gallery, count)
    for row, similarity in zip(hits.index % 20, hits.similarity, strict=True):
        assert len(similarity.unique()) == 20
        assert all((row[similarity == value] == row[similarity == value][0]).all() for value in similarity)
    for row in hits.index.tolist():
        first = {}  # place of a video in the ranking
        for place, g in enumerate(row):
            first.setdefault(g % 20, place)
        assert row == sorted(row, key=lambda g: (first[g % 20], g))


def test_fault_29_a_query_does_not_find_itself():
    gallery = drawn(30, 6, 5)
    query = gallery[[3, 8, 11]]
    assert nearest(query, gallery, 1).index[:, 0].tolist() == [3, 8, 11]
    exclude = torch.tensor([[2, 11], [0, 3]])
    for chunk in (1, 2, 512):
        hits = nearest(query, gallery, 30, exclude, chunk)
        order = np.argsort(-cosines(query, gallery, exclude.tolist()), axis=1, kind="stable")
        assert hits.index[:, :-1].tolist() == order[:, :-1].tolist()
        assert hits.index[:, -1].tolist() == [-1, order[1, -1], -1]  # what was excluded is not there
        assert torch.isneginf(hits.similarity[:, -1]).tolist() == [True, False, True]
    assert torch.equal(gallery, drawn(30, 6, 5)) and exclude.tolist() == [[2, 11], [0, 3]]


def test_fault_29_more_neighbours_than_videos():
    hits = nearest(drawn(4, 3, 6), drawn(5, 3, 7), 20)
    assert hits.index.shape == hits.similarity.shape == (4, 5)
    assert all(sorted(row) == list(range(5)) for row in hits.index.tolist())


def test_fault_29_zero_vectors_are_alike_to_nothing():
    gallery = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
    hits = nearest(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), gallery, 4)
    assert hits.index.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert hits.similarity.tolist() == [[0, 0, 0, 0], [1, 0, 0, -1]]


def test_fault_29_a_feature_too_large_to_be_squared_keeps_its_direction():
    gallery = torch.tensor([[0.0, 1.0], [1e30, 0.0], [-1.0, 0.0]])
    hits = nearest(torch.tensor([[3e38, 0.0], [1e-30, 0.0]]), gallery, 3)
    assert hits.index[0].tolist() == [1, 0, 2] and hits.similarity[0].tolist() == [1, 0, -1]


@pytest.mark.parametrize(("k", "numbers"), [(1, 300), (7, 64), (90, 1)])
def test_blocks_change_nothing(blocks, numbers, k):
    query, gallery = drawn(13, 16, 0), drawn(90, 16, 1)
    exclude = {(n, row) for n in range(13) for row in range(n, 90, 7)} | {(4, row) for row in range(88)}
    blocks(numbers)
    assert assert_near_reference(query, gallery, k) == 0
    assert assert_near_reference(query, gallery, k, sorted(exclude)[::-1], chunk=5) == 0


@pytest.mark.parametrize(("seed", "numbers"), [(0, 2**24), (1, 200)])
def test_near_ties_are_within_rounding(blocks, seed, numbers):
    """All similarities are within a few roundings of each other."""
    random = generator(seed)
    query = drawn(5, 24, seed)
    gallery = query[0] + 1e-7 * torch.from_numpy(random.normal(size=(120, 24))).float()
    gallery = torch.cat([gallery, gallery.nextafter(torch.tensor(torch.inf)), gallery * 3])
    order = torch.from_numpy(random.permutation(len(gallery)))
    blocks(numbers)
    assert_near_reference(query, gallery[order], 10)


def test_a_thousand_copies_of_one_row_keep_their_order(blocks):
    gallery = drawn(1300, 8, 3)
    gallery[150:1150] = gallery[150]
    query = torch.cat([gallery[150:151], drawn(3, 8, 4)])
    assert nearest(query, gallery, 30).index[0].tolist() == list(range(150, 180))
    blocks(1000)
    assert nearest(query, gallery, 1000).index[0].tolist() == list(range(150, 1150))
    assert_near_reference(query, gallery, 1100, [[0, 150], [0, 1299]])


def test_a_collapsed_network_ties_everywhere(blocks):
    gallery = torch.full((200, 12), 0.3)
    blocks(500)
    hits = nearest(gallery[:40], gallery, 5, torch.stack([torch.arange(40)] * 2, dim=1))
    assert (hits.similarity == hits.similarity[0, 0]).all() and hits.similarity[0, 0] == pytest.approx(1)
    for n, row in enumerate(hits.index.tolist()):
        assert row == [g for g in range(6) if g != n][:5]


@pytest.mark.parametrize("numbers", [2**24, 100])
def test_tiny_and_huge_rows_keep_their_directions(blocks, numbers):
    scales = torch.tensor([1.0, 1e-30, 1e-37, 1e-42, 1e30, 1e37, 0.0, 1e-15, 1e15])
    gallery = drawn(90, 6, 5) * scales.repeat(10)[:, None]
    query = drawn(18, 6, 6) * scales.repeat(2)[:, None]
    assert torch.isfinite(gallery).all()
    blocks(numbers)
    assert_near_reference(query, gallery, 12)
    assert_near_reference(query, gallery, 90)


def test_numbers_that_float32_cannot_hold_are_not_squared_in_it():
    least, most = torch.finfo(torch.float32).smallest_normal, torch.finfo(torch.float32).max
    gallery = torch.tensor([[most, most], [least / 64, 0.0], [0.0, most], [-most, least]])
    assert_near_reference(gallery, gallery, 4)


@pytest.mark.parametrize("dim", [1, 2, 2048])
def test_any_number_of_dimensions(dim):
    assert_near_reference(drawn(3, dim, 7), drawn(50, dim, 8), 6)


def test_centring_subtracts_both_means():
    query, gallery = drawn(9, 5, 9) + 3, drawn(60, 5, 10) - 2
    hits = nearest(query, gallery, 8, center=True)
    expected = nearest(query - query.mean(dim=0), gallery - gallery.mean(dim=0), 8)
    assert torch.equal(hits.index, expected.index) and torch.equal(hits.similarity, expected.similarity)
    assert hits.index.tolist() != nearest(query, gallery, 8).index.tolist()


def test_threads_change_nothing():
    query, gallery = drawn(40, 32, 11), drawn(300, 32, 12)
    expected = nearest(query, gallery, 20)
    torch.set_num_threads(3)
    try:
        hits = nearest(query, gallery, 20)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(hits.index, expected.index) and torch.equal(hits.similarity, expected.similarity)


def test_nothing_to_search_with_or_in():
    assert nearest(drawn(0, 4, 0), drawn(5, 4, 1), 3).index.shape == (0, 3)
    assert nearest(drawn(3, 4, 0), drawn(0, 4, 1), 3).similarity.shape == (3, 0)


@pytest.mark.parametrize(("center", "value"), [(False, math.nan), (True, -math.inf)])
def test_fault_29_a_feature_that_is_not_finite_is_named(value, center):
    bad = drawn(4, 3, 0)
    bad[2, 1] = value
    with pytest.raises(DataError, match=r"^a query feature is not finite \(row 2 of 4\)[^\n]*$"):
        nearest(bad, drawn(4, 3, 1), 1, center=center)
    with pytest.raises(DataError, match=r"^a gallery feature is not finite \(row 2 of 4\)[^\n]*$"):
        nearest(drawn(4, 3, 1), bad, 1, center=center)


_PEAK = """
import sys
import numpy as np, torch
from pathlib import Path
from vidssl.evaluation.search import nearest
torch.set_num_threads(1)
rows, dim, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
x = torch.from_numpy(np.memmap(file, np.float32, "c", shape=(rows, dim)))
def memory(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(name))
nearest(x[:2], x[:100], 5)
before = memory("RssAnon")
Path("/proc/self/clear_refs").write_text("5")
nearest(x[:200].clone(), x, 50, center=len(sys.argv) > 4)
print((memory("VmHWM") - memory("RssFile") - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux knows of a process")
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.alone
@pytest.mark.long
def test_memory_does_not_grow_with_the_gallery(tmp_path, center):
    """MiB beside the features, for galleries of 128 and 256 MiB in a file."""
    needed = []
    for rows in (2**19, 2**20):
        file = tmp_path / f"{rows}"
        generator(rows).random((rows, 64), np.float32).tofile(file)
        command = [sys.executable, "-c", _PEAK, str(rows), "64", str(file), *(["center"] if center else [])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
        needed.append(float(done.stdout))
    assert needed[1] < 400 and needed[1] < needed[0] + 40, needed


@pytest.mark.parametrize("kind", ["ordinary", "signs of zero", "all alike"])
def test_equal_rows_are_equal_bit_by_bit(kind):
    gallery = drawn(40, 3, 1)
    gallery[5], gallery[17] = gallery[30], gallery[2]
    if kind == "signs of zero":
        gallery[1:9], gallery[4:7, 1] = 0.0, -0.0  # alike for a comparison of numbers, not of bits
    elif kind == "all alike":
        gallery[:] = 0.25
    query = gallery[[2, 30, 6, 2, 1]].clone()
    expected = [
        [n, row] for row in range(40) for n in range(5) if query[n].numpy().tobytes() == gallery[row].numpy().tobytes()
    ]
    assert equal_rows(query, gallery).tolist() == expected and expected
    assert equal_rows(query[:2], drawn(7, 3, 2)).shape == (0, 2)
