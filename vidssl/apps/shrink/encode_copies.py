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
from vidssl.video.open_container import DECODER_ERRORS, open_container, video_stream
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
    """The time of each frame, from 0, then the end of the last one, and their unit in seconds."""
    meta = video.meta
    if meta.times is None:
        return list(range(meta.num_frames + 1)), 1 / Fraction(meta.fps).limit_denominator(100_000)
    unit = Fraction(1, 90_000)
    if is_video_file(Path(video.path)):
        with open_container(Path(video.path), max_pixels) as container:
            unit = min(video_stream(container).time_base, unit)
    return [round(time / unit) for time in (*meta.times.tolist(), meta.duration)], unit


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


def time_of_copy(changed: int) -> int:
    """The modification time of a copy, ns: the original's, within what file systems can store (until 2038)."""
    return changed % (10**9 << 31)


def has_time_of(path: Path, changed: int) -> bool:
    """Whether a file has the modification time of the copy of an original; some file systems store it in 2 s."""
    return abs(path.stat().st_mtime_ns - time_of_copy(changed)) <= 2 * 10**9


def original_of(path: Path) -> tuple[int, int] | None:
    """Read size and modification time of the original of a copy; None if the file is no copy, or was changed since."""
    with suppress(DecodeError), open_container(path, MAX_PIXELS) as container:
        match = _MARK.fullmatch(container.metadata.get("comment", ""))
        if match and has_time_of(path, int(match[2])):  # other programs that write the file keep the comment
            return int(match[1]), int(match[2])
    return None
