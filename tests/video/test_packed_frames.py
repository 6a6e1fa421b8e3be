"""The index of packed frames: times, checksum and ids of shards; a damaged or foreign one never gives wrong frames."""

import shutil
import tarfile
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from vidssl.apps.shrink import shrink
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.data.write_lists import write_lists
from vidssl.video.packed_frames import read_index, write_index
from vidssl.video.reader import open_video

FILES = Path(__file__).with_name("files")
INDEX = "frame_index.safetensors"
SMALL = {"to": "frames", "short_side": 16, "quality": 90, "workers": 1}
TICKS = [0, 40, 80, 800, 840, 880, 1600, 1640, 1680]


def pack(folder, out, names, **options):
    write_lists(folder / "lists", folder / "videos", {"all": [(name, 0) for name in names]}, ())
    return shrink(folder / "lists/all.csv", out=out, **{**SMALL, **options})


@pytest.fixture
def packed(tmp_path, write_video, write_variable, numbered):
    """Two regular videos and two of a variable rate, packed: their shards have the numbers 0 to 2."""
    for n, name in enumerate(("a", "c")):
        write_video(tmp_path / f"videos/{name}.mp4", numbered(40)[n : n + 9])
    for n, name in enumerate(("b", "d")):
        ticks = [tick * (n + 1) for tick in TICKS]
        write_variable(tmp_path / f"videos/{name}.mp4", numbered(40)[9 + n : 18 + n], ticks, Fraction(1, 1000))
    for names in (["d.mp4"], ["a.mp4", "b.mp4", "d.mp4"], ["c.mp4", "b.mp4"]):
        pack(tmp_path, tmp_path / "packed", names)
    return tmp_path / "packed"


def content(folder):
    """The frames and times of all videos."""
    decoded = {}
    for name in "abcd":
        with open_video(folder / f"{name}.mp4") as video:
            decoded[name] = np.stack([*video.iter_frames()]), video.times.tolist(), video.meta.duration
    return decoded


def equal(one, other):
    return all(np.array_equal(one[name][0], other[name][0]) and one[name][1:] == other[name][1:] for name in "abcd")


def test_times_survive_joins_of_indices(packed, tmp_path):
    for name in "abcd":
        with open_video(tmp_path / f"videos/{name}.mp4") as video, open_video(packed / f"{name}.mp4") as copy:
            assert (copy.meta.times is None) == (video.meta.times is None) == (name in "ac")
            np.testing.assert_allclose(copy.times, video.times, atol=1e-9)
            assert copy.meta.duration == pytest.approx(video.meta.duration) and copy.meta.fps == video.meta.fps
    index = read_index(packed / INDEX)
    assert len(index.times) == 2 * 10 and index.first_times.tolist().count(-1) == 2  # regular ones store none
    videos = {index.name(row): index.video(row) for row in range(len(index))}
    write_index(tmp_path / INDEX, videos, {number: index.shard_id(number) for number in range(3)})
    assert (tmp_path / INDEX).read_bytes() == (packed / INDEX).read_bytes()


def test_ids_are_in_shards_and_depend_on_their_content(packed, tmp_path):
    index, ids = read_index(packed / INDEX), []
    for number in range(3):
        with tarfile.open(packed / f"shard-{number:06d}.tar") as tar:
            ids.append(tar.next().linkname)
            assert tar.next().linkname == ""
        assert ids[-1] == f"vidssl shard {index.shard_id(number).hex()}"
    assert len({*ids}) == 3
    names = ["d.mp4", "a.mp4"]
    for out in ("one", "other"):
        pack(tmp_path, tmp_path / out, names, workers=1 + (out == "other"))
    same = [(tmp_path / out / name).read_bytes() for out in ("one", "other") for name in (INDEX, "shard-000000.tar")]
    assert same[:2] == same[2:]


def test_a_shard_of_another_packing_is_refused(packed, tmp_path):
    """Also where all sizes are equal; in place of it, and as a shard without an id."""
    shutil.copytree(tmp_path / "videos", tmp_path / "more/videos")
    for one, other in ("ac", "ca", "bd", "db"):
        shutil.copyfile(tmp_path / f"videos/{one}.mp4", tmp_path / f"more/videos/{other}.mp4")
    pack(tmp_path / "more", tmp_path / "foreign", ["a.mp4", "b.mp4", "c.mp4", "d.mp4"])
    shard = packed / "shard-000001.tar"
    right = shard.read_bytes()
    nameless = bytearray(right)
    nameless[157:257] = bytes(100)
    for wrong in ((tmp_path / "foreign/shard-000000.tar").read_bytes(), (packed / "shard-000002.tar").read_bytes()):
        shard.write_bytes(wrong)
        with (
            open_video(packed / "a.mp4") as video,
            pytest.raises(ConfigError, match=r"000001\.tar is not the shard that"),
        ):
            video.frames([0])
    shard.write_bytes(nameless)
    with open_video(packed / "a.mp4") as video, pytest.raises(ConfigError, match="of another packing: put the right"):
        video.frames([0])
    # A run that goes on packs the videos of such a shard again.
    assert pack(tmp_path, packed, ["a.mp4", "b.mp4", "c.mp4", "d.mp4"]).made == 2  # a and b
    shard.write_bytes(right)
    assert pack(tmp_path, packed, ["a.mp4", "b.mp4", "c.mp4", "d.mp4"]).made == 0


def test_every_flipped_bit_is_refused_or_harmless(packed):
    """300 bits of the whole file, and all of the header's first bytes."""
    expected, file = content(packed), packed / INDEX
    whole, rng, refused = file.read_bytes(), generator(0), 0
    for place in [*range(0, 64 * 8, 5), *rng.choice(8 * len(whole), 300, replace=False).tolist()]:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        try:
            assert equal(content(packed), expected)
        except ConfigError as error:
            refused += 1
            assert INDEX in str(error) and "\n" not in str(error)
    assert refused > 350


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b[:7],
        lambda b: b[:-1],
        lambda b: b + b"more",
        lambda b: (200_000).to_bytes(8, "little") + b"[" * 200_000,
        lambda b: (2).to_bytes(8, "little") + b"[]",
        lambda b: (19).to_bytes(8, "little") + b'{"__metadata__": 7}',
        lambda b: bytes([255] * 8) + b[8:],
    ],
)
def test_other_files_are_refused_in_one_line(packed, damage):
    (packed / INDEX).write_bytes(damage((packed / INDEX).read_bytes()))
    with pytest.raises(ConfigError, match=r"cannot read .*; make the packed frames again in another folder"):
        open_video(packed / "a.mp4")


def test_files_of_28_november_2026(number_of):
    """Packed frames, and a shrunk copy, as they were written on this day."""
    kinds = [("regular", [*range(6)], None), ("variable", [5, 4, 3, 2, 1, 0], [0, 1, 2, 20, 21, 22])]
    for name, numbers, times in kinds:
        with open_video(FILES / f"packed/{name}.mp4") as video:
            assert number_of(video.frames(range(6))) == numbers
            assert video.meta.times is None if times is None else np.allclose(25 * video.meta.times, times)
    with open_video(FILES / "shrunk_copy.mp4") as video:
        assert number_of(video.frames(range(6))) == [5, 4, 3, 2, 1, 0]
