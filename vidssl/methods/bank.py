"""A memory of all videos: one vector for each, and the clusters they form."""

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vidssl import distributed
from vidssl.errors import ConfigError
from vidssl.methods.parts import unit

_BLOCK = 2**23  # numbers that are held at a time


class MemoryBank(nn.Module):
    """One unit row for each record of the list, the same on every process, and saved with the weights.

    Rows are held while a step's micro-batches run and are written together when it ends:
    v̂ ← (1 - ω) v̂ + ω v, scaled to length 1 (InterCLR, Eq. 2). The first row of a record is taken as it is.

    Attributes:
        rows: (M, d); of records that were never seen a random unit vector.
        seen: (M,) bool.
    """

    rows: Tensor
    seen: Tensor

    def __init__(self, dim: int, omega: float) -> None:
        super().__init__()
        self.omega = omega
        self.register_buffer("rows", torch.empty(0, dim))
        self.register_buffer("seen", torch.empty(0, dtype=torch.bool))
        self._held: list[tuple[Callable[[], Tensor], Callable[[], Tensor]]] = []

    def allocate(self, num_records: int) -> None:
        """Make room for the records of a list."""
        with torch.random.fork_rng(devices=[]):  # a run with a bank draws what one without draws
            self.rows = unit(torch.randn(num_records, self.rows.shape[1]))
        self.seen = torch.zeros(num_records, dtype=torch.bool)

    def hold(self, index: Tensor, rows: Tensor) -> None:
        """Keep rows (N, d) of the records `index` (N,) of this process for the end of the step."""
        self._held.append((distributed.gather_later(index), distributed.gather_later(rows.detach())))

    @torch.no_grad()
    def write(self) -> tuple[Tensor, Tensor]:
        """Write the held rows of all processes.

        Of a record that a step has twice, at the border of two epochs or in place of a broken one, the later counts.

        Returns:
            The records (B,), each once, and the rows (B, d) that they had before.
        """
        held, rows = (
            torch.cat([wait() for wait in parts], dim=1).flatten(0, 1)
            for parts in zip(*self._held, strict=True)
        )
        self._held = []
        index, counts = torch.unique(held, return_counts=True)
        # The last row of each record. With scatter_reduce, torch refuses to be deterministic on a GPU.
        rows = rows[torch.argsort(held, stable=True)[counts.cumsum(0) - 1]]
        before = self.rows[index]
        omega = torch.where(self.seen[index], self.omega, 1.0).unsqueeze(1).to(rows.dtype)
        # In place: a bank of a million videos is not copied, and no graph holds it.
        self.rows.index_copy_(0, index, unit((1 - omega) * before + omega * rows))
        self.seen.index_fill_(0, index, True)
        return index, before


