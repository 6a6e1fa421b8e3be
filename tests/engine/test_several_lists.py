"""Runs on several lists: interrupted and straight ones are equal, and lists that do not fit are refused."""

import runpy
import shutil
from pathlib import Path

import pytest
import torch

from vidssl.base.errors import CheckpointError, ConfigError, DataError
from vidssl.data.video_list import ListPart, read_list
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.train import train
from vidssl.engine.training_lists import training_list

EQUAL = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))


@pytest.fixture
def two(toy_folder, tmp_path):
    """Setting of two lists: 40 videos, and 16 whose root is a copy; `two("weight: 2")` adds to the second."""
    copies = tmp_path / "copies"
    shutil.copytree(toy_folder / "data/videos/test", copies / "videos/test")

    def make(more="weight: 1.5", kind="motion", root=copies):
        first = f"{toy_folder}/data/motion/train.csv"
        return f"data.train=[{first}, {{list: {toy_folder}/data/{kind}/test.csv, root: {root}, {more}}}]"

    return make


def saved(folder):
    return torch.load(folder / "checkpoints" / "last.pt", weights_only=True)


@pytest.mark.parametrize("name", ["npid", "sce"])
def test_an_interrupted_run_on_two_lists_is_a_straight_one(name, toy_run, two, tmp_path, toy_folder):
    train(toy_run(name, "straight", two(), "epochs=1.5", "steps=null"))
    for until in (3, 9, None):  # 64 samples are an epoch, 8 steps
        train(toy_run(name, "parts", two(), "epochs=1.5", "steps=null"), until)
    straight, parts = saved(tmp_path / "straight"), saved(tmp_path / "parts")
    for content in (straight, parts):
        del content["config"]
    EQUAL["same"](parts, straight)
    lines = EQUAL["logged"](tmp_path / "parts")
    assert lines == EQUAL["logged"](tmp_path / "straight")
    assert (straight["step"], len(lines)) == (12, 12) and [line["epoch"] for line in lines][7::4] == [1.0, 1.5]
    assert straight["data"]["root"] == [str(toy_folder / "data"), str(tmp_path / "copies")]
    assert straight["data"]["files"] == 56
    if name == "npid":
        assert straight["method"]["bank.rows"].shape[0] == 56 and straight["method"]["bank.seen"].sum() > 40


def test_the_same_lists_elsewhere_go_on_and_others_are_refused(toy_run, two, tmp_path, caplog, toy_folder):
    train(toy_run("supervised", "a", two(), "steps=3"), until=1)
    shutil.copytree(tmp_path / "copies", tmp_path / "moved")
    train(toy_run("supervised", "a", two(root=tmp_path / "moved"), "steps=3"), until=2)
    assert "was trained on other files: data.root" in caplog.text and "exact only if" in caplog.text
    message = r"other settings: other videos than .*train\.csv and .*test\.csv lists, or other weights of lists;"
    with pytest.raises(CheckpointError, match=message):
        train(toy_run("supervised", "a", two("weight: 2"), "steps=3"))
    with pytest.raises(CheckpointError, match=r"other settings: other videos than .*train\.csv lists, or"):
        train(toy_run("supervised", "a", f"data.train={toy_folder}/data/motion/train.csv", "steps=3"))


def test_a_weight_that_was_removed_is_named(toy_run, toy_folder):
    path = f"{toy_folder}/data/motion/train.csv"
    train(toy_run("supervised", "a", f"data.train=[{{list: {path}, weight: 2}}]", "steps=2"), until=1)
    with pytest.raises(CheckpointError, match=r"train\.csv lists, or other weights of lists; choose another output"):
        train(toy_run("supervised", "a", f"data.train={path}", "steps=2"))


def test_labels_count_only_if_the_classes_are_equal(toy_run, two):
    assert (training_list(toy_run("supcon", "a", two())).labels >= 0).all()
    other = two(kind="digit")
    videos = training_list(toy_run("sce", "a", other))
    assert (videos.labels == -1).all() and videos.classes == ()
    for name in ("supcon", "supervised"):
        with pytest.raises(
            DataError, match=r"train\.csv and .*test\.csv have different classes\.txt \(8 and \d+ class"
        ):
            training_list(toy_run(name, "a", other))


