"""`vidssl test --floors`: the numbers of what learned nothing, beside those of the network."""

import json
import shutil

import pytest

from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.jobs.measurement_runner import over_splits
from vidssl.jobs.test import test as measure
from vidssl.jobs.train import train

FLOORS = ("thumbnails", "differences", "motion", "untrained")
NO_CLASSIFIER = "they have no classifier; knn and logistic, with a training list, measure both"
PLAIN = {"workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def network(digits, tmp_path_factory):
    """A classifier, and clips that are not those of floors."""
    data = ["data.moving_digits=null", f"data.train={digits}/motion/train.csv", "data.workers=0", "device=cpu"]
    checkpoint = train("toy/supervised", *data, f"output={tmp_path_factory.mktemp('run') / 'mine'}", "steps=1")
    return {"model": str(checkpoint), "clips": 1, "crops": 1, "size": 24, "batch_size": 3, **PLAIN}


@pytest.fixture
def lists(digits):
    return {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv"}


def numbers_of(results):
    """Those of a network: what the most frequent class reaches does not depend on it."""
    return {n: value for n, value in results.items() if isinstance(value, float) and not n.startswith("majority")}


def test_floors_have_the_numbers_of_their_own_command(network, lists, tmp_path):
    protocol = ["retrieval", "ks=[1, 5]", "knn", "order", "costs=[0.1]", "uniformity"]
    protocol += ["lowshot", "shots=[1]", "draws=2"]
    results = measure(**network, **lists, out=tmp_path, protocol=["accuracy", *protocol], floors=True)
    assert results == json.loads((tmp_path / "results.json").read_text()) and tuple(results["floors"]) == FLOORS
    for name in FLOORS:
        alone = measure(f"floor:{name}", **lists, **PLAIN, protocol=protocol)
        assert results["floors"][name] == numbers_of(alone), name
        assert results["majority"] == alone["majority"] == 1 / 8
        assert results["floors_details"]["protocol"]["parts"][FLOORS.index(name)] == alone["protocol"]
    details = results["floors_details"]
    assert (details["num_videos"], details["num_train"], details["missing"]) == (16, 40, [])
    assert details["left_out"] == {"accuracy": NO_CLASSIFIER}
    without = measure(**network, **lists, protocol=["accuracy", *protocol])
    assert numbers_of(results) == numbers_of(without) and results["request"] == without["request"]

    line, head, columns, *rows = str(results).splitlines()
    assert line == "labels: the list's, 8 classes"
    assert head == "16 videos; 1 clip x 1 crop of 24², percent; ± standard deviation over draws"
    columns = columns.split()
    assert "chance" not in columns and columns[:2] == ["top1", "top5"] and "lowshot@1" in columns
    cells = {row.split()[0]: row.replace(" ± ", "±").split()[1:] for row in rows[:6]}
    assert tuple(cells) == ("mine", *FLOORS, "majority")
    shown = {name: dict(zip(columns, row, strict=True)) for name, row in cells.items()}
    assert shown["mine"]["top1"] == f"{100 * results['top1']:.1f}" and shown["thumbnails"]["top1"] == "–"
    assert shown["differences"]["knn"] == f"{100 * results['floors']['differences']['knn']:.1f}"
    spread = results["floors"]["untrained"]["lowshot@1_spread"]
    assert shown["untrained"]["lowshot@1"].endswith(f"±{100 * spread:.1f}")
    levels = shown["majority"]
    assert {levels[name] for name in ("top1", "R@1", "lowshot@1", "mean_class", "knn_mean_class")} == {"12.5"}
    assert (levels["order"], levels["R@5"], levels["uniformity_loss"]) == ("50.0", "–", "–")
    clips = "4 clips x 1 crop of 64² + 6 clips x 1 crop of 64², clips in order"
    assert rows[6:8] == [f"floors: 16 videos; {clips}", f"floors without accuracy: {NO_CLASSIFIER}"]


def test_existing_results_get_floors_and_keep_them(network, lists, tmp_path, monkeypatch):
    asked = {**network, **lists, "out": tmp_path, "protocol": ["knn"]}
    first = measure(**asked)
    assert "floors" not in first
    monkeypatch.setattr("vidssl.jobs.test.Protocols.measure", lambda _: pytest.fail("the network was measured again"))
    second = measure(**asked, floors=True)
    assert {name: second[name] for name in first} == first and tuple(second["floors"]) == FLOORS
    monkeypatch.setattr("vidssl.jobs.test.measure_floors", lambda *_: pytest.fail("floors were measured again"))
    for again in (measure(**asked), measure(**asked, floors=True)):
        assert again == second == json.loads((tmp_path / "results.json").read_text())
        assert str(again) == str(second)
    monkeypatch.undo()
    other = measure(**{**asked, "protocol": ["knn", "k=3"]})  # another request
    assert "floors" not in other and "floors" not in json.loads((tmp_path / "results.json").read_text())


def test_floors_of_splits(network, digits, tmp_path):
    for split, halves in {1: ("train", "test"), 2: ("test", "train")}.items():
        shutil.copytree(digits / "motion", tmp_path / f"lists{split}")
        for name, half in zip(("train", "test"), halves, strict=True):
            shutil.copy(digits / "motion" / f"{half}.csv", tmp_path / f"lists{split}/{name}.csv")
    test, train_list = (tmp_path / "lists{split}" / f"{half}.csv" for half in ("test", "train"))
    asked = {"train_list": train_list, "protocol": ["knn"], "splits": (1, 2)}
    results = measure(videos=test, out=tmp_path / "o", floors=True, **network, **asked)
    assert results == json.loads((tmp_path / "o/results.json").read_text())
    for name in ("thumbnails", "untrained"):
        alone = measure(f"floor:{name}", test, **PLAIN, **asked)
        assert results["floors"][name] == {key: numbers_of(alone[key]) for key in ("mean", "spread")}
        assert results["splits"]["2"]["floors"][name] == numbers_of(alone["splits"]["2"])
    levels = [results["splits"][split]["majority"] for split in ("1", "2")]
    assert results["mean"]["majority"] == pytest.approx(sum(levels) / 2)
    lines = str(results).splitlines()[1:]  # after what the labels are
    assert lines[0].endswith("mean ± standard deviation of 2 splits") and lines[1].split() == ["knn", "knn_mean_class"]
    of_floor = results["floors"]["thumbnails"]
    knn = f"{100 * of_floor['mean']['knn']:.1f} ± {100 * of_floor['spread']['knn']:.1f}"
    assert lines[3].startswith("thumbnails") and knn in lines[3]
    clips = "4 clips x 1 crop of 64² + 6 clips x 1 crop of 64², clips in order"
    assert lines[-2:] == [f"floors: 16 videos, 40 videos; {clips}", "knn: k = 10"]
    again = measure(videos=test, out=tmp_path / "o", **network, **asked)  # they are not asked for any more, and kept
    assert again["floors"] == results["floors"] and again["splits"] == results["splits"]


def test_floors_that_only_some_splits_have():
    common = {"overlap": None, "fingerprints": {}, "request": {}, "knn": 0.5}
    of_split = {1: {**common, "majority": 0.25, "floors": {"thumbnails": {"knn": 0.3}}}, 2: common}
    results = over_splits((1, 2), None, lambda split, _: of_split[split])
    assert "floors" not in results and results["mean"] == {"knn": 0.5}
    assert results["splits"]["1"]["floors"] == {"thumbnails": {"knn": 0.3}}


def test_without_labels(network, lists, digits, tmp_path):
    """What needs labels fails as without floors; what does not is measured, and has no majority."""
    plain = tmp_path / "plain.csv"
    plain.write_text("path\n" + "".join(f"{record.path}\n" for record in read_list(lists["videos"]).records[:6]))
    asked = {**network, "videos": plain, "train_list": plain, "root": "/", "allow_external": True, "floors": True}
    with pytest.raises(DataError, match=r"protocol knn needs labels, and 6 of 6 videos of .*plain.csv have none"):
        measure(**asked, protocol=["knn"], out=tmp_path / "o")
    with pytest.raises(ConfigError, match=r"no protocol can measure .*plain.csv: accuracy needs a classifier"):
        measure(**{**asked, "train_list": None}, out=tmp_path / "o")
    assert not (tmp_path / "o").exists()
    results = measure(**asked)
    assert "majority" not in results and results["floors"]["thumbnails"].keys() == {"uniformity_loss"}
    assert "\nmajority" not in str(results)


def test_what_floors_do_not_have(network, lists, monkeypatch):
    """Alone these protocols leave only the majority."""
    results = measure(**network, videos=lists["videos"], protocol=["accuracy"], floors=True)
    assert results["floors"] == {} and results["majority"] == 1 / 8
    assert [line.split()[0] for line in str(results).splitlines()[3:5]] == ["mine", "majority"]
    monkeypatch.setattr(PROTOCOLS["svm"], "maps", True)  # as a protocol of a user's
    maps = {"layer": "layer2", "grid": 2, "protocol": ["svm", "costs=[1.0]", "knn"]}
    results = measure(**network, **lists, **maps, floors=True)
    assert results["floors_details"]["left_out"] == {"svm": "they have no feature maps"}
    assert "svm" in results and results["floors"]["untrained"].keys() == {"knn", "knn_mean_class"}


def test_a_list_of_boxes_has_no_floors(tmp_path):
    with pytest.raises(ConfigError, match="floors does not fit a list of boxes: leave it out"):
        measure("none", tmp_path / "boxes.json", out=tmp_path / "out", floors=True)
