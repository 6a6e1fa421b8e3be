"""Packet index: which packet of a video file holds which frame, read in one pass without decoding.

A file stores *packets*, one compressed frame each, in decoding order. A packet has up to two timestamps: `dts`, when
it is decoded, and `pts`, when its frame is presented. They differ where there are *B-frames*, which refer to a later
frame, so that this one is stored first. Sorting the packets by pts numbers the frames. Where the decoder shows that
the pts are wrong, frames are counted instead. AVI has no pts: there the types of the frames (B or not) give the order.
Decoding can start at a *key frame* only, which refers to no other frame.

Types are read from the first bytes of a packet: a B-frame is shown before a frame that is decoded earlier, an I- or
P-frame after all of them. In other containers than AVI they tell whether the timestamps can be right: tools that copy
an AVI or a raw stream into one invent them in the order of decoding. Where type and timestamp disagree, or the type is
unknown, the decoder decides. Packets of interlaced video may hold half a frame, a *field*: then frames are counted.

    packet            0   1   2   3   4   5   6
    type              I   P   B   B   P   B   B       I: key frame
    shown as frame    0   3   1   2   6   4   5       `frame_of`
"""

import hashlib
import io
import itertools
import logging
import mmap
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from numpy.typing import NDArray

from vidssl.base.atomic import replacing
from vidssl.base.errors import DecodeError
from vidssl.base.types import VideoMeta
from vidssl.video.open_container import frame_packets, open_container, video_packets, video_stream

# Fractions of a frame by which the times of a regular video may differ from multiples of its frame. More than jitter;
# less than a single frame that was dropped, which is half a frame off. The second is for clocks as coarse as that:
# Matroska counts milliseconds.
_JITTER, _ROUNDING = 0.25, 0.4
_REORDERED = 17  # frames; decoders hold back 16 at most, so a longer step back is no matter of their order
_SLOWEST = 1e-4  # frames per second: one in three hours


class FrameTimes(NamedTuple):
    """The frame rate of a video, and the times of its frames where it varies."""

    fps: float
    times: NDArray[np.float64] | None = None  # (T,) seconds from the first frame; None: regular


def sorted_times(pts: Sequence[int | None], restarts: bool) -> NDArray[np.float64]:
    """Sort the timestamps (T,) of frames in the order of display, some of them missing, repeated or out of order.

    A missing one lies between its neighbours, one of two equal ones in the middle of the larger gap beside them. With
    `restarts` a long step back is a new start after one frame, as in joined recordings. Empty without two that differ.
    """
    stored = [(number, stamp) for number, stamp in enumerate(pts) if stamp is not None]
    known = np.array([number for number, _ in stored])
    stamps = np.array([stamp - stored[0][1] for _, stamp in stored], np.float64)
    steps = np.diff(stamps) / np.diff(known)
    if not (steps > 0).any():
        return np.empty(0)
    step = float(np.median(steps[steps > 0]))
    if restarts:
        for end in np.flatnonzero(np.diff(stamps) < -_REORDERED * step).tolist():  # of one of the joined recordings
            stamps[end + 1 :] += stamps[end] + step - stamps[end + 1]
    numbers = np.arange(len(pts))
    filled = np.interp(numbers, known, stamps)
    filled += step * (np.minimum(numbers - known[0], 0) + np.maximum(numbers - known[-1], 0))
    for _ in range(10):  # of two gaps, the same may be the larger one for both of its ends
        filled.sort()
        values, counts = np.unique(filled, return_counts=True)
        if len(values) == len(filled):
            return filled
        steps = np.diff(filled)
        first, last = (1.999 * float(np.median(part)) for part in (steps[:8], steps[-8:]))  # gaps before and after all
        gaps = np.diff(values, prepend=values[0] - first, append=values[-1] + last)
        before, after = gaps[:-1], gaps[1:]
        spread = np.where(after >= before, after, -before) / counts
        within = numbers - np.repeat(np.cumsum(counts) - counts, counts)  # of those that are equal
        filled = np.repeat(values, counts) + within * np.repeat(spread, counts)
    return np.empty(0)


def frame_times(pts: NDArray[np.int64] | NDArray[np.float64], time_base: float | Fraction, header: float) -> FrameTimes:
    """Decide from the timestamps of the frames, ascending, whether they are regular, and at which rate.

    The rate is the header's if the timestamps agree with it, else the measured average. A video is regular if no frame
    is further than a quarter of a frame from its place at that rate, with a coarse clock 0.4 frames.
    """
    span = int(pts[-1]) - int(pts[0]) if len(pts) else 0
    # With damaged timestamps a video lasts for years. 2**53: above it floats pass over ticks, and frames would have one
    # time.
    if not 0 < span < 2**53 or (len(pts) - 1) / (span * float(time_base)) <= _SLOWEST:
        return FrameTimes(header)
    times = (pts - pts[0]) * float(time_base)
    measured = float((len(pts) - 1) / (span * time_base))
    for rate in (header, measured):
        if is_regular(times, rate, float(time_base)):
            return FrameTimes(rate)
    return FrameTimes(measured, times)


