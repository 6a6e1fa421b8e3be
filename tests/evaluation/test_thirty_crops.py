"""Where the 30 crops lie, against tables that were worked out by hand."""

import numpy as np
import pytest

from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import Uniform
from vidssl.transforms.crops import uniform_crops

# 8 frames over 2.56 s at 25 fps: 64 native frames, kept are 0 9 18 27 36 45 54 63 of them.
KEPT = [0, 9, 18, 27, 36, 45, 54, 63]
STARTS = {
    # frames of the video: the starts of ten clips
    64: [0] * 10,  # exactly as long as a clip
    73: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],  # 9 frames of room: one each
    100: [0, 4, 8, 12, 16, 20, 24, 28, 32, 36],  # 36 frames of room: four each
    300: [0, 26, 52, 79, 105, 131, 157, 184, 210, 236],  # 236 of room: 26.22 each, rounded
    64 + 900: [0, 100, 200, 300, 400, 500, 600, 700, 800, 900],
}


def clips(frames, count=10, short_video="loop"):
    sampler = Uniform(Uniform.Config(frames=8, seconds=2.56, clips=count, short_video=short_video))
    return sampler(VideoMeta(frames, 25.0, 240, 320), [])


@pytest.mark.parametrize("frames", STARTS)
def test_ten_clips_of_a_video_that_is_long_enough(frames):
    drawn = clips(frames)
    assert [clip.indices.tolist() for clip in drawn] == [[s + kept for kept in KEPT] for s in STARTS[frames]]
    assert drawn[0].indices[0] == 0 and drawn[-1].indices[-1] == frames - 1


def test_ten_clips_of_a_short_video():
    """40 frames: every clip starts at 0; frame 45 of the span is frame 5 played again, or the last one held."""
    looped, held = [0, 9, 18, 27, 36, 5, 14, 23], [0, 9, 18, 27, 36, 39, 39, 39]
    assert [clip.indices.tolist() for clip in clips(40)] == [looped] * 10
    assert [clip.indices.tolist() for clip in clips(40, short_video="hold")] == [held] * 10
    assert [clip.indices.tolist() for clip in clips(1)] == [[0] * 8] * 10


@pytest.mark.parametrize(
    ("count", "starts"), [(1, [118]), (2, [0, 236]), (3, [0, 118, 236]), (5, [0, 59, 118, 177, 236])]
)
def test_any_number_of_clips(count, starts):
    assert [clip.indices[0] for clip in clips(300, count)] == starts


@pytest.mark.parametrize(
    ("height", "width", "lefts", "tops"),
    [
        (256, 340, (0, 42, 84), (0, 0, 0)),  # landscape
        (256, 341, (0, 43, 85), (0, 0, 0)),  # the middle of an odd room is rounded up
        (340, 256, (0, 0, 0), (0, 42, 84)),  # portrait
        (256, 256, (0, 0, 0), (0, 0, 0)),  # square: three times the same
        (256, 768, (0, 256, 512), (0, 0, 0)),  # 3:1 is covered without overlap
    ],
)
def test_three_crops_along_the_longer_side(height, width, lefts, tops):
    """Each pixel tells where it is."""
    y, x = np.mgrid[:height, :width]
    image = np.stack([y // 256, y % 256, x % 256], axis=-1).astype(np.uint8)
    frames = np.broadcast_to(image, (2, height, width, 3)).transpose(0, 3, 1, 2)
    cut = [view.frames for view in uniform_crops(frames, 256)]
    assert len(cut) == 3
    for view, left, top in zip(cut, lefts, tops, strict=True):
        assert view.shape == (2, 3, 256, 256)
        assert int(view[0, 0, 0, 0]) * 256 + int(view[0, 1, 0, 0]) == top
        assert np.array_equal(view, frames[:, :, top : top + 256, left : left + 256])


def test_the_shorter_side_is_scaled_first():
    """A landscape of 240 x 320 becomes 256 x 341: 85 pixels of room."""
    frames = np.broadcast_to(np.arange(320, dtype=np.uint8)[None, None, None, :], (1, 3, 240, 320))
    left, centre, right = (view[0, 0, 100].astype(int) for view, _ in uniform_crops(np.ascontiguousarray(frames), 256))
    for row, offset in ((left, 0), (centre, 43), (right, 85)):
        expected = ((np.arange(256) + offset + 0.5) * 320 / 341 - 0.5).clip(0, 255)
        inside = expected < 250  # the ramp of eight bits starts again at 256
        assert np.abs(row - expected)[inside].max() <= 1.0


@pytest.mark.parametrize(
    ("count", "lefts"),
    [(1, [43]), (2, [0, 85]), (3, [0, 43, 85]), (5, [0, 21, 43, 64, 85]), (6, [0, 17, 34, 51, 68, 85])],
)
def test_any_number_of_crops(count, lefts):
    """85 pixels of room; half a pixel is rounded up."""
    ramp = np.broadcast_to(np.arange(341) % 251, (1, 3, 256, 341)).astype(np.uint8)
    cut = [view.frames for view in uniform_crops(ramp, 256, count)]
    assert [int(view[0, 0, 0, 0]) for view in cut] == lefts
    assert all(view.shape == (1, 3, 256, 256) for view in cut)
