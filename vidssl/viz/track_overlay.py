"""Videos and images with tracks drawn over the frames."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.atomic import replacing
from vidssl.errors import DataError
from vidssl.types import Frames, Tracks

Image = NDArray[np.uint8]  # (H, W, 3) RGB 0-255

COLOURS = (
    (255, 122, 89),
    (64, 196, 255),
    (255, 209, 71),
    (124, 224, 128),
    (214, 140, 255),
    (255, 158, 205),
    (93, 226, 214),
    (190, 200, 212),
)
_SHADE = (18, 20, 24)  # outline of every line, so that it is visible on bright frames
_SIDE = 360  # pixels; smaller frames are enlarged by a whole number to about this short side
_LONGEST = 1920  # pixels; limit of the longer side after that, for H.264 and screens
_TRAIL = 12  # frames for which the path of a track stays visible


def draw_tracks(frames: Frames, numbers: Sequence[int], tracks: Tracks, shown: int = 5) -> list[Image]:
    """Draw the boxes of the best tracks, with their scores and recent paths.

    Args:
        frames: (T, 3, H, W).
        numbers: Of the frames, as in `tracks`.
        tracks: Boxes in pixels of the frames.
        shown: Tracks drawn in each frame, those with the highest scores.

    Returns:
        T images (H', W', 3) with even sides; small frames are enlarged.
    """
    scale, line = _sizes(frames)
    images = []
    for frame, number in zip(frames.transpose(0, 2, 3, 1), numbers, strict=True):
        image = _enlarged(frame, scale)
        here = np.flatnonzero(tracks.frames == number)
        best = here[np.argsort(-tracks.scores[here], kind="stable")][:shown]
        for row in best[::-1]:  # the best one on top
            track = int(tracks.track[row])
            colour = COLOURS[track % len(COLOURS)]
            recent = (tracks.track == track) & (tracks.frames <= number) & (tracks.frames > number - _TRAIL)
            _path(image, tracks.boxes[recent] * scale, colour, line)
            _box(image, tracks.boxes[row] * scale, colour, line, f"{tracks.scores[row]:.2f}")
        images.append(image)
    return images


def draw_pairs(frames: Frames, boxes: NDArray[np.float32], scores: NDArray[np.float32], shown: int = 5) -> Image:
    """Draw patch pairs: two frames side by side, in which boxes of one colour belong together.

    Args:
        frames: (2, 3, H, W).
        boxes: (N, 2, 4) xyxy, pixels of the frames.
        scores: (N,).
        shown: Pairs drawn, those with the highest scores.

    Returns:
        (H', W', 3) with even sides; small frames are enlarged.
    """
    scale, line = _sizes(frames)
    order = np.argsort(-scores, kind="stable")[:shown]
    halves = []
    for side, frame in enumerate(frames.transpose(0, 2, 3, 1)):
        image = _enlarged(frame, scale)
        for rank in reversed(range(len(order))):
            box, colour = boxes[order[rank], side] * scale, COLOURS[rank % len(COLOURS)]
            _box(image, box, colour, line, f"{scores[order[rank]]:.2f}")
        halves.append(image)
    between = np.full((halves[0].shape[0], 4 * line // 2 * 2, 3), 255, np.uint8)
    return np.concatenate([halves[0], between, halves[1]], axis=1)


def write_mp4(path: Path, images: Iterable[Image], fps: float) -> None:
    """Write images (H, W, 3) of one size, with even sides, as H.264 in MP4; atomic.

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
            for number, image in enumerate(images):
                if number == 0:
                    stream.height, stream.width = image.shape[:2]
                container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
    except (OSError, av.FFmpegError) as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}; name another folder") from None


def _sizes(frames: Frames) -> tuple[int, int]:
    """Factor by which a frame is enlarged, and width of lines in pixels."""
    short, long = sorted(frames.shape[2:])
    scale = max(1, min(round(_SIDE / short), _LONGEST // long))
    return scale, max(1, round(short * scale / 240))


def _enlarged(image: Image, scale: int) -> Image:
    height, width = (side * scale // 2 * 2 for side in image.shape[:2])
    large = cv2.resize(np.ascontiguousarray(image), None, fx=scale, fy=scale, interpolation=cv2.INTER_NEAREST)
    large = cv2.copyMakeBorder(
        large, 0, image.shape[0] * scale % 2, 0, image.shape[1] * scale % 2, cv2.BORDER_REPLICATE
    )
    return np.ascontiguousarray(large[: max(height, 2), : max(width, 2)], np.uint8)


def _path(image: Image, boxes: NDArray[np.float32], colour: tuple[int, int, int], line: int) -> None:
    middles = ((boxes[:, :2] + boxes[:, 2:]) / 2).round().astype(np.int32)
    for shade, thick in ((_SHADE, line + 2), (colour, line)):
        cv2.polylines(image, [middles[:, None]], False, shade, thick, cv2.LINE_AA)


def _box(image: Image, box: NDArray[np.float32], colour: tuple[int, int, int], line: int, text: str) -> None:
    x1, y1, x2, y2 = (round(float(value)) for value in box)
    far = x2 - 1, y2 - 1
    cv2.rectangle(image, (x1, y1), far, _SHADE, 2 * line + 2, cv2.LINE_AA)
    cv2.rectangle(image, (x1, y1), far, colour, 2 * line, cv2.LINE_AA)
    font, size = cv2.FONT_HERSHEY_SIMPLEX, 0.32 + 0.08 * line
    (wide, high), below = cv2.getTextSize(text, font, size, 1)
    top = max(y1 - high - below - 2, 0)
    left = min(max(x1 - line, 0), max(image.shape[1] - wide - 6, 0))
    cv2.rectangle(image, (left, top), (left + wide + 5, top + high + below + 2), colour, cv2.FILLED)
    cv2.putText(image, text, (left + 3, top + high + 2), font, size, _SHADE, 1, cv2.LINE_AA)
