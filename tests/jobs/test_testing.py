"""Tests of networks on real files: numbers against a loop by hand, and the same for any batch, worker and process."""

import csv
import json
import shutil
import signal
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch

from vidssl.apps.search import retrieval
from vidssl.apps.shrink import shrink
from vidssl.base.errors import CheckpointError, ConfigError, DataError, Interrupted
from vidssl.base.output_folder import MARK
from vidssl.data.clip_samplers import Uniform
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.evaluation.metrics import calibration_error, mean_class_accuracy, top_k
from vidssl.jobs.extract import extract
from vidssl.jobs.load_network import load_subject
from vidssl.jobs.measurement_runner import over_splits
from vidssl.jobs.test import format_measured
from vidssl.jobs.test import test as measure
from vidssl.jobs.train import train_splits
from vidssl.models.backbones import BACKBONES
from vidssl.transforms.crops import uniform_crops
from vidssl.video.reader import open_video

CONFIGS = Path(__file__).parents[2] / "configs"


def undated(results):
    return {name: value for name, value in results.items() if name != "date"}


NUMBERS = ("top1", "top5", "mean_class", "ece")


def run_of(name, digits, output, *settings):
    data = ["data.moving_digits=null", f"data.train={digits}/motion/train.csv", "data.workers=0", "device=cpu"]
    return load_run(CONFIGS / "toy" / f"{name}.yaml", [*data, f"output={output}", *settings])


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A classifier that has learned enough to be right sometimes, and a backbone without one."""
    output = tmp_path_factory.mktemp("trained")
    return {
        name: train(
            run_of(name, digits, output / name, "steps=4", "method.dropout=0.5" if name == "supervised" else "seed=0")
        )
        for name in ("supervised", "sce")
    }


@pytest.fixture(scope="module")
def options(trained):
    clips = {"clips": 1, "crops": 1, "size": 24, "batch_size": 4, "workers": 0, "device": "cpu"}
    return {"model": str(trained["supervised"]), **clips}


@pytest.fixture(scope="module")
def nine_views(options):
    return options | {"clips": 3, "crops": 3}


def subject_of(options):
    return load_subject(options["model"], {name: value for name, value in options.items() if name != "model"})


def by_hand(options, videos):
    """Probabilities of each video: one clip and crop at a time."""
    subject = subject_of(options)
    clip = subject.test.clip.model_dump()
    sampler = Uniform(Uniform.Config(**clip, clips=options["clips"]))
    rows = []
    for record in read_list(videos).records:
        with open_video(record.path) as video:
            views = [
                view
                for indices in (c.indices for c in sampler(video.meta, []))
                for view, _ in uniform_crops(video.frames(indices), options["size"])
            ]
        total = 0
        for view in views:
            x = (torch.from_numpy(view.copy()).float() / 255 - 0.45) / 0.225
            with torch.no_grad():
                total = total + subject.classify(subject.backbone(x.transpose(0, 1)[None])).double()
        rows.append(total / len(views))
    return torch.cat(rows)


def test_accuracy_is_that_by_hand(nine_views, digits, tmp_path):
    options = nine_views
    videos = digits / "motion/test.csv"
    results = measure(videos=videos, out=tmp_path, protocol=["accuracy"], **options)
    p = by_hand(options, videos)
    listed = read_list(videos)
    label = torch.tensor([record.label for record in listed.records])
    predicted = p.argmax(dim=1)
    assert results["top1"] == top_k(p, label, 1) and results["top5"] == top_k(p, label, 5)
    assert results["mean_class"] == mean_class_accuracy(predicted, label)
    assert results["ece"] == pytest.approx(calibration_error(p, label), abs=1e-5)
    assert 0 < results["top5"] < 1
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert (results["num_videos"], results["num_train"], results["missing"]) == (16, None, [])
    assert results["protocols"] == [{"name": "accuracy", "bins": 15}]

    with open(tmp_path / "predictions_accuracy.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["path"] for row in rows] == list(listed.names)
    assert [row["class"] for row in rows] == [listed.classes[n] for n in label]
    assert [row["predicted"] for row in rows] == [listed.classes[n] for n in predicted]
    with open(tmp_path / "per_class_accuracy.csv", newline="") as file:
        table = {row["class"]: row for row in csv.DictReader(file)}
    for n, name in enumerate(listed.classes):
        rows_of_class = [k for k in range(16) if label[k] == n]
        right = sum(int(predicted[k]) == n for k in rows_of_class)
        assert (int(table[name]["videos"]), int(table[name]["right"])) == (len(rows_of_class), right)
        assert float(table[name]["accuracy"]) == pytest.approx(right / len(rows_of_class), abs=1e-4)
    assert (tmp_path / "confusion_accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_protocols_see_the_features_that_are_extracted(options, digits, tmp_path):
    """With the classifier asked too, the features are the same."""
    lists = [digits / f"motion/{half}.csv" for half in ("test", "train")]
    protocols = [{"name": "accuracy"}, {"name": "retrieval", "ks": [1, 5, 10, 20, 50]}, {"name": "knn", "k": 10}]
    results = measure(videos=lists[0], out=tmp_path / "a", train_list=lists[1], protocol=protocols, **options)
    other = retrieval(gallery=lists[1], query=lists[0], out=tmp_path / "b", page_queries=0, **options)
    for name in ("R@1", "R@5", "R@10", "R@20", "R@50", "knn", "majority"):
        assert results[name] == pytest.approx(other[name], abs=1e-6), name


def test_without_protocols_all_that_can_be_measured_is(options, trained, digits, tmp_path):
    test, train_list = digits / "motion/test.csv", digits / "motion/train.csv"

    def names(results):
        return [protocol["name"] for protocol in results["protocols"]]

    assert names(measure(videos=test, out=tmp_path / "a", **options)) == ["accuracy"]
    every = ["accuracy", "retrieval", "knn", "uniformity"]
    assert names(measure(videos=test, out=tmp_path / "b", train_list=train_list, **options)) == every
    plain = tmp_path / "plain.csv"
    plain.write_text("path\n" + "".join(f"{record.path}\n" for record in read_list(test).records[:6]))
    unlabelled = options | {"root": Path("/"), "allow_external": True}
    assert names(measure(videos=plain, out=tmp_path / "c", train_list=plain, **unlabelled)) == ["uniformity"]
    with pytest.raises(
        ConfigError, match=r"no protocol can measure .*test.csv: accuracy needs a classifier and labels"
    ):
        measure(videos=test, out=tmp_path / "d", **options | {"model": str(trained["sce"])})


def test_existing_results_are_reused(options, digits, tmp_path, monkeypatch, caplog):
    videos = digits / "motion/test.csv"
    with caplog.at_level("INFO"):
        first = measure(videos=videos, out=tmp_path, **options)
        assert "not made again" not in caplog.text and "replacing" not in caplog.text
        monkeypatch.setattr("vidssl.jobs.test.measure", lambda *_, **__: pytest.fail("measured again"))
        assert measure(videos=videos, out=tmp_path, **options | {"batch_size": 1}) == first
        assert f"{tmp_path}/results.json holds the results of this test" in caplog.text
    monkeypatch.undo()
    (tmp_path / "results.json").write_text('{"top1": 1.0}')
    with caplog.at_level("INFO"):
        assert undated(measure(videos=videos, out=tmp_path, **options)) == undated(first)
    assert "holds no results of a test" in caplog.text
    (tmp_path / "predictions_accuracy.csv").write_text("")
    other = measure(videos=videos, out=tmp_path, **options | {"clips": 2})  # another request
    assert other["protocol"]["clips"] == 2 and (tmp_path / "predictions_accuracy.csv").read_text()


@pytest.fixture
def copied(digits, tmp_path):
    """A folder with copies of the videos of the training and of the test list, and the lists, with its root."""
    for half in ("train", "test"):
        shutil.copytree(digits / "videos" / half, tmp_path / "copied/videos" / half)
        shutil.copy(digits / f"motion/{half}.csv", tmp_path / "copied")
    shutil.copy(digits / "motion/classes.txt", tmp_path / "copied")
    return tmp_path / "copied"


def test_results_of_other_files_are_not_reused(options, digits, copied, tmp_path, caplog):
    videos, out = digits / "motion/test.csv", tmp_path / "out"
    first = measure(videos=videos, out=out, **options)
    names = sorted(path.name for path in (copied / "videos/test").iterdir())
    for name, other in zip(names, (*names[1:], names[0]), strict=True):  # now they show what others did
        shutil.copy(digits / "videos/test" / other, copied / "videos/test" / name)
    moved = options | {"videos": videos, "root": copied}
    with caplog.at_level("INFO"):
        again = measure(out=out, **moved)
    assert undated(again) == undated(measure(out=tmp_path / "anew", **moved)) and again["ece"] != first["ece"]
    (line,) = (line for line in caplog.messages if "holds results of another test" in line)
    assert f"data.root {digits} stored, {copied} requested" in line and "replacing it" in line
    caplog.clear()
    with caplog.at_level("INFO"):
        shutil.copy(digits / "videos/test" / names[0], copied / "videos/test" / names[0])  # under the same root
        third = measure(out=out, **moved)
    assert third["ece"] != again["ece"]
    assert any("holds results of another test (data.bytes " in line for line in caplog.messages)


def test_results_name_the_classes_of_the_list(options, digits, copied, tmp_path):
    """The tables of before would call the classes otherwise."""
    asked = options | {"out": tmp_path / "out", "train_list": copied / "train.csv", "protocol": ["knn"]}
    first = measure(videos=copied / "test.csv", **asked)
    names = (copied / "classes.txt").read_text().splitlines()
    (copied / "classes.txt").write_text("".join(f"new {name}\n" for name in names))
    again = measure(videos=copied / "test.csv", **asked)
    assert again["knn"] == first["knn"]
    assert f"new {names[0]}" in (tmp_path / "out/predictions_knn.csv").read_text()


def test_originals_are_not_compared_with_copies(options, digits, copied, tmp_path):
    shrink(copied / "test.csv", out=tmp_path / "small", short_side=32, workers=1)
    arguments = options | {"videos": tmp_path / "small/test.csv", "out": tmp_path / "out"}
    with pytest.raises(
        DataError, match=r"train\.csv contains original videos, \S+/small/test\.csv contains shrunk copies \("
    ):
        measure(train_list=copied / "train.csv", protocol=["knn"], **arguments)
    results = measure(**arguments)  # nothing is compared
    assert results["request"]["data"]["copies"]["short_side"] == 32


def test_what_is_asked_for_no_longer_leaves_no_files(options, digits, tmp_path):
    lists = {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv"}
    for name in ("knn", "accuracy"):
        measure(out=tmp_path, protocol=[name], **lists, **options)
        (tmp_path / "predictions_mine.csv").write_text("mine")
        files = {path.name for path in tmp_path.iterdir()} - {MARK}
        written = {f"predictions_{name}.csv", f"per_class_{name}.csv", f"confusion_{name}.png"}
        assert files - {"predictions_mine.csv"} == {"results.json", ".lock", *written}
    assert (tmp_path / "predictions_mine.csv").exists()


# What cannot be measured --------------------------------------------------------------------------------------


def listing(folder, digits, classes=None, label=None, count=4):
    """A list of a few videos of the set, with other classes."""
    folder.mkdir(parents=True, exist_ok=True)
    source = read_list(digits / "motion/test.csv")
    names = source.classes if classes is None else classes
    rows = [f"{r.path},{r.label % max(1, len(names)) if label is None else label}" for r in source.records[:count]]
    (folder / "list.csv").write_text("path,label\n" + "\n".join(rows) + "\n")
    (folder / "root.txt").write_text("/\n")
    if names:
        (folder / "classes.txt").write_text("".join(f"{name}\n" for name in names))
    return folder / "list.csv"


def test_lists_that_do_not_fit_the_classifier(options, digits, tmp_path):
    classes = list(read_list(digits / "motion/test.csv").classes)
    swapped = [classes[1], classes[0], *classes[2:]]
    measure(videos=listing(tmp_path / "same", digits), out=tmp_path / "o", **options)
    for name, names, label, message in (
        ("three", ["a", "b", "c"], None, r"a classifier of 3 classes for .*, and this network has one of 8"),
        ("swapped", swapped, None, rf"label 0 is '{classes[1]}' in .* and was '{classes[0]}' when .* was trained"),
        ("high", [], 8, r"needs a classifier of 9 classes for .*, and this network has one of 8"),
        ("none", [], -1, r"protocol accuracy needs labels, and 4 of 4 videos of .* have none"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            videos = listing(tmp_path / name, digits, names, label)
            measure(videos=videos, out=tmp_path / "x", protocol=["accuracy"], **options)
    # kNN does not ask the classifier: any data set will do.
    lists = {"train_list": listing(tmp_path / "swapped/too", digits, swapped, count=9), "protocol": ["knn"]}
    assert 0 <= measure(videos=tmp_path / "swapped/list.csv", out=tmp_path / "s", **lists, **options)["knn"] <= 1


def test_errors_before_any_video_is_read(trained, digits, tmp_path, monkeypatch, options):
    monkeypatch.setattr("vidssl.evaluation.features.encode_videos", lambda *_, **__: pytest.fail("a video was read"))
    videos, none = digits / "motion/test.csv", tmp_path / "none.csv"
    file = tmp_path / "in the way"
    file.write_text("")
    options = options | {"model": str(trained["sce"])}
    for arguments, message in (
        ({"protocol": ["accuracy"]}, r"protocol accuracy needs a classifier of .* this network has none"),
        ({"protocol": ["svm"]}, "protocol svm compares with training videos: give their list, train_list=FILE"),
        ({"train_list": videos, "protocol": ["svm"]}, r"16 videos of .*test.csv are in .*test.csv too"),
        ({"train_list": videos, "protocol": ["knn", "knn", "k=3"]}, "protocol knn is given twice"),
        ({"videos": none}, "cannot read list"),
        ({"train_list": videos, "out": file}, r"cannot write to .*way: it is a file; name a folder"),
        ({"out": file / "in", "train_list": videos}, r"cannot write .*way/in: Not a directory; choose another"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            measure(**{"videos": videos, "out": tmp_path / "out", **options, **arguments})


# Splits -------------------------------------------------------------------------------------------------------


def test_mean_and_spread(tmp_path):
    numbers = {1: {"top1": 0.5, "knn": 0.25}, 2: {"top1": 0.75, "knn": 0.5}, 3: {"top1": 0.6}}
    common = {"num_videos": 4, "num_train": None, "missing": [], "missing_train": [], "list": "l", "train_list": None}
    common |= {"checkpoint": {}, "details": {}, "config": {"seed": 0}}
    common |= {"overlap": {"gallery": None}, "fingerprints": {"query": "f"}, "request": {"seed": 1}}

    def one(split, folder):
        assert folder == tmp_path / f"split{split}"
        return {**numbers[split], **common, "protocol": {"clips": 1, "crops": 1, "size": 8}}

    results = over_splits((1, 2, 3), tmp_path, one)
    assert results["mean"] == {"top1": pytest.approx(mean((0.5, 0.75, 0.6)))}  # knn is not there everywhere
    assert results["spread"] == {"top1": pytest.approx(stdev((0.5, 0.75, 0.6)))}
    assert results["splits"]["2"]["knn"] == 0.5 and results["splits"]["2"]["num_videos"] == 4
    assert results["config"] == {"seed": 0} and "num_videos" not in results
    assert results["request"] == {"splits": {"1": {"seed": 1}, "2": {"seed": 1}, "3": {"seed": 1}}}
    assert results["overlap"]["3"] == {"gallery": None} and results["fingerprints"]["1"] == {"query": "f"}
    assert json.loads((tmp_path / "results.json").read_text()) == results
    lines = format_measured({"": results}).splitlines()
    assert (
        lines[0]
        == "4 videos, 4 videos, 4 videos; 1 clip x 1 crop of 8², percent; mean ± standard deviation of 3 splits"
    )
    assert lines[1].split() == ["top1", "61.7", "±", "12.6", "(50.0,", "75.0,", "60.0)"]
    alone = over_splits((2,), tmp_path, one)
    assert alone["spread"] == {} and format_measured({"": alone}).splitlines()[1].split() == ["top1", "75.0"]


@pytest.fixture
def splits(digits, tmp_path):
    """Two splits: the halves of the set, one way and the other."""
    for split, halves in {1: ("train", "test"), 2: ("test", "train")}.items():
        folder = tmp_path / f"lists{split}"
        shutil.copytree(digits / "motion", folder)
        for name, half in zip(("train", "test"), halves, strict=True):
            shutil.copy(digits / "motion" / f"{half}.csv", folder / f"{name}.csv")
    settings = [f"data.train={tmp_path}/lists{{split}}/train.csv", f"evaluate.query={tmp_path}/lists{{split}}/test.csv"]
    data = ["data.moving_digits=null", "data.workers=0", "device=cpu", "evaluate.clips=1"]
    return [*settings, *data, f"output={tmp_path}/out", "steps=2"]


def test_training_and_testing_every_split(splits, tmp_path, monkeypatch):
    toy = CONFIGS / "toy" / "supervised.yaml"
    results = train_splits(toy, *splits, splits=(1, 2))
    assert results.file == tmp_path / "out/results.json" and json.loads(results.file.read_text()) == results
    assert {split: of["num_videos"] for split, of in results["splits"].items()} == {"1": 16, "2": 40}
    for split in (1, 2):
        checkpoint = str((tmp_path / f"out/split{split}/checkpoints/last.pt").resolve())
        lists = tmp_path / f"lists{split}/test.csv"
        actual = measure(checkpoint, lists, out=tmp_path / f"again{split}", clips=1, workers=0, device="cpu")
        for name in NUMBERS:
            assert results["splits"][str(split)][name] == actual[name]
            assert results["mean"][name] == pytest.approx(mean(of[name] for of in results["splits"].values()))
        config = load_run(tmp_path / f"out/split{split}/config.yaml")
        assert config.data.train == f"{tmp_path}/lists{split}/train.csv"
    # A second time nothing is trained or measured; a third split would be.
    monkeypatch.setattr("vidssl.jobs.test.measure", lambda *_, **__: pytest.fail("measured again"))
    monkeypatch.setattr("vidssl.engine.training_step.Feed.next", lambda *_, **__: pytest.fail("trained again"))
    assert undated(train_splits(toy, *splits, splits=(1, 2))) == undated(results)


def test_a_signal_ends_a_test_between_two_trainings(splits, tmp_path, monkeypatch):
    """With the status that brings a job back; then what is done is not done again."""
    toy = CONFIGS / "toy" / "supervised.yaml"

    def late(*arguments):
        signal.raise_signal(signal.SIGUSR1)
        return measured(*arguments)

    measured = format_measured.__globals__["measure"]
    monkeypatch.setattr("vidssl.jobs.test.measure", late)
    with pytest.raises(Interrupted) as raised:
        train_splits(toy, *splits, splits=(1, 2))
    assert raised.value.signal == signal.SIGUSR1
    assert not (tmp_path / "out/split1/results.json").exists()
    assert not (tmp_path / "out/split2").exists()
    monkeypatch.undo()
    assert set(train_splits(toy, *splits, splits=(1, 2))["splits"]) == {"1", "2"}


def test_a_mistake_in_the_last_split_shows_before_the_first_is_trained(splits, tmp_path):
    toy = CONFIGS / "toy" / "supervised.yaml"
    with pytest.raises(DataError, match=r"cannot read list .*lists3/train.csv"):
        train_splits(toy, *splits, splits=(1, 3))
    queries = tmp_path / "lists2/test.csv"
    queries.write_text(queries.read_text() + (tmp_path / "lists2/train.csv").read_text().splitlines()[1] + "\n")
    with pytest.raises(
        DataError, match=r"1 videos of .*lists2/test.csv are in .*lists2/train.csv too, .* the classifier would"
    ):
        train_splits(toy, *splits, splits=(1, 2))
    # The test videos of the first split are training videos of the second.
    with pytest.raises(DataError, match=r"16 videos of .*lists1/test.csv are in .*lists2/train.csv too"):
        train_splits(toy, *splits, f"evaluate.query={tmp_path}/lists1/test.csv", splits=(1, 2))
    classes = (tmp_path / "lists1/classes.txt").read_text().splitlines()
    (tmp_path / "swapped").mkdir()
    shutil.copy(tmp_path / "lists1/test.csv", tmp_path / "swapped")
    shutil.copy(tmp_path / "lists1/root.txt", tmp_path / "swapped")
    (tmp_path / "swapped/classes.txt").write_text("\n".join([classes[1], classes[0], *classes[2:]]) + "\n")
    with pytest.raises(DataError, match=rf"label 0 is '{classes[1]}' in .*swapped.* and was '{classes[0]}' in "):
        train_splits(toy, *splits, f"evaluate.query={tmp_path}/swapped/test.csv", splits=(1, 2))
    assert not (tmp_path / "out").exists()


def test_splits_can_be_seeds(digits, tmp_path):
    tested = measure(
        "random",
        digits / "motion/test.csv",
        out=tmp_path / "random",
        train_list=digits / "motion/train.csv",
        splits=(3, 4),
        cfg=CONFIGS / "toy" / "moco.yaml",
        settings=("data.moving_digits=null", "data.workers=0", "device=cpu", "seed={split}"),
    )
    assert [tested["splits"][n]["checkpoint"]["seed"] for n in ("3", "4")] == [3, 4] and tested["spread"]["knn"] >= 0
    assert tested["splits"]["3"]["uniformity_loss"] != tested["splits"]["4"]["uniformity_loss"]


def test_splits_that_are_none(splits, tmp_path):
    toy, where, out = CONFIGS / "toy" / "supervised.yaml", tmp_path / "lists{split}/test.csv", tmp_path / "o"
    nowhere = tmp_path / "nowhere.yaml"
    nowhere.write_text(toy.read_text().replace("output: output/toy/supervised", ""))
    for config, words, message in (
        (toy, ["data.train=a.csv", "init=a{split}.pt"], r"all splits of .* are the same: name \{split\}"),
        (toy, [*splits, "output=out{split}"], r"output of .* names \{split\}: leave it out"),
        (nowhere, [word for word in splits if not word.startswith("output=")], r": output: is required"),
        (toy, [*splits, "evaluate.query=null"], r": splits test each network: set evaluate.query to the list"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_splits(config, *words, splits=(1, 2))
    with pytest.raises(ConfigError, match=r"its texts hold \{split\}; name them: splits=\[1, 2, 3\]"):
        load_run(toy, splits)
    arguments = {"train_list": where, "settings": ["data.moving_digits=null"]}
    for videos, options, message in (
        (tmp_path / "list{split}.csv", {}, r"\{split\}.csv contains \{split\}; name the splits: splits=\[1, 2, 3\]"),
        (where, {"splits": (1, 2, 3), **arguments}, r"cannot read list .*lists3/test.csv"),
        (tmp_path / "list.csv", {"splits": (1, 2), "out": tmp_path / "o{split}"}, "all splits would be the same"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            measure("random", videos, **{"out": out, "cfg": toy, **options})
    assert not [*out.glob("[!.]*")]


def test_a_mistake_in_the_last_split_shows_before_the_first_is_measured(splits, trained, tmp_path, monkeypatch):
    monkeypatch.setattr("vidssl.jobs.test.measure", lambda *_, **__: pytest.fail("the first was measured"))
    options = {"videos": tmp_path / "lists{split}/test.csv", "out": tmp_path / "o", "splits": (1, 2), "device": "cpu"}
    with pytest.raises(DataError, match=r"40 videos of .*lists2/test.csv are in .*lists1/train.csv too"):
        gallery = tmp_path / "lists1/train.csv"
        measure(trained["sce"], train_list=gallery, protocol=[{"name": "svm", "folds": 2}], **options)
    shutil.copytree(trained["sce"].parent, tmp_path / "run1")
    with pytest.raises(CheckpointError, match=r"run2/last.pt: No such file"):
        network, gallery = tmp_path / "run{split}/last.pt", tmp_path / "lists{split}/train.csv"
        measure(network, train_list=gallery, protocol=["knn"], **options)


# Weights of others --------------------------------------------------------------------------------------------


def test_weights_of_another_project(digits, tmp_path):
    """A file of pytorchvideo's form: with a config that says which network and clips, as good as a checkpoint."""
    cfg = CONFIGS / "toy" / "supervised.yaml"
    run = run_of("supervised", digits, tmp_path / "run", "seed=7")
    torch.manual_seed(7)
    net = BACKBONES[run.backbone.name](run.backbone).net
    names = {"branch2.0.": "branch2.conv_a.", "branch2.1.": "branch2.norm_a.", "branch2.3.": "branch2.conv_b."}
    names["branch2.4."] = "branch2.norm_b."
    state = {}
    for key, value in net.state_dict().items():
        for here, there in names.items():
            key = key.replace(here, there)
        state[key] = value
    torch.save({"model_state": state}, tmp_path / "theirs.pyth")
    clips = {"clips": 1, "crops": 1, "size": 24, "workers": 0, "device": "cpu"}
    with pytest.raises(ConfigError, match=r"theirs.pyth needs a config, cfg=FILE: it names the backbone and the clips"):
        load_subject(str(tmp_path / "theirs.pyth"), clips)
    settings = ("data.moving_digits=null", "data.train=none.csv")
    theirs = {"model": str(tmp_path / "theirs.pyth"), "cfg": cfg, "settings": settings, **clips}
    ours = {"model": "random", "cfg": cfg, "settings": (*settings, "seed=7"), **clips}
    assert subject_of(theirs).classify is None
    files = []
    for number, options in enumerate((theirs, ours)):
        extract(videos=digits / "motion/test.csv", out=tmp_path / f"{number}", **options)
        files.append(np.load(tmp_path / f"{number}/features.npy"))
    np.testing.assert_array_equal(*files)
    lists = {"videos": digits / "motion/test.csv", "train_list": digits / "motion/train.csv"}
    results = measure(out=tmp_path / "o", **lists, **theirs)
    assert "weights" in results["checkpoint"]["matched"] and results["checkpoint"]["sha256"]
    # What the file does not say of its weights is part of the request: here all of the last stage is left out.
    keys = {"partial": True, "keys": {"model_state.blocks.4.": "nothing."}}
    partial = f"init={json.dumps({'file': str(tmp_path / 'theirs.pyth'), **keys})}"
    with pytest.raises(DataError, match=r"weights\.partial False stored, True requested; weights\.keys"):
        changed = theirs | {"settings": (*settings, partial)}
        extract(videos=digits / "motion/test.csv", out=tmp_path / "0", **changed)


