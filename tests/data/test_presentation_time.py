"""A second is a second: lists, samplers, windows, chunks and key frames of a video whose frame rate varies."""

import csv
import itertools
from collections import Counter
from contextlib import nullcontext
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from vidssl.apps.analysis.corrupted_clips import TIME_CORRUPTIONS
from vidssl.apps.analysis.invariance import MOVES
from vidssl.apps.check import check
from vidssl.apps.detection.images_and_clips import clip_frames
from vidssl.apps.prepare.other_projects import prepare_chunks
from vidssl.apps.show import ShownSample, ShownView, video_card
from vidssl.apps.shrink import shrink
from vidssl.base.errors import DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import Tracks, VideoMeta, VideoRecord
from vidssl.data.clip_samplers import SAMPLERS, ClipSettings, Pair, Random, Segments, Spaced, TrackedPair, Uniform
from vidssl.data.cut_windows import TimeWindows, cut_into_windows
from vidssl.data.dataset import ClipDataset, resolve_span
from vidssl.data.track_files import check_video_names
from vidssl.data.video_list import Records, VideoList, read_list
from vidssl.data.write_lists import write_lists
from vidssl.transforms import RECIPES
from vidssl.video.reader import DecodeSettings, open_video

# 40 frames at 25 fps, 20 at 8 and 40 at 62.5: they begin at 0, 1.6 and 4.1 s.
MILLISECONDS = [*range(0, 1600, 40), *range(1600, 4100, 125), *range(4100, 4740, 16)]
TIMES = np.array(MILLISECONDS) / 1000
META = VideoMeta(100, 99 / TIMES[-1], 32, 64, None, TIMES, 4.74)
MIDDLE = list(range(40, 60))
EXACT = RECIPES["weak"].Config(size=32, area=(1, 1), ratio=(2, 2), flip_probability=0)


def random_meta(rng, count=80):
    steps = rng.choice([8, 16, 33, 40, 125, 1000], count, p=[0.1, 0.2, 0.3, 0.2, 0.15, 0.05])
    edges = np.concatenate([[0], np.cumsum(steps)]) / 1000
    return VideoMeta(count, count / edges[-1], 32, 32, None, edges[:-1], edges[-1])


@pytest.fixture(scope="module")
def videos(tmp_path_factory, write_variable, numbered):
    """The folder of a video of these frames, `a.mp4`, and its shrunk and packed copies."""
    folder = tmp_path_factory.mktemp("variable")
    write_variable(folder / "files/a.mp4", numbered(100), MILLISECONDS, Fraction(1, 1000), b_frames=2)
    write_lists(folder / "lists", folder / "files", {"all": [("a.mp4", 0)]}, ())
    shrink(folder / "lists/all.csv", out=folder / "packed", to="frames", short_side=32, quality=95)
    shrink(folder / "lists/all.csv", out=folder / "shrunk", short_side=32, quality=12)
    return folder


@pytest.fixture
def root(videos):
    return videos / "files"


