"""Packed frames: the images of all videos in tar files, found by name, frame number and offset."""

import io
import json
import os
import resource
import tarfile
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from vidssl.apps.shrink import Original, shrink
from vidssl.apps.shrink.pack_frames import EncodedVideo, ShardWriter, encode_frames
from vidssl.base.errors import ConfigError, DataError, DecodeError
from vidssl.base.keyed_generators import generator
from vidssl.base.output_folder import MARK
from vidssl.base.types import Tracks, VideoMeta
from vidssl.data.clip_samplers import Random, TrackedPair
from vidssl.data.dataset import ClipDataset
from vidssl.data.list_identity import identify
from vidssl.data.loader import Loader, StepSampler
from vidssl.data.track_files import tracks_file, write_tracks
from vidssl.data.video_list import read_list
from vidssl.transforms import RECIPES
from vidssl.video.packed_frames import read_index
from vidssl.video.reader import open_video, state_of_video


@pytest.fixture
def packed(tmp_path, write_list):
    """Pack files below `videos` into `packed`."""

    def run(names, name="all.csv", **options):
        listed = write_list(tmp_path / "lists", [[file, 0] for file in names], name=name)
        settings = {"to": "frames", "short_side": 16, "quality": 95, "workers": 1, **options}
        return shrink(listed, out=tmp_path / "packed", root=tmp_path / "videos", **settings)

    return run


def shards(folder):
    return sorted(path.name for path in folder.glob("shard-*.tar"))


def by_tarfile(folder):
    """Read all shards with Python's own tarfile: name to the images and the description of each video."""
    collected = {}
    for shard in shards(folder):
        with tarfile.open(folder / shard) as tar:
            content = {member.name: tar.extractfile(member).read() for member in tar}
        for name, text in content.items():
            if name.endswith(".json"):
                about, key = json.loads(text), name.removesuffix(".json")
                frames = [content[each] for each in sorted(content) if each.startswith(f"{key}.0")]
                collected[about["name"]] = frames, about
    return collected


def pillow(image, size, kind, quality):
    """Encode and decode an image (H, W, 3) with Pillow."""
    file = io.BytesIO()
    options = {"subsampling": "4:2:0"} if kind == "jpeg" else {"method": 4}
    Image.fromarray(image).resize(size, Image.Resampling.BOX).save(file, kind, quality=quality, **options)
    return np.asarray(Image.open(file).convert("RGB"))


def psnr(one, other):
    return 10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2))


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_frames_equal_those_of_pillow(tmp_path, packed, real, kind):
    """The frame is the image in the tar as Pillow decodes it, and as near to the source as Pillow's own encoding."""
    names = ["fight/fi001.mp4", "noFight/nofi001.mp4"]
    (tmp_path / "videos").symlink_to(real / "surveillance")
    assert not packed(names, short_side=120, quality=90, format=kind).left_out
    tar = by_tarfile(tmp_path / "packed")
    for name in names:
        with open_video(tmp_path / "videos" / name) as source, open_video(tmp_path / "packed" / name) as copy:
            assert copy.meta.num_frames == source.meta.num_frames and copy.meta.fps == source.meta.fps
            height, width = copy.meta.height, copy.meta.width
            assert min(height, width) == 120
            expected = generator(0).permutation(source.meta.num_frames)[:12]
            frames, originals = copy.frames(expected), source.frames(expected)
            assert frames.shape == (12, 3, height, width) and frames.dtype == np.uint8
            for number, frame, original in zip(expected, frames, originals, strict=True):
                frame, original = frame.transpose(1, 2, 0), original.transpose(1, 2, 0)
                # The stored image, found by tarfile and decoded by Pillow, is the frame: but for rounding in the IDCT.
                stored = np.asarray(Image.open(io.BytesIO(tar[name][0][number])).convert("RGB"))
                assert np.abs(stored.astype(int) - frame).mean() < 0.1
                other = pillow(original, (width, height), kind, 90)
                exact = cv2.resize(original, (width, height), interpolation=cv2.INTER_AREA)
                assert psnr(exact, frame) > 33 and abs(psnr(exact, frame) - psnr(exact, other)) < 1.5
                assert psnr(exact, frame[..., ::-1]) < 33  # channels in the other order are another image


