"""Files that are there whole or not at all."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vidssl.errors import DataError


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


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all; its folder is made.

    Raises:
        DataError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; make room, or name another folder") from None


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON, as `write_whole` does."""
    write_whole(path, (json.dumps(content, indent=2) + "\n").encode())


def check_folder(path: Path) -> None:
    """See whether a path can be a folder for results: to be asked before hours of work.

    Raises:
        DataError: It is a file.
    """
    if path.exists() and not path.is_dir():
        raise DataError(f"cannot write to {path}: it is a file; name a folder")


def state_of(path: Path) -> tuple[int, int]:
    """Bytes of a file or a folder of images, and when it was changed, in nanoseconds; -1: it is not there."""
    try:
        parts = [path.stat(), *(entry.stat() for entry in path.iterdir())] if path.is_dir() else [path.stat()]
    except OSError:
        return 0, -1
    return sum(part.st_size for part in parts), max(part.st_mtime_ns for part in parts)


def temporary_for(path: Path) -> Path:
    """Name a file beside a path for what is to become it: hidden, and this process's own."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")


@contextmanager
def creating_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` when the block ends without an error; else it is deleted.

    Raises:
        OSError: It cannot be written, or `path` exists and is not an empty folder.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A sibling, so that the rename stays on one file system. One level deeper, since mkdtemp's own folder is not
    # readable by other users.
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        folder = scratch / path.name
        folder.mkdir()
        yield folder
        os.replace(folder, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
