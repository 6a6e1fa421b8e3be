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
        self._breaks = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Take the signals; afterwards they mean what they meant before."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python hands signals to the main thread only: there they keep their meaning
            return
        # Python hears a signal between two of its own steps: never, while torch waits for a process that hangs. The
        # kernel writes each into this pipe at once, and a thread reads it.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        threading.Thread(target=_end_on_repetition, args=(reader,), daemon=True).start()
        before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        woken = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        try:
            yield self
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(writer)  # the thread ends

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
            self.signal = number
            name = signal.Signals(number).name
            # Not by print or logging: the signal may have come in the middle of one.
            with suppress(OSError):  # whoever read it may be gone: Ctrl-C ends the `tee` of a pipe too
                os.write(2, f"\n{name}: saving at the next step boundary; once more ends at once\n".encode())
            if self._breaks:
                raise Interrupted(number)


def _end_on_repetition(reader: int) -> None:
    """End the process when the signal that came first comes again."""
    first, since = None, 0.0
    with open(reader, "rb", buffering=0) as pipe:
        while heard := pipe.read(1):
            number = heard[0]
            if first is None and number in SIGNALS:
                first, since = number, time.monotonic()
            # Not another one: Slurm sends SIGTERM when the time after SIGUSR1 is over, and some more for saving.
            elif number == first and not (_has_launcher() and time.monotonic() - since < _ECHO):
                os._exit(128 + number)


def _has_launcher() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ
