"""Labels by name: the columns, the videos that names are of, and each mistake to its one line."""

import logging
import os
from pathlib import Path

import pytest

from vidssl.base.errors import DataError
from vidssl.data.annotation_forms import read_annotations
from vidssl.data.read_input import read_input
from vidssl.data.read_labels import NamedLabel, find_labelled, labels_of_folders, match_labels, read_labels


@pytest.fixture
def folder(tmp_path):
    for name in ("a/1.mp4", "a/2.mp4", "b/2.mp4", "b/3.mp4"):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).write_bytes(b"x")
    return tmp_path


def written(folder, text, name="labels.csv"):
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("path,label\na/1.mp4,run\n3.mp4,jump\n", [("a/1.mp4", "run"), ("3.mp4", "jump")]),
        ("a/1.mp4,run\n3.mp4,\n", [("a/1.mp4", "run"), ("3.mp4", "")]),  # without a header
        ("a/1.mp4;run\n3.mp4;jump\n", [("a/1.mp4", "run"), ("3.mp4", "jump")]),
        ('file,behaviour,,\n"a/1.mp4","run, ""fast""",,\n', [("a/1.mp4", 'run, "fast"')]),
        ("file,behaviour,start,end\na/1.mp4,run,1,2\n", [("a/1.mp4", "run", 1.0, 2.0)]),
        ("file;behaviour;start;end\na/1.mp4;run;0,5;1.5\n", [("a/1.mp4", "run", 0.5, 1.5)]),  # decimal commas
        (
            "path,label,start,end\n3.mp4,run,1,2.5\n3.mp4,-1,3,\n",
            [("3.mp4", "run", 1.0, 2.5), ("3.mp4", "", 3.0, None)],
        ),
    ],
)
def test_columns(folder, text, labels):
    actual = read_labels(written(folder, text))
    assert [label[: len(row)] for label, row in zip(actual, labels, strict=True)] == labels


def test_numbers_are_those_of_classes(folder):
    (folder / "classes.txt").write_text("run\njump\n")
    assert [label.label for label in read_labels(written(folder, "path,label\na/1.mp4,1\n3.mp4,-1\n"))] == ["jump", ""]


def test_other_columns_are_named(folder, caplog):
    caplog.set_level(logging.WARNING)
    path = written(folder, "path,label,who,predicted\na/1.mp4,run,me,x\n")
    assert read_labels(path, ["predicted"])[0].label == "run"
    assert [record.getMessage() for record in caplog.records] == [f"{path}: columns that are not used: who"]


@pytest.mark.parametrize("header", ["id,clip,camera,event", "Nr;what;Camera;EVENT", "id\tx\tcamera\tevent"])
def test_the_column_is_named(folder, header, caplog):
    between = "".join(mark for mark in ",;\t" if mark in header)
    path = written(folder, f"{header}\n1,a/1.mp4,A,run\n2,3.mp4,B,jump\n".replace(",", between))
    listed = {column: read_annotations(Path(f"{path}:{column}")) for column in ("event", "camera")}
    assert [(label.name, label.label) for label in listed["event"]] == [("a/1.mp4", "run"), ("3.mp4", "jump")]
    assert [(label.place, label.label) for label in listed["camera"]] == [(f"{path}:2", "A"), (f"{path}:3", "B")]
    assert not caplog.records
    with pytest.raises(DataError, match=r"labels.csv:1: header '.*' has no column who"):
        read_labels(Path(f"{path}:who"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,what,who\na,b,c\n", "labels.csv:1: header 'path,what,who' has no column label: write"),
        ("label\nrun\n", "labels.csv:1: header 'label' names no paths: write path,label[,start,end]"),
        ("path,label\na/1.mp4,run,3\n", "labels.csv:2: 3 fields, the header has 2"),
        ("path,label,start,end\na/1.mp4,run,2,1\n", "labels.csv:2: end 1.0 is not after start 2.0"),
        ("path,label,start,end\na/1.mp4,run,x,1\n", "labels.csv:2: 'x' is not a number"),
        ("path,label\n2.mp4,run\n", "labels.csv:2: 2.mp4 is the name of 2 files"),
        ("path,label\nno.mp4,run\n", "has no label of a video of"),
        ("path,label\n3.mp4,run\nb/3.mp4,jump\n", "labels.csv:3: b/3.mp4 has the label 'jump', in"),
        ("path,label\n../out.mp4,run\n", "leaves the root"),
        ("", "labels.csv has no rows"),
        ("path,label,start,end\na/1.mp4,run,nan,3\n", "labels.csv:2: start nan and end 3.0 must be finite"),
        ("path,label\na/1.mp4,run\n{folder}/videos/a/1.mp4,jump\n", "has the label 'jump', in"),
        ("path,label\na/1.mp4,run\nvideos/../videos/a/1.mp4,jump\n", "has the label 'jump', in"),
    ],
)
def test_mistakes(folder, text, words):
    (folder.parent / "out.mp4").write_bytes(b"x")
    path = written(folder, text.replace("{folder}", str(folder)))
    with pytest.raises(DataError) as error:
        find_labelled({path: read_labels(path)}, read_input(folder / "videos"))
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_label_knows_its_line(folder):
    path = written(folder, "path,label\n\na/1.mp4,run\n")
    assert read_labels(path) == [NamedLabel("a/1.mp4", "run", place=f"{path}:3")]


