"""Groups of recordings, classes of folders, and the choice of some videos of each class."""

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vidssl
from vidssl.base.errors import ConfigError
from vidssl.data.label_videos import label_videos
from vidssl.data.read_input import read_input
from vidssl.data.read_labels import find_labelled, read_labels
from vidssl.data.recordings_and_class_folders import chosen_rows, labelled_by_folders, recording_groups, recordings_by
from vidssl.data.video_list import Records, join_lists, read_list


@pytest.fixture
def folder(digits, tmp_path):
    """Two classes of three videos, the last of which are copies of one file."""
    files = sorted((digits / "videos/test").glob("*.mp4"))
    for n, name in enumerate(("b/p1_x.mp4", "b/p1_y.mp4", "b/p2_x.mp4", "a/p1_x.mp4", "a/p3_x.mp4", "a/p3_y.mp4")):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(files[min(n, 4)], tmp_path / "videos" / name)
    return tmp_path / "videos"


def parts(groups, videos):
    return {tuple(np.array([*videos.names])[groups.number == number]) for number in range(groups.number.max() + 1)}


def test_groups_of_a_pattern(folder):
    videos = read_input(folder)
    groups = recording_groups(videos, r"p\d")
    assert parts(groups, videos) == {
        ("a/p1_x.mp4", "b/p1_x.mp4", "b/p1_y.mp4"),
        ("a/p3_x.mp4", "a/p3_y.mp4"),
        ("b/p2_x.mp4",),
    }
    assert groups.how == r"each text that p\d matches in the paths is one"
    assert len(parts(recording_groups(videos, "p3"), videos)) == 5  # each file without a match is alone
    with pytest.raises(ConfigError, match=r"matches nothing in all 6 paths, such as a/p1_x.mp4"):
        recording_groups(videos, "person")
    with pytest.raises(ConfigError, match=r"matches '.mp4' in all 6 paths"):
        recording_groups(videos, r"\.mp4")
    with pytest.raises(ConfigError, match="is not a regular expression"):
        recording_groups(videos, "(")


def test_groups_of_a_list(folder):
    """Also of its spans, after a subset and other labels; a row without a group is one, and a pattern comes first."""
    rows = ("b/p1_x.mp4,0,ann", "b/p1_y.mp4,0,", "b/p2_x.mp4,0,ann", "a/p1_x.mp4,1,ben", "a/p3_x.mp4,1,ben")
    (folder / "list.csv").write_text("\n".join(["path,label,group", *rows]))
    videos = read_list(folder / "list.csv")
    expected = {("b/p1_x.mp4", "b/p2_x.mp4"), ("b/p1_y.mp4",), ("a/p1_x.mp4", "a/p3_x.mp4")}
    (folder / "my.csv").write_text("path,label\np1_y.mp4,x\np2_x.mp4,x\nb/p1_x.mp4,y\n")
    for of in (videos, videos.rows(range(5)), label_videos(videos, folder / "my.csv"), join_lists([videos], [2.0])):
        groups = recording_groups(of)
        assert parts(groups, of) == expected and groups.stated and groups.how.startswith("each group of the list is")
    named = find_labelled({folder / "my.csv": read_labels(folder / "my.csv")}, videos)
    assert {Path(record.path).name: record.group for record in named.records} == {
        "p1_x.mp4": "ann", "p2_x.mp4": "ann", "p1_y.mp4": None
    }  # fmt: skip
    vidssl.extract("floor:thumbnails", videos, out=folder / "f", workers=0, device="cpu")  # what map and predict read
    stored = vidssl.load_features(folder / "f").records
    assert [record.group for record in stored] == [record.group for record in videos.records]
    assert len(parts(recording_groups(videos, "p[13]"), videos)) == 3
    rows = [replace(videos.records.row(n), group="ben") for n in range(5)]
    assert replace(videos, records=Records(videos.root, rows)).fingerprint != videos.fingerprint


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        (r"p\d", ["p1", "p2", "p1", None]),
        (r"p(\d)_", ["1", "2", "1", None]),
        (r"(p\d)_(\w)", ["p1", "p2", "p1", None]),
        (r"(?:p\d)", ["p1", "p2", "p1", None]),
        (r"p1|(p2)", [None, "p2", None, None]),  # the group took no part
        (r"x*", [None, None, None, None]),  # matches the empty text
    ],
)
def test_one_rule_for_patterns(pattern, wanted):
    assert recordings_by(pattern, ["b/p1_x.mp4", "b/p2_y.mp4", "a/p1_z.mp4", "other.avi"]) == wanted


def spans(folder, names):
    """Two spans of each file."""
    rows = "".join(f"{name},{n % 2},{start},{start + 0.1}\n" for n, name in enumerate(names) for start in (0, 0.1))
    (folder / "spans.csv").write_text("path,label,start,end\n" + rows)
    return read_input(folder / "spans.csv")


