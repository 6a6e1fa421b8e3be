"""Signals that stop a run: it is saved as soon as that can be. The same signal again ends it at once.

Within two seconds the repetition of a signal that programs send is an echo of it.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from vidssl.base.errors import Interrupted

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
_ECHO = 2.0  # seconds in which a launcher, or timeout(1), repeats a signal that its process group has received already


class StopRequest:
    """Whether a signal has asked the run to stop; `saved` is then printed: what is kept, and how to go on."""

    def __init__(self, saved: str = "stopping") -> None:
        self._saved = saved
        self.signal: int | None = None  # number of the first one
        self._breaks = False

    @contextmanager
    def listening(self) -> Iterator["StopRequest"]:
        """Handle the signals in this block; restore the previous handlers afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python allows handlers in the main thread only
            return
        # Python runs no handler while torch waits for a process that hangs. But each signal is written into this pipe
        # at once, and a thread reads it.
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        threading.Thread(target=_end_on_repetition, args=(reader,), daemon=True).start()
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
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
        """Let a signal raise `Interrupted` inside this block: for waits that can be abandoned."""
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
            name = signal.Signals(number).name
            # Not by print or logging: the signal may have come in the middle of one.
            with suppress(OSError):  # stderr may be closed: Ctrl-C also ends the `tee` of a pipe
                os.write(2, f"\n{name}: {self._saved}; send it again to end at once\n".encode())
            if self._breaks:
                raise Interrupted(number)


def _end_on_repetition(reader: int) -> None:
    """End the process when the first signal is repeated."""
    first, since, echo = None, 0.0, 0.0
    launched = "TORCHELASTIC_RUN_ID" in os.environ or "SLURM_STEP_ID" in os.environ
    with open(reader, "rb", buffering=0) as pipe:
        while received := pipe.read(1):
            number = received[0]
            if first is None and number in SIGNALS:
                first, since = number, time.monotonic()
                # A person presses Ctrl-C: twice is meant. Programs send the rest.
                echo = _ECHO if launched or number != signal.SIGINT else 0.0
            # Other signals are ignored: Slurm sends SIGTERM some time after SIGUSR1, and leaves more time for saving.
            elif number == first and time.monotonic() - since >= echo:
                os._exit(128 + number)
