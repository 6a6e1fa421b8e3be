"""Presentation times: which files are regular, and the conversions between seconds and frames."""

import itertools
from fractions import Fraction

import av
import numpy as np
import pytest

from vidssl.apps.check import check
from vidssl.apps.check.file_defects import check_video
from vidssl.apps.shrink import shrink
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta
from vidssl.data.write_lists import write_lists
from vidssl.video import packet_index as index
from vidssl.video.packet_index import frame_times, sorted_times
from vidssl.video.reader import MAX_PIXELS, open_video

# 40 frames at 25 fps, 20 at 8 and 40 at 62.5, as of a phone: they begin at 0, 1.6 and 4.1 s.
MILLISECONDS = [*range(0, 1600, 40), *range(1600, 4100, 125), *range(4100, 4740, 16)]
TIMES = np.array(MILLISECONDS) / 1000


def random_meta(rng, count=60):
    """A video whose frames last from a millisecond to ten seconds, many of them equally long."""
    steps = rng.choice([1, 16, 33, 40, 125, 1000, 10_000], count, p=[0.05, 0.2, 0.2, 0.3, 0.15, 0.07, 0.03])
    edges = np.concatenate([[0], np.cumsum(steps)]) / 1000
    return VideoMeta(count, count / edges[-1], 32, 32, None, edges[:-1], edges[-1])


# Files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [0, 70])  # B-frames are there from the start, or are noticed in decoding
def test_counted_files_keep_their_times(tmp_path, write_variable, numbered, remux, monkeypatch, late):
    """Timestamps in the order of decoding are the right times of wrong frames."""

    def in_the_order_of_decoding(packets):
        for packet, time in zip(packets, sorted(packet.pts for packet in packets), strict=True):
            packet.pts = packet.dts = time
            yield packet

    if late:
        monkeypatch.setattr(index, "first_doubt", lambda times, types: None)
    index._cache.clear()
    source = write_variable(tmp_path / "a.mp4", numbered(100), MILLISECONDS, Fraction(1, 1000), b_frames=2)
    path = remux(source, tmp_path / "b.mkv", in_the_order_of_decoding)
    for _ in range(2):
        with open_video(path) as video:
            assert video.meta.frames_between(1.6, 4.1) == (40, 60)
            np.testing.assert_allclose(video.times, TIMES, atol=1e-3)
            video.frames(range(100))
            assert video.out_of_order or video._decoder._packets.frame_of is None
    index._cache.clear()


@pytest.mark.parametrize(("codec", "pixels"), [("huffyuv", "yuv422p"), ("mjpeg", "yuvj420p")])
def test_gaps_of_an_avi(tmp_path, write_video, numbered, codec, pixels):
    """AVI counts frames that were dropped."""
    ticks = [*range(10), *range(30, 50)]
    options = {"strict": "unofficial"}
    path = write_video(tmp_path / "a.avi", numbered(30), codec=codec, options=options, ticks=ticks, pixels=pixels)
    with open_video(path) as video:
        assert video.meta.num_frames == 30 and video.meta.frame_at(1.2) == 10
        assert video.times[10] == pytest.approx(1.2) and video.meta.frame_at(0.36) == 9


@pytest.mark.parametrize("last", [2**53, 2**62, 2**63 - 1])
def test_times_of_years_are_damage(last):
    assert frame_times(np.array([0, 40, 80, last]), 0.001, 25.0) == (25.0, None)
    assert frame_times(np.array([-(2**63), 40, 80, last]), 0.001, 25.0) == (25.0, None)