class OnlineKMeans(nn.Module):
    """Clusters of a bank's rows, by k-means, kept up to date in each step (InterCLR, section 4.1).

    Centroids are the means of their members. A cluster that has lost its last member takes the farthest member of the
    largest cluster.

    Attributes:
        labels: (M,) the cluster of each record; -1 where it has none.
        sums: (k, d) float64, of the members' rows.
        counts: (k,) members.
    """

    labels: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, clusters: int, dim: int, iterations: int) -> None:
        super().__init__()
        self.iterations = iterations
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(clusters, dim, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(clusters, dtype=torch.int64))
        # The members of each cluster, made from the labels when they are needed.
        self._lists: list[list[int]] = []
        self.register_load_state_dict_post_hook(_forget)  # type: ignore[no-untyped-call]

    def allocate(self, num_records: int) -> None:
        """Make room for the records of a list.

        Raises:
            ConfigError: There are fewer than clusters.
        """
        if num_records < len(self.counts):
            raise ConfigError(
                f"clusters {len(self.counts)} is more than the {num_records} records of the list: lower it"
            )
        self.labels = torch.full((num_records,), -1)

    @property
    def centroids(self) -> Tensor:
        """(k, d) float64."""
        return self.sums / self.counts.unsqueeze(1)

    def nearest(self, rows: Tensor) -> Tensor:
        """Give the cluster (N,) whose centroid is nearest to each row (N, d)."""
        centroids = self.centroids.to(rows.dtype)
        size = (centroids * centroids).sum(dim=1)
        found = torch.empty(len(rows), dtype=torch.int64, device=rows.device)
        block = max(1, _BLOCK // len(centroids))
        for x, out in zip(torch.split(rows, block), torch.split(found, block), strict=True):
            torch.argmin(torch.addmm(size, x, centroids.T, alpha=-2), dim=1, out=out)
        return found

    @torch.no_grad()
    def fit(self, bank: MemoryBank, source: np.random.Generator) -> None:
        """Cluster all rows of the bank anew, from random ones (Lloyd's algorithm); every process gets the same.

        Raises:
            ConfigError: Fewer records were seen than there are clusters.
        """
        index = torch.nonzero(bank.seen).squeeze(1)
        if len(index) < len(self.counts):
            raise ConfigError(
                f"clusters {len(self.counts)} is more than the {len(index)} records that could be read: lower it"
            )
        first = source.choice(len(index), len(self.counts), replace=False)
        self.sums.copy_(bank.rows[index[torch.from_numpy(first).to(index.device)]])
        self.counts.fill_(1)
        self.labels.fill_(-1)
        blocks = torch.split(index, _BLOCK // 64)  # the bank is not copied
        for _ in range(self.iterations):
            before = self.labels[index]
            self.labels[index] = label = torch.cat([self.nearest(bank.rows[some]) for some in blocks])
            if torch.equal(label, before):
                break
            self.counts.copy_(torch.bincount(label, minlength=len(self.counts)))
            self.sums.zero_()
            for some in blocks:
                self.sums.index_add_(0, self.labels[some], bank.rows[some].double())
            self._lists.clear()
            self._fill_empty(bank)
        # On a GPU the order of sums may differ between processes, and with it what is nearest.
        for x in (self.labels, self.sums, self.counts):
            distributed.broadcast(x)
        self._lists.clear()

    @torch.no_grad()
    def update(self, bank: MemoryBank, index: Tensor, before: Tensor) -> None:
        """Give records that were written their nearest cluster, then centroids the means of their members.

        Args:
            bank: As `write` left it.
            index: (B,) records, each once.
            before: (B, d) their rows before.
        """
        lists = self._members()
        old, rows = self.labels[index], bank.rows[index]
        new = self.nearest(rows)
        had = old >= 0
        where = torch.cat([new, old[had]])
        change = torch.cat([rows, -before[had]]).double()
        touched, place = torch.unique(where, return_inverse=True)
        # A product, not `index_add`: the order of its sums is the same on all processes.
        member = (place == torch.arange(len(touched), device=place.device).unsqueeze(1)).double()
        self.sums[touched] += member @ change
        self.counts += torch.bincount(new, minlength=len(self.counts))
        self.counts -= torch.bincount(old[had], minlength=len(self.counts))
        self.labels[index] = new
        for record, left, joined in zip(index.tolist(), old.tolist(), new.tolist(), strict=True):
            _move(lists, record, left, joined)
        self._fill_empty(bank)

    def members(self, cluster: int) -> list[int]:
        """List the records of a cluster in order; -1: those that have none."""
        return self._members()[cluster]

    def _members(self) -> list[list[int]]:
        if not self._lists:
            labels = self.labels.cpu() + 1
            counts = torch.bincount(labels, minlength=len(self.counts) + 1).tolist()
            none, *some = torch.split(torch.argsort(labels, stable=True), counts)
            self._lists = [part.tolist() for part in (*some, none)]
        return self._lists

    def _fill_empty(self, bank: MemoryBank) -> None:
        for empty in torch.nonzero(self.counts == 0).flatten().tolist():
            largest = int(self.counts.argmax())
            members = self.members(largest)
            rows = bank.rows[torch.tensor(members, device=bank.rows.device)].double()
            far = int((rows - self.centroids[largest]).square().sum(dim=1).argmax())
            self.sums[largest] -= rows[far]
            self.sums[empty] = rows[far]
            self.counts[largest] -= 1
            self.counts[empty] = 1
            self.labels[members[far]] = empty
            _move(self._members(), members[far], largest, empty)


def _forget(clusters: OnlineKMeans, _: Any) -> None:
    clusters._lists.clear()


def _move(lists: list[list[int]], record: int, left: int, joined: int) -> None:
    if left != joined:
        lists[left].pop(bisect_left(lists[left], record))
        insort(lists[joined], record)


def others(excluded: list[int], size: int, count: int, source: np.random.Generator) -> NDArray[np.int64]:
    """Draw `count` numbers below `size`, with replacement, none of them `excluded` (sorted, each once)."""
    drawn = source.integers(size - len(excluded), size=count)
    # The n-th number that is left is n + how many excluded ones come before it.
    free_before = np.asarray(excluded, np.int64) - np.arange(len(excluded))
    return np.asarray(drawn + np.searchsorted(free_before, drawn, side="right"), np.int64)
