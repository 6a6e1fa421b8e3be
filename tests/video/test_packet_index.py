"""The cache of packet indices: in memory for a process, and in a folder for all processes."""

import mmap
from fractions import Fraction

import numpy as np
import pytest

from vidssl.video import packet_index as index
from vidssl.video import reader
from vidssl.video.reader import open_video


@pytest.fixture
def passes(monkeypatch):
    """Paths of the files whose packets were read, with an empty cache in memory."""
    monkeypatch.setattr(index, "_cache", type(index._cache)())
    monkeypatch.setattr(index, "_warned", mmap.mmap(-1, 1), raising=False)
    read = []
    original = reader.read_packets

    def spy(container, path, *arguments):
        read.append(path.name)
        return original(container, path, *arguments)

    monkeypatch.setattr(reader, "read_packets", spy)
    return read


def clear_cache():
    index._cache.clear()


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("avi", "mpeg4"), ("mpg", "mpeg2video")])
def test_packets_are_read_once(tmp_path, write_video, numbered, number_of, passes, suffix, codec):
    path = write_video(tmp_path / f"a.{suffix}", numbered(30), codec=codec, b_frames=2)
    cache = tmp_path / "cache"
    for _ in range(3):
        with open_video(path, cache=cache) as opened:
            assert number_of(opened.frames([4, 29])) == [4, 29]
    assert passes == [path.name]
    clear_cache()
    with open_video(path, cache=cache) as opened:  # as another process would
        assert opened.meta.num_frames == 30 and number_of(opened.frames([4, 29])) == [4, 29]
    assert passes == [path.name]
    write_video(path, numbered(12), codec=codec)  # a changed file is read anew
    clear_cache()
    with open_video(path, cache=cache) as opened:
        assert opened.meta.num_frames == 12
    assert passes == [path.name] * 2


def test_nothing_is_written_without_a_folder(tmp_path, write_video, numbered, passes):
    path = write_video(tmp_path / "a.mp4", numbered(5))
    before = sorted(tmp_path.rglob("*"))
    open_video(path).close()
    assert sorted(tmp_path.rglob("*")) == before and passes == ["a.mp4"]


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda b: b"", lambda b: b"half", lambda b: bytes(300), lambda b: b[: len(b) // 2], lambda b: b[:-1]),
        *(lambda b, n=n: b[:n] + bytes([b[n] ^ 4]) + b[n + 1 :] for n in (0, 300, -1)),
    ],
)
def test_a_damaged_cache_is_rewritten(tmp_path, write_video, numbered, number_of, passes, damage):
    path, cache = write_video(tmp_path / "a.mp4", numbered(9)), tmp_path / "cache"
    open_video(path, cache=cache).close()
    (file,) = cache.rglob("*.npz")
    file.write_bytes(damage(file.read_bytes()))
    clear_cache()
    with open_video(path, cache=cache) as opened:
        assert number_of(opened.frames([8])) == [8]
    assert passes == ["a.mp4"] * 2
    with np.load(next(cache.rglob("*.npz"))) as saved:
        assert saved["meta"][0] == 9
    assert len(list(cache.rglob("*"))) == 2  # the file and its folder: nothing is left behind


def test_times_are_cached_and_other_formats_are_not_read(tmp_path, write_variable, numbered, passes, monkeypatch):
    ticks = [0, 40, 80, 800, 840, 880]
    path, cache = write_variable(tmp_path / "a.mkv", numbered(6), ticks, Fraction(1, 1000)), tmp_path / "cache"
    for _ in range(2):
        clear_cache()
        with open_video(path, cache=cache) as opened:
            np.testing.assert_allclose(opened.meta.times, np.array(ticks) / 1000)
            assert opened.meta.duration == pytest.approx(0.92)
    assert passes == ["a.mkv"]
    monkeypatch.setattr(index, "_CACHE_FORMAT", index._CACHE_FORMAT - 1)
    clear_cache()
    open_video(path, cache=cache).close()
    assert passes == ["a.mkv"] * 2 and len(list(cache.rglob("*.npz"))) == 2


def test_an_unwritable_cache_logs_one_warning(tmp_path, write_video, numbered, number_of, passes, caplog):
    (tmp_path / "file").write_text("not a folder")
    for name in "abc":
        with open_video(write_video(tmp_path / f"{name}.mp4", numbered(5)), cache=tmp_path / "file") as opened:
            assert number_of(opened.frames([4])) == [4]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"data.cache {tmp_path / 'file'}" in caplog.text and "Not a directory" in caplog.text
    assert passes == ["a.mp4", "b.mp4", "c.mp4"]


def test_the_cache_in_memory_is_bounded(tmp_path, write_video, numbered, passes, monkeypatch):
    monkeypatch.setattr(index, "_CACHE_SIZE", 3)
    paths = [write_video(tmp_path / f"{n}.mp4", numbered(3)) for n in range(5)]
    for path in (*paths, paths[4], paths[0]):
        open_video(path).close()
    assert passes == ["0.mp4", "1.mp4", "2.mp4", "3.mp4", "4.mp4", "0.mp4"]
    assert len(index._cache) == 3
