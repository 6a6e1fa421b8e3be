"""Write frames as a video."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import replacing
from vidssl.errors import DataError

_TICK = Fraction(1, 90_000)  # seconds


def write_mp4(
    path: Path, images: Iterable[NDArray[np.uint8]], fps: float, times: Sequence[float] | None = None
) -> None:
    """Write images (H, W, 3) of one size, with even sides, as H.264 in MP4; atomic.

    They are shown at `times` in seconds, without at `fps`.

    Raises:
        DataError: The file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file, av.open(file, "w", format="mp4") as container:
            rate = Fraction(fps).limit_denominator(1001)
            stream = container.add_stream("libx264", rate=rate, options={"crf": "20", "preset": "veryfast"})
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1
            if times is not None:
                stream.codec_context.time_base = _TICK
            for number, image in enumerate(images):
                if number == 0:
                    stream.height, stream.width = image.shape[:2]
                frame = av.VideoFrame.from_ndarray(image, format="rgb24")
                if times is not None:
                    frame.pts, frame.time_base = round((times[number] - times[0]) / _TICK), _TICK
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    except (OSError, av.FFmpegError) as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; name another folder") from None
