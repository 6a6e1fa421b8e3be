"""Properties of samplers: bounds, spans, even spacing, independence, and what happens to short videos."""

import math

import numpy as np
import pytest

from vidssl.apps.analysis.corrupted_clips import rate
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import SAMPLERS, Center, ClipSettings, Random, Segments, Uniform


def meta(count, fps=25.0):
    return VideoMeta(count, fps, 48, 64)


def draws(sampler, video, count, seed=0):
    """The clips of so many samples of one view each."""
    return [sampler(video, [generator(seed, n)])[0] for n in range(count)]


def spaced(first, span, frames):
    """The reference: frame k of T lies k / (T - 1) of the way from the first to the last, rounded down."""
    steps = max(frames - 1, 1)
    return [first + math.floor(k * (span - 1) / steps) for k in range(frames)]


@pytest.mark.parametrize("frames", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("span", [1, 2, 7, 8, 32, 64, 77])
def test_kept_frames_are_evenly_spaced_and_include_both_ends(frames, span):
    settings = ClipSettings(frames=frames, seconds=1.0)
    clip = settings.clip(meta(200), 11, span)
    assert clip.indices.tolist() == spaced(11, span, frames)
    assert clip.indices.dtype == np.int64
    assert (clip.first, clip.last) == (11, 11 + span - 1)
    if frames > 1:
        assert (clip.indices[0], clip.indices[-1]) == (clip.first, clip.last)
        assert np.ptp(np.diff(clip.indices)) <= 1


@pytest.mark.parametrize(
    ("seconds", "fps", "span"),
    [(2.56, 25, 64), (2.56, 30000 / 1001, 77), (1.28, 25, 32), (0.6, 10, 6), (0.001, 25, 1), (1, 12.5, 12)],
)
def test_span_by_seconds(seconds, fps, span):
    assert ClipSettings(frames=8, seconds=float(seconds)).span(meta(300, fps)) == span
    for clip in draws(Random(Random.Config(frames=8, seconds=float(seconds))), meta(300, fps), 20):
        assert clip.last - clip.first + 1 == span


@pytest.mark.parametrize(("frames", "rate", "span"), [(8, 8, 57), (16, 2, 31), (8, 1, 8), (1, 5, 1)])
def test_span_by_sampling_rate(frames, rate, span):
    settings = ClipSettings(frames=frames, sampling_rate=rate)
    assert settings.span(meta(300)) == settings.span(meta(300, 7.5)) == span
    for clip in draws(Random(Random.Config(frames=frames, sampling_rate=rate)), meta(300), 20):
        assert clip.indices.tolist() == [clip.first + rate * k for k in range(frames)]


# Of the released decoder, for a clip that starts at frame 0: linspace(0, T * rate / target * fps - 1, T), rounded down.
SLOWFAST = [
    (8, 8, 30, 30, [0, 9, 18, 27, 36, 45, 54, 63]),
    (8, 8, 30, 25, [0, 7, 14, 22, 29, 37, 44, 52]),
    (16, 2, 30, 30, [0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 31]),
    (4, 16, 30, 60, [0, 42, 84, 127]),
]


@pytest.mark.parametrize(("frames", "rate", "target", "fps", "indices"), SLOWFAST)
def test_target_fps_gives_the_frames_of_slowfast(frames, rate, target, fps, indices):
    settings = ClipSettings(frames=frames, sampling_rate=rate, target_fps=float(target))
    assert settings.clip(meta(200, float(fps)), 0, settings.span(meta(200, float(fps)))).indices.tolist() == indices
    by_seconds = ClipSettings(frames=frames, seconds=round(frames * rate / target, 4))
    assert by_seconds.clip(meta(200, float(fps)), 0, by_seconds.span(meta(200, float(fps)))).indices.tolist() == indices


def test_random_starts_are_uniform():
    """Chi-square over the 37 starts that there are, 9250 draws: 0.001 of its distribution lies above 68."""
    count, span, starts = 100, 64, 37
    clips = draws(Random(Random.Config(frames=8, seconds=2.56)), meta(count), 250 * starts)
    assert all(clip.last - clip.first + 1 == span for clip in clips)
    counts = np.bincount([clip.first for clip in clips], minlength=starts)
    assert len(counts) == starts  # the last one too, and none beyond
    assert ((counts - 250) ** 2 / 250).sum() < 68


def test_jittered_durations_are_uniform_and_filled():
    sampler = Random(Random.Config(frames=8, seconds=10.0, jitter=0.2))
    clips = draws(sampler, meta(1000), 4000)
    spans = np.array([clip.last - clip.first + 1 for clip in clips])
    assert spans.min() >= 0.8 * 250 and spans.max() <= 1.2 * 250
    counts, _ = np.histogram(spans, bins=10, range=(200, 300))
    assert ((counts - 400) ** 2 / 400).sum() < 28  # chi-square of 9 degrees of freedom, 0.001
    for clip, span in zip(clips[:100], spans, strict=False):
        assert clip.indices.tolist() == spaced(clip.first, span, 8)


@pytest.mark.parametrize("rate", [0.0, 0.2, 1.0])
def test_reverse_is_a_flip_at_its_rate(rate):
    forward = draws(Random(Random.Config(frames=8, seconds=1.0, jitter=0.2)), meta(200), 2000)
    drawn = draws(Random(Random.Config(frames=8, seconds=1.0, jitter=0.2, reverse=rate)), meta(200), 2000)
    reversed_ = 0
    for one, other in zip(forward, drawn, strict=True):
        assert (one.first, one.last) == (other.first, other.last)
        flipped = other.indices[0] > other.indices[-1]
        reversed_ += flipped
        assert np.array_equal(one.indices, other.indices[::-1] if flipped else other.indices)
    assert abs(reversed_ / 2000 - rate) <= 4 * math.sqrt(rate * (1 - rate) / 2000)


@pytest.mark.parametrize("count", [64, 65, 73, 100, 911])
@pytest.mark.parametrize("clips", [1, 2, 3, 10])
def test_uniform_clips_span_the_video(count, clips):
    drawn = Uniform(Uniform.Config(frames=8, seconds=2.56, clips=clips))(meta(count), [])
    assert len(drawn) == clips
    assert all(clip.indices.tolist() == spaced(clip.first, 64, 8) for clip in drawn)
    starts = np.array([clip.first for clip in drawn])
    if clips == 1:
        assert abs(starts[0] - (count - 64) / 2) <= 0.5
    else:
        assert drawn[0].first == 0 and drawn[-1].last == count - 1
        assert np.abs(starts - np.linspace(0, count - 64, clips)).max() <= 0.5


@pytest.mark.parametrize("count", [16, 17, 40, 101])
def test_center(count):
    (clip,) = Center(Center.Config(frames=4, sampling_rate=5))(meta(count), [])
    before, after = clip.first, count - 1 - clip.last
    assert clip.last - clip.first == 15
    assert after - before in (0, 1)


@pytest.mark.parametrize("name", ["random", "uniform", "center"])
@pytest.mark.parametrize("short", ["loop", "hold", "error"])
@pytest.mark.parametrize("count", [1, 2, 15, 16, 17])
def test_7_short_videos_follow_the_policy(name, short, count):
    """The clip spans 16 frames: 16 and 17 are enough, 15 and fewer are not."""
    sampler = SAMPLERS[name](SAMPLERS[name].Config(frames=4, sampling_rate=5, short_video=short))
    views = [generator(3, v) for v in range(2)]
    if count < 16 and short == "error":
        with pytest.raises(DataError, match=rf"needs 16 frames \(0\.64 s\), the video has {count}; set short_video"):
            sampler(meta(count), views)
        return
    for clip in sampler(meta(count), views):
        needed = [clip.first + n for n in (0, 5, 10, 15)]
        if count >= 16:
            assert clip.indices.tolist() == needed and clip.last == clip.first + 15 < count
        else:
            assert (clip.first, clip.last) == (0, count - 1)
            expected = [n % count for n in needed] if short == "loop" else [min(n, count - 1) for n in needed]
            assert clip.indices.tolist() == expected


@pytest.mark.parametrize("config", [Random.Config, Uniform.Config, Center.Config, ClipSettings])
@pytest.mark.parametrize(
    "settings",
    [
        {"frames": 8},
        {"frames": 8, "seconds": 1.0, "sampling_rate": 2},
        {"frames": 0, "seconds": 1.0},
        {"frames": 8, "seconds": 0.0},
        {"frames": 8, "seconds": -1.0},
        {"frames": 8, "sampling_rate": 0},
        {"frames": 8, "target_fps": 30.0},
        {"frames": 8, "seconds": 1.0, "target_fps": 30.0},
        {"frames": 8, "sampling_rate": 2, "target_fps": 0.0},
        {"frames": 8, "seconds": 1.0, "short_video": "pad"},
        {"frames": 8, "seconds": 1.0, "speed": 2},
        {"frames": 8.0, "seconds": 1.0},
    ],
)
def test_settings_that_are_refused(config, settings):
    config(frames=8, seconds=1.0)
    with pytest.raises(ConfigError):
        config(**settings)


@pytest.mark.parametrize("settings", [{"jitter": 1.0}, {"jitter": -0.1}, {"reverse": 1.1}, {"clips": 2}])
def test_settings_of_random_that_are_refused(settings):
    with pytest.raises(ConfigError):
        Random.Config(frames=8, seconds=1.0, **settings)
    with pytest.raises(ConfigError, match="clips"):
        Uniform.Config(frames=8, seconds=1.0, clips=0)


@pytest.mark.parametrize(("count", "frames"), [(100, 8), (37, 8), (8, 8), (5, 8), (1, 4)])
def test_segments_of_the_whole_video_have_one_random_frame_each(count, frames):
    sampler = Segments(Segments.Config(frames=frames, seconds="whole"))
    clips = draws(sampler, meta(count), 400)
    assert all((clip.first, clip.last) == (0, count - 1) for clip in clips)
    for k in range(frames):
        seen = {int(clip.indices[k]) for clip in clips}
        # Segment k is [k, k + 1) · count / frames; every frame that it touches is drawn.
        assert seen == set(range(math.floor(k * count / frames), math.ceil((k + 1) * count / frames)))


def test_segments_of_a_span_start_at_random():
    clips = draws(Segments(Segments.Config(frames=4, seconds=0.8)), meta(60), 200)
    assert {clip.last - clip.first for clip in clips} == {19} and {clip.first for clip in clips} == set(range(41))
    assert all(clip.first + 5 * k <= clip.indices[k] < clip.first + 5 * (k + 1) for clip in clips for k in range(4))


def varying(count, seed=0):
    """A video of a variable rate, 25 frames a second on average."""
    steps = generator(seed, 7).uniform(0.01, 0.07, count)
    times = np.concatenate([[0.0], np.cumsum(steps)])
    return VideoMeta(count, count / times[-1], 48, 64, times=times[:-1], end=float(times[-1]))


LENGTHS = [{"seconds": 0.6}, {"sampling_rate": 4}, {"sampling_rate": 3, "target_fps": 20.0}]


@pytest.mark.parametrize("short", ["loop", "hold", "error"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("video", [meta(60), varying(60)])
def test_a_clip_that_begins_too_late_is_an_error(video, length, short):
    """Only a video that is shorter than the clip is repeated: another sampler's mistake must not train on jump cuts."""
    settings = ClipSettings(frames=4, short_video=short, **length)
    span = settings.span(video)
    last = settings.starts(video, span) - 1
    assert 30 < last < 55
    clips = [settings.clip(video, start, span) for start in range(last + 1)]
    assert all(np.all(np.diff(clip.indices) >= 0) and clip.indices[0] == clip.first for clip in clips)
    for start in (last + 1, 59, 60, 74, -1):
        with pytest.raises(
            ConfigError, match=rf"at frame {start} of a video of 60 frames .*: the last start is {last};"
        ):
            settings.clip(video, start, span)


@pytest.mark.parametrize("length", [*LENGTHS, {"seconds": "whole"}, {"seconds": 0.01}])
@pytest.mark.parametrize("short", ["loop", "hold"])
def test_samplers_of_vidssl_begin_clips_where_they_can(length, short):
    """All of them, and the changes of clips that corruptions and analyses make, in videos of any length and rate."""
    options = {"frames": 4, "short_video": short, **length}
    more = {"random": {"jitter": 0.9}, "pair": {"min_gap": 3, "no_room": "closest"}, "spaced": {"distance": 2}}
    samplers = [
        SAMPLERS[name](SAMPLERS[name].Config(**options, **more.get(name, {})))
        for name in ("random", "segments", "uniform", "center", "pair", "spaced")
    ]
    settings, rng = ClipSettings(**options), generator(0, 8)
    for n in range(60):
        count = int(rng.integers(1, 60))
        video = varying(count, n) if n % 2 else meta(count, float(rng.uniform(5, 60)))
        for sampler in samplers:
            try:
                clips = sampler(video, [generator(n, 0), generator(n, 1)])
            except DataError:  # of `spaced`, where two clips have no room
                continue
            for clip in clips:
                assert clip.indices.min() >= 0 and clip.indices.max() < count
                if settings.starts(video, settings.span(video)):
                    for factor in (0.8, 0.5, 0.1):
                        rate(settings, video, clip, factor)
