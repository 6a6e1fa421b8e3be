"""Lists of folders: groups stay together, splits are whole groups, names survive, errors name the file."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from vidssl.apps.prepare.folder import prepare_folder
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.recordings_and_class_folders import recording_groups
from vidssl.data.video_list import read_list


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


def prepare(root, out, **options):
    """Prepare a folder; return the report, and what the lists hold."""
    text = prepare_folder(root, out, **options)
    lists = {}
    for path in sorted(out.glob("*.csv"), key=lambda path: (path.stem != "train", path.stem)):
        listed = read_list(path, allow_external=True)
        lists[path.stem] = [SimpleNamespace(path=name) for name in listed.names]
    ignored = int(re.search(r"(\d+) other files ignored", text)[1])
    return SimpleNamespace(text=text, lists=lists, classes=listed.classes, ignored=ignored)


def groups_of(side, pattern):
    """The groups of a list, by the definition of group."""
    each = re.compile(pattern or ".+")
    return {each.search(clip.path)[each.groups] for clip in side}


def labels_csv(path, rows, header="path,label,camera"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_folder_of_classes(actions, tmp_path):
    made = prepare(actions, tmp_path / "lists", group=r"person\d+")
    train, test = (read_list(tmp_path / "lists" / f"{side}.csv") for side in ("train", "test"))
    assert train.classes == ("run", "walk") == made.classes
    assert (len(train.names), len(test.names)) == (24, 12)  # 3 of 9 persons
    assert not set(train.names) & set(test.names)
    for actual in (train, test):
        assert all(Path(record.path).is_file() for record in actual.records)
        assert all(
            actual.class_name(r.label) == n.split("/")[0] for n, r in zip(actual.names, actual.records, strict=True)
        )
    assert (tmp_path / "lists" / "root.txt").read_text() == f"{actions}\n"
    assert (tmp_path / "lists" / "train.csv").read_text().startswith("path,label,group\n")
    for videos in (train, test):  # the commands that compare videos read the groups from the list
        assert [record.group for record in videos.records] == [re.search(r"person\d+", n)[0] for n in videos.names]
        assert recording_groups(videos).number.max() + 1 == len(videos) / 4


@pytest.mark.parametrize(
    ("pattern", "groups"), [(r"person\d+", 9), (r"person(\d)", 1), (r"person\d(\d)_", 9), (r"^\w+/", 2), (None, 36)]
)
def test_groups_stay_on_one_side(actions, tmp_path, pattern, groups):
    if groups == 1:
        with pytest.raises(DataError, match="one group, '0', with exact copies joined: use test=0"):
            prepare_folder(actions, tmp_path / "lists", group=pattern)
        return
    made = prepare(actions, tmp_path / "lists", group=pattern)
    sides = [groups_of(side, pattern) for side in made.lists.values()]
    assert not sides[0] & sides[1]
    assert len(sides[0] | sides[1]) == groups
    assert f"train: {len(made.lists['train'])} videos of {len(sides[0])} groups" in made.text


def test_images_are_listed_on_request(tmp_path):
    """Only on request: a folder of images may be a video whose frames they are."""
    names = [f"{c}/{n}{suffix}" for c in ("cat", "dog") for n, suffix in enumerate((".jpg", ".PNG", ".webp"))]
    root = touch(tmp_path / "pictures", *names, "cat/clip.mp4", "cat/notes.txt", "dog/.4.png")
    made = prepare(root, tmp_path / "a", test=0, images=True)
    listed = read_list(tmp_path / "a" / "train.csv")
    assert sorted(listed.names) == sorted(names) and listed.classes == ("cat", "dog") and made.ignored == 3
    assert prepare(root, tmp_path / "b", test=0).lists["train"][0].path == "cat/clip.mp4"
    (root / "cat/clip.mp4").unlink()
    with pytest.raises(DataError, match="no videos in"):
        prepare_folder(root, tmp_path / "c")
    with pytest.raises(DataError, match=r"no images in .*; known extensions: \.bmp \.jpeg"):
        prepare_folder(touch(tmp_path / "videos", "a/b.mp4"), tmp_path / "c", images=True)


def rows(folder, name):
    """What a list says: each path, and the name of its class."""
    listed = read_list(folder / f"{name}.csv")
    return {path: listed.class_name(r.label) for path, r in zip(listed.names, listed.records, strict=True)}


@pytest.mark.parametrize(
    ("folders", "lists", "suffix"),
    [
        (("train", "test"), ["train", "test"], "mp4"),
        (("train", "val", "test"), ["train", "test", "val"], "png"),
        (("Train", "validation"), ["train", "validation"], "mp4"),
        (("training", "Testing"), ["train", "testing"], "mp4"),
        (("train",), ["train"], "mp4"),
    ],
)
def test_folders_of_splits_are_the_lists(tmp_path, folders, lists, suffix):
    """As Kinetics, ImageNet and Hugging Face's videofolder and imagefolder have it."""
    names = [f"{split}/{c}/{n}.{suffix}" for split in folders for c in ("bow", "ski") for n in range(3)]
    names += [f"{folders[0]}/act/deep/9.{suffix}", "readme.txt"]
    made = prepare(touch(tmp_path / "root", *names), tmp_path / "out", images=suffix == "png")
    classes = {}
    for name in lists:
        assert len({path.split("/")[0] for path in rows(tmp_path / "out", name)}) == 1
        classes.update(rows(tmp_path / "out", name))
    assert classes == {name: name.split("/")[1] for name in names[:-1]}
    assert sorted(made.lists) == sorted(lists) and made.classes == ("act", "bow", "ski") and made.ignored == 1
    assert f"splits are the folders {', '.join(sorted(folders))}" in made.text


