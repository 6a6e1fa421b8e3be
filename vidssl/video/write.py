"""Write frames as a video."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av

from vidssl.base.atomic import replacing
from vidssl.base.errors import DataError
from vidssl.video.decode import Image

_TICK = Fraction(1, 90_000)  # seconds
_PREVIEW = {"crf": "20", "preset": "veryfast"}


def write_mp4(path: Path, images: Iterable[Image], fps: float, times: Sequence[float] | None = None) -> None:
    """Write images of one size, with even sides, as H.264 in MP4; atomic.

    They are shown at `times` in seconds, without at `fps`.

    Raises:
        DataError: The file cannot be written.
    """
    rate = Fraction(fps).limit_denominator(1001)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            encode(file, images, rate, options=_PREVIEW, container="mp4", times=times)
    except (OSError, av.FFmpegError) as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; name another folder") from None


def encode(
    file: Any,
    images: Iterable[Image],
    rate: int | Fraction,
    *,
    codec: str = "libx264",
    pixels: str = "yuv420p",
    options: Mapping[str, str] | None = None,
    container: str | None = None,
    exact: bool = False,
    times: Sequence[float] | None = None,
) -> None:
    """Encode images of one size into a file, a path or an open one, by one thread.

    `container` is its format, by default that of the suffix. With `exact` equal images give equal bytes, if the options
    of the encoder do. `times` are as in `write_mp4`.
    """
    flags = {"fflags": "+bitexact"} if exact else {}
    with av.open(file, "w", format=container, options=flags) as output:
        stream: Any = output.add_stream(codec, rate=rate, options=dict(options or {}))
        stream.pix_fmt = pixels
        stream.codec_context.thread_count = 1
        if times is not None:
            stream.codec_context.time_base = _TICK
        for number, image in enumerate(images):
            if number == 0:
                stream.height, stream.width = image.shape[:2]
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            if times is not None:
                frame.pts, frame.time_base = round((times[number] - times[0]) / _TICK), _TICK
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