def is_regular(times: NDArray[np.float64], fps: float, tick: float) -> bool:
    """Whether frames begin at multiples of 1 / fps; `tick` is the unit of the container's clock in seconds."""
    return deviation(times, fps) * fps <= max(_JITTER, min(tick * fps, _ROUNDING))


def deviation(times: NDArray[np.float64], fps: float) -> float:
    """Return the largest distance, in seconds, of a frame's time from its place at a constant rate."""
    return float(np.abs(times - np.arange(len(times)) / fps).max())


_log = logging.getLogger(__name__)

# SHOWN: an I- or P-frame; EITHER: it may be a B-frame, or not read; FIELD: half of the lines of a frame, the others are
# in another packet.
HIDDEN, SHOWN, B_FRAME, EITHER, UNKNOWN, FIELD = range(6)

# Formats without a reliable index: seeking may land too late in them.
_NO_SEEK = frozenset(("mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc"))
_PREFIX = 32  # packets to decode after one whose timestamp is in doubt; decoders hold back 16 frames at most
# Invented timestamps of these follow the order of decoding. So types are read only between key frames where no
# timestamp steps back: regular files with B-frames are opened as fast as without this.
_TYPED_WHILE_RISING = frozenset(("h264", "hevc"))
_MAX_UNTYPED = 32  # packets that are kept until a timestamp steps back
_ALL_KEYS_PLAUSIBLE = frozenset(("h264", "hevc"))  # codecs whose files may have key frames only


@dataclass(frozen=True)
class Packets:
    """The packets (P) of the first video stream of a file, in the order of the file, which is that of decoding."""

    meta: VideoMeta
    # (P,) frame that the packet holds; -1: one that is not presented. None: timestamps and types do not give the order;
    # the frames are then counted as the decoder returns them.
    frame_of: NDArray[np.int32] | None = None
    keys: NDArray[np.int32] | None = None  # (K,) packets at which decoding can start; the first is 0
    key_times: NDArray[np.int64] | None = None  # (K,) their timestamps, for seeks; None where seeking is unreliable

    @property
    def has_leading_frames(self) -> bool:
        """Whether frames are stored after a key frame and shown before it (open groups of pictures)."""
        assert self.frame_of is not None and self.keys is not None
        shown = np.where(self.frame_of < 0, self.meta.num_frames, self.frame_of)
        earliest = np.minimum.accumulate(shown[::-1])[::-1]  # of the packets from here on
        return bool((earliest[self.keys] < shown[self.keys]).any())

    @cached_property
    def packet_of(self) -> NDArray[np.int32]:
        """(num_frames,) packet of each frame."""
        assert self.frame_of is not None
        packets = np.argsort(self.frame_of).astype(np.int32)
        return packets[-self.meta.num_frames :]  # those before are not presented


def _scan(container: Any, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint8], list[int], bool, bool]:
    """Read what the headers of the packets (P) of the first video stream say, in the order of decoding, to the end.

    Returns:
        The times (P,), pts, of AVI dts; the types (P,) of their frames, HIDDEN and so on; the packets that are marked
        as key frames; whether the times may give the order of the frames, else the packets were not read to the end;
        and whether a type was read.
    """
    codec, name = video_stream(container).codec_context, container.format.name
    times, keys, hidden, types = array("q"), list[int](), list[int](), dict[int, int]()
    # FFmpeg guesses the pts of MPEG streams, and of ASF, which stores none: they can be out of order.
    ordered = name not in ("mpeg", "mpegts") and not (name == "asf" and codec.codec.reorder)
    frame_type = type_reader(name, codec) if ordered else None
    rising_only = name != "avi" and codec.name in _TYPED_WHILE_RISING
    typed, untyped = True, list[Any]()  # the packets before this one whose types are read unless a time steps back
    h264 = frame_type if isinstance(frame_type, H264Types) else None
    for packet in frame_packets(container, path, complete=True):
        time = packet.dts if name == "avi" else packet.pts
        if time is None or packet.size == 0:
            ordered = False
            break
        if packet.is_keyframe:
            keys.append(len(times))
            typed = True  # parts of a joined file may differ
        elif typed and rising_only and times and time < times[-1]:
            typed = False
            untyped.clear()
        if packet.is_discard:
            hidden.append(len(times))
        if typed and frame_type:
            if untyped and (packet.is_keyframe or len(untyped) >= _MAX_UNTYPED):
                types.update(enumerate(map(frame_type, untyped), len(times) - len(untyped)))
                untyped.clear()
            if packet.is_keyframe:
                types[len(times)] = frame_type(packet)
                rising_only = rising_only and not (h264 and h264.frame_num_bits)  # else fields could be passed over
            else:
                untyped.append(packet)
        times.append(time)
    if frame_type:
        types.update(enumerate(map(frame_type, untyped), len(times) - len(untyped)))
    kinds = np.full(len(times), EITHER, np.uint8)
    kinds[[*types]] = [*types.values()]
    kinds[hidden] = HIDDEN
    return np.array(times), kinds, keys, ordered, bool(types)


