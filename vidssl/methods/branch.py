"""The contract of a branch: a term that is added to the loss of a method.

Branches are InterCLR's (`inter.py`), PIRL's JigSaw (`jigsaw.py`) and the patch pairs of `frame_invariance.py`. Their
hosts are `MomentumMethod` and `NPID`. In a step a host

1. encodes the views of a batch (`Encoded`), all but those that `Branch.own_view` reserves,
2. computes its own loss of them: `method.compare(encoded)`,
3. calls each branch with the loss so far; the branch returns the new one, and other scalars to log,
4. calls `after_step` of each branch after the optimizer step.

A branch may encode more clips (`method.backbone`) and have the method's own loss of them (`method.compare`). Its
parameters are trained with the method's, and its state is saved with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn

from vidssl.errors import ConfigError
from vidssl.types import Batch

if TYPE_CHECKING:
    from vidssl.methods.base import Method


@dataclass(frozen=True)
class Encoded:
    """Embeddings of a batch, as unit rows (N, d), by the number of their view.

    Attributes:
        queries: Online embeddings, with gradient.
        keys: The positives, without gradient. In NPID all views share one, that of the bank; its number is -1.
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
    """A term that is added to the loss of a method.

    Attributes:
        own_view: A view that the method leaves to this branch.
    """

    own_view: int | None = None

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list."""

    def forward(self, method: Method, batch: Batch, encoded: Encoded, loss: Tensor) -> dict[str, Tensor]:
        """Return the new `loss`, and further scalars to log.

        Args:
            method: The host: its `backbone`, `compare`, `step`, `progress` and `uniform`.
            batch: What was encoded.
            encoded: By the method.
            loss: Of the method, and of the branches before this one.
        """
        raise NotImplementedError

    def after_step(self, method: Method) -> None:
        """Update state after an optimizer step; `method.step` includes it."""


class Branches(nn.ModuleDict):
    """The branches of a method by name, in the order in which they are added to the loss."""

    def __init__(self, **branches: Branch | None) -> None:
        super().__init__({name: branch for name, branch in branches.items() if branch is not None})

    def _each(self) -> list[tuple[str, Branch]]:
        return cast("list[tuple[str, Branch]]", [*self.items()])

    def shared_views(self, count: int) -> list[int]:
        """List the views of `count` that the method itself compares: those that no branch reserves.

        Raises:
            ConfigError: A reserved view does not exist, or is the only one.
        """
        own = {name: branch.own_view for name, branch in self._each() if branch.own_view is not None}
        for name, view in own.items():
            if view >= count or count == 1:
                raise ConfigError(
                    f"{name}.view {view} and {count} views do not fit: data.views needs a recipe for it beside others"
                )
        return [view for view in range(count) if view not in own.values()]

    def add_to(self, loss: Tensor, method: Method, batch: Batch, encoded: Encoded) -> dict[str, Tensor]:
        """Add all terms to the loss of the method; return it as `loss`, with what the branches log."""
        scalars = {"loss": loss}
        for _, branch in self._each():
            scalars.update(branch(method, batch, encoded, scalars["loss"]))
        return scalars

    def allocate(self, num_records: int) -> None:
        """Allocate state per record of the training list."""
        for _, branch in self._each():
            branch.allocate(num_records)

    def after_step(self, method: Method) -> None:
        """Update state after an optimizer step."""
        for _, branch in self._each():
            branch.after_step(method)
