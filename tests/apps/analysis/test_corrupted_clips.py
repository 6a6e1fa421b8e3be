"""Corruptions of time: which frames each of them shows; options of the encoder; and which corruptions apply."""

import numpy as np
import pytest

from vidssl.apps.analysis.corrupted_clips import TIME_CORRUPTIONS, bit_rate_options, choose_corruptions
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import ClipSettings

META = VideoMeta(60, 25.0, 32, 32)
SETTINGS = ClipSettings(frames=8, sampling_rate=3)
CLIP = SETTINGS.clip(META, 10, SETTINGS.span(META))  # 10, 13, …, 31


def shown(name, severity, seed=0, clip=CLIP, settings=SETTINGS):
    kind = TIME_CORRUPTIONS[name]
    return kind.apply(settings, META, clip, kind.amounts[severity - 1], *([generator(seed)] if kind.draws else []))


@pytest.mark.parametrize("name", TIME_CORRUPTIONS)
@pytest.mark.parametrize("severity", [1, 3, 5])
def test_every_corruption_shows_frames_of_the_video(name, severity):
    for seed in range(20):
        actual = shown(name, severity, seed)
        assert len(actual.indices) == 8 and actual.indices.dtype == np.int64
        assert 0 <= actual.first <= actual.indices.min() and actual.indices.max() <= actual.last < 60
        assert name == "drop" or (actual.indices != CLIP.indices).any()  # the first may lose later frames only
        assert np.array_equal(actual.indices, shown(name, severity, seed).indices)
    for length in (2, 3):
        settings = ClipSettings(frames=length, sampling_rate=3)
        clip = settings.clip(META, 10, settings.span(META))
        assert len(shown(name, severity, clip=clip, settings=settings).indices) == length


@pytest.mark.parametrize(("severity", "frozen"), list(enumerate((1, 3, 4, 6, 7), start=1)))  # of 7, to the nearest
def test_freeze_repeats_the_frame_before(severity, frozen):
    places = set()
    for seed in range(20):
        actual = shown("freeze", severity, seed).indices
        expected = CLIP.indices.copy()
        repeated = [n for n in range(1, 8) if actual[n] == actual[n - 1]]
        for n in repeated:
            expected[n] = expected[n - 1]
        np.testing.assert_array_equal(actual, expected)
        assert len(repeated) == frozen
        places.add(tuple(repeated))
    assert len(places) > 1 or frozen == 7


def test_drop_counts_the_stride_in_the_frames_that_are_left():
    lost = []
    for seed in range(40):
        actual, drawn = shown("drop", 3, seed).indices, generator(seed).random(49)
        left = [10] + [frame for frame, number in zip(range(11, 60), drawn, strict=True) if number >= 0.5]
        assert actual.tolist() == [left[min(3 * n, len(left) - 1)] for n in range(8)]
        lost.append(1 - len(left) / 50)
    assert np.mean(lost) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("severity", "displaced"), list(enumerate((2, 3, 5, 6, 8), start=1)))
def test_shuffle_displaces_a_fraction(severity, displaced):
    for seed in range(20):
        actual = shown("shuffle", severity, seed).indices
        assert sorted(actual) == CLIP.indices.tolist() and (actual != CLIP.indices).sum() == displaced


@pytest.mark.parametrize(("severity", "length"), list(enumerate((2, 3, 5, 6, 8), start=1)))
def test_reverse_turns_one_stretch(severity, length):
    starts = set()
    for seed in range(20):
        actual, own = shown("reverse", severity, seed).indices.tolist(), CLIP.indices.tolist()
        fitting = [n for n in range(9 - length) if own[:n] + own[n : n + length][::-1] + own[n + length :] == actual]
        assert len(fitting) == 1
        starts.add(fitting[0])
    assert len(starts) == min(len(starts), 9 - length) and (len(starts) > 1 or length == 8)


@pytest.mark.parametrize(("severity", "parts"), list(enumerate((2, 3, 4, 6, 8), start=1)))
def test_jumble_displaces_every_part(severity, parts):
    pieces = [piece.tolist() for piece in np.array_split(CLIP.indices, parts)]
    for seed in range(20):
        left = shown("jumble", severity, seed).indices.tolist()
        order = []
        while left:
            (n,) = (n for n, piece in enumerate(pieces) if left[: len(piece)] == piece)
            order.append(n)
            left = left[len(pieces[n]) :]
        assert sorted(order) == list(range(parts)) and all(n != place for place, n in enumerate(order))


@pytest.mark.parametrize(("severity", "factor"), list(enumerate((0.8, 0.6, 0.4, 0.2, 0.1), start=1)))
def test_rate_is_slower_about_the_centre(severity, factor):
    found = shown("rate", severity)
    span = round(22 * factor)
    assert found.last - found.first + 1 == span and abs((found.first + found.last) / 2 - 20.5) <= 0.5
    assert (found.indices[0], found.indices[-1]) == (found.first, found.last) and (np.diff(found.indices) >= 0).all()


def test_what_does_not_apply_is_left_out():
    names, left_out = choose_corruptions(None, 1, 31)
    assert {*left_out} == {*TIME_CORRUPTIONS, "global_shuffle", "local_shuffle"} and not {*names} & {*left_out}
    assert choose_corruptions(["rain", "fog"], 8, 32) == (("fog", "rain"), {})
    with pytest.raises(ConfigError, match=r"no corruption 'freze' \(did you mean 'freeze'\?\)"):
        choose_corruptions(["freze"], 8, 32)
    with pytest.raises(ConfigError, match=r"no corruption is left to measure .*freeze: a clip of one frame"):
        choose_corruptions(["freeze"], 1, 32)


@pytest.mark.parametrize(("height", "width", "rate"), [(48, 48, 64_000), (256, 340, 64_000), (512, 680, 256_000)])
def test_bit_rates_grow_with_the_frame(height, width, rate):
    assert {*bit_rate_options(VideoMeta(10, 25.0, height, width), 64).values()} == {str(rate)}
