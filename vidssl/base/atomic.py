"""Atomic writes: a file is complete under its name, or what was there before is untouched."""

import csv
import errno
import hashlib
import io
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vidssl.base.errors import OutputError, first_few

_log = logging.getLogger(__name__)
ELSEWHERE = "choose another folder to write to"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` when the block ends without an error, synced to disk."""
    temporary = temporary_for(path)
    try:
        with open(temporary, "wb", opener=no_link) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if error.filename is None and error.errno is not None:  # of a write: a full disk names no file
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def temporary_for(path: Path) -> Path:
    """Return the path that is written before it is renamed to `path`: hidden, beside it, one per process."""
    name = path.name
    if len(os.fsencode(name)) > 200:  # with what is added, the longest names would be too long
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.with_name(f".{name}.{os.getpid()}.tmp")


def no_link(path: str, flags: int) -> int:
    """Open a file, but not through a link: the `opener` of files to be written."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk: without it, a power cut can undo a rename."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync folders
            raise
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the file system in this block into an OutputError: `path` cannot be written, why, what to do."""
    try:
        yield
    except OSError as error:
        full = "free disk space or " * (error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
        raise OutputError(f"cannot write {path}: {error.strerror or error}; {full}{ELSEWHERE}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, creating its folder; a DataError if it cannot be written."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)


def csv_text(rows: Iterable[Sequence[object]], separator: str = ",") -> str:
    """Write rows, the first of them the header, as CSV with lines that end in a newline alone."""
    text = io.StringIO()
    csv.writer(text, delimiter=separator, lineterminator="\n").writerows(rows)
    return text.getvalue()


def write_json(path: Path, content: Any) -> None:
    """Write plain data as JSON, as `write_whole` does; undefined numbers are null, and a warning names them."""
    plain, undefined = without_nan(content)
    if undefined:
        _log.warning("%s: undefined numbers are null: %s", path, first_few(undefined))
    write_whole(path, (json.dumps(plain, indent=2, allow_nan=False) + "\n").encode())


def without_nan(content: Any, name: str = "") -> tuple[Any, list[str]]:
    """Return plain data with None for each NaN or infinity, which JSON lacks, and the dotted names of these."""
    if isinstance(content, float):
        return (content, []) if math.isfinite(content) else (None, [name])
    if isinstance(content, Mapping):
        parts: Any = content.items()
    elif isinstance(content, list | tuple):
        parts = enumerate(content)
    else:
        return content, []
    values, undefined = {}, list[str]()
    for key, part in parts:
        values[key], names = without_nan(part, f"{name}.{key}".lstrip("."))
        undefined += names
    return (values if isinstance(content, Mapping) else [*values.values()]), undefined


def file_hash(path: Path) -> str:
    """Return the sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextmanager
def creating_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` when the block ends without an error; else it is deleted."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A sibling, for the rename. One level deeper, as other users cannot read mkdtemp's own folder.
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent))
    try:
        folder = scratch / path.name
        folder.mkdir()
        yield folder
        os.replace(folder, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
