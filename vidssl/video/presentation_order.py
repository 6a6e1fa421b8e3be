"""The order in which the frames of a file are shown, from the timestamps of its packets and the types of its frames.

Types are read from the first bytes of a packet: a B-frame is shown before a frame that is decoded earlier, an I- or
P-frame after all of them. AVI stores no time of presentation, so there they give the order. In other containers they
tell whether the timestamps can be right: tools that copy an AVI or a raw stream into one invent them in the order of
decoding. Where type and timestamp disagree, or the type is unknown, the decoder decides (`packet_index.py`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN, SHOWN, B_FRAME, EITHER, UNKNOWN = range(5)  # SHOWN: an I- or P-frame; EITHER: it may be a B-frame, or not read


def type_reader(container: str, codec: Any) -> Callable[[Any], int] | None:
    """Return the function that reads the type of a packet's frame; None: all are shown in the order of decoding."""
    if codec.name == "vp8":
        return _vp8_type if container != "avi" else None
    if codec.name == "mpeg4":
        return _mpeg4_type
    if container == "avi" or not codec.codec.reorder:
        return None
    if codec.name in ("mpeg1video", "mpeg2video"):
        return _mpeg2_type
    header = codec.extradata or b""
    if codec.name == "h264" and len(header) > 6 and header[0] == 1:  # ISO/IEC 14496-15, 5.3.3.1
        return partial(_nal_type, header[4] % 4 + 1, _h264_slice)
    if codec.name == "hevc" and len(header) > 22 and header[0] == 1:  # 8.3.3.1
        return partial(_nal_type, header[21] % 4 + 1, _hevc_slice)
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


def _mpeg2_type(packet: Any) -> int:
    """Read picture_coding_type (ISO/IEC 13818-2, section 6.2.3)."""
    content = bytes(packet)
    at = content.find(b"\0\0\1\0")
    if not 0 <= at < len(content) - 5:
        return UNKNOWN
    return B_FRAME if content[at + 5] >> 3 & 7 == 3 else SHOWN


def _nal_type(length: int, slice_type: Callable[[int, int], int | None], packet: Any) -> int:
    """Read the type of the first slice of a packet of NAL units, each after its size in `length` bytes."""
    content = memoryview(packet)
    at, end = length, len(content) - 1
    while at < end:
        found = slice_type(content[at], content[at + 1])
        if found is not None:
            return found
        at += int.from_bytes(content[at - length : at], "big") + length
    return UNKNOWN


def _h264_slice(unit: int, header: int) -> int | None:
    """Read slice_type (ITU-T H.264, section 7.3.3) from the first bytes of a unit; None: it is no slice."""
    if unit & 31 not in (1, 2, 5):
        return None
    if not header & 128:  # first_mb_in_slice is 0, a single bit: the first slice of a picture is at its first block
        return UNKNOWN
    digits = (header & 127).bit_length()  # slice_type is below 10: as many zeros as digits after its leading 1
    return B_FRAME if digits > 3 and ((header & 127) >> 2 * digits - 8) % 5 == 2 else SHOWN


def _hevc_slice(unit: int, _: int) -> int | None:
    """Read nal_unit_type (ITU-T H.265, section 7.4.2.2): leading frames, and those no frame refers to, are B-frames."""
    kind = unit >> 1 & 63
    if kind >= 32:
        return None
    if kind >= 16:
        return SHOWN  # a key frame
    return B_FRAME if kind % 2 == 0 or 6 <= kind <= 9 else EITHER


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
