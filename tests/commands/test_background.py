"""`analyze background`: numbers against loops, a network that sees backgrounds only, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl import cli
from vidssl.apps.analysis.background import Swaps, analyze_background, draw_backgrounds, swap_numbers
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.read_instance_boxes import read_instance_boxes
from vidssl.data.to_device import normalised
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.extract import extract
from vidssl.jobs.load_network import load_subject
from vidssl.jobs.test import test as measure

TOY = Path(__file__).parents[2] / "configs" / "toy" / "supervised.yaml"
RANDOM = ("data.moving_digits=null", "data.train=none.csv")


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("background") / "run"
    given = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    train(load_run(TOY, [*given, f"output={out}", "steps=3"]))
    return str(out / "checkpoints/last.pt")


def measure_background(model, videos, **options):
    """Measure one network, on the CPU."""
    (found,) = analyze_background(model, videos, workers=0, device="cpu", **options).values()
    return found


def test_numbers_are_those_of_a_loop(trained, digits, tmp_path):
    """From the frames of `Swaps`, which have their own test, by the classifier and by ten neighbours."""
    listed, train_list = (digits / f"motion/{name}.csv" for name in ("test", "train"))
    found = measure_background(
        trained, listed, out=tmp_path / "o", train_list=train_list, boxes=digits / "boxes.csv", seed=2
    )
    options = {"workers": 0, "device": "cpu"}
    videos, subject = read_list(listed), load_subject(trained, options)
    drawn, records = draw_backgrounds(videos, 2), list(videos.records)
    sources = {r: [records[n] for n in rows] for r, rows in zip(records, drawn, strict=True)}
    swaps = Swaps(read_instance_boxes(digits / "boxes.csv", videos), sources)
    test = subject.test
    dataset = swaps.dataset(test.dataset(videos), test.clip, test.clips)
    extract(trained, train_list, out=tmp_path / "gallery", **options)
    gallery, label = np.load(tmp_path / "gallery/features.npy").astype(np.float64), read_list(train_list).labels
    gallery /= np.linalg.norm(gallery, axis=1, keepdims=True)
    right, shortcut, before = np.zeros((3, 3)), np.zeros(3), np.zeros(3)  # rows: classifier, kNN, R@1
    for n, own in enumerate(videos.labels):
        views = dataset[0, n].views
        assert len(views) == 6  # two clips
        for version in range(3):
            with torch.no_grad():
                clips = [torch.from_numpy(views[v].copy())[None] for v in (version, version + 3)]
                h = [subject.backbone(normalised(clip, test.mean, test.std)) for clip in clips]
                probability = sum(subject.classify(each) for each in h)[0].numpy()
            feature = sum(h)[0].double().numpy()
            similarity = gallery @ (feature / np.linalg.norm(feature))
            best = np.argsort(-similarity, kind="stable")[:10]
            votes = [sum(np.exp(similarity[i] / 0.07) for i in best if label[i] == c) for c in range(8)]
            classes = np.array([probability.argmax(), np.argmax(votes), label[best[0]]])
            right[:, version] += classes == own
            if version != 1:
                (shortcut if version else before)[:] += classes == videos.labels[drawn[n, 1]]
    for row, name in enumerate(("top1", "knn", "R@1")):
        wanted = [*right[row], right[row, 1] - right[row, 2], shortcut[row], before[row]]
        ends = ("", "_same", "_other", "_gap", "_shortcut", "_shortcut_original")
        assert [found[name + end] for end in ends] == pytest.approx(np.array(wanted) / 16), name
    usual = measure(trained, listed, out=tmp_path / "test", train_list=train_list, **options)
    assert all(found[name] == pytest.approx(usual[name]) for name in ("top1", "knn", "R@1"))
    assert (found["num_videos"], found["majority"], found["missing"]) == (16, 1 / 8, [])


def test_swap_numbers():
    predicted = np.array([[0, 0, 1], [1, 1, 1], [2, 0, 0], [0, 2, 2]])
    found = swap_numbers("knn", predicted, label=np.array([0, 1, 2, 2]), background=np.array([1, 0, 0, 0]))
    assert found == {
        "knn": 0.75,
        "knn_same": 0.75,
        "knn_other": 0.5,
        "knn_gap": 0.25,
        "knn_shortcut": 0.5,
        "knn_shortcut_original": 0.25,
    }


@pytest.fixture(scope="module")
def scenes(tmp_path_factory, write_video):
    """Lists of videos of a small white square before a background whose colour is the class; boxes of the square."""
    root = tmp_path_factory.mktemp("scenes")
    boxes = ["path,frame,x1,y1,x2,y2"]
    colours = [(200, 30, 30), (30, 200, 30), (30, 30, 200)]
    for split, count, top in (("train", 12, 11), ("test", 9, 12)):  # no two files are equal
        rows = ["path,label"]
        for n in range(count):
            frames = np.full((8, 32, 32, 3), colours[n % 3], np.uint8)
            left = 2 + n
            frames[:, top : top + 6, left : left + 6] = 255
            write_video(root / f"{split}{n}.mp4", frames)
            rows.append(f"{split}{n}.mp4,{n % 3}")
            boxes += [f"{split}{n}.mp4,{t},{left},{top},{left + 6},{top + 6}" for t in range(8)]
        (root / f"{split}.csv").write_text("\n".join(rows) + "\n")
    (root / "boxes.csv").write_text("\n".join(boxes) + "\n")
    return root


def test_a_network_that_sees_only_backgrounds(scenes, tmp_path, monkeypatch, capsys):
    """Features of colours: the classes are those of the backgrounds, all of them."""
    monkeypatch.chdir(tmp_path)
    words = [
        "background",
        str(scenes / "test.csv"),
        "--train-list",
        str(scenes / "train.csv"),
        "--checkpoint",
        "random",
    ]
    words += ["--cfg", str(TOY), *RANDOM, "seed={split}", "--splits", "1", "2", "--boxes", str(scenes / "boxes.csv")]
    cli.run("analyze", [*words, "--workers", "0", "--device", "cpu", "--out", "o"])
    found = json.loads((tmp_path / "o/results.json").read_text())
    for split in found["splits"].values():
        assert [split[f"R@1{end}"] for end in ("", "_same", "_other", "_gap")] == [1, 1, 0, 1]
        assert (split["R@1_shortcut"], split["R@1_shortcut_original"]) == (1, 0)
    lines = capsys.readouterr().out.splitlines()
    head = "9 videos; 2 clips x 1 crop of 32²; accuracy in % with the background of another video"
    assert lines[0] == f"{head}, majority 33.3"
    cells = ["100.0", "100.0", "0.0", "100.0", "100.0", "0.0"]
    assert lines[3].split() == ["random", "R@1", *(word for cell in cells for word in (cell, "±", "0.0"))]
    for file in ("background.png", "split1/examples.png", "split2/examples.png"):
        assert (tmp_path / "o" / file).read_bytes()[:4] == b"\x89PNG"


def test_several_networks_and_masks(trained, digits, tmp_path, monkeypatch, capsys):
    """What is there is not measured again; without training videos the classifier is measured alone."""
    monkeypatch.chdir(tmp_path)
    words = ["background", str(digits / "motion/test.csv"), "--checkpoint", "random", trained]
    words += ["--cfg", str(TOY), *RANDOM, "--train-list", str(digits / "motion/train.csv")]
    words += ["--masks", str(digits / "masks"), "--workers", "0", "--device", "cpu", "--out", "o"]
    cli.run("analyze", words)
    assert {path.name for path in (tmp_path / "o").glob("[!.]*")} == {"random", "run", "background.png"}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[2:7]] == [
        ["random", "kNN"],
        ["random", "R@1"],
        ["run", "classifier"],
        ["run", "kNN"],
        ["run", "R@1"],
    ]
    given = {"videos": digits / "motion/test.csv", "masks": digits / "masks", "out": tmp_path / "alone"}
    first = measure_background(trained, **given)
    assert "top1_other" in first and "knn" not in first
    monkeypatch.setattr("vidssl.apps.analysis.background.encode_videos", None)
    assert measure_background(trained, **given) == first


def test_what_is_refused(trained, digits, tmp_path):
    listed, out, boxes = digits / "motion/test.csv", tmp_path / "o", digits / "boxes.csv"
    with pytest.raises(ConfigError, match=r"needs a classifier of 8 classes .* this network has none"):
        measure_background("random", listed, out=out, boxes=boxes, cfg=TOY, settings=RANDOM)
    with pytest.raises(ConfigError, match="there are none: give masks=FOLDER or boxes=FILE"):
        measure_background(trained, listed, out=out)
    with pytest.raises(DataError, match=r"16 videos of .* are in .* too"):
        measure_background(trained, listed, out=out, train_list=listed, boxes=boxes)
    few = tmp_path / "few.csv"
    few.write_text("".join((digits / "boxes.csv").read_text().splitlines(keepends=True)[: 1 + 45 * 24]))
    with pytest.raises(DataError, match=r"few\.csv has no box for 11 of 16 videos of .*, the first .*00005\.mp4"):
        measure_background(trained, listed, out=out, boxes=few)
