"""Files that are cut, replaced or removed between opening and reading: one broken video, whatever reads it."""

import os
import shutil

import numpy as np
import pytest

from vidssl.base.errors import DecodeError
from vidssl.base.keyed_generators import generator
from vidssl.data.clip_samplers import Uniform
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import Loader
from vidssl.data.read_input import read_input
from vidssl.transforms import RECIPES
from vidssl.video import reader
from vidssl.video.reader import open_video

KINDS = [("mp4", "libx264", 2), ("mkv", "libx264", 2), ("ts", "libx264", 2), ("avi", "mpeg4", 2), ("flv", "flv1", 0)]


def cut(path, _):
    os.truncate(path, path.stat().st_size // 2)


def removed(path, _):
    path.unlink()


def a_folder_now(path, _):
    path.unlink()
    path.mkdir()


def emptied(path, _):
    os.truncate(path, 0)


def another_video(path, other):
    os.replace(shutil.copy(other, path.with_suffix(".new")), path)


def overwritten(path, other):
    path.write_bytes(other.read_bytes())


def zeros_at_its_time(path, _):
    status = path.stat()
    content = path.read_bytes()
    path.write_bytes(content[:200] + bytes(len(content) - 400) + content[-200:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES = [cut, removed, a_folder_now, emptied, another_video, overwritten, zeros_at_its_time]


@pytest.fixture
def files(tmp_path, write_video, numbered):
    """A video, and another one, of each kind."""
    noise = generator(0).integers(0, 256, (40, 32, 64, 3), np.uint8)  # several blocks of the disk

    def make(suffix, codec, b_frames):
        path = write_video(tmp_path / f"a.{suffix}", noise, codec=codec, b_frames=b_frames)
        return path, write_video(tmp_path / f"other/b.{suffix}", numbered(50), codec=codec, b_frames=b_frames)

    return make


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("suffix", "codec", "b_frames"), KINDS)
def test_a_file_that_changes_while_it_is_open(files, suffix, codec, b_frames, change):
    """The frames that were asked for, or an error that names it."""
    path, other = files(suffix, codec, b_frames)
    with open_video(path) as video:
        right = np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)
    for again in (lambda v: v.frames([39]), lambda v: v.frames([20, 3]), lambda v: list(v.iter_frames())):
        shutil.copy(path, path.with_suffix(".whole"))
        with open_video(path) as video:
            video.frames([0])
            change(path, other)
            try:
                actual = again(video)
            except DecodeError as error:
                assert str(path) in str(error) and "\n" not in str(error)
            else:
                actual = np.stack(actual).transpose(0, 3, 1, 2) if isinstance(actual, list) else actual
                assert any(np.array_equal(actual, right[n]) for n in ([39], [20, 3], range(40)))
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        os.replace(path.with_suffix(".whole"), path)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", [cut, emptied, overwritten, zeros_at_its_time])
def test_in_a_loader_it_is_one_broken_video(tmp_path, files, write_video, numbered, monkeypatch, change, workers):
    path, other = files("mp4", "libx264", 2)
    os.replace(other, tmp_path / "other.mp4.txt")
    for name in ("b", "c"):
        write_video(tmp_path / f"{name}.mp4", numbered(20))
    videos = read_input(tmp_path)
    original = reader.open_video

    def opened(file, *arguments, **options):
        actual = original(file, *arguments, **options)
        if str(file) == str(path) and path.is_file():
            change(path, tmp_path / "other.mp4.txt")
        return actual

    monkeypatch.setattr(reader, "open_video", opened)
    sampler = Uniform(Uniform.Config(frames=4, seconds=1.5, clips=1))
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=32))
    dataset = ClipDataset(videos, sampler, [recipe], skip=True, replace=1)
    (batch,) = Loader(dataset, [[(0, 0), (0, 1), (0, 2)]], workers)
    (replaced,) = batch.replaced
    assert "a.mp4" in str(replaced) and len(batch.views[0]) == 3
