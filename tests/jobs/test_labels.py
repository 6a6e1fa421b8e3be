"""`labels` in every job that reads labels: a file, the folders or none, against the CSV as Python's module reads it.

Also the one line that says what a number is of, names of folders that cameras give, and what people write in files.
"""

import csv
import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import vidssl
from vidssl import cli
from vidssl.apps import compare as comparison
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.label_videos import describe_labels, label_videos
from vidssl.data.read_input import read_input
from vidssl.data.recordings_and_class_folders import is_camera_name, labelled_by_folders
from vidssl.data.video_list import read_list

TOY = str(Path(__file__).parents[2] / "configs" / "toy" / "moco.yaml")
NETWORK = {"workers": 0, "device": "cpu"}
FLOOR = "floor:thumbnails"
LABELS = (
    "file,behaviour\n1.mp4,walk\n2.mp4,walk\n3.mp4,run\nWhatsApp Video/5.mp4,walk\n6.MP4,run\n7,run\nlost.mp4,run\n"
)
FOLDERS = ("DCIM", "WhatsApp Video")


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """Eight videos in two folders that a phone has named; six have a label in a file."""
    here = tmp_path_factory.mktemp("labels")
    for n, video in enumerate(sorted((digits / "videos/test").glob("*.mp4"))[:8], 1):
        target = here / "clips" / FOLDERS[n > 4] / f"{n}.mp4"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, target)
    (here / "my.csv").write_text(LABELS)
    return here


def expected(folder, labels):
    """The class of each video, by its number."""
    if labels == "folders":
        return {n: FOLDERS[n > 4] for n in range(1, 9)}
    if labels != "my.csv":
        return {}
    with open(folder / labels, newline="") as file:
        rows = [*csv.reader(file)][1:]
    return {int(Path(name).stem): label for name, label in rows if name != "lost.mp4"}


WORDS = {
    "my.csv": "labels: my.csv, 6 of 8 videos, 2 classes",
    "folders": "labels: the 2 folders DCIM, WhatsApp Video; other classes: labels=FILE",
    "none": "labels: none; labels=FILE gives names of classes",
}
CAMERAS = (
    "labels: none, as the folders DCIM, WhatsApp Video have names that cameras, phones or calendars give: "
    'labels="folders" takes them for classes, labels=FILE gives others'
)


def of_list(path, out):
    """Classes of a list with classes.txt, by the number of the video."""
    videos = read_list(out / path)
    names = [videos.class_name(n) for n in videos.labels.tolist()]
    return {int(Path(name).stem): label for name, label in zip(videos.names, names, strict=True) if label != "?"}


def extracted(videos, out, **options):
    features = vidssl.extract(FLOOR, videos, out=out, **NETWORK, **options)
    assert len(features.x) == 8  # those without a label are there
    known = zip(features.records, features.label.tolist(), strict=True)
    return {int(Path(video.path).stem): features.classes[n] for video, n in known if n >= 0}, None


def mapped(videos, out, **options):
    results = vidssl.map(videos, FLOOR, out=out, layout="pca", thumbnails=0, **NETWORK, **options)
    assert len(read_list(out / "videos.csv")) == 8
    return of_list("videos.csv", out), results["labels"]


def mapped_from_features(videos, out, **options):
    vidssl.extract(FLOOR, videos, out=out / "features", **NETWORK)
    results = vidssl.map(features=out / "features", out=out / "map", layout="pca", thumbnails=0, **options)
    return of_list("videos.csv", out / "map"), results["labels"]


