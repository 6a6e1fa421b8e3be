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


def touch(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return root


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(prepare, *given, kind=DataError, **options):
    with pytest.raises(kind) as caught:
        prepare(*given, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def rows(out, name):
    """(path, class) of each row of a list; the number of the class where it has no name."""
    found = read_list(out / f"{name}.csv")
    return [(n, found.class_name(r.label)) for n, r in zip(found.names, found.records, strict=True)]


def files(folder):
    """What is in a folder, apart from the mark."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*"))} if folder.exists() else {}


# UCF101 and HMDB51

UCF = ["ApplyEyeMakeup", "Archery", "HandstandPushups"]


@pytest.fixture
def ucf(tmp_path):
    """The folder of videos and the folder of split files, with the names and the habits of the official ones."""
    groups = {"train": (8, 9), "test": (1, 2)}
    for side, numbers in groups.items():
        for split in (1, 2):
            lines = []
            for number, name in enumerate(UCF, 1):
                file = "HandStandPushups" if name == "HandstandPushups" else name
                for group in numbers:
                    clip = f"{name}/v_{file}_g{group + split:02d}_c01.avi"
                    lines.append(f"{clip} {number}" if side == "train" else clip)
            write(tmp_path / f"ucfTrainTestlist/{side}list0{split}.txt", "\r\n".join(lines) + "  \r\n\r\n")
    write(tmp_path / "ucfTrainTestlist/classInd.txt", "".join(f"{n} {name} \r\n" for n, name in enumerate(UCF, 1)))
    names = {name: name for name in UCF} | {"HandstandPushups": "HandStandPushups"}
    clips = [f"{c}/v_{names[c]}_g{g:02d}_c01.avi" for c in UCF for g in (2, 3, 4, 9, 10, 11)]
    return touch(tmp_path / "UCF-101", *clips), tmp_path / "ucfTrainTestlist"


def test_ucf101(ucf, tmp_path):
    root, splits = ucf
    report = prepare_ucf101(root, tmp_path / "lists", splits)
    assert sorted(files(tmp_path / "lists")) == [
        "classes.txt",
        "root.txt",
        "test1.csv",
        "test2.csv",
        "train1.csv",
        "train2.csv",
    ]
    assert (tmp_path / "lists/classes.txt").read_text().split("\n") == [*UCF, ""]
    assert rows(tmp_path / "lists", "train2") == [
        (f"{c}/v_{c.replace('Handst', 'HandSt')}_g{g:02d}_c01.avi", c) for c in UCF for g in (10, 11)
    ]
    assert Counter(c for _, c in rows(tmp_path / "lists", "test1")) == dict.fromkeys(UCF, 2)
    found = read_list(tmp_path / "lists/test1.csv")
    assert all(Path(record.path).is_file() for record in found.records)
    assert not {name for name, _ in rows(tmp_path / "lists", "train1")} & set(found.names)
    assert "train1: 6 listed, 6 found, 0 missing, 0 in different case" in report
    assert report.endswith("3 classes")


def test_some_classes_in_folders_of_splits(ucf, tmp_path):
    """As the small studies read them, lists/NAME/split{split}/train.csv; each folder is complete."""
    root, splits = ucf
    prepare_ucf101(root, tmp_path / "all", splits)
    for name in UCF[::2]:
        with (tmp_path / "kept.txt").open("a") as file:
            file.write(f"{name}\n")
    kept = {"classes": tmp_path / "kept.txt", "split_folders": True}
    report = prepare_ucf101(root, tmp_path / "lists", splits, **kept)
    before = files(tmp_path / "lists/split2")
    assert sorted(before) == ["classes.txt", "root.txt", "test.csv", "train.csv"] and report.endswith("2 classes")
    for split in (1, 2):
        for side in ("train", "test"):
            expected = [row for row in rows(tmp_path / "all", f"{side}{split}") if row[1] in UCF[::2]]
            assert expected and rows(tmp_path / f"lists/split{split}", side) == expected
    assert read_list(tmp_path / "lists/split1/test.csv").classes == tuple(UCF[::2])
    prepare_ucf101(root, tmp_path / "lists", splits, **kept)
    assert files(tmp_path / "lists/split2") == before
    (tmp_path / "kept.txt").write_text("Archery\nArchrey\n")
    message = refusal(prepare_ucf101, root, tmp_path / "others", splits, classes=tmp_path / "kept.txt")
    assert message == f"{tmp_path}/kept.txt: 'Archrey': not among the 3 classes of the official lists"


def test_case_mismatches_are_found_and_reported(ucf, tmp_path):
    root, splits = ucf
    old, new = (root / "HandstandPushups" / f"v_Hand{s}Pushups_g09_c01.avi" for s in ("Stand", "stand"))
    old.rename(new)  # as in repacked copies
    report = prepare_ucf101(root, tmp_path / "lists", splits)
    pair = ("HandstandPushups/v_HandStandPushups_g09_c01.avi", "HandstandPushups/v_HandstandPushups_g09_c01.avi")
    assert "train1: 6 listed, 6 found, 0 missing, 1 in different case" in report
    assert "train2: 6 listed, 6 found, 0 missing, 0 in different case" in report
    assert (pair[1], "HandstandPushups") in rows(tmp_path / "lists", "train1")
    assert f"in different case: {pair[0]!r} is {pair[1]!r}" in report
    old.touch()  # the exact name goes before
    assert "1 in different case" not in prepare_ucf101(root, tmp_path / "lists", splits)


def test_other_extensions_and_folders_of_images(ucf, tmp_path):
    root, splits = ucf
    for clip in sorted(root.rglob("*.avi")):
        if "Archery" in clip.name:
            clip.rename(clip.with_suffix(".mp4"))
        else:
            clip.unlink()
            touch(clip.with_suffix(""), "img_00001.jpg", "img_00002.jpg", "notes.txt")
    report = prepare_ucf101(root, tmp_path / "lists", splits, fps=25)
    assert "test1: 6 listed, 6 found, 0 missing, 0 in different case, 6 with another extension" in report
    found = read_list(tmp_path / "lists/test1.csv")
    assert [(name.rpartition(".")[2], r.fps) for name, r in zip(found.names, found.records, strict=True)][1:3] == [
        ("ApplyEyeMakeup/v_ApplyEyeMakeup_g03_c01", 25.0),
        ("mp4", None),
    ]
    assert "folders of images: 4" in report
    touch(root, "Archery/v_Archery_g02_c01/1.png")
    assert "matches 'Archery/v_Archery_g02_c01', 'Archery/v_Archery_g02_c01.mp4'" in refusal(
        prepare_ucf101, root, tmp_path / "lists", splits
    )


def test_missing_files_are_counted_up_to_the_limit(ucf, tmp_path):
    root, splits = ucf
    for name in ("Archery/v_Archery_g02_c01.avi", "Archery/v_Archery_g03_c01.avi"):
        (root / name).unlink()
    message = refusal(prepare_ucf101, root, tmp_path / "lists", splits)
    assert message.startswith(f"test1: 2 of 6 listed files are not in {root}, a fraction of 0.333, the limit is 0.05")
    assert "'Archery/v_Archery_g02_c01.avi', 'Archery/v_Archery_g03_c01.avi';" in message
    assert not (tmp_path / "lists").exists()
    report = prepare_ucf101(root, tmp_path / "lists", splits, max_missing=1 / 3)
    assert "  missing: 'Archery/v_Archery_g02_c01.avi', 'Archery/v_Archery_g03_c01.avi'\n" in report
    assert report.count("classes without a file: 'Archery'\n") == 1
    assert len(rows(tmp_path / "lists", "test1")) == 4
    for clip in root.rglob("*.avi"):
        clip.unlink()
    assert "6 of 6 listed files are not in" in refusal(prepare_ucf101, root, tmp_path / "lists", splits, max_missing=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"classInd.txt": None}, r"cannot read list .*classInd.txt"),
        ({"classInd.txt": "0 Archery\n1 Bowling\n"}, "classInd.txt:1: '0 Archery' is not '1 <Class>'"),
        ({"testlist02.txt": None}, r"cannot read list .*testlist02.txt"),
        ({"testlist01.txt": "Bowling/v_Bowling_g01_c01.avi\n"}, "testlist01.txt:1: class 'Bowling' is not among the 3"),
        ({"testlist01.txt": "v_Archery_g02_c01.avi\n"}, "is not '<Class>/<file>'"),
        ({"testlist01.txt": "\n \n"}, "test1: the list has no rows"),
        ({"testlist01.txt": b"Archery/v_\xe9.avi\n"}, "not UTF-8"),
        (
            {"trainlist01.txt": "Archery/v_Archery_g09_c01.avi 1\n"},
            "trainlist01.txt:1: 'Archery/v_Archery_g09_c01.avi 1': classInd.txt has number 2 for Archery",
        ),
        (
            {"testlist01.txt": "Archery/v_Archery_g02_c01.avi\nArchery/v_Archery_g09_c01.avi\n"},
            "testlist01.txt:2: 'Archery/v_Archery_g09_c01.avi' is also in the training list at .*trainlist01.txt:3",
        ),
        (
            {"testlist01.txt": "Archery/v_Archery_g02_c01.avi\nArchery/v_archery_g02_c01.avi\n"},
            "both match the file 'Archery/v_Archery_g02_c01.avi'",
        ),
    ],
)
def test_malformed_split_files(ucf, tmp_path, change, reason):
    root, splits = ucf
    for name, text in change.items():
        (splits / name).unlink()
        if text is not None:
            write(splits / name, text)
    with pytest.raises(DataError, match=reason) as caught:
        prepare_ucf101(root, tmp_path / "lists", splits)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "lists").exists()


def test_duplicate_rows_are_dropped_and_counted(ucf, tmp_path):
    root, splits = ucf
    with (splits / "trainlist01.txt").open("a") as file:
        file.write("Archery/v_Archery_g09_c01.avi 2\nArchery/v_Archery_g09_c01.avi 2\n")
    report = prepare_ucf101(root, tmp_path / "lists", splits)
    assert (
        "train1: 8 listed, 6 found" in report
        and "2 duplicates" in report
        and len(rows(tmp_path / "lists", "train1")) == 6
    )


def test_wrong_folders(ucf, tmp_path):
    root, splits = ucf
    (tmp_path / "empty").mkdir()
    out = tmp_path / "lists"
    assert "has no trainlist01.txt" in refusal(prepare_ucf101, root, out, tmp_path / "empty")
    assert "cannot read folder" in refusal(prepare_ucf101, root, out, tmp_path / "nowhere")
    assert "is not a folder" in refusal(prepare_ucf101, tmp_path / "nowhere", out, splits)
    assert "6 of 6 listed" in refusal(prepare_ucf101, tmp_path / "empty", out, splits)
    assert "has no <class>_test_split1.txt" in refusal(prepare_hmdb51, root, out, splits)
    touch(tmp_path, "secret.avi")
    (root / "Archery/stolen.avi").symlink_to(tmp_path / "secret.avi")
    assert "stolen.avi is a link that leaves" in refusal(prepare_ucf101, root, out, splits)
    (root / "Archery/stolen.avi").unlink()
    (root / "Archery/v_Archery_g02_c01.avi").rename(root / "moved.avi")
    (root / "Archery/v_Archery_g02_c01.avi").symlink_to(root / "moved.avi")
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


@pytest.fixture
def hmdb(tmp_path):
    """Folder of videos and folder of splits: the first file is trained on, two are tested on, one is unused."""
    splits = tmp_path / "testTrainMulti_7030_splits"
    for name in HMDB:
        for split in (1, 2, 3):
            codes = [1, 2, 2, 0] if split < 3 else [2, 1, 0, 1]
            write(
                splits / f"{name}_test_split{split}.txt",
                "".join(f"{f} {c} \n" for f, c in zip(ODD, codes, strict=True)),
            )
    return touch(tmp_path / "hmdb51", *(f"{name}/{file}" for name in HMDB for file in ODD)), splits


def test_hmdb51(hmdb, tmp_path):
    root, splits = hmdb
    report = prepare_hmdb51(root, tmp_path / "lists", splits)
    assert sorted(path.stem for path in (tmp_path / "lists").glob("*.csv")) == [
        f"{side}{n}" for side in ("test", "train") for n in (1, 2, 3)
    ]
    for side, numbers in {"train1": [0], "test1": [1, 2], "train3": [1, 3], "test3": [0]}.items():
        assert rows(tmp_path / "lists", side) == [(f"{c}/{ODD[n]}", c) for c in HMDB for n in numbers]
    assert all(Path(r.path).is_file() for r in read_list(tmp_path / "lists/test1.csv").records)
    assert "split 3: 2 unused files" in report


def test_malformed_hmdb51_splits(hmdb, tmp_path):
    root, splits = hmdb
    out = tmp_path / "lists"
    path = splits / "cartwheel_test_split2.txt"
    for text, reason in {
        "plain.avi 3\n": "split2.txt:1: 'plain.avi 3' is not '<file> <code>'",
        "\nplain.avi\n": "split2.txt:2: 'plain.avi' is not '<file> <code>'",
        "plain.avi 1\nplain.avi 2\n": "split2.txt:2: 'cartwheel/plain.avi' is also in the training list at",
    }.items():
        write(path, text)
        assert reason in refusal(prepare_hmdb51, root, out, splits, max_missing=0.5)
    path.unlink()
    assert f"cannot read list {splits}/cartwheel_test_split2.txt" in refusal(prepare_hmdb51, root, out, splits)
    assert "has no trainlist01.txt" in refusal(prepare_ucf101, root, out, splits)


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
    report = prepare_kinetics(root, tmp_path / "lists", train, test)
    assert read_list(tmp_path / "lists/train.csv").classes == tuple(LABELS)  # of the list, also where no file is
    assert rows(tmp_path / "lists", "train") == [
        (CLIPS[0], "surfing water"),
        (CLIPS[1], "abseiling"),
        (CLIPS[2], 'cutting "hair", short'),
        (CLIPS[3], "surfing water"),
    ]
    assert rows(tmp_path / "lists", "test") == [(CLIPS[4], "zumba"), (CLIPS[5], "abseiling")]
    assert "train: 5 listed, 4 found, 1 missing" in report and "missing: 'gone_gone_1_000003_000013.mp4'\n" in report
    assert f"is {CLIPS[1]!r}, " in report and f"is {CLIPS[3]!r}\n" in report
    assert "classes without a file: 'zumba'\n" in report
    assert (tmp_path / "lists/train.csv").read_text().startswith("path,label\n")
    assert "train: 2 of 5" in refusal(_without, root, CLIPS[3], tmp_path / "again", train, test)


def _without(root, name, out, train, test):
    (root / name).unlink()
    prepare_kinetics(root, out, train, test)


def test_kinetics_untrimmed(kinetics, tmp_path):
    root, _, _ = kinetics
    touch(root, "gone.mp4")  # not gone_gone_1
    train = write(
        tmp_path / "whole.csv",
        "\n".join([HEADER, "abseiling,-_abc_12345,0,10,train", "zumba,-_abc_12345,10.5,20,train", TRAIN[0], TRAIN[4]]),
    )
    report = prepare_kinetics(root, tmp_path / "lists", train, untrimmed=True, max_missing=0.5)
    found = read_list(tmp_path / "lists/train.csv")
    assert [(r.start, r.end, found.class_name(r.label)) for r in found.records] == [
        (0.0, 10.0, "abseiling"),
        (10.5, 20.0, "zumba"),
    ]
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
    found = read_list(tmp_path / "lists/train.csv")
    assert found.names == tuple(names[:3] if untrimmed else names)
    assert [r.start for r in found.records] == ([0.0, 0.0, 1.0] if untrimmed else [None] * 4)
    assert "train: 3 rows begin before the video" in report and "'aaaaaaaaaaa', -2 to 8 s, 'bbb" in report


def test_kinetics_in_several_folders(kinetics, tmp_path):
    root, train, test = kinetics
    touch(root, "train/stealing water/--QUuC4vJs_000084_000094.mp4")
    prepare_kinetics(root, tmp_path / "lists", train, test)  # the folder of the class goes before
    assert rows(tmp_path / "lists", "train")[0][0] == CLIPS[0]
    touch(root, CLIPS[4].replace("mp4", "webm"))  # the suffix that is meant goes before
    prepare_kinetics(root, tmp_path / "lists", train, test)
    assert rows(tmp_path / "lists", "test")[0][0] == CLIPS[4]
    touch(root, "replacement/surfing water/--QUuC4vJs_000084_000094.mp4")
    message = refusal(prepare_kinetics, root, tmp_path / "lists", train, test)
    assert message.startswith(f"{train}:2: '--QUuC4vJs_000084_000094.mp4' matches")


def test_some_classes_of_kinetics(kinetics, tmp_path):
    root, train, test = kinetics
    chosen = write(tmp_path / "classes.txt", "surfing water\r\nabseiling\r\n")
    report = prepare_kinetics(root, tmp_path / "lists", train, test, chosen)
    assert read_list(tmp_path / "lists/train.csv").classes == ("abseiling", "surfing water")
    assert rows(tmp_path / "lists", "test") == [(CLIPS[5], "abseiling")]
    assert len(rows(tmp_path / "lists", "train")) == 3
    assert "train: skipped 2 rows of other classes" in report
    write(chosen, "surfing_water\n")
    assert "'surfing_water': not a label of" in refusal(prepare_kinetics, root, tmp_path / "x", train, test, chosen)
    write(chosen, "surfing water\n\nabseiling\n")
    assert f"{chosen}:2: empty line" in refusal(prepare_kinetics, root, tmp_path / "x", train, test, chosen)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("youtube_id,time_start,time_end,split\naaaaaaaaaaa,1,11,test\n", "lacks label; .*the test list has no labels"),
        (f"{HEADER}\nyoga,ttttttttttt,7,17,validate\n", ":2: class 'yoga' is not among the 4 of"),
        (f"{HEADER}\nzumba, fast,ttttttttttt,7,17,validate\n", ":2: a row needs .*; quote names with commas"),
        (f"{HEADER}\nzumba,ttttttttttt,17,7,validate\n", ":2: '17' to '7' is not a span"),
        (f"{HEADER}\nzumba,ttttttttttt,7,inf,validate\n", "is not a span"),
        (f'{HEADER}\n"zumba,ttttttttttt,7,17,validate\n', "not CSV"),
        (f"{HEADER}\n", "test: the list has no rows"),
        (
            f"{HEADER}\nzumba,ttttttttttt,7,17,v\nabseiling,ttttttttttt,7,17,v\n",
            ":3: 'ttttttttttt_000007_000017.mp4' has label 0, but label 3 at .*:2",
        ),
        (
            f"{HEADER}\n{TRAIN[0]}\n",
            ":2: '.*--QUuC4vJs_000084_000094.mp4' is also in the training list at .*train.csv:2",
        ),
    ],
)
def test_malformed_kinetics_lists(kinetics, tmp_path, text, reason):
    root, train, test = kinetics
    write(test, text)
    with pytest.raises(DataError, match=reason) as caught:
        prepare_kinetics(root, tmp_path / "lists", train, test)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "lists").exists()


# Something-Something v2


@pytest.fixture
def ssv2(tmp_path):
    labels = {"Putting something on something": "1", "Holding something": "0", "Moving part of something": "2"}
    train = [
        {"id": "78687", "label": "holding potato", "template": "Holding [something]", "placeholders": ["potato"]},
        {"id": "42326", "label": "moving lid of jar", "template": "Moving [part] of [something]", "placeholders": []},
    ]
    test = [{"id": 74225, "template": "Putting [something] on [something]", "label": "", "placeholders": []}]
    paths = [
        write(tmp_path / f"something-something-v2-{name}.json", json.dumps(content))
        for name, content in {"train": train, "validation": test, "labels": labels}.items()
    ]
    return touch(tmp_path / "20bn", "78687.webm", "42326.webm", "74225.mp4"), *paths


def test_ssv2(ssv2, tmp_path):
    root, train, test, labels = ssv2
    report = prepare_ssv2(root, tmp_path / "lists", train, test, labels)
    assert (tmp_path / "lists/classes.txt").read_text().splitlines() == [
        "Holding something",
        "Putting something on something",
        "Moving part of something",
    ]
    assert rows(tmp_path / "lists", "train") == [
        ("78687.webm", "Holding something"),
        ("42326.webm", "Moving part of something"),
    ]
    assert rows(tmp_path / "lists", "test") == [("74225.mp4", "Putting something on something")]
    assert "with another extension: '74225.webm' is '74225.mp4'\n" in report


@pytest.mark.parametrize(
    ("which", "content", "reason"),
    [
        ("test", [{"id": "74225"}], "item 1: .* has no id or no template, as in the test list: use the val"),
        ("test", {"Holding something": "0"}, "is not a list of videos"),
        (
            "test",
            [{"id": "1", "template": "Waving [something]"}],
            "item 1: class 'Waving something' is not among the 3",
        ),
        ("test", [{"id": "78687", "template": "Holding [something]"}], "'78687.webm' is also in the training list"),
        ("test", [{"id": "1\n2", "template": "Holding [something]"}], r"'1\\n2.webm'"),
        ("labels", {"Holding something": "1"}, "is not an object from the name"),
        ("train", None, "is not JSON"),
    ],
)
def test_malformed_ssv2_lists(ssv2, tmp_path, which, content, reason):
    root, *paths = ssv2
    write(paths[("train", "test", "labels").index(which)], "{" if content is None else json.dumps(content))
    with pytest.raises(DataError, match=reason) as caught:
        prepare_ssv2(root, tmp_path / "lists", *paths)
    assert "\n" not in str(caught.value)


# TrackingNet


@pytest.fixture
def trackingnet(tmp_path):
    """Two chunks and the test set: frames from 0, not padded; a line of boxes for each, one line in the test set."""
    root = tmp_path / "TrackingNet"
    for chunk, names in {"TRAIN_0": ["-4EBxfTJXvI_0", "b_0"], "TRAIN_10": ["c_0"], "TEST": ["d_0"]}.items():
        for name in names:
            touch(root / chunk / "frames" / name, *(f"{n}.jpg" for n in range(12)))
            lines = ["1.0,2,3,4"] * (1 if chunk == "TEST" else 12)
            write(root / chunk / "anno" / f"{name}.txt", "\n".join(lines) + "\n")
    return root


def test_trackingnet(trackingnet, tmp_path):
    report = prepare_trackingnet(trackingnet, tmp_path / "lists")
    assert (tmp_path / "lists/train.csv").read_text().splitlines() == [
        "path,fps",
        "TRAIN_0/frames/-4EBxfTJXvI_0,30.0",
        "TRAIN_0/frames/b_0,30.0",
        "TRAIN_10/frames/c_0,30.0",
    ]
    assert rows(tmp_path / "lists", "test") == [("TEST/frames/d_0", "?")]
    assert not (tmp_path / "lists/classes.txt").exists()
    assert "frame count differs" not in report and "read: TRAIN_0 TRAIN_10 TEST" in report
    touch(trackingnet, *(f"TRAIN_{n}/frames/x/0.jpg" for n in (2, 9)))
    prepare_trackingnet(trackingnet, tmp_path / "lists", fps=25)
    assert [name.split("/")[0] for name, _ in rows(tmp_path / "lists", "train")] == [
        *("TRAIN_0", "TRAIN_0", "TRAIN_2", "TRAIN_9", "TRAIN_10")
    ]
    assert {r.fps for r in read_list(tmp_path / "lists/train.csv").records} == {25.0}


def test_trackingnet_boxes_that_do_not_match_the_frames(trackingnet, tmp_path):
    (trackingnet / "TRAIN_0/frames/b_0/7.jpg").unlink()
    touch(trackingnet, "TRAIN_0/frames/no_boxes/0.jpg")
    report = prepare_trackingnet(trackingnet, tmp_path / "lists")
    assert "frame count differs: 'TRAIN_0/frames/b_0' has 11, 12 are listed\n" in report
    assert "1 sequences without boxes: 'TRAIN_0/frames/no_boxes'" in report
    assert len(rows(tmp_path / "lists", "train")) == 4


def test_chunks_of_trackingnet(trackingnet, tmp_path):
    prepare_trackingnet(trackingnet, tmp_path / "lists", chunks=[10])
    assert rows(tmp_path / "lists", "train") == [("TRAIN_10/frames/c_0", "?")]
    assert "has no 'TRAIN_1'" in refusal(prepare_trackingnet, trackingnet, tmp_path / "x", chunks=range(2))
    assert "has no 'TRAIN_0'" in refusal(prepare_trackingnet, tmp_path, tmp_path / "x")
    assert "has no 'TRAIN_0'" in refusal(prepare_trackingnet, tmp_path / "none", tmp_path / "x")


# Lists of other projects


@pytest.fixture
def root(tmp_path):
    names = ["a/one.mp4", "b/two.avi", "my clips/three four.mp4", "x/f 12/img_1.jpg", "y/f/img_1.jpg", "y/f/img_2.jpg"]
    return touch(tmp_path / "videos", *names)


@pytest.mark.parametrize(
    ("form", "text", "separator", "expected"),
    [
        ("slowfast", "a/one.mp4 3\r\nb/two.avi  0 \r\n\r\n", " ", [("a/one.mp4", 3), ("b/two.avi", 0)]),
        ("slowfast", "a/one.mp4\nb/two.avi\n", " ", [("a/one.mp4", -1), ("b/two.avi", -1)]),
        ("slowfast", "a/one 3\n", " ", [("a/one.mp4", 3)]),
        ("slowfast", "my clips/three four.mp4,7\n", ",", [("my clips/three four.mp4", 7)]),
        ("slowfast", "./a/../b/two.avi 1\n", " ", [("b/two.avi", 1)]),
        ("slowfast", "\ufeffROOT/a/one.mp4 1\n", " ", [("a/one.mp4", 1)]),
        ("mmaction2", "a/one.mp4 3\nb/two.avi 0\n", " ", [("a/one.mp4", 3), ("b/two.avi", 0)]),
        ("mmaction2_rawframes", "y/f 2 5\n", " ", [("y/f", 5)]),
        ("mmaction2_rawframes", "x/f 12;1;5\n", ";", [("x/f 12", 5)]),
    ],
)
def test_lists_of_other_projects(root, tmp_path, form, text, separator, expected):
    videos = write(tmp_path / "list.txt", text.replace("ROOT", str(root)))
    prepare_list(videos, form, root, tmp_path / "lists", separator=separator)
    found = read_list(tmp_path / "lists/train.csv")
    assert list(zip(found.names, [r.label for r in found.records], strict=True)) == expected
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
        videos, lists = tmp_path / f"{number}.txt", tmp_path / f"lists{number}"
        videos.write_bytes(("\ufeff" + (end or "\n").join(lines) + end).encode())
        prepare_list(videos, "slowfast" if form == "bare" else form, root, lists, separator=separator)
        found = read_list(lists / "train.csv")
        expected = dict(zip(names, labels, strict=True))
        assert dict(zip(found.names, found.labels.tolist(), strict=True)) == expected, (separator, end)


@pytest.mark.parametrize(
    ("form", "line", "expected"),
    [
        ("slowfast", '"my clips/three four.mp4"\t7', ("my clips/three four.mp4", 7)),
        ("slowfast", "my clips\\three four.mp4 7", ("my clips/three four.mp4", 7)),
        ("slowfast", "a/one.mp4 3.0", ("a/one.mp4", 3)),
        ("videomae", "a/one.mp4 0 -1", ("a/one.mp4", -1)),
        ("videomae", "a/one.mp4 5", ("a/one.mp4", 5)),
        ("videomae", "y/f 1 2", ("y/f", -1)),
    ],
)
def test_lines_of_other_projects(root, tmp_path, form, line, expected):
    prepare_list(write(tmp_path / "list.txt", line), form, root, tmp_path / "lists", fps=25)
    found = read_list(tmp_path / "lists/train.csv")
    assert [(found.names[0], found.labels[0])] == [expected]


@pytest.mark.parametrize(
    ("form", "line", "reason"),
    [
        ("slowfast", "my clips/three 7 x", "is not 'path' or"),
        ("slowfast", "a/one.mp4 1.5", "is not 'path' or"),
        ("slowfast", "a/one.mp4 ٣", "is not 'path' or"),
        ("slowfast", "a/one.mp4 0 -1", "is not 'path' or 'path label' or 'path frames label'; form=videomae has it"),
        ("videomae", "a/one.mp4", "is not 'path label' or 'path start frames'"),
        ("videomae", "a/one.mp4 0 -2", "is not 'path label' or"),
        ("videomae", "y/f 40 2", "begins at frame 40: only whole folders are listed"),
        ("slowfast", "x/f 12", "'x/f 12' is ambiguous: the path may also be 'x/f 12'"),
        ("slowfast", "x/f 12 5", "'x/f 12 5' is ambiguous: the path may also be 'x/f 12'"),
        ("slowfast", '"a/one.mp4 5', "is not 'path' or"),
        ("slowfast", "../one.mp4 5", "leaves"),
        ("slowfast", "ROOT/../one.mp4 5", "leaves"),
        ("mmaction2", "a/one.mp4 1 2", "is not 'path label'"),
        ("mmaction2_rawframes", "y/f 2 5 6", "is not 'path frames label'"),
        ("mmaction2_rawframes", "x/f 12 5", "is ambiguous"),
    ],
)
def test_malformed_lines_of_other_projects(root, tmp_path, form, line, reason):
    videos = write(tmp_path / "list.txt", f"\n{line}\n".replace("ROOT", str(root)))
    message = refusal(prepare_list, videos, form, root, tmp_path / "lists")
    assert message.startswith(f"{videos}:2: ") and reason in message


def test_classes_of_other_projects(root, tmp_path):
    names = write(tmp_path / "map.txt", "run\r\nwalk, slowly\r\n")
    out = tmp_path / "lists"
    for name, text in {"train": "a/one.mp4 1\n", "test": "b/two.avi 0\n"}.items():
        prepare_list(write(tmp_path / "list.txt", text), "slowfast", root, out, name=name, classes=names)
    assert (rows(out, "train"), rows(out, "test")) == ([("a/one.mp4", "walk, slowly")], [("b/two.avi", "run")])
    videos = write(tmp_path / "list.txt", "a/one.mp4 2\n")
    message = refusal(prepare_list, videos, "slowfast", root, out, classes=names)
    assert f"{videos}:1: label 2 is out of range; {names} has 2 classes, from 0" in message
    write(videos, "a/one.mp4 1\n")
    assert "holds a classes.txt" in refusal(prepare_list, videos, "slowfast", root, out)
    write(names, "run\nrun\n")
    assert "duplicate class names: 'run'" in refusal(
        prepare_list, videos, "slowfast", root, tmp_path / "x", classes=names
    )


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"form": "csv"}, "unknown form 'csv'; there are: slowfast, mmaction2"),
        ({"separator": ""}, "separator '' is empty or has"),
        ({"separator": '"'}, "has a quote or a line break"),
        ({"separator": ":\n"}, "has a quote or a line break"),
        ({"separator": "7"}, "has a digit"),
    ],
)
def test_options_of_other_projects_lists(root, tmp_path, options, reason):
    videos = write(tmp_path / "list.txt", "a/one.mp4 1\n")
    given = {"form": "slowfast", **options}
    assert reason in refusal(prepare_list, videos, root=root, out=tmp_path / "lists", kind=ConfigError, **given)
