"""Lists of folders: groups stay together, shares are whole groups, names survive, mistakes are named."""

import csv
import re
import runpy
import sys
from pathlib import Path

import pytest

from vidssl.data.lists import prepare_folder
from vidssl.data.records import read_list
from vidssl.errors import ConfigError, DataError

REAL = Path(__file__).parents[3] / "shared" / "data"
SCRIPT = Path(__file__).parents[2] / "datasets" / "prepare_folder.py"


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


@pytest.fixture
def actions(tmp_path):
    """Two classes, nine persons, two clips of each person in each class."""
    names = [f"{c}/person{p:02d}_{s}.mp4" for c in ("run", "walk") for p in range(9) for s in "ab"]
    return touch(tmp_path / "actions", *names)


def labels_csv(path, rows, header="path,label,camera"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_folder_of_classes(actions, tmp_path):
    made = prepare_folder(actions, tmp_path / "lists", group=r"person\d+")
    train, test = (read_list(tmp_path / "lists" / f"{side}.csv") for side in ("train", "test"))
    assert train.classes == ("run", "walk") == made.classes
    assert (len(train.names), len(test.names)) == (24, 12)  # 3 of 9 persons
    assert not set(train.names) & set(test.names)
    for found in (train, test):
        assert all(Path(record.path).is_file() for record in found.records)
        assert all(
            found.class_name(r.label) == n.split("/")[0]
            for n, r in zip(found.names, found.records, strict=True)
        )
    assert (tmp_path / "lists" / "root.txt").read_text() == f"{actions}\n"
    assert (tmp_path / "lists" / "train.csv").read_text().startswith("path,label\n")


@pytest.mark.parametrize(
    ("pattern", "groups"),
    [(r"person\d+", 9), (r"person(\d)", 1), (r"person\d(\d)_", 9), (r"^\w+/", 2), (None, 36)],
)
def test_groups_stay_on_one_side(actions, tmp_path, pattern, groups):
    if groups == 1:
        with pytest.raises(DataError, match="one group, '0': give --test 0"):
            prepare_folder(actions, tmp_path / "lists", group=pattern)
        return
    made = prepare_folder(actions, tmp_path / "lists", group=pattern)
    sides = [{clip.group for clip in side} for side in (made.train, made.test)]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == groups


@pytest.mark.parametrize(
    ("share", "count"),
    [(0.01, 1), (0.16, 1), (0.17, 2), (0.33, 3), (0.38, 3), (0.39, 4), (0.5, 5), (0.99, 8)],
)
def test_share_is_rounded_to_groups(actions, tmp_path, share, count):
    made = prepare_folder(actions, tmp_path / "lists", test=share, group=r"person\d+")
    assert len({clip.group for clip in made.test}) == count
    assert len({clip.group for clip in made.train}) == 9 - count


def test_seed_decides_and_repeats(actions, tmp_path):
    def test_list(seed, out):
        prepare_folder(actions, tmp_path / out, group=r"person\d+", seed=seed)
        return (tmp_path / out / "test.csv").read_bytes()

    assert test_list(0, "a") == test_list(0, "b") == test_list(0, "a")
    assert len({test_list(seed, f"s{seed}") for seed in range(8)}) > 3


def test_without_test_list(actions, tmp_path):
    made = prepare_folder(actions, tmp_path / "lists", test=0)
    assert (len(made.train), len(made.test)) == (36, 0)
    assert sorted(p.name for p in (tmp_path / "lists").iterdir()) == ["classes.txt", "root.txt", "train.csv"]


def test_stale_lists_are_refused(actions, tmp_path):
    prepare_folder(actions, tmp_path / "lists")
    with pytest.raises(DataError, match=r"test\.csv of other lists"):
        prepare_folder(actions, tmp_path / "lists", test=0)


def test_flat_folder_has_no_labels(tmp_path):
    root = touch(tmp_path / "flat", "a.mp4", "b.AVI", "c.webm", "notes.txt", ".hidden.mp4", ".trash/d.mp4")
    made = prepare_folder(root, tmp_path / "lists", test=0.34)
    assert made.ignored == 2  # a folder that is hidden is not looked into
    train = read_list(tmp_path / "lists" / "train.csv")
    assert [record.label for record in train.records] == [-1, -1]
    assert not (tmp_path / "lists" / "classes.txt").exists()


def test_images_are_listed_where_they_are_asked_for(tmp_path):
    """Not else: a folder of images may be a video, and then each of them is a frame."""
    names = [f"{c}/{n}{suffix}" for c in ("cat", "dog") for n, suffix in enumerate((".jpg", ".PNG", ".webp"))]
    root = touch(tmp_path / "pictures", *names, "cat/clip.mp4", "cat/notes.txt", "dog/.4.png")
    made = prepare_folder(root, tmp_path / "a", test=0, images=True)
    found = read_list(tmp_path / "a" / "train.csv")
    assert sorted(found.names) == sorted(names) and found.classes == ("cat", "dog") and made.ignored == 3
    assert prepare_folder(root, tmp_path / "b", test=0).train[0].path == "cat/clip.mp4"
    (root / "cat/clip.mp4").unlink()
    with pytest.raises(DataError, match="no videos in"):
        prepare_folder(root, tmp_path / "c")
    with pytest.raises(DataError, match=r"no images in .*; known are \.bmp \.jpeg"):
        prepare_folder(touch(tmp_path / "videos", "a/b.mp4"), tmp_path / "c", images=True)


def test_loose_videos_beside_classes_are_refused(actions, tmp_path):
    touch(actions, "loose.mp4")
    with pytest.raises(DataError, match=r"also loose videos \('loose.mp4'\)"):
        prepare_folder(actions, tmp_path / "lists")


def test_awkward_names_survive(tmp_path):
    names = [
        "a b/#1;&![]() '.mp4",
        "a b/-dash.mp4",
        'a b/comma, "quoted".avi',
        "größe/日本 語.mkv",
        "größe/ blank .mp4",
        "größe/100%~$HOME`x`.mp4",
        "größe/deep/er/file.mp4",
    ]
    root = touch(tmp_path / "odd, 'root' #1", *names)
    prepare_folder(root, tmp_path / "lists", test=0)
    found = read_list(tmp_path / "lists" / "train.csv")
    assert sorted(found.names) == sorted(names)
    assert found.classes == ("a b", "größe")
    assert all(Path(record.path).is_file() for record in found.records)


@pytest.mark.parametrize("name", ["c/line\nbreak.mp4", "c/x\u2028y.mp4", "c\r/x.mp4"])
def test_line_breaks_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="holds a line break: rename it"):
        prepare_folder(touch(tmp_path / "root", name, "c/a.mp4"), tmp_path / "lists")


