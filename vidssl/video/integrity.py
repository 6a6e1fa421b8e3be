"""What is wrong with a video file, told by reading it to its end.

How a file that was cut off is told from one whose header lies: MP4, MOV, AVI, Matroska and WebM say in their
outermost header how many bytes there are. A file that has fewer, and fewer frames or less time than it says
or a fault in decoding, is truncated. One that has all its bytes and decodes to its end, but not the frames or
the time that it says, has a lying header. **Where the two cannot be told apart:** FLV says a time and no
bytes, so one that is cut between two frames is called a lying header. Of MPEG, transport streams, ASF and GIF
neither is learned: cut within a frame they are garbled, if their decoder notices; cut between two frames they
are a shorter sound video, and nothing is found. The times in the headers of MP4 and MOV are not read by FFmpeg,
which adds up those of the frames, so there only a wrong number of frames is found.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import av

from vidssl.errors import DecodeError, NoVideoError, TooLargeError
from vidssl.types import VideoMeta
from vidssl.video.extent import lacks
from vidssl.video.frame_folder import is_image
from vidssl.video.index import open_container
from vidssl.video.reader import Video, open_video

Fault = tuple[str, str]  # what it is, and the reason to say so

# Their headers say no time; FFmpeg guesses one.
_ESTIMATED = frozenset(("mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc", "obu"))
_FAR = 0.1  # share by which a header may differ from the packets: trimmed phone videos hide a few frames
_JUMP = 10.0  # seconds between two frames, where they are also half of the video


def examine(
    path: Path, fps: float, max_pixels: int, alive: Callable[[], None]
) -> tuple[VideoMeta | None, list[Fault]]:
    """Read a video to its end, decoding every frame of it, and say what is wrong.

    Args:
        path: A file, or a folder of images.
        fps: Frames per second of images.
        max_pixels: Largest height x width; a larger one is refused from the header.
        alive: Called whenever there is progress.

    Returns:
        What is known of the video, None where it cannot be opened; and its faults: empty, not a video, no
        video stream, oversized, truncated, garbled, several sizes, lying header, time jump.
    """
    if not path.is_dir() and path.stat().st_size == 0:
        return None, [("empty", "the file has 0 bytes")]
    look = _look_at_images if path.is_dir() or is_image(path) else _look_at_file
    return look(path, fps, max_pixels, alive)


def _look_at_images(
    path: Path, fps: float, max_pixels: int, alive: Callable[[], None]
) -> tuple[VideoMeta | None, list[Fault]]:
    try:
        video = open_video(path, max_pixels=max_pixels, fps=fps)
    except DecodeError as error:
        kind = "oversized" if isinstance(error, TooLargeError) else "not a video"
        return None, [(kind, _reason(error, path))]
    failure, found = _decode(video, alive)
    return video.meta, found if failure is None else [*found, ("garbled", failure)]


def _look_at_file(
    path: Path, fps: float, max_pixels: int, alive: Callable[[], None]
) -> tuple[VideoMeta | None, list[Fault]]:
    lack = lacks(path)
    told, meta = _Told(), None
    sizes: list[Fault] = []
    try:
        told = _read(path, max_pixels, alive)
        video = open_video(path, max_pixels=max_pixels)
        meta = video.meta
        failure, sizes = _decode(video, alive)
    except TooLargeError as error:
        return None, [("oversized", _reason(error, path))]
    except NoVideoError as error:
        return None, [("no video stream", _reason(error, path))]
    except DecodeError as error:
        failure = _reason(error, path)
    if told.cut or (lack and (failure or not told.complete)):
        reason = "; ".join(filter(None, (lack or "it ends within a packet", told.short, failure)))
        return meta, [*sizes, ("truncated", reason)]
    if failure:
        return meta, [*sizes, ("garbled" if told.packets else "not a video", failure)]
    return meta, [*sizes, *told.lies()]


def _decode(video: Video, alive: Callable[[], None]) -> tuple[str | None, list[Fault]]:
    """Decode a video to its end; give the reason if that fails, and what is wrong with its frames."""
    shapes: dict[tuple[int, ...], None] = {}
    failure = None
    with video:
        try:
            for image in video.iter_frames():
                shapes[image.shape] = None
                alive()
        except DecodeError as error:
            failure = _reason(error, Path(video.path))
    sizes = " and ".join(f"{width}x{height}" for height, width, _ in shapes)
    return failure, [("several sizes", f"its frames are {sizes}")] if len(shapes) > 1 else []


@dataclass
class _Told:
    """What the header of a file says, and what its packets tell."""

    said_frames: int = 0  # 0: nothing
    said_seconds: float | None = None
    packets: int = 0  # of the first video stream
    start: float = math.inf  # seconds, over all streams
    end: float = -math.inf
    stamps: list[float] = field(default_factory=list)  # seconds, of the first video stream
    cut: bool = False  # the file ends within the last packet

    @property
    def seconds(self) -> float:
        return max(self.end - self.start, 0.0)

    @property
    def complete(self) -> bool:
        """All frames that the header says are there; False where it says nothing."""
        if self.said_frames:
            return self.packets >= self.said_frames
        frame = self.seconds / max(self.packets, 1)
        return self.said_seconds is not None and self.seconds >= self.said_seconds - 1.5 * frame

    @property
    def short(self) -> str | None:
        if self.said_frames > self.packets:
            return f"{self.packets} of {self.said_frames} frames are there"
        if self.said_seconds is not None and not self.complete:
            return f"{self.seconds:.2f} of {self.said_seconds:.2f} s are there"
        return None

    def lies(self) -> list[Fault]:
        """What a header says wrongly, and what its time stamps do that no camera does."""
        found = []
        if self.said_frames:
            if abs(self.said_frames - self.packets) > max(2, _FAR * self.said_frames):
                found.append(("lying header", f"it says {self.said_frames} frames, {self.packets} are there"))
        elif self.said_seconds is not None and math.isfinite(self.end):
            # Some count from zero on and some from the first frame.
            off = min(abs(self.said_seconds - self.seconds), abs(self.said_seconds - self.end))
            if off > max(1.0, _FAR * self.said_seconds):
                found.append(
                    ("lying header", f"it says {self.said_seconds:.2f} s, the file has {self.seconds:.2f} s")
                )
        steps = [after - before for before, after in pairwise(sorted(self.stamps))]
        if steps and max(steps) > max(_JUMP, sum(steps) / 2):
            found.append(("time jump", f"one frame stays for {max(steps):.1f} of {sum(steps):.1f} s"))
        return found


def _read(path: Path, max_pixels: int, alive: Callable[[], None]) -> _Told:
    """Read the header and all packets.

    Raises:
        DecodeError: What `open_container` raises.
    """
    with open_container(path, max_pixels) as container:
        video = container.streams.video[0]
        seconds = None
        if container.duration is not None and container.format.name not in _ESTIMATED:
            seconds = container.duration / av.time_base
        told = _Told(video.frames, seconds)
        # What cannot be read is found by decoding; here, what can be is counted.
        with suppress(av.FFmpegError):
            for packet in container.demux():
                stamp = packet.dts if packet.pts is None else packet.pts
                if not packet.size and stamp is None:
                    continue  # PyAV's own, at the end
                if stamp is not None:
                    start, end = (
                        float(t * packet.time_base) for t in (stamp, stamp + (packet.duration or 0))
                    )
                    told.start, told.end = min(told.start, start), max(told.end, end)
                if packet.stream.index == video.index:
                    told.packets += 1
                    told.cut = packet.is_corrupt
                    told.stamps += [] if stamp is None else [start]
                alive()
    return told


def _reason(error: Exception, path: Path) -> str:
    """What an error says, without the name of the file, which stands beside it in the report."""
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path}/")
