"""What users name as input: what cannot be read is left out and named, the rest is read; never a traceback."""

import io
import os
import socket
import sys
from pathlib import Path
from unicodedata import normalize

import av
import cv2
import numpy as np
import pandas
import pytest

import vidssl
from vidssl import cli
from vidssl.apps.prepare.folder import prepare_folder
from vidssl.base.errors import ConfigError, DataError, VidsslError
from vidssl.base.output_folder import claim, only_run_in
from vidssl.data.list_identity import identify
from vidssl.data.read_input import read_input
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.jobs.extract import extract
from vidssl.models.read_and_write_weights import weights_file
from vidssl.video.reader import open_video, state_of_video

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "sce.yaml"
NETWORK = ["--checkpoint", "random", "--cfg", str(TOY), "data.moving_digits=null", "--workers", "0", "--device", "cpu"]


def names(path):
    return [*read_input(path).names]


@pytest.fixture
def videos(digits, tmp_path):
    """Two videos of different content in a folder, with the paths of more."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:2]):
        (folder / f"{'ab'[n]}.mp4").write_bytes(Path(record.path).read_bytes())
    return folder


def picture(path, number=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.full((16, 16, 3), number, np.uint8))


# Times --------------------------------------------------------------------------------------------------------

SECOND = 10**9


def test_any_time_of_a_file(videos, tmp_path):
    """Also one before 1970, and one that 32 bits cannot hold."""
    early, late = -14 * SECOND, 4_354_819_198 * SECOND
    for path in (tmp_path / "images/cat.jpg", tmp_path / "images/dog.jpg"):
        picture(path, 200 * (path.stem == "dog"))
    for path, time in ((videos / "a.mp4", early), (videos / "b.mp4", late), (tmp_path / "images/cat.jpg", late)):
        os.utime(path, ns=(time, time))
    for path in (videos / "a.mp4", videos / "b.mp4"):
        assert state_of_video(str(path)) == (path.stat().st_size, path.stat().st_mtime_ns)
    assert names([videos / "a.mp4", videos / "b.mp4"]) == ["a.mp4", "b.mp4"]
    checked = vidssl.check(videos, out=tmp_path / "checked", workers=1)
    assert checked.kept == 2 and not checked.findings
    for to in ("video", "frames"):
        copies = [vidssl.shrink(videos, out=tmp_path / to, to=to, short_side=16, workers=1) for _ in range(2)]
        assert [(result.made, result.kept) for result in copies] == [(2, 0), (0, 2)]
    before = identify(read_input(tmp_path / "images"))
    assert before["missing"] == 0
    os.utime(tmp_path / "images/cat.jpg", ns=(late + SECOND, late + SECOND))
    assert identify(read_input(tmp_path / "images"))["changed"] != before["changed"]


# What cannot be read ------------------------------------------------------------------------------------------


def spoil(folder):
    """Entries of a folder that cannot be read; give their names and the words that name why."""
    (folder / "sub").mkdir()
    (folder / "loop").symlink_to("loop")
    (folder / "sub/round.mp4").symlink_to("round.mp4")
    (folder / "gone.mp4").symlink_to("nothing.mp4")
    (folder / "away").symlink_to("/nothing/at/all")
    (folder / "notes.txt").symlink_to("/etc/passwd")  # no video: it does not matter where it is
    os.mkfifo(folder / "pipe.mp4")
    os.mkfifo(folder / "sub/pipe.jpg")
    return {
        "loop": "symbolic links",
        "sub/round.mp4": "symbolic links",
        **dict.fromkeys(("gone.mp4", "away"), "a link to nothing"),
        **dict.fromkeys(("pipe.mp4", "sub/pipe.jpg", "socket.mp4"), "a pipe, socket or device"),
    }


def test_what_cannot_be_read_is_left_out_and_named(videos, tmp_path, caplog, monkeypatch):
    monkeypatch.chdir(videos)
    spoilt = spoil(videos)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket.mp4")
    assert names(videos) == ["a.mp4", "b.mp4"]
    assert f"cannot be read: {len(spoilt)} (" in caplog.text
    named = caplog.text.partition("cannot be read: ")[2]
    assert all(reason in named for _, reason in sorted(spoilt.items())[:3]) and "and 4 more" in named
    caplog.clear()
    assert names(f"{videos}/**/*.mp4") == ["a.mp4", "b.mp4"]
    assert "left out, as they cannot be read: 4 (" in caplog.text and "gone.mp4" in caplog.text
    report = prepare_folder(videos, tmp_path / "lists", labels="none")
    assert f"cannot be read: {len(spoilt)} (" in report
    listening.close()
    (videos / "out.mp4").symlink_to(tmp_path / "lists/train.csv")  # a video, by its name
    assert names(videos) == ["a.mp4", "b.mp4"]
    assert "links that leave the folder: 1 ('out.mp4'); vidssl prepare … --follow-links lists them" in caplog.text


@pytest.mark.parametrize("name", ["loop", "round.mp4", "gone.mp4"])
def test_a_link_that_is_named_itself(tmp_path, name):
    (tmp_path / name).symlink_to(name if name != "gone.mp4" else "nothing.mp4")
    with pytest.raises(DataError, match=rf"cannot read .*{name}: (Too many levels|No such file)"):
        read_input(tmp_path / name)


def test_permission_is_called_permission(videos, tmp_path, caplog, permissions):
    for name in ("sub/s.mp4", "c.mp4"):
        (videos / name).parent.mkdir(exist_ok=True)
        (videos / name).write_bytes((videos / "a.mp4").read_bytes() + b"0")
    (tmp_path / "list.csv").write_text("path\na.mp4\nc.mp4\nsub/s.mp4\nnone.mp4\n")
    (videos / "sub").chmod(0)
    (videos / "c.mp4").chmod(0)
    with permissions():
        assert names(videos) == ["a.mp4", "b.mp4", "c.mp4"]
        assert "cannot be read: 1 ('sub': Permission denied)" in caplog.text
        assert "cannot be read: 1 ('sub': Permission denied)" in prepare_folder(
            videos, tmp_path / "lists", labels="none"
        )
        checked = vidssl.check(tmp_path / "list.csv", out=tmp_path / "checked", root=videos, workers=1)
        made = vidssl.shrink(tmp_path / "list.csv", out=tmp_path / "small", root=videos, workers=1)
        for path in (videos / "sub/s.mp4", videos / "sub/*.mp4", [videos / "sub/s.mp4"]):
            with pytest.raises((VidsslError, OSError), match=r"ermission|no video or image") as caught:
                open_video(read_input(path).records[0].path)
            assert "does not exist" not in str(caught.value) and "\n" not in str(caught.value)
        with pytest.raises(DataError, match=r"cannot read .*Permission denied"):
            read_input(videos / "sub")
    actual = {finding.path: (finding.finding, finding.reason) for finding in checked.findings}
    assert actual == {
        "c.mp4": ("no permission", "Permission denied"),
        "sub/s.mp4": ("no permission", "Permission denied"),
        "none.mp4": ("missing", "No such file"),
    }
    assert "ermission" in made.left_out["c.mp4"] and "ermission" in made.left_out["sub/s.mp4"]
    (videos / "sub").chmod(0o700)


# Folders of frames --------------------------------------------------------------------------------------------

MIXED = {  # beside img_00001.jpg … img_00008.jpg
    "flow": [f"flow_{axis}_{n:05d}.jpg" for axis in "xy" for n in range(1, 8)],
    "masks": [f"mask_{n}.png" for n in range(1, 9)],
    "some masks": ["mask_3.png", "mask_6.png"],
    "a thumb": ["thumb_1.jpg"],
    "depth at the end": [f"img_{n:05d}_depth.png" for n in range(1, 9)],
    "two numberings": [f"img_{n}.jpg" for n in range(1, 9)],
    "two extensions": [f"img_{n:05d}.png" for n in range(1, 9)],
}


@pytest.mark.parametrize(
    ("others", "which"),
    [*((others, "every") for others in MIXED), *(("flow", which) for which in ("some", "only one", "below a class"))],
)
def test_frames_and_other_images_in_one_folder(tmp_path, others, which):
    """`prepare` says it, and every reader of a folder: no video is lost, and no flow map becomes one."""
    root = tmp_path / "raw" if which != "below a class" else tmp_path / "raw" / "class"
    for video in ("v1", "v2", "v3"):
        for n in range(1, 9):
            picture(root / video / f"img_{n:05d}.jpg", n)
        if which != "some" or video == "v2":
            for name in MIXED[others]:
                picture(root / video / name)
    videos = root / "v1" if which == "only one" else tmp_path / "raw"
    with pytest.raises(DataError, match="are not numbered like the frames of one video") as caught:
        read_input(videos)
    assert "\n" not in str(caught.value) and "keep only the RGB images" in str(caught.value)
    if which != "only one":
        with pytest.raises(DataError, match="are not numbered like the frames of one video"):
            prepare_folder(videos, tmp_path / "lists", labels="none")
    for video in ("v1", "v2", "v3"):
        for name in MIXED[others]:
            (root / video / name).unlink(missing_ok=True)
    assert len(names(tmp_path / "raw")) == 3


def test_frames_above_frames(tmp_path):
    for n in range(4):
        picture(tmp_path / "raw/v1" / f"img_{n}.jpg")
        picture(tmp_path / "raw/v1/masks" / f"mask_{n}.png")
    for videos in (tmp_path / "raw", tmp_path / "raw/v1"):
        with pytest.raises(DataError, match="holds numbered images, and so do folders in it"):
            read_input(videos)


def test_folders_of_images_that_are_no_frames_are_named(tmp_path, caplog, videos):
    for n in range(4):
        picture(tmp_path / "raw/v1" / f"img_{n}.jpg")
    picture(tmp_path / "raw/thumbs/first.jpg")
    picture(tmp_path / "raw/cover.jpg")
    assert names(tmp_path / "raw") == ["v1"]
    assert "images in 2 folders are not listed, as there are videos: '.', 'thumbs'" in caplog.text
    caplog.clear()
    (tmp_path / "raw/v1").rename(videos / "v1")
    assert names(videos) == ["a.mp4", "b.mp4"]
    assert "images in 1 folder are not listed, as there are videos: 'v1'" in caplog.text


@pytest.mark.parametrize(
    "images", [["cat_1", "cat_2", "dog_1"], ["cat", "dog"], ["a_1", "b_2", "c_3"], ["DSC_1", "IMG_9"]]
)
def test_images_stay_images(tmp_path, images):
    for name in images:
        picture(tmp_path / "images/some" / f"{name}.jpg")
    assert names(tmp_path / "images") == [f"some/{name}.jpg" for name in images]
    assert names(tmp_path / "images/some") == [f"{name}.jpg" for name in images]


# Names --------------------------------------------------------------------------------------------------------


def test_patterns(videos, tmp_path, caplog):
    for pattern in ("**.mp4", "a**b/*.mp4", "**.mp4/*"):
        with pytest.raises(DataError, match=r"write \*\*/\*.mp4") as caught:
            read_input(videos / pattern)
        assert "\n" not in str(caught.value)
    for name in ("[cam1] day", "[!x]", "[a-", "{b}", "*"):
        (videos / name).mkdir()
        (videos / name / "a.mp4").write_bytes(b"")
        assert names(videos / name / "*.mp4") == ["a.mp4"]
        assert names(videos / name / "**" / "*") == ["a.mp4"]
    with pytest.raises(DataError, match=r"a \[ that is in a name is written \[\[\]"):
        read_input(videos / "*" / "[a-" / "b*.mp4")


def test_the_home_folder(videos, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    every = ["a.mp4", "b.mp4"]
    assert names("~/videos") == names(Path("~/videos")) == names("~/videos/*.mp4") == every
    assert names([f"~/videos/{name}" for name in every]) == every
    cli.run("check", ["~/videos", "--out=~/checked", "--workers", "1"])
    assert names("~/checked/videos.csv") == every
    vidssl.check("~/videos", out="~/again", workers=1)
    (tmp_path / "again/root.txt").write_text("~/videos\n")
    assert names(tmp_path / "again/videos.csv") == every and read_list("again/videos.csv").root == videos
    assert names("~") == read_input(tmp_path).names
    (tmp_path / "run.yaml").write_text(TOY.read_text().replace("output: output/toy/sce", "output: ~/from_yaml"))
    assert load_run(tmp_path / "run.yaml").output == str(tmp_path / "from_yaml")
    assert load_run(TOY, ["output=~/run", "data.train=~/checked/videos.csv"]).output == str(tmp_path / "run")
    cli.run("extract", ["~/videos", "--out=~/features", *NETWORK])
    assert (tmp_path / "features/features.npy").exists() and not Path("~").exists()
    Path("~").mkdir()  # a folder of this name is named by ./~
    assert read_list(write(tmp_path / "t.csv", "path\n~/a.mp4\n"), tmp_path).records[0].path == f"{tmp_path}/~/a.mp4"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("text", ["\nvideos\n", "  \n", "videos\nother\n", "videos\n\nother\n"])
def test_a_root_of_no_or_several_lines_is_refused(tmp_path, text):
    path = write(tmp_path / "t.csv", "path\na.mp4\n")
    write(tmp_path / "root.txt", text)
    with pytest.raises(DataError, match=r"root\.txt (has \d lines: it is one line|is empty)") as caught:
        read_list(path)
    assert "\n" not in str(caught.value)


def test_composed_and_decomposed_names(videos, tmp_path):
    stored, other = "NFD", "NFC"
    name = normalize(stored, "Vidéos ñ/café 가.mp4")
    (videos / name).parent.mkdir()
    (videos / "a.mp4").rename(videos / name)
    listed = write(tmp_path / "list.csv", f"path\n{normalize(other, name)}\nb.mp4\n")
    rows = read_list(listed, videos)
    assert rows.records[0].path == f"{videos}/{name}" and rows.names[0] == normalize(other, name)
    assert identify(rows)["missing"] == 0
    assert len(extract("vidssl-small", rows, clips=1, crops=1, workers=0, progress=False).x) == 2
    checked = vidssl.check(listed, out=tmp_path / "checked", root=videos, workers=1)
    assert [(each.finding, checked.kept) for each in checked.findings] == [("other Unicode form", 2)]
    assert "\\" in checked.findings[0].reason and checked.findings[0].reason.isascii()
    assert [*read_list(checked.list).names] == [name, "b.mp4"]
    made = vidssl.shrink(listed, out=tmp_path / "small", root=videos, short_side=16, workers=1)
    assert made.complete and identify(read_list(made.list))["missing"] == 0
    for named in (
        videos / normalize(other, name),
        [videos / normalize(other, name)],
        (videos / normalize(other, name)).parent,
    ):
        with open_video(read_input(named).records[0].path) as video:
            assert len(video)
    twice = write(tmp_path / "twice.csv", f"path\n{normalize('NFC', name)}\n{normalize('NFD', name)}\n")
    checked = vidssl.check(twice, out=tmp_path / "once", root=videos, workers=1)
    assert checked.kept == 1 and "duplicate" in {each.finding for each in checked.findings}
    assert [*read_list(checked.list).names] == [name]
    labels = write(tmp_path / "labels.csv", f"path,label\n{normalize(other, name)},x\nb.mp4,y\n")
    prepare_folder(videos, tmp_path / "lists", labels=labels, test=0)
    assert identify(read_list(tmp_path / "lists/train.csv"))["missing"] == 0


def test_a_link_out_is_refused_in_either_form(videos, tmp_path):
    (videos / normalize("NFD", "é.mp4")).symlink_to(write(tmp_path / "secret.mp4", "secret"))
    for form in ("NFC", "NFD"):
        with pytest.raises(DataError, match="leaves the root"):
            read_list(write(tmp_path / "t.csv", f"path\n{normalize(form, 'é.mp4')}\n"), videos)


def test_lists_of_other_systems(videos, tmp_path):
    (videos / "sub").mkdir()
    (videos / "a.mp4").rename(videos / "sub/a.mp4")
    with pytest.raises(DataError, match=r"t.csv:2: 'sub\\\\a.mp4' has backslashes, .* file is 'sub/a.mp4': write /"):
        read_list(write(tmp_path / "t.csv", "path\nsub\\a.mp4\n"), videos)
    (videos / "x\\y.mp4").write_bytes(b"")  # a name on Linux
    for text in ("path\nx\\y.mp4\n", "path,label\nx\\y.mp4,1\n,\n , \n,\n", "path,label\n,\nx\\y.mp4,1\n"):
        assert [*read_list(write(tmp_path / "t.csv", text), videos).names] == ["x\\y.mp4"]
    with pytest.raises(DataError, match="path is empty"):
        read_list(write(tmp_path / "t.csv", "path,label\nb.mp4,1\n,1\n"), videos)


def test_objects_that_are_no_videos():
    lists = ([b"a.mp4"], ["a.mp4", None], [["a.mp4"], ["b.mp4"]], np.array([["a.mp4"], ["b.mp4"]]), range(2))
    tables = ({"path": ["a.mp4"]}, pandas.DataFrame({"path": ["a.mp4"]}))
    for value in (None, b"videos", 3, io.BytesIO(b"a.mp4"), *lists, *tables):
        with pytest.raises(DataError, match=r"videos are named by text or Path, got .*: name a list") as caught:
            read_input(value)
        assert "\n" not in str(caught.value)


def test_objects_that_are(videos):
    every = [str(videos / name) for name in ("a.mp4", "b.mp4")]
    for value in (every, tuple(every), map(Path, every), np.array(every), pandas.Series(every), iter(every)):
        assert names(value) == ["a.mp4", "b.mp4"]


# Outputs ------------------------------------------------------------------------------------------------------


WORDS = {  # commands that write pictures or videos, with their words
    "shrink": ["--short-side", "16", "--workers", "1"],
    "shrink to frames": ["--to", "frames", "--short-side", "16", "--workers", "1"],
    "check": ["--workers", "1"],
    "extract": [*NETWORK, "--clips", "1", "--crops", "1"],
    "map": [*NETWORK, "--clips", "1", "--crops", "1"],
    "track": NETWORK,
    "train": ["--cfg", str(TOY), "steps=1", "batch_size=2", "data.workers=0", "device=cpu"],
    "retrieval": [*NETWORK, "--clips", "1", "--crops", "1"],
    "compare": ["--checkpoint", "floor:thumbnails", "floor:colours"],
}


def run_inside(name, videos, out):
    command, *more = name.partition(" to ")[0].split()
    words = [str(videos)] if name != "retrieval" else ["--gallery", str(videos), "--query", str(videos)]
    words += [f"output={out}"] if name == "train" else ["--out", str(out)]
    try:
        cli.run(command, [*more, *words, *WORDS[name], "--quiet"])
    except SystemExit as done:
        assert not done.code


def test_an_output_in_its_input_is_not_read(videos, caplog):
    """Whatever its kind, also by a pattern, and the second run of the same command sees the videos of before."""
    pattern = str(videos / "**" / "*.mp4")
    for name in ("shrink", "shrink"):
        run_inside(name, videos, videos / "out")
        assert names(videos) == names(pattern) == ["a.mp4", "b.mp4"]
    assert "left out, as vidssl wrote them" in caplog.text
    claim(videos / "page", "retrieval")
    (videos / "page/previews").mkdir()
    (videos / "page/previews/0.mp4").write_bytes((videos / "a.mp4").read_bytes())
    assert names(videos) == names(pattern) == ["a.mp4", "b.mp4"]


@pytest.mark.parametrize("name", WORDS)
def test_an_output_is_locked_before_the_work(videos, tmp_path, monkeypatch, name):
    def decoded(*_, **__):
        raise AssertionError("decoded before the folder was locked")

    monkeypatch.setattr("vidssl.base.output_folder._PATIENCE", 0.0)
    monkeypatch.setattr(av, "open", decoded)
    locked = tmp_path / "out"
    if name == "map":
        claim(locked, "map")
        locked /= "features"
    with only_run_in(locked), pytest.raises(ConfigError, match="another run is writing"):
        run_inside(name, videos, tmp_path / "out")


def test_outputs_of_other_videos_are_read(videos, tmp_path):
    """Copies are videos, where their originals are not among those that are read."""
    vidssl.shrink(videos, out=tmp_path / "copies/small", short_side=16, workers=1)
    assert names(tmp_path / "copies") == ["small/a.mp4", "small/b.mp4"]
    assert names(tmp_path / "copies/small") == ["a.mp4", "b.mp4"]
    assert names(tmp_path) == ["videos/a.mp4", "videos/b.mp4"]
    claim(tmp_path / "images/Tiny", "images")  # of `prepare torchvision`
    picture(tmp_path / "images/Tiny/train/cat.png")
    assert names(tmp_path / "images") == ["Tiny/train/cat.png"] and names(tmp_path / "images/Tiny") == ["train/cat.png"]


# Mistakes ---------------------------------------------------------------------------------------------------


def test_other_devices(videos):
    device = "cuda:1"
    hint = "CUDA_VISIBLE_DEVICES=1 names one GPU"
    with pytest.raises(ConfigError, match=hint):
        cli.run("extract", [str(videos), "--checkpoint", "vidssl-small", "--out", "x", "--device", device])
    with pytest.raises(ConfigError, match=hint):
        vidssl.extract("vidssl-small", videos, device=device)
    with pytest.raises(ConfigError, match=hint):
        load_run(TOY, [f"device='{device}'"])


def test_a_mistyped_run_is_not_asked_for_on_the_hub(tmp_path, monkeypatch):
    (tmp_path / "output/tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)  # an import would say so
    with pytest.raises(VidsslError, match=r"no file ouput/tiny \(did you mean 'output'\?\): .* hf-hub:ouput/tiny"):
        weights_file("ouput/tiny")


# A terminal of ascii ------------------------------------------------------------------------------------------


def test_an_ascii_terminal(digits, tmp_path, monkeypatch):
    """What cannot be shown is escaped: no traceback after the work."""
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:2]):
        path = tmp_path / "走る" / ("évolution", "走る")[n] / f"é{n}.mp4"
        path.parent.mkdir(parents=True)
        path.write_bytes(Path(record.path).read_bytes())
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    words = ["prepare", "folder", str(tmp_path / "走る"), "--test", "0", "--out", str(tmp_path / "é")]
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["vidssl", *words])
    try:
        cli.main()
    except SystemExit as done:
        assert not done.code
    out.flush()
    assert b"\\xe9" in out.buffer.getvalue()
