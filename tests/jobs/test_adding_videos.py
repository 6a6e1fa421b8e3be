"""Videos are added to features, and taken away: only what is new is encoded, and the folder is that of a new run."""

import csv
import errno
import json
import logging
import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

import vidssl
from vidssl.apps.compare import compare
from vidssl.apps.map import map as draw_map
from vidssl.apps.predict import predict
from vidssl.apps.search import retrieval
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.evaluation import features as evaluation
from vidssl.evaluation import result_files
from vidssl.jobs.extract import extract, merge

KEPT = Path(__file__).parents[1] / "data/kept_features"
TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
SETTINGS = ["data.moving_digits=null", "data.train=none.csv", "backbone.width=4"]
OPTIONS = {
    **{"cfg": TOY, "settings": SETTINGS, "clips": 1, "crops": 1, "size": 24},
    **{"batch_size": 3, "workers": 0, "device": "cpu"},
}


@pytest.fixture
def videos(digits, tmp_path):
    """Ten videos in a folder, of which the ninth is broken, and a list of the first five and the broken one."""
    (tmp_path / "videos").mkdir()
    for n, record in enumerate(read_list(digits / "motion/test.csv").records[:10]):
        shutil.copy(record.path, tmp_path / f"videos/{n}.mp4")
    (tmp_path / "videos/8.mp4").write_text("<html>")
    return listed(tmp_path, "012348")


