"""The signature of a shrunk copy: a box at the end of its file that says which original it is a copy of.

An MP4 file is a sequence of boxes: size, type, content. Readers skip a box of type `uuid` whose UUID they do not know.
So a file with the signature was written by vidssl, whatever its folder, and is found out without opening it as a video.
"""

import json
import os
import struct
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

_UUID = uuid.uuid5(uuid.NAMESPACE_URL, "vidssl shrink").bytes
_HEAD = struct.Struct(">I4s16s")  # size of the box with its head, type, UUID
_MOST = 4096  # bytes of a box: the name of a file has at most 255


@dataclass(frozen=True)
class Signature:
    """What a copy was made of."""

    size: int  # bytes of the original; of an image folder, of all its files
    changed: int  # modification time of the original, nanoseconds; of an image folder, the newest
    copy: int  # bytes of the copy, without the signature


def sign(path: Path, size: int, changed: int) -> None:
    """Append the signature to a complete MP4 file, and sync it to disk."""
    with open(path, "rb+") as file:
        length = file.seek(0, os.SEEK_END)
        content = json.dumps(asdict(Signature(size, changed, length))).encode()
        total = _HEAD.size + len(content) + 4
        # The size stands at the end too, where it is looked up.
        file.write(_HEAD.pack(total, b"uuid", _UUID) + content + struct.pack(">I", total))
        file.flush()
        os.fsync(file.fileno())


def signature_of(path: Path) -> Signature | None:
    """Read the signature of a copy; None if the file is not one, or was cut or lengthened since."""
    with open(path, "rb") as file:
        length = file.seek(0, os.SEEK_END)
        if length < _HEAD.size + 4:
            return None
        file.seek(length - 4)
        (total,) = struct.unpack(">I", file.read(4))
        if not _HEAD.size + 4 < total <= min(_MOST, length):
            return None
        file.seek(length - total)
        box = file.read(total)
    if box[: _HEAD.size] != _HEAD.pack(total, b"uuid", _UUID):
        return None
    try:
        found = Signature(**json.loads(box[_HEAD.size : -4]))
    except (ValueError, TypeError):
        return None
    return found if found.copy == length - total else None
