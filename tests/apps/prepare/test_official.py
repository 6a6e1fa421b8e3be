"""Official lists to lists: labels, inexact file names, missing files, and errors."""

import json
from collections import Counter
from pathlib import Path

import pytest

from vidssl.apps.prepare import (
    prepare_hmdb51,
    prepare_kinetics,
    prepare_list,
    prepare_ssv2,
    prepare_trackingnet,
    prepare_ucf101,
)
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def touch(root, *names):
    for name in names:
        write(root / name, b"")
    return root


def refusal(prepare, *arguments, kind=DataError, **options):
    with pytest.raises(kind) as caught:
        prepare(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows(out, name):
    """(path, class) of each row of a list; the number of the class where it has no name."""
    listed = read_list(out / f"{name}.csv")
    assert all(Path(record.path).exists() for record in listed.records)
    return [(path, listed.class_name(label)) for path, label in zip(listed.names, listed.labels, strict=True)]


def files(folder):
    """What is in a folder, apart from the mark."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*"))}


# UCF101 and HMDB51

UCF = ["ApplyEyeMakeup", "Archery", "HandstandPushups"]


def clip_of(name, group):
    """The files of one class are called otherwise than its folder, as in the official set."""
    return f"{name}/v_{name.replace('Handst', 'HandSt')}_g{group:02d}_c01.avi"


@pytest.fixture
def ucf(tmp_path):
    """The folder of videos and the folder of split files, with the names and the habits of the official ones."""
    for side, groups in {"train": (8, 9), "test": (1, 2)}.items():
        for split in (1, 2):
            clips = [(clip_of(name, group + split), n) for n, name in enumerate(UCF, 1) for group in groups]
            lines = [f"{clip} {n}" if side == "train" else clip for clip, n in clips]
            write(tmp_path / f"ucfTrainTestlist/{side}list0{split}.txt", "\r\n".join(lines) + "  \r\n\r\n")
    write(tmp_path / "ucfTrainTestlist/classInd.txt", "".join(f"{n} {name} \r\n" for n, name in enumerate(UCF, 1)))
    clips = [clip_of(name, group) for name in UCF for group in (2, 3, 4, 9, 10, 11)]
    return touch(tmp_path / "UCF-101", *clips), tmp_path / "ucfTrainTestlist"


def test_ucf101(ucf, tmp_path):
    root, splits = ucf
    out = tmp_path / "lists"
    report = prepare_ucf101(root, out, splits)
    lists = [f"{side}{n}.csv" for side in ("test", "train") for n in (1, 2)]
    assert sorted(files(out)) == ["classes.txt", "root.txt", *lists]
    assert (out / "classes.txt").read_text().split("\n") == [*UCF, ""]
    assert rows(out, "train2") == [(clip_of(name, group), name) for name in UCF for group in (10, 11)]
    assert Counter(name for _, name in rows(out, "test1")) == dict.fromkeys(UCF, 2)
    assert {*rows(out, "train1")}.isdisjoint(rows(out, "test1"))
    assert "train1: 6 listed, 6 found, 0 missing, 0 in different case" in report and report.endswith("3 classes")


def test_some_classes_in_folders_of_splits(ucf, tmp_path):
    """As the small studies read them, lists/NAME/split{split}/train.csv; each folder is complete."""
    root, splits = ucf
    prepare_ucf101(root, tmp_path / "all", splits)
    kept = {"classes": write(tmp_path / "kept.txt", "\n".join(UCF[::2])), "split_folders": True}
    report = prepare_ucf101(root, tmp_path / "lists", splits, **kept)
    before = files(tmp_path / "lists/split2")
    assert sorted(before) == ["classes.txt", "root.txt", "test.csv", "train.csv"] and report.endswith("2 classes")
    for split in (1, 2):
        for side in ("train", "test"):
            expected = [row for row in rows(tmp_path / "all", f"{side}{split}") if row[1] in UCF[::2]]
            assert expected and rows(tmp_path / f"lists/split{split}", side) == expected
    prepare_ucf101(root, tmp_path / "lists", splits, **kept)
    assert files(tmp_path / "lists/split2") == before


def test_files_of_other_names(ucf, tmp_path):
    """In other case, as in repacked copies; of other extensions; folders of images."""
    root, splits = ucf
    exact = root / clip_of("HandstandPushups", 9)
    other = exact.with_name("v_HandstandPushups_g09_c01.avi")
    exact.rename(other)
    report = prepare_ucf101(root, tmp_path / "lists", splits)
    names = [path.relative_to(root).as_posix() for path in (exact, other)]
    assert "train1: 6 listed, 6 found, 0 missing, 1 in different case" in report
    assert "train2: 6 listed, 6 found, 0 missing, 0 in different case" in report
    assert (names[1], "HandstandPushups") in rows(tmp_path / "lists", "train1")
    assert f"in different case: {names[0]!r} is {names[1]!r}" in report
    exact.touch()  # the exact name goes before
    assert "1 in different case" not in prepare_ucf101(root, tmp_path / "lists", splits)
    other.unlink()
    for clip in sorted(root.rglob("*.avi")):
        clip.unlink()
        images = [f"{clip.stem}/{name}" for name in ("img_00001.jpg", "img_00002.jpg", "notes.txt")]
        touch(clip.parent, *([f"{clip.stem}.mp4"] if "Archery" in clip.name else images))
    report = prepare_ucf101(root, tmp_path / "lists", splits, fps=25)
    assert "test1: 6 listed, 6 found, 0 missing, 0 in different case, 6 with another extension" in report
    listed = read_list(tmp_path / "lists/test1.csv")
    rates = [(name.rpartition(".")[2], record.fps) for name, record in zip(listed.names, listed.records, strict=True)]
    assert rates[1:3] == [("ApplyEyeMakeup/v_ApplyEyeMakeup_g03_c01", 25.0), ("mp4", None)]
    assert "folders of images: 4" in report
    touch(root, "Archery/v_Archery_g02_c01/1.png")
    message = refusal(prepare_ucf101, root, tmp_path / "lists", splits)
    assert "matches 'Archery/v_Archery_g02_c01', 'Archery/v_Archery_g02_c01.mp4'" in message


def test_missing_files_are_counted_up_to_the_limit_and_duplicate_rows_dropped(ucf, tmp_path):
    root, splits = ucf
    for group in (2, 3):
        (root / clip_of("Archery", group)).unlink()
    message = refusal(prepare_ucf101, root, tmp_path / "lists", splits)
    assert message.startswith(f"test1: 2 of 6 listed files are not in {root}, a fraction of 0.333, the limit is 0.05")
    assert "'Archery/v_Archery_g02_c01.avi', 'Archery/v_Archery_g03_c01.avi';" in message
    assert not (tmp_path / "lists").exists()
    with (splits / "trainlist01.txt").open("a") as file:
        file.write(2 * "Archery/v_Archery_g09_c01.avi 2\n")
    report = prepare_ucf101(root, tmp_path / "lists", splits, max_missing=1 / 3)
    assert "  missing: 'Archery/v_Archery_g02_c01.avi', 'Archery/v_Archery_g03_c01.avi'\n" in report
    assert report.count("classes without a file: 'Archery'\n") == 1
    assert "train1: 8 listed, 6 found" in report and "2 duplicates" in report
    assert [len(rows(tmp_path / "lists", name)) for name in ("test1", "train1")] == [4, 6]
    for clip in root.rglob("*.avi"):
        clip.unlink()
    assert "6 of 6 listed files are not in" in refusal(prepare_ucf101, root, tmp_path / "lists", splits, max_missing=1)


ARCHERY = "Archery/v_Archery_g0{}_c01.avi"
OF_UCF = [
    ("classInd.txt", None, "cannot read list {splits}/classInd.txt"),
    ("classInd.txt", "0 Archery\n1 Bowling\n", "classInd.txt:1: '0 Archery' is not '1 <Class>'"),
    ("testlist02.txt", None, "cannot read list {splits}/testlist02.txt"),
    ("testlist01.txt", "Bowling/v_Bowling_g01_c01.avi\n", "testlist01.txt:1: class 'Bowling' is not among the 3"),
    ("testlist01.txt", "v_Archery_g02_c01.avi\n", "is not '<Class>/<file>'"),
    ("testlist01.txt", "\n \n", "test1: the list has no rows"),
    ("testlist01.txt", b"Archery/v_\xe9.avi\n", "not UTF-8"),
    ("trainlist01.txt", f"{ARCHERY.format(9)} 1\n", "_g09_c01.avi 1': classInd.txt has number 2 for Archery"),
    (
        "testlist01.txt",
        f"{ARCHERY.format(2)}\n{ARCHERY.format(9)}\n",
        "testlist01.txt:2: 'Archery/v_Archery_g09_c01.avi' is also in the training list at {splits}/trainlist01.txt:3",
    ),
    (
        "testlist01.txt",
        f"{ARCHERY.format(2)}\nArchery/v_archery_g02_c01.avi\n",
        "both match the file 'Archery/v_Archery_g02_c01.avi'",
    ),
]


@pytest.mark.parametrize(("name", "text", "reason"), OF_UCF)
def test_malformed_splits_of_ucf101(ucf, tmp_path, name, text, reason):
    root, splits = ucf
    (splits / name).unlink()
    if text is not None:
        write(splits / name, text)
    assert reason.format(splits=splits) in refusal(prepare_ucf101, root, tmp_path / "lists", splits)
    assert not (tmp_path / "lists").exists()


def test_wrong_folders(ucf, tmp_path):
    root, splits = ucf
    (tmp_path / "empty").mkdir()
    out = tmp_path / "lists"
    kept = {"classes": write(tmp_path / "kept.txt", "Archery\nArchrey\n")}
    for prepare, videos, official, options, reason in (
        (prepare_ucf101, root, splits, kept, "kept.txt: 'Archrey': not among the 3 classes of the official lists"),
        (prepare_ucf101, root, tmp_path / "empty", {}, "has no trainlist01.txt"),
        (prepare_ucf101, root, tmp_path / "nowhere", {}, "cannot read folder"),
        (prepare_ucf101, tmp_path / "nowhere", splits, {}, "is not a folder"),
        (prepare_hmdb51, root, splits, {}, "has no <class>_test_split1.txt"),
    ):
        assert reason in refusal(prepare, videos, out, official, **options)
    touch(tmp_path, "secret.avi")
    (root / "Archery/stolen.avi").symlink_to(tmp_path / "secret.avi")
    assert "links that leave the folder: 1 ('Archery/stolen.avi')" in prepare_ucf101(root, tmp_path / "linked", splits)
    (root / "Archery/stolen.avi").unlink()
    (root / ARCHERY.format(2)).rename(root / "moved.avi")
    (root / ARCHERY.format(2)).symlink_to(root / "moved.avi")
    prepare_ucf101(root, out, splits)
    (root / "moved.avi").unlink()  # a link to nothing is a file that is missing
    assert "1 of 6 listed" in refusal(prepare_ucf101, root, out, splits)


HMDB = ["brush_hair", "cartwheel"]
ODD = [
    "#122_Don't_Cry_(2)_u_nm_np1_fr_med_0.avi",
    "April_09;[x]&!_f_nm_np1_ba_goo_1.avi",
    "-dash  two blanks $HOME`x`.avi",
    "plain.avi",
]


def test_hmdb51(tmp_path):
    """The first file is trained on, two are tested on, one is unused; in the third split otherwise."""
    splits, out = tmp_path / "testTrainMulti_7030_splits", tmp_path / "lists"
    for name in HMDB:
        for split, codes in {1: (1, 2, 2, 0), 2: (1, 2, 2, 0), 3: (2, 1, 0, 1)}.items():
            lines = [f"{file} {code} \n" for file, code in zip(ODD, codes, strict=True)]
            write(splits / f"{name}_test_split{split}.txt", "".join(lines))
    root = touch(tmp_path / "hmdb51", *(f"{name}/{file}" for name in HMDB for file in ODD))
    report = prepare_hmdb51(root, out, splits)
    assert sorted(path.stem for path in out.glob("*.csv")) == [
        f"{side}{n}" for side in ("test", "train") for n in (1, 2, 3)
    ]
    for side, numbers in {"train1": [0], "test1": [1, 2], "train3": [1, 3], "test3": [0]}.items():
        assert rows(out, side) == [(f"{name}/{ODD[n]}", name) for name in HMDB for n in numbers]
    assert "split 3: 2 unused files" in report
    for text, reason in {
        "plain.avi 3\n": "split2.txt:1: 'plain.avi 3' is not '<file> <code>'",
        "\nplain.avi\n": "split2.txt:2: 'plain.avi' is not '<file> <code>'",
        "plain.avi 1\nplain.avi 2\n": "split2.txt:2: 'cartwheel/plain.avi' is also in the training list at",
    }.items():
        write(splits / "cartwheel_test_split2.txt", text)
        assert reason in refusal(prepare_hmdb51, root, out, splits, max_missing=0.5)
    (splits / "cartwheel_test_split2.txt").unlink()
    assert f"cannot read list {splits}/cartwheel_test_split2.txt" in refusal(prepare_hmdb51, root, out, splits)


# Kinetics

HEADER = "label,youtube_id,time_start,time_end,split"
TRAIN = [
    "surfing water,--QUuC4vJs,84,94,train",
    "abseiling,-_abc_12345,0,10,train",
    '"cutting ""hair"", short",Zz0_-4h8sQk,150,160,train',
    "surfing water,aaaaaaaaaaa,1,11,train",
    "zumba,gone_gone_1,3,13,train",
]
TEST = ["zumba,ttttttttttt,7,17,validate", "abseiling,uuuuuuuuuuu,70000,70010,validate"]
CLIPS = [
    "train/surfing_water/--QUuC4vJs_000084_000094.mp4",
    "train/abseiling/-_abc_12345.mkv",
    'train/cutting "hair", short/Zz0_-4h8sQk_000150_000160.mp4',
    "aaaaaaaaaaa_000001_000011.webm",
    "val/ttttttttttt_000007_000017.mp4",
    "val/a class that no list knows/uuuuuuuuuuu_070000_070010.mp4",
]
LABELS = ["abseiling", 'cutting "hair", short', "surfing water", "zumba"]


@pytest.fixture
def kinetics(tmp_path):
    """Folder of videos, training list, validation list; one video of five is missing in training."""
    root = touch(tmp_path / "k400", *CLIPS)
    train = write(tmp_path / "train.csv", "\ufeff" + "\r\n".join([HEADER, *TRAIN]) + "\r\n")
    test = write(tmp_path / "validate.csv", "\n".join([HEADER, *TEST]) + "\n")
    return root, train, test


def test_kinetics(kinetics, tmp_path):
    root, train, test = kinetics
    out = tmp_path / "lists"
    report = prepare_kinetics(root, out, train, test)
    assert read_list(out / "train.csv").classes == tuple(LABELS)  # of the list, also where no file is
    labels = ["surfing water", "abseiling", 'cutting "hair", short', "surfing water", "zumba", "abseiling"]
    assert rows(out, "train") + rows(out, "test") == [*zip(CLIPS, labels, strict=True)]
    assert "train: 5 listed, 4 found, 1 missing" in report and "missing: 'gone_gone_1_000003_000013.mp4'\n" in report
    assert f"is {CLIPS[1]!r}, " in report and f"is {CLIPS[3]!r}\n" in report
    assert "classes without a file: 'zumba'\n" in report
    assert (out / "train.csv").read_text().startswith("path,label\n")
    touch(root, "train/stealing water/--QUuC4vJs_000084_000094.mp4")  # the folder of the class goes before
    touch(root, CLIPS[4].replace("mp4", "webm"))  # the suffix that is meant goes before
    prepare_kinetics(root, out, train, test)
    assert (rows(out, "train")[0][0], rows(out, "test")[0][0]) == (CLIPS[0], CLIPS[4])
    touch(root, "replacement/surfing water/--QUuC4vJs_000084_000094.mp4")
    message = refusal(prepare_kinetics, root, out, train, test)
    assert message.startswith(f"{train}:2: '--QUuC4vJs_000084_000094.mp4' matches")
    (root / "replacement/surfing water/--QUuC4vJs_000084_000094.mp4").unlink()
    (root / CLIPS[3]).unlink()
    assert "train: 2 of 5" in refusal(prepare_kinetics, root, out, train, test)


def test_kinetics_untrimmed(kinetics, tmp_path):
    root, _, _ = kinetics
    touch(root, "gone.mp4")  # not gone_gone_1
    lines = [HEADER, "abseiling,-_abc_12345,0,10,train", "zumba,-_abc_12345,10.5,20,train", TRAIN[0], TRAIN[4]]
    train = write(tmp_path / "whole.csv", "\n".join(lines))
    report = prepare_kinetics(root, tmp_path / "lists", train, untrimmed=True, max_missing=0.5)
    listed = read_list(tmp_path / "lists/train.csv")
    spans = [(record.start, record.end, listed.class_name(record.label)) for record in listed.records]
    assert spans == [(0.0, 10.0, "abseiling"), (10.5, 20.0, "zumba")]
    assert "missing: '--QUuC4vJs.mp4', 'gone_gone_1.mp4'\n" in report  # a clip is not the whole video
    message = refusal(prepare_kinetics, root, tmp_path / "trimmed", train, max_missing=0.5)
    assert "both match the file 'train/abseiling/-_abc_12345.mkv'" in message


@pytest.mark.parametrize("untrimmed", [False, True])
def test_kinetics_rows_that_begin_before_the_video(tmp_path, untrimmed):
    """Such rows exist; the file of a clip is found by its name or id, and a whole video begins at 0."""
    lines = ["run,aaaaaaaaaaa,-2,8,train", "run,bbbbbbbbbbb,-2.0,8.0,train", "run,ccccccccccc,1,11,train"]
    train = write(tmp_path / "train.csv", "\n".join([HEADER, *lines, "run,ddddddddddd,-9,-3,train"]))
    names = ["run/aaaaaaaaaaa.mp4", "run/bbbbbbbbbbb_-00002_000008.mp4", "ccccccccccc.mp4", "ddddddddddd.mp4"]
    names[1:2] = ["run/bbbbbbbbbbb.mp4"] if untrimmed else names[1:2]
    root = touch(tmp_path / "root", *names)
    report = prepare_kinetics(root, tmp_path / "lists", train, untrimmed=untrimmed)
    listed = read_list(tmp_path / "lists/train.csv")
    assert listed.names == tuple(names[:3] if untrimmed else names)
    assert [r.start for r in listed.records] == ([0.0, 0.0, 1.0] if untrimmed else [None] * 4)
    assert "train: 3 rows begin before the video" in report and "'aaaaaaaaaaa', -2 to 8 s, 'bbb" in report


def test_some_classes_of_kinetics(kinetics, tmp_path):
    root, train, test = kinetics
    classes = write(tmp_path / "classes.txt", "surfing water\r\nabseiling\r\n")
    report = prepare_kinetics(root, tmp_path / "lists", train, test, classes)
    assert read_list(tmp_path / "lists/train.csv").classes == ("abseiling", "surfing water")
    assert rows(tmp_path / "lists", "test") == [(CLIPS[5], "abseiling")]
    assert len(rows(tmp_path / "lists", "train")) == 3 and "train: skipped 2 rows of other classes" in report
    for text, reason in {
        "surfing_water\n": "'surfing_water': not among the 4 classes of the official lists",
        "surfing water\n\nabseiling\n": f"{classes}:2: empty line",
    }.items():
        write(classes, text)
        assert reason in refusal(prepare_kinetics, root, tmp_path / "x", train, test, classes)


OF_KINETICS = [
    ("zumba, fast,ttttttttttt,7,17,validate", ":2: a row needs {columns}; quote names with commas"),
    ("yoga,ttttttttttt,7,17,validate", ":2: class 'yoga' is not among the 4 of"),
    ("zumba,ttttttttttt,17,7,validate", ":2: '17' to '7' is not a span"),
    ("zumba,ttttttttttt,7,inf,validate", "is not a span"),
    ('"zumba,ttttttttttt,7,17,validate', "not CSV"),
    ("", "test: the list has no rows"),
    ("zumba,ttttttttttt,7,17,v\nabseiling,ttttttttttt,7,17,v", "000007_000017.mp4' has label 0, but label 3 at {test}"),
    (TRAIN[0], "--QUuC4vJs_000084_000094.mp4' is also in the training list at {train}:2"),
]


@pytest.mark.parametrize(("text", "reason"), OF_KINETICS)
def test_malformed_kinetics_lists(kinetics, tmp_path, text, reason):
    root, train, test = kinetics
    write(test, f"{HEADER}\n{text}\n")
    columns = "label, youtube_id, time_start, time_end"
    message = refusal(prepare_kinetics, root, tmp_path / "lists", train, test)
    assert reason.format(train=train, test=test, columns=columns) in message and not (tmp_path / "lists").exists()
    write(test, "youtube_id,time_start,time_end,split\naaaaaaaaaaa,1,11,test\n")
    message = refusal(prepare_kinetics, root, tmp_path / "lists", train, test)
    assert "lacks label; " in message and "the test list has no labels" in message


# Something-Something v2


def item(number, template):
    return {"id": number, "template": template, "label": "", "placeholders": []}


@pytest.fixture
def ssv2(tmp_path):
    labels = {"Putting something on something": "1", "Holding something": "0", "Moving part of something": "2"}
    train = [item("78687", "Holding [something]"), item("42326", "Moving [part] of [something]")]
    test = [item(74225, "Putting [something] on [something]")]
    paths = [
        write(tmp_path / f"something-something-v2-{name}.json", json.dumps(content))
        for name, content in {"train": train, "validation": test, "labels": labels}.items()
    ]
    return touch(tmp_path / "20bn", "78687.webm", "42326.webm", "74225.mp4"), *paths


def test_ssv2(ssv2, tmp_path):
    out = tmp_path / "lists"
    report = prepare_ssv2(ssv2[0], out, *ssv2[1:])
    classes = ["Holding something", "Putting something on something", "Moving part of something"]
    assert (out / "classes.txt").read_text().splitlines() == classes
    assert rows(out, "train") == [("78687.webm", classes[0]), ("42326.webm", classes[2])]
    assert rows(out, "test") == [("74225.mp4", classes[1])]
    assert "with another extension: '74225.webm' is '74225.mp4'\n" in report


OF_SSV2 = [
    (1, [{"id": "74225"}], "has no id or no template, as in the test list: use the val"),
    (1, {"Holding something": "0"}, "is not a list of videos"),
    (1, [item("1", "Waving [something]")], "item 1: class 'Waving something' is not among the 3"),
    (1, [item("78687", "Holding [something]")], "'78687.webm' is also in the training list"),
    (1, [item("1\n2", "Holding [something]")], r"'1\n2.webm'"),
    (2, {"Holding something": "1"}, "is not an object from the name"),
    (0, None, "is not JSON"),
]


@pytest.mark.parametrize(("number", "content", "reason"), OF_SSV2)
def test_malformed_ssv2_lists(ssv2, tmp_path, number, content, reason):
    root, *paths = ssv2
    write(paths[number], "{" if content is None else json.dumps(content))
    assert reason in refusal(prepare_ssv2, root, tmp_path / "lists", *paths)


# TrackingNet


@pytest.fixture
def trackingnet(tmp_path):
    """Two chunks and the test set: frames from 0, not padded; a line of boxes for each, one line in the test set."""
    root = tmp_path / "TrackingNet"
    for chunk, names in {"TRAIN_0": ["-4EBxfTJXvI_0", "b_0"], "TRAIN_10": ["c_0"], "TEST": ["d_0"]}.items():
        for name in names:
            touch(root / chunk / "frames" / name, *(f"{n}.jpg" for n in range(12)))
            write(root / chunk / "anno" / f"{name}.txt", "1.0,2,3,4\n" * (1 if chunk == "TEST" else 12))
    return root


def test_trackingnet(trackingnet, tmp_path):
    out = tmp_path / "lists"
    report = prepare_trackingnet(trackingnet, out)
    sequences = ["TRAIN_0/frames/-4EBxfTJXvI_0", "TRAIN_0/frames/b_0", "TRAIN_10/frames/c_0"]
    assert (out / "train.csv").read_text().splitlines() == ["path,fps", *(f"{name},30.0" for name in sequences)]
    assert rows(out, "test") == [("TEST/frames/d_0", "?")] and not (out / "classes.txt").exists()
    assert "frame count differs" not in report and "read: TRAIN_0 TRAIN_10 TEST" in report
    touch(trackingnet, *(f"TRAIN_{n}/frames/x/0.jpg" for n in (2, 9)))
    (trackingnet / "TRAIN_0/frames/b_0/7.jpg").unlink()
    report = prepare_trackingnet(trackingnet, out, fps=25)
    chunks = ["TRAIN_0", "TRAIN_0", "TRAIN_2", "TRAIN_9", "TRAIN_10"]
    assert [name.split("/")[0] for name, _ in rows(out, "train")] == chunks
    assert {record.fps for record in read_list(out / "train.csv").records} == {25.0}
    assert "frame count differs: 'TRAIN_0/frames/b_0' has 11, 12 are listed\n" in report
    assert "2 sequences without boxes: 'TRAIN_2/frames/x', 'TRAIN_9/frames/x'" in report
    prepare_trackingnet(trackingnet, tmp_path / "some", chunks=[10])
    assert rows(tmp_path / "some", "train") == [("TRAIN_10/frames/c_0", "?")]
    assert "has no 'TRAIN_1'" in refusal(prepare_trackingnet, trackingnet, tmp_path / "x", chunks=range(2))
    assert "has no 'TRAIN_0'" in refusal(prepare_trackingnet, tmp_path / "none", tmp_path / "x")


# Lists of other projects


@pytest.fixture
def root(tmp_path):
    names = ["a/one.mp4", "b/two.avi", "my clips/three four.mp4", "x/f 12/img_1.jpg", "y/f/img_1.jpg", "y/f/img_2.jpg"]
    return touch(tmp_path / "videos", *names)


LINES = [
    ("slowfast", "a/one.mp4 3\r\nb/two.avi  0 \r\n\r\n", " ", [("a/one.mp4", 3), ("b/two.avi", 0)]),
    ("slowfast", "a/one 3\n", " ", [("a/one.mp4", 3)]),
    ("slowfast", "./a/../b/two.avi 1\n", " ", [("b/two.avi", 1)]),
    ("slowfast", "\ufeffROOT/a/one.mp4 1\n", " ", [("a/one.mp4", 1)]),
    ("slowfast", '"my clips/three four.mp4"\t7', " ", [("my clips/three four.mp4", 7)]),
    ("slowfast", "my clips\\three four.mp4 7", " ", [("my clips/three four.mp4", 7)]),
    ("slowfast", "a/one.mp4 3.0", " ", [("a/one.mp4", 3)]),
    ("mmaction2_rawframes", "y/f 2 5\n", " ", [("y/f", 5)]),
    ("mmaction2_rawframes", "x/f 12;1;5\n", ";", [("x/f 12", 5)]),
    ("videomae", "a/one.mp4 5", " ", [("a/one.mp4", 5)]),
    ("videomae", "y/f 1 2", " ", [("y/f", -1)]),
]


@pytest.mark.parametrize(("form", "text", "separator", "expected"), LINES)
def test_lists_of_other_projects(root, tmp_path, form, text, separator, expected):
    videos = write(tmp_path / "list.txt", text.replace("ROOT", str(root)))
    report = prepare_list(videos, form, root, tmp_path / "lists", separator=separator, fps=25)
    assert ("no row has a label: write" in report and "(labels: folders, 1)" in report) == (expected[0][1] < 0)
    listed = read_list(tmp_path / "lists/train.csv")
    assert [*zip(listed.names, listed.labels, strict=True)] == expected
    assert not (tmp_path / "lists/classes.txt").exists()


FORMS = {"slowfast": "{path} {label}", "mmaction2": "{path} {label}", "videomae": "{path} 0 -1", "bare": "{path}"}


@pytest.mark.parametrize("form", [*FORMS, "mmaction2_rawframes"])
def test_paths_that_hold_separators(tmp_path, form):
    """The last fields are numbers, all before them is the path: in quotes or not, in a file that is there or not."""
    names = [
        "train/riding a bike/-_abc 000084 000094.mp4",
        "train/massaging person's head/=X.mp4",
        "tai  chi/a,b;c::d.mp4",
        "mélange, 日本　語/x 1.mp4",
        "plain/y.mp4",
        "deep/more/z 3 4.MP4",
    ]
    if form == "mmaction2_rawframes":
        names = [name.rpartition(".")[0] for name in names]
        root = touch(tmp_path / "root", *(f"{name}/{n}.jpg" for name in names for n in range(2)))
    else:
        root = touch(tmp_path / "root", *names)
    labels = [-1] * len(names) if form in ("bare", "videomae") else [*range(len(names))]
    for number, (separator, end) in enumerate([(" ", "\n"), (",", "\r\n"), ("\t", "  \n"), ("::", ""), (" , ", "\n")]):
        text = FORMS.get(form, "{path} 2 {label}").replace(" ", separator)
        lines = [text.format(path=name, label=n) for n, name in enumerate(names)]
        videos = write(tmp_path / f"{number}.txt", "\ufeff" + (end or "\n").join(lines) + end)
        lists = tmp_path / f"lists{number}"
        prepare_list(videos, "slowfast" if form == "bare" else form, root, lists, separator=separator)
        listed = read_list(lists / "train.csv")
        expected = dict(zip(names, labels, strict=True))
        assert dict(zip(listed.names, listed.labels.tolist(), strict=True)) == expected, (separator, end)


MISTAKES = [
    ("slowfast", "my clips/three 7 x", "is not 'path' or"),
    ("slowfast", "a/one.mp4 1.5", "is not 'path' or"),
    ("slowfast", "a/one.mp4 ٣", "is not 'path' or"),
    ("slowfast", "a/one.mp4 0 -1", "is not 'path' or 'path label' or 'path frames label'; form=videomae has it"),
    ("slowfast", "x/f 12", "'x/f 12' is ambiguous: the path may also be 'x/f 12'"),
    ("slowfast", "x/f 12 5", "'x/f 12 5' is ambiguous: the path may also be 'x/f 12'"),
    ("slowfast", '"a/one.mp4 5', "is not 'path' or"),
    ("slowfast", "../one.mp4 5", "leaves"),
    ("slowfast", "ROOT/../one.mp4 5", "leaves"),
    ("videomae", "a/one.mp4", "is not 'path label' or 'path start frames'"),
    ("videomae", "a/one.mp4 0 -2", "is not 'path label' or"),
    ("videomae", "y/f 40 2", "begins at frame 40: only whole folders are listed"),
    ("mmaction2", "a/one.mp4 1 2", "is not 'path label'"),
    ("mmaction2_rawframes", "y/f 2 5 6", "is not 'path frames label'"),
    ("mmaction2_rawframes", "x/f 12 5", "is ambiguous"),
]


@pytest.mark.parametrize(("form", "line", "reason"), MISTAKES)
def test_malformed_lines_of_other_projects(root, tmp_path, form, line, reason):
    videos = write(tmp_path / "list.txt", f"\n{line}\n".replace("ROOT", str(root)))
    message = refusal(prepare_list, videos, form, root, tmp_path / "lists")
    assert message.startswith(f"{videos}:2: ") and reason in message


def test_classes_and_options_of_other_projects(root, tmp_path):
    names = write(tmp_path / "map.txt", "run\r\nwalk, slowly\r\n")
    out = tmp_path / "lists"
    for name, text in {"train": "a/one.mp4 1\n", "test": "b/two.avi 0\n"}.items():
        prepare_list(write(tmp_path / "list.txt", text), "slowfast", root, out, name=name, classes=names)
    assert (rows(out, "train"), rows(out, "test")) == ([("a/one.mp4", "walk, slowly")], [("b/two.avi", "run")])
    videos = write(tmp_path / "list.txt", "a/one.mp4 2\n")
    twice = write(tmp_path / "twice.txt", "run\nrun\nwalk")
    for form, options, kind, reason in (
        (
            "slowfast",
            {"classes": names},
            DataError,
            f"{videos}:1: label 2 is out of range; {names} has 2 classes, from",
        ),
        ("slowfast", {}, DataError, "holds a classes.txt"),
        ("slowfast", {"classes": twice}, DataError, "duplicate class names: 'run'"),
        ("csv", {}, ConfigError, "unknown form 'csv'; there are: slowfast, mmaction2"),
        *(
            ("slowfast", {"separator": wrong}, ConfigError, "is empty or has a quote, line")
            for wrong in ("", '"', ":\n", "7")
        ),
    ):
        assert reason in refusal(prepare_list, videos, form, root, out, kind=kind, **options)
