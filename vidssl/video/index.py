"""Packet index: which packet of a video file holds which frame, read in one pass without decoding.

A file stores *packets*, one compressed frame each, in decoding order. A packet has up to two timestamps: `dts`, when
it is decoded, and `pts`, when its frame is presented. They differ where there are *B-frames*, which refer to a later
frame, so that this one is stored first. Sorting the packets by pts numbers the frames. AVI has no pts: there the types
of the frames (B or not) give the order. Decoding can start at a *key frame* only, which refers to no other frame.

    packet            0   1   2   3   4   5   6
    type              I   P   B   B   P   B   B       I: key frame
    shown as frame    0   3   1   2   6   4   5       `frame_of`
"""

import hashlib
import logging
import mmap
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import replacing
from vidssl.errors import DecodeError
from vidssl.types import VideoMeta
from vidssl.video.container import frame_packets, open_container

_log = logging.getLogger(__name__)

# Formats without a reliable index: seeking may land too late in them.
_NO_SEEK = frozenset(("mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc"))
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

    @cached_property
    def packet_of(self) -> NDArray[np.int32]:
        """(num_frames,) packet of each frame."""
        assert self.frame_of is not None
        packets = np.argsort(self.frame_of).astype(np.int32)
        return packets[-self.meta.num_frames :]  # those before are not presented


def read_packets(container: Any, path: Path, max_pixels: int) -> Packets:
    """Index the first video stream of a container at its start; it is at its end afterwards."""
    stream = container.streams.video[0]
    name = container.format.name
    codec = stream.codec_context
    frame_type = _FRAME_TYPES.get((name if name == "avi" else "", codec.name), lambda packet: _SHOWN)
    times, types, keys = array("q"), bytearray(), list[int]()
    # FFmpeg guesses the pts of MPEG streams, and of ASF, which stores none: they can be out of order.
    ordered = name not in ("mpeg", "mpegts") and not (name == "asf" and codec.codec.reorder)
    for packet in frame_packets(container, path):
        time = packet.dts if name == "avi" else packet.pts
        if time is None or packet.size == 0:
            ordered = False
            break
        if packet.is_keyframe:
            keys.append(len(times))
        times.append(time)
        types.append(_HIDDEN if packet.is_discard else frame_type(packet))
    rate = float(stream.average_rate or stream.guessed_rate or Fraction(25))
    stamps, kinds = np.array(times), np.frombuffer(types, np.uint8)
    presented = _presentation_in_avi(stamps, kinds, codec) if name == "avi" else stamps
    frame_of = _order(presented, kinds) if ordered and presented is not None else None
    # A truncated file may begin with frames that refer to missing ones, which no decoder returns.
    if frame_of is None or not keys or keys[0] != 0 or frame_of[0] > 0:
        frame_of, count = None, _count(path, max_pixels)
    else:
        count = int(frame_of.max()) + 1
        if name != "avi":  # whose timestamps are frame numbers
            rate = _frame_rate(stamps[frame_of >= 0], float(stream.time_base), rate)
    if count == 0:
        raise DecodeError(f"{path}: the video stream has no frames")
    meta = VideoMeta(count, rate, codec.height, codec.width)
    if frame_of is None:
        return Packets(meta)
    if len(keys) == len(times) and not codec.codec.intra_only and codec.name not in _ALL_KEYS_PLAUSIBLE:
        keys = keys[:1]  # containers without an index mark every packet as a key frame
    starts = np.array([key for key in keys if key == 0 or frame_of[key] >= 0], np.int32)
    return Packets(meta, frame_of, starts, None if name in _NO_SEEK else stamps[starts])


def _frame_rate(pts: NDArray[np.int64], time_base: float, header: float) -> float:
    """Frames per second: the header's, unless the timestamps differ by 1 % or more, as with a variable rate."""
    if len(pts) < 2:
        return header
    measured = (len(pts) - 1) / (float(pts.max() - pts.min()) * time_base)
    return header if abs(measured / header - 1) < 0.01 else measured


def _count(path: Path, max_pixels: int) -> int:
    """Count the frames by decoding the file once, without conversion to RGB."""
    with open_container(path, max_pixels) as container:
        try:
            return sum(1 for _ in container.decode(container.streams.video[0]))
        except av.FFmpegError as error:
            raise DecodeError(f"{path}: cannot decode: {error.strerror}; the file is damaged") from None


# Types of frames and order of presentation -------------------------------------------------------------------

_HIDDEN, _SHOWN, _B_FRAME, _UNKNOWN = range(4)


