"""Where the frames of a file are: what one pass over its packets tells, with no pixel decoded."""

import hashlib
import logging
import mmap
import zipfile
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from numpy.typing import NDArray

from vidssl.atomic import replacing
from vidssl.errors import DecodeError, NoVideoError, TooLargeError
from vidssl.types import VideoMeta

_log = logging.getLogger(__name__)

# FFmpeg's names. Playlists (hls, concat, dash, …) are not among them: they name other files.
_FORMATS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,obu,asf,flv,ogg,gif"

# To learn what is in a file FFmpeg decodes its first frames: most of the time that opening takes, 28 of 29 ms at
# 1920x1080. In these containers the headers of these
# codecs tell as much, so frames are skipped until then.
_GLANCE = frozenset((".mp4", ".mov", ".m4v", ".mkv"))
_TELLING = frozenset(("h264", "hevc"))

# By default FFmpeg's HEVC decoder passes over most damage without a word. Where others do, they mark the frame.
_STRICT = {"hevc": {"err_detect": "explode"}}

# A seek in these lands where it can, and too late where nothing marks the key frames.
_NO_SEEK = frozenset(("mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc"))

_LIMIT = 4096  # files whose packets a process remembers; a few kB each
_LAYOUT = 1  # of the files under data.cache

_Key = tuple[str, int, int]  # path, size and time of change: a changed file is read anew


@dataclass(frozen=True)
class Packets:
    """The packets of the first video stream of a file, in the order of the file, which is that of decoding.

    `frame_of[p]` is the number, in order of presentation, of the frame that packet p shows; -1: it shows
    none. It is None where the packets do not tell: there, frames are counted as the decoder gives them.
    """

    meta: VideoMeta
    frame_of: NDArray[np.int32] | None = None  # (P,)
    keys: NDArray[np.int32] | None = None  # (K,) packets at which decoding can start; the first is 0
    stamps: NDArray[np.int64] | None = None  # (K,) their time stamps, to seek to; None where that is not safe

    @cached_property
    def packet_of(self) -> NDArray[np.int32]:
        """(num_frames,) the packet of each frame."""
        assert self.frame_of is not None  # asked for only where packets tell
        packets = np.empty(self.meta.num_frames, np.int32)
        shown = np.flatnonzero(self.frame_of >= 0)
        packets[self.frame_of[shown]] = shown
        return packets


_remembered: OrderedDict[_Key, Packets] = OrderedDict()


def remembered(key: _Key, folder: Path | None, read: Callable[[], Packets]) -> Packets:
    """Read the packets of a file once per process, and with a `folder` once for all processes.

    A folder that cannot be read or written is one warning; the packets are then read again by each process.

    Raises:
        DecodeError: What `read` raises, or the file holds no frame.
    """
    packets = _remembered.get(key)
    if packets is None:
        file = _file(folder, key) if folder else None
        packets = _load(file) if file else None
        if packets is None:
            packets = read()
            if file:
                _save(file, packets)
        _remembered[key] = packets
        if len(_remembered) > _LIMIT:
            _remembered.popitem(last=False)
    _remembered.move_to_end(key)
    return packets


def open_container(path: Path, max_pixels: int) -> Any:
    """Open a file with PyAV: nothing but this file, and nothing that refers to others.

    Args:
        path: A local file.
        max_pixels: Largest height x width. It holds already while FFmpeg looks into the file.

    Raises:
        DecodeError: The file is no video of a format that is read, is too large, or has no video stream.
    """
    container = None
    if path.suffix.lower() in _GLANCE:
        container = _open(path, max_pixels, skip_frame="all")
        if container.streams.video[0].codec_context.name not in _TELLING:
            container.close()
            container = None
    if container is None:
        container = _open(path, max_pixels)
    stream = container.streams.video[0]
    codec = stream.codec_context
    if not 0 < codec.height * codec.width <= max_pixels:
        size = (
            f"{codec.width}x{codec.height} is"
            if codec.width
            else "the size of a frame is not known, or it is"
        )
        container.close()
        raise TooLargeError(f"{path}: {size} more than {max_pixels} pixels; raise the limit if meant")
    # Slice threads deadlock with torch's in a worker, and several workers share the cores anyway.
    stream.thread_type = "NONE"
    codec.thread_count = 1
    codec.options = {"max_pixels": str(max_pixels), **_STRICT.get(codec.name, {})}
    return container