def write_rows(folder, rows, header=("path", "start", "end")):
    folder.mkdir(exist_ok=True)
    with open(folder / "rows.csv", "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return folder / "rows.csv"


def numbers_of(view):
    """Read the numbers off a view of the fixture `numbered`, of any width."""
    middle = view[:, 0, 16, view.shape[3] // 16 :: view.shape[3] // 8] > 120
    return (middle * (1 << np.arange(8))).sum(axis=1).tolist()


# One span through everything: exactly the frames of its seconds --------------------------------------------------


@pytest.mark.parametrize("kind", ["files", "packed", "shrunk"])
def test_a_row_of_a_list(videos, tmp_path, kind):
    root = videos / kind
    listed = read_list(write_rows(tmp_path, [("a.mp4", 1.6, 4.1)]), root)
    with open_video(root / "a.mp4") as video:
        first, part = resolve_span(video.meta, listed.records[0])
        assert list(range(first, first + part.num_frames)) == MIDDLE and part.duration == pytest.approx(2.5)
        np.testing.assert_allclose(part.times, np.arange(20) / 8, atol=1e-6)
    for name, more in (("random", {}), ("uniform", {"clips": 1}), ("center", {}), ("segments", {})):
        for length in ({"seconds": 2.5}, {"seconds": "whole"}, {"sampling_rate": 1}):
            sampler = SAMPLERS[name](SAMPLERS[name].Config(frames=20, **length, **more))
            assert numbers_of(ClipDataset(listed, sampler, [RECIPES["weak"](EXACT)])[0, 0].views[0]) == MIDDLE


def test_a_window(root):
    listed = VideoList("x.csv", Records(root, [VideoRecord("a.mp4")]), ())
    actual = cut_into_windows(listed, TimeWindows(2.5, 1.6), DecodeSettings())
    assert [(row.start, row.end) for row in actual.records] == [(0, 2.5), (1.6, 4.1), (2.24, 4.74)]
    sampler = Uniform(Uniform.Config(frames=20, seconds=2.5, clips=1))
    dataset = ClipDataset(actual, sampler, [RECIPES["weak"](EXACT)])
    assert numbers_of(dataset[0, 1].views[0]) == MIDDLE
    with open_video(root / "a.mp4") as video:
        assert TimeWindows(2.5, 1.6).frames(video.meta) == [(0, 48), (40, 60), (45, 100)]


def test_a_chunk(root, tmp_path):
    rows = write_rows(tmp_path / "in", [("a.mp4", 1.6, 4.1), ("a.mp4", "", "")])
    prepare_chunks(rows, tmp_path / "out", chunks=5, frames=20, root=root)
    records = read_list(tmp_path / "out/rows.csv").records
    with open_video(root / "a.mp4") as video:
        spans = [resolve_span(video.meta, record) for record in records]
    assert (records[0].start, records[0].end) == (1.6, 4.1)
    chunks = [(first, part.num_frames) for first, part in spans]
    assert chunks == [(first, 20) for first in (40, 0, 20, 60, 80)]  # of the file too; its third is the row itself


def test_a_clip_around_a_key_frame(root):
    with open_video(root / "a.mp4") as video:
        assert clip_frames(video.meta, 2.85, 20, 2.5).tolist() == MIDDLE
        assert clip_frames(video.meta, 4.42, 8, 0.128).tolist() == list(range(76, 84))
        assert clip_frames(video.meta, 99.0, 3, 1.0).tolist() == [99] * 3


# Clips -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.02, 0.3, 1.0, 2.5])
def test_a_clip_lasts_its_seconds(seconds):
    """From the start of its first frame on, with frames that are shown at even times."""
    rng = generator(3)
    for _ in range(50):
        meta = random_meta(rng)
        config = ClipSettings(frames=6, seconds=seconds)
        span = config.span(meta)
        assert config.in_time(meta) and config.length(meta, span) == pytest.approx(seconds)
        count = config.starts(meta, span)
        assert (count == meta.num_frames) or meta.time_of(count) + seconds > meta.duration
        for start in range(count):
            clip = config.clip(meta, start, span)
            begin = meta.time_of(start)
            assert (clip.first, clip.last + 1) == meta.frames_between(begin, begin + seconds)
            assert (clip.first, clip.last + 1) == (start, max(clip.last + 1, start + 1))
            assert clip.indices[0] == start and (np.diff(clip.indices) >= 0).all() and clip.indices[-1] <= clip.last
            kept = np.linspace(begin, max(meta.time_of(clip.last), begin + seconds - 1 / meta.fps, begin), 6)
            off = [
                max(meta.time_of(n) - t, t - meta.time_of(n + 1))
                for n, t in zip(clip.indices.tolist(), kept, strict=True)
            ]
            assert max(off) <= 0.5 / meta.fps + 1e-9 or clip.indices[-1] == clip.last


@pytest.mark.parametrize("frames", [1, 2, 7, 8])
def test_last_and_middle_frames_of_all_clips(frames):
    rng = generator(4)
    for _ in range(20):
        meta, config = random_meta(rng), ClipSettings(frames=frames, seconds=float(rng.uniform(0.05, 3)))
        span = config.span(meta)
        clips = [config.clip(meta, start, span) for start in range(config.starts(meta, span))]
        lasts, middles = config.bounds_in_time(meta, span)
        assert lasts.tolist() == [clip.last for clip in clips]
        assert middles.tolist() == [clip.middle_frame for clip in clips]


def test_frames_stay_frames():
    config = ClipSettings(frames=8, sampling_rate=2)
    assert not config.in_time(META) and config.span(META) == 15 and config.starts(META, 15) == 86
    assert config.clip(META, 50, 15).indices.tolist() == list(range(50, 65, 2))
    by_rate = ClipSettings(frames=8, sampling_rate=4, target_fps=32)  # a second
    assert by_rate.in_time(META) and by_rate.clip(META, 40, by_rate.span(META)).last == 47


def test_starts_are_uniform_in_time():
    sampler, rng = Random(Random.Config(frames=1, seconds=0.5)), generator(5)
    starts = [sampler(META, [rng])[0].first for _ in range(2000)]
    drawn = Counter(np.searchsorted([0, 1.6, 4.1], TIMES[starts], side="right").tolist())
    total = TIMES[70]  # 69 begins at 4.244, less than half a frame after the last half second
    for part, seconds in ((1, 1.6), (2, 2.5), (3, total - 4.1)):
        assert abs(drawn[part] / 2000 - seconds / total) < 0.04
    assert max(starts) == 69
    clips = Uniform(Uniform.Config(frames=2, seconds=0.5, clips=5))(META, [])
    gaps = np.diff([META.time_of(clip.first) for clip in clips])
    assert clips[0].first == 0 and clips[-1].last == 99 and np.ptp(gaps) < 0.15


def test_segments_are_equally_long():
    sampler, rng = Segments(Segments.Config(frames=3, seconds="whole")), generator(6)
    drawn = np.array([sampler(META, [rng])[0].indices for _ in range(500)])
    for column, (start, end) in enumerate([(0, 1.58), (1.58, 3.16), (3.16, 4.74)]):
        assert TIMES[drawn[:, column]].min() > start - 0.13 and TIMES[drawn[:, column]].max() < end + 0.03
    assert len({*drawn[:, 2].tolist()}) > 40


@pytest.mark.parametrize("short", ["loop", "hold", "error"])
def test_videos_that_are_shorter_than_the_clip(short):
    config = ClipSettings(frames=19, seconds=9.48, short_video=short)
    assert config.starts(META, config.span(META)) == 0
    if short == "error":
        with pytest.raises(DataError, match=r"the clip needs 9\.48 s, the video has 4\.74 s; set short_video"):
            config.clip(META, 0, config.span(META))
        return
    clip = config.clip(META, 0, config.span(META))
    times = np.linspace(0, 9.48 - 1 / META.fps, 19)
    times = times % 4.74 if short == "loop" else np.minimum(times, 4.72)
    assert (clip.first, clip.last) == (0, 99) and clip.indices.tolist() == META.frames_at(times).tolist()


def placements(meta, config, views, gap):
    """All starts of clips, ascending, with at least `gap` frames from the last of one to the first of the next."""
    span = config.span(meta)
    lasts = config.bounds_in_time(meta, span)[0]
    for starts in itertools.combinations(range(len(lasts)), views):
        if all(later - lasts[start] >= gap for start, later in itertools.pairwise(starts)):
            yield starts


@pytest.mark.parametrize("views", [2, 3])
def test_pairs_keep_their_gap_in_frames_and_are_equally_likely(views):
    meta = VideoMeta(12, 0.5, 32, 32, None, np.array([0, 1, 2, 3, 4, 8, 12, 16, 17, 18, 19, 23.0]), 24.0)
    config = Pair.Config(frames=2, seconds=2.0, min_gap=2)
    expected = set(placements(meta, config, views, 2))
    rng, sampler = generator(7), Pair(config)
    drawn = [tuple(clip.first for clip in sampler(meta, [rng] * views)) for _ in range(30 * len(expected))]
    counts = Counter(tuple(sorted(starts)) for starts in drawn)
    assert set(counts) == expected and len(expected) > 10
    squares = sum((count - 30) ** 2 / 30 for count in counts.values())
    assert squares < len(expected) + 4 * np.sqrt(2 * len(expected))  # chi-squared
    assert len({tuple(np.argsort(starts)) for starts in drawn}) > 1  # in random order


def test_pairs_without_room():
    with pytest.raises(DataError, match=r"2 clips of 2\.50 s, 40 frames apart, do not fit into the video of 100 fra"):
        Pair(Pair.Config(frames=2, seconds=2.5, min_gap=40))(META, [generator(0)] * 2)
    clips = Pair(Pair.Config(frames=2, seconds=2.5, min_gap=40, no_room="closest"))(META, [generator(0)] * 2)
    assert sorted(clip.first for clip in clips) == [0, 45]


def test_a_distance_in_frames():
    sampler = Spaced(Spaced.Config(frames=2, seconds=0.5, distance=30))
    for seed in range(30):
        one, other = sampler(META, [generator(seed)] * 2)
        assert abs(one.first - other.first) == 30 and max(one.first, other.first) <= 69
    with pytest.raises(DataError, match="need"):
        Spaced(Spaced.Config(frames=2, seconds=2.5, distance=46))(META, [generator(0)] * 2)


def test_tracked_pairs_have_their_middle_frames_on_the_track():
    numbers = np.arange(5, 95, 3)
    boxes = np.tile(np.array([[0, 0, 9, 9]], np.float32), (len(numbers), 1))
    tracks = Tracks(numbers, boxes, np.ones(len(numbers), np.float32), numbers * 0)
    meta = VideoMeta(100, META.fps, 32, 64, tracks, TIMES, 4.74)
    sampler = TrackedPair(TrackedPair.Config(frames=7, seconds=0.4, min_gap=10))
    for seed in range(50):
        clips = sampler(meta, [generator(seed)] * 2)
        assert {clip.middle_frame for clip in clips} < {*numbers.tolist()}
        assert abs(clips[0].middle_frame - clips[1].middle_frame) >= 10


@pytest.mark.parametrize(
    ("name", "amount"), [("shift", 0.5), ("shift", -0.25), ("gap", 5), ("speed", 2.0), ("speed", 0.5)]
)
def test_moves_of_clips_in_time(name, amount):
    config = ClipSettings(frames=4, seconds=0.6)
    for start in (10, 38, 55):
        clip = config.clip(META, start, config.span(META))
        moved = MOVES[name].apply(config, META, clip, amount)
        begin, end = META.time_of(moved.first), META.time_of(moved.last + 1)
        if name == "shift":
            assert begin - META.time_of(start) == pytest.approx(0.6 * amount, abs=0.125)
        elif name == "gap":
            assert moved.first == clip.last + 5 or 4 <= clip.first - moved.last <= 6
        else:
            assert end - begin == pytest.approx(0.6 * amount, abs=0.14)
    faster = TIME_CORRUPTIONS["rate"].apply(config, META, config.clip(META, 60, 13), 0.5)
    assert META.time_of(faster.last + 1) - META.time_of(faster.first) == pytest.approx(0.3, abs=0.04)


# Windows -----------------------------------------------------------------------------------------------------


def cut(record, meta, windows):
    reading = SimpleNamespace(open=lambda record: nullcontext(SimpleNamespace(meta=meta)))
    return cut_into_windows(VideoList("x.csv", Records("/d", [record]), ()), windows, reading).records


def test_windows_cover_every_frame():
    """With a stride of at most the window, at any rate; and each row shows what `frames` says."""
    rng = generator(8)
    for _ in range(400):
        meta = random_meta(rng)
        window = float(rng.uniform(0.25, 3))
        windows = TimeWindows(window, float(rng.choice([window, rng.uniform(0.25, window)])))
        actual = windows.frames(meta)
        assert {n for first, stop in actual for n in range(first, stop)} == {*range(meta.num_frames)}
        spans = [resolve_span(meta, row) for row in cut(VideoRecord("a.mp4"), meta, windows)]
        assert [(first, first + part.num_frames) for first, part in spans] == actual


def test_windows_of_a_span_are_those_of_its_seconds():
    rows = cut(VideoRecord("a.mp4", start=1.6, end=4.1), META, TimeWindows(1.0, 0.5))
    assert [(row.start, row.end) for row in rows] == [(1.6, 2.6), (2.1, 3.1), (2.6, 3.6), (3.1, 4.1)]
    assert [(row.start, row.end) for row in cut(VideoRecord("a.mp4"), META, TimeWindows(9, 1))] == [(0, 4.74)]


# Reports -----------------------------------------------------------------------------------------------------


def test_the_page_of_views_has_the_seconds_of_the_file():
    part, frames = META.part(40, 60), np.zeros((2, 3, 8, 8), np.uint8)
    view = ShownView(frames, 0, np.array([44, 52]), 44, 53, False, None)
    listed = VideoList("x.csv", Records("/d", [VideoRecord("a.mp4", start=1.6, end=4.1)]), ())
    (drawn,) = video_card([ShownSample(0, 0, 0, (), part, 40, (view,), META.time_of(40))], listed)["draws"]
    assert (drawn["start"], drawn["end"]) == (1.6, pytest.approx(4.1))
    (clip,) = drawn["clips"]
    assert (clip["first"], clip["end"]) == (pytest.approx(2.1), pytest.approx(3.35))
    assert clip["frames"] == [pytest.approx(2.1625), pytest.approx(3.1625)]
    assert drawn["views"][0]["notes"][1] == "2.10–3.35 s"


def test_check_has_the_deviation(videos, tmp_path, write_video, numbered):
    write_video(tmp_path / "files/regular.mp4", numbered(20))
    (tmp_path / "files/a.mp4").write_bytes((videos / "files/a.mp4").read_bytes())
    (tmp_path / "files/broken.mp4").write_bytes(b"none")
    rows = write_rows(tmp_path / "in", [("regular.mp4",), ("a.mp4",), ("broken.mp4",)], ("path",))
    checked = check(rows, out=tmp_path / "out", root=tmp_path / "files")
    worst = np.abs(TIMES - np.arange(100) * TIMES[-1] / 99).max()
    assert checked.kept == 2 and [actual.path for actual in checked.findings] == ["broken.mp4"]
    assert f"1 files with a variable frame rate, by up to {worst:.3f} s: a.mp4" in str(checked)
    with open(tmp_path / "out/report.csv", newline="") as file:
        report = {row["path"]: row for row in csv.DictReader(file)}
    assert [*report] == ["broken.mp4", "a.mp4"] and report["broken.mp4"]["deviation"] == ""
    assert report["a.mp4"] == {"path": "a.mp4", "finding": "", "reason": "", "kept": "yes", "deviation": f"{worst:.3f}"}


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ({"start": 0.1, "end": 0.3}, {"start": 0.1001, "end": 0.3}, True),
        ({"start": 0.1, "end": 0.3, "fps": 25}, {"start": 0.1, "end": 0.3, "fps": 5}, True),
        ({"fps": 25}, {"fps": 5}, False),
        ({"end": 0.3}, {"start": 0.0, "end": 0.3, "mask": "m.png"}, False),
        ({"start": 0.1, "end": 0.3}, {"start": 0.2, "end": 0.3}, False),
    ],
)
def test_two_spans_never_share_a_file_of_tracks(one, other, clash):
    records = [VideoRecord("/d/a", **fields) for fields in (one, other)]
    with pytest.raises(DataError, match="two spans of a would have one file") if clash else nullcontext():
        check_video_names(["a", "a"], records)
