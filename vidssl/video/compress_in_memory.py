"""Compress frames as H.264 in memory, and decode them again."""

from collections.abc import Container, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

Image = NDArray[np.uint8]  # (H, W, 3) RGB


def crf_options(crf: int) -> dict[str, str]:
    """Options of x264 for a constant quality, from 0, lossless, to 51."""
    return {"crf": str(crf)}


def rate_options(bits: float) -> dict[str, str]:
    """Options of x264 for a number of bits per second, over a buffer of one second."""
    rate = str(round(bits))
    return {"b": rate, "maxrate": rate, "bufsize": rate}


class Recompressed:
    """Frames of one size and clip, decoded from H.264; `bits` is the size of the stream so far."""

    def __init__(self, options: dict[str, str], fps: float) -> None:
        self.bits = self._count = 0
        self._reformatter = VideoReformatter()  # one for all: a new one for each frame costs 2-3 ms
        self._options, self._fps = options, Fraction(fps).limit_denominator(100_000)

    def __call__(self, images: Iterable[Image], wanted: Container[int]) -> Iterator[Image]:
        """Yield the images with the `wanted` numbers, from 0, in their order: some frames later than they are read."""
        decoder = av.CodecContext.create("h264", "r")
        decoder.thread_count = 1
        encoder: Any = None
        shape = (0, 0)
        for number, image in enumerate(images):
            if encoder is None:
                shape = image.shape[:2]
                encoder = self._encoder(*shape)
            even: Any = cv2.copyMakeBorder(image, 0, shape[0] % 2, 0, shape[1] % 2, cv2.BORDER_REPLICATE)
            frame = av.VideoFrame.from_ndarray(even, format="rgb24")
            frame.pts = number
            yield from self._decoded(decoder, encoder.encode(frame), shape, wanted)
        if encoder is not None:
            yield from self._decoded(decoder, [*encoder.encode(None), None], shape, wanted)

    def _encoder(self, height: int, width: int) -> Any:
        encoder: Any = av.CodecContext.create("libx264", "w")
        encoder.height, encoder.width, encoder.pix_fmt = height + height % 2, width + width % 2, "yuv420p"
        encoder.framerate, encoder.time_base = self._fps, 1 / self._fps
        encoder.thread_count = 1  # one per worker; equal bits on every machine
        # Without mbtree: with it the stream of a short clip depends on memory that x264 does not set.
        encoder.options = {"preset": "veryfast", "x264-params": "mbtree=0", **self._options}
        return encoder

    def _decoded(
        self, decoder: Any, packets: Sequence[Any], shape: tuple[int, int], wanted: Container[int]
    ) -> Iterator[Image]:
        for packet in packets:
            self.bits += 0 if packet is None else 8 * packet.size
            for frame in decoder.decode(packet):
                if self._count in wanted:
                    rgb: Any = self._reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                    yield rgb[: shape[0], : shape[1]]
                self._count += 1