def test_an_empty_label_says_nothing(folder):
    first = written(folder, "path,label\na/1.mp4,run\n3.mp4,\n")
    second = written(folder, "path,label\na/1.mp4,\n3.mp4,jump\n", "second.csv")
    actual = find_labelled({path: read_labels(path) for path in (first, second)}, read_input(folder / "videos"))
    assert actual.classes == ("jump", "run") and actual.labels.tolist() == [1, 0]


def test_folders_of_classes(folder, monkeypatch):
    (folder / "videos/a/3.mp4").write_bytes(b"y")
    monkeypatch.chdir(folder)
    for path in (Path("videos"), folder / "videos"):
        actual = find_labelled({path: labels_of_folders(path)})
        assert actual.classes == ("a", "b") and actual.labels.tolist() == [0, 0, 0, 1, 1]


def test_the_first_line_is_a_label_where_it_names_a_video(folder, caplog):
    (folder / "frames").mkdir()
    for number in (1, 2):
        (folder / f"frames/{number}.png").write_bytes(b"")
    assert [label.label for label in read_labels(written(folder, "frames,run\na/1.mp4,jump\n"))] == ["run", "jump"]
    assert [label.label for label in read_labels(written(folder, "movie,kind\na/1.mp4,jump\n"))] == ["jump"]
    assert not caplog.records


def test_overlapping_spans_of_two_labels_are_named(folder, caplog):
    text = "path,label,start,end\na/1.mp4,run,0,2\na/1.mp4,jump,1,3\na/1.mp4,jump,4,5\n"
    path = written(folder, text)
    find_labelled({path: read_labels(path)}, read_input(folder / "videos"))
    assert (
        f"1 spans overlap with one of another label, and are examples of both: a/1.mp4 from 1 s ({path}:3)"
        in caplog.text
    )


def test_names_of_no_video_are_named(folder, caplog):
    path = written(folder, "path,label\na/1.mp4,run\nno.mp4,jump\n3.mp4,jump\n")
    for among in (read_input(folder / "videos"), None):
        named = read_labels(path) if among else [*read_labels(path)][:2]
        root = folder if among else folder / "videos"
        actual = find_labelled({root / "labels.csv": named}, among)
        assert len(actual) == len(named) - 1
        assert f"1 of {len(named)} names are of no video" in caplog.records[-1].message
        assert caplog.records[-1].message.endswith(f": no.mp4 ({path}:3)")


@pytest.mark.parametrize(
    ("name", "videos"),
    [
        ("a//1.avi", ["a/1.mp4"]),
        ("./b/.././a/1", ["a/1.mp4"]),
        ("../videos/a/1.MP4", ["a/1.mp4"]),
        ("//server/videos/a/1", ["a/1.mp4"]),
        (".1.mp4", []),
        ("..1.mp4", []),
        ("c/1.mp4", []),
        ("ideos/a/1", []),
        ("my_videos/a/1", []),
    ],
)
def test_parts_of_paths(name, videos, folder):
    named, listed = [NamedLabel(name, "run")], read_input(folder / "videos")
    actual = match_labels({folder / "labels.csv": named}, listed, required=False)
    assert [os.path.relpath(path, folder / "videos") for path, _, _ in actual] == videos


def test_many_files_of_one_name(tmp_path):
    for n in range(20):
        (tmp_path / f"all/{n}/100GOPRO").mkdir(parents=True)
        (tmp_path / f"all/{n}/100GOPRO/GX01.mp4").write_bytes(b"x")
    videos, path = read_input(tmp_path / "all"), tmp_path / "labels.csv"
    actual = match_labels({path: [NamedLabel(f"me/all/{n}/100GOPRO/GX01.avi", str(n)) for n in range(20)]}, videos)
    assert [(Path(file).parts[-3], label.label) for (file, _, _), (_, label) in actual.items()] == [
        (str(n), str(n)) for n in range(20)
    ]
    with pytest.raises(DataError, match="100GOPRO/GX01 is the name of 20 files, such as"):
        match_labels({path: [NamedLabel("100GOPRO/GX01", "run")]}, videos)
