"""InterCLR's branch: positives are other videos of the same cluster (Xie et al., 2021).

The clusters are those of online k-means in a memory bank, updated in each step.

Shapes: N queries of a view and records of a batch, M records of the list, B those of a step (each once), K negatives of
each query, d embedding dimension, k clusters.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl import losses
from vidssl.base import distributed
from vidssl.base.config import Settings
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import RngStream
from vidssl.base.safe_parse import whole_number
from vidssl.base.schedule import Schedule, Temperature
from vidssl.base.types import Batch
from vidssl.losses import full_precision, unit
from vidssl.methods.base import Branch, Encode, Encoded, Method

_BLOCK = 2**23  # largest number of elements of a temporary tensor


class MemoryBank(nn.Module):
    """One unit row for each record of the list, equal on every process, saved with the weights.

    Rows are collected during a step's micro-batches and written together when it ends:
    v̂ ← (1 - ω) v̂ + ω v, normalised (InterCLR, Eq. 2). The first row of a record is stored as it is.
    """

    rows: Tensor  # (M, d); a random unit vector for records that were not seen yet
    seen: Tensor  # (M,) bool

    def __init__(self, dim: int, omega: float) -> None:
        super().__init__()
        self.omega = omega
        self.register_buffer("rows", torch.empty(0, dim))
        self.register_buffer("seen", torch.empty(0, dtype=torch.bool))
        self._held: list[
            tuple[Callable[[], Tensor], Callable[[], Tensor]]
        ] = []  # wait for records and rows of one micro-batch

    def allocate(self, num_records: int) -> None:
        """Allocate the rows of a list."""
        with torch.random.fork_rng(devices=[]):  # a bank changes no random number that is drawn after it
            self.rows = unit(torch.randn(num_records, self.rows.shape[1]))
        self.seen = torch.zeros(num_records, dtype=torch.bool)

    def hold(self, index: Tensor, rows: Tensor) -> None:
        """Collect rows (N, d) of the records `index` (N,); the gather overlaps with the backward pass."""
        self._held.append((distributed.gather_later(index), distributed.gather_later(rows.detach())))

    def fill(self, index: Tensor, rows: Tensor) -> None:
        """Write the first rows (N, d) of the records `index` (N,), each once and the same on all processes."""
        self.rows.index_copy_(0, index, rows.to(self.rows.dtype))
        self.seen.index_fill_(0, index, True)

    @torch.no_grad()
    def write(self) -> tuple[Tensor, Tensor]:
        """Write the collected rows of all processes; return their records (B,) and the rows (B, d) from before."""
        if not self._held:
            return self.seen.new_empty(0, dtype=torch.int64), self.rows[:0]
        records = torch.cat([wait() for wait, _ in self._held], dim=1).flatten()
        rows = torch.cat([wait() for _, wait in self._held], dim=1).flatten(0, 1)
        self._held = []
        index, counts = torch.unique(records, return_counts=True)
        # The last row of each record, which can be there twice: at the border of two epochs, or in place of a broken
        # video. scatter_reduce would do, but has no deterministic form on a GPU.
        rows = rows[torch.argsort(records, stable=True)[counts.cumsum(0) - 1]]
        before = self.rows[index]
        omega = torch.where(self.seen[index], self.omega, 1.0).unsqueeze(1).to(rows.dtype)
        # In place: a bank of a million videos is not copied, and no graph holds it.
        self.rows.index_copy_(0, index, unit((1 - omega) * before + omega * rows))
        self.seen.index_fill_(0, index, True)
        return index, before


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
        touched, column = torch.unique(changed, return_inverse=True)
        # A matrix product, not index_add_: on a GPU only its order of sums is the same on all processes.
        member = (column == torch.arange(len(touched), device=column.device).unsqueeze(1)).double()
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


class Inter(Settings):
    """Settings; defaults are those of the paper on ImageNet (supplement A). With BYOL the branch has no negatives."""

    clusters: int = Field(default=10000, ge=2)  # 10 times the number of classes
    intra_weight: float = Field(default=0.75, ge=0, le=1)  # lambda, of the method's own loss
    # hard: the K nearest; semihard, random, semieasy: random ones of the nearest tenth, of all, of the farthest tenth;
    # None: semihard
    sampling: Literal["hard", "semihard", "random", "semieasy"] | None = None
    negatives: int = Field(default=16384, ge=1)  # K
    margin: float | None = None  # m, of the cosine; None: -0.5
    temperature: Temperature | None = None  # tau; None: that of the method
    iterations: int = Field(default=20, ge=1)  # of the global k-means
    # true: encode and cluster all videos before the first step, as in the paper; false: after the first epoch
    initial: bool = False
    refresh: float | None = Field(default=None, gt=0)  # epochs between global k-means; None: one, and online updates


class InterBranch(Branch):
    """Attracts an embedding to that of another video of its cluster, and repels it from those of other clusters.

    `temperature` and `bank` are those of the host: without one there are no negatives, without the other the branch
    keeps a bank of the newest keys of each video.
    """

    bank: MemoryBank

    def __init__(self, config: Inter, dim: int, temperature: Schedule | None, bank: MemoryBank | None = None) -> None:
        super().__init__()
        names = [f"inter.{n}" for n in ("sampling", "margin", "temperature") if getattr(config, n) is not None]
        if temperature is None and names:
            raise ConfigError(f"{' and '.join(names)} cannot be set: the method has no negatives; remove them")
        self.config = config
        self.sampling = None if temperature is None else config.sampling or "semihard"
        self.margin = -0.5 if config.margin is None else config.margin
        self.temperature = config.temperature or temperature
        self.clusters = OnlineKMeans(config.clusters, dim, config.iterations)
        self._owns_bank = bank is None
        if bank is None:
            self.bank = MemoryBank(dim, omega=1.0)
        else:
            self.__dict__["bank"] = bank  # not as a submodule: it would be saved twice
        self._written = 0  # records, each once in a step
        self._fits = 0  # global k-means that have run

    def allocate(self, num_records: int) -> None:
        """Allocate the bank and the labels."""
        if self._owns_bank:
            self.bank.allocate(num_records)
        self.clusters.allocate(num_records)

    def begin(self, host: Method, encode: Encode) -> None:
        """With `initial`, fill the bank and cluster it: "a global clustering process" before training (section 4.1)."""
        if self.config.initial:
            index, rows = encode(host.key_network)
            self.bank.fill(index, unit(rows))
            self._written, self._fits = len(self.bank.rows), 1  # as after a first epoch
            self.clusters.fit(self.bank, host.generator(RngStream.CLUSTERS, 0, index.device))

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Weight the loss with MarginNCE, or without negatives the squared distance, of each query (Eq. 6)."""
        if self._owns_bank:
            self.bank.hold(batch.index, unit(torch.stack([*encoded.keys.values()]).mean(dim=0)))
        if not self._fits:  # in the first epoch, unless `initial`
            return {"loss": loss}
        terms = []
        with full_precision(loss.device):
            for view, query in encoded.queries.items():
                positives, picks = self.draw(host, query.detach(), batch.index, view)
                positive, rows = self.bank.rows[positives], self.bank.rows
                if self.temperature is None:
                    terms.append(losses.squared_distance(query, positive))
                else:
                    tau = self.temperature.at(host.progress)
                    terms.append(losses.margin_nce(query, positive, rows, tau, self.margin, picks))
        inter, weight = torch.stack(terms).mean(), self.config.intra_weight
        mixed = weight * loss + (1 - weight) * inter
        return {"loss": mixed, "intra_loss": loss.detach(), "inter_loss": inter.detach()}

    def after_step(self, host: Method) -> None:
        """Write the step's rows into the bank, then update the clusters."""
        index, before = self.bank.write()
        records, refresh = len(self.bank.rows), self.config.refresh
        self._written += len(index)
        if self._written < records:
            return  # in the first epoch
        due = 1 if refresh is None else 1 + int((self._written - records) / (refresh * records))
        if self._fits < due:
            self._fits = due
            self.clusters.fit(self.bank, host.generator(RngStream.CLUSTERS, 0, index.device))
        elif refresh is None:
            self.clusters.update(self.bank, index, before)

    def get_extra_state(self) -> dict[str, int]:
        """Save the counts of written records and of global k-means."""
        return {"taken": self._written, "fits": self._fits}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore them."""
        if not isinstance(state, dict):
            raise ValueError("the extra state of the branch is not its counts")
        self._written, self._fits = whole_number(state["taken"]), whole_number(state["fits"])

    @torch.no_grad()
    def draw(self, host: Method, query: Tensor, index: Tensor, view: int) -> tuple[Tensor, Tensor | None]:
        """Draw records of the bank for queries (N, d): a positive (N,) and, with a sampling, negatives (N, K)."""
        clusters, labels = self.clusters, self.clusters.labels[index]
        # A video that could not be read before has no label yet: that of the nearest centroid.
        labels = torch.where(labels < 0, clusters.nearest(query), labels)
        order, start = clusters.members()
        start, count = start[labels], clusters.counts[labels]  # of each query's cluster, in `order`
        negatives = 0 if self.sampling in (None, "hard") else self.config.negatives
        random = host.uniform(len(index), 1 + negatives, RngStream.INTER, view, query.device)

        # Draw one of all members but the last, and take the last if that is the video itself: all others are equally
        # likely, and a video that is alone in its cluster is its own positive.
        others = count - (clusters.labels[index] >= 0).long()  # a video without a label is not a member
        positives = order[start + (random[:, 0] * others).long()]
        positives = torch.where(positives == index, order[start + count - 1], positives)
        if self.sampling is None:
            return positives, None
        if self.sampling == "random":
            # Any place in `order` after the records without a cluster; those from `start` on skip the own cluster.
            first_clustered = len(order) - clusters.counts.sum()
            places = first_clustered + (random[:, 1:] * (clusters.counts.sum() - count).unsqueeze(1)).long()
            places += (places >= start.unsqueeze(1)) * count.unsqueeze(1)
            return positives, order[places]
        block = max(1, _BLOCK // len(order))
        parts = (torch.split(x, block) for x in (query, labels, random[:, 1:]))
        return positives, torch.cat([self._from_pool(*part) for part in zip(*parts, strict=True)])

    def _from_pool(self, query: Tensor, labels: Tensor, random: Tensor) -> Tensor:
        """Draw negatives (N, K) from the nearest, or the farthest, records of other clusters."""
        clusters, hard, far = self.clusters, self.sampling == "hard", self.sampling == "semieasy"
        others = clusters.counts.sum() - clusters.counts[labels]  # (N,) records of other clusters
        similarity = query @ self.bank.rows.T
        excluded = (clusters.labels == labels.unsqueeze(1)) | (clusters.labels < 0)
        similarity.masked_fill_(excluded, torch.inf if far else -torch.inf)
        sizes = others.clamp(max=self.config.negatives) if hard else (others + 9) // 10  # a tenth (section 4.2)
        pool = torch.topk(similarity, int(sizes.max()), largest=not far).indices
        # By record, not by similarity, whose last bits depend on the batch size; entries beyond a row's own size last.
        beyond = torch.arange(pool.shape[1], device=pool.device) >= sizes.unsqueeze(1)
        pool = pool.masked_fill(beyond, len(clusters.labels)).sort(dim=1).values
        if hard:  # all of them, again from the first where they are too few
            picks = torch.arange(self.config.negatives, device=pool.device) % sizes.unsqueeze(1)
        else:
            picks = (random * sizes.unsqueeze(1)).long()
        return pool.gather(1, picks)