def listed(folder, names, header="path,label", rest=lambda n: "", root="videos"):
    rows = [f"{n}.mp4,{ord(n) % 3}{rest(n)}" for n in names]
    (folder / "list.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "root.txt").write_text(f"{folder / root}\n")
    return folder / "list.csv"


@pytest.fixture
def encoded(monkeypatch):
    """The names of the rows that were encoded since it was asked last."""
    seen, plain = [], evaluation.extract_features

    def recording(encoder, videos, *rest, rows=None, **more):
        seen.extend(videos.names[n] for n in (range(len(videos)) if rows is None else rows))
        return plain(encoder, videos, *rest, rows=rows, **more)

    monkeypatch.setattr(evaluation, "extract_features", recording)

    def names():
        actual = "".join(Path(name).stem for name in seen)
        seen.clear()
        return actual

    return names


def same_bytes(one, other):
    """Equal bit by bit: features, rows and what describes them."""
    for name in ("features.npy", "rows.csv", "meta.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def damage(path):
    """Change bytes in the middle of a file, whose size stays the same."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def rename(folder):
    (folder / "videos/2.mp4").rename(folder / "videos/a.mp4")


def move(folder):
    shutil.copytree(folder / "videos", folder / "moved")
    shutil.rmtree(folder / "videos")


SPAN = {"header": "path,label,start,end", "rest": lambda n: ",0.2,0.6" if n in "15" else ",,"}
CHANGES = {  # what the list is then, what happens to the files, and which videos are encoded
    "grown": ({"names": "01234856789"[:6] + "5679"}, None, "85679"),
    "in front and between": ({"names": "901263485"}, None, "9685"),
    "shrunk": ({"names": "0148"}, None, "8"),
    "in another order": ({"names": "842301"}, None, "8"),
    "without the broken one": ({"names": "01234"}, None, ""),
    "other labels": (
        {"names": "012348", "rest": lambda n: ""},
        lambda f: (f / "classes.txt").write_text("a\nb\nc\n"),
        "8",
    ),
    "one changed on disk": ({"names": "012348"}, lambda f: shutil.copy(f / "videos/9.mp4", f / "videos/3.mp4"), "38"),
    "other bytes": ({"names": "012348"}, lambda f: damage(f / "videos/1.mp4"), "18"),
    "repaired": ({"names": "012348"}, lambda f: shutil.copy(f / "videos/9.mp4", f / "videos/8.mp4"), "8"),
    "gone": ({"names": "012348"}, lambda f: (f / "videos/2.mp4").unlink(), "28"),
    "renamed": ({"names": "01a348"}, rename, "8"),
    "moved": ({"names": "012348", "root": "moved"}, move, "8"),
    "spans": ({"names": "012348", **SPAN}, None, "18"),
}


@pytest.mark.parametrize(("case", "batch_size"), [*((case, 3) for case in CHANGES), ("grown", 5)])
def test_the_folder_is_that_of_a_new_run(case, batch_size, videos, encoded, tmp_path, caplog):
    arguments, change, expected = CHANGES[case]
    options = OPTIONS | {"batch_size": batch_size, "allow_missing": True}
    extract("random", videos, out=tmp_path / "x", **options)
    assert encoded() == "012348"
    if change is not None:
        change(tmp_path)
    names = listed(tmp_path, **arguments)
    with caplog.at_level(logging.INFO):
        grown = extract("random", names, out=tmp_path / "x", **options)
    assert sorted(encoded()) == sorted(expected)
    count = len(read_list(names))
    taken = count - len(expected)
    dropped = f"; {5 - taken} other rows are dropped" if taken < 5 else ""  # of 5 that could be read
    assert f"{tmp_path / 'x'}: {taken} of {count} videos were there{dropped}\n" in caplog.text
    levels = {record.levelname for record in caplog.records if "videos were there" in record.getMessage()}
    assert levels == {"WARNING" if dropped else "INFO"}  # a drive that is not mounted loses rows too
    fresh = extract("random", names, out=tmp_path / "fresh", **options)
    same_bytes(tmp_path / "x", tmp_path / "fresh")
    assert grown.missing == fresh.missing and torch.equal(grown.x, fresh.x)
    encoded()
    with caplog.at_level(logging.INFO):
        extract("random", names, out=tmp_path / "x", **options)
    assert encoded() == "" and f"{tmp_path / 'x'} holds these features already" in caplog.text


def test_windows_shards_and_spans_are_taken_one_by_one(videos, encoded, tmp_path):
    cut = {"window": 0.4, "stride": 0.2, "allow_missing": True}
    for part in (None, "0/2", "1/2"):
        listed(tmp_path, "012348")
        folder = extract("random", videos, out=tmp_path / "x", shard=part, **cut, **OPTIONS).path
        encoded()
        listed(tmp_path, "501238")
        extract("random", videos, out=tmp_path / "x", shard=part, **cut, **OPTIONS)
        assert {*encoded()} <= {*"58"} if part is None else {*"501238"}
        fresh = extract("random", videos, out=tmp_path / "fresh", shard=part, **cut, **OPTIONS).path
        same_bytes(folder, fresh)
        encoded()
    merge(tmp_path / "x")  # of the list of before: replaced
    extract("random", videos, out=tmp_path / "x", **cut, **OPTIONS)
    assert encoded() == "" and len(vidssl.load_features(tmp_path / "x").x) == len(merge(tmp_path / "fresh").x)


def test_pictures_of_a_folder_count(encoded, tmp_path):
    for name in "ab":
        (tmp_path / f"in/{name}").mkdir(parents=True)
        for n in range(12):
            cv2.imwrite(str(tmp_path / f"in/{name}/{n}.png"), np.full((24, 24, 3), 20 * n, np.uint8))
    (tmp_path / "list.csv").write_text("path,fps\nin/a,25\nin/b,25\n")
    extract("random", tmp_path / "list.csv", out=tmp_path / "x", **OPTIONS)
    assert encoded() == "ab"
    cv2.imwrite(str(tmp_path / "in/a/5.png"), np.full((24, 24, 3), 99, np.uint8))
    extract("random", tmp_path / "list.csv", out=tmp_path / "x", **OPTIONS)
    assert encoded() == "a"
    (tmp_path / "list.csv").write_text("path,fps\nin/a,25\nin/b,5\n")
    extract("random", tmp_path / "list.csv", out=tmp_path / "x", **OPTIONS)
    assert encoded() == "b"


def test_a_folder_that_has_grown(videos, encoded, tmp_path):
    """Without a list; and videos that cannot be read, however many, cost no features."""
    for n in (5, 6, 7, 8, 9):
        (tmp_path / f"videos/{n}.mp4").rename(tmp_path / f"{n}.mp4")
    (tmp_path / "list.csv").unlink()
    extract("random", tmp_path / "videos", out=tmp_path / "x", **OPTIONS)
    assert encoded() == "01234"
    for n in (6, 8):
        (tmp_path / f"videos/{n}.mp4").write_text("<html>")
    features = extract("random", tmp_path / "videos", out=tmp_path / "x", **OPTIONS)
    assert (len(features), len(features.missing)) == (5, 2)
    shutil.copy(tmp_path / "6.mp4", tmp_path / "videos/6.mp4")
    encoded()
    assert len(extract("random", tmp_path / "videos", out=tmp_path / "x", **OPTIONS)) == 6
    assert encoded() == "68"


def test_a_file_that_changes_while_it_is_read_is_encoded_again(videos, encoded, tmp_path, monkeypatch):
    listed(tmp_path, "0123")
    plain = evaluation.extract_features

    def changing(*arguments, **more):
        actual = plain(*arguments, **more)
        shutil.copy(tmp_path / "videos/9.mp4", tmp_path / "videos/2.mp4")
        return actual

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "extract_features", changing)
        extract("random", videos, out=tmp_path / "x", **OPTIONS)
    encoded()
    extract("random", videos, out=tmp_path / "x", **OPTIONS)
    assert encoded() == "2"


def test_a_write_that_fails_keeps_what_was_there(encoded, videos, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    extract("random", videos, out=tmp_path / "f", **OPTIONS)
    encoded()
    grown = listed(tmp_path, "0123458")
    with monkeypatch.context() as patch, pytest.raises(DataError, match="No space left"):
        patch.setattr(os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        extract("random", grown, out=tmp_path / "f", **OPTIONS)
    assert len(vidssl.load_features(tmp_path / "f").x) == 5
    encoded()
    extract("random", grown, out=tmp_path / "f", **OPTIONS)
    assert "0" not in encoded() and "5 of 7 videos were there" in caplog.text


def kept_features(folder):
    """The features and results that version 0.1.0 of November 2026 wrote, as if they were written here."""
    shutil.copytree(KEPT, folder)
    for path in (folder / "features/meta.json", folder / "found/results.json"):
        path.write_text(path.read_text().replace("FOLDER", str(folder)))
    (folder / "root.txt").write_text(f"{folder}/videos\n")
    for path in (folder / "videos").iterdir():
        os.utime(path, (1, 1))
    return folder


def test_results_of_before_are_read(tmp_path, monkeypatch):
    folder = kept_features(tmp_path / "kept")
    stored = json.loads((folder / "found/results.json").read_text())
    monkeypatch.setattr(result_files, "RESULTS_FORMAT", stored["format"])
    assert result_files.existing_results(folder / "found", stored["request"]) == stored
    assert result_files.weights_of(stored) is None


def rows_of(path):
    with open(path, newline="") as file:
        return [row["path"] for row in csv.DictReader(file)]


def test_a_map_and_an_index_grow(videos, encoded, tmp_path):
    for names, expected in (("01234", "01234"), ("3459", "59")):
        listed(tmp_path, names)
        (tmp_path / "classes.txt").write_text("".join(f"class {n}\n" for n in range(3 + len(names))))
        draw_map(videos, "random", out=tmp_path / "map", layout="pca", **OPTIONS)
        assert encoded() == expected
        assert rows_of(tmp_path / "map/videos.csv") == [f"{n}.mp4" for n in names]
        assert json.loads((tmp_path / "map/results.json").read_text())["num_videos"] == len(names)
        results = retrieval("random", query=videos, gallery=videos, index=tmp_path / "i", out=tmp_path / "r", **OPTIONS)
        assert results["num_gallery"] == len(names)
        assert encoded() == expected


def test_a_comparison_grows(videos, encoded, tmp_path):
    floors = {"model": ["floor:thumbnails"], "out": tmp_path / "c", "workers": 0, "device": "cpu", "shots": []}
    for names, expected in (("0123459", "0123459"), ("0124569", "6")):
        listed(tmp_path, names)
        results = compare(videos, **floors)
        assert results["videos"] == [f"{n}.mp4" for n in names]
        assert {*encoded()} == {*expected}


def state(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_features_of_another_folder_are_taken_and_stay(videos, encoded, tmp_path):
    """By content and span, whatever their list; what it lacks is encoded."""
    listed(tmp_path, "0123")
    draw_map(videos, "random", out=tmp_path / "map", layout="pca", **OPTIONS)
    before = state(tmp_path / "map/features")
    encoded()
    listed(tmp_path, "56021")
    for number in range(2):  # the second time from its own folder
        extract("random", videos, out=tmp_path / "x", features=tmp_path / "map/features", **OPTIONS)
        assert encoded() == ("" if number else "56")
    extract("random", videos, out=tmp_path / "fresh", **OPTIONS)
    same_bytes(tmp_path / "x", tmp_path / "fresh")
    assert state(tmp_path / "map/features") == before
    with pytest.raises(ConfigError, match="are written to folders: give out=FOLDER"):
        extract("random", videos, features=tmp_path / "x", **OPTIONS)


def test_a_prediction_of_features_that_are_there(videos, encoded, tmp_path):
    (tmp_path / "list.csv").unlink()
    (tmp_path / "root.txt").unlink()
    (tmp_path / "videos/8.mp4").unlink()
    rows = [f"{n}.mp4,{'ab'[n % 2]}" for n in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    arguments = {"videos": tmp_path / "videos", "labels": tmp_path / "labels.csv", "model": "random", **OPTIONS}
    plain = predict(out=tmp_path / "plain", **arguments)
    extract("random", tmp_path / "videos", out=tmp_path / "x", **OPTIONS)
    before = state(tmp_path / "x")
    encoded()
    again = predict(out=tmp_path / "again", features=tmp_path / "x", **arguments)
    assert encoded() == "" and state(tmp_path / "x") == before
    assert {**again, "date": 0} == {**plain, "date": 0}
    for name in ("predictions.csv", "to_label.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
    remedy = "name features of this network and these clips, or leave features=FOLDER out$"
    for change, named in {"clips": "clips 1 stored, 2 requested", "window": "windows nothing stored, .*"}.items():
        with pytest.raises(DataError, match=rf"^{tmp_path}/x holds features of another request \({named}\): {remedy}"):
            predict(out=tmp_path / change, features=tmp_path / "x", **{**arguments, change: 2})
    with pytest.raises(DataError, match=rf"^cannot read {tmp_path}/labels.csv: Not a directory; name a folder"):
        predict(out=tmp_path / "none", features=tmp_path / "labels.csv", **arguments)
    assert encoded() == ""


def test_a_comparison_of_features_that_are_there(videos, encoded, tmp_path):
    listed(tmp_path, "01234569")
    floors = {"model": ["floor:thumbnails"], "workers": 0, "device": "cpu", "shots": []}
    plain = compare(videos, out=tmp_path / "plain", **floors)
    all_encoded = encoded()
    folders = []
    for name in ("floor:thumbnails", "floor:motion"):
        folders.append(extract(name, videos, out=tmp_path / name[6:], workers=0, device="cpu").path)
    states = [*map(state, folders)]
    encoded()
    again = compare(videos, out=tmp_path / "again", features=folders, **floors)
    assert len(encoded()) == len(all_encoded) * (len(again["encoders"]) - 2) // len(again["encoders"])
    assert [*map(state, folders)] == states
    assert again["sections"] == plain["sections"]
    assert "seconds_per_video" not in again["encoders"]["floor:thumbnails"]  # they were not encoded here
    other = extract("random", videos, out=tmp_path / "other", **OPTIONS).path
    encoded()
    message = f"^{other} has features of random, and no encoder is this network with the same clips: "
    with pytest.raises(DataError, match=message):
        compare(videos, out=tmp_path / "none", features=[*folders, other], **floors)
    model = "floor:thumbnails+floor:motion"
    joined = extract(model, videos, out=tmp_path / "sum", workers=0, device="cpu").path
    encoded()
    with pytest.raises(DataError, match=r"a sum, whose parts are compared: give features of the parts, or leave"):
        compare(videos, out=tmp_path / "none", features=[joined], **floors | {"model": [model]})
    assert encoded() == ""
