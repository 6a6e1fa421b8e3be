"""Moved clips: their frames, and the unchanged clip where the video is too short."""

import numpy as np

from vidssl.apps.analysis.invariance import MOVES
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import ClipSettings, Uniform

SETTINGS = ClipSettings(frames=4, sampling_rate=3)  # spans 10 frames


def versions(name, num_frames, settings=SETTINGS, clips=1):
    """The numbers of a clip and those of its versions; None: the clip itself came back."""
    meta = VideoMeta(num_frames, 25.0, 8, 8)
    sampler = Uniform(Uniform.Config(**settings.model_dump(), clips=clips))
    found = []
    for clip in sampler(meta, ()):
        moved = [MOVES[name].apply(settings, meta, clip, amount) for amount in MOVES[name].amounts]
        for other in moved:
            assert other is clip or (other.indices.min() >= 0 and other.indices.max() < num_frames)
        found.append(
            (
                clip.indices.tolist(),
                [None if np.array_equal(m.indices, clip.indices) else m.indices.tolist() for m in moved],
            )
        )
    return found if clips > 1 else found[0]


def test_shift_moves_by_fractions_of_the_span():
    own, moved = versions("shift", 30)
    assert own == [10, 13, 16, 19]
    assert [m[0] - 10 for m in moved] == [-5, -2, 2, 5]  # a quarter of 10 is rounded to the even 2
    assert all(np.diff(m).tolist() == [3, 3, 3] for m in moved)
    assert versions("shift", 14)[1] == [None, [0, 3, 6, 9], [4, 7, 10, 13], None]
    assert versions("shift", 9)[1] == [None] * 4  # shorter than a clip: it is played in a loop


def test_gap_counts_from_the_end_of_the_clip():
    own, moved = versions("gap", 60)
    assert own == [25, 28, 31, 34]
    assert moved == [[39, 42, 45, 48], [44, 47, 50, 53], None, None]  # 34 + 20 + 9 > 59 and 25 - 20 - 9 < 0
    first, last = versions("gap", 60, clips=2)
    assert first[1][3] == [49, 52, 55, 58] and last[1][3] == [1, 4, 7, 10]  # 40 after 9, 40 before 50
    one = ClipSettings(frames=1, sampling_rate=1)
    own, moved = versions("gap", 90, one)
    assert [m[0] - own[0] for m in moved] == [5, 10, 20, 40]


def test_speed_stretches_the_span_about_its_centre():
    own, moved = versions("speed", 40)
    assert own == [15, 18, 21, 24]
    assert [m[-1] - m[0] + 1 for m in moved] == [5, 8, 15, 20]  # 7.5 is rounded to the even 8
    assert all(abs((m[0] + m[-1]) / 2 - 19.5) <= 0.5 for m in moved)
    assert versions("speed", 19)[1][3] is None and versions("speed", 9)[1] == [None] * 4
    seconds = ClipSettings(frames=4, seconds=0.4)
    assert versions("speed", 40, seconds) == versions("speed", 40)
    at_start = versions("speed", 40, clips=2)[0]
    assert at_start[1][3] == [0, 6, 12, 19]  # moved inside


def test_reverse():
    assert versions("reverse", 30) == ([10, 13, 16, 19], [[19, 16, 13, 10]])


def test_moves_that_need_motion():
    assert [name for name, move in MOVES.items() if move.needs_motion] == ["shift", "speed", "reverse"]
    for name in ("shift", "reverse"):
        moved = versions(name, 50, ClipSettings(frames=1, sampling_rate=1))[1]
        assert moved == [None] * len(MOVES[name].amounts)