def test_copies_of_files_with_hidden_frames_keep_their_times(tmp_path, write_video, numbered, remux):
    """VP8 decodes frames that it does not show: their packets are not among those of the copy."""

    def some_hidden(packets):
        for number, packet in enumerate(packets):
            content = bytearray(bytes(packet))
            if number % 10 == 5:
                content[0] &= ~0x10  # show_frame is 0
            hidden = av.Packet(bytes(content))
            hidden.pts, hidden.dts, hidden.time_base = packet.pts, packet.dts, packet.time_base
            hidden.is_keyframe = packet.is_keyframe
            yield hidden

    ticks = np.cumsum([1] * 20 + [5] * 10 + [2] * 10)
    options = {"lag-in-frames": "0", "error-resilient": "1"}
    source = write_video(tmp_path / "a.webm", numbered(40), 50, "libvpx", options=options, ticks=ticks)
    (tmp_path / "files").mkdir()
    path = remux(source, tmp_path / "files/b.mkv", some_hidden)
    write_lists(tmp_path / "lists", path.parent, {"all": [("b.mkv", 0)]}, ())
    shrink(tmp_path / "lists/all.csv", out=tmp_path / "small", short_side=32, quality=12)
    with open_video(path) as video, open_video(tmp_path / "small/b.mkv") as copy:
        assert video.times is not None and copy.meta.num_frames == video.meta.num_frames == 36
        np.testing.assert_allclose(copy.times, video.times, atol=1e-4)


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_times_of_a_file(tmp_path, write_variable, numbered, number_of, suffix, b_frames):
    path = write_variable(tmp_path / f"a.{suffix}", numbered(100), MILLISECONDS, Fraction(1, 1000), b_frames)
    with open_video(path) as video:
        np.testing.assert_allclose(video.times, TIMES, atol=1e-9)
        assert video.times.dtype == np.float64 and video.meta.duration == pytest.approx(4.74)
        first, stop = video.meta.frames_between(1.6, 4.1)
        assert number_of(video.frames(range(first, stop))) == list(range(40, 60))
        assert [video.meta.frame_at(s) for s in (0, 1.6, 1.7, 1.71, 4.1, 4.74, 99)] == [0, 40, 40, 41, 60, 99, 99]


def test_the_start_of_a_file_is_at_zero(tmp_path, write_variable, numbered):
    path = write_variable(tmp_path / "a.mkv", numbered(100), [5000 + n for n in MILLISECONDS], Fraction(1, 1000))
    with open_video(path) as video:
        np.testing.assert_allclose(video.times, TIMES, atol=1e-9)


@pytest.mark.parametrize(
    ("suffix", "fps"),
    [
        ("mp4", Fraction(24000, 1001)),
        ("mkv", Fraction(30000, 1001)),
        ("mkv", 240),
        ("ts", 50),
        ("flv", Fraction(60000, 1001)),
        ("avi", 25),
        ("mpg", 25),
    ],
)
def test_regular_files_store_no_times(tmp_path, write_video, numbered, suffix, fps):
    """Matroska rounds to milliseconds, transport streams to 1 / 90000 s."""
    codec = {"avi": "mpeg4", "flv": "flv", "mpg": "mpeg2video"}.get(suffix, "libx264")
    path = write_video(tmp_path / f"a.{suffix}", numbered(250), fps, codec, b_frames=2 * (codec == "libx264"))
    with open_video(path) as video:
        assert video.meta.times is None and video.meta.end is None
        np.testing.assert_allclose(video.times, np.arange(250) / float(fps), atol=float(0.25 / fps))


@pytest.mark.parametrize("dropped", [1, 50, 98])
@pytest.mark.parametrize("header", [25.0, 24.75])
def test_a_single_dropped_frame_is_not_regular(dropped, header):
    pts = np.delete(np.arange(100) * 512, dropped)
    rate = frame_times(pts, 1 / 12800, header)
    np.testing.assert_allclose(rate.times, pts / 12800)
    assert rate.fps == pytest.approx(98 / (99 / 25))
    meta = VideoMeta(99, rate.fps, 32, 32, None, rate.times)
    assert meta.end == pytest.approx(4.04 if dropped == 98 else 4.0)  # the last frame lasts as long as the one before


def test_the_measured_rate_where_the_header_is_off():
    """The header's rate if it holds to the end of the file; a small error adds up over a long file."""
    pts = np.round(np.arange(9000) * 1001 / 30).astype(np.int64)
    assert frame_times(pts, 0.001, 30000 / 1001) == (30000 / 1001, None)
    assert frame_times(pts[:100], 0.001, 29.9) == (29.9, None)
    rate = frame_times(pts, 0.001, 29.9)
    assert rate.fps == pytest.approx(30000 / 1001, rel=2e-6) and rate.times is None
    assert frame_times(pts[:1], 0.001, 7.0) == (7.0, None)


