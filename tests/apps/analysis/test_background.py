"""Swapped backgrounds of real files, against loops over pixels, and numbers of networks on them, against loops."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vidssl import cli
from vidssl.apps.analysis.background import (
    Swaps,
    analyze_background,
    box_around,
    draw_backgrounds,
    fill_box,
    list_masks,
)
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.data.clip_samplers import ClipSettings, Uniform
from vidssl.data.dataset import ClipDataset
from vidssl.data.read_instance_boxes import read_instance_boxes
from vidssl.data.to_device import normalised
from vidssl.data.video_list import Records, VideoList, read_list
from vidssl.jobs.extract import extract
from vidssl.jobs.grad_cam import COPY
from vidssl.jobs.load_network import load_subject
from vidssl.jobs.test import test as measure
from vidssl.transforms import RECIPES
from vidssl.video.reader import DecodeSettings, open_video

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
RANDOM = ("data.moving_digits=null", "data.train=none.csv")


def filled_by_hand(frame, box):
    """The formula, pixel by pixel: nearest pixels outside the box, weighted by their inverse distances."""
    (height, width), (x1, y1, x2, y2) = frame.shape[:2], box
    out = frame.copy()
    for y in range(y1, y2):
        for x in range(x1, x2):
            near = []
            for other_y, other_x in ((y, x1 - 1), (y, x2), (y1 - 1, x), (y2, x)):
                if 0 <= other_y < height and 0 <= other_x < width:
                    near.append((frame[other_y, other_x].astype(float), 1 / (abs(other_y - y) + abs(other_x - x))))
            sums = sum(colour * weight for colour, weight in near)
            out[y, x] = np.rint(sums / sum(weight for _, weight in near)) if near else 128
    return out


@pytest.mark.parametrize("box", [(3, 2, 8, 7), (0, 0, 4, 5), (6, 1, 12, 9), (0, 2, 12, 6), (5, 0, 6, 9), (0, 0, 12, 9)])
def test_boxes_are_filled_from_around(box):
    frame = generator(0).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    expected = filled_by_hand(frame, box)
    fill_box(frame, box)
    assert np.abs(frame.astype(int) - expected).max() <= 1  # sums in another order may round differently
    assert (frame == expected).mean() > 0.95


def test_the_box_around_a_mask():
    mask = np.zeros((40, 60), bool)
    assert box_around(mask) is None
    mask[20, 2] = mask[25, 31] = True
    assert box_around(mask) == (0, 19, 35, 27)  # 30 and 6 pixels long: 3 and 1 more on each side, cut at the edge


def swapped(videos, instances, drawn, clip, clips=1, size=None):
    """Frames (N, clips, 3, T, H, W, 3) of all versions, without resizing."""
    records = list(videos.records)
    swaps = Swaps(instances, {r: [records[n] for n in rows] for r, rows in zip(records, drawn, strict=True)})
    recipe = RECIPES["uniform_crops"](RECIPES["uniform_crops"].Config(size=size, crops=1))
    plain = ClipDataset(videos, Uniform(Uniform.Config(**dict(clip), clips=clips)), [recipe], reading=DecodeSettings())
    dataset = swaps.dataset(plain, clip, clips)
    views = [[view.transpose(0, 2, 3, 1) for view in dataset[0, n].views] for n in range(len(records))]
    return np.stack([np.stack(each).reshape(clips, 3, *each[0].shape) for each in views])


@pytest.mark.parametrize("kind", ["boxes", "masks"])
def test_every_version_is_that_of_a_loop(digits, kind):
    videos = read_list(digits / "motion/test.csv")
    boxes = read_instance_boxes(digits / "boxes.csv", videos)
    paths = [record.path for record in videos.records]
    masks = [record.path for record in list_masks(digits / "masks", videos).records]
    instances = boxes if kind == "boxes" else dict(zip(paths, masks, strict=True))
    drawn = draw_backgrounds(videos, 3)
    actual = swapped(videos, instances, drawn.tolist(), ClipSettings(frames=2, sampling_rate=9), clips=2, size=48)
    whole = []
    for path, mask in zip(paths, masks, strict=True):
        with open_video(path) as video, open_video(mask) as other:
            whole.append((video.frames(range(24)), other.frames(range(24))))
    for n in (0, 5):
        for clip, numbers in enumerate(([0, 9], [14, 23])):
            for t, number in enumerate(numbers):
                own = whole[n][0][number].transpose(1, 2, 0)
                np.testing.assert_array_equal(actual[n, clip, 0, t], own)
                for version in (1, 2):
                    source = drawn[n, version - 1]
                    x1, y1, x2, y2 = map(int, boxes[paths[source]][number])  # the mask has the same box
                    mx, my = (max(1, round(0.1 * side)) for side in (x2 - x1, y2 - y1))
                    hole = max(x1 - mx, 0), max(y1 - my, 0), min(x2 + mx, 48), min(y2 + my, 48)
                    expected = filled_by_hand(whole[source][0][number].transpose(1, 2, 0), hole)
                    x1, y1, x2, y2 = map(int, boxes[paths[n]][number])
                    for y in range(48):
                        for x in range(48):
                            inside = x1 <= x < x2 and y1 <= y < y2
                            if whole[n][1][number][0, y, x] > 127 if kind == "masks" else inside:
                                expected[y, x] = own[y, x]
                    assert np.abs(actual[n, clip, version, t].astype(int) - expected).max() <= 1


@pytest.fixture
def sizes(tmp_path, write_video):
    """Videos of one gray level per frame: a of 12 frames, 40x20; b of 5 frames, 40x40, white where a is not as high."""
    levels = np.arange(12, dtype=np.uint8)[:, None, None, None] * 10 + 40
    a = np.broadcast_to(levels, (12, 20, 40, 3)).copy()
    b = np.broadcast_to(levels[:5] + 100, (5, 40, 40, 3)).copy()
    b[:, :8] = b[:, 32:] = 255
    for name, frames in (("a", a), ("b", b)):
        write_video(tmp_path / f"{name}.mp4", frames)
    records = Records(tmp_path, [VideoRecord("a.mp4", 0, start=0.08), VideoRecord("b.mp4", 1, start=0.04)])
    return VideoList(tmp_path / "list.csv", records, ())


def test_a_shorter_background_of_another_size_is_repeated_and_cut(sizes):
    """Frames are counted from the start of both spans; frames without a box are background alone."""
    a, b = (record.path for record in sizes.records)
    boxes = {a: {n: (0.0, 0.0, 10.0, 20.0) for n in range(12) if n != 5}, b: {0: (0.0, 0.0, 4.0, 4.0)}}
    records, clip = list(sizes.records), ClipSettings(frames=10, seconds="whole")
    swaps = Swaps(boxes, {record: [other, other] for record, other in zip(records, records[::-1], strict=True)})
    plain = ClipDataset(sizes, Uniform(Uniform.Config(**dict(clip), clips=1)), [], reading=DecodeSettings())
    with swaps.dataset(plain, clip, 1).reading.open(records[0]) as video:
        frames = video.frames(COPY + 2 + np.arange(10)).astype(int)  # the span begins at frame 2
    for t in range(10):
        level = (1 + t % 4) * 10 + 140  # b from its frame 1 on: 4 frames
        outside = frames[t, :, :, 10:]
        assert abs(outside - level).max() <= 3, t
        inside = 2 + t if 2 + t != 5 else None
        assert abs(frames[t, :, :, :10] - (level if inside is None else inside * 10 + 40)).max() <= 3


def test_backgrounds_are_drawn_by_seed_and_row(digits):
    videos = read_list(digits / "motion/train.csv")
    drawn, label = draw_backgrounds(videos, 0), videos.labels
    assert (label[drawn[:, 0]] == label).all() and (label[drawn[:, 1]] != label).all()
    assert (drawn[:, 0] != np.arange(40)).all()
    assert (drawn == draw_backgrounds(videos, 0)).all() and (drawn != draw_backgrounds(videos, 1)).any()
    fits = [np.flatnonzero((label == label[7]) & (np.arange(40) != 7)), np.flatnonzero(label != label[7])]
    rng = generator(0, 7)
    assert drawn[7].tolist() == [rng.choice(rows) for rows in fits]
    # Spans of one file have the same background.
    records = Records(
        videos.root, [VideoRecord("v.mp4", 0, 0, 1), VideoRecord("v.mp4", 0, 1, 2), VideoRecord("w.mp4", 1)]
    )
    with pytest.raises(DataError, match=r"v\.mp4 of .* background of another video of its class \(0\), and there is"):
        draw_backgrounds(VideoList(videos.path, records, ()), 0)
    with pytest.raises(DataError, match="another video of another class"):
        draw_backgrounds(videos.rows([0, 8, 16]), 0)


def test_masks_are_found_by_path_and_have_the_size_of_the_video(digits, tmp_path, write_video):
    videos = read_list(digits / "motion/test.csv").rows([0, 8])
    with pytest.raises(DataError, match=r"videos/test/00000\.mp4 of .* has no masks: neither .* masks=FOLDER"):
        list_masks(tmp_path, videos)
    for name in videos.names:  # folders of images, without the suffix
        (tmp_path / name).with_suffix("").mkdir(parents=True)
    actual = list_masks(tmp_path, videos)
    assert [record.path for record in actual.records] == [str(tmp_path / f"videos/test/0000{n}") for n in (0, 8)]
    outside = VideoList(videos.path, Records(tmp_path, [VideoRecord("../v.mp4", 0)]), ())
    with pytest.raises(DataError, match=r"\.\./v\.mp4 leaves the root"):
        list_masks(tmp_path, outside)
    small = write_video(tmp_path / "small.mp4", np.zeros((24, 24, 24, 3), np.uint8))
    instances = dict.fromkeys([record.path for record in videos.records], str(small))
    with pytest.raises(DataError, match=r"the masks have 24x24, the video 48x48"):
        swapped(videos, instances, [[1, 1], [0, 0]], ClipSettings(frames=2, sampling_rate=1), size=24)


# The command ------------------------------------------------------------------------------------------------


def measure_background(model, videos, **options):
    """Measure one network, on the CPU."""
    (results,) = analyze_background(model, videos, workers=0, device="cpu", **options).values()
    return results


def test_numbers_are_those_of_a_loop(trained, digits, tmp_path):
    """From the frames of `Swaps`, which have their own test, by the classifier and by ten neighbours."""
    listed, train_list = (digits / f"motion/{name}.csv" for name in ("test", "train"))
    results = measure_background(
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
        expected = [*right[row], right[row, 1] - right[row, 2], shortcut[row], before[row]]
        ends = ("", "_same", "_other", "_gap", "_shortcut", "_shortcut_original")
        assert [results[name + end] for end in ends] == pytest.approx(np.array(expected) / 16), name
    usual = measure(trained, listed, out=tmp_path / "test", train_list=train_list, **options)
    assert all(results[name] == pytest.approx(usual[name]) for name in ("top1", "knn", "R@1"))
    assert (results["num_videos"], results["majority"], results["missing"]) == (16, 1 / 8, [])


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
    stored = json.loads((tmp_path / "o/results.json").read_text())
    for split in stored["splits"].values():
        assert [split[f"R@1{end}"] for end in ("", "_same", "_other", "_gap")] == [1, 1, 0, 1]
        assert (split["R@1_shortcut"], split["R@1_shortcut_original"]) == (1, 0)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "9 videos, 9 videos; 2 clips x 1 crop of 32²; mean ± standard deviation of 2 splits"
    cells = {line.rpartition("  ")[0].strip() or line: line.split()[-3:] for line in lines[2:6]}
    assert cells["original"] == cells["same class"] == ["100.0", "±", "0.0"]
    assert cells["another class"] == ["0.0", "±", "0.0"] and cells["majority"][-1] == "33.3"
    for file in ("split1/examples.png", "split2/examples.png"):
        assert (tmp_path / "o" / file).read_bytes()[:4] == b"\x89PNG"
    assert "100.0 ± 0.0" in (tmp_path / "o/index.html").read_text()


def test_masks_without_training_videos(trained, digits, tmp_path):
    """The classifier is measured alone."""
    results = measure_background(
        trained, digits / "motion/test.csv", masks=digits / "masks", clips=1, out=tmp_path / "alone"
    )
    assert "top1_other" in results and "knn" not in results
    assert "classifier by background" in (tmp_path / "alone/index.html").read_text()


def test_what_is_refused(trained, digits, tmp_path):
    listed, out, boxes = digits / "motion/test.csv", tmp_path / "o", digits / "boxes.csv"
    with pytest.raises(ConfigError, match=r"needs a classifier of 8 classes .* this network has none"):
        measure_background("random", listed, out=out, boxes=boxes, cfg=TOY, settings=RANDOM)
    with pytest.raises(ConfigError, match="by masks or boxes: give masks=FOLDER or boxes=FILE"):
        measure_background(trained, listed, out=out)
    with pytest.raises(DataError, match=r"16 videos of .* are in .* too"):
        measure_background(trained, listed, out=out, train_list=listed, boxes=boxes)
    few = tmp_path / "few.csv"
    few.write_text("".join((digits / "boxes.csv").read_text().splitlines(keepends=True)[: 1 + 45 * 24]))
    with pytest.raises(DataError, match=r"few\.csv has no box for 11 of 16 videos of .*, the first .*00005\.mp4"):
        measure_background(trained, listed, out=out, boxes=few)
