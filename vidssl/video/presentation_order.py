"""The order in which the frames of a file are shown, from the timestamps of its packets and the types of its frames.

Types are read from the first bytes of a packet: a B-frame is shown before a frame that is decoded earlier, an I- or
P-frame after all of them. AVI stores no time of presentation, so there they give the order. In other containers they
tell whether the timestamps can be right: tools that copy an AVI or a raw stream into one invent them in the order of
decoding. Where type and timestamp disagree, or the type is unknown, the decoder decides (`packet_index.py`).
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

# SHOWN: an I- or P-frame; EITHER: it may be a B-frame, or not read; FIELD: half of the lines of a frame, the others are
# in another packet.
HIDDEN, SHOWN, B_FRAME, EITHER, UNKNOWN, FIELD = range(6)


def type_reader(container: str, codec: Any) -> Callable[[Any], int] | None:
    """Return the function that reads the type of a packet's frame; None: all are shown in the order of decoding."""
    if codec.name == "vp8":
        return _vp8_type if container != "avi" else None
    if codec.name == "mpeg4":
        return _mpeg4_type
    if container == "avi" or not codec.codec.reorder:
        return None
    header = codec.extradata or b""
    if codec.name in ("mpeg1video", "mpeg2video"):
        # The sequence extension (ISO/IEC 13818-2, 6.2.2.3) says whether there may be fields.
        at = header.find(_EXTENSION)
        return partial(_mpeg2_type, not (0 <= at < len(header) - 5 and header[at + 5] & 8))
    if codec.name == "h264" and len(header) > 6 and header[0] == 1:  # ISO/IEC 14496-15, 5.3.3.1
        return H264Types(header)
    if codec.name == "hevc" and len(header) > 22 and header[0] == 1:  # 8.3.3.1
        return partial(_hevc_type, header[21] % 4 + 1)
    return lambda packet: UNKNOWN


def _vp8_type(packet: Any) -> int:
    """Read show_frame (RFC 6386, section 9.1): alternate reference frames are decoded but never presented."""
    return SHOWN if memoryview(packet)[0] >> 4 & 1 else HIDDEN


def _mpeg4_type(packet: Any) -> int:
    """Read vop_coding_type (ISO/IEC 14496-2, section 6.2.5): is it a B-frame?"""
    content = bytes(packet)
    at = content.find(_VOP)
    if not 0 <= at < len(content) - 4 or len(content) <= _EMPTY_VOP or content.find(_VOP, at + 4) >= 0:
        return UNKNOWN  # no frame, an empty one, or two of them: only the decoder knows what it shows
    if content[at + 4] >> 6 == 2:
        return B_FRAME if not packet.is_keyframe else UNKNOWN
    return SHOWN


_VOP = b"\0\0\1\xb6"  # start code of a frame
_EMPTY_VOP = 19  # bytes; FFmpeg treats packets up to this size as empty frames


def _mpeg2_type(interlaced: bool, packet: Any) -> int:
    """Read picture_coding_type (ISO/IEC 13818-2, section 6.2.3), and of interlaced video its structure (6.2.3.1)."""
    content = bytes(packet)
    at = content.find(_PICTURE)
    if not 0 <= at < len(content) - 5:
        return UNKNOWN
    if interlaced:
        extension = content.find(_EXTENSION, at, at + 40)  # the first one after a picture describes how it is coded
        is_field = 0 < extension < len(content) - 6 and content[extension + 6] & 3 != 3
        if is_field and content.find(_PICTURE, at + 4) < 0:
            return FIELD
    return B_FRAME if content[at + 5] >> 3 & 7 == 3 else SHOWN


_PICTURE, _EXTENSION = b"\0\0\1\0", b"\0\0\1\xb5"


class H264Types:
    """Reads the types of packets of H.264 units, each after its size in bytes (ISO/IEC 14496-15).

    `interlaced`: the last sequence header allows fields, so the type of each packet is to be read.
    """

    def __init__(self, header: bytes) -> None:
        self._length, self._bits = header[4] % 4 + 1, 0
        at = 6
        for _ in range(header[5] & 31):  # the sequence headers
            size = int.from_bytes(header[at : at + 2], "big")
            self._bits = self._bits or _frame_num_bits(header[at + 2 : at + 2 + size])
            at += 2 + size

    @property
    def interlaced(self) -> bool:
        """Whether packets may hold fields."""
        return self._bits != 0

    def __call__(self, packet: Any) -> int:
        """Return the type of the first slice; FIELD if all slices are of the same field."""
        content, length = memoryview(packet), self._length
        at, end = length, len(content) - 1
        while at < end:
            kind = content[at] & 31
            if kind in _SLICES:
                found = _h264_slice(content[at + 1])
                return FIELD if self._bits and self._is_field(content, at) else found
            size = int.from_bytes(content[at - length : at], "big")
            if kind == _SEQUENCE:
                self._bits = _frame_num_bits(bytes(content[at : at + size]))
            at += size + length
        return UNKNOWN

    def _is_field(self, content: memoryview, at: int) -> bool:
        """Whether all slices from the one at `at` on are of the same field."""
        fields = set[int | None]()
        while at < len(content) - 1:
            if content[at] & 31 in _SLICES:
                fields.add(_field(bytes(content[at + 1 : at + 20]), self._bits))
                if None in fields:
                    return False
            at += int.from_bytes(content[at - self._length : at], "big") + self._length
        return len(fields) == 1


_SLICES, _SEQUENCE = (1, 2, 5), 7  # types of units


