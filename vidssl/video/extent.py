"""What a file promises to hold by its outermost headers, and lacks: the one sure sign that it was cut off."""

import os
from pathlib import Path
from typing import BinaryIO


def lacks(path: Path) -> str | None:
    """Say what of a file is missing; None: nothing, or its kind does not tell.

    MP4 and MOV are a row of boxes, one of which is the index; AVI is a row of RIFF chunks; Matroska and WebM are
    one segment. Each says how many bytes it has. MPEG, FLV, GIF and what is streamed promise nothing.

    Args:
        path: A file that can be read, video or not.

    Returns:
        Half a sentence, without the name of the file.
    """
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(12)
        if head[4:8] in _BOXES:
            return _boxes(file, size)
        if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            return _beyond(_end_of_riff(file, size), size)
        if head[:4] == _EBML:
            return _beyond(_end_of_segment(file), size)
    return None


_BOXES = frozenset(
    (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot")
)  # that such a file begins with
_EBML, _SEGMENT = bytes.fromhex("1a45dfa3"), bytes.fromhex("18538067")


def _beyond(end: int | None, size: int) -> str | None:
    return None if end is None or end <= size else f"its header says {end} bytes, it has {size}"


def _boxes(file: BinaryIO, size: int) -> str | None:
    place, indexed = 0, False
    while place + 8 <= size:
        file.seek(place)
        length, kind = int.from_bytes(file.read(4), "big"), file.read(4)
        indexed = indexed or kind == b"moov"
        if length == 1:
            length = int.from_bytes(file.read(8), "big")
        if length < 8:  # 0: to the end of the file; else not a box
            break
        place += length
    return _beyond(place, size) or (None if indexed else "its index (moov) is missing")


def _end_of_riff(file: BinaryIO, size: int) -> int:
    place = 0
    while place + 8 <= size:  # large files go on in a second chunk
        file.seek(place)
        kind, length = file.read(4), int.from_bytes(file.read(4), "little")
        if kind != b"RIFF" or length == 0:
            break
        place += 8 + length
    return place


def _end_of_segment(file: BinaryIO) -> int | None:
    file.seek(len(_EBML))
    head = _number(file)
    if head is None:
        return None
    file.seek(head, os.SEEK_CUR)
    if file.read(len(_SEGMENT)) != _SEGMENT:
        return None
    length = _number(file)
    return None if length is None else file.tell() + length


def _number(file: BinaryIO) -> int | None:
    """Read a number of RFC 8794, section 4: the zeros it begins with tell its length; all ones: unknown."""
    first = int.from_bytes(file.read(1), "big")
    length = 9 - first.bit_length()
    if length > 8:
        return None
    bits = 7 * length
    value = (first << 8 * (length - 1) | int.from_bytes(file.read(length - 1), "big")) & ((1 << bits) - 1)
    return None if value == (1 << bits) - 1 else value
