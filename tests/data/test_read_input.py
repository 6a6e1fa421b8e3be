"""A folder, a pattern or a file where a list is asked for."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from vidssl import cli
from vidssl.apps.prepare.folder import prepare_folder
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.read_input import read_input
from vidssl.data.video_list import read_list

TOY = Path(__file__).parents[2] / "configs" / "toy" / "sce.yaml"


@pytest.fixture
def folder(digits, tmp_path):
    """Three videos in two folders, one with awkward letters in its name."""
    records = read_list(digits / "motion/test.csv").records
    for n, name in enumerate(("a/1.mp4", "a/it's <2>, [two].mp4", "b/deep/3.MP4")):
        target = tmp_path / "videos" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(records[n].path, target)
    (tmp_path / "videos" / "notes.txt").write_text("no video")
    return tmp_path / "videos"


def image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))


def names(path):
    return [*read_input(path).names]


def test_a_folder_a_pattern_and_a_file(folder):
    every = ["a/1.mp4", "a/it's <2>, [two].mp4", "b/deep/3.MP4"]
    assert names(folder) == every and names(str(folder)) == every
    assert names(folder / "*" / "*.mp4") == ["1.mp4", "it's <2>, [two].mp4"]
    assert names(folder / "**" / "*") == every
    assert names(folder / every[1]) == ["it's <2>, [two].mp4"]
    for record in read_input(folder / "**" / "*").records:
        assert record.label == -1 and (folder.parent / record.path).is_file()


@pytest.mark.parametrize("name", ["x.y4m", "deep/x.MXF", "x.nut", "x.apng", "x.heic"])
def test_videos_that_are_not_listed_are_counted(folder, caplog, name):
    (folder / "deep").mkdir()
    (folder / name).write_bytes(b"video")
    assert len(names(folder)) == 3
    assert f"{folder}: 1 {Path(name).suffix.lower()} are not listed, other extensions are: .3gp .avi" in caplog.text
    assert "notes" not in caplog.text and ".txt" not in caplog.text
    caplog.clear()
    (folder / ".hidden.txt").touch()
    report = prepare_folder(folder, folder.parent / "lists", labels="none")
    others = ", ".join(sorted((f"1 {Path(name).suffix.lower()}", "1 .txt", "1 videos, images or hidden files")))
    assert f"3 other files ignored ({others})" in report
    assert "are not listed" in caplog.text


def test_frames_and_images(tmp_path):
    for n in range(3):
        image(tmp_path / "frames" / "x" / f"img_{n:04}.jpg")
        image(tmp_path / "frames" / "y" / f"img_{n:04}.jpg")
    for name in ("cat.png", "house.jpg"):
        image(tmp_path / "images" / "some" / name)
    assert names(tmp_path / "frames") == ["x", "y"]
    assert names(tmp_path / "frames" / "x") == ["x"]
    assert names(tmp_path / "images") == ["some/cat.png", "some/house.jpg"]


def test_a_list_is_read_as_a_list(digits):
    path = digits / "motion/test.csv"
    assert read_input(path).fingerprint == read_list(path).fingerprint


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *(("empty", "no videos and no images"), ("missing", "does not exist"), ("*.mp4", "no video or image matches")),
        ("a.mp4@0:1", "a span is FILE@START-END, in seconds, of a query alone; else give a CSV file path,start,end"),
    ],
)
def test_nothing_is_found(tmp_path, name, part):
    (tmp_path / "empty").mkdir()
    if "@" in name:
        (tmp_path / "a.mp4").write_bytes(b"x")
    with pytest.raises(DataError, match=part) as caught:
        read_input(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_the_root_of_a_list_is_not_for_folders(folder):
    with pytest.raises(DataError, match="root=FOLDER"):
        read_input(folder, folder)


def test_training_on_a_folder_writes_its_list(folder, tmp_path, capsys):
    out = tmp_path / "run"
    settings = [f"output={out}", "steps=1", "batch_size=3", "data.workers=0", "device=cpu"]
    cli.run("train", ["--cfg", str(TOY), str(folder), *settings, "--quiet"])
    assert [*read_list(out / "videos/train.csv").names] == names(folder)
    assert (out / "checkpoints/last.pt").exists()

    before = (out / "videos/train.csv").read_bytes()
    shutil.copy(folder / "a/1.mp4", folder / "a/2.mp4")
    with pytest.raises(
        ConfigError, match=r"other videos than when the run in .* began: .*data.train=.*videos/train.csv"
    ):
        cli.run("train", ["--cfg", str(TOY), str(folder), *settings, "steps=2", "--quiet"])
    assert (out / "videos/train.csv").read_bytes() == before
