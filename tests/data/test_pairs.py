"""Samplers of clips that lie far apart: gaps, bounds, uniform placements, tracks, videos without room."""

import itertools
from collections import Counter

import numpy as np
import pytest

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Tracks, VideoMeta
from vidssl.data.clip_samplers import Pair, Spaced, TrackedPair, pairs_of


def meta(count, tracks=None):
    return VideoMeta(count, 25.0, 48, 64, tracks)


def draw(sampler, video, views, number):
    return sampler(video, [generator(3, number, view) for view in range(views)])


def starts(sampler, video, views, draws):
    """First frames of the clips: (draws, views)."""
    return np.array([[clip.first for clip in draw(sampler, video, views, number)] for number in range(draws)])


def tracks_of(rows):
    """Tracks from (track, frame) pairs, in any order; the boxes do not matter."""
    track, frame = np.array(rows, np.int64).reshape(-1, 2).T
    boxes = np.tile(np.array([1, 2, 30, 40], np.float32), (len(track), 1))
    return Tracks(frame, boxes, np.ones(len(track), np.float32), track)


def chi_square(counts):
    expected = sum(counts) / len(counts)
    return sum((count - expected) ** 2 / expected for count in counts)


# 0.001 of the chi-square distribution of k degrees of freedom lies above: k + 3.3 sqrt(2 k) and some.
def limit(cells):
    k = cells - 1
    return k * (1 - 2 / (9 * k) + 3.09 * np.sqrt(2 / (9 * k))) ** 3  # Wilson and Hilferty


@pytest.mark.parametrize(
    ("views", "frames", "rate", "gap", "count"),
    [(2, 1, 1, 40, 48), (2, 3, 2, 4, 17), (3, 2, 2, 2, 16), (2, 1, 1, 1, 9)],
)
def test_all_placements_and_orders_are_equally_likely(views, frames, rate, gap, count):
    """Those that a loop finds, each in all orders over the views; between clips lie `min_gap` frames or more."""
    span = (frames - 1) * rate + 1
    allowed = [
        placed
        for placed in itertools.permutations(range(count - span + 1), views)
        if all(later - (earlier + span - 1) >= gap for earlier, later in itertools.pairwise(sorted(placed)))
    ]
    sampler = Pair(Pair.Config(frames=frames, sampling_rate=rate, min_gap=gap))
    actual = [tuple(row) for row in starts(sampler, meta(count), views, 30 * len(allowed))]
    assert set(actual) == set(allowed)
    counts = Counter(actual)
    assert chi_square([counts[placed] for placed in allowed]) < limit(len(allowed))


def test_the_one_placement_that_there_is():
    """41 frames hold two of them 40 apart in one way; a frame less, in none."""
    sampler = Pair(Pair.Config(frames=1, sampling_rate=1))
    assert sampler.config.min_gap == 40
    actual = starts(sampler, meta(41), 2, 400)
    assert {tuple(row) for row in actual} == {(0, 40), (40, 0)}
    assert abs((actual[:, 0] == 0).mean() - 0.5) < 4 * 0.5 / np.sqrt(400)
    with pytest.raises(DataError) as caught:
        draw(sampler, meta(40), 2, 0)
    assert str(caught.value) == (
        "2 clips of 1 frames, 40 apart, need 41 frames, the video has 40; remove such videos "
        "(vidssl check --min-frames 41), or set no_room to closest"
    )


@pytest.mark.parametrize("views", [2, 3])
@pytest.mark.parametrize("count", [10, 11, 13, 20, 40])
def test_closest_is_as_far_as_the_video_allows(views, count):
    """The smallest distance of two starts is the largest that any placement has."""
    sampler = Pair(Pair.Config(frames=4, sampling_rate=3, min_gap=100, no_room="closest"))
    actual = starts(sampler, meta(count), views, 60)
    best = max(
        min(b - a for a, b in itertools.pairwise(placed))
        for placed in itertools.combinations_with_replacement(range(count - 10 + 1), views)
    )
    ordered = np.sort(actual, axis=1)
    assert (np.diff(ordered, axis=1).min(axis=1) == best).all()
    assert (ordered[:, 0] == 0).all() and (ordered[:, -1] == count - 10).all()
    assert count == 10 or len({tuple(row) for row in actual}) > 1  # the order stays random


def test_closest_with_less_than_a_clip_follows_short_video():
    for short, expected in (("loop", [0, 3, 1, 4]), ("hold", [0, 3, 4, 4])):
        config = Pair.Config(frames=4, sampling_rate=3, no_room="closest", short_video=short)
        clips = draw(Pair(config), meta(5), 2, 0)
        assert [clip.indices.tolist() for clip in clips] == [expected] * 2
    config = Pair.Config(frames=4, sampling_rate=3, no_room="closest", short_video="error")
    with pytest.raises(DataError, match="the clip needs 10 frames"):
        draw(Pair(config), meta(5), 2, 0)


def test_a_pair_needs_two_views():
    for views in (0, 1):
        with pytest.raises(ConfigError, match="needs 2 recipes, got"):
            draw(Pair(Pair.Config(frames=1, sampling_rate=1)), meta(100), views, 0)
    for settings in ({"min_gap": 0}, {"no_room": "loop"}, {"untracked": "pair"}):
        with pytest.raises(ConfigError):
            Pair.Config(frames=1, sampling_rate=1, **settings)


# Tracks --------------------------------------------------------------------------------------------------------


