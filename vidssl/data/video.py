"""Open a video and fetch frames by number: the i-th frame in presentation order of the first video stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from vidssl.errors import ConfigError, DecodeError
from vidssl.types import Frames, VideoMeta

MAX_PIXELS = 4096 * 4096  # of one frame; more is refused from the header, before anything is decoded

# AVI stores no pts, and what FFmpeg makes up can be out of order; a seek in an MPEG stream can land too late.
_COUNTED = ("avi", "mpeg", "mpegts")

# Decoders that heed skip_frame packet by packet; dav1d, for one, goes by what was set when it was opened.
_SKIPPING = ("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vp8")

# FFmpeg's names. Playlists (hls, concat, dash, …) are not among them: they name other files.
_FORMATS = "mov,matroska,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,ivf,obu,asf,flv,ogg,gif"


@dataclass(frozen=True)
class _Index:
    """What one pass over the packets (no decoding) tells of a file."""

    meta: VideoMeta
    pts: NDArray[np.int64]  # (num_frames,) ascending: frame i is shown at pts[i]
    keys: NDArray[np.int64]  # frames at which decoding can start, ascending
    seekable: bool  # whether pts name frames reliably; otherwise frames are counted from the first


class Video:
    """An open video. Made by `open_video`; close it, or use it as a context manager."""

    def __init__(self, path: str, container: Any, index: _Index) -> None:
        self.path = path
        self.meta = index.meta
        self._container = container
        self._index = index

    def __enter__(self) -> "Video":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._container.close()

    def frames(self, indices: Sequence[int] | NDArray[np.int64]) -> Frames:
        """Decode frames by number in one forward pass.

        Args:
            indices: (T,) in [0, num_frames), in any order, repeats allowed.

        Returns:
            (T, C, H, W) uint8 RGB, channels last in memory.

        Raises:
            DecodeError: An index is out of range, or the file fails before the last wanted frame.
        """
        wanted = [int(i) for i in indices]
        limit = self.meta.num_frames
        if not wanted or min(wanted) < 0 or max(wanted) >= limit:
            shown = f"frames {min(wanted)}-{max(wanted)}" if wanted else "no frame"
            raise DecodeError(f"{self.path}: {shown} asked for, the video has frames 0-{limit - 1}")
        found = dict(self._seeking(set(wanted)) if self._index.seekable else self._counting(set(wanted)))
        missing = sorted(set(wanted) - set(found))
        if missing:
            raise DecodeError(
                f"{self.path}: frame {missing[0]} of {limit} cannot be decoded; the file is damaged"
            )
        return np.stack([found[i] for i in wanted]).transpose(0, 3, 1, 2)

    def _seeking(self, wanted: set[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Go to the key frame before each run of wanted frames; decode no group of pictures without a wanted frame."""
        stream = self._container.streams.video[0]
        number = {int(p): i for i, p in enumerate(self._index.pts)}
        ordered = np.array(sorted(wanted))
        starts = self._index.keys[np.searchsorted(self._index.keys, ordered, side="right") - 1]
        reformatter = VideoReformatter()
        left = set(wanted)
        for start in np.unique(starts):
            here = {int(i) for i in ordered[starts == start]}
            if not here & left:
                continue  # the group before gave them all
            self._seek(int(self._index.pts[start]))
            for packet in self._packets(stream):
                # An unwanted frame that no other frame refers to need not be decoded.
                if stream.codec_context.name in _SKIPPING:
                    mine = packet.pts is None or number.get(packet.pts) in wanted
                    stream.codec_context.skip_frame = "DEFAULT" if mine else "NONREF"
                for frame in self._decode(packet):
                    i = number.get(frame.pts)
                    if i in left:
                        left.discard(i)
                        yield i, self._pixels(frame, reformatter)
                if not here & left:
                    break

    def _counting(self, wanted: set[int]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Decode from the first frame on and count: right also where pts are not monotonic, as in some AVI files."""
        self._rewind()
        reformatter, last, i = VideoReformatter(), max(wanted), 0
        for packet in self._packets(self._container.streams.video[0]):
            for frame in self._decode(packet):
                if i in wanted:
                    yield i, self._pixels(frame, reformatter)
                i += 1
                if i > last:
                    return

    def _rewind(self) -> None:
        """Go to the first packet; a seek can fail or land later where that is not marked as a key frame."""
        self._container.close()
        self._container = _open(Path(self.path))

    def _seek(self, pts: int) -> None:
        try:
            self._container.seek(pts, stream=self._container.streams.video[0], backward=True, any_frame=False)
        except av.FFmpegError as error:
            raise DecodeError(f"{self.path}: cannot seek: {error.strerror}") from None

    def _packets(self, stream: Any) -> Iterator[Any]:
        try:
            yield from self._container.demux(stream)
        except av.FFmpegError as error:
            raise DecodeError(f"{self.path}: cannot read: {error.strerror}") from None

    def _decode(self, packet: Any) -> list[Any]:
        try:
            return list(packet.decode())
        except av.FFmpegError as error:
            raise DecodeError(f"{self.path}: cannot decode: {error.strerror}; the file is damaged") from None

    def _pixels(self, frame: Any, reformatter: VideoReformatter) -> NDArray[np.uint8]:
        # One reformatter for the clip: a fresh one per frame costs 2-3 ms.
        rgb = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray().astype(np.uint8, copy=False)
        turns = _quarter_turns(frame)
        return np.ascontiguousarray(np.rot90(rgb, turns)) if turns else rgb


def open_video(path: str | Path, backend: str = "pyav", max_pixels: int = MAX_PIXELS) -> Video:
    """Open a video and learn its shape without decoding a pixel of it.

    Args:
        path: A local file.
        backend: "pyav".
        max_pixels: Largest height x width; a larger one is refused from the header.

    Raises:
        DecodeError: The file is missing, damaged, too large, or has no video stream.
        ConfigError: There is no such backend.
    """
    if backend != "pyav":
        raise ConfigError(f"no video backend '{backend}'; there are: pyav")
    path = Path(path)
    try:
        status = path.stat()
    except OSError as error:
        raise DecodeError(f"{path}: {error.strerror}") from None
    if status.st_size == 0:
        raise DecodeError(f"{path}: the file is empty")
    container = _open(path)
    try:
        return Video(str(path), container, _index(path, status.st_size, status.st_mtime_ns, max_pixels))
    except BaseException:
        container.close()
        raise


def _open(path: Path) -> Any:
    try:
        # "file:" keeps FFmpeg from reading a protocol out of the name; the whitelist, out of what the file
        # says.
        container = av.open(
            f"file:{path}", options={"protocol_whitelist": "file", "format_whitelist": _FORMATS}
        )
    except av.ArgumentError:
        raise DecodeError(f"{path}: not a video of a format that is read ({_FORMATS})") from None
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DecodeError(f"{path}: not a video: {reason}") from None
    if not container.streams.video:
        container.close()
        raise DecodeError(f"{path}: there is no video stream in it")
    # Slice threads deadlock with torch's in a worker, and several workers share the cores anyway.
    container.streams.video[0].thread_type = "NONE"
    container.streams.video[0].codec_context.thread_count = 1
    return container


@lru_cache(maxsize=100_000)
def _index(path: Path, size: int, mtime_ns: int, max_pixels: int) -> _Index:
    """Read all packets of a file once per process. Size and time are in the key so that a changed file is read anew."""
    with _open(path) as container:
        stream = container.streams.video[0]
        height, width = stream.codec_context.height, stream.codec_context.width
        if height * width > max_pixels:
            raise DecodeError(
                f"{path}: {width}x{height} is more than {max_pixels} pixels; raise the limit if meant"
            )
        pts: list[int] = []
        keys: list[int] = []
        reliable = container.format.name not in _COUNTED
        try:
            for packet in container.demux(stream):
                if packet.size == 0 or packet.is_discard:
                    continue
                if packet.pts is None:
                    reliable = False
                    continue
                pts.append(packet.pts)
                if packet.is_keyframe:
                    keys.append(packet.pts)
        except av.FFmpegError as error:
            raise DecodeError(f"{path}: cannot read: {error.strerror}; the file is damaged") from None
        order = np.unique(np.array(pts, np.int64))
        reliable = reliable and order.size == len(pts) and bool(keys) and keys[0] == order[0]
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        if not reliable:
            pts = []
        count = order.size if reliable else _count(path)
    if count == 0:
        raise DecodeError(f"{path}: the video stream has no frames")
    meta = VideoMeta(count, float(rate), height, width)
    starts = np.searchsorted(order, np.sort(np.array(keys, np.int64))) if reliable else np.zeros(1, np.int64)
    return _Index(meta, order if reliable else np.zeros(0, np.int64), starts.astype(np.int64), reliable)


def _count(path: Path) -> int:
    """Count the frames of a file whose packets do not tell, by decoding it once without converting."""
    count = 0
    with _open(path) as container:
        try:
            for _ in container.decode(container.streams.video[0]):
                count += 1
        except av.FFmpegError as error:
            raise DecodeError(f"{path}: frame {count} cannot be decoded: {error.strerror}") from None
    return count


def _quarter_turns(frame: Any) -> int:
    """Number of counter-clockwise quarter turns that the display matrix of the file asks for."""
    return round(getattr(frame, "rotation", 0) / 90) % 4
