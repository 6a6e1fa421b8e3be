"""Packets that hold one field of a frame, the even or the odd lines, and all files that are whole."""

import io
from fractions import Fraction

import av
import numpy as np
import pytest

from vidssl.apps.check import KEPT
from vidssl.apps.check.file_defects import check_video
from vidssl.base.keyed_generators import generator
from vidssl.video import packet_index as index
from vidssl.video.reader import MAX_PIXELS, open_video

SIDE = 64  # pixels
FRAME, TOP, BOTTOM = None, 0, 1


class Bits:
    """Writes numbers of some bits each, and Exp-Golomb codes."""

    def __init__(self, *fields):
        self.bits = ""
        self.add(*fields)

    def add(self, *fields):
        """Add (value, number of bits), or a value as a code."""
        for field in fields:
            if isinstance(field, tuple):
                self.bits += f"{field[0]:0{field[1]}b}"
            else:
                code = f"{field + 1:b}"
                self.bits += "0" * (len(code) - 1) + code
        return self

    def align(self):
        self.bits += "0" * (-len(self.bits) % 8)
        return self

    def content(self):
        return int(self.bits, 2).to_bytes(len(self.bits) // 8, "big")


def shown(number):
    """Luma (H, W) with a number, as `number_of` reads it."""
    return np.tile(np.repeat((number >> np.arange(8) & 1) * 190 + 30, 8).astype(np.uint8), (SIDE, 1))


# H.264: macroblocks of bare samples (I_PCM), which need no transform.


def unit(kind, bits):
    content = bits.add((1, 1)).align().content()
    stuffed = bytearray()
    for byte in content:
        if stuffed[-2:] == b"\0\0" and byte < 4:
            stuffed.append(3)
        stuffed.append(byte)
    return b"\0\0\0\1" + bytes([3 << 5 | kind]) + bytes(stuffed)


def h264_headers(high):
    """Sequence and picture header of interlaced video, of the main profile or the high one with scaling lists."""
    sequence = Bits((100 if high else 77, 8), (0, 8), (30, 8), 0)
    if high:
        lists = Bits().add((1, 1), 0, *[0] * 15, (1, 1), 16, *[(0, 1)] * 6)  # flat; ended by a 0 at once; none
        sequence.add(1, 0, 0, (0, 1), (1, 1))
        sequence.bits += lists.bits
    sequence.add(0, 0, 4, 1, (0, 1), SIDE // 16 - 1, SIDE // 32 - 1, (0, 1), (0, 1), (1, 1), (0, 1), (0, 1))
    picture = Bits(0, 0, (0, 2), 0, 0, 0, (0, 3), 0, 0, 0, (1, 1), (0, 2))
    return unit(7, sequence) + unit(8, picture)


def h264_picture(number, since, field, high):
    """A frame or a field; `since` counts the frames since the last key frame."""
    idr = since == 0 and field != BOTTOM
    bits = Bits(0, 7 if idr else 5, 0, (since % 16, 4), (field is not FRAME, 1))
    bits.add(*[] if field is FRAME else [(field, 1)], *[0] if idr else [], (2 * since + (field or 0), 8))
    bits.add(*[(0, 1)] * (2 if idr else 3), 0, 1)
    rows = shown(number) if field is FRAME else shown(number)[field::2]
    for y in range(0, len(rows), 16):
        for x in range(0, SIDE, 16):
            bits.add(*[] if idr else [0], 25 if idr else 30).align()
            samples = rows[y : y + 16, x : x + 16].tobytes() + bytes([128]) * 128
            bits.bits += f"{int.from_bytes(samples, 'big'):0{8 * len(samples)}b}"
    headers = h264_headers(high) if idr else b""
    return b"\0\0\0\1\x09\xf0" + headers + unit(5 if idr else 1, bits)


# MPEG-2: blocks of one value each.

_SIZES = ("100", "00", "01", "101", "110", "1110", "11110", "111110", "1111110")  # ISO/IEC 13818-2, table B.12


def start(code, *fields):
    return bytes([0, 0, 1, code]) + Bits(*fields).align().content()


def mpeg2_picture(number, since, field, _):
    content = b""
    if since == 0 and field != BOTTOM:
        size = ((SIDE, 12), (SIDE, 12), (1, 4), (3, 4), (1000, 18), (1, 1), (100, 10), (0, 3))
        content = start(0xB3, *size)
        content += start(0xB5, (1, 4), (0x48, 8), (0, 1), (1, 2), (0, 16), (1, 1), (0, 16))
        content += start(0xB8, (0, 25), (2, 2))
    content += start(0, (since, 10), (1, 3), (0xFFFF, 16), (0, 1))
    structure = 3 if field is FRAME else field + 1
    content += start(0xB5, (8, 4), (0xFFFF, 16), (0, 2), (structure, 2), (0, 1), (field is FRAME, 1), (0, 8))
    rows = shown(number) if field is FRAME else shown(number)[field::2]
    for y in range(0, len(rows), 16):
        bits, before = Bits((1, 5), (0, 1)), 128
        for x in range(0, SIDE, 16):
            bits.bits += "11"
            for value in rows[y : y + 16 : 8, x : x + 16 : 8].ravel().astype(int).tolist():
                step, before = value - before, value
                digits = abs(step).bit_length()
                change = f"{step + (step < 0) * (2**digits - 1):0{digits}b}" if digits else ""
                bits.bits += _SIZES[digits] + change + "10"
            bits.bits += "0010" * 2
        content += bytes([0, 0, 1, 1 + y // 16]) + bits.align().content()
    return content


PICTURES = {"h264": (h264_picture, "h264"), "mpeg2video": (mpeg2_picture, "mpegvideo")}
COUNT = 40
# Whether a frame is coded as two fields, by its number.
LAYOUTS = {
    "fields": lambda number: True,
    "frames": lambda number: False,
    "mixed": lambda number: number % 3 == 1,
    "late": lambda number: number >= 37,
    "together": lambda number: True,  # both in one packet
}


def write_fields(path, codec, layout, high=False, first=()):
    """Write frames of 1/25 s; `first`: content of packets that come before."""
    picture, kind = PICTURES[codec]
    packets = [(content, 3600 * number) for number, content in enumerate(first)]
    for number in range(len(first), COUNT):
        fields = (TOP, BOTTOM) if LAYOUTS[layout](number) else (FRAME,)
        contents = [picture(number, (number - len(first)) % 10, field, high) for field in fields]
        contents = [b"".join(contents)] if layout == "together" else contents
        packets += [(content, 3600 * number + 1800 * half) for half, content in enumerate(contents)]
    raw = io.BytesIO(b"".join(content for content, _ in packets[:4]))
    with av.open(raw, format=kind) as source, av.open(str(path), "w") as container:
        next(source.decode(video=0))
        stream = container.add_stream_from_template(source.streams.video[0])
        for number, (content, time) in enumerate(packets):
            packet = av.Packet(content)
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, time, time, Fraction(1, 90_000)
            packet.duration = 3600 if len(packets) == COUNT else 1800
            packet.is_keyframe = number == 0 or content.find(b"\0\0\1\xb3") >= 0 or content.find(b"\0\0\0\1\x67") >= 0
            container.mux(packet)
    return path


def assert_whole(path, count):
    """A file that FFmpeg decodes without an error is whole, and each request gives the frames of one pass."""
    meta, faults = check_video(path, 1.0, MAX_PIXELS, lambda: None)
    assert not [fault for fault in faults if fault[0] not in KEPT], faults
    assert meta.num_frames == count
    with open_video(path) as video:
        every = list(video.iter_frames())
        for asked in ([count - 1], sorted(generator(1).integers(count, size=4).tolist()), range(0, count, 2)):
            index._cache.clear()
            with open_video(path) as again:
                for number, frame in zip(asked, again.frames(asked), strict=True):
                    np.testing.assert_array_equal(frame.transpose(1, 2, 0), every[number])
    return every


CASES = [("h264", "mp4", False), ("h264", "mkv", False), ("h264", "ts", False), ("h264", "mp4", True)]
CASES += [("mpeg2video", "mp4", False), ("mpeg2video", "ts", False)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("codec", "suffix", "high"), CASES)
def test_frames_of_fields(tmp_path, number_of, codec, suffix, layout, high):
    path = write_fields(tmp_path / f"a.{suffix}", codec, layout, high)
    every = assert_whole(path, COUNT)
    assert number_of(np.stack(every).transpose(0, 3, 1, 2)) == list(range(COUNT))
    with open_video(path) as video:
        assert video.meta.fps == pytest.approx(25) and video.meta.times is None
        if suffix != "ts":  # whole frames are not counted, which is slow
            assert (video._decoder._packets.frame_of is None) == (layout not in ("frames", "together"))


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_fields_that_follow_a_progressive_part(tmp_path, number_of, write_video, suffix):
    """The headers of the file are those of its first part; the second part brings other ones."""
    progressive = write_video(tmp_path / "a.h264", np.stack([np.repeat(shown(n)[..., None], 3, 2) for n in range(20)]))
    with av.open(str(progressive)) as source:
        first = [bytes(packet) for packet in source.demux(video=0) if packet.size]
    path = write_fields(tmp_path / f"b.{suffix}", "h264", "fields", first=first)
    every = assert_whole(path, COUNT)
    assert number_of(np.stack(every).transpose(0, 3, 1, 2)) == list(range(COUNT))


def test_no_whole_real_file_is_damaged(real, check_all):
    def check(path):
        with av.open(str(path)) as container:
            streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
            try:
                count = sum(1 for _ in container.decode(streams[0]))
            except av.FFmpegError:
                return  # it is damaged
        assert_whole(path, count)

    folders = [real / "cases", *(real / "cases").glob("*/data/c"), *(real / "cases").glob("*/bugs/paff")]
    suffixes = (".mp4", ".mkv", ".mov", ".avi", ".ts", ".webm", ".wmv", ".flv")
    files = [path for folder in folders for path in sorted(folder.iterdir()) if path.suffix in suffixes]
    check_all(check, {path.name: (path,) for path in files})