def test_links_that_leave_the_folder_are_refused(actions, tmp_path):
    (actions / "run" / "inner.mp4").symlink_to(actions / "run" / "person00_a.mp4")
    assert len(prepare_folder(actions, tmp_path / "inside").train) > 0
    touch(tmp_path, "secret.mp4")
    (actions / "run" / "outer.mp4").symlink_to(tmp_path / "secret.mp4")
    with pytest.raises(DataError, match=r"outer\.mp4 is a link that leaves"):
        prepare_folder(actions, tmp_path / "lists")
    (actions / "run" / "outer.mp4").unlink()
    (actions / "stolen").symlink_to(tmp_path)
    with pytest.raises(DataError, match="stolen is a link that leaves"):
        prepare_folder(actions, tmp_path / "lists")


def test_file_without_group_is_named(actions, tmp_path):
    touch(actions, "run/nobody.mp4")
    with pytest.raises(DataError, match=r"finds no group in 'run/nobody\.mp4'"):
        prepare_folder(actions, tmp_path / "lists", group=r"person\d+")
    assert not (tmp_path / "lists").exists()


def test_empty_folders(tmp_path):
    with pytest.raises(DataError, match="no videos in") as caught:
        prepare_folder(touch(tmp_path / "empty", "readme.md"), tmp_path / "lists")
    assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="is not a folder"):
        prepare_folder(tmp_path / "nowhere", tmp_path / "lists")


def test_labels_csv(actions, tmp_path):
    rows = [
        f"run/person{p:02d}_{s}.mp4,{'fast, very' if p % 2 else 'slow'!r},{p // 3}"
        for p in range(9)
        for s in "ab"
    ]
    rows = [row.replace("'", '"') for row in rows]
    labels = labels_csv(tmp_path / "labels.csv", rows)
    made = prepare_folder(actions, tmp_path / "lists", labels=labels, group_column="camera")
    assert made.classes == ("fast, very", "slow")
    assert made.ignored == 18  # the other class folder
    assert len({clip.group for clip in made.train}) == 2
    assert len({clip.group for clip in made.test}) == 1
    found = read_list(tmp_path / "lists" / "train.csv")
    for name, record in zip(found.names, found.records, strict=True):
        assert (int(re.search(r"person(\d+)", name)[1]) % 2 == 1) == (
            found.class_name(record.label) == "fast, very"
        )


@pytest.mark.parametrize("labelled", [False, True])
def test_only_the_classes_that_are_named(actions, tmp_path, labelled):
    touch(actions, "jump/person00_a.mp4", "jump/person01_a.mp4")
    (tmp_path / "classes.txt").write_text("walk\njump\n", encoding="utf-8")
    labels = None
    if labelled:
        rows = [f"{c}/person{p:02d}_a.mp4,{c}" for c in ("walk", "run", "jump") for p in range(2)]
        labels = labels_csv(tmp_path / "labels.csv", rows, "path,label")
    made = prepare_folder(
        actions, tmp_path / "lists", labels=labels, test=0, classes=tmp_path / "classes.txt"
    )
    found = read_list(tmp_path / "lists" / "train.csv")
    assert found.classes == made.classes == ("jump", "walk")
    assert {name.split("/")[0] for name in found.names} == {"jump", "walk"}
    assert len(found.names) == (4 if labelled else 20)
    assert all(
        found.class_name(r.label) == n.split("/")[0] for n, r in zip(found.names, found.records, strict=True)
    )