def test_classes_of_splits_are_those_of_train(tmp_path):
    root = touch(tmp_path / "root", "train/x/1.mp4", "train/y/2.mp4", "val/x/3.mp4", "val/z/4.mp4", "val/w/5.mp4")
    with pytest.raises(DataError, match="val has 2 classes that train lacks: 'w', 'z'; keep those of train"):
        prepare_folder(root, tmp_path / "lists")
    assert not (tmp_path / "lists").exists()
    (tmp_path / "classes.txt").write_text("y\nx\n")
    made = prepare(root, tmp_path / "lists", classes=tmp_path / "classes.txt")
    assert made.classes == ("x", "y") and rows(tmp_path / "lists", "val") == {"val/x/3.mp4": "x"}
    touch(root, "train/loose.mp4")
    prepare(root, tmp_path / "lists", classes=tmp_path / "classes.txt")
    assert {*rows(tmp_path / "lists", "train")} == {"train/x/1.mp4", "train/y/2.mp4"}


def test_splits_are_not_split_again(tmp_path):
    root = touch(tmp_path / "root", "train/x/1.mp4", "train/y/2.mp4", "val/x/3.mp4")
    for options in ({"test": 0.5}, {"test": 0}, {"group": "x"}):
        with pytest.raises(ConfigError, match="has the splits train, val: leave out test"):
            prepare_folder(root, tmp_path / "lists", **options)
    with pytest.raises(DataError, match="has the splits test, val: it needs exactly one for training"):
        prepare_folder(touch(tmp_path / "b", "test/x/1.mp4", "val/x/1.mp4"), tmp_path / "lists")
    with pytest.raises(DataError, match="has the splits train, training: it needs exactly one"):
        prepare_folder(touch(tmp_path / "c", "train/x/1.mp4", "training/x/1.mp4"), tmp_path / "lists")
    # A train among other vehicles is a class.
    made = prepare(touch(tmp_path / "d", "train/1.mp4", "bus/2.mp4"), tmp_path / "d_lists")
    assert made.classes == ("bus", "train") and "1 of 2 classes look like splits ('train')" in made.text


@pytest.mark.parametrize("split", ["", "train/"])
def test_folders_of_frames_are_videos(tmp_path, split):
    names = [f"{split}{c}/v{v}/img_{n:05d}.jpg" for c in ("bow", "ski") for v in range(3) for n in range(1, 5)]
    others = [
        f"{split}bow/cover.jpg",
        f"{split}ski/v0/notes.txt",
        f"{split}ski/flow/x_1.jpg",
        f"{split}ski/flow/y_1.jpg",
    ]
    root = touch(tmp_path / "root", *names, *others)
    (root / names[0]).write_bytes(b"another video")
    assert "set fps=RATE" in str(prepare_folder(root, tmp_path / "lists"))
    made = prepare(root, tmp_path / "lists", fps=25)
    videos = {name.rpartition("/")[0]: name.split("/")[-3] for name in names}
    assert {path: label for name in made.lists for path, label in rows(tmp_path / "lists", name).items()} == videos
    assert all(record.fps == 25 for record in read_list(tmp_path / "lists" / "train.csv").records)
    assert "6 folders of images found, 4 other files ignored" in made.text
    assert "not listed: the images in 2 folders, " in made.text
    assert sorted(made.lists) == (["train"] if split else ["test", "train"])


