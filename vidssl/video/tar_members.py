"""Videos in tar files, named `FILE.tar#MEMBER`: found once by the headers of the tar, then read by their offset."""

import os
import stat
import tarfile
from pathlib import PurePosixPath
from typing import NamedTuple

from vidssl.base.errors import DecodeError, why_unreadable

_MARK = ".tar#"
_State = tuple[int, int]  # size and modification time of a tar: a changed one is read again
_known: dict[str, tuple[_State, dict[str, tuple[int, int]]]] = {}  # tar to its members: offset and size


class Member(NamedTuple):
    """Where a tar holds a file."""

    tar: str
    offset: int
    size: int  # bytes
    changed: int  # modification time of the tar, nanoseconds


def find_member(path: str) -> Member | None:
    """Find the file that `FILE.tar#MEMBER` names. None for other paths, for a file of this whole name, without the tar.

    Raises:
        DecodeError: The tar is compressed or damaged, or has no such file.
    """
    start, _, name = path.partition(_MARK)
    tar = f"{start}.tar"
    if not name or os.path.lexists(path) or not os.path.lexists(tar):
        return None
    members, changed = _members(tar)
    if (key := _normal(name)) not in members:
        raise DecodeError(f"{path}: the tar has no file of this name; tar -tf lists those it has")
    return Member(tar, *members[key], changed)


def list_members(tar: str) -> list[str]:
    """Return the names of the files in a tar, in its order; a DecodeError if it cannot be read."""
    return list(_members(tar)[0])


def _members(tar: str) -> tuple[dict[str, tuple[int, int]], int]:
    try:
        status = os.stat(tar)
        if not stat.S_ISREG(status.st_mode):  # a pipe would wait for a writer
            raise DecodeError(f"{tar}: not a file")
        state = status.st_size, status.st_mtime_ns
        if tar not in _known or _known[tar][0] != state:
            # Without decompression, in which offsets mean nothing. Names that are not UTF-8 stay what they are.
            with tarfile.open(tar, "r:", errors="surrogateescape") as file:
                members = {_normal(m.name): (m.offset_data, m.size) for m in file if m.isreg() and not m.issparse()}
            _known[tar] = state, members
        return _known[tar][1], state[1]
    except OSError as error:
        raise DecodeError(f"{tar}: {why_unreadable(tar, error)}") from None
    # The others: fields of damaged headers, as numbers or names.
    except (tarfile.TarError, ValueError, OverflowError, EOFError, UnicodeError) as error:
        raise DecodeError(f"{tar}: not an uncompressed tar, or damaged: {error}; unpack it") from None


def _normal(name: str) -> str:
    """A name without `./`, which `tar -cf x.tar .` writes before each."""
    return str(PurePosixPath(name))