@pytest.mark.parametrize("pattern", [r"(p[12])_\w+\.mp4", None], ids=["a pattern", "names"])
def test_spans_and_equal_files_are_one_recording(folder, pattern, caplog):
    """Also of files in which the pattern, or the rule of UCF101's names, finds none: these are counted and named."""
    names = ["b/p1_x.mp4", "b/p1_y.mp4", "a/p1_x.mp4", "b/p2_x.mp4", "a/p3_x.mp4", "a/p3_y.mp4"]
    if pattern is None:
        named = [f"v_Archery_g0{n}_c01.mp4" if n < 4 else f"other{n}.mp4" for n in (1, 1, 1, 2, 4, 5)]
        named[1:3] = "v_Archery_g01_c02.mp4", "v_Archery_g01_c03.mp4"
        for old, new in zip(names, named, strict=True):
            (folder / old).rename(folder / new)
        names = named
    (folder / "v_Archery_g07_c01.mp4").symlink_to(folder / names[3])
    (folder / "lone.mp4").write_bytes((folder / names[0]).read_bytes() + b"\0")
    names += ["v_Archery_g07_c01.mp4", "lone.mp4"]
    videos = spans(folder, names)
    groups = recording_groups(videos, pattern)
    actual = {tuple(sorted({*part})) for part in parts(groups, videos)}
    assert actual == {tuple(sorted(part)) for part in (names[:3], [names[3], names[6]], names[4:6], names[7:])}
    lacking = names[4:] if pattern else [*names[4:6], names[7]]
    assert f"; {len(lacking)} of 8 files have none and count alone, such as {lacking[0]}" in groups.how
    assert f"{len(lacking)} of 8 files have none and count alone: {', '.join(lacking[:3])}" in caplog.text
    assert groups.how.endswith("of files of other recordings joined to these") and groups.stated


def test_spans_of_a_file_are_one_recording_however_it_is_named(folder):
    (folder / "spans.csv").write_text("path,start,end\na/p1_x.mp4,0,0.1\n./a/p1_x.mp4,0.1,0.2\nb/p2_x.mp4,0,0.1\n")
    number = recording_groups(read_input(folder / "spans.csv")).number
    assert number[0] == number[1] != number[2]


def test_groups_of_names_and_of_equal_files(folder):
    videos = read_input(folder)
    groups = recording_groups(videos)
    assert len(parts(groups, videos)) == 5 and ("a/p3_x.mp4", "a/p3_y.mp4") in parts(groups, videos)
    joined = groups.joined([(0, 2), (2, 3)], "near")
    assert joined.how == "near" and len(parts(joined, videos)) == 3 and len({*joined.number[:4].tolist()}) == 1
    for n, path in enumerate(sorted(folder.rglob("*.mp4"))):
        path.rename(path.with_name(f"v_Archery_g{n // 2:02d}_c{n % 2:02d}.mp4"))
    videos = read_input(folder)
    named = recording_groups(videos)
    assert "_gNN_" in named.how and len({*named.number.tolist()}) == 2  # of the three two have a file in common


def test_classes_of_folders(folder):
    videos = labelled_by_folders(read_input(folder))
    assert videos.classes == ("a", "b") and videos.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert [record.path for record in videos.records] == [record.path for record in read_input(folder).records]
    shutil.copy(folder / "a/p1_x.mp4", folder / "loose.mp4")  # has no class, and takes none from the others
    assert labelled_by_folders(read_input(folder)).labels.tolist() == [0, 0, 0, 1, 1, 1, -1]
    (folder / "loose.mp4").unlink()
    (folder / "c").mkdir()
    shutil.copy(folder / "a/p1_x.mp4", folder / "c/only.mp4")  # does not take the classes of the others
    assert labelled_by_folders(read_input(folder)).labels.tolist() == [0, 0, 0, 1, 1, 1, 2]
    for number in range(6):
        (folder / f"d{number}").mkdir()
        shutil.copy(folder / "a/p1_x.mp4", folder / f"d{number}/only.mp4")
    assert labelled_by_folders(read_input(folder)).classes == ()
    assert len(labelled_by_folders(read_input(folder), requested=True).classes) == 9


def test_some_videos_of_each_class(digits):
    videos = read_input(digits / "colour/train.csv")
    rows = chosen_rows(videos, 18)
    assert rows == sorted({*rows}) and len(rows) == 18 and rows == chosen_rows(videos, 18)
    counts = Counter(videos.labels[rows].tolist())
    there = Counter(videos.labels.tolist())
    assert max(counts.values()) - min(count for label, count in counts.items() if count < there[label]) <= 1
    assert chosen_rows(videos, 10**6) == [*range(len(videos.records))]
