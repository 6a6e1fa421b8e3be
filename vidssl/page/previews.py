"""Previews of videos on pages: the frames of their middle, and strips of small frames that a page plays."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames, VideoRecord
from vidssl.data.dataset import of_records as of_records
from vidssl.data.dataset import resolve_span
from vidssl.video.reader import open_video

WIDTH, HEIGHT = 160, 96  # pixels; larger frames are shrunk to fit
GROWN = 128  # pixels; smaller frames are enlarged by a whole number to at most this height
_FRAMES = 8  # of a preview, evenly spaced
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Preview:
    """A video as one JPEG with small frames side by side, which the page plays."""

    jpeg: bytes
    count: int  # frames in the strip
    width: int  # pixels, of one frame in the strip
    height: int

    @property
    def shown(self) -> tuple[int, int]:
        """Width and height on the page; tiny videos are enlarged by a whole number, so that they stay sharp."""
        zoom = max(1, min(GROWN // self.height, WIDTH // self.width))
        return self.width * zoom, self.height * zoom


def middle_frames(record: VideoRecord, fps: float | None = None) -> Frames:
    """Decode up to eight frames of the middle of a video or span, over three seconds at most.

    `fps` is the frame rate for folders of images without an fps column; only spans depend on it.
    """
    with open_video(record.path, fps=record.fps or fps or 25) as video:
        first, part = resolve_span(video.meta, record)
        if part.times is not None:
            half = min(3.0, part.duration) / 2
            times = part.duration / 2 + np.linspace(-half, half, 8, endpoint=False)
            return video.frames(np.unique(first + part.frames_at(times)).tolist())
        length = min(part.num_frames, max(1, round(3 * part.fps)))
        start = first + (part.num_frames - length) // 2
        return video.frames(np.unique(start + np.arange(8) * length // 8).tolist())


def of_middles(
    records: Sequence[VideoRecord],
    make: Callable[[Frames], _Made],
    fps: float | None = None,
    workers: int = 0,
    timeout: float | None = None,
) -> Iterator[_Made | str]:
    """Make something of the middle frames of each video, such as its `preview`; a text is why it cannot be decoded."""
    return of_records(records, lambda record: make(middle_frames(record, fps)), "previews", workers, timeout)


def preview(
    frames: Frames, width: int = WIDTH, height: int = HEIGHT, count: int = _FRAMES, quality: int = 75
) -> Preview:
    """Make the preview of one video from its frames (T, 3, H, W): `count` of them, shrunk to fit width and height."""
    total = len(frames)
    small = shrunk(frames[np.linspace(0, total - 1, min(count, total)).round().astype(int)], width, height)
    size = small[0].shape[1], small[0].shape[0]
    strip = cv2.cvtColor(np.concatenate(small, axis=1), cv2.COLOR_RGB2BGR)
    # Full colour resolution: subsampled chroma would mix colours of neighbouring frames at the seams.
    how = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    return Preview(cv2.imencode(".jpg", strip, how)[1].tobytes(), len(small), *size)


def shrunk(frames: Frames, width: int, height: int) -> list[NDArray[np.uint8]]:
    """Shrink frames (T, 3, H, W) to fit width and height: images (H, W, 3). Smaller ones stay as they are."""
    full_height, full_width = frames.shape[2:]
    scale = min(1.0, height / full_height, width / full_width)
    size = max(1, round(full_width * scale)), max(1, round(full_height * scale))
    images = np.ascontiguousarray(frames.transpose(0, 2, 3, 1))
    return [np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8) for image in images]


def number_previews(previews: Iterable[Preview]) -> dict[Preview, int]:
    """Number each distinct preview, for its CSS class."""
    return {clip: number for number, clip in enumerate(dict.fromkeys(previews))}
