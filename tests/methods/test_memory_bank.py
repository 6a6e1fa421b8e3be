"""Memory bank and clusters: rows against Eq. 2 in loops, clusters against Lloyd's algorithm and recomputation."""

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch.nn.functional import normalize

from vidssl.base import distributed
from vidssl.base.errors import ConfigError
from vidssl.losses import margin_nce
from vidssl.methods.interclr_branch import MemoryBank, OnlineKMeans

CPU = torch.device("cpu")
DIM = 4


def numbers_from(seed):
    return torch.Generator().manual_seed(seed)


def unit_rows(count, source, dim=DIM):
    return normalize(torch.randn(count, dim, generator=source), dim=1)


def bank_of(records, omega=0.5, dim=DIM):
    torch.manual_seed(0)
    bank = MemoryBank(dim, omega)
    bank.allocate(records)
    return bank


def write(bank, index, rows):
    bank.hold(torch.as_tensor(index), rows)
    return bank.write()


# The bank.


@pytest.mark.parametrize("omega", [0.1, 1.0])
def test_rows_follow_eq_2(omega):
    source = numbers_from(1)
    bank = bank_of(9, omega)
    start, expected = bank.rows.clone(), {}
    for index in ([3, 0, 7], [7, 3], [3], [8, 0, 3, 1], [3, 8]):
        rows, old = unit_rows(len(index), source), bank.rows.clone()
        written, before = write(bank, index, rows)
        assert written.tolist() == sorted(index) and torch.equal(before, old[written])
        for record, v in zip(index, rows.double().tolist(), strict=True):
            mixed = v  # the first row of a record is taken as it is
            if record in expected:
                mixed = [(1 - omega) * a + omega * b for a, b in zip(expected[record], v, strict=True)]
            length = math.sqrt(sum(x * x for x in mixed))
            expected[record] = [x / length for x in mixed]
        for record in range(9):
            row = bank.rows[record]
            if record in expected:
                assert row.tolist() == pytest.approx(expected[record], rel=1e-4, abs=1e-6)
            else:
                assert torch.equal(row, start[record])
        assert torch.nonzero(bank.seen).flatten().tolist() == sorted(expected)


def test_a_bank_changes_no_random_number_that_comes_after_it():
    torch.manual_seed(0)
    expected = torch.rand(3)
    bank_of(200)
    assert torch.equal(torch.rand(3), expected)


def test_held_rows_are_written_at_the_end_of_the_step_only():
    source = numbers_from(2)
    bank = bank_of(9, 1.0)
    before, rows = bank.rows.clone(), unit_rows(5, source)
    for index, part in (([4, 1], rows[:2]), ([0, 8, 2], rows[2:])):  # micro-batches
        bank.hold(torch.tensor(index), part)
        assert torch.equal(bank.rows, before) and not bank.seen.any()
    written, _ = bank.write()
    assert written.tolist() == [0, 1, 2, 4, 8]
    torch.testing.assert_close(bank.rows[[4, 1, 0, 8, 2]], rows)
    written, _ = write(bank, [3], unit_rows(1, source))  # what was held is gone
    assert written.tolist() == [3]
    rows = bank.rows.clone()
    written, before = bank.write()  # nothing is held
    assert (len(written), before.shape) == (0, (0, DIM)) and torch.equal(bank.rows, rows)


@pytest.mark.parametrize("omega", [0.5, 1.0])
def test_the_last_row_of_a_repeated_record_is_written(omega):
    source = numbers_from(3)
    bank, plain = bank_of(6, omega), bank_of(6, omega)
    for _ in range(2):  # of records that are new, and of records that are not
        rows = unit_rows(5, source)
        old = bank.rows.clone()
        bank.hold(torch.tensor([2, 5, 2]), rows[:3])
        bank.hold(torch.tensor([0, 5]), rows[3:])
        written, before = bank.write()
        assert written.tolist() == [0, 2, 5] and torch.equal(before, old[[0, 2, 5]])
        write(plain, [2, 0, 5], rows[[2, 3, 4]])
        assert torch.equal(bank.rows, plain.rows)


def test_writing_detaches_rows_and_keeps_the_graph_of_the_step():
    source = numbers_from(5)
    query, index = unit_rows(3, source), torch.tensor([0, 4, 2])
    picks = torch.tensor([[1, 3], [1, 0], [4, 5]])

    def gradient(written):
        bank, leaf = bank_of(6), query.clone().requires_grad_()
        loss = margin_nce(leaf, bank.rows[index], bank.rows, 0.1, -0.5, picks)
        if written:
            write(bank, index, leaf * 1.0)
            assert not bank.rows.requires_grad
        return torch.autograd.grad(loss, leaf)[0]

    assert torch.equal(gradient(True), gradient(False))


