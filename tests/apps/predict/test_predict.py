"""Labels for other videos, on files: what is written, kept and refused; numbers: test_trust."""

import codecs
import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import vidssl
from vidssl import cli
from vidssl.apps.predict import TO_LABEL
from vidssl.apps.predict.moments import NONE
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.read_labels import read_labels

COLOURS = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (200, 50, 40)}
OPTIONS = {"model": "floor:thumbnails", "workers": 0, "ask": 4, "group": r"r\d+"}


def frames(name, seed, count=16):
    """Frames of one colour, darker to one side."""
    rng = np.random.RandomState(seed)
    ramp = np.linspace(0.6 + 0.2 * rng.rand(), 1, 48)[None, None, :, None]
    return (np.array(COLOURS[name]) * ramp * np.ones((count, 36, 48, 1)) + rng.randn(count, 36, 48, 3)).clip(0, 255)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, write_video):
    """Two clips of each of eight recordings a class, a broken one, and the labels of six recordings."""
    folder = tmp_path_factory.mktemp("predict")
    for number, name in enumerate(COLOURS):
        for clip in range(16):
            path = folder / "videos" / f"r{number}{clip // 2}_{clip % 2}_{name}.mp4"
            write_video(path, frames(name, 100 * number + clip).astype(np.uint8))
    (folder / "videos" / "r99_broken.mp4").write_bytes(b"no video")
    rows = [(path.name, path.stem.split("_")[2]) for path in sorted((folder / "videos").glob("r?[0-5]_*.mp4"))]
    write_labels(folder / "labels.csv", [("file", "colour"), *rows])
    return folder


