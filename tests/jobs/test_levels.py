"""What answers reach that do not depend on the videos stands beside every accuracy."""

import json
from pathlib import Path

import pytest
import torch

from vidssl import cli
from vidssl.data.video_list import read_list
from vidssl.evaluation.metrics import level_of, majority
from vidssl.jobs.train import train


def test_majority():
    actual = majority(torch.tensor([3, 1, 3, 3, 1, 7]))
    assert actual == {"majority": 0.5, "majority_mean_class": pytest.approx(1 / 3)}
    assert majority(torch.tensor([0, -1])) == majority(torch.tensor([], dtype=torch.int64)) == {}
    assert [level_of(name) for name in ("knn", "R@1", "lowshot@4")] == ["majority"] * 3
    assert level_of("svm_mean_class") == "majority_mean_class"
    assert {*map(level_of, ("R@5", "order", "ece", "lowshot@4_spread", "majority_mean_class"))} == {None}


@pytest.fixture(scope="module")
def unequal(digits, tmp_path_factory):
    """Lists of two classes, 12 and 4 of the tested videos, boxes, and a network with a classifier of them."""
    folder = tmp_path_factory.mktemp("unequal")
    for name in ("train", "test"):
        rows = [f"{path},{int(n % 4 == 0)}\n" for n, path in enumerate(read_list(digits / f"motion/{name}.csv").names)]
        (folder / f"{name}.csv").write_text("path,label\n" + "".join(rows))
    (folder / "root.txt").write_text(f"{digits / 'motion'}\n" if (digits / "motion/videos").exists() else f"{digits}\n")
    data = ["data.moving_digits=null", f"data.train={folder}/train.csv", "data.workers=0", "device=cpu", "steps=1"]
    monitor = [
        f"evaluate.query={folder}/test.csv",
        f"evaluate.gallery={folder}/train.csv",
        "evaluate.clips=1",
        "evaluate.every=1",
    ]
    monitor += ["evaluate.crops=1", "evaluate.protocols=[{name: accuracy}, {name: knn}, {name: uniformity}]"]
    train("toy/supervised", *data, *monitor, f"output={folder / 'run'}", "method.classes=2")
    return folder


def run(unequal, *words):
    out = unequal / "_".join(words[:2])
    arguments = [*words, "--checkpoint", str(unequal / "run"), "--workers", "0", "--device", "cpu", "--clips", "1"]
    cli.run(words[0], [*arguments[1:], "--out", str(out)])
    return json.loads((out / "results.json").read_text())


def test_every_command_prints_the_level_of_its_accuracies(unequal, digits, capsys):
    lists = [str(unequal / "test.csv"), "--train-list", str(unequal / "train.csv")]
    results = run(unequal, "test", *lists, "--protocol", "accuracy", "knn", "lowshot", "shots=[1]", "draws=2")
    assert (results["majority"], results["majority_mean_class"]) == (0.75, 0.5)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    for name in ("top1", "knn", "lowshot@1"):
        assert lines[name].endswith("   majority 75.0"), lines[name]
    for name in ("mean_class", "knn_mean_class"):
        assert lines[name].endswith("   1 / classes 50.0"), lines[name]
    assert "majority" not in lines["ece"] and not {"chance", "majority"} & lines.keys()
    run(unequal, "test", *lists, "--protocol", "accuracy", "knn", "--floors")
    names, *rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:9]]
    expected = {"top1": "75.0", "mean_class": "50.0", "ece": "–", "knn": "75.0", "knn_mean_class": "50.0"}
    assert rows[-1] == ["majority", *(expected[name] for name in names)]
    assert "majority" not in run(unequal, "test", *lists, "--protocol", "uniformity")
    capsys.readouterr()

    gallery = ["--gallery", str(unequal / "train.csv"), "--query", str(unequal / "test.csv")]
    assert run(unequal, "retrieval", *gallery)["majority"] == 0.75
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["percent", "R@1", "R@5", "R@10", "R@20", "R@50", "knn", "majority"] in table
    assert next(row for row in table if row[0] == "plain")[-1] == "75.0"
    assert "Majority" in (unequal / "retrieval_--gallery/index.html").read_text()

    results = run(unequal, "analyze", "background", *lists, "--boxes", str(digits / "boxes.csv"))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert results["majority"] == 0.75 and shown.count(["majority", "75.0"]) == 3


def test_evaluation_during_training_has_them(unequal):
    lines = [json.loads(line) for line in (unequal / "run/metrics.jsonl").read_text().splitlines()]
    measured = next(line for line in lines if "knn" in line)
    assert (measured["majority"], measured["majority_mean_class"]) == (0.75, 0.5)
    assert json.loads((unequal / "run/training.json").read_text())["knn"]["level"] == {"majority": 0.75}
    page = (unequal / "run/training.html").read_text()
    assert "majority" in page and "chance" not in page


def listed(unequal, name, labels):
    """The tested videos with other labels."""
    paths = read_list(unequal / "test.csv").names
    (unequal / name).write_text("path,label\n" + "".join(f"{p},{n}\n" for p, n in zip(paths, labels, strict=True)))
    return str(unequal / name)


def test_classes_without_training_videos_are_counted_in_a_line(unequal, caplog):
    """These videos are wrong whatever the network sees."""
    other = listed(unequal, "other.csv", [0] * 12 + [2, 2, 2, 4])
    run(unequal, "test", other, "--train-list", str(unequal / "train.csv"), "--protocol", "svm")
    line = f"4 of 16 videos of {other} cannot be right by svm: they are of 2 classes without videos in "
    assert [f"{line}{unequal}/train.csv (2, 4)"] == [text for text in caplog.messages if "cannot be right" in text]


def test_rows_without_labels_are_left_out_and_counted(unequal):
    """The numbers are those of a list without these rows."""
    other = listed(unequal, "unknown.csv", [0] * 12 + [1, 1, -1, -1])
    (unequal / "known.csv").write_text("".join(Path(other).read_text().splitlines(keepends=True)[:15]))
    lists = ["--train-list", str(unequal / "train.csv")]
    for protocol in (["--protocol", "knn"], []):
        actual, known = (run(unequal, "test", path, *lists, *protocol) for path in (other, str(unequal / "known.csv")))
        assert actual["labels"] == "labels: the list's, 14 of 16 videos, 2 classes"
        assert actual["num_videos"] == 14 and actual["knn"] == known["knn"] and actual["majority"] == 12 / 14