def test_small_images_are_kept_exactly_in_size(tmp_path, packed, videos):
    """Sets of images, as CIFAR: a video of one frame each; 100 bytes of the index for an image or fewer."""
    rng, names = generator(1), [f"class{n % 3}/{n:05d}.png" for n in range(200)]
    for n, name in enumerate(names):
        (videos / name).parent.mkdir(exist_ok=True)
        smooth = cv2.resize(rng.integers(0, 255, (4, 4, 3), np.uint8), (33, 31 + n % 2), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(videos / name), smooth[..., ::-1])
    result = packed(names, short_side=64, quality=95, format="webp", workers=2)
    assert (result.made, result.kept, result.left_out) == (200, 0, {})
    assert (tmp_path / "packed/frame_index.safetensors").stat().st_size < 1500 + 100 * 200
    for n, record in enumerate(read_list(result.list).records):
        with open_video(record.path) as copy, open_video(videos / names[n]) as source:
            assert copy.meta == source.meta and (copy.meta.height, copy.meta.fps) == (31 + n % 2, 1)
            assert psnr(copy.frames([0]), source.frames([0])) > 35


def test_webdataset_reads_the_shards(tmp_path, packed, videos, write_video, numbered, number_of):
    webdataset = pytest.importorskip("webdataset")
    names = [f"deep/{n}.v.mp4" for n in range(7)]
    for n, name in enumerate(names):
        write_video(videos / name, numbered(30)[n : n + 12], fps=10)
    packed(names, short_side=32, quality=95, shard_size=1, workers=2)
    urls = [str(tmp_path / "packed" / name) for name in shards(tmp_path / "packed")]
    samples = list(webdataset.WebDataset(urls, shardshuffle=False).decode("rgb8"))
    assert [sample["json"]["name"] for sample in samples] == names
    for n, sample in enumerate(samples):
        assert sample["json"] == {"name": names[n], "num_frames": 12, "fps": 10.0, "height": 32, "width": 64}
        frames = np.stack([sample[f"{frame:06d}.jpg"] for frame in range(12)]).transpose(0, 3, 1, 2)
        assert number_of(frames) == list(range(n, n + 12))
        with open_video(tmp_path / "packed" / names[n]) as video:
            assert np.abs(video.frames(range(12)).astype(int) - frames).mean() < 0.1


def test_what_stays_is_no_view_of_what_a_worker_has_sent(tmp_path):
    """It would keep all images in memory."""
    meta = VideoMeta(2, 25.0, 8, 8, None, np.arange(3.0)[:2], 2.0)
    writer = ShardWriter(tmp_path, "jpeg", 10**6)
    writer.add("a.mp4", 0, EncodedVideo(meta, np.full(3, 5, np.uint32)[:2], np.zeros(10, np.uint8)))
    writer.close()
    row = writer.videos[b"a.mp4"]
    assert row.sizes.base is None and row.meta.times.base is None and row.meta.times.tolist() == [0, 1]


def test_any_order_of_reading(tmp_path, packed, videos, write_video, numbered, number_of):
    """Videos and frames in any order, with repeats, are those of one pass; forked workers read them too."""
    names = [f"{n}.mkv" for n in range(9)]
    for n, name in enumerate(names):
        write_video(videos / name, numbered(60)[n : n + 5 + 3 * n], gop=1 + n)
    packed(names, short_side=32, quality=95)
    whole = {}
    for n, name in enumerate(names):
        with open_video(tmp_path / "packed" / name) as video:
            whole[name] = np.stack(list(video.iter_frames())).transpose(0, 3, 1, 2)
            assert number_of(whole[name]) == list(range(n, n + 5 + 3 * n))
    rng = generator(2)
    opened = {name: open_video(tmp_path / "packed" / name) for name in names}
    for turn in range(200):
        name = names[rng.integers(len(names))]
        expected = rng.integers(0, len(whole[name]), rng.integers(1, 12))
        np.testing.assert_array_equal(opened[name].frames(expected), whole[name][expected])
        if turn % 20 == 19:
            pid = os.fork()
            if not pid:  # the child shares the open shard with its parent
                same = [np.array_equal(opened[each].frames([2, 0]), whole[each][[2, 0]]) for each in names]
                os._exit(0 if all(same) else 1)
            assert os.waitpid(pid, 0)[1] == 0
    before = len([*Path("/dev/fd").iterdir()])
    for video in opened.values():
        video.close()
        video.close()
    assert len([*Path("/dev/fd").iterdir()]) == before - len(names)
    with pytest.raises(DecodeError, match=r"frames 5-5 requested, the video has frames 0-4"):
        with open_video(tmp_path / "packed" / "0.mkv") as video:
            video.frames([5])


