"""Progress bars: one look, on terminals and in log files."""

import logging
import sys
from typing import Any

from tqdm import tqdm


def progress(iterable: Any = None, *, title: str | None = None, unit: str, **settings: Any) -> "tqdm[Any]":
    """Make a bar with rate and remaining time, on stderr.

    In a file each refresh of a bar is one more line, so there it refreshes every 15 seconds only.

    Args:
        iterable: What is iterated over; None where the caller counts with `update()`.
        title: What is being done.
        unit: What is counted.
        settings: Of tqdm: total, initial, leave, disable, …
    """
    terminal = sys.stderr.isatty()
    if logging.getLogger("vidssl").level >= logging.WARNING:  # `--quiet`
        settings["disable"] = True
    return tqdm(
        iterable,
        desc=title,
        unit=unit,
        dynamic_ncols=terminal,
        mininterval=0.2 if terminal else 15.0,
        **settings,
    )