def test_images_of_one_folder_may_be_frames_or_examples(tmp_path):
    """`<name>/0001.jpg` is ambiguous: the user decides, so that no frame becomes an example by accident."""
    root = touch(tmp_path / "root", *(f"{v}/{n:04d}.jpg" for v in ("a", "b", "c") for n in range(5)))
    with pytest.raises(DataError, match=r"no videos in .* in 3 folders \('a', 'b', 'c'\).*images=True.*labels=.none"):
        prepare_folder(root, tmp_path / "lists")
    assert [clip.path for clip in prepare(root, tmp_path / "a", labels="none").lists["train"]] == ["a", "b", "c"]
    assert len(prepare(root, tmp_path / "b", images=True, test=0).lists["train"]) == 15
    labels = labels_csv(tmp_path / "l.csv", ["a,x", "b,y"], "path,label")
    prepare_folder(root, tmp_path / "c", labels=labels, test=0)
    assert rows(tmp_path / "c", "train") == {"a": "x", "b": "y"}
    with pytest.raises(DataError, match=r"are not numbered like the frames of one video.*use images=True"):
        prepare_folder(touch(tmp_path / "other", "x/cat.jpg", "x/dog.jpg"), tmp_path / "lists")


def test_frames_are_not_split_at_random(tmp_path):
    root = touch(tmp_path / "root", *(f"{c}/v{v}/{n}.jpg" for c in "xy" for v in range(2) for n in range(4)))
    with pytest.raises(DataError, match=r"images of 4 folders .* in both train and test: leave out images=True"):
        prepare_folder(root, tmp_path / "lists", images=True)
    made = prepare(root, tmp_path / "lists", images=True, group=".+/")
    folders = [{clip.path.rpartition("/")[0] for clip in clips} for clips in made.lists.values()]
    assert not folders[0] & folders[1]
    # One folder of images in each class, as Tiny-ImageNet has it, is not meant.
    root = touch(tmp_path / "tiny", *(f"{c}/images/{c}_{n}.JPEG" for c in ("n1", "n2") for n in range(4)))
    assert "hint" not in str(prepare_folder(root, tmp_path / "tiny_lists", images=True))


def test_folders_beside_splits_are_refused(tmp_path):
    """Kinetics comes with a folder of replacements; listed with it, train and val would be classes."""
    root = touch(tmp_path / "root", *(f"{s}/{c}/{n}.mp4" for s in ("train", "val") for c in "xy" for n in "12"))
    (tmp_path / "classes.txt").write_text("x\ny\n")
    for other in ("replacement/for_corrupted/1.mp4", "unlabeled/1.mp4", "loose.mp4"):
        touch(root, other)
        top = other.split("/")[0]
        for labels in (None, "none", "folders"):
            with pytest.raises(DataError, match=rf"has the splits train, val, and beside them '{top}': move these"):
                prepare_folder(root, tmp_path / "lists", labels=labels)
        labels = labels_csv(tmp_path / "l.csv", ["train/x/1.mp4,x", "val/x/1.mp4,x", f"{other},y"], "path,label")
        with pytest.raises(DataError, match="has the splits train, val, and beside them"):
            prepare_folder(root, tmp_path / "lists", labels=labels)
        (root / other).unlink()
    assert sorted(prepare(root, tmp_path / "lists").lists) == ["train", "val"]


