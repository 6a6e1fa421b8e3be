"""Previews: the part of a video that is meant, strips of frames, their sizes."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from vidssl.base.errors import DataError
from vidssl.base.types import VideoRecord
from vidssl.page.previews import middle_frames, preview


def clip(value: int, t: int = 8, h: int = 64, w: int = 64) -> np.ndarray:
    return np.full((t, 3, h, w), value, np.uint8)


def test_previews_show_the_part_that_is_meant(write_video, tmp_path):
    """Black, then white: a span's picture is of the span."""
    frames = np.zeros((50, 32, 32, 3), np.uint8)
    frames[25:] = 255
    path = write_video(tmp_path / "v.mp4", frames)
    record = VideoRecord(str(path))
    assert middle_frames(replace(record, end=0.9)).max() < 40
    assert middle_frames(replace(record, start=1.1)).min() > 215
    assert middle_frames(record).min() < 40 and middle_frames(record).max() > 215


def test_previews_of_folders_of_images_go_by_the_frame_rate_of_the_run(tmp_path):
    """At 25 frames a second the span would lie outside of the 40 images."""
    for n in range(40):
        cv2.imwrite(str(tmp_path / f"{n}.png"), np.full((32, 32, 3), 255 * (n >= 30), np.uint8))
    record = VideoRecord(str(tmp_path), start=3.0, end=4.0)
    assert middle_frames(record, fps=10.0).min() == 255
    with pytest.raises(DataError, match="lies outside the file, which is 1\\.60 s long"):
        middle_frames(record)


def test_a_preview_is_one_strip_of_evenly_spaced_frames():
    frames = np.stack([np.full((3, 60, 80), 10 * t, np.uint8) for t in range(22)])
    made = preview(frames)
    strip = cv2.imdecode(np.frombuffer(made.jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert (made.count, made.width, made.height) == (8, 80, 60) and strip.shape == (60, 640, 3)
    assert [int(strip[30, 40 + 80 * i, 0]) // 10 for i in range(8)] == [0, 3, 6, 9, 12, 15, 18, 21]


def test_a_preview_keeps_the_order_of_colours():
    red = np.zeros((2, 3, 32, 32), np.uint8)
    red[:, 0] = 255
    strip = cv2.imdecode(np.frombuffer(preview(red).jpeg, np.uint8), cv2.IMREAD_COLOR)
    blue, green, red_value = strip[16, 16].tolist()
    assert red_value > 240 and max(blue, green) < 15


@pytest.mark.parametrize(
    ("size", "stored", "shown"),
    [
        ((64, 64), (64, 64), (128, 128)),
        ((28, 28), (28, 28), (112, 112)),
        ((240, 320), (96, 128), (96, 128)),
        ((1080, 1920), (90, 160), (90, 160)),
        ((1920, 1080), (96, 54), (96, 54)),
        ((1, 900), (1, 160), (1, 160)),
    ],
)
def test_large_videos_are_shrunk_and_tiny_ones_shown_at_a_whole_multiple(size, stored, shown):
    made = preview(clip(9, 3, *size))
    assert (made.height, made.width, made.count) == (*stored, 3)
    assert made.shown[::-1] == shown
