"""`status.json` in the output folder: the state of a run, for schedulers and users."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from vidssl import distributed
from vidssl.atomic import write_whole
from vidssl.errors import DataError, Interrupted


class Status:
    """State of a run: `running`, `interrupted` (saved: start it again), `finished` or `failed`.

    A run that was killed leaves `running`. Only the main process writes.
    """

    def __init__(self, output: Path) -> None:
        self._path = output / "status.json"
        self.step: int | None = None  # of the newest checkpoint; None until the run starts
        self.steps: int | None = None

    @contextmanager
    def reported(self) -> Iterator["Status"]:
        """Write `running` now, and at the end of the block how it ended."""
        self._write("running")
        try:
            yield self
        except Interrupted as request:
            self._write("interrupted", signal.Signals(request.signal).name)
            raise
        except BaseException as error:
            self._write("failed", f"{type(error).__name__}: {error}")
            raise
        self._write("finished" if self.step == self.steps else "interrupted")

    def start(self, step: int, steps: int) -> None:
        """Set the step to start from, and the length of the run."""
        self.steps = steps
        self.saved(step)

    def saved(self, step: int) -> None:
        """Set the step of the newest checkpoint."""
        self.step = step
        self._write("running")

    def _write(self, state: str, reason: str | None = None) -> None:
        if distributed.is_main():
            time = datetime.now().astimezone().isoformat(timespec="seconds")
            content = {"state": state, "step": self.step, "steps": self.steps, "reason": reason, "time": time}
            with suppress(DataError):  # a full disk must not end the run here; the next checkpoint reports it
                write_whole(self._path, (json.dumps(content) + "\n").encode())
