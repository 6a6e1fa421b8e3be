"""What is remembered of a file: once a process, and with a folder once for all."""

import numpy as np
import pytest

from vidssl.data import packets, video
from vidssl.data.video import open_video
from vidssl.errors import ConfigError


@pytest.fixture
def passes(monkeypatch):
    """Paths of the files whose packets were read, in a process that remembers nothing."""
    monkeypatch.setattr(packets, "_remembered", type(packets._remembered)())
    read = []
    original = video.read_packets

    def spy(container, path, *arguments):
        read.append(path.name)
        return original(container, path, *arguments)

    monkeypatch.setattr(video, "read_packets", spy)
    return read


def forget():
    packets._remembered.clear()


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libx264"), ("avi", "mpeg4"), ("mpg", "mpeg2video")])
def test_packets_are_read_once(tmp_path, write_video, numbered, number_of, passes, suffix, codec):
    path = write_video(tmp_path / f"a.{suffix}", numbered(30), codec=codec, b_frames=2)
    cache = tmp_path / "cache"
    for _ in range(3):
        with open_video(path, cache=cache) as opened:
            assert number_of(opened.frames([4, 29])) == [4, 29]
    assert passes == [path.name]
    forget()
    with open_video(path, cache=cache) as opened:  # as another process would
        assert opened.meta.num_frames == 30 and number_of(opened.frames([4, 29])) == [4, 29]
    assert passes == [path.name]
    write_video(path, numbered(12), codec=codec)  # a changed file is read anew
    forget()
    with open_video(path, cache=cache) as opened:
        assert opened.meta.num_frames == 12
    assert passes == [path.name] * 2


def test_nothing_is_written_without_a_folder(tmp_path, write_video, numbered, passes):
    path = write_video(tmp_path / "a.mp4", numbered(5))
    before = sorted(tmp_path.rglob("*"))
    open_video(path).close()
    assert sorted(tmp_path.rglob("*")) == before and passes == ["a.mp4"]


@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b"half", lambda b: bytes(300), lambda b: b[: len(b) // 2]]
)
def test_a_damaged_cache_is_made_again(tmp_path, write_video, numbered, number_of, passes, damage):
    path, cache = write_video(tmp_path / "a.mp4", numbered(9)), tmp_path / "cache"
    open_video(path, cache=cache).close()
    (file,) = cache.rglob("*.npz")
    file.write_bytes(damage(file.read_bytes()))
    forget()
    with open_video(path, cache=cache) as opened:
        assert number_of(opened.frames([8])) == [8]
    assert passes == ["a.mp4"] * 2
    with np.load(next(cache.rglob("*.npz"))) as saved:
        assert saved["meta"][0] == 9
    assert len(list(cache.rglob("*"))) == 2  # the file and its folder: nothing is left behind


def test_a_cache_that_cannot_be_written(tmp_path, write_video, numbered, passes):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match=r"cannot write to data\.cache"):
        open_video(write_video(tmp_path / "a.mp4", numbered(5)), cache=tmp_path / "file")


def test_memory_is_bounded(tmp_path, write_video, numbered, passes, monkeypatch):
    monkeypatch.setattr(packets, "_LIMIT", 3)
    paths = [write_video(tmp_path / f"{n}.mp4", numbered(3)) for n in range(5)]
    for path in (*paths, paths[4], paths[0]):
        open_video(path).close()
    assert passes == ["0.mp4", "1.mp4", "2.mp4", "3.mp4", "4.mp4", "0.mp4"]
    assert len(packets._remembered) == 3