def compared(videos, out, **options):
    results = vidssl.compare(videos, model=FLOOR, out=out, shots=(1,), **NETWORK, **options)
    assert f"L{results['labels'][1:]}.".replace('"', "&#34;") in (out / "index.html").read_text()
    assert results.text.startswith(results["labels"])
    assert len(results["videos"]) == (6 if options.get("labels") == "my.csv" else 8)
    (section,) = results["sections"] or [None]
    if section is None:
        return {}, results["labels"]
    names = dict(zip(sorted({*section["labels"]}), (row["name"] for row in section["classes"]), strict=True))
    videos = [results["videos"][row] for row in section["rows"]]
    assert len(section["labels"]) == len(section["predicted"][FLOOR]["knn"]) == len(section["folds"])
    label = zip(videos, section["labels"], strict=True)
    return {int(Path(video).stem): names[n] for video, n in label}, results["labels"]


def measured(videos, out, **options):
    try:
        results = vidssl.test(FLOOR, videos, out=out, train_list=videos, protocol=["knn"], **NETWORK, **options)
    except DataError as error:
        assert "needs labels, and 8 of 8 videos" in str(error)
        return {}, None
    assert str(results).splitlines()[0] == results["labels"]
    assert results["num_videos"] == results["num_train"] == (6 if options["labels"] == "my.csv" else 8)
    with open(out / "predictions_knn.csv", newline="") as file:
        return {int(Path(row["path"]).stem): row["class"] for row in csv.DictReader(file)}, results["labels"]


def analysed(videos, out, **options):
    try:
        results = vidssl.analyze_uniformity(FLOOR, videos, out=out, **NETWORK, **options)
    except DataError as error:
        assert "need labels of two classes" in str(error)
        return {}, None
    (results,) = results.values()
    assert results["num_videos"] == (6 if options["labels"] == "my.csv" else 8)
    return None, results["labels"]


def searched(videos, out, **options):
    results = vidssl.retrieval(FLOOR, gallery=videos, query=videos, out=out, **NETWORK, **options)
    assert ("R@1" in results) == (options.get("labels") != "none")
    assert ("walk" in (out / "index.html").read_text()) == (options.get("labels") == "my.csv")
    return None, results.get("labels")


def trained(videos, out, **options):
    settings = ["data.moving_digits=null", "data.workers=0", "device=cpu", "steps=1", "evaluate.beside=null"]
    vidssl.train(TOY, *settings, f"output={out}", videos=videos, **options)
    content = json.loads((out / "training.json").read_text())
    if content["knn"] is None:
        return {}, content["reason"].partition("; ")[2]
    count = 6 if options["labels"] == "my.csv" else 8
    assert content["knn"]["what"].startswith(
        f"{count} training videos, each compared with the {count // 2 - 1} nearest others"
    )
    assert content["labels"].removeprefix("labels: ") in (out / "training.html").read_text()
    assert any(f"--labels {options['labels']}" in command for _, command in content["commands"])
    return None, content["labels"]


JOBS = (extracted, mapped, mapped_from_features, compared, measured, analysed, searched, trained)


