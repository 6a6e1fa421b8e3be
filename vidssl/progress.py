"""Progress bars on terminals, and lines of progress in log files."""

import logging
import sys
from typing import Any

from tqdm import tqdm

_INTERVAL = 15.0  # seconds between the lines in a file
_LINE = "{desc}: {n_fmt} of {total_fmt} {unit}s, {elapsed} elapsed, {remaining} left, {rate_fmt}{postfix}"


class _Lines:
    """Writes each state of a bar as a line of its own: a bar rewrites its line by carriage returns."""

    def write(self, text: str) -> None:
        """Write a state; a blank one clears the line on a terminal, and is nothing here."""
        if text.strip():
            print(text.strip(), file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Do nothing: each line is flushed."""


def progress(iterable: Any = None, *, title: str, unit: str, **settings: Any) -> "tqdm[Any]":
    """Make a tqdm bar on stderr; `settings` are tqdm's.

    If stderr is not a terminal, it is a line every 15 seconds, and none for what takes less.
    """
    if logging.getLogger("vidssl").level >= logging.WARNING:  # `--quiet`
        settings["disable"] = True
    if sys.stderr.isatty():
        settings |= {"dynamic_ncols": True, "mininterval": 0.2}
    else:
        settings |= {"file": _Lines(), "ascii": True, "bar_format": _LINE, "leave": False}
        settings |= dict.fromkeys(("delay", "mininterval", "maxinterval"), _INTERVAL)
    return tqdm(iterable, desc=title, unit=unit, **settings)
