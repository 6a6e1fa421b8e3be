"""What every decoder is, and ours: as little work as the wanted frames allow."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from vidssl.errors import DecodeError
from vidssl.video.index import Packets, frame_packets, open_container, packets_left

Image = NDArray[np.uint8]  # (H, W, 3) RGB

# Decoders that heed skip_frame packet by packet; dav1d, for one, goes by what was set when it was opened.
_SKIPPING = frozenset(("h264", "hevc", "mpeg1video", "mpeg2video", "mpeg4", "vp8"))

_READ_ON = 100  # packets up to which reading on and dropping them is cheaper than a seek


class Decoder(Protocol):
    """An open file."""

    def fetch(self, wanted: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Give (number, image) of the wanted frames, which ascend, in one forward pass and in any order."""
        ...

    def iter_frames(self) -> Iterator[Image]:
        """Give all frames in order, however many there are."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class PyAV:
    """Decodes as little as the wanted frames allow, with the FFmpeg that PyAV brings.

    Decoding begins at the key frame before a wanted frame and ends with the packet of the last wanted frame
    before the next key frame; between them, frames that nobody wants and no other frame refers to are skipped;
    only wanted frames become RGB.
    """

    def __init__(self, path: Path, packets: Packets, container: Any, max_pixels: int) -> None:
        self._path, self._packets, self._container, self._max_pixels = path, packets, container, max_pixels

    def close(self) -> None:
        """Let go of the file."""
        self._container.close()

    def fetch(self, wanted: Sequence[int]) -> Iterator[tuple[int, Image]]:
        """Give (number, image) of the wanted frames.

        Raises:
            DecodeError: The file is damaged before the last of them.
        """
        reformatter = VideoReformatter()  # one for the clip: a fresh one per frame costs 2-3 ms
        numbers, left = np.array(wanted), set(wanted)
        if self._packets.frame_of is None:
            attempts = [self._counted(max(wanted))]
        else:
            # The second one leaves nothing out, in case that the first missed what it left out.
            whole = [(0, int(self._packets.packet_of[numbers].max()))]
            attempts = [
                self._numbered(numbers, self._spans(numbers), True),
                self._numbered(numbers, whole, False),
            ]
        while left and attempts:
            try:
                for number, frame in attempts.pop(0):
                    if number in left:
                        left.discard(number)
                        yield number, _image(frame, reformatter)
            except DecodeError:
                if not attempts:
                    raise

    def iter_frames(self) -> Iterator[Image]:
        """Decode the whole file in one go.

        Raises:
            DecodeError: It is damaged.
        """
        reformatter = VideoReformatter()
        for _, frame in self._counted(self._packets.meta.num_frames):
            yield _image(frame, reformatter)

    def _counted(self, last: int) -> Iterator[tuple[int, Any]]:
        """Decode from the first packet on and count: always right, and slow."""
        number = 0
        self._rewind()
        for packet in itertools.chain(packets_left(self._container, self._path), (None,)):
            for frame in self._decode(packet):
                yield number, frame
                number += 1
            if number > last:
                return

    def _numbered(
        self, wanted: NDArray[np.int64], spans: list[tuple[int, int]], skip: bool
    ) -> Iterator[tuple[int, Any]]:
        """Feed spans of packets, each of which carries the number of its frame through the decoder."""
        frame_of = self._packets.frame_of
        assert frame_of is not None  # or frames are counted
        asked = set(wanted.tolist())
        codec, set_mode = self._container.streams.video[0].codec_context, None
        skipping = skip and codec.name in _SKIPPING
        feed: Iterator[tuple[int, Any]] = iter(())  # numbered packets, from where the file stands
        last = -_READ_ON - 1  # the packet that was read last
        for start, end in spans:
            codec.flush_buffers()
            if start - last > _READ_ON:
                feed = self._packets_from(start)
                codec, set_mode = self._container.streams.video[0].codec_context, None
            first, last = int(frame_of[start]), end
            for place, packet in feed:
                number = int(frame_of[place])
                # What comes after a key frame and is shown before it refers to frames that were not decoded.
                if place < start or (skip and 0 <= number < first):
                    continue
                packet.pts = number if number >= 0 else None
                mode = "NONREF" if skipping and number not in asked else "DEFAULT"
                if mode != set_mode:
                    codec.skip_frame = set_mode = mode
                for frame in self._decode(packet):
                    yield frame.pts, frame
                if place == end:
                    break
            for frame in self._decode(None):
                yield frame.pts, frame

    def _spans(self, wanted: NDArray[np.int64]) -> list[tuple[int, int]]:
        """The runs of packets, first and last, that the wanted frames need; each begins with a key frame."""
        packets = self._packets
        assert packets.frame_of is not None and packets.keys is not None
        needed = packets.packet_of[wanted]
        groups = np.searchsorted(packets.frame_of[packets.keys], wanted, side="right") - 1
        starts = packets.keys[np.maximum(groups, 0)]
        spans: list[tuple[int, int]] = []
        for start, end in sorted(zip(starts.tolist(), needed.tolist(), strict=True)):
            if spans and start <= spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
            else:
                spans.append((start, end))
        return spans

    def _packets_from(self, start: int) -> Iterator[tuple[int, Any]]:
        """Go to the key frame `start`, or to one before it, and number the packets from there on."""
        packets, container = self._packets, self._container
        if packets.keys is not None and packets.stamps is not None:
            stamp = int(packets.stamps[np.searchsorted(packets.keys, start)])
            places = dict(zip(packets.stamps.tolist(), packets.keys.tolist(), strict=True))
            with contextlib.suppress(av.FFmpegError):
                container.seek(stamp, stream=container.streams.video[0], backward=True, any_frame=False)
                left = frame_packets(container, self._path)
                for packet in left:
                    place = places.get(packet.dts if container.format.name == "avi" else packet.pts)
                    if packet.is_keyframe and place is not None:
                        if place > start:
                            break  # too far
                        return itertools.chain(((place, packet),), enumerate(left, place + 1))
        self._rewind()
        return enumerate(frame_packets(self._container, self._path))

    def _rewind(self) -> None:
        """Go to the first packet; a seek can fail, or land later where that is not marked as a key frame."""
        self._container.close()
        self._container = open_container(self._path, self._max_pixels)

    def _decode(self, packet: Any) -> list[Any]:
        """Give the frames that a packet completes; those that are left, after the last one (None)."""
        codec = self._container.streams.video[0].codec_context
        try:
            frames = list(codec.decode(packet))
        except av.FFmpegError as error:
            raise DecodeError(f"{self._path}: cannot decode: {error.strerror}; the file is damaged") from None
        if any(frame.is_corrupt for frame in frames):
            raise DecodeError(f"{self._path}: a frame is put together from damaged data; the file is damaged")
        return frames


def _image(frame: Any, reformatter: VideoReformatter) -> Image:
    rgb = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray().astype(np.uint8, copy=False)
    turns = round(getattr(frame, "rotation", 0) / 90) % 4  # counter-clockwise, by the file's display matrix
    return np.rot90(rgb, turns) if turns else rgb
