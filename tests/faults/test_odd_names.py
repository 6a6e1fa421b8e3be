"""Names that are not UTF-8, too long or no names at all; pipes, loops of links: one line, and the rest goes on."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import vidssl
from vidssl.apps.prepare.folder import prepare_folder
from vidssl.base.errors import CheckpointError, DataError, DecodeError, VidsslError
from vidssl.data.read_input import read_input
from vidssl.data.video_list import read_list
from vidssl.models import load_backbone
from vidssl.video.packed_frames import INDEX
from vidssl.video.reader import open_video

LATIN = os.fsdecode(b"latin\xe9.mp4")


@pytest.fixture
def folder(tmp_path, digits):
    """Two good videos, and one whose name is not UTF-8."""
    videos = sorted((digits).rglob("*.mp4"))[:3]
    (tmp_path / "v" / "run").mkdir(parents=True)
    for name, video in zip(("a.mp4", "b.mp4", LATIN), videos, strict=True):
        try:
            (tmp_path / "v" / "run" / name).write_bytes(video.read_bytes())
        except OSError:
            pytest.skip("the file system refuses names that are not UTF-8")
    return tmp_path / "v"


def left_out(text):
    assert "left out, as their names are not UTF-8: 1 ('" in text and "latin" in text and "rename them" in text


@pytest.mark.parametrize("where", ["folder", "pattern"])
def test_a_name_that_is_not_utf8_is_left_out(folder, where, caplog):
    listed = read_input(folder if where == "folder" else folder / "run" / "*.mp4")
    assert len(listed) == 2 and all("latin" not in name for name in listed.names)
    left_out(caplog.text)


def test_a_file_that_is_named_itself_is_refused(folder):
    path = folder / "run" / LATIN
    for videos in (path, [path], [folder / "run" / "a.mp4", path]):
        with pytest.raises(DataError, match=r"is not UTF-8: rename it") as caught:
            read_input(videos)
        assert str(caught.value).isprintable()
    with open_video(path) as video:  # one file at a time works
        assert video.frames([0]).shape[0] == 1


def test_a_folder_that_is_not_utf8(folder, tmp_path):
    """Its videos are read, but no list can name it."""
    odd = tmp_path / os.fsdecode(b"f\xe9")
    (folder / "run" / LATIN).unlink()
    folder.rename(odd)
    features = vidssl.extract("vidssl-small", odd, clips=1, crops=1, workers=0, progress=False)
    assert len(features.x) == 2
    with pytest.raises(DataError, match="is not UTF-8: rename it"):
        prepare_folder(odd, tmp_path / "lists", labels="none")


def test_no_traceback_in_another_locale(folder, tmp_path):
    (folder / "run" / "é.mp4").write_bytes((folder / "run" / "a.mp4").read_bytes())
    environment = {
        **os.environ,
        "PYTHONUTF8": "0",
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONPATH": str(Path(vidssl.__file__).parents[1]),
    }
    words = [sys.executable, "-m", "vidssl", "check", str(folder), "--out", str(tmp_path / "c"), "--workers", "1"]
    done = subprocess.run(words, env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0 and b"Traceback" not in done.stderr and b"left out" in done.stderr


# Names that no file has, and things that are no files -------------------------------------------------------

LONG = "n" * 300


@pytest.fixture
def odd(tmp_path, digits, monkeypatch):
    """Paths that are no videos, by what is odd with them."""
    video = next(digits.rglob("*.mp4"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "loop.mp4").symlink_to(tmp_path / "loop.mp4")
    for name in ("pipe", "pipe.mp4", "pipe.jpg", "pipe.tar", f"packed/{INDEX}", "images/0001.jpg", "pipe.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    (tmp_path / "sub.mp4").mkdir()
    (tmp_path / "good.mp4").write_bytes(video.read_bytes())
    listening = socket.socket(socket.AF_UNIX)
    monkeypatch.chdir(tmp_path)
    listening.bind("socket.mp4")
    yield {
        **{"long": f"{LONG}.mp4", "long folder": f"{LONG}/a.mp4", "long path": "a/" * 3000 + "a.mp4"},
        **{"NUL": "a\0.mp4", "NUL folder": "a\0/b.mp4", "surrogate": "a\ud800.mp4", "loop": "loop.mp4"},
        **{"in a loop": "loop/a.mp4", "in a file": "good.mp4/a.mp4", "pipe": "pipe.mp4", "pipe image": "pipe.jpg"},
        **{"pipe tar": "pipe.tar#a.mp4", "pipe index": "packed/a.mp4", "pipe frame": "images", "socket": "socket.mp4"},
        **{"device": "/dev/zero", "terminal": "/dev/tty", "folder": "sub.mp4", "long member": f"good.tar#{LONG}"},
    }
    listening.close()


@pytest.fixture(autouse=True)
def no_hang():
    """A wait for the writer of a pipe ends the test, not the suite."""
    import signal

    def end(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_it_is_no_video(odd, tmp_path):
    for kind, name in odd.items():
        for path in (name, tmp_path / name):
            error = VidsslError if kind == "pipe index" else DecodeError  # a damaged index of packed frames is no video
            with pytest.raises(error) as caught:
                open_video(path, fps=1.0)
            assert "\n" not in str(caught.value)


def test_as_an_input(odd):
    for name in odd.values():
        with pytest.raises(VidsslError):
            for record in read_input(name).records:
                open_video(record.path)


def test_in_a_list_it_is_a_broken_video(odd, tmp_path):
    """check names each; features leave them out; the good video is there."""
    names = [name for kind, name in odd.items() if kind not in ("NUL", "NUL folder", "surrogate", "pipe index")]
    (tmp_path / "list.csv").write_text("path,fps\n" + "".join(f'"{name}",5\n' for name in names) + "good.mp4,\n")
    checked = vidssl.check(tmp_path / "list.csv", out=tmp_path / "out", root=tmp_path, allow_external=True, workers=1)
    assert checked.kept == 1 and [finding.path for finding in checked.findings] == names
    listed = read_list(tmp_path / "list.csv", tmp_path, allow_external=True)
    features = vidssl.extract("vidssl-small", listed, clips=1, crops=1, workers=0, allow_missing=True, progress=False)
    assert features.index.tolist() == [len(names)]
    assert sorted(path for path, _ in features.missing) == sorted(record.path for record in listed.records[:-1])


@pytest.mark.parametrize("name", ["pipe.pt", f"{LONG}.pt", "a\0.pt", "loop", "sub.mp4", "/dev/zero", "a\ud800"])
def test_as_weights(odd, name):
    with pytest.raises(CheckpointError) as caught:
        load_backbone(name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["root.txt", "classes.txt"])
def test_a_pipe_beside_a_list(tmp_path, name):
    (tmp_path / "list.csv").write_text("path\na.mp4\n")
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match=f"{name} is not a file"):
        read_list(tmp_path / "list.csv")


def test_a_root_that_no_folder_can_be(tmp_path):
    (tmp_path / "list.csv").write_text("path\na.mp4\n")
    (tmp_path / "root.txt").write_bytes(b"a\0b\n")
    with pytest.raises(DataError, match=r"has a NUL byte: write root\.txt again"):
        read_list(tmp_path / "list.csv")
