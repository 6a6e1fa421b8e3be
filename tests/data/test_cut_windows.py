"""Windows of long videos: where they lie, in frames; what is read of the files; windows of spans."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta, VideoRecord
from vidssl.data.cut_windows import TimeWindows, cut_into_windows
from vidssl.data.dataset import resolve_span
from vidssl.data.video_list import Records, VideoList, read_list
from vidssl.video import decode, reader
from vidssl.video.reader import DecodeSettings

VARYING = np.cumsum(np.arange(100) % 3 + 1) / 50 - 0.02
RATES = (10.0, 24000 / 1001, 25.0, 30000 / 1001, 59.94, 240.0)


@pytest.mark.parametrize(
    ("frames", "fps", "window", "stride", "found"),
    [
        (100, 25, 1, 1, [(0, 25), (25, 50), (50, 75), (75, 100)]),
        (99, 25, 1, 1, [(0, 25), (25, 50), (50, 75), (74, 99)]),  # the last one is moved back to end with the video
        (101, 25, 1, 1, [(0, 25), (25, 50), (50, 75), (75, 100), (76, 101)]),
        (60, 25, 1, 0.5, [(0, 25), (12, 37), (25, 50), (35, 60)]),  # 12.5 is rounded to the even number, as everywhere
        (100, 10, 1, 2, [(0, 10), (20, 30), (40, 50), (60, 70), (80, 90)]),  # 10 are left: as many as in between
        (101, 10, 1, 2, [(0, 10), (20, 30), (40, 50), (60, 70), (80, 90), (91, 101)]),
        (25, 25, 1, 0.2, [(0, 25)]),
        (24, 25, 1, 0.2, [(0, 24)]),  # shorter than a window: whole
        (1, 25, 1, 1, [(0, 1)]),
        (3, 25, 0.001, 1 / 25, [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_windows_of_a_video(frames, fps, window, stride, found):
    assert TimeWindows(window, stride).frames(VideoMeta(frames, fps, 32, 32)) == found


@pytest.mark.parametrize("fps", RATES)
def test_windows_have_one_length_keep_their_distance_and_leave_nothing_out(fps):
    rng = generator(int(fps))
    for _ in range(100):
        count = int(rng.integers(1, 5000))
        windows = TimeWindows(float(rng.uniform(0.1, 5)), float(rng.uniform(0.11, 5)))
        cut = windows.frames(VideoMeta(count, fps, 32, 32))
        length, starts = round(windows.window * fps), [first for first, _ in cut]
        assert {stop - first for first, stop in cut} == {min(length, count)}
        assert starts[0] == 0 and starts == sorted({*starts}) and cut[-1][1] <= count
        assert starts[:-1] == [round(n * windows.stride * fps) for n in range(len(starts) - 1)]  # no drift
        covered = np.zeros(count, bool)
        for first, stop in cut:
            covered[first:stop] = True
        if windows.stride < windows.window:
            assert covered.all()
        else:  # no gap is longer than those that the stride leaves
            assert (~covered[-(round(windows.stride * fps) - length + 2) :]).sum() <= windows.stride * fps - length + 1


def cut(record, meta, windows, **options):
    reading = SimpleNamespace(open=lambda record: nullcontext(SimpleNamespace(meta=meta)))
    return cut_into_windows(VideoList("x.csv", Records("/d", [record]), ()), windows, reading, **options).records


@pytest.mark.parametrize("fps", RATES)
def test_seconds_of_hours_mean_the_same_frames(fps):
    meta = VideoMeta(int(5 * 3600 * fps), fps, 32, 32)
    windows = TimeWindows(2.56, 1.28 * 7)
    rows = cut(VideoRecord("long.mp4", 3, fps=None), meta, windows)
    expected = windows.frames(meta)
    assert len(rows) == len(expected) > 1900
    for row, (first, stop) in zip(rows, expected, strict=True):
        offset, part = resolve_span(meta, row)
        assert (offset, offset + part.num_frames) == (first, stop) and row.label == 3


def test_windows_lie_within_the_span_and_start_with_it():
    meta = VideoMeta(1000, 25.0, 32, 32)
    rows = cut(VideoRecord("a.mp4", start=10.02, end=15.1), meta, TimeWindows(2.0, 1.5))  # frames 250-377
    assert [(round(row.start * 25), round(row.end * 25)) for row in rows] == [
        (250, 300),
        (288, 338),
        (325, 375),
        (328, 378),
    ]
    (row,) = cut(VideoRecord("a.mp4", start=39.0, end=40.5), meta, TimeWindows(2.0, 1.5))
    assert (row.start, row.end) == (39.0, 40.0)  # to the end of the file, as spans are


@pytest.fixture
def listed(tmp_path, write_video, numbered):
    for name, count in (("a", 60), ("b", 20)):
        write_video(tmp_path / f"{name}.mp4", numbered(count))
    (tmp_path / "broken.mp4").write_bytes(b"no video")

    def make(*names):
        (tmp_path / "list.csv").write_text(
            "\n".join(["path,label", *(f"{name}.mp4,{n}" for n, name in enumerate(names))])
        )
        return read_list(tmp_path / "list.csv")

    return make


@pytest.mark.parametrize("workers", [0, 2])
def test_files_are_opened_once_and_nothing_is_decoded(listed, monkeypatch, workers):
    def decoded(*_):
        raise AssertionError("decoded")

    for name in ("fetch", "iter_frames"):
        monkeypatch.setattr(decode.PyAV, name, decoded)
    videos = listed("a", "b")
    actual = cut_into_windows(videos, TimeWindows(1.0, 0.6), DecodeSettings(), workers=workers)
    rows = [(record.path[-5], record.label, record.start, record.end) for record in actual.records]
    assert rows == [("a", 0, 0, 1), ("a", 0, 0.6, 1.6), ("a", 0, 1.2, 2.2), ("a", 0, 1.4, 2.4), ("b", 1, 0, 0.8)]
    assert actual.names[0] == "a.mp4" and actual.root == videos.root and actual.fingerprint != videos.fingerprint

    opened = []
    real = reader.open_container
    monkeypatch.setattr(reader, "open_container", lambda *arguments: (opened.append(arguments[0]), real(*arguments))[1])
    spans = VideoList(
        videos.path, Records(videos.root, [VideoRecord("a.mp4", 0, n / 5, n / 5 + 0.8) for n in range(8)]), ()
    )
    assert len(cut_into_windows(spans, TimeWindows(0.4, 0.4), DecodeSettings()).records) == 16
    assert len(opened) == 1


def test_how_many_windows_there_are_is_said_before_they_are_encoded(listed, caplog):
    caplog.set_level("INFO", "vidssl")
    cut_into_windows(listed("a", "b"), TimeWindows(1.0, 0.6), DecodeSettings())
    cut_into_windows(listed("b"), TimeWindows(1.0, 0.6), DecodeSettings())
    assert caplog.messages == ["5 windows of 2 videos", "1 window of 1 video"]


def test_files_that_cannot_be_opened(listed):
    videos = listed("a", "broken", "b")
    with pytest.raises(DataError, match=r"broken\.mp4"):
        cut_into_windows(videos, TimeWindows(1.0, 1.0), DecodeSettings())
    actual = cut_into_windows(videos, TimeWindows(1.0, 1.0), DecodeSettings(), keep_missing=True)
    assert [name[0] for name in actual.names] == ["a", "a", "a", "b", "b"]
    assert [(r.start, r.end) for r in actual.records][3] == (None, None)  # reported where it is decoded
    for bad in ((0, 1), (1, -1), (float("nan"), 1), (1, float("inf"))):
        with pytest.raises(ConfigError, match="is not above 0"):
            TimeWindows(*bad)


@pytest.mark.parametrize(
    ("fps", "window", "stride", "times"),
    [(25.0, 1.0, 0.03, None), (25.0, 0.03, 0.03, None), (1 / 60, 2.56, 2.56, None), (25.0, 1.0, 0.01, VARYING)],
)
def test_a_stride_below_a_frame_is_an_error_also_where_missing_files_are_kept(fps, window, stride, times):
    """It says nothing about the file: the row was kept, and so the whole video was one window."""
    meta = VideoMeta(100, fps, 100, 100, times=times)
    with pytest.raises(DataError, match=r"a\.mp4: a stride of .* s is less than a frame of .* s: lengthen"):
        cut(VideoRecord("a.mp4"), meta, TimeWindows(window, stride), keep_missing=True)
