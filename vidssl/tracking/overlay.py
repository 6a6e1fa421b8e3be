"""Videos and images with tracks drawn over the frames."""

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from vidssl.base.types import Frames, Tracks

_Image = NDArray[np.uint8]  # (H, W, 3) RGB 0-255

_CODES = ("ff7a59", "40c4ff", "ffd147", "7ce080", "d68cff", "ff9ecd", "5de2d6", "bec8d4")
_COLOURS = [tuple(bytes.fromhex(code)) for code in _CODES]
_SHADE = (18, 20, 24)  # outline of every line, so that it is visible on bright frames
_SIDE = 360  # pixels; smaller frames are enlarged by a whole number to about this short side
_LONGEST = 1920  # pixels; limit of the longer side after that, for H.264 and screens
_TRAIL = 12  # frames for which the path of a track stays visible
_SHOWN = 5  # boxes drawn in a frame, those with the highest scores


def draw_tracks(frames: Frames, numbers: Sequence[int], tracks: Tracks) -> list[_Image]:
    """Draw the boxes of the best tracks, with their scores and recent paths; small frames are enlarged.

    `numbers` are those of the frames in `tracks`. The T images have even sides.
    """
    scale, line = _sizes(frames)
    images = []
    for frame, number in zip(frames, numbers, strict=True):
        image = _enlarged(frame, scale)
        here = np.flatnonzero(tracks.frames == number)
        best = here[np.argsort(-tracks.scores[here], kind="stable")][:_SHOWN]
        for row in best[::-1]:  # the best one on top
            track = tracks.track[row]
            colour = _COLOURS[track % len(_COLOURS)]
            recent = (tracks.track == track) & (tracks.frames <= number) & (tracks.frames > number - _TRAIL)
            boxes = tracks.boxes[recent] * scale
            path = ((boxes[:, :2] + boxes[:, 2:]) / 2).round().astype(np.int32)
            cv2.polylines(image, [path], False, _SHADE, line + 2, cv2.LINE_AA)
            cv2.polylines(image, [path], False, colour, line, cv2.LINE_AA)
            _draw_box(image, tracks.boxes[row] * scale, colour, line, tracks.scores[row])
        images.append(image)
    return images


def draw_pairs(frames: Frames, boxes: NDArray[np.float32], scores: NDArray[np.float32]) -> _Image:
    """Draw the best patch pairs: two frames (2, 3, H, W) side by side, in which boxes of one colour belong together.

    `boxes` (N, 2, 4) are pixels of the frames, `scores` (N,). Small frames are enlarged; the sides are even.
    """
    scale, line = _sizes(frames)
    best = np.argsort(-scores, kind="stable")[:_SHOWN]
    start, end = enlarged(frames)
    for rank, row in reversed([*enumerate(best)]):  # the best one on top
        for side, image in enumerate((start, end)):
            _draw_box(image, boxes[row, side] * scale, _COLOURS[rank], line, scores[row])
    between = np.full((len(start), 4 * line // 2 * 2, 3), 255, np.uint8)
    return np.concatenate([start, between, end], axis=1)


def enlarged(frames: Frames) -> list[_Image]:
    """Enlarge small frames (T, 3, H, W) to images with even sides, as `write_mp4` needs them."""
    scale, _ = _sizes(frames)
    return [_enlarged(frame, scale) for frame in frames]


def _sizes(frames: Frames) -> tuple[int, int]:
    """Factor by which a frame is enlarged, and width of lines in pixels."""
    short, long = sorted(frames.shape[2:])
    scale = max(1, min(round(_SIDE / short), _LONGEST // long))
    return scale, max(1, round(short * scale / 240))


def _enlarged(frame: Frames, scale: int) -> _Image:
    """Enlarge a frame (3, H, W) to an image (H', W', 3) with even sides."""
    height, width = (max(2, side * scale // 2 * 2) for side in frame.shape[1:])
    image = cv2.resize(np.ascontiguousarray(frame.transpose(1, 2, 0)), (width, height), interpolation=cv2.INTER_NEAREST)
    return np.asarray(image, np.uint8)


def _draw_box(image: _Image, box: NDArray[np.float32], colour: tuple[int, ...], line: int, score: float) -> None:
    x1, y1, x2, y2 = (round(float(value)) for value in box)
    for shade, thickness in ((_SHADE, 2 * line + 2), (colour, 2 * line)):
        cv2.rectangle(image, (x1, y1), (x2 - 1, y2 - 1), shade, thickness, cv2.LINE_AA)
    text, font, size = f"{score:.2f}", cv2.FONT_HERSHEY_SIMPLEX, 0.32 + 0.08 * line
    (wide, high), below = cv2.getTextSize(text, font, size, 1)
    top = max(y1 - high - below - 2, 0)
    start = min(max(x1 - line, 0), max(image.shape[1] - wide - 6, 0))
    cv2.rectangle(image, (start, top), (start + wide + 5, top + high + below + 2), colour, cv2.FILLED)
    cv2.putText(image, text, (start + 3, top + high + 2), font, size, _SHADE, 1, cv2.LINE_AA)