@pytest.mark.parametrize("job", JOBS)
def test_every_job_with_labels(job, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(comparison, "FLOORS", ("thumbnails", "differences"))
    for labels in ("my.csv", "folders", "none"):
        classes, words = job("clips", tmp_path / labels, labels=labels)
        assert classes is None or classes == expected(folder, labels), labels
        assert words is None or words == WORDS[labels]


@pytest.mark.parametrize("job", [mapped, compared, trained])
def test_folders_that_a_camera_has_named_are_no_classes(job, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(comparison, "FLOORS", ("thumbnails", "differences"))
    assert job("clips", tmp_path / "out") == ({}, CAMERAS)


def test_the_command_says_it_with_its_options(folder, tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(comparison, "FLOORS", ("thumbnails", "differences"))
    words = ["--checkpoint", FLOOR, "--workers", "0", "--device", "cpu", "--clips", "1", "--crops", "1"]
    with caplog.at_level(logging.INFO):
        cli.run("compare", ["clips", *words, "--labels", "folders", "--out", str(tmp_path / "a")])
        cli.run("map", ["clips", *words, "--layout", "pca", "--thumbnails", "0", "--out", str(tmp_path / "b")])
    line = "labels: the 2 folders DCIM, WhatsApp Video; other classes: --labels FILE"
    printed = capsys.readouterr().out
    assert (
        printed.startswith(line) and line in caplog.text and f"L{line[1:]}." in (tmp_path / "a/index.html").read_text()
    )
    assert "--labels folders takes them for classes, --labels FILE gives others" in printed
    with pytest.raises(ConfigError, match="argument --labels: expected one argument"):
        cli.run("track", ["clips", "--labels"])
    with pytest.raises(ConfigError, match="leave out labels"):
        cli.run("track", ["clips", "--checkpoint", FLOOR, "--labels", "none", "--out", str(tmp_path / "c")])


def test_which_names_cameras_and_calendars_give():
    names = """DCIM 100APPLE 100GOPRO 101_PANA 202506__ 100MEDIA DJI_001 Camera camera GoPro cam1 cam_02 CH01 Videos
        Movies Screenshots AVCHD PRIVATE 2025 2025-06 2025_06 202506 2025-06-12 2025.06.12 20250612 20250612_143005
        20250612143005 2025-W24 12.06.2025 12-6-2025"""
    spaced = "WhatsApp Video|WhatsApp Images|Camera Roll|Screen recordings|Saved Pictures|June 2025|2025 Jun"
    spaced += "|Photos from 2023|2025-06-12 Site A|2025-06-12_kitchen|2025-06-12T14-30|Telegram Video|cam 2"
    others = """walk run Archery class1 fight noFight 1 01 7 123 1800 2025walks 100metres 100m 101_dalmatians march May
        camel channel_swimming videography moviegoers video_calls cameraman 20251399 3_apples 2025-13-40 chess
        PlayingCello S001C002P003 train test"""
    assert [name for name in [*names.split(), *spaced.split("|")] if not is_camera_name(name)] == []
    assert [name for name in [*others.split(), "Site A", "yoga 2025", "March madness"] if is_camera_name(name)] == []


def test_one_name_of_a_person_makes_all_folders_classes(folder, tmp_path):
    shutil.copytree(folder / "clips", tmp_path / "clips")
    assert labelled_by_folders(read_input(tmp_path / "clips")).classes == ()
    shutil.move(tmp_path / "clips/DCIM", tmp_path / "clips/kitchen")
    videos = labelled_by_folders(read_input(tmp_path / "clips"))
    assert videos.classes == ("WhatsApp Video", "kitchen") and not videos.is_test_set
    assert describe_labels(videos) == "labels: the 2 folders WhatsApp Video, kitchen; other classes: labels=FILE"


@pytest.mark.parametrize("header", ["path,label", "path"])
@pytest.mark.parametrize("labels", [None, "my.csv", "folders", "none"])
def test_a_list_with_labels_from_anywhere_is_a_test_set(header, labels, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    names = [path.relative_to(folder / "clips") for path in sorted((folder / "clips").glob("*/*.mp4"))]
    number = "" if header == "path" else ",0"
    (tmp_path / "list.csv").write_text("\n".join([header, *(f"{name}{number}" for name in names)]))
    videos = label_videos(read_list(tmp_path / "list.csv", folder / "clips"), labels)
    assert videos.is_test_set == (labels in ("my.csv", "folders") or (labels is None and header == "path,label"))
    assert not label_videos(read_input(folder / "clips"), labels).is_test_set


# What people write --------------------------------------------------------------------------------------------


def named(tmp_path, *names):
    for name in names:
        (tmp_path / "field" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "field" / name).write_bytes(b"x")
    return read_input(tmp_path / "field")


def of_videos(videos):
    known = zip(videos.names, videos.labels.tolist(), strict=True)
    return {name: videos.class_name(n) for name, n in known if n >= 0}


@pytest.mark.parametrize(
    "rows",
    [
        "file;behaviour\na/GX01.MP4;run\nb/2.mp4;jump\n",
        "\ufefffile\tbehaviour\r\na/GX01.MP4\trun\r\nb/2.mp4\tjump\r\n",
        "GX01.MP4,run\n2.mp4,jump\n",  # no header
        "video,what\nGX01.mp4,run\n2.MP4,jump\n",  # letters of the other case
        "video,what\nGX01,run\nb/2,jump\n",  # no extension
        "video,what\nfield/a/GX01.MP4,run\n./field/b/2.mp4,jump\n",
        "video,what\n/home/me/project/field/a/GX01.MP4,run\nproject/field/b/2.mp4,jump\n",  # of another machine
        "video,what\nC:\\me\\field\\a\\GX01.MP4,run\nb\\2.mp4,jump\n",
        'video,what,,\n"a/GX01.MP4",run,,\n"b/2.mp4","jump",,\n',
        "what,path\nrun,a/GX01.MP4\njump,b/2.mp4\n-1,c/2b.mp4\n",
        "video,what\rGX01.MP4,run\r2.mp4,jump\r",  # of an old Mac
        "video\twhat\r\nGX01.MP4\trun\r\n2.mp4\tjump\r\n".encode("utf-16"),  # Unicode text of Excel
    ],
)
def test_what_people_write(rows, tmp_path):
    videos = named(tmp_path, "a/GX01.MP4", "b/2.mp4", "c/2b.mp4")
    (tmp_path / "my.csv").write_bytes(rows if isinstance(rows, bytes) else rows.encode())
    assert of_videos(label_videos(videos, tmp_path / "my.csv")) == {"a/GX01.MP4": "run", "b/2.mp4": "jump"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (
            "video,what\nother/a/GX01.MP4,run\n",
            "has no label of a video of .*field: they are a/GX01.MP4.*; it names other/a/GX01.MP4",
        ),
        ("video,what\nGX01,run\n", "GX01 is the name of 2 files, such as .*: write the path"),
        ("video,what\na/GX01.MP4,run\nfield/a/gx01,jump\n", "has the label 'jump', in .* 'run'"),
        ("video,what,who\na/GX01.MP4,run,me\n", "header 'video,what,who' has no column label: write path,label"),
        ("video,what\na/GX01.MP4,caf\xe9\n".encode("latin-1"), "is not UTF-8: save it as UTF-8"),
        ("video,what\na/GX01.MP4,r\run\n", "my.csv:2: not CSV: a carriage return in a row: remove it"),
        ('video,what\na/GX01.MP4,"r"un\n', "my.csv:2: not CSV: .* is a quote left open"),
        ("video,what\na/GX01.MP4,r\0n\n", "my.csv:2: a NUL character: save it as UTF-8"),
        ("", "has no rows"),
        ("path,label\n", "has no label of a video of .*field: they are .*; it names nothing"),
        ("path,label\na/GX01.MP4,\n", "has no label of a video of .*field: all are empty: fill in their column"),
    ],
)
def test_what_is_no_label_is_one_line(rows, words, tmp_path):
    videos = named(tmp_path, "a/GX01.MP4", "b/GX01.MP4")
    (tmp_path / "my.csv").write_bytes(rows if isinstance(rows, bytes) else rows.encode())
    with pytest.raises(DataError, match=words) as error:
        label_videos(videos, tmp_path / "my.csv")
    assert "\n" not in str(error.value)


def test_labels_of_another_folder_are_not_taken(tmp_path, caplog):
    """A file with labels of all sites, and the videos of one: equal names in equal folders of other sites."""
    named(tmp_path, "siteA/100GOPRO/GX01.MP4", "siteB/100GOPRO/GX01.MP4", "siteB/100GOPRO/GX02.MP4")
    paths = (
        "siteA/100GOPRO/GX01.MP4",
        "siteB/100GOPRO/GX01.MP4",
        "/other/field/siteB/100GOPRO/GX02.MP4",
        "no/GX03.MP4",
    )
    (tmp_path / "my.csv").write_text("".join(["file,what\n", *(f"{path},{n}\n" for n, path in enumerate(paths))]))
    for site, labels in (
        ("siteA", {"100GOPRO/GX01.MP4": "0"}),
        ("siteB", {"100GOPRO/GX01.MP4": "1"} | {"100GOPRO/GX02.MP4": "2"}),
    ):
        videos = label_videos(read_input(tmp_path / "field" / site), tmp_path / "my.csv")
        assert of_videos(videos) == labels and videos.classes == ("0", "1", "2", "3")
    assert "2 of 4 names are of no video of" in caplog.text and "no/GX03.MP4" in caplog.text


BORIS = "Observation id,Subject,Behavior,Behavior type,Start (s),Stop (s),Media file name\n"


def test_spans_of_an_annotation_form(tmp_path):
    """They are rows beside whole videos; windows have the label of the span that has more than half of them."""
    videos = named(tmp_path, "a.mp4", "b.mp4")
    (tmp_path / "boris.csv").write_text(f"{BORIS}1,x,dig,STATE,1.0,3.0,a.mp4\n1,x,eat,STATE,5,6,field/a.mp4\n")
    labelled = label_videos(videos, tmp_path / "boris.csv")
    rows = [(Path(row.path).name, row.start, row.end, labelled.class_name(row.label)) for row in labelled.records]
    assert rows == [
        ("a.mp4", None, None, "?"),
        ("b.mp4", None, None, "?"),
        ("a.mp4", 1, 3, "dig"),
        ("a.mp4", 5, 6, "eat"),
    ]
    assert describe_labels(labelled) == "labels: boris.csv, 2 of 4 videos, 2 classes"
    assert label_videos(labelled, tmp_path / "boris.csv").fingerprint == labelled.fingerprint
    lines = [f"a.mp4,{start},{start + 1}\n" for start in np.arange(0, 7, 0.5)]
    (tmp_path / "field/windows.csv").write_text("".join(["path,start,end\n", *lines, "b.mp4,1,3\n"]))
    windows = label_videos(read_list(tmp_path / "field/windows.csv"), tmp_path / "boris.csv")
    actual = {row.start: windows.class_name(row.label) for row in windows.records if row.label >= 0}
    assert actual == {1: "dig", 1.5: "dig", 2: "dig", 5: "eat"} and len(windows) == len(lines) + 1


def label_by_loop(path, row):
    """The class of a row (name, start, end) by all lines of a CSV file: its largest span, else its whole video."""
    name, start, end = row
    stop, best = float("inf") if end is None else end, (0.0, 0.0, 0.0, None)
    with open(path, newline="") as file:
        for line in csv.DictReader(file):
            first, last = float(line["start"] or 0), float(line["end"] or "inf")
            if line["path"] != name or not line["label"]:
                continue
            if (first, last) == (0, float("inf")):
                ranked = (-1.0, 0.0, 0.0, line["label"])
            elif end is None:
                ranked = (1.0, 0.0, first, line["label"]) if last == stop and first <= start else best
            else:
                part = min(stop, last) - max(start, first)
                ranked = (part, first - last, first, line["label"]) if 2 * part > stop - start else best
            best = max(best, ranked) if best[3] else ranked
    return best[3]


LINES = """\
a.mp4,walk,,
a.mp4,run,0.25,1
a.mp4,sit,0,1.5
a.mp4,lie,2,
a.mp4,,1,3
b.mp4,sit,,
b.mp4,lie,3,9
b.mp4,eat,4,6
c.mp4,eat,1.5,
c.mp4,lie,3.5,3.75
c.mp4,run,8,8.125
""".splitlines()


@pytest.mark.parametrize("order", range(3))
@pytest.mark.parametrize("listed", ["whole", "windows", "both"])
def test_labels_of_rows_are_those_of_a_loop(listed, order, tmp_path, caplog):
    named(tmp_path, "a.mp4", "b.mp4", "c.mp4", "d.mp4")
    lines = [LINES, LINES[::-1], LINES[5:] + LINES[:5]][order]
    (tmp_path / "my.csv").write_text("\n".join(["path,label,start,end", *lines]))
    rows = [(f"{name}.mp4", 0.0, None) for name in "abcd"] * (listed != "windows")
    spans = [(f"{name}.mp4", n / 2, n / 2 + 1) for name in "abcd" for n in range(14)] + [("a.mp4", 3.0, None)]
    rows += spans * (listed != "whole")
    text = "".join(f"{name},{start},{'' if end is None else end}\n" for name, start, end in rows)
    (tmp_path / "field/list.csv").write_text(f"path,start,end\n{text}")
    labelled = label_videos(read_list(tmp_path / "field/list.csv"), tmp_path / "my.csv")
    actual = [
        ((Path(row.path).name, row.start or 0.0, row.end), labelled.class_name(row.label)) for row in labelled.records
    ]
    fields = [line.split(",") for line in lines]
    added = [(name, float(first), float(last or 0) or None) for name, label, first, last in fields if label and first]
    expected_rows = rows + [row for row in added if row not in rows] * (listed != "windows")
    assert [row for row, _ in actual] == expected_rows
    assert [label for _, label in actual] == [label_by_loop(tmp_path / "my.csv", row) or "?" for row in expected_rows]
    lost = [record.getMessage() for record in caplog.records if "spans are the largest part" in record.message]
    assert ["3 of 11 spans are the largest part of no video: " in line for line in lost] == [True] * (
        listed == "windows"
    )


def test_windows_are_those_without_labels(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder / "clips")
    lines = ["DCIM/1.mp4,aa,0,0.6", "DCIM/1.mp4,bb,0.6,", "DCIM/2.mp4,bb,,", "DCIM/3.mp4,aa,,", "DCIM/3.mp4,bb,0,0.4"]
    (tmp_path / "my.csv").write_text("\n".join(["path,label,start,end", *lines]))
    blank = vidssl.extract(FLOOR, ".", out=tmp_path / "blank", window=0.3, **NETWORK)
    places = [(os.path.relpath(row.path), row.start, row.end) for row in blank.records]
    assert len(places) > 16
    by_loop = [label_by_loop(tmp_path / "my.csv", row) for row in places]
    assert {*by_loop} == {"aa", "bb", None}
    for options in ({}, {"out": tmp_path / "x"}):
        features = vidssl.extract(FLOOR, ".", window=0.3, labels=f"{tmp_path}/my.csv:label", **options, **NETWORK)
        assert [(os.path.relpath(row.path), row.start, row.end) for row in features.records] == places
        assert [features.classes[n] if n >= 0 else None for n in features.label.tolist()] == by_loop
    out, index = tmp_path / "search", tmp_path / "index"
    options = {"query": ".", "gallery": ".", "window": 0.3, "labels": tmp_path / "my.csv", "index": index, "out": out}
    vidssl.retrieval(FLOOR, **options, **NETWORK)
    labels = vidssl.load_features(index).label.tolist()
    assert [["aa", "bb"][n] if n >= 0 else None for n in labels] == by_loop


def test_labels_of_windows_of_a_span_are_read_again(folder, tmp_path, caplog):
    """No row of the list has a label, and its windows have."""
    caplog.set_level(logging.INFO)
    (tmp_path / "list.csv").write_text("path,start,end\nDCIM/1.mp4,0,0.8\n")
    options = {"root": folder / "clips", "window": 0.2, "labels": tmp_path / "my.csv", "out": tmp_path / "out"}
    for first, second in ("ab", "ba"):
        lines = f"path,label,start,end\n1.mp4,{first},0,0.2\n1.mp4,{second},0.2,0.4\n"
        (tmp_path / "my.csv").write_text(lines)
        features = vidssl.extract(FLOOR, tmp_path / "list.csv", **options, **NETWORK)
        assert [features.classes[n] if n >= 0 else None for n in features.label.tolist()] == [first, second, None, None]
    assert "4 of 4 windows were there" in caplog.text and "largest part of no" not in caplog.text
