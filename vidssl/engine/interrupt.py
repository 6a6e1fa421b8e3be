"""Signals that ask a run to stop: it saves at the next step boundary. The same signal once more ends it at once."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from vidssl.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_ECHO = 2.0  # seconds in which a launcher passes on a signal that its whole group got


class StopRequest:
    """Whether the run was asked to stop.

    Attributes:
        signal: Number of the first signal that asked; None as long as there was none.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._since = 0.0
        self._breaks = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take the signals; afterwards they mean what they meant before."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python hands signals to the main thread only: there they keep their meaning
            return
        before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Let a signal break off this block by `Interrupted`: for waits whose result nothing depends on yet."""
        self._breaks = True
        try:
            self.check()
            yield
        finally:
            self._breaks = False

    def check(self) -> None:
        """Raise `Interrupted` if there was a signal."""
        if self.signal is not None:
            raise Interrupted(self.signal)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
            name = signal.Signals(number).name
            # Not by print or logging: the signal may have come in the middle of one.
            with suppress(OSError):  # whoever read it may be gone: Ctrl-C ends the `tee` of a pipe too
                os.write(2, f"\n{name}: saving at the next step boundary; once more ends at once\n".encode())
            if self._breaks:
                raise Interrupted(number)
        # Not another one: Slurm sends SIGTERM when the time after SIGUSR1 is over, and some more for saving.
        elif number == self.signal and not (_has_launcher() and time.monotonic() - self._since < _ECHO):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _has_launcher() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ
