"""Chunks: where they start, and that the list that is written means exactly these frames."""

import itertools

import cv2
import numpy as np
import pytest

from vidssl.apps.prepare.other_projects import prepare_chunks
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import chunk_starts
from vidssl.data.dataset import resolve_span
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists
from vidssl.video.reader import open_video


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 7])
def test_chunks_are_as_far_apart_as_can_be(chunks):
    """The smallest distance is the largest that any placement has, by a loop over all of them."""
    for num_frames in range(1, 24):
        starts = chunk_starts(num_frames, chunks, 6)
        room = max(num_frames - 6, 0)
        count = min(chunks, room + 1)
        assert len(starts) == len(set(starts)) == count and starts == sorted(starts)
        assert starts[0] == 0 and (count == 1 or starts[-1] == room)
        if count > 1:
            distances = np.diff(starts)
            assert distances.min() == room // (count - 1) and distances.max() - distances.min() <= 1
    if chunks == 3:
        best = max(min(b - a for a, b in itertools.pairwise(placed)) for placed in itertools.combinations(range(15), 3))
        assert np.diff(chunk_starts(20, 3, 6)).min() == best


def test_the_four_chunks_of_the_paper():
    assert chunk_starts(450, 4, 60) == [0, 130, 260, 390]
    assert chunk_starts(59, 4, 60) == chunk_starts(60, 4, 60) == [0]


def test_seconds_mean_the_frames(tmp_path, monkeypatch):
    """For odd rates too: what is written is read back as these frames, by the function that the data set asks."""
    rates = (30000 / 1001, 24000 / 1001, 12.5, 7.3, 29.999, 1000 / 33, 240.0, 59.94005994)
    metas = [VideoMeta(count, fps, 48, 64) for fps in rates for count in (61, 200_000)]
    for case, whole in enumerate(metas):

        class Opened:
            meta = whole

            def __enter__(self):
                return self

            def __exit__(self, *_):
                pass

        monkeypatch.setattr("vidssl.apps.prepare.other_projects.open_video", lambda *_, opened=Opened, **__: opened())
        out = tmp_path / str(case)
        write_lists(out / "in", tmp_path, {"train": [("a.mp4", -1)]}, ())
        prepare_chunks(out / "in" / "train.csv", out / "out", chunks=4, frames=60)
        actual = [resolve_span(whole, record) for record in read_list(out / "out" / "train.csv").records]
        assert [first for first, _ in actual] == chunk_starts(whole.num_frames, 4, 60)
        assert [part.num_frames for _, part in actual] == [60] * len(actual)


@pytest.fixture
def videos(tmp_path, write_video, numbered):
    """A list of three videos of 100, 24 and 12 frames and a folder of 40 images, with labels."""
    for name, count in (("long", 100), ("middle", 24), ("short", 12)):
        write_video(tmp_path / f"videos/{name}.mp4", numbered(count), fps=24 if name == "long" else 25)
    folder = tmp_path / "videos" / "images"
    folder.mkdir()
    for n, image in enumerate(numbered(40)):
        cv2.imwrite(str(folder / f"{n}.png"), image)
    rows = [("long.mp4", 0), ("middle.mp4", 1), ("short.mp4", 0), ("images", 1, None, None, 29.97)]
    write_lists(tmp_path / "lists", tmp_path / "videos", {"train": rows}, ["no", "yes"])
    return tmp_path / "lists" / "train.csv"


def spans(path):
    """(name, label, first frame, last frame) of each row, read as the data set reads it."""
    collected = []
    listed = read_list(path)
    for name, record in zip(listed.names, listed.records, strict=True):
        with open_video(record.path, fps=record.fps) as video:
            first, part = resolve_span(video.meta, record)
        collected.append((name, record.label, first, first + part.num_frames - 1))
    return collected


def test_a_list_of_chunks(videos, tmp_path, number_of):
    made = prepare_chunks(videos, tmp_path / "out", chunks=3, frames=20)
    expected = [
        *(("long.mp4", 0, first, first + 19) for first in (0, 40, 80)),
        *(("middle.mp4", 1, first, first + 19) for first in (0, 2, 4)),
        ("short.mp4", 0, 0, 11),
        *(("images", 1, first, first + 19) for first in (0, 10, 20)),
    ]
    assert spans(tmp_path / "out" / "train.csv") == expected
    written = read_list(tmp_path / "out" / "train.csv")
    assert written.classes == ("no", "yes") and written.root == tmp_path / "videos"
    assert [record.fps for record in written.records] == [None] * 7 + [29.97] * 3
    record = written.records[4]
    with open_video(record.path) as video:
        first, part = resolve_span(video.meta, record)
        assert number_of(video.frames(range(first, first + part.num_frames))) == list(range(2, 22))
    assert made.splitlines() == ["4 videos, 10 chunks", "1 videos are shorter than a chunk: 'short.mp4'"]


def test_chunks_of_chunks_and_short_ones_dropped(videos, tmp_path):
    prepare_chunks(videos, tmp_path / "out", chunks=3, frames=20)
    made = prepare_chunks(tmp_path / "out/train.csv", tmp_path / "again", chunks=2, frames=19, short="drop")
    expected = [
        (name, label, first + n, first + n + 18)
        for name, label, first, last in spans(tmp_path / "out" / "train.csv")
        if last - first == 19
        for n in (0, 1)
    ]
    assert spans(tmp_path / "again" / "train.csv") == expected
    assert "1 videos are shorter than a chunk: 'short.mp4'" in made
    with pytest.raises(DataError, match=r"no video of .* has 200 frames"):
        prepare_chunks(videos, tmp_path / "none", frames=200, short="drop")
    assert not (tmp_path / "none").exists()


def test_errors(videos, tmp_path):
    with pytest.raises(ConfigError, match="0 chunks"):
        prepare_chunks(videos, tmp_path / "out", chunks=0)
    with pytest.raises(DataError, match=r"train\.csv is an input, and an output could replace it"):
        prepare_chunks(videos, videos.parent)
    (tmp_path / "videos" / "middle.mp4").write_bytes(b"no video")
    with pytest.raises(DataError, match=r"middle\.mp4"):
        prepare_chunks(videos, tmp_path / "out")
    assert not (tmp_path / "out").exists()
