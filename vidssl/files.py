"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that gets its name, from an older one if need be, when all of it is on disk.

    Where the block fails, or the process is killed, what was there is untouched.

    Raises:
        OSError: It cannot be written.
    """
    temporary = temporary_for(path)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_for(path: Path) -> Path:
    """Name a file beside a path for what is to become it: hidden, and this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