def read_packets(container: Any, path: Path, max_pixels: int) -> Packets:
    """Index the first video stream of a container at its start; it is at its end afterwards."""
    stamps, kinds, keys, ordered, typed = _scan(container, path)
    stream = video_stream(container)
    name, codec = container.format.name, stream.codec_context
    header = float(stream.average_rate or stream.guessed_rate or Fraction(25))
    presented = presentation_in_avi(stamps, kinds, codec) if name == "avi" else stamps
    fields = bool((kinds == FIELD).any())
    frame_of = number_fields(presented, kinds) if ordered and presented is not None and not fields else None
    if typed and frame_of is not None and name != "avi" and codec.codec.reorder:
        doubt = first_doubt(stamps, kinds)
        if doubt is not None and _differs(path, frame_of[: doubt + _PREFIX].tolist(), max_pixels):
            frame_of = None
    # A truncated file may begin with frames that refer to missing ones, which no decoder returns.
    if frame_of is None or not keys or keys[0] != 0 or frame_of[0] > 0 or frame_of.max() < 0:
        return count_frames(path, max_pixels, header)
    assert presented is not None  # else there would be no `frame_of`
    if name == "avi":  # a frame is shown when the packet of this number is decoded
        presented = np.append(stamps, 2 * stamps[-1] - stamps[-2:][0])[presented]
    shown = np.sort(presented[kinds != HIDDEN])
    rate = frame_times(shown, stream.time_base, header)
    meta = VideoMeta(len(shown), rate.fps, codec.height, codec.width, None, rate.times)
    if len(keys) == len(stamps) and not codec.codec.intra_only and codec.name not in _ALL_KEYS_PLAUSIBLE:
        keys = keys[:1]  # containers without an index mark every packet as a key frame
    starts = np.array([key for key in keys if key == 0 or frame_of[key] >= 0], np.int32)
    return Packets(meta, frame_of, starts, None if name in _NO_SEEK else stamps[starts])


def count_frames(path: Path, max_pixels: int, header: float) -> Packets:
    """Count the frames, and read their times, by decoding the file once; `header`: the rate that its header states."""
    with open_container(path, max_pixels, fast=False) as container:
        stream, name = video_stream(container), container.format.name
        try:
            stamps = [frame.dts if name == "avi" else frame.pts for frame in container.decode(stream)]
        except av.FFmpegError as error:
            raise DecodeError(f"{path}: cannot decode: {error.strerror}; the file is damaged") from None
        if not stamps:
            raise DecodeError(f"{path}: the video stream has no frames")
        shown = sorted_times(stamps, restarts=name in ("mpeg", "mpegts"))
        rate = frame_times(shown, stream.time_base, header)
        codec = stream.codec_context
        return Packets(VideoMeta(len(stamps), rate.fps, codec.height, codec.width, None, rate.times))


def _differs(path: Path, numbers: list[int], max_pixels: int) -> bool:
    """Decode the first packets: whether the decoder returns another number of frames, or in another order."""
    last, count = -1, 0
    with open_container(path, max_pixels, fast=False) as container, suppress(av.FFmpegError):
        codec = video_stream(container).codec_context
        packets = zip(numbers, video_packets(container, path), strict=False)
        for number, packet in itertools.chain(packets, ((-1, None),)):  # None flushes the decoder
            if packet is not None:
                packet.pts = number if number >= 0 else None
            for frame in codec.decode(packet):
                count += 1
                if frame.pts is not None:
                    if frame.pts < last:
                        return True
                    last = frame.pts
        return count != sum(number >= 0 for number in numbers)
    return False  # a damaged file is an error when its frames are requested