def test_spans_and_batches_after_a_resume(tmp_path, packed, videos, write_video, numbered, number_of, write_list):
    """A row with a span has the frames of that span; a loader that starts at step 3 makes the same batches."""
    names = [f"{n}.mp4" for n in range(6)]
    for name in names:
        write_video(videos / name, numbered(100), fps=25, b_frames=2)
    packed(names, short_side=32, quality=95)
    listed = write_list(tmp_path / "lists", [[n, 0, 1, 2.2] for n in names], "path,label,start,end", "spans.csv")
    sampler = Random(Random.Config(frames=4, seconds=0.32))
    recipes = [RECIPES["weak"](RECIPES["weak"].Config(size=32, area=(1, 1), ratio=(2, 2), flip_probability=0))]
    with open_video(tmp_path / "packed/0.mp4") as copy:
        assert (copy.meta.num_frames, copy.meta.fps) == (100, 25)
    seen = {}
    for root in (videos, tmp_path / "packed"):
        dataset = ClipDataset(read_list(listed, root), sampler, recipes)
        batches = {}
        for start, workers in ((0, 0), (3, 2), (5, 1)):
            loader = Loader(dataset, StepSampler(len(dataset), 3, 3, start, 8, 0), workers)
            batches[start] = [(batch.index.tolist(), batch.views[0].numpy().copy()) for batch in loader]
        for start in (3, 5):
            for (index, views), (other_index, other) in zip(batches[start], batches[0][start:], strict=True):
                assert index == other_index
                np.testing.assert_array_equal(views, other)
        seen[root] = [number_of(clip) for _, views in batches[0] for clip in views]
        assert all(25 <= number < 55 for clip in seen[root] for number in clip)
    assert seen[videos] == seen[tmp_path / "packed"]  # the same frames as of the files


def test_tracks_of_the_originals(tmp_path, packed, videos, write_video, numbered):
    """At the size of the originals their tracks stay valid; for smaller frames they are an error, not wrong boxes."""
    write_video(videos / "a.mp4", numbered(60))
    listed = packed(["a.mp4"], short_side=32, quality=95).list
    numbers = np.arange(60)
    boxes = np.stack([numbers * 0, numbers * 0, 20 + numbers * 0.5, 20 + numbers * 0.2], axis=1).astype(np.float32)
    tracks = Tracks(numbers, boxes, np.ones(60, np.float32), numbers * 0)
    file = tracks_file(tmp_path / "tracks", "a.mp4", read_list(listed).records[0])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_tracks(file, tracks, {})
    sampler = TrackedPair(TrackedPair.Config(frames=4, seconds=0.32, min_gap=5))
    recipes = [RECIPES["weak"](RECIPES["weak"].Config(size=32, area=(0.9, 1)))] * 2
    samples = [
        ClipDataset(read_list(listed, root), sampler, recipes, tracks=tmp_path / "tracks")[0, 0]
        for root in (videos, tmp_path / "packed")
    ]
    np.testing.assert_array_equal(samples[0].boxes, samples[1].boxes)
    for one, other in zip(samples[0].views, samples[1].views, strict=True):
        assert np.abs(one.astype(int) - other).mean() < 5
    small = shrink(
        tmp_path / "lists/all.csv", out=tmp_path / "small", to="frames", short_side=16, quality=95, root=videos
    ).list
    with pytest.raises(ConfigError, match=r"the tracks of .* extend to .* 50x32, the video has 60 frames of 32x16"):
        ClipDataset(read_list(small), sampler, recipes, tracks=tmp_path / "tracks")[0, 0]


