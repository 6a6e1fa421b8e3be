"""Progress bars, on terminals and in log files."""

import logging
import sys
from typing import Any

from tqdm import tqdm


def progress(iterable: Any = None, *, title: str | None = None, unit: str, **settings: Any) -> "tqdm[Any]":
    """Make a tqdm bar on stderr; `settings` are tqdm's. In a file each refresh is a new line: every 15 seconds."""
    terminal = sys.stderr.isatty()
    if logging.getLogger("vidssl").level >= logging.WARNING:  # `--quiet`
        settings["disable"] = True
    return tqdm(
        iterable, desc=title, unit=unit, dynamic_ncols=terminal, mininterval=0.2 if terminal else 15.0, **settings
    )