def test_a_subset_is_drawn_from_each_list(toy_run, two, toy_folder):
    videos = training_list(toy_run("sce", "a", two("weight: 2", kind="digit"), "data.subset={per_class: 1}"))
    digits = len(read_list(toy_folder / "data/digit/test.csv").classes)
    assert videos.joined == (ListPart(8, 8), ListPart(digits, 2 * digits))


def test_a_video_in_two_lists_is_refused(toy_run, toy_folder, two):
    lists = [f"{toy_folder}/data/{kind}/train.csv" for kind in ("motion", "digit")]
    message = (
        r"^40 videos of .*digit/train\.csv are in .*motion/train\.csv too, the first 'videos/train/\d+\.mp4': keep"
    )
    with pytest.raises(DataError, match=message):
        training_list(toy_run("sce", "a", f"data.train=[{', '.join(lists)}]"))
    with pytest.raises(DataError, match=r"^40 videos of .* are in .* too"):
        training_list(toy_run("sce", "a", f"data.train=[{lists[0]}, {lists[0]}]"))


def test_data_root_is_for_the_lists_without_one(toy_run, two, toy_folder, tmp_path):
    root = toy_folder / "data"
    shutil.copytree(root / "videos/train", tmp_path / "small/videos/train")
    videos = training_list(toy_run("sce", "a", two(), f"data.root={tmp_path}/small"))
    assert videos.records.roots == [tmp_path / "small", tmp_path / "copies"]
    message = rf"^none of the videos of .*motion/test\.csv are in {tmp_path}/small: set the folder of this list"
    with pytest.raises(DataError, match=message):
        training_list(toy_run("sce", "a", two(root="null"), f"data.root={tmp_path}/small"))


def test_tracks_need_names_that_differ(toy_run, two, toy_folder, tmp_path):
    videos = training_list(toy_run("frame_invariance_tracks", "a", two()))
    assert RunTracks(toy_run("frame_invariance_tracks", "a", two()), videos).due(0)
    shutil.copytree(toy_folder / "data/videos/train", tmp_path / "again/videos/train")
    path = f"{toy_folder}/data/motion/train.csv"
    settings = f"data.train=[{path}, {{list: {path}, root: {tmp_path}/again}}]"
    videos = training_list(toy_run("sce", "a", settings))
    RunTracks(toy_run("sce", "a", settings), videos)  # without tracks names may be equal
    with pytest.raises(DataError, match=r"would have one file of tracks: rename one of the videos"):
        RunTracks(toy_run("frame_invariance_tracks", "a", settings), videos)


def test_tracks_are_renewed_after_so_many_epochs_of_all_lists(toy_run, two):
    run = toy_run("frame_invariance_tracks", "a", two("weight: 2.5"), "tracks.refresh=1")
    tracks = RunTracks(run, training_list(run))  # 40 + 40 samples are 10 steps
    assert [step for step in range(31) if tracks.due(step)] == [0, 10, 20, 30]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[a.csv, {list: b.csv, wieght: 2}]", r"data\.train\.1\.wieght: unknown key \(did you mean 'weight'\?\)"),
        (
            "[a.csv, {weight: 0}]",
            r"data\.train\.1\.list: is required; data\.train\.1\.weight: .* greater than 0, got 0",
        ),
        ("[{list: a.csv, weight: .inf}]", r"data\.train\.0\.weight: .* less than or equal to 10000"),
        ("[]", r"data\.train: .* at least 1 item"),
        ("[3]", r"data\.train\.0: Input should be .*, got 3"),
        ("{list: a.csv}", r"data\.train: Input should be a valid array$"),
        ("null", r"data\.train: Input should be a valid string, got null"),
    ],
)
def test_mistakes_are_named(given, message, toy_run):
    with pytest.raises(ConfigError, match=message):
        toy_run("sce", "a", f"data.train={given}")
