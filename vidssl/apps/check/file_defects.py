"""Integrity check: decode a file completely and classify its defects.

A truncated file is distinguished from one with a wrong header by the sizes that containers store: with fewer bytes than
its outermost header states, and with fewer frames or seconds or a decoding error, it is `truncated`; with all its bytes
and another number of frames or seconds, it is a `header mismatch`.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import av
import numpy as np

from vidssl.base.errors import DecodeError, NoVideoError, SeveralSizesError, TooLargeError, UndecodableError
from vidssl.base.types import VideoMeta
from vidssl.video.open_container import open_container, video_stream
from vidssl.video.reader import is_video_file, open_video

Fault = tuple[str, str]  # its name and the reason
_OWN_NAMES = {
    TooLargeError: "oversized",
    NoVideoError: "no video stream",
    SeveralSizesError: "several sizes",
    UndecodableError: "decode error",
}

# The headers of these formats store no duration; FFmpeg estimates one.
_ESTIMATED = frozenset(("mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc", "obu"))
_TOLERANCE = 0.1  # fraction by which a header may differ from the packets: trimmed phone videos hide a few frames
_GAP = 10.0  # seconds between two frames that are a timestamp gap, if they are also half of the video


def check_video(
    path: Path, fps: float, max_pixels: int, alive: Callable[[], None]
) -> tuple[VideoMeta | None, list[Fault]]:
    """Decode every frame of a video file or image folder and classify its defects.

    `fps` is that of images; `max_pixels` the largest height x width; `alive` is called after each packet and frame, for
    timeouts. Returns the metadata, None where the video cannot be opened, and the faults: empty, not a video, no video
    stream, oversized, truncated, decode error, several sizes, header mismatch, timestamp gap, timestamps out of order,
    repeated timestamps, damaged packets.
    """
    is_file = os.path.isfile(path)  # noqa: PTH113 - also for names that are too long, which Path.is_file refuses
    if is_file and path.stat().st_size == 0:
        return None, [("empty", "the file has 0 bytes")]
    images = not is_video_file(path)
    missing = missing_bytes(path) if is_file and not images else None
    contents, meta, failure, disordered = _Contents(), None, None, False
    try:
        if not images:
            contents = _read(path, max_pixels, alive)
        with open_video(path, max_pixels=max_pixels, fps=fps) as video:
            meta = video.meta
            for _ in video.iter_frames():
                alive()
            disordered = video.out_of_order
    except DecodeError as error:
        failure = str(error).removeprefix(f"{path}: ").removeprefix(f"{path}/")  # the report has the path beside it
        if type(error) in _OWN_NAMES and not (missing and isinstance(error, (NoVideoError, UndecodableError))):
            return meta, [(_OWN_NAMES[type(error)], failure)]
    shortfall = contents.shortfall()
    if contents.cut or (missing and (failure or shortfall is not None)):
        reasons = (missing or "it ends within a packet", shortfall, failure)
        return meta, [("truncated", "; ".join(filter(None, reasons)))]
    if failure is None and path.is_file() and not images:
        failure = broken_clusters(path)
    if failure is None and meta and meta.num_frames < contents.packets and contents.damaged:
        failure = f"{contents.damaged} damaged packets: {meta.num_frames} frames decoded from {contents.packets}"
    if failure:
        return meta, [("decode error" if meta or contents.packets else "not a video", failure)]
    faults = contents.mismatches()
    if disordered:
        faults.append(("timestamps out of order", "they are not in the order of the frames, which are counted instead"))
    same = contents.packets - len({*contents.times})
    if same and contents.exact and meta and meta.num_frames == contents.packets:
        same_time = f"{same} of {contents.packets} frames have the time of another or none, and are shown beside it"
        faults.append(("repeated timestamps", same_time))
    if contents.damaged:
        faults.append(("damaged packets", f"{contents.damaged} of {contents.packets}, and all frames decode"))
    return meta, faults


@dataclass
class _Contents:
    """What the header of a file states, and what its packets contain."""

    stated: float | None = None  # length by the header; None: it states none
    unit: str = "frames"  # of this length, or "s"
    packets: int = 0  # of the first video stream
    ticks: int = 0  # of AVI's clock, whose header counts them: a frame may last several
    start: float = math.inf  # seconds, over all streams
    end: float = -math.inf
    times: list[float] = field(default_factory=list)  # seconds, of the first video stream
    exact: bool = False  # whether the file stores a time of each frame
    damaged: int = 0  # packets of this stream from which bytes are missing, but for the last
    cut: bool = False  # the file ends within the last packet

    @property
    def length(self) -> float:
        """Length by the packets, in the unit of the header."""
        return max(self.packets, self.ticks) if self.unit == "frames" else max(self.end - self.start, 0.0)

    def shortfall(self) -> str | None:
        """What the packets lack of the header's length; None: nothing; empty: the header states no length."""
        if self.stated is None:
            return ""
        slack = 0 if self.unit == "frames" else 1.5 * self.length / max(self.packets, 1)
        lacking = f"{self.length:.6g} of {self.stated:.6g} {self.unit} are there"
        return lacking if self.length < self.stated - slack else None

    def mismatches(self) -> list[Fault]:
        """Compare the header with the packets, and find gaps in the timestamps."""
        faults = []
        if self.stated is not None and (self.unit == "frames" or math.isfinite(self.end)):
            # Seconds: some headers count from 0, some from the first frame.
            least, end = (2, self.length) if self.unit == "frames" else (1, self.end)
            off = min(abs(self.stated - self.length), abs(self.stated - end))
            if off > max(least, _TOLERANCE * self.stated):
                header = f"the header states {self.stated:.6g} {self.unit}"
                faults.append(("header mismatch", f"{header}, the file has {self.length:.6g}"))
        steps = np.diff(np.sort(self.times))
        if len(steps) and steps.max() > max(_GAP, steps.sum() / 2):
            faults.append(("timestamp gap", f"one frame lasts {steps.max():.1f} of {steps.sum():.1f} s"))
        return faults