def test_folders_that_are_not_classes(tmp_path):
    root = touch(
        tmp_path / "root", *(f"2024-01-{d:02d}/cam{c}/{n}.mp4" for d in range(1, 4) for c in "12" for n in "ab")
    )
    made = prepare(root, tmp_path / "dated")
    why = "hint: the folders 2024-01-01, 2024-01-02, 2024-01-03 have names that cameras, phones or calendars give: "
    assert f'{why}labels="folders" takes them for classes' in made.text and made.classes == ()
    made = prepare(root, tmp_path / "taken", labels="folders")
    assert "hint: 3 of 3 classes look like dates or numbers ('2024-01-01', '2024-01-02', '2024-01-03')" in made.text
    assert 'labels="none"' in made.text and made.classes == ("2024-01-01", "2024-01-02", "2024-01-03")
    made = prepare(root, tmp_path / "lists", labels="none")
    assert made.classes == () and len(made.lists["train"]) == 12 and list(made.lists) == ["train"]
    assert set(rows(tmp_path / "lists", "train").values()) == {"?"} and "hint" not in made.text
    made = prepare(root, tmp_path / "split", labels="none", test=0.5, group=r"^[\d-]+")
    assert sorted(made.lists) == ["test", "train"]
    digits = touch(tmp_path / "digits", *(f"{d}/{n}.mp4" for d in range(10) for n in "ab"))
    made = prepare(digits, tmp_path / "digit_lists")
    assert made.classes == tuple("0123456789") and "classes look like dates or numbers" in made.text
    assert "hint" not in str(prepare_folder(touch(tmp_path / "c", "a/1.mp4", "b/1.mp4"), tmp_path / "c_lists"))
    assert "only one class, 'clips'" in str(
        prepare_folder(touch(tmp_path / "v", "clips/1.mp4", "clips/2.mp4"), tmp_path / "o")
    )


def test_follow_links(tmp_path):
    """Links as on clusters: loops end, each folder is listed once, and the report names the skipped ones."""
    store = touch(tmp_path / "store", "s1/1.mp4", "s1/2.mp4", "s2/deep/3.mp4", "s3/4.mp4")
    root = touch(tmp_path / "root", "run/5.mp4", "walk/6.mp4")
    (root / "run" / "1.mp4").symlink_to(store / "s1/1.mp4")
    (root / "jump").symlink_to(store / "s2")
    (root / "hop").symlink_to(store / "s2")  # the same folder again
    (root / "walk" / "loop").symlink_to(root)
    (root / "walk" / "up").symlink_to("..")
    (root / "walk" / "inner.mp4").symlink_to(root / "run/5.mp4")
    (store / "s2" / "back").symlink_to(root)
    (root / "walk" / "gone.mp4").symlink_to(tmp_path / "nothing.mp4")
    report = prepare_folder(root, tmp_path / "without", test=0)
    assert re.search(r"links that leave the folder: 3 \('hop', .*; vidssl prepare … --follow-links lists them", report)
    made = prepare(root, tmp_path / "lists", test=0, follow_links=True)
    names = {"run/5.mp4", "run/1.mp4", "walk/6.mp4", "walk/inner.mp4", "hop/deep/3.mp4"}
    assert {clip.path for clip in made.lists["train"]} == names
    assert "3 links leave the folder: read these lists with allow_external=True" in made.text
    assert "cannot be read: 1 ('walk/gone.mp4': a link to nothing)" in made.text
    with pytest.raises(DataError, match="leaves the root"):
        read_list(tmp_path / "lists/train.csv")
    listed = read_list(tmp_path / "lists/train.csv", allow_external=True)
    assert set(listed.names) == names and all(Path(record.path).is_file() for record in listed.records)


