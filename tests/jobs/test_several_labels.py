"""`vidssl test` on lists with several labels per row."""

import json

import pytest

from vidssl import cli
from vidssl.base.errors import DataError
from vidssl.base.types import VideoRecord
from vidssl.data.video_list import read_list
from vidssl.data.write_lists import write_lists

CLASSES = ("digit below 5", "red or green", "other colours")


@pytest.fixture(scope="module")
def several(digits, tmp_path_factory):
    """The toy set with two facts about each video as its labels."""
    out, lists = tmp_path_factory.mktemp("several"), {}
    for half in ("train", "test"):
        digit, colour = (read_list(digits / labels / f"{half}.csv") for labels in ("digit", "colour"))
        rows = zip(digit.names, digit.labels.tolist(), colour.labels.tolist(), strict=True)
        lists[half] = [
            VideoRecord(name, label_set=" ".join(["0"] * (number < 5) + ["1" if hue < 2 else "2"]))
            for name, number, hue in rows
        ]
    write_lists(out, digit.root, lists, CLASSES)
    return out


def asked(lists, out, *protocols):
    options = ["--checkpoint", "random", "--cfg", "toy/sce", "--clips", "1", "--crops", "1", "--size", "24"]
    more = ["--workers", "0", "--device", "cpu", "--quiet", "--out", str(out), "--protocol", *protocols]
    cli.run("test", [str(lists / "test.csv"), "--train-list", str(lists / "train.csv"), *options, *more])
    return json.loads((out / "results.json").read_text())


def test_average_precisions_are_measured(several, tmp_path):
    results = asked(
        several, tmp_path / "out", "multilabel_svm", "costs=[1.0]", "multilabel_lowshot", "shots=[1, 4]", "uniformity"
    )
    assert 0.3 < results["multilabel_svm"] <= 1 and len(results["details"]["multilabel_svm"]["average_precision"]) == 3
    assert {"multilabel_lowshot@1", "multilabel_lowshot@4_spread", "uniformity_loss"} <= results.keys()


def test_protocols_of_one_label_are_refused(several, tmp_path):
    with pytest.raises(DataError, match=r"knn needs one label per row, and .*\.csv has several: use multilabel"):
        asked(several, tmp_path, "knn")


def test_protocols_of_several_labels_are_refused(digits, tmp_path):
    with pytest.raises(
        DataError, match=r"multilabel_svm needs several labels per row; .* has no column labels: use svm"
    ):
        asked(digits / "motion", tmp_path, "multilabel_svm")


def test_a_class_without_tested_videos_is_named_before_the_work(several, tmp_path, monkeypatch):
    lists = {name: read_list(several / f"{name}.csv") for name in ("train", "test")}
    rows = {
        name: [VideoRecord(path, label_set=r.label_set) for path, r in zip(of.names, of.records, strict=True)]
        for name, of in lists.items()
    }
    rows["test"] = [row for row in rows["test"] if "1" not in row.label_set.split()]
    write_lists(tmp_path / "lists", lists["test"].root, rows, CLASSES)
    monkeypatch.setattr("vidssl.evaluation.features.encode_videos", None)  # the work
    with pytest.raises(DataError, match=r"multilabel_svm is undefined: .*has no video of 1 class.*red or green"):
        asked(tmp_path / "lists", tmp_path / "out", "multilabel_svm")
