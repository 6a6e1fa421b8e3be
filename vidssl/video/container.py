"""Open a video file with PyAV and read the packets of its first video stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
from av.bitstream import BitStreamFilterContext

from vidssl.errors import DecodeError, NoVideoError, TooLargeError
from vidssl.video.tar_members import find_member

# FFmpeg's names. Playlists (hls, concat, dash, …) are left out: they refer to other files.
_FORMATS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,obu,asf,flv,ogg,gif"

# To probe a file FFmpeg decodes its first frames: 28 of the 29 ms that opening takes at 1920x1080. For these codecs
# the headers of these containers suffice, so no frame is decoded.
_FAST_PROBE_SUFFIXES = frozenset((".mp4", ".mov", ".m4v", ".mkv"))
_FAST_PROBE_CODECS = frozenset(("h264", "hevc"))

# By default FFmpeg's HEVC decoder ignores most damage. Other decoders mark the damaged frames.
_STRICT = {"hevc": {"err_detect": "explode"}}


def open_container(path: Path, max_pixels: int) -> Any:
    """Open a file with PyAV: only this file, and none that it refers to, with at most `max_pixels` per frame."""
    container = _open(path, max_pixels, skip_frame="all") if path.suffix.lower() in _FAST_PROBE_SUFFIXES else None
    if container and container.streams.video[0].codec_context.name not in _FAST_PROBE_CODECS:
        container.close()
        container = None
    container = container or _open(path, max_pixels)
    stream = container.streams.video[0]
    codec = stream.codec_context
    if not 0 < codec.height * codec.width <= max_pixels:
        size = f"{codec.width}x{codec.height}" if codec.width else "the frame size is unknown or"
        container.close()
        raise TooLargeError(f"{path}: {size} is more than {max_pixels} pixels; raise the limit if meant")
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
        reason = getattr(error, "strerror", None) or str(error)
        raise DecodeError(f"{path}: not a video: {reason}") from None
    if not container.streams.video:
        container.close()
        raise NoVideoError(f"{path}: the file has no video stream")
    stream: Any = container.streams.video[0]
    if stream.codec_context is None:
        container.close()
        raise DecodeError(
            f"{path}: this FFmpeg has no decoder for the codec of its video stream: convert the file, or it is damaged"
        )
    return container


def video_packets(container: Any, path: Path) -> Iterator[Any]:
    """Yield the packets of the first video stream, from the current position to the end of the file."""
    try:
        for packet in container.demux(container.streams.video[0]):
            # PyAV ends with a packet of its own, empty and without a time, that flushes the decoder.
            if packet.size or packet.pts is not None or packet.dts is not None:
                yield packet
    except av.FFmpegError as error:
        raise DecodeError(f"{path}: cannot read: {error.strerror}; the file is damaged") from None


def frame_packets(container: Any, path: Path) -> Iterator[Any]:
    """Yield packets as `video_packets` does, with one frame in each."""
    # DivX and XviD store a B-frame in one packet with the frame before it ("packed bitstream").
    packets = video_packets(container, path)
    stream = container.streams.video[0]
    if container.format.name != "avi" or stream.codec_context.name != "mpeg4":
        return packets
    unpack = BitStreamFilterContext("mpeg4_unpack_bframes", stream).filter
    return (frame for packet in packets for frame in unpack(packet))
