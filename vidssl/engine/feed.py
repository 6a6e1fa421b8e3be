"""What reaches the method: batches on the device, about which all processes agree."""

import csv
import logging
from contextlib import nullcontext, suppress
from io import StringIO
from pathlib import Path

import torch

from vidssl import distributed
from vidssl.atomic import write_whole
from vidssl.data.dataset import first_few
from vidssl.data.loader import Loader, on_device
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.run_config import Run
from vidssl.errors import DataError, Interrupted, VidsslError
from vidssl.types import Batch

_log = logging.getLogger(__name__)

_STOP, _FAILED, _BROKEN = 1, 2, 4  # what a process has to tell the others before they go on


class Feed:
    """The micro-batches of a run.

    Before each, the processes tell each other of signals, errors and broken videos. So they stop together, before
    a step begins, and no one waits in a collective for one that is gone.
    """

    def __init__(
        self,
        loader: Loader,
        run: Run,
        num_records: int,
        device: torch.device,
        request: StopRequest,
        broken: dict[str, str],
    ) -> None:
        self._batches = on_device(loader, device, run.data.mean, run.data.std)
        self._limit, self._num_records, self._request = run.data.max_broken, num_records, request
        self._report = Path(run.output) / "broken-videos.csv"
        self._broken = broken  # added to, and saved with the run

    def close(self) -> None:
        """End the workers."""
        self._batches.close()

    def next(self, *, between_steps: bool) -> Batch:
        """Give the next micro-batch.

        Args:
            between_steps: Whether the run can stop here: a signal then breaks off the wait. In the middle of a
                step nothing does.

        Raises:
            Interrupted: A process was asked to stop.
            DataError: Too many videos are broken.
            PeerError: Another process has an error.
        """
        batch: Batch | None = None
        failure: VidsslError | None = None
        try:
            with self._request.breaking() if between_steps else nullcontext():
                batch = next(self._batches)
        except Interrupted:
            pass
        except VidsslError as error:
            failure = error
        stop = between_steps and self._request.signal is not None
        broken = batch is not None and len(batch.replaced) > 0
        news = distributed.union(_STOP * stop | _FAILED * (failure is not None) | _BROKEN * broken)
        if news & _FAILED:
            distributed.together(lambda: _raise(failure))
        if news & _STOP:
            raise Interrupted(
                next(number for number in distributed.gather_objects(self._request.signal) if number)
            )
        assert batch is not None
        if news & _BROKEN:
            self._count([pair for pairs in distributed.gather_objects(batch.replaced) for pair in pairs])
        return batch

    def _count(self, replaced: list[tuple[str, str]]) -> None:
        """Name each broken video once; stop when they are too many."""
        for path, reason in replaced:
            if path not in self._broken:
                self._broken[path] = reason
                if distributed.is_main():
                    _log.warning(
                        "broken video %d, the next one takes its place: %s", len(self._broken), reason
                    )
        if len(self._broken) > self._limit * self._num_records:
            if distributed.is_main():
                self._write_report()
            raise DataError(
                f"{len(self._broken)} of {self._num_records} videos are broken, data.max_broken is {self._limit}: "
                f"{first_few([*self._broken.values()])}; all are in {self._report}"
            )

    def _write_report(self) -> None:
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([("path", "reason"), *self._broken.items()])
        with suppress(DataError):  # the error that follows is what matters
            write_whole(self._report, text.getvalue().encode())


def _raise(failure: VidsslError | None) -> None:
    if failure is not None:
        raise failure