def test_fingerprints_tell_copies_from_originals(tmp_path, packed, videos, write_video, numbered, write_list):
    for name in ("a.mp4", "b.mp4"):
        write_video(videos / name, numbered(20))
    result = packed(["a.mp4", "b.mp4"])
    files = identify(read_list(result.list))
    assert files["copies"] == {"short_side": 16, "quality": 95, "fps": None, "format": "jpeg"}
    frames = by_tarfile(tmp_path / "packed")
    assert files["bytes"] == sum(len(image) for name in frames for image in frames[name][0]) == result.after
    assert (files["files"], files["missing"]) == (2, 0)
    write_list(tmp_path / "packed", [["a.mp4", 0], ["none.mp4", 0]], name="other.csv")
    assert identify(read_list(tmp_path / "packed/other.csv"))["missing"] == 1
    original = (videos / "a.mp4").stat()
    changed = Original("a.mp4", original.st_size, original.st_mtime_ns).state()
    assert state_of_video(str(tmp_path / "packed/a.mp4")) == (sum(map(len, frames["a.mp4"][0])), changed)
    assert identify(read_list(tmp_path / "lists/all.csv", videos))["copies"] is None


def test_shards_do_not_depend_on_workers(tmp_path, videos, write_video, numbered, write_list):
    names = [f"{n}.mp4" for n in range(8)]
    rng = generator(0)
    for name in names:
        frames = rng.integers(0, 255, (20, 128, 128, 3), np.uint8)
        write_video(videos / name, frames)
    listed, contents = write_list(tmp_path / "lists", [[name, 0] for name in names]), []
    for workers in (1, 2):
        out = tmp_path / f"by{workers}"
        shrink(listed, out=out, to="frames", short_side=128, quality=90, root=videos, workers=workers, shard_size=1)
        contents.append(
            {path.name: path.read_bytes() for path in out.iterdir() if path.suffix != ".txt" and path.name != MARK}
        )
        sizes = [(out / name).stat().st_size for name in shards(out)]
        assert len(sizes) > 2 and all(size <= 1_000_000 for size in sizes)
    assert contents[0] == contents[1]


def test_what_is_complete_survives_an_error(tmp_path, packed, videos, write_video, numbered, monkeypatch, number_of):
    """Ctrl-C and errors of a worker end a run with an index of what was packed before."""
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        write_video(videos / name, numbered(9))
    original = ShardWriter.add

    def interrupted(self, name, *rest):
        if name == "b.mp4":
            raise KeyboardInterrupt
        original(self, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            packed(["a.mp4", "b.mp4", "c.mp4"])
    assert not (tmp_path / "packed/all.csv").exists()
    with open_video(tmp_path / "packed/a.mp4") as copy:
        assert number_of(copy.frames([8, 0])) == [8, 0]
    result = packed(["a.mp4", "b.mp4", "c.mp4"])
    assert (result.made, result.kept) == (2, 1)


def test_a_changed_original_and_another_list(tmp_path, packed, videos, write_video, numbered, number_of):
    for name in ("a.mp4", "b.mp4", "c.mp4"):
        write_video(videos / name, numbered(9))
    packed(["a.mp4", "b.mp4"])
    before = (tmp_path / "packed/shard-000000.tar").read_bytes()
    write_video(videos / "a.mp4", numbered(12))
    os.utime(videos / "a.mp4", ns=(1, 10**18 + 1))
    result = packed(["a.mp4", "b.mp4", "c.mp4"], name="more.csv")
    assert (result.made, result.kept) == (2, 1)
    assert shards(tmp_path / "packed") == ["shard-000000.tar", "shard-000001.tar"]
    assert (tmp_path / "packed/shard-000000.tar").read_bytes() == before
    with open_video(tmp_path / "packed/a.mp4") as copy:
        assert number_of(copy.frames(range(12))) == list(range(12))
    index = read_index(tmp_path / "packed/frame_index.safetensors")
    assert [index.name(row) for row in range(len(index))] == [b"a.mp4", b"b.mp4", b"c.mp4"]
    assert len(index.offsets) == 12 + 9 + 9  # the frames of before are not in it
    assert packed(["a.mp4", "b.mp4", "c.mp4"], name="more.csv").kept == 3
    # Without their shard, or with half of it, videos are packed again.
    with open(tmp_path / "packed/shard-000001.tar", "rb+") as file:
        file.truncate(3000)
    result = packed(["a.mp4", "b.mp4", "c.mp4"], name="more.csv")
    assert (result.made, result.kept) == (2, 1)
    with open_video(tmp_path / "packed/c.mp4") as copy:
        assert number_of(copy.frames(range(9))) == list(range(9))


def test_damaged_shards_and_indices(tmp_path, packed, videos, write_video, numbered, number_of):
    for name in ("a.mp4", "b.mp4"):
        write_video(videos / name, numbered(9))
    result = packed(["a.mp4", "b.mp4"])
    shard, file = tmp_path / "packed/shard-000000.tar", tmp_path / "packed/frame_index.safetensors"
    content, index = shard.read_bytes(), file.read_bytes()
    actual = read_index(file)
    row = actual.find("b.mp4")
    start = int(actual.video(row).offsets[4])
    shard.write_bytes(content[:start] + bytes(100) + content[start + 100 :])
    with open_video(tmp_path / "packed/b.mp4") as video:
        assert number_of(video.frames([3, 5])) == [3, 5]
        with pytest.raises(
            DecodeError, match=rf"b\.mp4: frame 4 is not at byte {start} of .*000\.tar: the shard is dam"
        ):
            video.frames([4])
    shard.write_bytes(content[:start])
    with open_video(tmp_path / "packed/b.mp4") as video, pytest.raises(DecodeError, match="frame 5 is not at byte"):
        video.frames([5])
    shard.unlink()
    with open_video(tmp_path / "packed/b.mp4") as video, pytest.raises(DecodeError, match=r"cannot read .*No such"):
        video.frames([5])
    for damaged in (b"", b"1234", index[:-10], index.replace(b"vidssl packed frames 2", b"vidssl packed frames 9")):
        file.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"cannot read .*frame_index\.safetensors: "):
            open_video(tmp_path / "packed/a.mp4")
        with pytest.raises(ConfigError, match=r"cannot read .*frame_index\.safetensors: "):
            identify(read_list(result.list))