def test_a_class_that_is_named_must_be_there(actions, tmp_path):
    (tmp_path / "classes.txt").write_text("walk\nswim\nfly\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"classes\.txt: 2 of 3 classes have nothing in .*: 'fly', 'swim'$"):
        prepare_folder(actions, tmp_path / "lists", classes=tmp_path / "classes.txt")
    assert not (tmp_path / "lists").exists()


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (
            "path,label",
            "run/person00_a.mp4,run",
            r"labels\.csv:1: header 'path,label' lacks the column camera",
        ),
        (
            "path,label,camera",
            "run/person00_a.mp4,run",
            r"labels\.csv:2: every row needs path, label, camera",
        ),
        ("path,label,camera", "run/a,b.mp4,run,1", r"labels\.csv:2: every row needs"),
        ("path,label,camera", "../x.mp4,run,1", r"labels\.csv:2: '\.\./x\.mp4' leaves"),
        ("path,label,camera", "/etc/x.mp4,run,1", r"labels\.csv:2: '/etc/x\.mp4' leaves"),
        ("path,label,camera", "run/no.mp4,run,1", r"1 of 1 files named in .* \('run/no\.mp4'\): restore"),
        (
            "path,label,camera",
            "run/person00_a.mp4,run,1\n./run/person00_a.mp4,run,1",
            r":3: .* was named before",
        ),
    ],
)
def test_mistakes_in_labels(actions, tmp_path, header, row, message):
    labels = labels_csv(tmp_path / "labels.csv", [row], header)
    with pytest.raises(DataError, match=message):
        prepare_folder(actions, tmp_path / "lists", labels=labels, group_column="camera")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, r"1\.0, it must be in \[0, 1\)"),
        ({"test": -0.1}, "must be in"),
        ({"test": float("nan")}, "must be in"),
        ({"seed": -1}, "seed is -1"),
        ({"group": "("}, r"'\(' is no regular expression"),
        ({"group_column": "camera"}, "needs a labels file"),
    ],
)
def test_impossible_options(actions, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        prepare_folder(actions, tmp_path / "lists", **options)


def test_script_reports_and_fails_in_one_line(actions, tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(
            sys, "argv", [str(SCRIPT), str(actions), "--out", str(tmp_path / "lists"), *arguments]
        )
        runpy.run_path(str(SCRIPT), run_name="__main__")

    run("--group", r"person\d+", "--test", "0.33", "--seed", "0")
    printed = capsys.readouterr().out
    assert "36 videos found, 0 other files ignored" in printed
    assert "test: 12 videos of 3 groups" in printed
    assert "walk: 12 train, 6 test" in printed
    with pytest.raises(SystemExit) as caught:
        run("--group", "camera")
    assert caught.value.code == 2
    failed = capsys.readouterr().err
    assert failed.startswith("error: the group pattern 'camera'")
    assert failed.count("\n") == 1


@pytest.mark.skipif(not (REAL / "weizmann").exists(), reason=f"needs the Weizmann clips in {REAL}")
def test_weizmann(tmp_path):
    prepare_folder(REAL / "weizmann", tmp_path, group=r"person\d+")
    train, test = (read_list(tmp_path / f"{side}.csv") for side in ("train", "test"))
    assert (len(train.names), len(test.names)) == (48, 24)
    persons = [{re.search(r"person\d+", name)[0] for name in found.names} for found in (train, test)]
    assert [len(side) for side in persons] == [6, 3]
    assert not persons[0] & persons[1]
    assert [sum(r.label == k for r in test.records) for k in range(4)] == [6, 6, 6, 6]


@pytest.mark.skipif(not (REAL / "surveillance").exists(), reason=f"needs the surveillance clips in {REAL}")
def test_surveillance(tmp_path):
    labels = REAL / "surveillance" / "labels.csv"
    prepare_folder(REAL / "surveillance", tmp_path, labels=labels, group_column="source_id")
    with labels.open(encoding="utf-8", newline="") as file:
        source = {row["path"]: row["source_id"] for row in csv.DictReader(file)}
    train, test = (read_list(tmp_path / f"{side}.csv") for side in ("train", "test"))
    assert len(train.names) + len(test.names) == 300
    sides = [{source[name] for name in found.names} for found in (train, test)]
    assert [len(side) for side in sides] == [31, 15]
    assert not sides[0] & sides[1]