def _read(path: Path, max_pixels: int, alive: Callable[[], None]) -> _Contents:
    """Read the header and all packets."""
    with open_container(path, max_pixels) as container:
        video = video_stream(container)
        contents = _Contents(video.frames or None)
        if not video.frames and container.duration is not None and container.format.name not in _ESTIMATED:
            contents = _Contents(container.duration / av.time_base, "s")
        contents.exact = container.format.name not in (*_ESTIMATED, "avi", "asf")
        for packet in _readable(container):
            time = packet.dts if packet.pts is None else packet.pts
            if not packet.size and time is None:
                continue  # PyAV's own packet that ends a stream
            if time is not None:
                start, end = (float(t * packet.time_base) for t in (time, time + (packet.duration or 0)))
                contents.start, contents.end = min(contents.start, start), max(contents.end, end)
            if packet.stream.index == video.index:
                contents.packets += 1
                contents.damaged += contents.cut
                contents.cut = packet.is_corrupt
                if container.format.name == "avi" and packet.dts is not None:
                    contents.ticks = packet.dts + (packet.duration or 0)
                contents.times += [] if time is None else [start]
            alive()
    return contents


def _readable(container: Any) -> Iterator[Any]:
    """Yield packets up to the first that cannot be read: that is a decoding error later."""
    # IndexError: of PyAV, for a packet of a stream that was not there when the file was opened.
    with suppress(av.FFmpegError, IndexError):
        yield from container.demux()


# Sizes that containers store ---------------------------------------------------------------------------------

_MP4_STARTS = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"))
# Matroska, RFC 9559, section 5.1: how a file and a segment begin, and the elements of a segment and of a cluster.
_EBML, _SEGMENT, _CLUSTER = map(bytes.fromhex, ("1a45dfa3", "18538067", "1f43b675"))
_OF_SEGMENT = "1f43b675 1c53bb6b 114d9b74 1549a966 1654ae6b 1254c367 1043a770 1941a469 ec bf"
_OF_CLUSTER = "e7 a3 a0 ab a7 5854 af ec bf"
_LONGEST_HEADER = 12  # bytes of identity and length
_ELEMENTS = frozenset(map(bytes.fromhex, f"{_OF_SEGMENT} {_OF_CLUSTER}".split()))


