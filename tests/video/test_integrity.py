"""The size in the outermost headers of a file, byte by byte."""

import struct

import pytest

from vidssl.apps.check.file_defects import check_video, missing_bytes
from vidssl.video.reader import MAX_PIXELS


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


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.9])
def test_a_cut_file_is_truncated_whatever_the_decoder_says(tmp_path, real, share):
    """Without its headers FFmpeg may find no decoder for a stream."""
    content = (real / "cases/vfr.mp4").read_bytes()
    (tmp_path / "cut.mp4").write_bytes(content[: int(share * len(content))])
    assert [kind for kind, _ in check_video(tmp_path / "cut.mp4", 1.0, MAX_PIXELS, lambda: None)[1]] == ["truncated"]
