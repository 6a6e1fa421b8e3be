"""Copies made for training: frame i of a copy is frame i of its original, at the same time, under the same name."""

import csv
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
from vidssl.apps.shrink import ShrinkSettings, Shrunk, shrink_list
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.output_folder import only_run_in
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.video import decode
from vidssl.video.reader import open_video

TOP = Path(__file__).parents[2]


def write_list(folder, rows, header="path,label", classes=("no", "yes"), name="all.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *rows])
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in classes))
    return folder / name


@pytest.fixture
def shrunk(tmp_path):
    """Copy files below `videos` into `small`."""

    def run(names, short_side=16, quality=12, fps=None, **options):
        rows = [[name, number % 2] for number, name in enumerate(names)]
        videos = write_list(tmp_path / "lists", rows)
        settings = ShrinkSettings(short_side, quality, fps)
        return shrink_list(videos, tmp_path / "small", settings, root=tmp_path / "videos", **options)

    return run


@pytest.fixture
def videos(tmp_path):
    (tmp_path / "videos").mkdir()
    return tmp_path / "videos"


def number_of(frames):
    """Read the numbers off frames (T, 3, H, W) of the fixture `numbered`, of any width."""
    width = frames.shape[3]
    middle = frames[:, 0, frames.shape[2] // 2, width // 16 :: width // 8] > 120
    return (middle * (1 << np.arange(8))).sum(axis=1).tolist()


def leftovers(folder):
    return [path for path in folder.rglob("*") if path.name.endswith(".part")]


@pytest.mark.parametrize(
    ("suffix", "codec", "gop", "b_frames", "fps"),
    [
        ("mp4", "libx264", 12, 2, 25),
        ("mkv", "libx264", 12, 2, Fraction(30_000, 1001)),
        ("avi", "mpeg4", 6, 2, Fraction(24_000, 1001)),
        ("mpg", "mpeg2video", 6, 2, 25),
        ("ts", "libx264", 5, 2, 50),
        ("webm", "libvpx", 9, 0, 30),
    ],
)
def test_frames_order_and_rate(tmp_path, videos, shrunk, write_video, numbered, suffix, codec, gop, b_frames, fps):
    name = f"deep/er/clip.{suffix}"
    options = {"crf": "10", "b": "1M"} if suffix == "webm" else None
    write_video(videos / name, numbered(60), fps, codec, gop, b_frames, options)
    result = shrunk([name])
    assert (result.made, result.kept, result.left_out) == (1, 0, {})
    with open_video(videos / name) as original, open_video(tmp_path / "small" / name) as copy:
        assert copy.meta.num_frames == original.meta.num_frames == 60
        assert abs(copy.meta.fps - original.meta.fps) * original.meta.duration < 0.01
        assert (copy.meta.height, copy.meta.width) == (16, 32)
        assert number_of(copy.frames(range(60))) == list(range(60))
    with av.open(str(tmp_path / "small" / name)) as container:
        assert len(container.streams) == 1
        assert all(packet.is_keyframe for packet in container.demux() if packet.size)


def stamps(path):
    with av.open(str(path)) as container:
        times = sorted(packet.pts * packet.time_base for packet in container.demux(video=0) if packet.size)
    return [float(each - times[0]) for each in times]


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
def test_7_a_variable_rate(tmp_path, videos, shrunk, write_video, numbered, suffix):
    steps = generator(4).integers(20, 200, 49)
    ticks = [0, *np.cumsum(steps).tolist()]
    source = write_video(tmp_path / "regular.mp4", numbered(50), b_frames=2)
    with av.open(str(source)) as container, av.open(str(videos / f"v.{suffix}"), "w") as out:
        stream = out.add_stream_from_template(container.streams.video[0])
        packets = [packet for packet in container.demux(video=0) if packet.size]
        base = packets[0].time_base
        first = min(packet.pts for packet in packets)
        # Presented at the ticks of a thousandth; decoding times only have to ascend.
        for place, packet in enumerate(packets):
            number = round((packet.pts - first) * base * 25)
            packet.stream, packet.time_base = stream, Fraction(1, 1000)
            packet.pts, packet.dts = ticks[number] + 1000, place + 1
            out.mux(packet)
    shrunk([f"v.{suffix}"])
    copy = tmp_path / "small" / f"v.{suffix}"
    assert np.abs(np.array(stamps(copy)) - np.array(ticks) / 1000).max() < 2e-3
    assert np.abs(np.array(stamps(copy)) - stamps(videos / f"v.{suffix}")).max() < 1e-4
    with open_video(videos / f"v.{suffix}") as original, open_video(copy) as small:
        assert abs(small.meta.fps - original.meta.fps) * original.meta.duration < 0.01
        assert number_of(small.frames(range(50))) == list(range(50))


def test_7_rotated_videos_are_upright(tmp_path, videos, shrunk, real):
    names = [f"video_{turn}.mov" for turn in (0, 90, 180, 270)]
    for name in names:
        (videos / name).write_bytes((real / "containers" / name).read_bytes())
    shrunk(names, short_side=128)
    for name in names:
        with open_video(videos / name) as original, open_video(tmp_path / "small" / name) as copy:
            wanted = original.frames([1])[0].transpose(1, 2, 0)
            found = copy.frames([1])[0].transpose(1, 2, 0)
            assert found.shape[:2] == ((228, 128) if name in ("video_90.mov", "video_270.mov") else (128, 228))
            wanted = cv2.resize(wanted, found.shape[1::-1], interpolation=cv2.INTER_AREA)
            assert np.abs(found.astype(int) - wanted).mean() < 6


@pytest.mark.parametrize(
    ("size", "short_side", "expected"),
    [
        ((81, 121), 128, (80, 120)),
        ((33, 50), 16, (16, 24)),
        ((50, 33), 16, (24, 16)),
        ((20, 90), 16, (16, 72)),
        ((16, 16), 16, (16, 16)),
        ((17, 16), 15, (16, 16)),
        ((2, 400), 128, (2, 400)),
        ((1, 7), 128, (2, 6)),
        ((1, 1), 128, (2, 2)),
    ],
)
def test_sizes_are_even_and_nothing_is_enlarged(tmp_path, videos, shrunk, size, short_side, expected):
    (videos / "v").mkdir()
    for number in range(3):
        picture = np.full((*size, 3), 60 + 60 * number, np.uint8)
        assert cv2.imwrite(str(videos / f"v/{number}.png"), picture)
    assert not shrunk(["v"], short_side=short_side, fps=5).left_out
    with open_video(tmp_path / "small/v") as copy:
        assert (copy.meta.height, copy.meta.width, copy.meta.num_frames, copy.meta.fps) == (*expected, 3, 5)
        means = copy.frames(range(3)).mean(axis=(1, 2, 3))
        assert np.abs(means - [60, 120, 180]).max() < 4


def test_images_alone_are_refused(videos, shrunk):
    """Their copy would be a video that is called like an image."""
    cv2.imwrite(str(videos / "a.png"), np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(DataError, match=r"'a\.png' in .* is an image, and only videos are shrunk"):
        shrunk(["a.png"])


def test_folders_of_images_become_videos(tmp_path, videos, shrunk, numbered):
    for number, picture in enumerate(numbered(12)):
        (videos / "a/b").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(videos / f"a/b/{number}.png"), picture)
    with pytest.raises(ConfigError, match="a/b is an image folder without a frame rate: give fps=RATE"):
        shrunk(["a/b"])
    rows = [["a/b", 0, 12.5, ""], ["a/b", 1, 12.5, 0.5]]
    listed = write_list(tmp_path / "lists", rows, "path,label,fps,end")
    result = shrink_list(listed, tmp_path / "small", ShrinkSettings(16, 12), root=videos)
    assert result.made == 1 and result.before == sum(each.stat().st_size for each in (videos / "a/b").iterdir()) + (
        (videos / "a/b").stat().st_size
    )
    with open_video(read_list(result.list).records[0].path) as copy:
        assert copy.meta.fps == 12.5 and number_of(copy.frames(range(12))) == list(range(12))
    assert shrink_list(listed, tmp_path / "small", ShrinkSettings(16, 12), root=videos).kept == 1
    time.sleep(1.1)
    cv2.imwrite(str(videos / "a/b/3.png"), numbered(20)[19])  # the time of the folder itself stays
    assert shrink_list(listed, tmp_path / "small", ShrinkSettings(16, 12), root=videos).made == 1
    listed = write_list(tmp_path / "lists", [["a/b", 0, 12.5], ["a/b", 1, 25]], "path,label,fps")
    with pytest.raises(ConfigError, match=r"a/b has 12\.5 and 25\.0 fps"):
        shrink_list(listed, tmp_path / "small", ShrinkSettings(16, 12), root=videos)


def test_lists_work_with_the_copies(tmp_path, digits):
    """The list that is written trains at once; other labels of the same videos do with another root."""
    listed = read_list(digits / "motion/train.csv")
    settings = ShrinkSettings(24, 18)
    result = shrink_list(listed.path, tmp_path / "small", settings, workers=0)
    assert result.made == 40 and result.after > 0
    written = read_list(result.list)
    assert written.names == listed.names and written.classes == listed.classes
    assert written.fingerprint == listed.fingerprint
    assert result.list.read_bytes() == listed.path.read_bytes()
    with open_video(written.records[3].path) as copy:
        assert (copy.meta.height, copy.meta.width, copy.meta.num_frames) == (24, 24, 24)
    more = ["data.moving_digits=null", "steps=2", "data.workers=0"]
    toy = TOP / "configs/toy/supervised.yaml"
    assert train(load_run(toy, [*more, f"data.train={result.list}", f"output={tmp_path}/a"])).exists()
    given = [
        "method.classes=10",
        f"data.train={digits}/digit/train.csv",
        f"data.root={tmp_path}/small",
        f"output={tmp_path}/b",
    ]
    assert train(load_run(toy, [*more, *given])).exists()
    assert shrink_list(listed.path, tmp_path / "small", settings, workers=0).kept == 40
    with pytest.raises(DataError, match=r"train\.csv was made from .*motion/train\.csv .*digit/train\.csv"):
        shrink_list(digits / "digit/train.csv", tmp_path / "small", settings)


def test_6_awkward_names_and_two_spellings_of_one(tmp_path, videos, write_video, numbered):
    names = ["a#b;c&d!.mp4", "(x) [y] 'z'.mp4", " two  blanks .mp4", "-i.mp4", "動画 é.mp4", "%d.mp4", 'a,"b".mp4']
    names += ["x" * 250 + ".mp4"]
    for number, name in enumerate(names):
        write_video(videos / name, numbered(20)[number : number + 3])
    rows = [[name, 0, ""] for name in names]
    listed = write_list(tmp_path / "lists", [*rows, ["./-i.mp4", 0, 0.1]], "path,label,end")
    result = shrink_list(listed, tmp_path / "small", ShrinkSettings(16, 12), root=videos)
    assert result.made == len(names) and not result.left_out
    for number, record in enumerate(read_list(result.list).records[: len(names)]):
        with open_video(record.path) as copy:
            assert number_of(copy.frames([0, 2])) == [number, number + 2]


def test_1_2_broken_files_are_left_out(tmp_path, videos, shrunk, write_video, numbered):
    fine = write_video(videos / "fine.mp4", numbered(20), gop=5).read_bytes()
    write_video(videos / "fine2.mp4", numbered(20))
    (videos / "half.mp4").write_bytes(fine[: len(fine) // 2])
    (videos / "empty.mp4").touch()
    spoilt = bytearray(fine)
    with av.open(str(videos / "fine.mp4")) as container:
        start, size = [(packet.pos, packet.size) for packet in container.demux(video=0)][12]
    spoilt[start : start + size] = generator(1).bytes(size)
    (videos / "garbled.mp4").write_bytes(spoilt)
    names = ["fine.mp4", "half.mp4", "empty.mp4", "garbled.mp4", "none.mp4", "fine2.mp4"]
    result = shrunk(names)
    assert list(result.left_out) == names[1:5] and result.made == 2
    assert read_list(result.list).names == ("fine.mp4", "fine2.mp4")
    assert sorted(path.name for path in (tmp_path / "small").glob("*.mp4")) == ["fine.mp4", "fine2.mp4"]
    assert not leftovers(tmp_path / "small")
    given = str(result)
    assert "left out: garbled.mp4: cannot decode" in given and "left out: empty.mp4: the file is empty" in given
    assert "6 files: 2 copied, 0 were there, 4 left out" in given
    # What is mended is copied by the next run, and only that.
    (videos / "half.mp4").write_bytes(fine)
    result = shrunk(names)
    assert (result.made, result.kept, len(result.left_out)) == (1, 2, 3)


def test_frames_of_several_sizes(tmp_path, videos, shrunk):
    (videos / "v").mkdir()
    for number, height in enumerate((20, 20, 24)):
        cv2.imwrite(str(videos / f"v/{number}.png"), np.zeros((height, 30, 3), np.uint8))
    result = shrunk(["v"], fps=10)
    assert result.left_out == {"v": "its frames have several sizes: 30x20 and 30x24"}
    assert not leftovers(tmp_path / "small") and not (tmp_path / "small/v").exists()


def test_10_11_hanging_and_crashing_decoders(tmp_path, videos, shrunk, write_video, numbered, monkeypatch):
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
    names = ["a.mp4", "hang.mp4", "crash.mp4", "odd.mp4", "b.mp4"]
    for name in names:
        write_video(videos / name, numbered(9))
    result = shrunk(names, timeout=1.0, workers=2)
    assert list(result.left_out) == names[1:4] and result.made == 2
    assert "timed out after 1 s, twice" in result.left_out["hang.mp4"] and "exit code 7" in result.left_out["crash.mp4"]
    assert read_list(result.list).names == ("a.mp4", "b.mp4") and not leftovers(tmp_path / "small")


def test_a_killed_run_is_taken_up_again(tmp_path, videos, write_video, numbered):
    """Killed in the middle of a file: that one has no name yet, those before it are not done again."""
    names = [f"{number}.mp4" for number in range(6)]
    for name in names:
        write_video(videos / name, numbered(200))
    listed = write_list(tmp_path / "lists", [[name, 0] for name in names])
    code = """
import sys, time
from pathlib import Path
from vidssl.video import decode
from vidssl.apps.shrink import ShrinkSettings, shrink_list
original = decode.PyAV.iter_frames
def iter_frames(self):
    for number, image in enumerate(original(self)):
        if number == 150 and self._path.name == "3.mp4":
            print("half way", flush=True)
            time.sleep(600)
        yield image
decode.PyAV.iter_frames = iter_frames
source, target, root = map(Path, sys.argv[1:])
print(shrink_list(source, target, ShrinkSettings(16, 12), root=root, workers=1))
"""
    command = [sys.executable, "-c", code, str(listed), str(tmp_path / "small"), str(videos)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    assert running.stdout.readline() == "half way\n"
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    running.stdout.close()
    there = {path.name: path.stat().st_ino for path in (tmp_path / "small").glob("*.mp4")}
    assert set(there) == {"0.mp4", "1.mp4", "2.mp4"} and len(leftovers(tmp_path / "small")) == 1
    assert not (tmp_path / "small/all.csv").exists()
    for _ in range(100):  # until the kernel has cleared away the last of its processes
        try:
            result = shrink_list(listed, tmp_path / "small", ShrinkSettings(16, 12), root=videos)
            break
        except ConfigError as error:
            assert "another run is writing to" in str(error)
            time.sleep(0.1)
    assert (result.made, result.kept) == (3, 3) and not leftovers(tmp_path / "small")
    now = {path.name: path.stat().st_ino for path in (tmp_path / "small").glob("*.mp4")}
    assert set(now) == set(names) and now.items() >= there.items()
    with open_video(tmp_path / "small/3.mp4") as copy:
        assert number_of(copy.frames([0, 150, 199])) == [0, 150, 199]


def test_a_changed_original_is_copied_anew(tmp_path, videos, shrunk, write_video, numbered):
    write_video(videos / "a.mp4", numbered(9))
    os.utime(videos / "a.mp4", (1_000_000_000, 1_000_000_000))
    shrunk(["a.mp4"])
    assert (tmp_path / "small/a.mp4").stat().st_mtime == 1_000_000_000
    assert shrunk(["a.mp4"]).kept == 1
    write_video(videos / "a.mp4", numbered(12))
    assert shrunk(["a.mp4"]).made == 1
    with open_video(tmp_path / "small/a.mp4") as copy:
        assert copy.meta.num_frames == 12
    # What was cut short by something else may be a file of the user's.
    content = (tmp_path / "small/a.mp4").read_bytes()
    (tmp_path / "small/a.mp4").write_bytes(content[:100])
    os.utime(tmp_path / "small/a.mp4", (1_000_000_000, 1_000_000_000))
    with pytest.raises(DataError, match=r"small/a\.mp4 is there already and is no copy .* or was changed since"):
        shrunk(["a.mp4"])
    assert (tmp_path / "small/a.mp4").read_bytes() == content[:100]


def test_other_settings_are_refused(tmp_path, videos, shrunk, write_video, numbered):
    write_video(videos / "a.mp4", numbered(9))
    shrunk(["a.mp4"])
    assert json.loads((tmp_path / "small/shrink.json").read_text()) == {"short_side": 16, "quality": 12, "fps": None}
    with pytest.raises(ConfigError, match=r"short_side is 16, not 24; quality is 12, not 20"):
        shrunk(["a.mp4"], short_side=24, quality=20)
    (tmp_path / "small/shrink.json").write_text("{")
    with pytest.raises(DataError, match=r"shrink\.json is damaged"):
        shrunk(["a.mp4"])


def test_originals_are_never_touched(tmp_path, videos, shrunk, write_video, numbered):
    before = write_video(videos / "a.mp4", numbered(9)).read_bytes()
    listed = write_list(tmp_path / "lists", [["a.mp4", 0]])
    with pytest.raises(DataError, match="is the folder of the originals"):
        shrink_list(listed, videos, ShrinkSettings(16), root=videos)
    (tmp_path / "linked").symlink_to(videos)
    with pytest.raises(DataError, match="is the folder of the originals"):
        shrink_list(listed, tmp_path / "linked", ShrinkSettings(16), root=videos)
    (tmp_path / "small").mkdir()
    (tmp_path / "small/a.mp4").symlink_to(videos / "a.mp4")
    with pytest.raises(DataError, match="is a link, and nothing is written through links"):
        shrunk(["a.mp4"])
    for name in (str(videos / "a.mp4"), "../videos/a.mp4", "none/../a.mp4"):
        with pytest.raises(DataError, match="is outside of the root"):
            shrunk([name])
    with pytest.raises(DataError, match="leaves the root"):
        shrunk(["../elsewhere.mp4"])
    assert (videos / "a.mp4").read_bytes() == before


def test_a_second_run_in_the_same_folder_is_refused(tmp_path, videos, shrunk, write_video, numbered):
    write_video(videos / "a.mp4", numbered(9))
    with only_run_in(tmp_path / "small"):
        with pytest.raises(ConfigError, match="another run is writing to"):
            shrunk(["a.mp4"])


def test_18_a_place_that_cannot_be_written_to(tmp_path, videos, shrunk, write_video, numbered):
    write_video(videos / "sub/a.mp4", numbered(9))
    (tmp_path / "small").mkdir()
    (tmp_path / "small/sub").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot write .*small/sub/a\.mp4: "):
        shrunk(["sub/a.mp4"])


def test_11_what_a_crash_leaves_cannot_be_removed(videos, shrunk, write_video, numbered, monkeypatch):
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


def test_18_a_full_disk(tmp_path, videos, shrunk, write_video, numbered, monkeypatch):
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


def test_exit_status_and_output_of_the_tool(run_script, tmp_path, videos, write_video, numbered, monkeypatch, capsys):
    for name in ("a.mp4", "b.mp4"):
        write_video(videos / name, numbered(30))
    listed = write_list(tmp_path / "lists", [["a.mp4", 0], ["b.mp4", 1]])

    def status(*more):
        given = [str(listed), "--root", str(videos), "--out", str(tmp_path / "small"), *more]
        monkeypatch.setattr(sys, "argv", ["vidssl", "shrink", *given])
        try:
            cli.main()
        except SystemExit as end:
            return end.code
        return 0

    assert status("--short-side", "24") == 0
    out = capsys.readouterr().out
    assert "2 files: 2 copied, 0 were there, 0 left out" in out and " MB -> " in out and " s\n" in out
    assert status() == 2
    assert "short_side is 24, not 128" in capsys.readouterr().err
    assert status("--quality", "52") == 2
    (videos / "b.mp4").write_text("<html>")
    os.utime(videos / "b.mp4", (1, 1))
    given = ["lists/all.csv", "--root", "videos", "--out", "small", "--short-side", "24"]
    code, out, err = run_script(TOP / "tools/shrink_videos.py", *given, cwd=tmp_path)
    assert code == 1 and "Traceback" not in err
    assert "left out: b.mp4: not a video" in out and "1 were there" in out
