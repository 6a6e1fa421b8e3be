"""A memory bank, one embedding of each video, and its clusters.

Shapes: M records of the list, B those of a step (each once), N those of a batch, d embedding dimension, k clusters.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vidssl import distributed
from vidssl.losses import unit

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
        self._held: list[tuple[Callable[[], Tensor], ...]] = []  # wait for records and rows of one micro-batch

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
        waits = zip(*self._held, strict=True)
        held, rows = (torch.cat([wait() for wait in part], dim=1).flatten(0, 1) for part in waits)
        self._held = []
        index, counts = torch.unique(held, return_counts=True)
        # The last row of each record, which can be there twice: at the border of two epochs, or in place of a broken
        # video. scatter_reduce would do, but has no deterministic form on a GPU.
        rows = rows[torch.argsort(held, stable=True)[counts.cumsum(0) - 1]]
        before = self.rows[index]
        omega = torch.where(self.seen[index], self.omega, 1.0).unsqueeze(1).to(rows.dtype)
        # In place: a bank of a million videos is not copied, and no graph holds it.
        self.rows.index_copy_(0, index, unit((1 - omega) * before + omega * rows))
        self.seen.index_fill_(0, index, True)
        return index, before
