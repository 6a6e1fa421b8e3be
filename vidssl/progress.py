"""Progress bars, on terminals and in log files."""

import logging
import sys
from typing import Any

from tqdm import tqdm


def progress(iterable: Any = None, *, title: str | None = None, unit: str, **settings: Any) -> "tqdm[Any]":
    """Make a tqdm bar on stderr.

    In a file each refresh is a new line, so there it refreshes every 15 seconds only.

    Args:
        iterable: None if the caller counts with `update()`.
        title: Shown before the bar.
        unit: What is counted.
        settings: Of tqdm: total, initial, leave, disable, …
    """
    terminal = sys.stderr.isatty()
    if logging.getLogger("vidssl").level >= logging.WARNING:  # `--quiet`
        settings["disable"] = True
    return tqdm(
        iterable, desc=title, unit=unit, dynamic_ncols=terminal, mininterval=0.2 if terminal else 15.0, **settings
    )
