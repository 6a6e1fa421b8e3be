"""Samples of one file share a pass of the decoder: the same samples, few frames in memory, the same errors."""

import os
import weakref
from collections import Counter
from pathlib import Path

import av
import numpy as np
import pytest

from vidssl.base.errors import DataError
from vidssl.base.worker_pool import ItemGuard
from vidssl.data.clip_samplers import Random, Uniform
from vidssl.data.dataset import ClipDataset
from vidssl.data.loader import eval_loader, file_numbers, make_samples
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES, Recipe, View, Window
from vidssl.video import decode
from vidssl.video import packet_index as index
from vidssl.video.reader import DecodeSettings


@pytest.fixture
def listed(tmp_path, write_video, numbered):
    """A list of spans of two videos."""
    write_video(tmp_path / "a.mp4", numbered(200), gop=50, b_frames=2)
    write_video(tmp_path / "b.mp4", numbered(60), gop=50)

    def make(*spans):
        (tmp_path / "list.csv").write_text(
            "\n".join(["path,start,end", *(f"{p}.mp4,{s},{e}" for p, s, e in spans)]) + "\n"
        )
        return read_list(tmp_path / "list.csv")

    return make


def overlapping(count, name="a"):
    return [(name, n * 0.4, n * 0.4 + 1) for n in range(count)]


def dataset_of(videos, **settings):
    recipe = RECIPES["center_crop"](RECIPES["center_crop"].Config(size=24))
    return ClipDataset(videos, Uniform(Uniform.Config(frames=4, sampling_rate=3, clips=2)), [recipe], **settings)


def keys_of(videos):
    return [(0, row) for row in range(len(videos))]


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert (one.index, one.label, one.replaced) == (other.index, other.label, other.replaced)
        assert len(one.views) == len(other.views)
        assert all(np.array_equal(a, b) for a, b in zip(one.views, other.views, strict=True))


def test_samples_are_those_made_one_by_one(listed):
    """Also of random clips with RGB difference, of spans in any order, and of several files."""
    videos = listed(*overlapping(8), *overlapping(3, "b"), ("a", 5, 7.5), ("a", 0.2, 7), ("a", 3, 3.4))
    recipe = RECIPES["weak"](RECIPES["weak"].Config(size=24, difference=0.5))
    sampler = Random(Random.Config(frames=5, seconds=0.6, jitter=0.3, reverse=0.5))
    for dataset in (dataset_of(videos), ClipDataset(videos, sampler, [recipe, recipe], seed=3)):
        keys = [(2, row) for _, row in keys_of(videos)]
        assert_same(make_samples(dataset, keys, ItemGuard()), [dataset[key] for key in keys])


def test_a_file_is_decoded_once_with_few_frames_in_memory(listed, monkeypatch):
    calls, alive, most = [], weakref.WeakSet(), [0]
    real = decode.PyAV.fetch

    class Image(np.ndarray):  # plain arrays cannot be members of a set
        __hash__ = object.__hash__

    def fetch(self, expected):
        calls.append(len(expected))
        for number, image in real(self, expected):
            kept = image.view(Image)
            alive.add(kept)
            most[0] = max(most[0], len(alive))
            yield number, kept
            del kept

    monkeypatch.setattr(decode.PyAV, "fetch", fetch)
    videos = listed(*overlapping(17))
    samples = make_samples(dataset_of(videos), keys_of(videos), ItemGuard())
    assert [sample.index for sample in samples] == list(range(17))
    assert len(calls) == 1 and calls[0] > 60
    # A clip keeps 4 frames, a row 8 at most, and three rows overlap.
    assert 8 <= most[0] <= 3 * 8 + 2