def write_labels(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def rows_of(path):
    with open(path, newline="") as file:
        return [*csv.DictReader(file)]


@pytest.fixture(scope="module")
def predicted(folder):
    results = vidssl.predict(folder / "videos", labels=[folder / "labels.csv"], out=folder / "out", **OPTIONS)
    return results, folder / "out"


def test_the_rest_is_predicted(predicted):
    results, out = predicted
    rows = rows_of(out / "predictions.csv")
    assert rows[0].keys() == {
        "path",
        "start",
        "end",
        "class",
        "confidence",
        "second_class",
        "nearest_example",
        "distance",
        "measured",
    }
    assert len(rows) == 12 and all(row["path"][1:3] in ("06", "07", "16", "17", "26", "27") for row in rows)
    known = [row for row in rows if row["class"] != NONE]
    assert len(known) >= 9 and all(row["class"] in row["path"] for row in known)
    assert all(row["second_class"] != row["class"] and 0 < float(row["confidence"]) <= 1 for row in known)
    unlike = [row for row in rows if row["class"] == NONE]
    assert {(row["confidence"], row["measured"]) for row in unlike} == {("", "")}
    assert all(row["second_class"] in row["path"] for row in unlike)  # here the nearest class is the true one
    assert results["num_examples"] == 36 and results["num_predicted"] == 12
    assert results["trust"]["recall"]["value"] > 0.9 and results["trust"]["recordings"] == 18
    assert str(results).startswith(results["trust"]["line"])
    assert [gap["path"].endswith("r99_broken.mp4") for gap in results["missing"]] == [True]
    assert json.loads((out / "results.json").read_text())["predicted"] == results["predicted"]
    nearest = {row["nearest_example"] for row in rows}
    assert nearest <= {row["file"] for row in rows_of(out.parent / "labels.csv")}


def test_the_page_has_each_section(predicted):
    results, out = predicted
    page = (out / "index.html").read_text()
    assert f"<p>{results['trust']['sentences'][0]}</p>" in page and "r99_broken.mp4" in page
    for title in (*COLOURS, "To label next"):
        assert f"<h2>{title}<small>" in page
    assert "http" not in page.replace("http-equiv", "")


def test_labels_are_filled_in_and_used(predicted, folder):
    out = folder / "again"
    shutil.copytree(predicted[1], out)
    rows = rows_of(out / "to_label.csv")
    assert len(rows) == 4 and {row["label"] for row in rows} == {""}
    filled = [{**row, "label": row["path"].split("_")[2].removesuffix(".mp4")} for row in rows]
    write_labels(out / "to_label.csv", [[*filled[0]], *(row.values() for row in filled)])
    written = (out / "to_label.csv").read_bytes()
    labels = [folder / "labels.csv", out / "to_label.csv"]
    before = (out / "features" / "features.npy").stat().st_size
    seen = []
    results = vidssl.predict(
        folder / "videos",
        labels=labels,
        out=out,
        progress=lambda done, total, title: seen.append((title, total)),
        **OPTIONS,
    )
    assert results["num_examples"] == 40 and results["num_predicted"] == 8
    assert {total for title, total in seen if title == "features"} == {1}  # the broken one: nothing is encoded again
    assert (out / "features" / "features.npy").stat().st_size == before
    assert (out / "to_label.csv").read_bytes() == written and results["to_label"] == "to_label_2.csv"
    examples = {(Path(row["path"]).name, row["label"]) for row in rows_of(out / "examples.csv")}
    assert examples >= {(Path(row["path"]).name, row["label"]) for row in filled} and len(examples) == 40
    again = vidssl.predict(folder / "videos", labels=out / "examples.csv", out=out, **OPTIONS)  # in place of both
    assert (again["num_examples"], again["predicted"]) == (40, results["predicted"])
    assert {(Path(row["path"]).name, row["label"]) for row in rows_of(out / "examples.csv")} == examples


def test_rounds_of_labels_are_never_replaced(folder):
    """Also if the first list is gone, and though a later one asks again for what was left empty."""
    out, labels = folder / "rounds", [folder / "labels.csv"]
    for number, name in enumerate(("to_label.csv", "to_label_2.csv", "to_label_3.csv")):
        results = vidssl.predict(folder / "videos", labels=labels, out=out, **{**OPTIONS, "ask": 2})
        assert results["to_label"] == name and results["num_examples"] == 36 + number
        rows = rows_of(out / name)
        rows[0]["label"] = rows[0]["path"].split("_")[2].removesuffix(".mp4")
        write_labels(out / name, [[*rows[0]], *(row.values() for row in rows)])
        labels.append(out / name)
    (out / "to_label.csv").rename(folder / "first.csv")
    kept = (out / "to_label_2.csv").read_bytes()
    labels[1] = folder / "first.csv"
    assert vidssl.predict(folder / "videos", labels=labels, out=out, **OPTIONS)["to_label"] == "to_label.csv"
    assert (out / "to_label_2.csv").read_bytes() == kept


def test_a_list_that_is_both_has_rounds_too(folder, monkeypatch):
    rows = [
        (f"videos/{path.name}", path.stem.split("_")[2] if path.name[2] < "3" else "")
        for path in sorted((folder / "videos").glob("r[0-2]?_*.mp4"))
    ]
    both, out = write_labels(folder / "list.csv", [("path", "label"), *rows]), folder / "of_list"
    vidssl.predict(both, labels=[both], out=out, **OPTIONS)
    asked = rows_of(out / "to_label.csv")
    asked[0]["label"] = asked[0]["path"].split("_")[2].removesuffix(".mp4")
    write_labels(out / "to_label.csv", [[*asked[0]], *(row.values() for row in asked)])
    monkeypatch.chdir(folder)
    results = vidssl.predict("list.csv", labels=[both, out / "to_label.csv"], out=out, **OPTIONS)
    assert results["num_examples"] == 19 and results["num_predicted"] == 29


def test_what_has_a_label_is_not_predicted(folder, tmp_path):
    """A span of a clip is no whole video, as BORIS writes whole videos too."""
    names = [path.name for path in sorted((folder / "videos").glob("r?[0-5]_*.mp4"))]
    rows = [(name, name.split("_")[2].removesuffix(".mp4"), 0, 0.6) for name in names]
    labels = write_labels(tmp_path / "labels.csv", [("path", "label", "start", "end"), *rows])
    results = vidssl.predict(folder / "videos", labels=[labels], out=tmp_path / "out", **OPTIONS)
    assert results["num_examples"] == 36 and results["num_predicted"] == 12
    listed = write_labels(tmp_path / "list.csv", [("path", "start", "end"), *((n, 0.0412345, 0.6) for n in names)])
    options = {**OPTIONS, "root": folder / "videos", "ask": 50}
    whole = write_labels(tmp_path / "whole.csv", [("path", "label", "start", "end"), *(
        (str(folder / "videos" / name), name.split("_")[2].removesuffix(".mp4"), 0.0412345, 0.6) for name in names[:30]
    )])  # fmt: skip
    results = vidssl.predict(listed, labels=[whole], out=tmp_path / "spans", **options)
    assert results["num_predicted"] == 6
    asked = rows_of(tmp_path / "spans/to_label.csv")
    for row in asked:
        row["label"] = row["path"].split("_")[2].removesuffix(".mp4")
    write_labels(tmp_path / "spans/to_label.csv", [[*asked[0]], *(row.values() for row in asked[:5])])
    labels = [whole, tmp_path / "spans/to_label.csv"]
    results = vidssl.predict(listed, labels=labels, out=tmp_path / "spans", **options)
    assert results["num_examples"] == 35 and results["num_predicted"] == 1


def test_what_is_not_known_is_said(folder, tmp_path):
    """Of recordings without a name, and of a class with one example, which no other one can be predicted from."""
    rows = [tuple(row.values()) for row in rows_of(folder / "labels.csv")]
    rows = [row for row in rows if row[1] != "red"] + [row for row in rows if row[1] == "red"][:1]
    labels = write_labels(tmp_path / "labels.csv", [("file", "colour"), *rows])
    results = vidssl.predict(folder / "videos", labels=[labels], out=tmp_path / "out", **{**OPTIONS, "group": None})
    line, page = results["trust"]["line"], (tmp_path / "out/index.html").read_text()
    assert "Recordings are not known: each video counts as one" in line and "; recordings not known</dd>" in page
    assert results["trust"]["groups"].startswith("each file is one")
    assert "Not measured: red, with examples of one recording" in line and results["trust"]["measured"] == [
        "blue",
        "green",
    ]
    count = results["predicted"]["red"]
    assert count and f"{count} predicted, not measured</small>" in page
    assert [line.split() for line in str(results).splitlines() if line.startswith("red ")] == [
        ["red", str(count), "not", "measured"]
    ]
    known = {
        (row["class"], row["measured"]) for row in rows_of(tmp_path / "out/predictions.csv") if row["class"] != NONE
    }
    assert known == {("blue", "yes"), ("green", "yes"), ("red", "no")}


def test_labels_to_check_are_named_and_shown(folder, tmp_path):
    """A wrong label of a class, a class whose only example is one of another, and none where all is right."""
    rows = [tuple(row.values()) for row in rows_of(folder / "labels.csv")]
    wrong = [(name, {"r00_0_blue.mp4": "green", "r10_0_green.mp4": "odd"}.get(name, label)) for name, label in rows]
    labels = write_labels(tmp_path / "labels.csv", [("file", "colour"), *wrong])
    options = {**OPTIONS, "group": r"r\d+_\d"}  # each clip is a recording
    results = vidssl.predict(folder / "videos", labels=[labels], out=tmp_path / "out", **options)
    first, second = ({**row} for row in results["labels_to_check"][:2])
    near = first.pop("nearest")
    assert near.startswith("r1") and near.endswith("_green.mp4")
    said = f"the only recording of odd, among those of green ({near})"
    place = {"path": "r10_0_green.mp4", "start": None, "end": None}
    assert first == {**place, "label": "odd", "proposed": "green", "doubt": said}
    assert (second["path"], second["label"], second["proposed"]) == ("r00_0_blue.mp4", "green", "blue")
    assert second["doubt"].startswith("labelled green (probability 0.")
    assert f"Labels to check: r10_0_green.mp4, {said}; r00_0_blue.mp4, labelled green" in str(results)
    assert results["labels_judged"].startswith("36 of 36 videos have a label, 35 are judged")
    assert json.loads((tmp_path / "out/results.json").read_text())["labels_to_check"] == results["labels_to_check"]
    card = (tmp_path / "out/index.html").read_text().split("Labels to check<small>")[1].split("</li>")[0]
    assert card.startswith(f"{len(results['labels_to_check'])}, the most doubtful first")
    assert said in card and 'class="clip v' in card and "r10_0_green.mp4" in card

    results = vidssl.predict(folder / "videos", labels=[folder / "labels.csv"], out=tmp_path / "out", **options)
    assert results["labels_to_check"] == [] and "Labels to check" not in str(results)
    assert "Labels to check" not in (tmp_path / "out/index.html").read_text()


def test_tables_are_those_of_the_excel_that_wrote_the_labels(folder, tmp_path):
    """With `;`, umlauts, a byte-order mark and CRLF there and back; numbers with a comma are no dates in it."""
    for path in [*(folder / "videos").glob("r?[0-2]_*.mp4"), *(folder / "videos").glob("r?6_0_*.mp4")]:
        (tmp_path / "v").mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / "v" / path.name.replace("green", "grün; hell"))
    classes = {"blue": "blau", "grün; hell": "grün; hell", "red": "rot"}

    def excel(path, rows):
        lines = [";".join(f'"{cell}"' if ";" in cell else cell for cell in row) for row in rows]
        path.write_bytes(codecs.BOM_UTF8 + "".join(f"{line}\r\n" for line in lines).encode())
        return path

    rows = [(path.name, classes[path.stem.split("_")[2]]) for path in sorted((tmp_path / "v").glob("r?[0-2]_*"))]
    labels, out = excel(tmp_path / "labels.csv", [("Datei", "Klasse"), *rows]), tmp_path / "out"
    options = {**OPTIONS, "window": 0.3, "stride": 0.3, "none": 0}
    vidssl.predict(tmp_path / "v", labels=[labels], out=out, **options)
    for name in ("predictions.csv", "to_label.csv"):
        text = (out / name).read_bytes().decode()
        assert text.startswith("\ufeffpath;start;end;") and "grün; hell" in text
        table = [*csv.reader(io.StringIO(text.removeprefix("\ufeff")), delimiter=";")]
        numbers = [row[n] for row in table[1:] for n in (1, 2)]
        assert {*numbers} > {"0,0"} and all(re.fullmatch(r"\d+,\d+", number) for number in numbers)
        assert {len(row) for row in table} == {len(table[0])}
    asked = [*csv.reader(io.StringIO((out / "to_label.csv").read_bytes().decode("utf-8-sig")), delimiter=";")]
    filled = [asked[0], *([*row[:3], classes[Path(row[0]).stem.split("_")[2]], *row[4:]] for row in asked[1:3])]
    again = vidssl.predict(tmp_path / "v", labels=[labels, excel(out / "to_label.csv", filled)], out=out, **options)
    assert again["num_examples"] > 18 and again["to_label"] == "to_label_2.csv"
    spans = [(label.name, label.label, label.start) for label in read_labels(out / "to_label.csv", TO_LABEL)]
    assert spans == [(row[0], row[3], float(row[1].replace(",", "."))) for row in filled[1:]]
    commas = vidssl.predict(folder / "videos", labels=[folder / "labels.csv"], out=tmp_path / "commas", **OPTIONS)
    assert (tmp_path / "commas" / commas["to_label"]).read_bytes().startswith(b"path,start,end,label")