@pytest.mark.parametrize(("to", "suffix"), [("video", "mkv"), ("video", "mp4"), ("frames", "mkv")])
@pytest.mark.parametrize("late", [0, 30])
def test_copies_have_the_times_of_the_original(tmp_path, write_variable, numbered, number_of, to, suffix, late):
    """Also where the header's rate fits, or the last frame is long."""
    ticks, name = [*MILLISECONDS[:-1], MILLISECONDS[-1] + 100 * late], f"a.{suffix}"
    write_variable(tmp_path / "v" / name, numbered(100), ticks, Fraction(1, 1000), b_frames=2)
    write_lists(tmp_path / "lists", tmp_path / "v", {"all": [(name, 0)]}, ())
    shrink(tmp_path / "lists/all.csv", out=tmp_path / "out", to=to, short_side=16, workers=1)
    with open_video(tmp_path / "v" / name) as video, open_video(tmp_path / "out" / name) as copy:
        assert number_of(copy.frames(range(100))) == list(range(100))
        np.testing.assert_allclose(copy.times, video.times, atol=1e-9)
        assert copy.meta.fps == pytest.approx(video.meta.fps) and copy.meta.end == pytest.approx(video.meta.end)
        assert copy.meta.frames_between(1.6, 4.1) == (40, 60)


# Damaged timestamps ------------------------------------------------------------------------------------------

REGULAR = [*range(0, 4000, 40)]


def stamped(stamps):
    """Give the packets of a file without B-frames other times of presentation, in milliseconds."""

    def change(packets):
        for number, (packet, stamp) in enumerate(zip(packets, stamps, strict=True)):
            packet.time_base, packet.duration = Fraction(1, 1000), 40
            packet.pts, packet.dts = stamp, number - 10_000
            yield packet

    return change


@pytest.mark.parametrize("right", [REGULAR, MILLISECONDS], ids=["regular", "variable"])
@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts"])
@pytest.mark.parametrize(("wrong", "repeated"), [(0, 1), (50, 49), (99, 98)], ids=lambda value: str(value))
def test_one_repeated_timestamp(tmp_path, write_variable, numbered, number_of, remux, right, suffix, wrong, repeated):
    """It changes nothing but the time of its frame, by no more than the frame beside it lasts."""
    source = write_variable(tmp_path / "a.mp4", numbered(100), right, Fraction(1, 1000))
    stamps = right.copy()
    stamps[wrong] = right[repeated]
    path = remux(source, tmp_path / f"b.{suffix}", stamped(stamps))
    with open_video(path) as video:
        assert number_of(video.frames(range(100))) == list(range(100))
        expected = np.array(right) / 1000
        assert video.meta.fps == pytest.approx(99 / expected[-1], rel=0.02)
        if right is REGULAR:
            assert video.meta.times is None
        else:
            off = np.abs(video.times - expected)
            assert (off < 1e-3).sum() >= 98 and off.max() <= 0.126 / 2 + 1e-3
        assert video.meta.duration == pytest.approx(4 if right is REGULAR else 4.74, abs=0.03)
    index._cache.clear()
    faults = dict(check_video(path, 1.0, MAX_PIXELS, lambda: None)[1])
    if suffix != "ts":
        assert faults["repeated timestamps"].startswith("1 of 100 frames ")


