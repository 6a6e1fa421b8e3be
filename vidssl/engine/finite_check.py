"""The check that the loss and the gradients of each step are finite."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from vidssl import distributed
from vidssl.atomic import write_json
from vidssl.data.to_device import fetch_later
from vidssl.engine.resume import RunState
from vidssl.errors import DataError, TrainingError
from vidssl.methods.base import Method


class _Outcome(NamedTuple):
    step: int
    finite: Callable[[], list[Tensor]]  # waits for the flag ()
    loss: Tensor  # (), of this process
    records: Tensor  # (N,) their indices


class FiniteCheck:
    """Ends a run at a step whose loss or gradients are not finite, with the weights from before its update.

    Target network, queue and optimizer are those from before it too. Running statistics of batch norms are not: the
    forward pass has changed them. A run that ended so is not saved.

    On the CPU the error is raised before the update. A GPU would have to wait there for the host, which reads the
    outcome. With `late` it is read during the next step, or where the state is needed: before it is logged, evaluated
    or saved. A copy of the state from before the update is kept on the device, and restored.
    """

    def __init__(
        self, late: bool, method: Method, optimizer: Optimizer, state: RunState, output: Path, names: Sequence[str]
    ) -> None:
        self._late, self._method, self._optimizer, self._state = late, method, optimizer, state
        self._output, self._names = output, names
        self._pending: _Outcome | None = None
        self._kept: list[object] = []  # leaves of the state dicts of method and optimizer
        self._tree: TreeSpec | None = None

    def begin(self, finite: Tensor, loss: Tensor, index: Tensor) -> None:
        """Note the outcome of the next step, before its update; `finite` () is equal on all processes.

        Raises:
            TrainingError: This step, or with `late` the one before, was not finite.
        """
        self.settle()
        self._pending = _Outcome(self._state.step + 1, fetch_later([finite]), loss, index)
        if self._late:
            self._keep()
        else:
            self.settle()

    def settle(self) -> None:
        """Wait for the outcome of the last step; raise a TrainingError if it was not finite. Called on all processes.

        The videos of that step are written to a file.
        """
        outcome, self._pending = self._pending, None
        if outcome is None or bool(outcome.finite()[0]):
            return
        if self._late:
            self._restore(outcome.step - 1)
        raise self._error(outcome)

    def _keep(self) -> None:
        """Copy the state; tensors of one type in one call."""
        leaves, self._tree = tree_flatten((self._method.state_dict(), self._optimizer.state_dict()))
        if [_shape(leaf) for leaf in leaves] != [_shape(leaf) for leaf in self._kept]:
            self._kept = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            return
        kept = [leaf for leaf in self._kept if isinstance(leaf, Tensor)]
        torch._foreach_copy_(kept, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
        left = iter(kept)
        self._kept = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves]

    def _restore(self, step: int) -> None:
        assert self._tree is not None
        method, optimizer = tree_unflatten(self._kept, self._tree)
        self._method.load_state_dict(method)
        self._optimizer.load_state_dict(optimizer)
        self._state.step = step

    def _error(self, outcome: _Outcome) -> TrainingError:
        per_process = distributed.gather_objects((outcome.loss.item(), outcome.records.tolist()))
        path = self._output / f"not-finite-step-{outcome.step:08d}.json"
        if distributed.is_main():
            content = [
                {"process": rank, "loss": str(value), "records": {n: self._names[n] for n in records}}
                for rank, (value, records) in enumerate(per_process)
            ]
            with suppress(DataError):  # a full disk must not hide the error below
                write_json(path, content)
        values = ", ".join(f"{value:g}" for value, _ in per_process)
        return TrainingError(
            f"the loss of step {outcome.step} is {values}, or its gradients are not finite; its videos are listed in "
            f"{path}; lower the learning rate or use precision: float32; the last checkpoint is untouched"
        )


def _shape(leaf: object) -> object:
    return (leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else None
