"""The size in the outermost headers of a file, byte by byte."""

import struct

import pytest

from vidssl.apps.check.file_defects import missing_bytes


def box(kind, content=b"", size=None):
    return struct.pack(">I", 8 + len(content) if size is None else size) + kind + content


FTYP, MOOV = box(b"ftyp", b"isom" + bytes(4)), box(b"moov", bytes(40))
LARGE = struct.pack(">I", 1) + b"mdat" + struct.pack(">Q", 16 + 100) + bytes(100)  # a size of 64 bits
RIFF = b"RIFF" + struct.pack("<I", 4 + 60) + b"AVI " + bytes(60)
MORE = b"RIFF" + struct.pack("<I", 4 + 30) + b"AVIX" + bytes(30)
EBML = bytes.fromhex("1a45dfa3 84") + bytes(4)
SEGMENT = bytes.fromhex("18538067")


@pytest.mark.parametrize(
    ("content", "missing"),
    [
        (FTYP + MOOV + LARGE, None),
        (FTYP + MOOV + LARGE[:-1], "its header states 180 bytes, it has 179"),
        (FTYP + MOOV + LARGE[:10], None),  # not even the size is there
        (FTYP + LARGE, "its index (moov) is missing"),
        (FTYP + box(b"mdat", bytes(50), size=0), "its index (moov) is missing"),  # 0: to the end of the file
        (FTYP + MOOV + box(b"mdat", bytes(50), size=0), None),
        (FTYP + MOOV + bytes(20), None),  # filled up with zeros
        (RIFF, None),
        (RIFF + MORE, None),
        (RIFF[:-1], "its header states 72 bytes, it has 71"),
        (RIFF + MORE[:-5], "its header states 114 bytes, it has 109"),
        (b"RIFF" + bytes(4) + b"AVI " + bytes(60), None),  # never filled in
        (b"RIFF" + struct.pack("<I", 999) + b"WAVE" + bytes(60), None),
        (EBML + SEGMENT + b"\x8a" + bytes(10), None),
        (EBML + SEGMENT + b"\x8a" + bytes(9), "its header states 24 bytes, it has 23"),
        (EBML + SEGMENT + bytes.fromhex("0100000000000400"), "its header states 1045 bytes, it has 21"),
        (EBML + SEGMENT + bytes.fromhex("01ffffffffffffff"), None),  # unknown, as in a stream
        (EBML + SEGMENT + b"\xff", None),
        (EBML + bytes(20), None),
        (EBML[:4] + b"\x00", None),
        (b"<!doctype html>", None),
        (b"", None),
    ],
)
def test_missing_bytes(tmp_path, content, missing):
    (tmp_path / "file").write_bytes(content)
    assert missing_bytes(tmp_path / "file") == missing