def test_folders_that_cannot_be_listed(actions, tmp_path):
    touch(actions, "run/other.mp4")
    prepare_folder(actions, tmp_path / "stale")
    for root, out, options, message in (
        (touch(tmp_path / "empty", "readme.md"), "lists", {}, "no videos in"),
        (tmp_path / "nowhere", "lists", {}, "is not a folder"),
        (actions, "lists", {"group": r"person\d+"}, r"finds no group in 1 of 37 paths \('run/other\.mp4'\)"),
        (actions, "stale", {"test": 0}, r"test\.csv of other lists"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            prepare_folder(root, tmp_path / out, **options)
        assert "\n" not in str(caught.value) and not (tmp_path / "lists").exists()


def test_labels_csv(actions, tmp_path):
    rows = [f"run/person{p:02d}_{s}.mp4,{'fast, very' if p % 2 else 'slow'!r},{p // 3}" for p in range(9) for s in "ab"]
    rows = [row.replace("'", '"') for row in rows]
    labels = labels_csv(tmp_path / "labels.csv", rows)
    made = prepare(actions, tmp_path / "lists", labels=labels, group_column="Camera")
    assert made.classes == ("fast, very", "slow")
    assert made.ignored == 18  # the other class folder
    assert "train: 12 videos of 2 groups" in made.text and "test: 6 videos of 1 groups" in made.text
    listed = read_list(tmp_path / "lists" / "train.csv")
    for name, record in zip(listed.names, listed.records, strict=True):
        assert (int(re.search(r"person(\d+)", name)[1]) % 2 == 1) == (listed.class_name(record.label) == "fast, very")


def test_labels_as_other_commands_read_them(actions, tmp_path, caplog):
    text = "run/person00_a;fast\n/me/actions/run/person01_a.avi;slow\nno.mp4;slow"
    labels = labels_csv(tmp_path / "labels.csv", text.split("\n"), "file;behaviour")
    prepare_folder(actions, tmp_path / "lists", labels=labels, test=0)
    assert rows(tmp_path / "lists", "train") == {"run/person00_a.mp4": "fast", "run/person01_a.mp4": "slow"}
    assert "1 of 3 names are of no video of" in caplog.text and "no.mp4" in caplog.text


@pytest.mark.parametrize("labelled", [False, True])
def test_kept_classes(actions, tmp_path, labelled):
    touch(actions, "jump/person00_a.mp4", "jump/person01_a.mp4")
    (tmp_path / "classes.txt").write_text("walk\njump\n", encoding="utf-8")
    labels = None
    if labelled:
        rows = [f"{c}/person{p:02d}_a.mp4,{c}" for c in ("walk", "run", "jump") for p in range(2)]
        labels = labels_csv(tmp_path / "labels.csv", rows, "path,label")
    made = prepare(actions, tmp_path / "lists", labels=labels, test=0, classes=tmp_path / "classes.txt")
    listed = read_list(tmp_path / "lists" / "train.csv")
    assert listed.classes == made.classes == ("jump", "walk")
    assert {name.split("/")[0] for name in listed.names} == {"jump", "walk"}
    assert len(listed.names) == (4 if labelled else 20)
    assert all(listed.class_name(r.label) == n.split("/")[0] for n, r in zip(listed.names, listed.records, strict=True))


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        ("path,label", "run/person00_a.mp4,run", r"labels\.csv:1: header 'path,label' has no column camera"),
        ("path,label,camera", "run/person00_a.mp4,run,", r"labels\.csv:2: the column camera of groups is empty"),
        ("path,label,camera", "run/a,b.mp4,run,1", r"labels\.csv:2: 4 fields, the header has 3"),
        ("path,label,camera", "../x.mp4,run,1", r"labels\.csv has no label of a video .*; it names \.\./x\.mp4"),
        ("path,label,camera", "/etc/passwd,run,1", r"labels\.csv:2: '/etc/passwd' leaves .*actions"),
        ("path,label,camera,end", "run/person00_a.mp4,run,1,2", r"labels\.csv:2: a span, and a list of a folder"),
        ("path,label,camera", "run/no.mp4,run,1", r"it names run/no\.mp4"),
        ("path,label,camera", "run/person00_a.mp4,run,1\n./run/person00_a.mp4,walk,1", r":3: .* has the label 'walk'"),
    ],
)
def test_malformed_labels(actions, tmp_path, header, row, message):
    labels = labels_csv(tmp_path / "labels.csv", [row], header)
    with pytest.raises(DataError, match=message):
        prepare_folder(actions, tmp_path / "lists", labels=labels, group_column="camera")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, r"test is 1\.0: it must be in \[0, 1\)"),
        ({"test": -0.1}, "must be in"),
        ({"test": float("nan")}, "must be in"),
        ({"group": "("}, r"'\(' is not a regular expression"),
        ({"group_column": "camera"}, "a column of groups needs labels=FILE"),
        ({"labels": "none", "classes": Path("classes.txt")}, 'labels="none" excludes classes'),
        ({"fps": 25.0}, r"fps=RATE is for folders of images, but .*actions has none that are listed: remove it"),
    ],
)
def test_invalid_options(actions, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        prepare_folder(actions, tmp_path / "lists", **options)
