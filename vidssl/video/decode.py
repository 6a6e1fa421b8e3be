"""The decoder interface, and the default decoder: PyAV, decoding as few frames as the wanted ones allow."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import av
import numpy as np
from av.sidedata.sidedata import Type
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from vidssl.base.errors import DecodeError, FramesOutOfOrderError
from vidssl.video.open_container import frame_packets, open_container, video_packets, video_stream
from vidssl.video.packet_index import Packets

Image = NDArray[np.uint8]  # (H, W, 3) RGB

# Decoders that apply skip_frame to each packet; others (dav1d) read it only when they are opened.
_CAN_SKIP = frozenset(("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vp8"))

# Formats without times of presentation, or whose missing ones FFmpeg guesses while it reads.
_GUESSED_TIMES = frozenset(("avi", "mpeg", "mpegts", "mpegvideo", "m4v", "h264", "hevc", "asf"))

_MAX_READ_ON = 100  # packets; reading and dropping so many is cheaper than a seek


class Decoder(Protocol):
    """An open video."""

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Yield (number, image) of the wanted frames, each once, in any order; `numbers` ascend."""

    def iter_frames(self) -> Iterator[Image]:
        """Yield all frames in order."""

    def close(self) -> None:
        """Close the file."""


class PyAV:
    """Decodes with the FFmpeg that PyAV ships.

    Decoding starts at the key frame before a wanted frame and stops at the last wanted frame before the next key
    frame. In between, frames that are neither wanted nor referred to by others are skipped by the decoder, and only
    wanted frames are converted to RGB. A damaged file is a DecodeError.

    Attributes:
        out_of_order: Whether the decoder has returned frames in another order than the timestamps that the file stores.
    """

    def __init__(self, path: Path, packets: Packets, container: Any, max_pixels: int) -> None:
        self._path, self._packets, self._container, self._max_pixels = path, packets, container, max_pixels
        self._size = container.size  # bytes
        self.out_of_order = False

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def fetch(self, numbers: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Yield (number, image) of the wanted frames."""
        to_rgb = _ToRGB()
        missing = set(numbers)
        if self._packets.frame_of is None:
            attempts = [self._decode_counting(max(numbers))]
        else:
            # The second attempt skips nothing, for streams in which a skipped frame was needed after all.
            whole = [(0, int(self._packets.packet_of[[*numbers]].max()))]
            spans = self._spans(np.array(numbers))
            attempts = [self._decode_spans(missing, spans, True), self._decode_spans(missing, whole, False)]
        while missing and attempts:
            try:
                for number, frame in attempts.pop(0):
                    if number in missing:
                        missing.discard(number)
                        yield number, to_rgb(frame)
            except FramesOutOfOrderError:
                self.out_of_order = True
                raise
            except DecodeError:
                if not attempts:
                    raise

    def iter_frames(self) -> Iterator[Image]:
        """Decode the whole file in one pass."""
        to_rgb = _ToRGB()
        stored = self._container.format.name not in _GUESSED_TIMES
        last = None
        for _, frame in self._decode_counting(self._packets.meta.num_frames):
            if stored and frame.pts is not None:
                self.out_of_order |= last is not None and frame.pts < last
                last = frame.pts
            yield to_rgb(frame)

    def _decode_counting(self, last: int) -> Iterator[tuple[int, Any]]:
        """Decode from the first packet to frame `last` and number the frames by counting: always right, but slow."""
        number = 0
        self._reopen()
        codec = video_stream(self._container).codec_context
        for packet in itertools.chain(video_packets(self._container, self._path), (None,)):
            for frame in self._decode(codec, packet):
                yield number, frame
                number += 1
            if number > last:
                return

    def _decode_spans(self, missing: set[int], spans: list[tuple[int, int]], skip: bool) -> Iterator[tuple[int, Any]]:
        """Decode spans of packets (first, last). The frame number passes through the decoder in place of the pts."""
        frame_of = self._packets.frame_of
        assert frame_of is not None
        codec, set_mode = video_stream(self._container).codec_context, None
        can_skip = skip and codec.name in _CAN_SKIP
        feed: Iterator[tuple[int, Any]] = iter(())  # (position, packet) from the current one in the file
        last = -_MAX_READ_ON - 1  # the packet that was read last
        for start, end in spans:
            codec.flush_buffers()
            if start - last > _MAX_READ_ON:
                feed = self._packets_from(start) if skip else self._packets_from_first()
                codec, set_mode = video_stream(self._container).codec_context, None
            first_frame, last = int(frame_of[start]), end
            before = -1  # number of the frame that the decoder returned last
            for position, packet in feed:
                number = int(frame_of[position])
                # Frames stored after the key frame but shown before it refer to frames that were not decoded.
                if position < start or (skip and 0 <= number < first_frame):
                    continue
                packet.pts = number if number >= 0 else None
                # NONREF: the decoder drops the frame if no other frame refers to it.
                mode = "NONREF" if can_skip and number not in missing else "DEFAULT"
                if mode != set_mode:
                    codec.skip_frame = set_mode = mode
                for frame in self._decode(codec, packet):
                    before = self._in_order(frame, before)
                    yield frame.pts, frame
                if position == end:
                    break
            for frame in self._decode(codec, None):
                before = self._in_order(frame, before)
                yield frame.pts, frame

    def _in_order(self, frame: Any, before: int) -> int:
        """Return the number of a frame, or raise an error if the decoder shows it after a later one."""
        if frame.pts is None:
            return before
        if frame.pts < before:
            raise FramesOutOfOrderError(f"{self._path}: its timestamps are not in the order of its frames")
        return int(frame.pts)

    def _spans(self, numbers: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The spans of packets (first, last) that the wanted frames need; each starts with a key frame."""
        packets = self._packets
        assert packets.frame_of is not None and packets.keys is not None
        needed = packets.packet_of[numbers]
        groups = np.searchsorted(packets.frame_of[packets.keys], numbers, side="right") - 1
        starts = packets.keys[np.maximum(groups, 0)]
        spans: list[tuple[int, int]] = []
        for start, end in sorted(zip(starts.tolist(), needed.tolist(), strict=True)):
            if spans and start <= spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((start, end))
        return spans

    def _packets_from(self, start: int) -> Iterator[tuple[int, Any]]:
        """Seek to the key frame `start`, or to one before it, and yield (number, packet) from there on."""
        packets, container = self._packets, self._container
        if packets.keys is not None and packets.key_times is not None:
            target = int(packets.key_times[np.searchsorted(packets.keys, start)])
            number_at = dict(zip(packets.key_times.tolist(), packets.keys.tolist(), strict=True))
            with contextlib.suppress(av.FFmpegError):
                container.seek(target, stream=video_stream(container), backward=True, any_frame=False)
                rest = frame_packets(container, self._path)
                for packet in rest:
                    number = number_at.get(packet.dts if container.format.name == "avi" else packet.pts)
                    if packet.is_keyframe and number is not None:
                        if number > start:
                            break  # the seek went too far
                        return itertools.chain(((number, packet),), enumerate(rest, number + 1))
        return self._packets_from_first()

    def _packets_from_first(self) -> Iterator[tuple[int, Any]]:
        self._reopen()
        return enumerate(frame_packets(self._container, self._path))

    def _reopen(self) -> None:
        """Go to the first packet; a seek could land later, where the first packet is not marked as a key frame."""
        container = open_container(self._path, self._max_pixels, fast=False)
        self._container.close()
        self._container = container
        if container.size != self._size:
            raise DecodeError(f"{self._path}: the file has changed while it was read")

    def _decode(self, codec: Any, packet: Any) -> list[Any]:
        """Return the frames that a packet completes; None flushes the decoder."""
        try:
            frames = list(codec.decode(packet))
        except av.FFmpegError as error:
            raise DecodeError(f"{self._path}: cannot decode: {error.strerror}; the file is damaged") from None
        for frame in frames:
            if frame.is_corrupt:
                raise DecodeError(f"{self._path}: a frame was decoded from corrupt data; the file is damaged")
        return frames


class _ToRGB:
    """Converts the frames of one clip to upright images."""

    def __init__(self) -> None:
        self._reformatter = VideoReformatter()  # a new one for each frame costs 2-3 ms
        self._rotation: int | None = None  # degrees; None: no frame was converted so far
        self._matrix: list[int] | None = None

    def __call__(self, frame: Any) -> Image:
        rgb = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray().astype(np.uint8, copy=False)
        # Reading the matrix takes 12 us, as long as the conversion of a small frame; it is the same in a whole track.
        rotation = getattr(frame, "rotation", 0)  # PyAV 14.0 has none
        if rotation != self._rotation:
            self._rotation, self._matrix = rotation, _display_matrix(frame)
        return rgb if self._matrix is None else _upright(rgb, self._matrix)


def _display_matrix(frame: Any) -> list[int] | None:
    matrix = frame.side_data.get(Type.DISPLAYMATRIX)
    return None if matrix is None else np.frombuffer(matrix, np.int32)[:5].tolist()


def orientation(path: Path, max_pixels: int) -> tuple[bool, bool]:
    """Whether a file asks for its pictures to be (turned or mirrored, mirrored). Decodes one frame."""
    with open_container(path, max_pixels) as container:
        try:
            frame = next(container.decode(video_stream(container)))
        except (av.FFmpegError, StopIteration):
            return False, False  # the caller finds that it cannot be decoded
    matrix = _display_matrix(frame)
    if matrix is None:
        return False, False
    a, b, _, c, d = matrix
    return min(a, d) <= 0, bool(a * d < b * c)


def _upright(image: Image, matrix: list[int]) -> Image:
    """Turn and mirror an image (H, W, 3) as FFmpeg does, by the quarter turn nearest to a display matrix.

    The matrix starts (a, b, _, c, d): pixel (x, y) is shown at (ax + cy, bx + dy), whose signs are those of mirrors.
    """
    a, b, _, c, d = matrix
    if abs(a) + abs(d) < abs(b) + abs(c):  # x and y change places
        image, a, d = image.transpose(1, 0, 2), c, b
    return image[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
