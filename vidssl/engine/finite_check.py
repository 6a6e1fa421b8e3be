"""The check that the loss and the gradients of each step are finite."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vidssl import distributed
from vidssl.atomic import write_json
from vidssl.data.to_device import fetch_later
from vidssl.errors import DataError, TrainingError


class _Outcome(NamedTuple):
    step: int
    finite: Callable[[], list[Tensor]]  # waits for the flag ()
    loss: Tensor  # (), of this process
    records: Tensor  # (N,) their indices


class FiniteCheck:
    """Ends a run at a step whose loss or gradients are not finite; nothing of that step is logged or saved.

    The host reads the outcome of a step during the next one: to read it at once it would have to wait for a GPU in
    each step. So weights, target network and queue may hold a step that was not finite when the run ends. They are not
    used again: whatever reads them calls `settle` first, and the last checkpoint is from before that step.
    """

    def __init__(self, output: Path, names: Sequence[str]) -> None:
        self._output, self._names = output, names
        self._pending: _Outcome | None = None

    def begin(self, step: int, finite: Tensor, loss: Tensor, index: Tensor) -> None:
        """Note the outcome of a step; `finite` () is equal on all processes.

        Raises:
            TrainingError: The step before was not finite.
        """
        self.settle()
        self._pending = _Outcome(step, fetch_later([finite]), loss, index)

    def settle(self) -> None:
        """Wait for the outcome of the last step; raise a TrainingError if it was not finite. Called on all processes.

        The videos of that step are written to a file.
        """
        outcome, self._pending = self._pending, None
        if outcome is not None and not outcome.finite()[0]:
            raise self._error(outcome)

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
