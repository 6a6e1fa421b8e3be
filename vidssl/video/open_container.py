"""Open a video file with PyAV and read the packets of its first video stream.

A cover image in the metadata (FFmpeg's disposition `attached_pic`) is listed as a video stream, but is none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import cv2
from av.bitstream import BitStreamFilterContext
from av.stream import Disposition

from vidssl.base.errors import DecodeError, NoVideoError, UndecodableError, too_large, why_unreadable
from vidssl.video.tar_members import find_member

# What FFmpeg, OpenCV and the file system raise while a file is read; any other error is one of this program.
DECODER_ERRORS = (av.FFmpegError, cv2.error, OSError, MemoryError)

# FFmpeg's names. Playlists (hls, concat, dash, …) are left out: they refer to other files.
_FORMATS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,obu,asf,flv,ogg,gif"

# To probe a file FFmpeg decodes its first frames: 28 of the 29 ms that opening takes at 1920x1080. For these codecs
# the headers of these containers suffice, so no frame is decoded.
_FAST_PROBE_SUFFIXES = frozenset((".mp4", ".mov", ".m4v", ".mkv"))
_FAST_PROBE_CODECS = frozenset(("h264", "hevc"))

_FFMPEG_MAX_PIXELS = 2**31 - 1  # its default
_COVER = Disposition.attached_pic

# By default FFmpeg's HEVC decoder ignores most damage. Other decoders mark the damaged frames.
_STRICT = {"hevc": {"err_detect": "explode"}}


def open_container(path: Path, max_pixels: int, fast: bool = True) -> Any:
    """Open a file with PyAV: only this file, and none that it refers to, with at most `max_pixels` per frame.

    Without `fast` FFmpeg always decodes the first frames: it learns how many frames a decoder must hold back, where the
    headers of the stream do not say so.
    """
    fast = fast and path.suffix.lower() in _FAST_PROBE_SUFFIXES
    container = _open(path, max_pixels, skip_frame="all") if fast else _open(path, max_pixels)
    stream = video_stream(container)
    if fast and stream.codec_context.name not in _FAST_PROBE_CODECS:
        container.close()
        container = _open(path, max_pixels)
        stream = video_stream(container)
    codec = stream.codec_context
    if not 0 < codec.height * codec.width <= max_pixels:
        container.close()
        raise _size_error(path, codec.width, codec.height, max_pixels)
    # FFmpeg's slice threads deadlock with torch's in a worker, and several workers share the cores anyway.
    stream.thread_type = "NONE"
    codec.thread_count = 1
    codec.options = {"max_pixels": str(max_pixels), **_STRICT.get(codec.name, {})}
    return container


def _open(path: Path, max_pixels: int, **more: str) -> Any:
    # "file:" keeps FFmpeg from parsing a protocol out of the name, the whitelists from opening what the file refers to.
    url, protocols = f"file:{path}", "file"
    if member := find_member(str(path)):  # FFmpeg itself reads a part of the tar as if it were a file
        end = member.offset + member.size
        url, protocols = f"subfile,,start,{member.offset},end,{end},,:file:{member.tar}", "subfile,file"
    options = {"protocol_whitelist": protocols, "format_whitelist": _FORMATS, "max_pixels": str(max_pixels), **more}
    try:
        container = av.open(url, options=options)
    except av.ArgumentError:
        raise DecodeError(f"{path}: not a video of a supported format ({_FORMATS})") from None
    except (av.FFmpegError, OSError, ValueError) as error:
        try:  # FFmpeg has the same errors for a damaged file
            with open(member.tar if member else path, "rb") as file:
                file.read(1)
        except OSError as unreadable:
            raise DecodeError(f"{path}: {why_unreadable(path, unreadable)}") from None
        raise DecodeError(f"{path}: not a video: {getattr(error, 'strerror', None) or error}") from None
    stream = video_stream(container)
    if stream is None:
        container.close()
        raise NoVideoError(f"{path}: the file has no video stream")
    if stream.codec_context is None:
        container.close()
        raise UndecodableError(f"{path}: FFmpeg has no decoder for its codec: convert the file, or it is damaged")
    return container


def _size_error(path: Path, width: int, height: int, max_pixels: int) -> DecodeError:
    if width * height == 0:  # FFmpeg found no size, or one above the limit
        with _open(path, _FFMPEG_MAX_PIXELS, skip_frame="all") as container:
            codec = video_stream(container).codec_context
            width, height = codec.width, codec.height
    if width * height == 0:
        return UndecodableError(f"{path}: cannot decode: no frame header can be read; the file is damaged or was cut")
    return too_large(path, width, height, max_pixels)


def video_stream(container: Any) -> Any:
    """Return the first video stream of a container; None if there is none, which `open_container` refuses."""
    return next((stream for stream in container.streams.video if not stream.disposition & _COVER), None)


def video_packets(container: Any, path: Path, complete: bool = False) -> Iterator[Any]:
    """Yield the packets of the first video stream, from the current position to the end of the file.

    `complete`: all packets are wanted, and an AVI whose index lists more of them is an error.
    """
    stream = video_stream(container)
    # FFmpeg passes over damaged parts of an AVI without an error. Others have no such index, or are read by theirs.
    has_index = complete and container.format.name == "avi"
    indexed = sum(entry.size > 0 for entry in stream.index_entries) if has_index else 0
    count = 0
    try:
        for packet in container.demux(stream):
            # PyAV ends with a packet of its own, empty and without a time, that flushes the decoder.
            if packet.size or packet.pts is not None or packet.dts is not None:
                count += 1
                yield packet
    except av.FFmpegError as error:
        raise DecodeError(f"{path}: cannot read: {error.strerror}; the file is damaged") from None
    except IndexError:  # of PyAV: a packet of a stream that was not there when the file was opened
        raise DecodeError(f"{path}: cannot read: a stream appears in the middle; the file is damaged") from None
    if count < indexed:
        raise DecodeError(f"{path}: {count} of the {indexed} packets in its index can be read; the file is damaged")


def frame_packets(container: Any, path: Path, complete: bool = False) -> Iterator[Any]:
    """Yield packets as `video_packets` does, with one frame in each."""
    # DivX and XviD store a B-frame in one packet with the frame before it ("packed bitstream").
    packets = video_packets(container, path, complete)
    stream = video_stream(container)
    if container.format.name != "avi" or stream.codec_context.name != "mpeg4":
        return packets
    unpack = BitStreamFilterContext("mpeg4_unpack_bframes", stream).filter
    return (frame for packet in packets for frame in unpack(packet))
