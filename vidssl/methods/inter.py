"""The branch of InterCLR: videos that are alike belong together (Xie et al., 2021)."""

from math import ceil
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from vidssl import losses
from vidssl.config import Settings
from vidssl.errors import ConfigError
from vidssl.methods.bank import MemoryBank, OnlineKMeans, others
from vidssl.methods.parts import Temperature
from vidssl.randomness import generator
from vidssl.schedule import Schedule

_BLOCK = 2**23  # similarities that are held at a time
_DRAWS = 1  # the draws of a record in a step, beside those of other parts
_POOL = 0.1  # of the negatives, the nearest or the farthest: section 4.2


class Inter(Settings):
    """Settings of the branch; defaults are those of the paper on ImageNet (supplement A).

    Fields that are None take the method's value. With BYOL, which has no negatives, the branch uses none: there
    `sampling`, `margin` and `temperature` are refused.
    """

    clusters: int = Field(default=10000, ge=2)  # 10 times the classes
    intra_weight: float = Field(default=0.75, ge=0, le=1)  # lambda, of the method's own loss
    # Which negatives: the nearest, random ones of the nearest tenth, of all, of the farthest tenth. None: semihard.
    sampling: Literal["hard", "semihard", "random", "semieasy"] | None = None
    negatives: int = Field(default=16384, ge=1)  # K
    margin: float | None = None  # m, of the cosine; None: -0.5
    temperature: Temperature | None = None  # tau; None: that of the method
    iterations: int = Field(default=20, ge=1)  # of the global k-means
    # Epochs between global k-means in whose place labels are kept up to date in each step: the offline variant.
    refresh: float | None = Field(default=None, gt=0)


