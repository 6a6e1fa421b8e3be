"""Files of equal content under several names, found by size first, so that few files are read."""

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import accumulate, takewhile
from pathlib import Path

from vidssl.atomic import file_hash
from vidssl.errors import DataError
from vidssl.progress import progress

_log = logging.getLogger(__name__)

_END = 1 << 16  # bytes of both ends of a file that are compared before all of it is


def find_copies(root: Path, names: Sequence[str], most_read: int = 50_000) -> dict[str, str]:
    """Map the name of each file that is an exact copy to the first name of the same content.

    Empty files, folders and files that do not exist are no copies. At most `most_read` files that have the size of
    another one are read: of a million small images all have. A warning says if there are more.

    Raises:
        DataError: A file cannot be read.
    """
    sizes = sorted(_equal(root, dict.fromkeys(names), _size), key=len)
    read = list(takewhile(lambda count: count <= most_read, accumulate(map(len, sizes))))
    if len(read) < len(sizes):
        _log.warning(
            "%s: %d files have the size of another one; %d were compared, and copies among the others are not found",
            *(root, sum(map(len, sizes)), read[-1] if read else 0),
        )
    groups: Iterable[list[str]] = progress(sizes[: len(read)], title="copies", unit="size", leave=False)
    for key in (_ends, file_hash):  # the second one reads whole files: those that differ nowhere else
        groups = [group for part in groups for group in _equal(root, part, key)]
    return {name: group[0] for group in groups for name in group[1:]}


def _equal(root: Path, names: Iterable[str], key: Callable[[Path], Hashable]) -> list[list[str]]:
    """Groups of two names or more whose files have the same key; None is no key."""
    groups: dict[Hashable, list[str]] = {}
    for name in names:
        try:
            groups.setdefault(key(root / name), []).append(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise DataError(f"cannot read {root / name}: {error.strerror}; make it readable or remove it") from None
    return [group for value, group in groups.items() if value is not None and len(group) > 1]


def _size(path: Path) -> int | None:
    status = os.stat(path)
    return status.st_size or None if stat.S_ISREG(status.st_mode) else None


def _ends(path: Path) -> bytes:
    """Hash of the first and the last bytes: many files of one size differ there."""
    with open(path, "rb") as file:
        first = file.read(_END)
        file.seek(max(0, path.stat().st_size - _END))
        return hashlib.sha256(first + file.read(_END)).digest()