def test_pairs_of_frames_against_loops():
    rng = generator(4)
    for case in range(30):
        rows = list({(int(t), int(f)) for t, f in rng.integers([6, 30], size=(rng.integers(0, 60), 2))})
        rng.shuffle(rows)
        gap, first, last = int(rng.integers(1, 12)), int(rng.integers(0, 6)), int(rng.integers(20, 32))
        expected = sorted(
            {
                (i, j)
                for (a, i), (b, j) in itertools.product(map(tuple, rows), repeat=2)
                if a == b and j - i >= gap and first <= i and j <= last
            }
        )
        actual = pairs_of(tracks_of(rows), gap, first, last)
        assert [tuple(pair) for pair in actual.tolist()] == expected, case


PATHS = [(0, frame) for frame in range(0, 12)] + [(1, frame) for frame in range(6, 20)]  # a row in each frame
ENDS = [(0, 2), (0, 9), (1, 0), (1, 15), (2, 2), (2, 9), (3, 8), (3, 17), (4, 5), (4, 6)]  # two rows a track


@pytest.mark.parametrize("rows", [PATHS, ENDS], ids=["paths", "ends"])
@pytest.mark.parametrize(("frames", "rate"), [(1, 1), (3, 2)])
def test_tracked_pairs_are_equally_likely(rows, frames, rate):
    """Distinct pairs of frames: (2, 9) is no likelier for standing in two tracks. Clips of 5 frames stay inside 20."""
    span, middle = (frames - 1) * rate + 1, frames // 2 * rate
    allowed = set()
    for (a, i), (b, j) in itertools.permutations(rows, 2):
        fits = all(moment - middle >= 0 and moment - middle + span <= 20 for moment in (i, j))
        if a == b and abs(i - j) >= 6 and fits:
            allowed.add((i, j))
    sampler = TrackedPair(TrackedPair.Config(frames=frames, sampling_rate=rate, min_gap=6))
    collected = []
    for number in range(20 * len(allowed)):
        clips = draw(sampler, meta(20, tracks_of(rows)), 2, number)
        for clip in clips:
            assert clip.indices.tolist() == [clip.first + n * rate for n in range(frames)]
            assert clip.first >= 0 and clip.last < 20
        assert [clip.middle_frame for clip in clips] == [clip.indices[frames // 2] for clip in clips]
        collected.append(tuple(clip.middle_frame for clip in clips))
    assert set(collected) == allowed
    counts = Counter(collected)
    assert chi_square([counts[pair] for pair in sorted(allowed)]) < limit(len(allowed))


def test_videos_without_a_tracked_pair():
    config = {"frames": 1, "sampling_rate": 1, "min_gap": 10}
    near = tracks_of([(0, 3), (0, 12), (1, 4), (2, 30)])
    for tracks in (near, tracks_of([])):
        with pytest.raises(DataError, match="no track of the video has two frames 10 apart"):
            draw(TrackedPair(TrackedPair.Config(**config)), meta(60, tracks), 2, 0)
        lenient = TrackedPair(TrackedPair.Config(**config, untracked="pair"))
        plain = Pair(Pair.Config(**config))
        assert np.array_equal(starts(lenient, meta(60, tracks), 2, 20), starts(plain, meta(60), 2, 20))
        with pytest.raises(DataError, match="need 11 frames"):  # and then it is short like any other
            draw(lenient, meta(8, tracks_of([])), 2, 0)


def test_tracked_pairs_need_tracks_and_two_views():
    sampler = TrackedPair(TrackedPair.Config(frames=1, sampling_rate=1, min_gap=2))
    with pytest.raises(ConfigError, match=r"tracks\.folder of vidssl track"):
        draw(sampler, meta(20), 2, 0)
    for views in (1, 3):
        with pytest.raises(ConfigError, match=f"needs 2 recipes in data.views, got {views}"):
            draw(sampler, meta(20, tracks_of(ENDS)), views, 0)


def test_a_video_shorter_than_the_clip_has_no_tracked_pair():
    sampler = TrackedPair(TrackedPair.Config(frames=4, sampling_rate=3, min_gap=1))
    with pytest.raises(DataError, match="no track"):
        draw(sampler, meta(7, tracks_of([(0, 0), (0, 6)])), 2, 0)


@pytest.mark.parametrize(("views", "distance"), [(2, 0), (2, 7), (3, 4)])
def test_spaced_clips_start_exactly_the_distance_apart(views, distance):
    sampler = Spaced(Spaced.Config(frames=3, sampling_rate=2, distance=distance))
    count = 5 + (views - 1) * distance + 3  # a clip spans 5 frames: four first starts
    actual = starts(sampler, meta(count), views, 800)
    assert (np.diff(np.sort(actual, axis=1), axis=1) == distance).all()
    firsts = np.bincount(actual.min(axis=1), minlength=4).tolist()
    assert len(firsts) == 4 and chi_square(firsts) < limit(4)
    if distance:
        ranked = actual.argsort(axis=1)
        orders = [int((ranked == order).all(axis=1).sum()) for order in itertools.permutations(range(views))]
        assert sum(orders) == 800 and chi_square(orders) < limit(len(orders))
    needed = count - 3
    assert (starts(sampler, meta(needed), views, 5).min(axis=1) == 0).all()
    with pytest.raises(DataError, match=f"{views} clips of 5 frames, {distance} apart, need {needed} frames"):
        draw(sampler, meta(needed - 1), views, 0)