class InterBranch(nn.Module):
    """Pulls a video's embedding to that of another video of its cluster, away from videos of other clusters.

    The clusters begin with a global k-means when every record has been seen once, after the first epoch; until then the
    loss is the method's own.

    Args:
        config: Of the branch.
        dim: Of the embedding.
        temperature: Of the method that it is added to; None: that has no negatives.

    Raises:
        ConfigError: There are settings of negatives for a method that has none.
    """

    def __init__(self, config: Inter, dim: int, temperature: Schedule | None) -> None:
        super().__init__()
        given = [
            f"inter.{n}" for n in ("sampling", "margin", "temperature") if getattr(config, n) is not None
        ]
        if temperature is None and given:
            raise ConfigError(
                f"{' and '.join(given)} cannot be set: the method has no negatives, and so its inter branch has none; "
                "leave them out"
            )
        self.config = config
        self.sampling = None if temperature is None else config.sampling or "semihard"
        self.margin = -0.5 if config.margin is None else config.margin
        self.temperature = config.temperature or temperature
        self.clusters = OnlineKMeans(config.clusters, dim, config.iterations)
        self._seed = torch.initial_seed()  # that of the run, when it is built
        self._taken = 0  # records, each once in a step
        self._fits = 0  # global k-means

    def mix(
        self,
        intra: Tensor,
        queries: list[Tensor],
        index: Tensor,
        bank: MemoryBank,
        step: int,
        progress: float,
    ) -> dict[str, Tensor]:
        """Weight the loss of the method with that of the branch (Eq. 6).

        Args:
            intra: The loss of the method.
            queries: Of each view (N, d), unit rows.
            index: (N,) records.
            bank: That positives and negatives are taken from, and that is clustered.
            step: Of the run.
            progress: In [0, 1].

        Returns:
            `loss`; once there are clusters also `intra_loss` and `inter_loss`.
        """
        if not self._fits:
            return {"loss": intra}
        config, inter = self.config, []
        for view, query in enumerate(queries):
            positives, picks = self._draw(query.detach(), index, bank, step, view)
            positive = bank.rows[positives]
            if picks is None or self.temperature is None:
                inter.append(losses.squared_distance(query, positive))
            else:
                tau = self.temperature.at(progress)
                inter.append(losses.margin_nce(query, positive, bank.rows, tau, self.margin, picks))
        branch = torch.stack(inter).mean()
        loss = config.intra_weight * intra + (1 - config.intra_weight) * branch
        return {"loss": loss, "intra_loss": intra.detach(), "inter_loss": branch.detach()}

    def after_step(self, bank: MemoryBank, step: int) -> None:
        """Write the step's rows into the bank, then bring the clusters up to date."""
        index, before = bank.write()
        records, refresh = len(bank.rows), self.config.refresh
        self._taken += len(index)
        due = 1 if refresh is None else 1 + int((self._taken - records) / (refresh * records))
        if self._taken >= records and self._fits < due:
            self._fits = due
            self.clusters.fit(bank, generator(self._seed, step, _DRAWS))
        elif self._fits and refresh is None:
            self.clusters.update(bank, index, before)

    def get_extra_state(self) -> dict[str, int]:
        """Save how many records and global k-means there were."""
        return {"taken": self._taken, "fits": self._fits}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self._taken, self._fits = int(state["taken"]), int(state["fits"])

    @torch.no_grad()
    def _draw(
        self, query: Tensor, index: Tensor, bank: MemoryBank, step: int, view: int
    ) -> tuple[Tensor, Tensor | None]:
        """Draw for each query a positive (N,) and, with a sampling, its negatives (N, K): records."""
        labels = self.clusters.labels[index]
        labels = torch.where(labels < 0, self.clusters.nearest(query), labels)
        records, own = index.tolist(), labels.tolist()
        sources = [generator(self._seed, step, record, view, _DRAWS) for record in records]
        positives = [
            _another(self.clusters.members(label), record, source)
            for label, record, source in zip(own, records, sources, strict=True)
        ]
        picks = None
        if self.sampling == "random":
            unseen = self.clusters.members(-1)
            drawn = [
                others(
                    sorted([*self.clusters.members(label), *unseen]),
                    len(bank.rows),
                    self.config.negatives,
                    source,
                )
                for label, source in zip(own, sources, strict=True)
            ]
            picks = torch.from_numpy(np.stack(drawn)).to(query.device)
        elif self.sampling is not None:
            size = max(1, _BLOCK // len(bank.rows))
            blocks = zip(torch.split(query, size), torch.split(labels, size), strict=True)
            pools = (pool for some, label in blocks for pool in self._pools(some, label, bank))
            picks = torch.stack(
                [self._some(pool, source) for pool, source in zip(pools, sources, strict=True)]
            )
        return torch.tensor(positives, device=query.device), picks

    def _pools(self, query: Tensor, label: Tensor, bank: MemoryBank) -> list[Tensor]:
        """Find the records of other clusters that each query's negatives are drawn from, in order."""
        similarity = query @ bank.rows.T
        allowed = self.clusters.labels != label.unsqueeze(1)
        allowed &= self.clusters.labels >= 0
        near = self.sampling != "semieasy"
        similarity.masked_fill_(~allowed, -torch.inf if near else torch.inf)
        pools = []
        counts = self.clusters.counts
        for row, count in zip(similarity, (counts.sum() - counts[label]).tolist(), strict=True):
            size = min(self.config.negatives, count) if self.sampling == "hard" else ceil(_POOL * count)
            pools.append(torch.topk(row, size, largest=near, sorted=False).indices.sort().values)
        return pools

    def _some(self, pool: Tensor, source: np.random.Generator) -> Tensor:
        count = self.config.negatives
        if self.sampling == "hard":  # all of them, again from the first where they are too few
            return pool[torch.arange(count, device=pool.device) % len(pool)]
        return pool[torch.from_numpy(source.integers(len(pool), size=count)).to(pool.device)]


def _another(members: list[int], record: int, source: np.random.Generator) -> int:
    """Draw a member other than the record; a record that is alone is its own positive."""
    rest = [member for member in members if member != record]
    return rest[source.integers(len(rest))] if rest else record