def _open(path: Path, max_pixels: int, **more: str) -> Any:
    # "file:" keeps FFmpeg from reading a protocol out of the name; the whitelists, out of what the file says.
    options = {
        "protocol_whitelist": "file",
        "format_whitelist": _FORMATS,
        "max_pixels": str(max_pixels),
        **more,
    }
    try:
        container = av.open(f"file:{path}", options=options)
    except av.ArgumentError:
        raise DecodeError(f"{path}: not a video of a format that is read ({_FORMATS})") from None
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DecodeError(f"{path}: not a video: {reason}") from None
    if not container.streams.video:
        container.close()
        raise NoVideoError(f"{path}: there is no video stream in it")
    return container


def packets_left(container: Any, path: Path) -> Iterator[Any]:
    """Read on in the first video stream, to the end of the file.

    Raises:
        DecodeError: The file cannot be read to its end.
    """
    try:
        for packet in container.demux(container.streams.video[0]):
            # The last one, empty and without a time, is PyAV's own: it asks the decoder for what is left.
            if packet.size or packet.pts is not None or packet.dts is not None:
                yield packet
    except av.FFmpegError as error:
        raise DecodeError(f"{path}: cannot read: {error.strerror}; the file is damaged") from None


def frame_packets(container: Any, path: Path) -> Iterator[Any]:
    """Read on as `packets_left` does, one frame in each packet.

    Files of DivX and XviD pack two frames into one packet, with an empty packet after it to make up for that.
    """
    packets = packets_left(container, path)
    stream = container.streams.video[0]
    if container.format.name != "avi" or stream.codec_context.name != "mpeg4":
        return packets
    unpack = BitStreamFilterContext("mpeg4_unpack_bframes", stream).filter
    return (frame for packet in packets for frame in unpack(packet))


def read_packets(container: Any, path: Path, max_pixels: int) -> Packets:
    """Read all packets of the first video stream of an open container.

    Args:
        container: At its start; it is at its end afterwards.
        path: Of the file.
        max_pixels: As for `open_container`.

    Raises:
        DecodeError: The file cannot be read to its end, or holds no frame.
    """
    stream = container.streams.video[0]
    name = container.format.name
    codec = stream.codec_context
    shows = _SHOWS.get((name if name == "avi" else "", codec.name))
    order = _order_of_avi if name == "avi" else _order_by_pts
    stamps = array("q")
    kinds = bytearray()
    keys: list[int] = []
    # What FFmpeg makes up for the pts of MPEG streams, and of ASF, which has none, can be out of order.
    told = name not in ("mpeg", "mpegts") and not (name == "asf" and codec.codec.reorder)
    for packet in frame_packets(container, path):
        stamp = packet.dts if name == "avi" else packet.pts
        if stamp is None or packet.size == 0:
            told = False
            break
        if packet.is_keyframe:
            keys.append(len(stamps))
        stamps.append(stamp)
        kinds.append(_HIDDEN if packet.is_discard else shows(packet) if shows else _SHOWN)
    rate = float(stream.average_rate or stream.guessed_rate or Fraction(25))
    height, width = codec.height, codec.width
    frame_of = order(np.array(stamps), np.frombuffer(kinds, np.uint8), codec) if told else None
    # A file that was cut may begin with frames that refer to what is gone: no decoder shows them.
    if frame_of is None or not keys or keys[0] != 0 or frame_of[0] > 0:
        return Packets(VideoMeta(_at_least_one(_count(path, max_pixels), path), rate, height, width))
    count = _at_least_one(int(frame_of.max(initial=-1)) + 1, path)
    if name != "avi":  # its stamps are numbers of frames
        rate = _rate(np.array(stamps)[frame_of >= 0], float(stream.time_base), rate)
    meta = VideoMeta(count, rate, height, width)
    if len(keys) == len(stamps) and not codec.codec.intra_only and codec.name not in _TELLING:
        keys = keys[:1]  # without an index, files call every packet a key frame
    places = np.array([key for key in keys if key == 0 or frame_of[key] >= 0], np.int32)
    if name in _NO_SEEK:
        return Packets(meta, frame_of, places)
    return Packets(meta, frame_of, places, np.array(stamps)[places])


def _rate(pts: NDArray[np.int64], seconds: float, said: float) -> float:
    """Frames per second: as the header says, unless the time stamps say otherwise, as with a variable rate."""
    if len(pts) < 2:
        return said
    measured = (len(pts) - 1) / (float(pts.max() - pts.min()) * seconds)
    return said if abs(measured / said - 1) < 0.01 else measured