def written_rows(steps, records):
    """Banks after each step of two micro-batches; of one process with the rows of all of them in order."""
    with distributed.joined(CPU):
        source = numbers_from(6)
        bank, banks = bank_of(records), []
        for size in steps:
            index = torch.randint(records, (2, 2, size), generator=source)  # rank, micro-batch: some records twice
            rows = normalize(torch.randn(2, 2, size, DIM, generator=source), dim=-1)
            ranks = [distributed.rank()] if distributed.world() == 2 else [0, 1]
            for rank in ranks:
                for micro in range(2):
                    bank.hold(index[rank, micro], rows[rank, micro])
            written, before = bank.write()
            banks.append((written, before, bank.rows.clone(), bank.seen.clone()))
        return banks


def test_the_bank_of_two_processes_is_that_of_one(run_world):
    steps = (3, 1, 5, 4)  # any batch fits any bank
    alone = written_rows(steps, 11)
    assert any(len(written) < 4 * size for (written, *_), size in zip(alone, steps, strict=True))
    for outcome in run_world(2, written_rows, steps, 11):
        for ours, expected in zip(outcome, alone, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


# The clusters.


def seen_bank(records, seed=0, unseen=(), dim=DIM):
    bank = bank_of(records, 1.0, dim)
    index = [n for n in range(records) if n not in unseen]
    write(bank, index, unit_rows(len(index), numbers_from(seed), dim))
    return bank


def clusters_of(bank, clusters, iterations=100, seed=0):
    fitted = OnlineKMeans(clusters, bank.rows.shape[1], iterations)
    fitted.allocate(len(bank.rows))
    fitted.fit(bank, numbers_from(seed))
    return fitted


def squares(x, centroids):
    """Squared distances (N, k), float64."""
    return ((x[:, None].astype(np.float64) - centroids[None]) ** 2).sum(axis=2)


def lloyd(x, centroids, iterations):
    labels = np.full(len(x), -1)
    for _ in range(iterations):
        new = squares(x, centroids).argmin(axis=1)
        if (new == labels).all():
            break
        labels = new
        centroids = np.stack([x[labels == c].mean(axis=0) for c in range(len(centroids))])
    return labels, centroids


def check(clusters, bank, rounding=1e-12):
    """Sums, counts, centroids and members are those of the labels and rows; no cluster is empty."""
    labels, x = clusters.labels.numpy(), bank.rows.double().numpy()
    order, start = clusters.members()
    assert order[: start[0]].tolist() == np.flatnonzero(labels == -1).tolist()
    for c in range(len(clusters.counts)):
        members = np.flatnonzero(labels == c)
        assert len(members) == clusters.counts[c] >= 1
        assert order[start[c] : start[c] + len(members)].tolist() == members.tolist()
        np.testing.assert_allclose(clusters.sums[c], x[members].sum(axis=0), rtol=0, atol=rounding)
        np.testing.assert_allclose(clusters.centroids[c], x[members].mean(axis=0), rtol=0, atol=rounding)


@pytest.mark.parametrize(("block", "dtype"), [(100, torch.float64), (2**23, torch.float32)])
def test_nearest_equals_exhaustive_search(block, dtype, monkeypatch):
    bank = seen_bank(80)
    clusters = clusters_of(bank, 9, iterations=2)
    monkeypatch.setattr("vidssl.methods.interclr_branch._BLOCK", block)
    rows = unit_rows(300, numbers_from(9)).to(dtype)
    distance = squares(rows.numpy(), clusters.centroids.numpy())
    nearest = clusters.nearest(rows)
    assert nearest.shape == (300,) and len(set(nearest.tolist())) == 9
    if dtype == torch.float64:
        assert nearest.tolist() == distance.argmin(axis=1).tolist()
    assert np.all(distance[np.arange(300), nearest] - distance.min(axis=1) < 1e-6)


# Seven rows at a time, and all at once.
@pytest.mark.parametrize(("clusters", "iterations", "block"), [(2, 100, 64 * 7), (7, 2, 64 * 7), (7, 100, 2**23)])
def test_fit_is_lloyds_algorithm(clusters, iterations, block, monkeypatch):
    monkeypatch.setattr("vidssl.methods.interclr_branch._BLOCK", block)
    bank = seen_bank(90)
    x = bank.rows.numpy()
    first = torch.randperm(90, generator=numbers_from(5))[:clusters]
    labels, centroids = lloyd(x, x[first], iterations)
    fitted = clusters_of(bank, clusters, iterations, seed=5)
    assert fitted.labels.tolist() == labels.tolist()
    np.testing.assert_allclose(fitted.centroids, centroids, rtol=0, atol=1e-6)
    check(fitted, bank)
    if iterations == 100:
        peer = KMeans(clusters, init=x[first], n_init=1, max_iter=300, tol=0, algorithm="lloyd").fit(x)
        assert fitted.labels.tolist() == peer.labels_.tolist()
        assert fitted.nearest(bank.rows).tolist() == labels.tolist()  # it has converged


def test_fit_uses_only_seen_records():
    unseen = (0, 4, 17, 29)
    bank = seen_bank(30, unseen=unseen)
    index = np.setdiff1d(np.arange(30), unseen)
    alone = seen_bank(26)
    alone.rows.copy_(bank.rows[torch.from_numpy(index)])
    bank.rows[list(unseen)] = torch.nan
    actual, expected = clusters_of(bank, 4), clusters_of(alone, 4)
    assert actual.labels[list(unseen)].tolist() == [-1] * 4
    assert actual.labels[torch.from_numpy(index)].tolist() == expected.labels.tolist()
    assert torch.equal(actual.sums, expected.sums)


def walk(clusters, bank, steps, seed=0, size=5):
    """Random updates; yields the records, and labels and centroids as they were before each."""
    source, records = np.random.Generator(np.random.Philox(seed)), len(bank.rows)
    for step in range(steps):
        index = source.choice(records, min(size, records), replace=False)
        rows = unit_rows(len(index), numbers_from(1000 * seed + step), bank.rows.shape[1])
        labels, centroids = clusters.labels.clone(), clusters.centroids.clone()
        index, before = write(bank, index, rows)
        clusters.update(bank, index, before)
        yield index, labels, centroids


@pytest.mark.parametrize(("records", "k", "unseen"), [(60, 7, (3, 20, 59)), (12, 12, ()), (13, 10, (0,))])
def test_centroids_are_the_means_of_their_members_after_every_update(records, k, unseen):
    bank = seen_bank(records, unseen=unseen)
    clusters = clusters_of(bank, k)
    filled = 0
    for index, labels, centroids in walk(clusters, bank, 80):
        check(clusters, bank, rounding=1e-11)
        labels[index] = torch.from_numpy(squares(bank.rows[index].numpy(), centroids.numpy()).argmin(axis=1))
        moved = int((labels != clusters.labels).sum())
        empty = k - len(set(labels.tolist()) - {-1})
        assert moved == empty  # of all others the label is the nearest cluster, or what it was
        filled += empty
    assert clusters.labels.min() >= 0  # the unseen have been seen
    assert filled or records > 20


def test_a_cluster_that_is_empty_takes_the_farthest_member_of_the_largest():
    angles = torch.tensor([0.0, 0.1, 0.2, 0.5, 2.0, 2.1, 4.0])
    bank = bank_of(7, 1.0, 2)
    write(bank, range(7), torch.stack([angles.cos(), angles.sin()], dim=1))
    clusters = OnlineKMeans(3, 2, 10)
    clusters.allocate(7)
    clusters.labels.copy_(torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    clusters.counts.copy_(torch.tensor([4, 2, 1]))
    clusters.sums.index_add_(0, clusters.labels, bank.rows.double())
    index, before = write(bank, [6], bank.rows[4:5])  # the only one of cluster 2 goes over to cluster 1
    clusters.update(bank, index, before)
    assert clusters.labels.tolist() == [0, 0, 0, 2, 1, 1, 1]
    check(clusters, bank)


def test_more_clusters_than_records_are_refused():
    with pytest.raises(ConfigError, match=r"^clusters 4 is more than the 3 records of the list: lower it$"):
        OnlineKMeans(4, DIM, 5).allocate(3)
    bank, clusters = seen_bank(6, unseen=(0, 2)), OnlineKMeans(5, DIM, 5)
    clusters.allocate(6)
    with pytest.raises(ConfigError, match=r"^clusters 5 is more than the 4 records that could be read: lower it$"):
        clusters.fit(bank, numbers_from(0))