def test_class_folders_and_a_list_with_both(folder, tmp_path):
    for path in (folder / "videos").glob("r?[0-2]_*.mp4"):
        (tmp_path / "classes" / path.stem.split("_")[2]).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / "classes" / path.stem.split("_")[2])
    results = vidssl.predict(folder / "videos", labels=[tmp_path / "classes"], out=tmp_path / "a", **OPTIONS)
    assert results["num_examples"] == 18
    rows = [(f"videos/{path.name}", path.stem.split("_")[2] if path.name[2] < "3" else "")
            for path in sorted((folder / "videos").glob("r[0-2]?_*.mp4"))]  # fmt: skip
    both = write_labels(folder / "both.csv", [("path", "label"), *rows])
    results = vidssl.predict(both, labels=[both], out=tmp_path / "b", **OPTIONS)
    assert results["num_examples"] == 18 and results["num_predicted"] == 30


def test_moments_of_a_long_recording(folder, tmp_path, write_video):
    parts = [("blue", 50), ("red", 75), ("green", 50)]
    long = np.concatenate([frames(name, 7 * n, count) for n, (name, count) in enumerate(parts)])
    write_video(tmp_path / "long.mp4", long.astype(np.uint8))
    labels = write_labels(tmp_path / "labels.csv", [("path", "label"), *(
        (str(folder / "videos" / row["file"]), row["colour"]) for row in rows_of(folder / "labels.csv")
    )])  # fmt: skip
    results = vidssl.predict(
        tmp_path / "long.mp4", labels=[labels], out=tmp_path / "out", window=0.8, none=0, to="boris",
        allow_external=True, **OPTIONS,
    )  # fmt: skip
    rows = rows_of(tmp_path / "out/predictions.csv")
    assert [row["class"] for row in rows] == ["blue", "red", "green"]
    for row, (start, end) in zip(rows, [(0, 2), (2, 5), (5, 7)], strict=True):
        assert float(row["start"]) == pytest.approx(start, abs=0.5) and float(row["end"]) == pytest.approx(end, abs=0.5)
    assert results["windows"] == {"window": 0.8, "stride": 0.4}
    assert [row["Behavior"] for row in rows_of(tmp_path / "out/predictions.boris.csv")] == ["blue", "red", "green"]
    page = (tmp_path / "out/index.html").read_text()
    assert page.count('<div class="timeline">') == 1 and page.count("long.mp4#t=") >= 3