def _h264_slice(header: int) -> int:
    """Read slice_type (ITU-T H.264, section 7.3.3) from the first byte of a slice."""
    if not header & 128:  # first_mb_in_slice is 0, a single bit: the first slice of a picture is at its first block
        return UNKNOWN
    digits = (header & 127).bit_length()  # slice_type is below 10: as many zeros as digits after its leading 1
    return B_FRAME if digits > 3 and ((header & 127) >> 2 * digits - 8) % 5 == 2 else SHOWN


class _Bits:
    """Numbers in a unit of H.264, from its first bit on."""

    def __init__(self, unit: bytes) -> None:
        content = unit.replace(b"\0\0\3", b"\0\0")  # 7.4.1: the 3 is no content
        self._bits = f"{int.from_bytes(content, 'big'):0{8 * len(content)}b}"
        self._at = 0

    def read(self, *sizes: int) -> int:
        """Read numbers of so many bits, or of `_CODE`, and return the last one. A ValueError beyond the end."""
        value = 0
        for size in sizes:
            zeros = self._bits.index("1", self._at) - self._at if size == _CODE else 0
            start = self._at + zeros
            self._at = start + (zeros + 1 if size == _CODE else size)
            value = int(self._bits[start : self._at], 2) - (size == _CODE)
        return value


_CODE = 0  # an Exp-Golomb code without sign (9.1): as many zeros as digits after the leading 1


def _field(slice_header: bytes, frame_num_bits: int) -> int | None:
    """Read bottom_field_flag of a slice (7.3.3); None: it belongs to a frame."""
    bits = _Bits(slice_header)
    with suppress(ValueError):  # it is cut
        return bits.read(1) if bits.read(_CODE, _CODE, _CODE, frame_num_bits, 1) else None
    return None


@lru_cache(maxsize=16)
def _frame_num_bits(unit: bytes) -> int:
    """Read the length of frame_num from a sequence header (7.3.2.1.1); 0 if the sequence has no fields."""
    bits = _Bits(unit[1:])
    with suppress(ValueError):  # it is damaged, and so is the file
        profile = bits.read(8)
        bits.read(16, _CODE)
        if profile in _WITH_CHROMA_FORMAT:
            _skip_chroma_format(bits)
        length = bits.read(_CODE) + 4
        order = bits.read(_CODE)
        if order == 0:
            bits.read(_CODE)
        elif order == 1:
            bits.read(*[_CODE] * bits.read(1, _CODE, _CODE, _CODE))
        return 0 if bits.read(_CODE, 1, _CODE, _CODE, 1) else length
    return 0


def _skip_chroma_format(bits: _Bits) -> None:
    is_444 = bits.read(_CODE) == 3
    bits.read(*[1] * is_444)
    for number in range((12 if is_444 else 8) * bits.read(_CODE, _CODE, 1, 1)):  # scaling lists (7.3.2.1.1.1)
        last = following = 8 * bits.read(1)  # 0: the list is not there
        for _ in range(16 if number < 6 else 64):
            if following:
                code = bits.read(_CODE)
                following = (last + (code + 1) // 2 * (1 if code % 2 else -1)) % 256
                last = following or last


_WITH_CHROMA_FORMAT = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))  # profiles


def _hevc_type(length: int, packet: Any) -> int:
    """Read nal_unit_type (ITU-T H.265, section 7.4.2.2): leading frames, and those no frame refers to, are B-frames."""
    content = memoryview(packet)
    at, end = length, len(content) - 1
    while at < end:
        kind = content[at] >> 1 & 63
        if kind < 32:
            if kind >= 16:
                return SHOWN  # a key frame
            return B_FRAME if kind % 2 == 0 or 6 <= kind <= 9 else EITHER
        at += int.from_bytes(content[at - length : at], "big") + length
    return UNKNOWN


def numbered(times: NDArray[np.int64], types: NDArray[np.uint8]) -> NDArray[np.int32] | None:
    """Number the frames by time of presentation; None where two have the same."""
    shown = np.flatnonzero(types != HIDDEN)
    order = shown[np.argsort(times[shown], kind="stable")]
    ordered = times[order]
    if (ordered[1:] == ordered[:-1]).any():
        return None
    frame_of = np.full(len(times), -1, np.int32)
    frame_of[order] = np.arange(len(order))
    return frame_of


def first_doubt(times: NDArray[np.int64], types: NDArray[np.uint8]) -> int | None:
    """Return the first packet whose timestamp and type disagree, or whose type is unknown; None: there is none."""
    early = np.zeros(len(times), bool)  # shown before a frame that is decoded earlier
    early[1:] = times[1:] < np.maximum.accumulate(times)[:-1]
    doubts = np.flatnonzero((types == UNKNOWN) | ((types == SHOWN) & early) | ((types == B_FRAME) & ~early))
    return int(doubts[0]) if len(doubts) else None


def presentation_in_avi(dts: NDArray[np.int64], types: NDArray[np.uint8], codec: Any) -> NDArray[np.int64] | None:
    """Times of presentation, counted in packets: as stored without B-frames, else by the types (MPEG-4 only)."""
    times = np.arange(len(types))
    if np.any(np.diff(dts) <= 0) or np.any(types == UNKNOWN):
        return None
    if codec.name != "mpeg4":
        return None if codec.codec.reorder else times
    held = np.flatnonzero(types != B_FRAME)  # an I- or P-frame is presented when the next one is decoded
    times[held] = [*held[1:], len(times)]
    return times