def _vp8_type(packet: Any) -> int:
    """Read show_frame (RFC 6386, section 9.1): alternate reference frames are decoded but never presented."""
    return _SHOWN if memoryview(packet)[0] >> 4 & 1 else _HIDDEN


def _mpeg4_type(packet: Any) -> int:
    """Read vop_coding_type (ISO/IEC 14496-2, section 6.2.5): is it a B-frame?"""
    content = bytes(packet)
    at = content.find(_VOP)
    if at < 0 or len(content) <= _EMPTY_VOP or content.find(_VOP, at + 4) >= 0:
        return _UNKNOWN  # no frame, an empty one, or two of them: only the decoder knows what it shows
    if content[at + 4] >> 6 == 2:
        return _B_FRAME if not packet.is_keyframe else _UNKNOWN
    return _SHOWN


_VOP = b"\0\0\1\xb6"  # start code of a frame
_EMPTY_VOP = 19  # bytes; FFmpeg treats packets up to this size as empty frames
_FRAME_TYPES: dict[tuple[str, str], Callable[[Any], int]] = {("", "vp8"): _vp8_type, ("avi", "mpeg4"): _mpeg4_type}


def _order(times: NDArray[np.int64], types: NDArray[np.uint8]) -> NDArray[np.int32] | None:
    """Number the frames by time of presentation; None where two have the same."""
    shown = np.flatnonzero(types != _HIDDEN)
    order = np.argsort(times[shown], kind="stable")
    if np.any(np.diff(times[shown][order]) == 0):
        return None
    frame_of = np.full(len(times), -1, np.int32)
    frame_of[shown[order]] = np.arange(len(shown))
    return frame_of


def _presentation_in_avi(dts: NDArray[np.int64], types: NDArray[np.uint8], codec: Any) -> NDArray[np.int64] | None:
    """Times of presentation, counted in packets: as stored without B-frames, else by the types (MPEG-4 only)."""
    times = np.arange(len(types))
    if np.any(np.diff(dts) <= 0) or np.any(types == _UNKNOWN):
        return None
    if codec.name != "mpeg4":
        return None if codec.codec.reorder else times
    held = np.flatnonzero(types != _B_FRAME)  # an I- or P-frame is presented when the next one is decoded
    times[held] = [*held[1:], len(times)]
    return times


# Cache in memory and on disk ---------------------------------------------------------------------------------

_Key = tuple[str, int, int]  # path, size and modification time: a changed file is indexed again
_CACHE_SIZE = 4096  # files; a few kB each
_CACHE_FORMAT = 2  # of the files under data.cache
_ARRAYS = ("frame_of", "keys", "key_times")
_cache: dict[_Key, Packets] = {}


def cached_packets(key: _Key, folder: Path | None, read: Callable[[], Packets]) -> Packets:
    """Return the index of a file from the cache of this process, else from `folder`, else from `read`."""
    packets = _cache.get(key)
    if packets is None:
        file = _cache_file(folder, key) if folder else None
        packets = _load(file) if file else None
        if packets is None:
            packets = read()
            if file:
                _save(file, packets)
        _cache[key] = packets
        for oldest in [*_cache][:-_CACHE_SIZE] if len(_cache) > _CACHE_SIZE else ():  # a copy: other threads write too
            _cache.pop(oldest, None)
    return packets


def _cache_file(folder: Path, key: _Key) -> Path:
    digest = hashlib.sha256(repr((_CACHE_FORMAT, *key)).encode()).hexdigest()
    return folder / digest[:2] / f"{digest}.npz"


def _load(file: Path) -> Packets | None:
    try:
        with np.load(file, allow_pickle=False) as saved:
            count, fps, height, width = saved["meta"].tolist()
            arrays = {name: saved[name] for name in _ARRAYS if name in saved}
        return Packets(VideoMeta(int(count), fps, int(height), int(width)), **arrays)
    except FileNotFoundError:
        return None
    except OSError as error:
        _warn_once(file, error)
        return None
    except Exception:  # a damaged file fails in many ways; it is written again
        return None


def _save(file: Path, packets: Packets) -> None:
    meta = packets.meta
    arrays = {name: value for name in _ARRAYS if (value := getattr(packets, name)) is not None}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as content:
            np.savez(content, meta=np.array([meta.num_frames, meta.fps, meta.height, meta.width]), **arrays)
    except OSError as error:
        _warn_once(file, error)


_warned = mmap.mmap(-1, 1)  # shared with forked workers: one warning for all of them


def _warn_once(file: Path, error: OSError) -> None:
    if not _warned[0]:
        _warned[0] = 1
        reason = error.strerror or error
        _log.warning("cannot use data.cache %s: %s; each process reads the packets itself", file.parent, reason)