def test_a_run_starts_from_weights(trained, digits, tmp_path, caplog):
    source = str(trained["sce"])
    frozen = run_of("supervised", digits, tmp_path / "probe", f"init={source}", "method.freeze=true", "steps=2")
    with caplog.at_level("INFO"):
        last = train(frozen)
    assert any(source in line and "of" in line for line in caplog.messages)
    old, new = (torch.load(path, weights_only=True)["method"] for path in (source, last))
    for key, value in old.items():
        if key.startswith("backbone."):
            assert torch.equal(value, new[key]), key
    Path(tmp_path / "gone.pt").write_bytes(Path(source).read_bytes())
    learned = ["method.freeze=false", f"init={tmp_path}/gone.pt", "checkpoint.every=1"]
    half = run_of("supervised", digits, tmp_path / "tuned", *learned, "steps=2")
    train(half, until=1)
    (tmp_path / "gone.pt").unlink()  # a run that goes on has its weights
    train(half)
    with pytest.raises(CheckpointError, match=r"gone.pt: No such file"):
        train(run_of("supervised", digits, tmp_path / "other", *learned))


def test_options_of_clips_and_layers_are_part_of_the_protocol(options):
    plain = subject_of(options)
    assert (plain.test.short_side, plain.test.precision) == (None, "float32") and plain.encoder is plain.backbone
    for arguments in ({"short_side": 40, "precision": "bfloat16"}, {"layer": "layer2", "grid": 2}):
        changed = subject_of(options | arguments)
        assert {name: getattr(changed.test, name) for name in arguments} == arguments
        before, after = (subject.request()["protocol"] for subject in (plain, changed))
        assert {key for key in before if before[key] != after[key]} == {*arguments}
    assert changed.encoder.dim == 4 * changed.backbone.dim // 4
    size = plain.test.size
    for arguments, message in (
        ({"short_side": size - 1}, rf"^the options of the clips do not fit: short_side {size - 1} is less than size"),
        ({"grid": 2}, "grid 2 x 1 frames divides maps of a layer: set layer too"),
        ({"layer": "layer9"}, "has no layer 'layer9'"),
    ):
        with pytest.raises(ConfigError, match=message):
            subject_of(options | arguments)