def test_moments_like_no_example_are_named(folder, tmp_path, write_video):
    noise = np.random.RandomState(0).randint(0, 2, (50, 36, 1, 1)) * np.full((50, 36, 48, 3), 250)
    write_video(tmp_path / "long.mp4", np.concatenate([frames("blue", 1, 50), noise]).astype(np.uint8))
    rows = [(str(folder / "videos" / row["file"]), row["colour"]) for row in rows_of(folder / "labels.csv")]
    labels = write_labels(tmp_path / "labels.csv", [("path", "label"), *rows])
    options = {**OPTIONS, "window": 1, "allow_external": True}
    results = vidssl.predict(tmp_path / "long.mp4", labels=[labels], out=tmp_path / "out", **options)
    actual = [row["class"] for row in rows_of(tmp_path / "out/predictions.csv")]
    assert actual[-1] == NONE and results["predicted"][NONE] >= 1
    page = (tmp_path / "out/index.html").read_text()
    assert f"</i>{NONE}</li></ul>" in page and "<h2>None of these<small>" in page


def test_a_span_of_the_recording_is_an_example(folder, tmp_path, write_video):
    long = np.concatenate([frames(name, 3, 50) for name in ("blue", "red", "blue", "red")])
    write_video(tmp_path / "long.mp4", long.astype(np.uint8))
    rows = [("long.mp4", "blue", 0, 2), ("long.mp4", "red", 2, 4)]
    labels = write_labels(tmp_path / "labels.csv", [("path", "label", "start", "end"), *rows])
    options = {**OPTIONS, "window": 1, "stride": 1, "group": None}
    results = vidssl.predict(tmp_path / "long.mp4", labels=[labels], out=tmp_path / "out", **options)
    assert [(row["class"], row["start"], row["end"]) for row in rows_of(tmp_path / "out/predictions.csv")] == [
        ("blue", "4.0", "6.0"),
        ("red", "6.0", "8.0"),
    ]
    assert results["trust"]["line"].startswith("Nothing can be said of how far this can be trusted: all 4 windows")


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([("r00_0_blue.mp4", "blue")], {}, "only 'blue': a prediction needs examples of two classes"),
        ([("r00_0_blue.mp4", "")], {}, "no label: a prediction needs examples of two classes"),
        ([("r00_0_blue.mp4", NONE), ("r10_0_green.mp4", "x")], {}, "labels.csv:2: the class 'none of these' is"),
        ([("r99_broken.mp4", "blue"), ("r10_0_green.mp4", "x")], {}, "examples of fewer than two classes can be read"),
        ([("no.mp4", "blue"), ("lost.mp4", "x")], {}, "videos: they are r00_0_blue.mp4"),
        ([("r00_0_blue.mp4", "blue")], {"none": 1.0}, "none=1 is a share of the videos"),
        ([("r00_0_blue.mp4", "blue")], {"stride": 1.0}, "a stride of 1 s needs a window"),
    ],
)
def test_mistakes(folder, tmp_path, rows, options, words):
    labels = write_labels(tmp_path / "labels.csv", [("path", "label"), *rows])
    with pytest.raises((DataError, ConfigError)) as error:
        vidssl.predict(folder / "videos", labels=[labels], out=tmp_path / "out", **OPTIONS, **options)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_the_command(folder, tmp_path, capsys):
    words = [str(folder / "videos"), "--labels", str(folder / "labels.csv"), "--checkpoint", "floor:thumbnails",
             "--out", str(tmp_path / "out"), "--none", "0.1", "--ask", "3", "--group", r"r\d+", "--to", "label-studio",
             "--workers", "0", "--quiet"]  # fmt: skip
    cli.run("predict", words)
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert printed.startswith(results["trust"]["line"]) and len(rows_of(tmp_path / "out/to_label.csv")) == 3
    tasks = json.loads((tmp_path / "out/predictions.label-studio.json").read_text())
    assert (
        len(tasks) == 12 - results["predicted"][NONE] and tasks[0]["predictions"][0]["result"][0]["type"] == "choices"
    )