def missing_bytes(path: Path) -> str | None:
    """Compare the size of a file with the one in its outermost headers: what is missing, or None.

    MP4 and MOV are a sequence of boxes, one of which is the index; AVI is a sequence of RIFF chunks; Matroska and WebM
    are one segment. Each starts with its number of bytes. Other formats store no size.
    """
    size = path.stat().st_size
    end: int | None = None
    indexed = True
    with open(path, "rb") as file:
        head = file.read(12)
        if head[4:8] in _MP4_STARTS:
            end, indexed = _end_of_boxes(file, size)
        elif head[:4] == b"RIFF" and head[8:12] == b"AVI ":
            end = _end_of_riff(file, size)
        elif head[:4] == _EBML:
            end = _end_of_segment(file)
    if end is not None and end > size:
        return f"its header states {end} bytes, it has {size}"
    return None if indexed else "its index (moov) is missing"


def _end_of_boxes(file: BinaryIO, size: int) -> tuple[int, bool]:
    """Where the last box ends, and whether one of the boxes is the index."""
    position, indexed = 0, False
    while position + 8 <= size:
        file.seek(position)
        length, kind = int.from_bytes(file.read(4), "big"), file.read(4)
        indexed = indexed or kind == b"moov"
        if length == 1:
            length = int.from_bytes(file.read(8), "big")
        if length < 8:  # 0: the box extends to the end of the file; else it is not a box
            break
        position += length
    return position, indexed


def _end_of_riff(file: BinaryIO, size: int) -> int:
    position = 0
    while position + 8 <= size:  # large files have several chunks
        file.seek(position)
        kind, length = file.read(4), int.from_bytes(file.read(4), "little")
        if kind != b"RIFF" or length == 0:
            break
        position += 8 + length
    return position


def broken_clusters(path: Path) -> str | None:
    """Return where the elements of a Matroska file do not follow each other, or None.

    FFmpeg goes on at the next cluster, without an error and without the frames between.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(_EBML)) != _EBML:
            return None
        stop = min(_end_of_segment(file) or size, size) - _LONGEST_HEADER  # of what may be cut off, or follow it
        end = 0  # of the cluster; 0: it states none
        while (position := file.tell()) < stop:
            identity = _read_id(file)
            length = _read_vint(file)
            if identity == _CLUSTER:  # it is read element by element, with or without a length of its own
                end = 0 if length is None else file.tell() + length
            elif identity not in _ELEMENTS or position < end < file.tell() + (length or 0):
                return f"the element at byte {position} of {size} is damaged, so frames are missing"
            elif length is not None:
                file.seek(length, os.SEEK_CUR)
    return None


def _read_id(file: BinaryIO) -> bytes:
    first = file.read(1)
    return first + file.read(8 - first[0].bit_length()) if first and first[0] >= 16 else first


def _end_of_segment(file: BinaryIO) -> int | None:
    file.seek(len(_EBML))
    file.seek(_read_vint(file) or 0, os.SEEK_CUR)
    if file.read(len(_SEGMENT)) != _SEGMENT:
        return None
    length = _read_vint(file)
    return None if length is None else file.tell() + length


def _read_vint(file: BinaryIO) -> int | None:
    """Read a variable-size integer (RFC 8794, section 4): its leading zeros give its length; all ones mean unknown."""
    first = int.from_bytes(file.read(1), "big")
    length = 9 - first.bit_length()
    if length > 8:
        return None
    bits = 7 * length
    value = (first << 8 * (length - 1) | int.from_bytes(file.read(length - 1), "big")) & ((1 << bits) - 1)
    return None if value == (1 << bits) - 1 else value
