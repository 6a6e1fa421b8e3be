"""Tracks over frames: boxes lie where they belong, the best ones only, and the file can be played."""

import numpy as np
import pytest

from vidssl.base.errors import DataError
from vidssl.base.types import Tracks
from vidssl.tracking import overlay as track_overlay
from vidssl.tracking.overlay import _COLOURS, draw_pairs, draw_tracks
from vidssl.video import open_video
from vidssl.video.write import write_mp4


def make_tracks(rows):
    """Tracks from (frame, box, score, track)."""
    frames, boxes, scores, track = zip(*rows, strict=True)
    return Tracks(np.array(frames), np.array(boxes, np.float32), np.array(scores, np.float32), np.array(track))


def is_colour(picture, number):
    return (picture == _COLOURS[number]).all(axis=2)


def test_a_box_is_drawn_where_it_is_and_small_frames_are_enlarged():
    frames = np.full((2, 3, 41, 60), 128, np.uint8)
    tracks = make_tracks([(7, [10, 12, 30, 32], 0.9, 0)])
    first, second = draw_tracks(frames, [7, 8], tracks)
    assert first.shape == (9 * 41 // 2 * 2, 9 * 60, 3)  # 9 x 41 is odd
    drawn = is_colour(first, 0)
    rows, columns = (np.flatnonzero(drawn[:, 90:270].sum(axis=1) > 150), np.flatnonzero(drawn.sum(axis=0) > 150))
    assert abs(rows.max() - 9 * 32) <= 4 and abs(columns.min() - 90) <= 4 and abs(columns.max() - 270) <= 4
    assert (first[9 * 22, 9 * 20] == 128).all()  # the inside stays to be seen
    assert (second == 128).all()


@pytest.mark.parametrize("sides", [(8, 400), (400, 8), (4, 4096)])
def test_long_frames_are_enlarged_so_far_that_they_can_be_written(tmp_path, sides):
    frames = np.full((2, 3, *sides), 128, np.uint8)
    tracks = make_tracks([(0, [0, 0, 4, 4], 0.9, 0)])
    pictures = [
        *draw_tracks(frames[:1], [0], tracks),
        draw_pairs(frames, np.zeros((0, 2, 4), np.float32), np.zeros(0, np.float32)),
    ]
    for number, picture in enumerate(pictures):
        write_mp4(tmp_path / f"{number}.mp4", [picture], 25.0)
        with open_video(tmp_path / f"{number}.mp4") as video:
            assert (video.meta.height, video.meta.width) == picture.shape[:2]


def test_only_the_best_are_drawn(monkeypatch):
    frames = np.full((1, 3, 400, 400), 128, np.uint8)
    rows = [(0, [20 + 60 * n, 100, 60 + 60 * n, 140], score, n) for n, score in enumerate((0.2, 0.9, 0.5, 0.1))]
    monkeypatch.setattr(track_overlay, "_SHOWN", 2)
    (image,) = draw_tracks(frames, [0], make_tracks(rows))
    assert [bool(is_colour(image, n).any()) for n in range(4)] == [False, True, True, False]


def test_the_way_of_a_track_is_drawn():
    frames = np.full((2, 3, 400, 400), 128, np.uint8)
    tracks = make_tracks([(0, [50, 190, 70, 210], 0.9, 0), (1, [300, 190, 320, 210], 0.9, 0)])
    first, second = draw_tracks(frames, [0, 1], tracks)
    assert not is_colour(first, 0)[200, 100:290].any() and is_colour(second, 0)[198:203, 100:290].any(axis=0).all()


def test_a_pair_has_one_colour_in_both_frames(monkeypatch):
    frames = np.full((2, 3, 400, 300), 128, np.uint8)
    boxes = np.array([[[20, 100, 60, 140], [200, 300, 240, 340]], [[150, 100, 190, 140], [20, 20, 60, 60]]])
    picture = draw_pairs(frames, boxes.astype(np.float32), np.array([0.4, 0.8], np.float32))
    left, right = picture[:, :300], picture[:, -300:]
    assert picture.shape[0] == 400 and picture.shape[1] % 2 == 0 and picture.shape[1] > 600
    for number, rank in ((1, 0), (0, 1)):  # the better pair has the first colour
        for half, (x1, _, _, y2) in ((left, boxes[number, 0]), (right, boxes[number, 1])):
            rows, columns = np.nonzero(is_colour(half, rank))
            assert abs(columns.min() - x1) <= 4 and abs(rows.max() - y2) <= 4
    monkeypatch.setattr(track_overlay, "_SHOWN", 1)
    alone = draw_pairs(frames, boxes.astype(np.float32), np.array([0.4, 0.8], np.float32))
    assert not is_colour(alone, 1).any()


def test_the_file_holds_the_pictures_and_appears_whole(tmp_path):
    pictures = [np.full((48, 64, 3), 40 + 20 * n, np.uint8) for n in range(6)]
    write_mp4(tmp_path / "deep" / "a.mp4", iter(pictures), 29.97)
    with open_video(tmp_path / "deep" / "a.mp4") as video:
        assert video.meta.num_frames == 6 and video.meta.fps == pytest.approx(29.97, abs=0.01)
        written = video.frames(range(6))
    assert np.abs(written.mean(axis=(1, 2, 3)) - [40 + 20 * n for n in range(6)]).max() < 4

    def fail():
        yield pictures[0]
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write_mp4(tmp_path / "b.mp4", fail(), 25.0)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    with pytest.raises(DataError, match="cannot write"):
        write_mp4(tmp_path / "deep" / "a.mp4" / "b.mp4", iter(pictures), 25.0)


def test_a_video_with_times(tmp_path):
    images = [np.full((32, 32, 3), 9 * n, np.uint8) for n in range(6)]
    times = [5.0, 5.04, 5.08, 7.0, 7.016, 7.5]
    write_mp4(tmp_path / "a.mp4", images, 25.0, times)
    with open_video(tmp_path / "a.mp4") as video:
        np.testing.assert_allclose(video.times, np.array(times) - 5, atol=1e-4)
