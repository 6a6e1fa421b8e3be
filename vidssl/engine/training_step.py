"""A step: batches that all processes agree on, micro-batches with gradient caching, and the check for finite values."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vidssl.base import distributed
from vidssl.base.atomic import csv_text, write_json, write_whole
from vidssl.base.errors import ConfigError, DataError, Interrupted, TrainingError, VidsslError, first_few
from vidssl.base.types import Batch
from vidssl.data.dataset import most_broken
from vidssl.data.loader import Loader
from vidssl.data.to_device import fetch_later, on_device
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.parallel import without_averaging
from vidssl.engine.run_config import Run
from vidssl.methods.base import Method
from vidssl.models.batch_norms import statistics_kept


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


_log = logging.getLogger(__name__)

_STOP, _FAILED, _BROKEN = 1, 2, 4  # flags of a process, combined over all of them by a bitwise or


class Feed:
    """The micro-batches of a run; the processes exchange flags before each, in one all-reduce, to stop together."""

    waited = 0.0  # seconds that this process has waited for them

    def __init__(
        self, loader: Loader, run: Run, records: int, device: torch.device, request: StopRequest, broken: dict[str, str]
    ) -> None:
        self._batches = on_device(loader, device, run.data.mean, run.data.std)
        self._run, self._num_records, self._request = run, records, request
        self._broken = broken  # path to reason, part of the run's state: new ones are added

    def close(self) -> None:
        """End the workers."""
        self._batches.close()

    def next(self, *, between_steps: bool) -> Batch:
        """Return the next micro-batch; `between_steps` the run can stop, and a signal interrupts the wait."""
        batch: Batch | None = None
        failure: VidsslError | None = None
        started = time.perf_counter()
        try:
            with suppress(Interrupted), self._request.breaking() if between_steps else nullcontext():
                batch = next(self._batches)
        except VidsslError as error:
            failure = error
        self.waited += time.perf_counter() - started
        stop = between_steps and self._request.signal is not None
        broken = batch is not None and len(batch.replaced) > 0
        flags = distributed.union(_STOP * stop | _FAILED * (failure is not None) | _BROKEN * broken)
        if flags & _FAILED:
            distributed.together(lambda: _raise(failure))
        if flags & _STOP:
            signals = distributed.gather_objects(self._request.signal)
            raise Interrupted(next(number for number in signals if number))
        assert batch is not None
        if flags & _BROKEN:
            self._count(dict(pair for pairs in distributed.gather_objects(batch.replaced) for pair in pairs))
        return batch

    def _count(self, replaced: dict[str, str]) -> None:
        """Log each broken video once; raise if there are too many."""
        new = {path: reason for path, reason in replaced.items() if path not in self._broken}
        if distributed.is_main():
            for number, reason in enumerate(new.values(), len(self._broken) + 1):
                _log.warning("broken video %d, the next one takes its place: %s", number, reason)
        self._broken.update(new)
        limit = self._run.data.max_broken
        if len(self._broken) > most_broken(self._num_records, limit):
            report = Path(self._run.output) / "broken-videos.csv"
            if distributed.is_main():
                with suppress(DataError):  # it must not hide the error that follows
                    write_whole(report, csv_text([("path", "reason"), *self._broken.items()]).encode())
            counts = f"{len(self._broken)} of {self._num_records} videos are broken, data.max_broken is {limit}"
            reasons = first_few(self._broken.values(), separator="; ")
            raise DataError(f"{counts}: {reasons}; all are listed in {report}")


def _raise(failure: VidsslError | None) -> None:
    if failure is not None:
        raise failure


def accumulate(
    method: Method, parallel: nn.Module, batches: Iterable[Batch], count: int, half: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Accumulate the gradients of a step over the `count` micro-batches of this process, `half` in bfloat16.

    Returns its scalars, averaged over the micro-batches or, if the method contrasts all of them, computed over all; and
    the indices (N,) of its records.
    """
    if count > 1 and method.in_batch:
        return _cached(method, parallel, batches, half)
    if count > 1 and method.averages_labelled:
        batches = [*batches]  # all are counted before the first loss
        method.labelled = torch.stack([(batch.label >= 0).sum() for batch in batches]).double().mean()
    totals: dict[str, Tensor] = {}
    seen = []
    for n, batch in enumerate(batches, start=1):
        method.micro_batch = (n - 1, count)
        for name, value in _backward(parallel, batch, count, half, last=n == count).items():
            totals[name] = totals.get(name, 0.0) + value / count
        seen.append(batch.index)
    return totals, torch.cat(seen)


