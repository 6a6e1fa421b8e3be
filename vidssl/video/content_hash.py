"""The bytes that a video consists of, to compare videos by content whatever their names are."""

import hashlib
import os
import stat
from contextlib import suppress
from itertools import groupby
from typing import NamedTuple

from vidssl.errors import ConfigError, DecodeError
from vidssl.video.packed_frames import find_frames, shard_path
from vidssl.video.tar_members import find_member

_BLOCK = 1 << 20  # bytes that are read at a time
_END = 1 << 16  # bytes of each end
# Video and `ends` to the modification times of its files and the hash: a changed file is read again.
_known: dict[tuple[str, bool], tuple[tuple[int, ...], str]] = {}


class Part(NamedTuple):
    """Consecutive bytes of a file."""

    file: str
    offset: int
    size: int


def content_hash(path: str, ends: bool = False) -> str | None:
    """Return the sha256 of a video's bytes; None if it is not there, empty or cannot be read.

    These are the bytes of a file or of a member of a tar, of all packed frames, or of all images of a folder by name.
    With `ends` only the first and the last 64 KiB count. Within a process each video is read once.
    """
    with suppress(OSError, DecodeError, ConfigError):  # what cannot be read is reported where it is decoded
        parts = _parts_of(path)
        stamps = tuple(os.stat(file).st_mtime_ns for file in dict.fromkeys(part.file for part in parts))
        if not parts:
            return None
        known = _known.get((path, ends))
        if known is None or known[0] != stamps:
            known = _known[path, ends] = stamps, _hash(_ends_of(parts) if ends else parts)
        return known[1]
    return None


def _parts_of(path: str) -> tuple[Part, ...]:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if member := find_member(path):
            return (Part(member.tar, member.offset, member.size),)
        if place := find_frames(path):
            folder, index, row = place
            shard, frames = str(shard_path(folder, int(index.shards[row]))), index.frames(row)
            places = zip(index.offsets[frames].tolist(), index.sizes[frames].tolist(), strict=True)
            return tuple(Part(shard, offset, size) for offset, size in places)
        return ()
    if stat.S_ISDIR(status.st_mode):
        with os.scandir(path) as entries:
            files = sorted(entry.path for entry in entries if not entry.name.startswith(".") and entry.is_file())
        return tuple(Part(file, 0, os.stat(file).st_size) for file in files)
    # Not of a device or a pipe, which may have no end.
    return (Part(path, 0, status.st_size),) if stat.S_ISREG(status.st_mode) and status.st_size else ()


def _ends_of(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    first, last = parts[0], parts[-1]
    size = min(_END, last.size)
    return (first._replace(size=min(_END, first.size)), Part(last.file, last.offset + last.size - size, size))


def _hash(parts: tuple[Part, ...]) -> str:
    """Hash the bytes of all parts."""
    digest = hashlib.sha256()
    for file, together in groupby(parts, key=lambda part: part.file):  # packed frames are many parts of one file
        with open(file, "rb") as opened:
            for _, offset, size in together:
                opened.seek(offset)
                while size > 0 and (block := opened.read(min(size, _BLOCK))):
                    digest.update(block)
                    size -= len(block)
    return digest.hexdigest()
