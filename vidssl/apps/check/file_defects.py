"""Integrity check: decode a file completely and classify its defects.

What the header of a file states is compared with the packets that are there. With fewer frames or seconds, a file is
`truncated` if its index names bytes after its end, or if it has no index at its end; with an index of all that there
is, the header is wrong: a `header mismatch`.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np

from vidssl.base.errors import DecodeError, NoVideoError, SeveralSizesError, TooLargeError, UndecodableError
from vidssl.base.types import VideoMeta
from vidssl.video.open_container import open_container, video_stream
from vidssl.video.reader import is_video_file, open_video, state_of_video

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
_BETWEEN = 1024  # bytes between two packets of a Matroska file; the headers there are shorter
_MP4_STARTS = frozenset((b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot"))


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
    contents, meta, failure, disordered = _Contents(), None, None, False
    if is_file and not images and _lacks_moov(path):
        return None, [("truncated", "its index (moov) is missing")]
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
        if type(error) in _OWN_NAMES:
            return meta, [(_OWN_NAMES[type(error)], failure)]
    if cut := contents.truncation():
        return meta, [("truncated", "; ".join(filter(None, (cut, failure))))]
    if failure is None and contents.skipped:
        failure = f"{contents.skipped} bytes between two packets are damaged, so frames are missing"
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
    """What the header and the index of a file state, and what its packets contain."""

    stated: float | None = None  # length by the header; None: it states none
    unit: str = "frames"  # of this length, or "s"
    packets: int = 0  # of the first video stream
    ticks: int = 0  # of AVI's clock, whose header counts them: a frame may last several
    start: float = math.inf  # seconds, over all streams
    end: float = -math.inf
    times: list[float] = field(default_factory=list)  # seconds, of the first video stream
    last_key: float = -math.inf  # seconds, of its last key frame
    exact: bool = False  # whether the file stores a time of each frame
    damaged: int = 0  # packets of this stream from which bytes are missing, but for the last
    cut: bool = False  # the file ends within the last packet
    size: int = 0  # bytes of the file
    index_bytes: int = 0  # where the last packet ends that the index names
    index_end: float = -math.inf  # seconds, of the last packet that it names; others than AVI and MP4 have no index
    skipped: int = 0  # bytes between two packets of a Matroska file: FFmpeg goes on after damage without an error

    @property
    def length(self) -> float:
        """Length by the packets, in the unit of the header."""
        return max(self.packets, self.ticks) if self.unit == "frames" else max(self.end - self.start, 0.0)

    def truncation(self) -> str | None:
        """Say how a file shows that its end is missing; None: it does not."""
        if self.index_bytes > self.size:
            return f"its index names {self.index_bytes} bytes, it has {self.size}{self._shortfall('; ')}"
        # An index that FFmpeg made while it opened an AVI has the first frames alone.
        indexed = self.index_end >= self.last_key and self.index_end > min(self.times, default=math.inf)
        if self.cut:
            return f"it ends within a packet{self._shortfall('; ')}"
        return None if indexed else self._shortfall() or None

    def _shortfall(self, before: str = "") -> str:
        """What the packets lack of the header's length; empty: nothing, or the header states no length."""
        slack = 0.0 if self.unit == "frames" else 1.5 * self.length / max(self.packets, 1) + 0.01 * self.length
        length = self.length if self.unit == "frames" else max(self.length, self.end)  # some headers count from 0
        if self.stated is None or length >= self.stated - slack:
            return ""
        return f"{before}{self.length:.6g} of {self.stated:.6g} {self.unit} are there"

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
    """Read the header, the index and all packets."""
    with open_container(path, max_pixels) as container:
        video, kind = video_stream(container), container.format.name
        contents = _Contents(video.frames or None)
        if not video.frames and container.duration is not None and kind not in _ESTIMATED:
            contents = _Contents(container.duration / av.time_base, "s")
        contents.exact = kind not in (*_ESTIMATED, "avi", "asf")
        contents.size = (state_of_video(str(path)) or (0, 0))[0]
        if kind == "avi":
            contents.index_end = max((float(e.timestamp * video.time_base) for e in video.index_entries), default=0.0)
        if kind.startswith("mov"):  # its index is whole, or the file cannot be opened
            contents.index_end = math.inf
            contents.index_bytes = max((entry.pos + entry.size for entry in video.index_entries), default=0)
        positions, sizes = list[int](), list[int]()
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
                if kind == "avi" and packet.dts is not None:
                    contents.ticks = packet.dts + (packet.duration or 0)
                if time is not None:
                    contents.times.append(start)
                    contents.last_key = start if packet.is_keyframe else contents.last_key
            positions.append(packet.pos or 0)
            sizes.append(packet.size)
            alive()
        if kind.startswith("matroska") and len(positions) > 1:
            between = np.diff(positions) - sizes[:-1]
            late = contents.start > 2 * float(1 / (video.average_rate or 1))  # the first packets may be lost, too
            worst = int(max(between.max(), positions[0] if late else 0))
            contents.skipped = worst if worst > _BETWEEN + 4 * np.median(between) else 0
    return contents


def _readable(container: Any) -> Iterator[Any]:
    """Yield packets up to the first that cannot be read: that is a decoding error later."""
    # IndexError: of PyAV, for a packet of a stream that was not there when the file was opened.
    with suppress(av.FFmpegError, IndexError):
        yield from container.demux()


def _lacks_moov(path: Path) -> bool:
    """Whether a file is MP4 or MOV without its whole index: a sequence of boxes, each with its size and type first."""
    position, size = 0, path.stat().st_size
    with open(path, "rb") as file:
        while position + 8 <= size:
            file.seek(position)
            length, kind = int.from_bytes(file.read(4), "big"), file.read(4)
            if position == 0 and kind not in _MP4_STARTS:
                return False
            if length == 1:
                length = int.from_bytes(file.read(8), "big")
            if kind == b"moov" and position + length <= size:
                return False
            if length < 8:  # 0: the box extends to the end of the file; else it is not a box
                break
            position += length
    return position > 0