def test_timestamps_that_are_missing_or_repeated():
    """By hand: what is known stays, what is not lies between."""
    for stamps, expected in [
        ([0, 40, None, 120, 160], [0, 40, 80, 120, 160]),
        ([None, None, 80, 120, 160], [-80, -40, 0, 40, 80]),
        ([0, 40, 80, None, None], [0, 40, 80, 120, 160]),
        ([0, 40, 40, 120, 160], [0, 40, 80, 120, 160]),
        ([0, 0, 80, 120, 160], [0, 40, 80, 120, 160]),
        ([40, 40, 80, 120, 160], [-40, 0, 40, 80, 120]),
        ([0, 40, 80, 120, 120], [0, 40, 80, 120, 160]),
        ([0, 40, 80, 160, 160], [0, 40, 80, 120, 160]),
        ([0, 40, 40, 120, 120, 160], [0, 40, 80, 100, 120, 160]),
        ([-80, -40, 0, 40], [0, 40, 80, 120]),
        ([0, 120, 40, 80, 160], [0, 40, 80, 120, 160]),  # in the order of decoding
        ([None, 7, None], []),
        ([None, None], []),
        ([5, 5, 5], []),
        ([], []),
    ]:
        np.testing.assert_allclose(sorted_times(stamps, restarts=False), expected, atol=0.05, err_msg=str(stamps))
    joined = [*range(0, 4000, 40), *range(0, 4000, 40)]
    np.testing.assert_allclose(sorted_times(joined, restarts=True), np.arange(200) * 40)


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize(("suffix", "codec"), [("ts", "libx264"), ("mkv", "libx264"), ("avi", "mpeg4")])
def test_a_hole_is_time(tmp_path, write_video, numbered, number_of, suffix, codec, b_frames):
    """Frames that were lost, as in broadcasts: those after them keep their time."""
    ticks = [n if n < 20 else n + 150 for n in range(60)]
    path = write_video(tmp_path / f"a.{suffix}", numbered(60), codec=codec, gop=10, b_frames=b_frames, ticks=ticks)
    with open_video(path) as video:
        slack = 0.041 * b_frames if suffix == "avi" else 1e-3  # which stores times of decoding only
        far = [n for n in range(60) if abs(n - 20) > 3]  # from the hole
        np.testing.assert_allclose(video.times[far], np.array(ticks)[far] / 25, atol=slack)
        assert number_of(video.frames([19, 20])) == [19, 20]
        if suffix != "avi":
            first, stop = video.meta.frames_between(6.8, 7.6)
            assert (first, stop) == (20, 40)
    (tmp_path / "list.csv").write_text(f"path\n{path.name}\n")
    report = check(tmp_path / "list.csv", out=tmp_path / "out", workers=1, progress=False)
    assert report.complete and report.variable[path.name] > 1 and "variable frame rate" in str(report)


# Conversions -------------------------------------------------------------------------------------------------


def belongs(meta, frame, start, end):
    """Whether a span shows half of a frame, or half a frame of the average rate, in tenths of microseconds."""
    begin, stop, start, end = (round(1e7 * s) for s in (meta.time_of(frame), meta.time_of(frame + 1), start, end))
    half = min((stop - begin) / 2, 0.5e7 / meta.fps)
    return stop - start > half and end - begin >= half


def test_a_span_has_the_frames_that_it_shows():
    """By a loop over all frames."""
    rng = generator(0)
    for _ in range(300):
        meta = random_meta(rng)
        start, end = np.sort(rng.uniform(0, meta.duration, 2))
        shown = [n for n in range(meta.num_frames) if belongs(meta, n, start, end)]
        first, stop = meta.frames_between(start, end)
        assert list(range(first, stop)) == (shown or [first]) and 0 <= first < stop <= meta.num_frames
        assert meta.time_of(first) < end + 1 / meta.fps and meta.time_of(stop) > start


def test_seconds_of_frames_in_microseconds_mean_these_frames():
    rng = generator(1)
    for _ in range(200):
        meta = random_meta(rng)
        first, stop = sorted(rng.choice(meta.num_frames + 1, 2, replace=False).tolist())
        assert meta.frames_between(round(meta.time_of(first), 6), round(meta.time_of(stop), 6)) == (first, stop)
        part = meta.part(first, stop)
        assert part.duration == pytest.approx(meta.time_of(stop) - meta.time_of(first))
        for frame in range(part.num_frames):
            assert part.frame_at(part.time_of(frame)) == frame == meta.frame_at(meta.time_of(first + frame)) - first


def test_spans_that_follow_one_another_leave_no_frame_out():
    rng = generator(2)
    for _ in range(200):
        meta = random_meta(rng)
        cuts = [0, *np.round(np.sort(rng.uniform(0, meta.duration, 12)), 6), meta.duration]
        covered = {n for start, end in itertools.pairwise(cuts) for n in range(*meta.frames_between(start, end))}
        assert covered == set(range(meta.num_frames))