def test_too_large_frames_are_refused(tmp_path, packed, videos, write_video, numbered):
    write_video(videos / "a.mp4", numbered(9))
    packed(["a.mp4"])
    open_video(tmp_path / "packed/a.mp4", max_pixels=32 * 16).close()
    with pytest.raises(DecodeError, match="32x16 is more than 511 pixels"):
        open_video(tmp_path / "packed/a.mp4", max_pixels=32 * 16 - 1)


def test_a_full_disk(tmp_path, packed, videos, write_video, monkeypatch):
    write_video(videos / "a.mp4", generator(0).integers(0, 255, (20, 64, 64, 3), np.uint8))
    limit, original = resource.getrlimit(resource.RLIMIT_FSIZE), ShardWriter._write

    def write(self, *content):
        resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limit[1]))  # of the main process
        return original(self, *content)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(ShardWriter, "_write", write)
            with pytest.raises(
                DataError, match=r"cannot write .*packed/shard-0+\.tar: File too large; free disk space"
            ):
                packed(["a.mp4"], short_side=64, quality=95)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert shards(tmp_path / "packed") == [] and not (tmp_path / "packed/.shard.part").exists()
    assert packed(["a.mp4"], short_side=64, quality=95).made == 1


def test_packed_frames_can_be_copied_again(tmp_path, packed, videos, write_video, numbered, number_of):
    """From packed frames to video files, at regular times, and to smaller frames."""
    write_video(videos / "a.mp4", numbered(9), fps=10)
    listed = packed(["a.mp4"], short_side=32, quality=95).list
    again = shrink(listed, out=tmp_path / "files", short_side=16, quality=12)
    small = shrink(listed, out=tmp_path / "small", to="frames", short_side=16, quality=95)
    for path in (again.list, small.list):
        with open_video(read_list(path).records[0].path) as copy:
            assert (copy.meta.num_frames, copy.meta.fps, copy.meta.height) == (9, 10, 16)
            assert number_of(copy.frames(range(9))) == list(range(9))


def test_the_newer_of_two_videos_of_one_name_counts(tmp_path, packed, videos, write_video, numbered):
    """A run that was killed had packed a changed original again, and not written the index."""
    write_video(videos / "a.mp4", numbered(9))
    packed(["a.mp4"])
    writer = ShardWriter(tmp_path / "packed", "jpeg", 10**6)
    with open_video(videos / "a.mp4") as video:
        writer.add("a.mp4", 7, encode_frames(video, 16, "jpeg", 90, lambda: None))
    writer._complete_shard()
    newest = ShardWriter(tmp_path / "packed", "jpeg", 10**6).videos[b"a.mp4"]
    assert (newest.shard, newest.changed) == (1, 7)