def _at_least_one(count: int, path: Path) -> int:
    if count == 0:
        raise DecodeError(f"{path}: the video stream has no frames")
    return count


def _count(path: Path, max_pixels: int) -> int:
    """Count the frames of a file whose packets do not tell, by decoding it once without converting."""
    count = 0
    with open_container(path, max_pixels) as container:
        try:
            for _ in container.decode(container.streams.video[0]):
                count += 1
        except av.FFmpegError as error:
            raise DecodeError(f"{path}: frame {count} cannot be decoded: {error.strerror}") from None
    return count


# What a packet shows ----------------------------------------------------------------------------------------

_HIDDEN, _SHOWN, _BETWEEN, _UNKNOWN = range(4)


def _vp8_shows(packet: Any) -> int:
    """Read show_frame of RFC 6386, section 9.1: alternative reference frames are never shown."""
    return _SHOWN if memoryview(packet)[0] >> 4 & 1 else _HIDDEN


def _mpeg4_shows(packet: Any) -> int:
    """Read vop_coding_type of ISO/IEC 14496-2, section 6.2.5: is it a B-frame?"""
    content = bytes(packet)
    at = content.find(_VOP)
    if at < 0 or len(content) <= _EMPTY_VOP or content.find(_VOP, at + 4) >= 0:
        return _UNKNOWN  # no frame, an empty one, or two: leave it to the decoder
    if content[at + 4] >> 6 == 2:
        return _BETWEEN if not packet.is_keyframe else _UNKNOWN
    return _SHOWN


_VOP = b"\0\0\1\xb6"
_EMPTY_VOP = 19  # bytes; FFmpeg takes what is not longer for an empty one, too
_SHOWS: dict[tuple[str, str], Callable[[Any], int]] = {
    ("", "vp8"): _vp8_shows,
    ("avi", "mpeg4"): _mpeg4_shows,
}


def _order_by_pts(pts: NDArray[np.int64], kinds: NDArray[np.uint8], _: Any) -> NDArray[np.int32] | None:
    """Frames are shown in the order of their time stamps."""
    shown = np.flatnonzero(kinds == _SHOWN)
    order = np.argsort(pts[shown], kind="stable")
    if np.any(np.diff(pts[shown][order]) == 0):
        return None  # two frames at one time: the stamps do not tell
    frame_of = np.full(len(pts), -1, np.int32)
    frame_of[shown[order]] = np.arange(len(shown))
    return frame_of


def _order_of_avi(dts: NDArray[np.int64], kinds: NDArray[np.uint8], codec: Any) -> NDArray[np.int32] | None:
    """AVI has no pts. Without B-frames, packets are frames; for MPEG-4 the kinds of frames tell the order."""
    count = len(kinds)
    if np.any(np.diff(dts) <= 0):
        return None
    if codec.name != "mpeg4":
        return None if codec.codec.reorder else np.arange(count, dtype=np.int32)
    if np.any(kinds == _UNKNOWN):
        return None
    frame_of = np.empty(count, np.int32)
    held, number = 0, 0  # a frame that others refer to is shown when the next such one comes
    for place in range(1, count):
        if kinds[place] == _BETWEEN:
            frame_of[place] = number
        else:
            frame_of[held], held = number, place
        number += 1
    frame_of[held] = number
    return frame_of


# On disk ----------------------------------------------------------------------------------------------------


def _file(folder: Path, key: _Key) -> Path:
    digest = hashlib.sha256(repr((_LAYOUT, *key)).encode()).hexdigest()
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
        _warn_once("read", file, error)
        return None
    except (ValueError, KeyError, EOFError, NotImplementedError, zipfile.BadZipFile):
        return None  # written by halves, or not by us: it is written again


def _save(file: Path, packets: Packets) -> None:
    meta = packets.meta
    arrays = {name: value for name in _ARRAYS if (value := getattr(packets, name)) is not None}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as content:
            np.savez(content, meta=np.array([meta.num_frames, meta.fps, meta.height, meta.width]), **arrays)
    except OSError as error:
        _warn_once("write", file, error)


_warned = mmap.mmap(-1, 1)  # shared with forked workers: one warning for all of them


def _warn_once(action: str, file: Path, error: OSError) -> None:
    if not _warned[0]:
        _warned[0] = 1
        _log.warning(
            "cannot %s data.cache %s: %s; the packets of such videos are read again by each process",
            action,
            file.parent,
            error.strerror or error,
        )


_ARRAYS = ("frame_of", "keys", "stamps")
