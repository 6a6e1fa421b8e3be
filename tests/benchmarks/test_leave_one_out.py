"""benchmarks/leave_one_out.py: each video is tested once, with no video of its group in the training list."""

import sys
from pathlib import Path

import pytest

from vidssl.data.video_list import read_list

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script(import_from):
    return import_from(BENCHMARKS, "leave_one_out")


@pytest.fixture
def videos(tmp_path):
    names = [f"wave/p{person}_{take}.mp4" for person in (3, 1, 2) for take in range(2)]
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "classes.txt").write_text("wave\n")
    (tmp_path / "lists" / "root.txt").write_text(f"{tmp_path}\n")
    (tmp_path / "lists" / "train.csv").write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    (tmp_path / "groups.csv").write_text("path,group\n" + "".join(f"{name},{name[6]}\n" for name in names))
    return tmp_path, names


@pytest.mark.parametrize("how", ["expression", "file"])
def test_each_group_is_left_out_once(script, videos, monkeypatch, how):
    folder, names = videos
    groups = ["--group", r"p(\d)_"] if how == "expression" else ["--groups", str(folder / "groups.csv")]
    arguments = [str(folder / "lists" / "train.csv"), *groups, "--out", str(folder / "out")]
    monkeypatch.setattr(sys, "argv", ["leave_one_out.py", *arguments])
    script.main()
    tested = []
    for split, person in ((1, "1"), (2, "2"), (3, "3")):
        train, test = (read_list(folder / "out" / f"split{split}" / f"{half}.csv") for half in ("train", "test"))
        assert {name[6] for name in test.names} == {person} and train.classes == ("wave",)
        assert [*train.names] == [name for name in names if name[6] != person]
        tested += test.names
    assert sorted(tested) == sorted(names)
