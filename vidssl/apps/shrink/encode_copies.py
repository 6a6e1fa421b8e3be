"""Copies of videos in which any frame decodes on its own: H.264 with key frames only."""

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np

from vidssl.base.atomic import sync
from vidssl.base.errors import DecodeError
from vidssl.video.decode import Image
from vidssl.video.open_container import DECODER_ERRORS, open_container, video_packets, video_stream
from vidssl.video.packet_index import is_regular
from vidssl.video.reader import MAX_PIXELS, Video, is_video_file


def encode_key_frames(
    video: Video,
    path: Path,
    original: tuple[int, int],
    short_side: int,
    quality: int,
    max_pixels: int,
    alive: Callable[[], None],
) -> None:
    """Write all frames of a video as MP4 without sound, at the times of the original; synced to disk.

    Videos with a shorter side below `short_side` pixels keep their size. `quality` is the CRF of x264, 0 is lossless;
    `alive` is called once per frame. `original` is the size and modification time that `original_of` returns.
    """
    ticks, base = _ticks(video, max_pixels)
    cv2.setNumThreads(0)  # the caller runs one process per CPU
    with av.open(f"file:{path}", "w", format="mp4") as container:
        container.metadata["comment"] = f"vidssl shrink: original of {original[0]} bytes, {original[1]} ns"
        codec = (stream := container.add_stream("libx264", rate=25)).codec_context  # time stamps replace the rate
        codec.time_base, codec.thread_count, codec.pix_fmt = base, 1, "yuv420p"
        codec.gop_size, codec.max_b_frames = 1, 0  # key frames only
        codec.options = {"crf": str(quality), "preset": "veryfast", "tune": "fastdecode"}
        spans = itertools.pairwise(ticks)
        for number, image in enumerate(safe_frames(video)):
            alive()
            if number == len(ticks) - 1:
                raise DecodeError(f"it decodes to more frames than its {number} packets")
            frame = av.VideoFrame.from_ndarray(resized(image, short_side), format="rgb24")
            frame.pts, frame.time_base = ticks[number], base
            if number == 0:
                codec.height, codec.width = frame.height, frame.width
            _mux(stream.encode(frame), spans, container)
        _mux(stream.encode(), spans, container)
    sync(path)


def _ticks(video: Video, max_pixels: int) -> tuple[list[int], Fraction]:
    """The time of each frame, from 0, then the end of the last one, and their unit in seconds.

    These are the file's timestamps if they are its `times`, or agree with its frame rate if that is regular: the copy
    must have the same. Else they are regular.
    """
    meta = video.meta
    count, rate = meta.num_frames, Fraction(meta.fps).limit_denominator(100_000)
    regular = list(range(count + 1)), 1 / rate
    path = Path(video.path)
    if not is_video_file(path):
        return regular
    with open_container(path, max_pixels) as container:
        base = video_stream(container).time_base
        if meta.times is not None:
            finest = min(base, Fraction(1, 90_000))
            return [round(time / finest) for time in (*meta.times.tolist(), meta.duration)], finest
        packets = video_packets(container, path)
        stamps = sorted({packet.pts for packet in packets if packet.pts is not None and not packet.is_discard})
    finer = max(1, round(90_000 * base))  # the end of the last frame need not be a multiple of the base
    base /= finer
    ticks = [finer * (stamp - stamps[0]) for stamp in stamps]
    if len(ticks) != count:
        return regular
    end = round(count / rate / base)
    agrees = is_regular(np.array(ticks) * float(base), meta.fps, float(base) * finer)
    return ([*ticks, end], base) if agrees and end > ticks[-1] else regular


def safe_frames(video: Video) -> Iterator[Image]:
    """Yield all frames; what the decoders raise is a DecodeError: one file must not end the run."""
    try:
        yield from video.iter_frames()
    except DECODER_ERRORS as error:
        raise DecodeError(f"{type(error).__name__}: {error}") from None


def _mux(packets: list[Any], spans: Iterator[tuple[int, int]], container: Any) -> None:
    for packet, (start, end) in zip(packets, spans, strict=False):  # in order, as there are key frames only
        packet.duration = end - start  # FFmpeg cannot derive that of the last frame
        container.mux(packet)


def resized(image: Image, short_side: int) -> Image:
    """Shrink an image to the size of a copy: even sides of at least 2 pixels, not larger than the original's."""
    scale = min(1.0, short_side / min(image.shape[:2]))
    height, width = (max(2, min(2 * round(side * scale / 2), side // 2 * 2)) for side in image.shape[:2])
    if height <= image.shape[0] < height + 2 and width <= image.shape[1] < width + 2:
        return np.ascontiguousarray(image[:height, :width])  # a small one only loses an odd row or column
    # Area averaging came closest to a single resize from the original to a training crop.
    return np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


_MARK = re.compile(r"vidssl shrink: original of (\d+) bytes, (-?\d+) ns")


def original_of(path: Path) -> tuple[int, int] | None:
    """Read size and modification time of the original of a copy; None if the file is no copy, or was cut since."""
    with suppress(DecodeError), open_container(path, MAX_PIXELS) as container:
        if match := _MARK.fullmatch(container.metadata.get("comment", "")):
            return int(match[1]), int(match[2])
    return None
