"""The contract of a branch: a term that is added to the loss of a method.

Branches are InterCLR's (`inter.py`), PIRL's JigSaw (`jigsaw.py`) and the patch pairs of `frame_invariance.py`. Their
hosts are `MomentumMethod` and `NPID`. In `forward` a host

1. encodes the views of a batch (`Encoded`), except those that a branch reserves (`Branch.own_view`),
2. computes its own loss of them, `host.compare(encoded)`,
3. calls each branch with the loss so far; the branch returns the new one, and other scalars to log.

A branch may encode more clips with `host.backbone`, and apply the host's loss to them with `host.compare`. Its
parameters and buffers are trained and saved with those of the host, which also calls `allocate` and `after_step`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn

from vidssl.types import Batch

if TYPE_CHECKING:
    from vidssl.methods.base import Method


@dataclass(frozen=True)
class Encoded:
    """Embeddings of a batch, as unit rows (N, d), by the number of their view.

    Attributes:
        queries: Online embeddings, with gradient.
        keys: The positives, without gradient. NPID has one for all views, of its bank; the number is -1.
        negatives: (N, K) rows of NPID's bank.
        patches: The same for the tracked region in each view; only with patch pairs.
    """

    queries: dict[int, Tensor]
    keys: dict[int, Tensor]
    negatives: Tensor | None = None
    patches: Encoded | None = None

    def pairs(self) -> list[tuple[int, int]]:
        """List all ordered pairs of a query view and another key view."""
        return [(q, k) for q in self.queries for k in self.keys if q != k]


class Branch(nn.Module):
    """A term that is added to the loss of a method, its host.

    Attributes:
        own_view: Number of the view that the host does not encode, because this branch does.
    """

    own_view: int | None = None

    def forward(self, host: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Return the new `loss`, and further scalars to log.

        Args:
            host: Of which `backbone`, `compare`, `step`, `progress` and `uniform` are used.
            batch: The views, and the index of their records.
            encoded: The batch, encoded by the host.
            loss: Of the host and the branches before this one.
        """
        raise NotImplementedError

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list."""

    def after_step(self, host: Method) -> None:
        """Update state after an optimizer step, which `host.step` includes."""