def _cached(
    method: Method, parallel: nn.Module, batches: Iterable[Batch], half: bool
) -> tuple[dict[str, Tensor], Tensor]:
    """Contrast all samples of a step with one another by gradient caching (Gao et al., 2021).

    All micro-batches are embedded without gradients; the loss over all embeddings gives the gradient of each; then each
    micro-batch runs again and backpropagates from it. The second pass uses the random numbers of the first, and it
    alone updates the running statistics of batch norms. Parameters that the loss itself uses, such as a temperature,
    get their gradient with the last micro-batch, when gradients are averaged over processes.
    """
    kept, states, embeddings = [], [], []
    with torch.no_grad(), statistics_kept(method):
        for batch in batches:  # the loader decodes the next one meanwhile
            device = batch.index.device
            kept.append(batch)
            states.append(_random_state(device))
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                embeddings.append(method.embed(batch))
    joined = torch.cat(embeddings).requires_grad_()
    scalars = method.contrast(joined, torch.cat([method.group(batch) for batch in kept]))
    parameters = [p for p in method.parameters() if p.requires_grad]
    gradient, *of_loss = torch.autograd.grad(_loss(method, scalars), [joined, *parameters], allow_unused=True)
    terms = [(p * g).sum() for p, g in zip(parameters, of_loss, strict=True) if g is not None]
    parts = torch.split(gradient, [len(batch.index) for batch in kept])
    for n, (batch, part, state) in enumerate(zip(kept, parts, states, strict=True), start=1):
        _set_random_state(state, batch.index.device)
        last = n == len(kept)
        _backward(parallel, batch, 1, half, last, part, terms if last else ())
    return {name: value.detach() for name, value in scalars.items()}, torch.cat([batch.index for batch in kept])


def _backward(
    parallel: nn.Module,
    batch: Batch,
    count: int,
    half: bool,
    last: bool,
    gradient: Tensor | None = None,
    more: Sequence[Tensor] = (),
) -> dict[str, Tensor]:
    """Run the method forward and backward on one micro-batch; `more` () is added to its loss."""
    inputs = (batch,) if gradient is None else (batch, gradient)
    with nullcontext() if last else without_averaging(parallel):
        with torch.autocast(batch.index.device.type, torch.bfloat16, enabled=half):
            scalars = parallel(*inputs)
        total = torch.stack([_loss(parallel, scalars), *more]).sum()
        torch.autograd.backward(total / count)
    return {name: value.detach() for name, value in scalars.items()}


def _loss(method: nn.Module, scalars: dict[str, Tensor]) -> Tensor:
    """Return the loss among the scalars of a method; a ConfigError if they are something else, as of a plug-in."""
    if not isinstance(scalars, dict) or not all(isinstance(value, Tensor) for value in scalars.values()):
        wrong = f"{type(scalars).__name__}, not a dictionary of tensors"
    elif "loss" not in scalars:
        wrong = f"{sorted(scalars)}, and no 'loss'"
    elif scalars["loss"].numel() > 1 or not scalars["loss"].requires_grad:
        wrong = f"a 'loss' {tuple(scalars['loss'].shape)}, not a single number that depends on trained weights"
    else:
        return scalars["loss"].squeeze()
    method = getattr(method, "module", method)  # of DistributedDataParallel
    raise ConfigError(f"{type(method).__name__} returns {wrong}: see docs/extend.md")


def _random_state(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _set_random_state(state: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
