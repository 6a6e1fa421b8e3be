"""Copies made for training: frame i of a copy is frame i of its original, at the same time, under the same name."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from vidssl import cli
from vidssl.apps.shrink import Shrunk, shrink
from vidssl.apps.shrink.encode_copies import original_of
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.output_folder import only_run_in
from vidssl.data.read_input import read_input
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.video import decode
from vidssl.video.packed_frames import INDEX
from vidssl.video.reader import open_video

TOP = Path(__file__).parents[3]
both = pytest.mark.parametrize("to", ["video", "frames"])


def shrink_to(out, listed, to="video", **options):
    quality = {"video": 12, "frames": 95}[to]
    return shrink(listed, out=out, to=to, **{"short_side": 16, "quality": quality, "workers": 1, **options})


@pytest.fixture
def shrunk(tmp_path, write_list):
    """Copy files below `videos` into `small`."""

    def run(names, to="video", **options):
        listed = write_list(tmp_path / "lists", [[name, number % 2] for number, name in enumerate(names)])
        return shrink_to(tmp_path / "small", listed, to, root=tmp_path / "videos", **options)

    return run


def leftovers(folder):
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("suffix", "codec", "gop", "b_frames", "fps"),
    [
        ("mkv", "libx264", 12, 2, Fraction(30_000, 1001)),
        ("avi", "mpeg4", 6, 2, Fraction(24_000, 1001)),
        ("mpg", "mpeg2video", 6, 2, 25),
        ("ts", "libx264", 5, 2, 50),
        ("webm", "libvpx", 9, 0, 30),
    ],
)
def test_frames_order_and_rate(
    tmp_path, videos, shrunk, write_video, numbered, suffix, codec, gop, b_frames, fps, number_of
):
    name = f"deep/er/clip.{suffix}"
    options = {"crf": "10", "b": "1M"} if suffix == "webm" else None
    write_video(videos / name, numbered(30), fps, codec, gop, b_frames, options)
    result = shrunk([name])
    assert (result.made, result.kept, result.left_out) == (1, 0, {})
    with open_video(videos / name) as original, open_video(tmp_path / "small" / name) as copy:
        assert copy.meta.num_frames == original.meta.num_frames == 30
        assert abs(copy.meta.fps - original.meta.fps) * original.meta.duration < 0.01
        assert (copy.meta.height, copy.meta.width) == (16, 32)
        assert number_of(copy.frames(range(30))) == list(range(30))
    with av.open(str(tmp_path / "small" / name)) as container:
        assert len(container.streams) == 1
        assert all(packet.is_keyframe for packet in container.demux() if packet.size)


def test_rotated_videos_are_upright(tmp_path, videos, shrunk, real):
    for name in ("video_0.mov", "video_90.mov"):
        (videos / name).write_bytes((real / "containers" / name).read_bytes())
    shrunk(["video_0.mov", "video_90.mov"], short_side=128)
    for name, size in (("video_0.mov", (128, 228)), ("video_90.mov", (228, 128))):
        with open_video(videos / name) as original, open_video(tmp_path / "small" / name) as copy:
            image, small = original.frames([1])[0].transpose(1, 2, 0), copy.frames([1])[0].transpose(1, 2, 0)
            assert small.shape[:2] == size
            assert np.abs(small.astype(int) - cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)).mean() < 6


@pytest.mark.parametrize(
    ("size", "short_side", "expected"),
    [
        ((81, 121), 128, (80, 120)),
        ((33, 50), 16, (16, 24)),
        ((50, 33), 16, (24, 16)),
        ((17, 16), 15, (16, 16)),
        ((2, 400), 128, (2, 400)),
        ((1, 7), 128, (2, 6)),
        ((1, 1), 128, (2, 2)),
    ],
)
def test_sizes_are_even_and_nothing_is_enlarged(tmp_path, videos, shrunk, size, short_side, expected):
    (videos / "v").mkdir()
    for number in range(3):
        assert cv2.imwrite(str(videos / f"v/{number}.png"), np.full((*size, 3), 60 + 60 * number, np.uint8))
    assert not shrunk(["v"], short_side=short_side, fps=5).left_out
    with open_video(tmp_path / "small/v") as copy:
        assert (copy.meta.height, copy.meta.width, copy.meta.num_frames, copy.meta.fps) == (*expected, 3, 5)
        assert np.abs(copy.frames(range(3)).mean(axis=(1, 2, 3)) - [60, 120, 180]).max() < 4


def test_folders_of_images_become_videos(tmp_path, videos, numbered, number_of, write_list):
    (videos / "a/b").mkdir(parents=True)
    for number, picture in enumerate(numbered(12)):
        cv2.imwrite(str(videos / f"a/b/{number}.png"), picture)
    listed = write_list(tmp_path / "lists", [["a/b", 0, 12.5, ""], ["a/b", 1, 12.5, 0.5]], "path,label,fps,end")
    result = shrink_to(tmp_path / "small", listed, root=videos)
    bytes_of_all = sum(path.stat().st_size for path in (videos / "a/b").iterdir()) + (videos / "a/b").stat().st_size
    assert result.made == 1 and result.before == bytes_of_all
    with open_video(read_list(result.list).records[0].path) as copy:
        assert copy.meta.fps == 12.5 and number_of(copy.frames(range(12))) == list(range(12))
    assert shrink_to(tmp_path / "small", listed, root=videos).kept == 1
    cv2.imwrite(str(videos / "a/b/3.png"), numbered(20)[19])  # the time of the folder itself stays
    os.utime(videos / "a/b/3.png", (time.time() + 2, time.time() + 2))
    assert shrink_to(tmp_path / "small", listed, root=videos).made == 1


@both
def test_lists_work_with_the_copies(tmp_path, digits, to):
    """The list that is written trains at once, as does the list of the originals with another root."""
    listed = read_list(digits / "motion/test.csv")
    result = shrink_to(tmp_path / "small", listed.path, to, short_side=24)
    assert result.made == 16 and result.after > 0
    written = read_list(result.list)
    assert (written.names, written.classes, written.fingerprint) == (listed.names, listed.classes, listed.fingerprint)
    assert result.list.read_bytes() == listed.path.read_bytes()
    with open_video(written.records[3].path) as copy:
        assert (copy.meta.height, copy.meta.width, copy.meta.num_frames) == (24, 24, 24)
    if to == "frames":
        settings = ["data.moving_digits=null", "steps=1", "data.workers=0", "batch_size=8", f"output={tmp_path}/run"]
        settings += [f"data.train={listed.path}", f"data.root={tmp_path}/small"]
        assert train(load_run(TOP / "configs/toy/supervised.yaml", settings)).exists()
    assert shrink_to(tmp_path / "small", listed.path, to, short_side=24).kept == 16
    with pytest.raises(DataError, match=r"test\.csv was made from .*motion/test\.csv .*digit/test\.csv"):
        shrink_to(tmp_path / "small", digits / "digit/test.csv", to, short_side=24)


@both
def test_awkward_names_and_two_spellings_of_one(tmp_path, videos, write_video, numbered, to, number_of, write_list):
    names = [
        "a#b;c&d!.mp4",
        "(x) [y] 'z'.mp4",
        " two  blanks .mp4",
        "-i.mp4",
        "動画 é.mp4",
        "%d.tar#a.mp4",
        'a,"b".mp4',
    ]
    names += ["x" * 250 + ".mp4"] * (to == "video") + ["a", "a.a"] * (to == "frames")
    for number, name in enumerate(names):
        if "." in name[2:]:
            write_video(videos / name, numbered(20)[number : number + 3])
            continue
        (videos / name).mkdir()
        for n, image in enumerate(numbered(20)[number : number + 3]):
            cv2.imwrite(str(videos / name / f"{n}.png"), image)
    listed = write_list(
        tmp_path / "lists", [*([name, 0, ""] for name in names), ["./-i.mp4", 0, 0.1]], "path,label,end"
    )
    result = shrink_to(tmp_path / "small", listed, to, root=videos, fps=12.5)
    assert result.made == len(names) and not result.left_out
    if to == "frames":
        assert sorted(read_input(tmp_path / "small").names) == sorted(names)
    for number, record in enumerate(read_list(result.list).records[: len(names)]):
        with open_video(record.path) as copy:
            assert number_of(copy.frames([0, 2])) == [number, number + 2]
            assert copy.meta.fps == (25 if "." in names[number][2:] else 12.5)


@both
def test_broken_files_are_left_out(tmp_path, videos, shrunk, write_video, numbered, monkeypatch, to):
    """Cut, empty, garbled and missing ones, and those on which the decoder hangs, dies or raises something else."""
    original = decode.PyAV.iter_frames

    def iter_frames(self):
        for number, image in enumerate(original(self)):
            if number == 3 and "hang" in self._path.name:
                time.sleep(60)
            if number == 3 and "crash" in self._path.name:
                os._exit(7)
            if number == 3 and "odd" in self._path.name:
                raise MemoryError("what?")
            yield image

    monkeypatch.setattr(decode.PyAV, "iter_frames", iter_frames)
    names = [f"{name}.mp4" for name in ("fine", "half", "empty", "garbled", "none", "hang", "crash", "odd", "fine2")]
    fine = write_video(videos / "fine.mp4", numbered(20), gop=5).read_bytes()
    for name in ("fine2", "hang", "crash", "odd"):
        (videos / f"{name}.mp4").write_bytes(fine)
    (videos / "half.mp4").write_bytes(fine[: len(fine) // 2])
    (videos / "empty.mp4").touch()
    with av.open(str(videos / "fine.mp4")) as container:
        start, size = [(packet.pos, packet.size) for packet in container.demux(video=0)][12]
    spoilt = bytearray(fine)
    spoilt[start : start + size] = generator(1).bytes(size)
    (videos / "garbled.mp4").write_bytes(spoilt)
    result = shrunk(names, to, timeout=1.0, workers=2)
    assert list(result.left_out) == names[1:-1] and result.made == 2
    words = {"empty": "the file is empty", "garbled": "cannot decode", "none": "No such file", "odd": "MemoryError"}
    words |= {"hang": "timed out after 1 s, twice", "crash": "exit code 7", "half": "not a video"}
    assert all(reason in result.left_out[f"{name}.mp4"] for name, reason in words.items())
    assert read_list(result.list).names == ("fine.mp4", "fine2.mp4") and not leftovers(tmp_path / "small")
    report = str(result)
    assert "left out: garbled.mp4: cannot decode" in report and "9 files: 2 copied, 0 were there, 7 left out" in report
    # What is mended is copied by the next run, and only that.
    (videos / "half.mp4").write_bytes(fine)
    result = shrunk(["fine.mp4", "half.mp4", "fine2.mp4"], to)
    assert (result.made, result.kept) == (1, 2)


KILLED = """
import sys, time
from pathlib import Path
from vidssl.video import decode
from vidssl.apps.shrink import shrink
original = decode.PyAV.iter_frames
def iter_frames(self):
    for number, image in enumerate(original(self)):
        if number == 15 and self._path.name == "6.mp4":
            print("half way", flush=True)
            time.sleep(600)
        yield image
