"""Progress bars on terminals, and lines of progress in log files."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal

from tqdm import tqdm

_FIRST, _INTERVAL = 5.0, 15.0  # seconds before the first line in a file, with the time left, and between others
_LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} elapsed, {remaining} left, {rate_fmt}{postfix}"


# Called with the work done, all of it (None: unknown) and its title; False: no progress; None: bars and lines.
Report = Callable[[int, int | None, str], object] | Literal[False] | None
_thread = threading.local()  # the report of each thread


@contextmanager
def reporting(report: Report) -> Iterator[None]:
    """Call `report` for the progress in this block and thread instead of drawing it; see `Report`.

    An exception that it raises ends the work.
    """
    before = getattr(_thread, "report", None)
    _thread.report = report
    try:
        yield
    finally:
        _thread.report = before


class _Reported(tqdm):  # type: ignore[type-arg]
    """Calls a function instead of drawing a bar."""

    def __init__(self, iterable: Any, title: str, report: Callable[[int, int | None, str], object], **settings: Any):
        super().__init__(iterable, **{**settings, "disable": True})
        self._title, self._report = title, report

    def update(self, n: float | None = 1) -> bool | None:
        """Report that n more are done."""
        self.n += n or 0
        self._report(int(self.n), None if self.total is None else int(self.total), self._title)
        return None

    def __iter__(self) -> Iterator[Any]:
        """Yield the items, and report each when it is done."""
        for item in self.iterable:
            yield item
            self.update()


class _Lines:
    """Writes each state of a bar as a line of its own: a bar rewrites its line by carriage returns."""

    def __init__(self) -> None:
        self._next = 0.0

    def write(self, text: str) -> None:
        """Write a state; a blank one, and a move up from an inner bar, are of terminals, and nothing here."""
        if (text := text.replace("\x1b[A", "").strip()) and time.monotonic() >= self._next:
            self._next = time.monotonic() + _INTERVAL - _FIRST / 2
            with suppress(OSError):  # stderr is closed: the work goes on without its log
                print(text, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Do nothing: each line is flushed."""


def progress(iterable: Any = None, *, title: str, unit: str, **settings: Any) -> "tqdm[Any]":
    """Make a tqdm bar on stderr; `settings` are tqdm's. In a block of `reporting` a function is called instead.

    If stderr is neither a terminal nor a notebook, it is a line after 5 seconds and then every 15.
    """
    report = getattr(_thread, "report", None)
    if callable(report) and not settings.get("disable"):
        return _Reported(iterable, title, report, **settings)
    if report is False or logging.getLogger("vidssl").level >= logging.WARNING:  # `--quiet`
        settings["disable"] = True
    if sys.stderr.isatty() or "ipykernel" in sys.modules:
        settings |= {"dynamic_ncols": True, "mininterval": 0.2}
    else:
        settings |= {"file": _Lines(), "ascii": True, "bar_format": _LINE, "leave": False}
        settings |= dict.fromkeys(("delay", "mininterval", "maxinterval"), _FIRST)
    return tqdm(iterable, desc=title, unit=unit, **settings)
