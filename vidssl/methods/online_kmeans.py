"""Online k-means: clusters of a memory bank, updated in each step.

Shapes: M records of the list, B those of a step (each once), N those of a batch, d embedding dimension, k clusters.
"""

import torch
from torch import Tensor, nn

from vidssl import distributed
from vidssl.errors import ConfigError
from vidssl.methods.memory_bank import MemoryBank

_BLOCK = 2**23  # largest number of elements of a temporary tensor


class OnlineKMeans(nn.Module):
    """Clusters of a bank's rows by k-means, updated in each step (InterCLR, section 4.1)."""

    labels: Tensor  # (M,) the cluster of each record, -1 if it has none yet
    sums: Tensor  # (k, d) float64, of the members' rows
    counts: Tensor  # (k,) of the members

    def __init__(self, clusters: int, dim: int, iterations: int) -> None:
        super().__init__()
        self.iterations = iterations
        self.register_buffer("labels", torch.empty(0, dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(clusters, dim, dtype=torch.float64))
        self.register_buffer("counts", torch.zeros(clusters, dtype=torch.int64))

    def allocate(self, num_records: int) -> None:
        """Allocate the labels of a list."""
        self._check(num_records, "of the list")
        self.labels = torch.full((num_records,), -1)

    def _check(self, records: int, which: str) -> None:
        if records < len(self.counts):
            raise ConfigError(f"clusters {len(self.counts)} is more than the {records} records {which}: lower it")

    @property
    def centroids(self) -> Tensor:
        """Means (k, d) of the members, float64."""
        return self.sums / self.counts.unsqueeze(1)

    def nearest(self, rows: Tensor) -> Tensor:
        """Find the cluster (N,) with the nearest centroid for each row (N, d)."""
        centroids = self.centroids.to(rows.dtype)
        size = (centroids * centroids).sum(dim=1)
        block = max(1, _BLOCK // len(centroids))
        # |x - c|² = |x|² - 2 x·c + |c|², of which |x|² is the same for all clusters.
        distances = (torch.addmm(size, x, centroids.T, alpha=-2) for x in torch.split(rows, block))
        return torch.cat([distance.argmin(dim=1) for distance in distances])

    def members(self) -> tuple[Tensor, Tensor]:
        """Sort the records (M,) by cluster, those without one first; also return where each cluster starts (k,)."""
        order = torch.argsort(self.labels, stable=True)
        clustered = self.counts.cumsum(0)
        return order, len(order) - clustered[-1] + clustered - self.counts

    @torch.no_grad()
    def fit(self, bank: MemoryBank, source: torch.Generator) -> None:
        """Cluster all seen rows of the bank, starting from random ones (Lloyd's algorithm)."""
        index = torch.nonzero(bank.seen).squeeze(1)
        self._check(len(index), "that could be read")
        order = torch.randperm(len(index), generator=source, device=source.device)
        self.sums.copy_(bank.rows[index[order[: len(self.counts)]]])
        self.counts.fill_(1)
        self.labels.fill_(-1)
        blocks = torch.split(index, _BLOCK // 64)  # the bank is not copied
        for _ in range(self.iterations):
            before = self.labels[index]
            self.labels[index] = label = torch.cat([self.nearest(bank.rows[part]) for part in blocks])
            if torch.equal(label, before):
                break
            self.counts.copy_(torch.bincount(label, minlength=len(self.counts)))
            self.sums.zero_()
            for part in blocks:
                self.sums.index_add_(0, self.labels[part], bank.rows[part].double())
            self._fill_empty(bank)
        # On a GPU the order of sums, and with it the nearest centroid, may differ between processes.
        for x in (self.labels, self.sums, self.counts):
            distributed.broadcast(x)

    @torch.no_grad()
    def update(self, bank: MemoryBank, index: Tensor, before: Tensor) -> None:
        """Move the records that `bank.write` returned to their nearest cluster, then centroids to their means."""
        old, rows = self.labels[index], bank.rows[index]
        new = self.nearest(rows)
        had = old >= 0
        # Each row joins the sum of its new cluster, and its former value leaves that of the old one.
        changed = torch.cat([new, old[had]])
        change = torch.cat([rows, -before[had]]).double()
        touched, place = torch.unique(changed, return_inverse=True)
        # A matrix product, not index_add_: on a GPU only its order of sums is the same on all processes.
        member = (place == torch.arange(len(touched), device=place.device).unsqueeze(1)).double()
        self.sums[touched] += member @ change
        self.counts += torch.bincount(new, minlength=len(self.counts))
        self.counts -= torch.bincount(old[had], minlength=len(self.counts))
        self.labels[index] = new
        self._fill_empty(bank)

    def _fill_empty(self, bank: MemoryBank) -> None:  # with the farthest member of the largest cluster
        for empty in torch.nonzero(self.counts == 0).flatten().tolist():
            largest = int(self.counts.argmax())
            members = torch.nonzero(self.labels == largest).squeeze(1)
            rows = bank.rows[members].double()
            far = int((rows - self.centroids[largest]).square().sum(dim=1).argmax())
            self.sums[largest] -= rows[far]
            self.sums[empty] = rows[far]
            self.counts[largest] -= 1
            self.counts[empty] = 1
            self.labels[members[far]] = empty
