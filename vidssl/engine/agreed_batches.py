"""Batches on the device, with signals, errors and broken videos agreed on by all processes."""

import csv
import logging
from contextlib import nullcontext, suppress
from io import StringIO
from pathlib import Path

import torch

from vidssl import distributed
from vidssl.atomic import write_whole
from vidssl.data.dataset import most_broken
from vidssl.data.loader import Loader
from vidssl.data.to_device import on_device
from vidssl.engine.config_schema import Run
from vidssl.engine.interrupt import StopRequest
from vidssl.errors import DataError, Interrupted, VidsslError, first_few
from vidssl.types import Batch

_log = logging.getLogger(__name__)

_STOP, _FAILED, _BROKEN = 1, 2, 4  # flags of a process, combined over all of them by a bitwise or


class Feed:
    """The micro-batches of a run; the processes exchange flags before each, in one all-reduce, to stop together."""

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
        try:
            with suppress(Interrupted), self._request.breaking() if between_steps else nullcontext():
                batch = next(self._batches)
        except VidsslError as error:
            failure = error
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
            report, text = Path(self._run.output) / "broken-videos.csv", StringIO()
            csv.writer(text, lineterminator="\n").writerows([("path", "reason"), *self._broken.items()])
            if distributed.is_main():
                with suppress(DataError):  # it must not hide the error that follows
                    write_whole(report, text.getvalue().encode())
            raise DataError(
                f"{len(self._broken)} of {self._num_records} videos are broken, data.max_broken is {limit}: "
                f"{first_few(self._broken.values(), separator='; ')}; all are listed in {report}"
            )


def _raise(failure: VidsslError | None) -> None:
    if failure is not None:
        raise failure