decode.PyAV.iter_frames = iter_frames
source, target, root, to = sys.argv[1:]
more = {"shard_size": 1} if to == "frames" else {}
print(shrink(source, out=target, root=root, to=to, workers=1, **more))
"""


@both
def test_a_killed_run_is_taken_up_again(tmp_path, videos, write_video, to, write_list):
    """Killed in the middle of a file: what was complete stays, the half one is neither read nor kept."""
    names, rng = [f"{n}.mp4" for n in range(8)], generator(0)
    for name in names:
        write_video(videos / name, rng.integers(0, 255, (20, 128, 128, 3), np.uint8))
    listed, out = write_list(tmp_path / "lists", [[name, 0] for name in names]), tmp_path / "small"
    command = [sys.executable, "-c", KILLED, str(listed), str(out), str(videos), to]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert running.stdout.readline() == "half way\n"
    time.sleep(0.5)  # the main process writes what it has received
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    complete = {path: path.read_bytes() for path in (*out.glob("shard-*.tar"), *out.glob("*.mp4"))}
    assert complete and not (out / "all.csv").exists() and not (out / INDEX).exists() and leftovers(out)
    more = {"shard_size": 1} if to == "frames" else {}
    for _ in range(100):  # until the kernel has cleared away the last of its processes
        try:
            result = shrink(listed, out=out, root=videos, to=to, workers=1, **more)
            break
        except ConfigError as error:
            assert "another run is writing to" in str(error)
            time.sleep(0.1)
    assert result.kept >= len(complete) and result.made == 8 - result.kept and not leftovers(out)
    assert all(path.read_bytes() == content for path, content in complete.items())
    for name in names:
        with open_video(out / name) as copy, open_video(videos / name) as source:
            assert np.abs(copy.frames([0, 19]).astype(int) - source.frames([0, 19])).mean() < 30
    assert shrink(listed, out=out, root=videos, to=to, workers=1, **more).kept == 8


def test_a_changed_original_is_copied_anew(tmp_path, videos, shrunk, write_video, numbered, monkeypatch):
    write_video(videos / "a.mp4", numbered(9))
    os.utime(videos / "a.mp4", (1_000_000_000, 1_000_000_000))
    shrunk(["a.mp4"])
    assert (tmp_path / "small/a.mp4").stat().st_mtime == 1_000_000_000
    assert shrunk(["a.mp4"]).kept == 1
    write_video(videos / "a.mp4", numbered(12))
    assert shrunk(["a.mp4"]).made == 1
    with open_video(tmp_path / "small/a.mp4") as copy:
        assert copy.meta.num_frames == 12
    # Only a worker opens it, and some file systems store even seconds.
    opened, copy, changed = [], tmp_path / "small/a.mp4", (videos / "a.mp4").stat().st_mtime
    monkeypatch.setattr("vidssl.apps.shrink.original_of", lambda path: opened.append(path) or original_of(path))
    os.utime(copy, (changed, changed - 1.5))
    assert shrunk(["a.mp4"]).kept == 1 and not opened
    # What was cut short or written by something else may be a file of the user's.
    content = copy.read_bytes()
    for written, time_of_file in ((content[:100], changed - 9), (content, changed + 9), (content[:100], changed)):
        copy.write_bytes(written)
        os.utime(copy, (time_of_file, time_of_file))
        with pytest.raises(DataError, match=r"small/a\.mp4 is not a copy by vidssl, or was changed"):
            shrunk(["a.mp4"])
        assert copy.read_bytes() == written


MESSAGES = [
    ({"names": ["i.png"]}, DataError, r"'i\.png' in .* is an image: remove the row"),
    ({"names": ["images"]}, ConfigError, "images is an image folder without a frame rate: give fps=RATE"),
    ({"short_side": 24, "quality": 20}, ConfigError, "short_side is 16, not 24; quality is 12, not 20"),
    ({"to": "frames"}, ConfigError, "holds copies of other settings"),
    ({"quality": 52}, ConfigError, "quality=52 is not from 0 to 51"),
    ({"to": "frames", "quality": 0}, ConfigError, "quality=0 is not from 1 to 100"),
    ({"format": "webp"}, ConfigError, 'format="webp" are for to="frames"'),
    ({"names": ["../videos/a.mp4"]}, DataError, "is outside of the root"),
    ({"names": ["../elsewhere.mp4"]}, DataError, "leaves the root"),
    ({"names": ["link.mp4"]}, DataError, "is a link, and nothing is written through links"),
    ({"names": ["sub/a.mp4"]}, DataError, r"cannot write .*small/sub/a\.mp4: "),
]


def test_what_is_refused(tmp_path, videos, shrunk, write_video, numbered, write_list):
    content = write_video(videos / "a.mp4", numbered(9)).read_bytes()
    for name in ("link.mp4", "sub/a.mp4"):
        (videos / name).parent.mkdir(exist_ok=True)
        (videos / name).write_bytes(content)
    for name in ("i.png", "images/0.png"):
        (videos / name).parent.mkdir(exist_ok=True)
        cv2.imwrite(str(videos / name), np.zeros((8, 8, 3), np.uint8))
    shrunk(["a.mp4"])
    assert json.loads((tmp_path / "small/shrink.json").read_text()) == {"short_side": 16, "quality": 12, "fps": None}
    (tmp_path / "small/sub").write_text("in the way")
    (tmp_path / "small/link.mp4").symlink_to(videos / "a.mp4")
    for options, error, words in MESSAGES:
        with pytest.raises(error, match=words):
            shrunk(**{"names": ["a.mp4"], **options})
    (tmp_path / "small/link.mp4").unlink()
    with only_run_in(tmp_path / "small"), pytest.raises(ConfigError, match="another run is writing to"):
        shrunk(["a.mp4"])
    (tmp_path / "linked").symlink_to(videos)
    for out in (videos, tmp_path / "linked"):
        with pytest.raises(DataError, match="is the folder of the originals"):
            shrink(tmp_path / "lists/all.csv", out=out, root=videos)
    listed = write_list(tmp_path / "lists", [["images", 0, 12.5], ["images", 1, 25]], "path,label,fps")
    with pytest.raises(ConfigError, match=r"images has 12\.5 and 25\.0 fps"):
        shrink(listed, out=tmp_path / "other", root=videos)
    (tmp_path / "small/shrink.json").write_text("{")
    with pytest.raises(DataError, match=r"shrink\.json is damaged"):
        shrunk(["a.mp4"])
    assert (videos / "a.mp4").read_bytes() == content


def test_what_a_crash_leaves_cannot_be_removed(videos, shrunk, write_video, numbered, monkeypatch):
    original, remove = decode.PyAV.iter_frames, Path.unlink

    def iter_frames(self):
        if "crash" in self._path.name:
            os._exit(7)
        return original(self)

    def unlink(path, missing_ok=False):
        if path.suffix == ".part":
            raise PermissionError(f"{path} stays")
        remove(path, missing_ok)

    monkeypatch.setattr(decode.PyAV, "iter_frames", iter_frames)
    monkeypatch.setattr(Path, "unlink", unlink)
    for name in ("a.mp4", "crash.mp4"):
        write_video(videos / name, numbered(9))
    assert list(shrunk(["a.mp4", "crash.mp4"], workers=2).left_out) == ["crash.mp4"]


def test_a_full_disk(tmp_path, videos, shrunk, write_video, numbered, monkeypatch):
    original = decode.PyAV.iter_frames

    def iter_frames(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))  # of the worker
        return original(self)

    write_video(videos / "a.mp4", numbered(100))
    with monkeypatch.context() as patch, pytest.raises(DataError, match=r"cannot write .*small/a\.mp4: "):
        patch.setattr(decode.PyAV, "iter_frames", iter_frames)
        shrunk(["a.mp4"])
    assert not leftovers(tmp_path / "small") and not (tmp_path / "small/a.mp4").exists()
    assert shrunk(["a.mp4"]).made == 1


@pytest.mark.parametrize(("before", "after", "larger"), [(7, 9, True), (9, 7, False), (7, 7, False), (0, 0, False)])
def test_larger_copies_are_reported(before, after, larger):
    report = str(Shrunk(Path("l.csv"), made=1, before=before, after=after))
    assert ("the copies are larger than the originals" in report) == larger and report.endswith("\nlist: l.csv")


def test_the_command(tmp_path, videos, write_video, numbered, monkeypatch, capsys, write_list):
    write_video(videos / "a.mp4", numbered(9))
    (videos / "b.mp4").write_text("<html>")
    listed = write_list(tmp_path / "lists", [["a.mp4", 0], ["b.mp4", 1]])

    def status(*more):
        try:
            cli.run("shrink", [str(listed), "--root", str(videos), "--out", str(tmp_path / "small"), *more])
        except SystemExit as end:
            return end.code
        return 0

    assert status("--to", "frames", "--format", "webp", "--short-side", "16", "--quality", "80") == 1
    out = capsys.readouterr().out
    assert "2 files: 1 copied, 0 were there, 1 left out" in out and "left out: b.mp4: not a video" in out
    settings = {"short_side": 16, "quality": 80, "fps": None, "format": "webp"}
    assert json.loads((tmp_path / "small/shrink.json").read_text()) == settings