def test_a_damaged_file_costs_the_rows_that_need_the_damage(listed, tmp_path):
    videos = listed(*overlapping(17))
    content = bytearray((tmp_path / "a.mp4").read_bytes())
    start, size = content.index(b"mdat") + 4, len(content) // 2
    content[start + size // 2 : start + size] = bytes(size - size // 2)  # the index at the end stays
    (tmp_path / "a.mp4").write_bytes(content)
    dataset = dataset_of(videos, skip=True)
    samples = make_samples(dataset, keys_of(videos), ItemGuard())
    assert_same(samples, [dataset[key] for key in keys_of(videos)])
    whole = [len(sample.views) for sample in samples]
    assert whole[0] == 2 and 0 in whole
    with pytest.raises(DataError, match=r"a\.mp4"):
        make_samples(dataset_of(videos), keys_of(videos), ItemGuard())


def test_a_row_outside_of_the_file(listed):
    videos = listed(*overlapping(3), ("a", 100, 101), *[("a", 5, 6)])
    dataset = dataset_of(videos, skip=True)
    samples = make_samples(dataset, keys_of(videos), ItemGuard())
    assert [len(sample.views) for sample in samples] == [2, 2, 2, 0, 2] and "lies outside" in samples[3].replaced[0][1]
    assert_same(samples, [dataset[key] for key in keys_of(videos)])


class Deadly(Recipe):
    """A recipe that ends the process at a clip that begins with frame 40."""

    def __init__(self, number_of):
        self.difference, self.number_of = 0.0, number_of

    def __call__(self, frames, generator):
        if self.number_of(frames)[0] == 40:
            os._exit(7)
        return [View(frames[..., :32], Window(0, 0, 32, 32))]


def test_a_row_that_ends_its_process_costs_that_row(listed, number_of):
    videos = listed(*[("a", n * 0.4, n * 0.4 + 0.4) for n in range(8)])
    sampler = Uniform(Uniform.Config(frames=4, sampling_rate=3, clips=1))
    dataset = ClipDataset(videos, sampler, [Deadly(number_of)], skip=True)
    (batch,) = eval_loader(dataset, 8, 1)
    assert batch.index.tolist() == [0, 1, 2, 3, 5, 6, 7]
    assert len(batch.replaced) == 1 and "exit code 7" in batch.replaced[0][1]


def test_settings_that_change_frames_row_by_row_are_left_alone(listed):
    opened = []

    class Changing(DecodeSettings):
        changes_frames = True

        def open(self, record):
            opened.append(record.start)
            return super().open(record)

    videos = listed(*overlapping(4))
    make_samples(dataset_of(videos, reading=Changing()), keys_of(videos), ItemGuard())
    assert len(opened) == 4


def test_processes_get_rows_of_one_file_in_blocks(listed, tmp_path):
    spans = [("a", n / 100, n / 100 + 1) for n in range(150)] + [("b", 0, 1), ("a", 0, 5), ("b", 0, 2), ("b", 1, 2)]
    videos = listed(*spans)
    numbers = file_numbers(videos).tolist()
    assert [length for _, length in sorted(Counter(numbers).items())] == [64, 64, 22, 1, 1, 2]
    assert numbers == sorted(numbers)
    seen = []
    for rank in range(3):
        rows = [row for chunk in eval_loader(dataset_of(videos), 8, 0, rank, 3).batches for _, row in chunk]
        assert {numbers[row] % 3 for row in rows} == {rank} and rows == sorted(rows)
        seen += rows
    assert sorted(seen) == list(range(len(spans)))
    (tmp_path / "whole.csv").write_text("path\na.mp4\nb.mp4\n")
    assert file_numbers(read_list(Path(tmp_path / "whole.csv"))).tolist() == [0, 1]


def test_a_file_whose_timestamps_turn_out_to_be_wrong(tmp_path, listed, monkeypatch):
    """Samples made before the decoder stepped back are made again, with the frames counted."""
    videos = listed(*overlapping(8))
    expected = make_samples(dataset_of(videos), keys_of(videos), ItemGuard())
    right = tmp_path / "right.mp4"
    (tmp_path / "a.mp4").rename(right)
    with av.open(str(right)) as before, av.open(str(tmp_path / "a.mp4"), "w") as container:
        old = before.streams.video[0]
        new = container.add_stream_from_template(old)
        for number, packet in enumerate(packet for packet in before.demux(old) if packet.size):
            packet.pts, packet.stream = round((number + 4) / (25 * packet.time_base)), new
            container.mux(packet)
    monkeypatch.setattr(index, "first_doubt", lambda times, types: None)  # only the decoder shows it
    index._cache.clear()
    assert_same(make_samples(dataset_of(videos), keys_of(videos), ItemGuard()), expected)