# Types of frames --------------------------------------------------------------------------------------------------


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

    `frame_num_bits` is not 0 where the last sequence header allows fields, so the type of each packet is to be read.
    """

    def __init__(self, header: bytes) -> None:
        self._length, self.frame_num_bits = header[4] % 4 + 1, 0
        at = 6
        for _ in range(header[5] & 31):  # the sequence headers
            size = int.from_bytes(header[at : at + 2], "big")
            self.frame_num_bits = self.frame_num_bits or _frame_num_bits(header[at + 2 : at + 2 + size])
            at += 2 + size

    def __call__(self, packet: Any) -> int:
        """Return the type of the first slice; FIELD if all slices are of the same field."""
        content = memoryview(packet)
        for at, size in _units(content, self._length, self._length):
            kind = content[at] & 31
            if kind in _SLICES:
                is_field = self.frame_num_bits and self._is_field(content, at)
                return FIELD if is_field else _h264_slice(content[at + 1])
            if kind == _SEQUENCE:
                self.frame_num_bits = _frame_num_bits(bytes(content[at : at + size]))
        return UNKNOWN

    def _is_field(self, content: memoryview, at: int) -> bool:
        """Whether all slices from the one at `at` on are of the same field."""
        starts = [start for start, _ in _units(content, self._length, at) if content[start] & 31 in _SLICES]
        fields = {_field(bytes(content[start + 1 : start + 20]), self.frame_num_bits) for start in starts}
        return len(fields) == 1 and None not in fields


def _units(content: memoryview, length: int, at: int) -> Iterator[tuple[int, int]]:
    """Yield start and size of the units of a packet from that at `at` on; `length` bytes before it hold the size."""
    while at < len(content) - 1:
        size = int.from_bytes(content[at - length : at], "big")
        yield at, size
        at += size + length


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
    for at, _ in _units(content, length, length):
        kind = content[at] >> 1 & 63
        if kind < 32:
            if kind >= 16:
                return SHOWN  # a key frame
            return B_FRAME if kind % 2 == 0 or 6 <= kind <= 9 else EITHER
    return UNKNOWN


def number_fields(times: NDArray[np.int64], types: NDArray[np.uint8]) -> NDArray[np.int32] | None:
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


# Cache in memory and on disk ---------------------------------------------------------------------------------

IndexKey = tuple[str, int, int]  # path, size and modification time: a changed file is indexed again
_CACHE_SIZE = 4096  # files; a few kB each
# Of the files under data.cache, each an npz file and its sha256. The number is in the name: others are not read.
_CACHE_FORMAT = 5
_ARRAYS = ("frame_of", "keys", "key_times")
_SHA256 = 32  # bytes
_cache: dict[IndexKey, Packets] = {}


def cached_packets(key: IndexKey, folder: Path | None, read: Callable[[], Packets]) -> Packets:
    """Return the index of a file from the cache of this process, else from `folder`, else from `read`."""
    packets = _cache.get(key)
    if packets is None and folder:
        packets = _load(_cache_file(folder, key))
    if packets is None:
        packets = read()
        replace_packets(key, folder, packets)
    _keep(key, packets)
    return packets


def replace_packets(key: IndexKey, folder: Path | None, packets: Packets) -> None:
    """Put another index of a file into the caches."""
    if folder:
        _save(_cache_file(folder, key), packets)
    _keep(key, packets)


def _keep(key: IndexKey, packets: Packets) -> None:
    _cache[key] = packets
    for oldest in [*_cache][:-_CACHE_SIZE] if len(_cache) > _CACHE_SIZE else ():  # a copy: other threads write too
        _cache.pop(oldest, None)


def _cache_file(folder: Path, key: IndexKey) -> Path:
    digest = hashlib.sha256(repr((_CACHE_FORMAT, *key)).encode()).hexdigest()
    return folder / digest[:2] / f"{digest}.npz"


def _load(file: Path) -> Packets | None:
    """Read an index; None if there is none, or it is damaged: then it is written again."""
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(file, error)
        return None
    if hashlib.sha256(content[:-_SHA256]).digest() != content[-_SHA256:]:
        return None
    with np.load(io.BytesIO(content), allow_pickle=False) as saved:
        count, fps, height, width = saved["meta"].tolist()
        times, end = (saved["times"], float(saved["end"])) if "times" in saved else (None, None)
        arrays = {name: saved[name] for name in _ARRAYS if name in saved}
    return Packets(VideoMeta(int(count), fps, int(height), int(width), None, times, end), **arrays)


def _save(file: Path, packets: Packets) -> None:
    meta = packets.meta
    arrays = {name: value for name in _ARRAYS if (value := getattr(packets, name)) is not None}
    if meta.times is not None:
        arrays |= {"times": meta.times, "end": np.array(meta.end)}
    content = io.BytesIO()
    np.savez(content, meta=np.array([meta.num_frames, meta.fps, meta.height, meta.width]), **arrays)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as written:
            written.write(content.getvalue() + hashlib.sha256(content.getvalue()).digest())
    except OSError as error:
        _warn_once(file, error)


_warned = mmap.mmap(-1, 1)  # shared with forked workers: one warning for all of them


def _warn_once(file: Path, error: OSError) -> None:
    if not _warned[0]:
        _warned[0] = 1
        reason = error.strerror or error
        _log.warning("cannot use data.cache %s: %s; each process reads the packets itself", file.parent, reason)
