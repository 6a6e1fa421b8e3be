"""`status.json` in the output folder: what schedulers and people look at to see how a run stands."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from vidssl import distributed
from vidssl.atomic import replacing
from vidssl.errors import Interrupted


class Status:
    """State of a run: `running`, `interrupted` (saved: start it again), `finished` or `failed`.

    A run that was killed leaves `running` behind. Only the main process writes.
    """

    def __init__(self, output: Path) -> None:
        self._path = output / "status.json"
        self.step: int | None = None  # not known while the run gets ready
        self.steps: int | None = None

    @contextmanager
    def reported(self) -> Iterator["Status"]:
        """Write `running` now, and at the end how the block ended."""
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

    def saved(self, step: int, steps: int) -> None:
        """Note that a checkpoint of this step, of so many, is there."""
        self.step, self.steps = step, steps
        self._write("running")

    def _write(self, state: str, reason: str | None = None) -> None:
        if not distributed.is_main():
            return
        content = {
            "state": state,
            "step": self.step,  # of the newest checkpoint
            "steps": self.steps,
            "reason": reason,
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        with suppress(OSError):  # a full disk is reported by the checkpoint that it stops, not by this note
            with replacing(self._path) as file:
                file.write((json.dumps(content) + "\n").encode())
