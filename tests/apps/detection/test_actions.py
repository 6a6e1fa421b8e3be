"""Actions of persons in key frames: lists of AVA, clips, the detector, its average precision, runs."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from torch import nn
from torchvision.ops import roi_align

import vidssl
from vidssl.apps.detection.coco_lists import read_boxes
from vidssl.apps.detection.config import ActionDetectorSettings, KeyFrameSettings, bind_run
from vidssl.apps.detection.detectors import ActionDetector
from vidssl.apps.detection.images_and_clips import DetectionBatch, KeyFrameDataset, clip_frames
from vidssl.apps.detection.prepare_voc_coco_ava import prepare_ava
from vidssl.apps.detection.train_and_test import _in_files, train
from vidssl.base.config import read
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.types import VideoMeta
from vidssl.cli import main
from vidssl.models.backbones import build_backbone
from vidssl.transforms.recipes import TrainCrop

TOY = Path(__file__).parents[3] / "configs" / "detection" / "actions_toy.yaml"
CLIP = KeyFrameSettings(frames=8, seconds=1.0)


@pytest.fixture
def toy(movies, tmp_path):
    def bind(output, *overrides):
        lists = movies / "lists"
        where = [f"data.train={lists}/train.json", f"evaluate.list={lists}/val.json", f"output={tmp_path / output}"]
        return bind_run(read(TOY, [*where, "device=cpu", *overrides]), str(TOY))

    return bind


def test_the_list_has_what_the_files_say(movies):
    persons = read_boxes([movies / "lists/train.json"])
    assert persons.has_key_frames and persons.classes == ("rise", "sink", "be red")
    assert len(persons) == 24 and persons.times.tolist() == [1.0] * 24 and len(persons.proposals) == 0
    rows = [line.split(",") for line in (movies / "annotations/ava_train_v2.2.csv").read_text().splitlines()]
    assert persons.objects["category"].tolist() == [[1, 3, 7].index(int(row[6])) for row in rows]
    assert np.allclose(persons.objects["box"], [[float(number) for number in row[2:6]] for row in rows], atol=1e-6)
    assert persons.records[2].path == str(movies / "videos/movie-2.mp4")
    some = persons.rows([2, 0])
    assert some.records[1].path.endswith("movie-2.mp4") and some.times.tolist() == [1.0, 1.0]
    assert np.array_equal(some.objects[some.rows_of(1)]["box"], persons.objects[persons.rows_of(2)]["box"])
    assert some.fingerprint != persons.fingerprint and persons.rows([]).names == ()
    assert replace(persons, times=persons.times + 1).fingerprint != persons.fingerprint


def change(movies, tmp_path, name, old, new):
    """A copy of the annotations with one changed file, or a new one (`old` None)."""
    shutil.copytree(movies / "annotations", tmp_path / "official", dirs_exist_ok=True)
    path = tmp_path / f"official/ava_{name}"
    path.write_text(new if old is None else path.read_text().replace(old, new))
    return tmp_path / "official"


def test_excluded_key_frames_and_uncounted_actions(movies, tmp_path):
    official = change(movies, tmp_path, "train_excluded_timestamps_v2.2.csv", None, "movie-1,0901\n")
    name = "ava_action_list_v2.2_for_activitynet_2019.pbtxt"
    (official / name).write_text('item {\n  name: "rise"\n  id: 1\n}\n')
    report = prepare_ava(movies / "videos", tmp_path / "lists", official)
    assert "train: 24 movies listed, 24 found, 0 missing\n  23 key frames, 46 persons" in report
    train, val = (read_boxes([tmp_path / f"lists/{side}.json"]) for side in ("train", "val"))
    assert (
        {*train.objects["category"]} == {0, 1, 2} and {*val.objects["category"]} == {0} and val.classes == train.classes
    )
    assert len(val) == 8  # key frames stay, for detections in them are wrong


def test_detected_persons(movies, tmp_path):
    detected = tmp_path / "detected.csv"
    rows = (
        "movie-24,0901,0.1,0.2,0.5,0.9,,0.95\nmovie-24,0901,0.1,0.2,0.4,0.9,,0.5\nmovie-25,0902,0.2,0.2,0.5,1.02,,0.8\n"
    )
    detected.write_text(rows)
    more = tmp_path / "more.csv"
    more.write_text(
        "movie-0,0901,0.1,0.2,0.5,0.9,7,0.95\nmovie-0,0901,0.1,0.2,0.6,0.9,,0.95\nmovie-1,0902,0.1,0.2,0.7,0.9,,0.95\n"
    )
    options = {"proposals": detected, "train_boxes": more}
    prepare_ava(movies / "videos", tmp_path / "lists", movies / "annotations", **options)
    train, val = (read_boxes([tmp_path / f"lists/{side}.json"]) for side in ("train", "val"))
    before = read_boxes([movies / "lists/train.json"])
    assert len(train.objects) == 1 + len(before.objects) and not before.has_proposals and train.has_proposals
    assert np.allclose(
        train.proposals["box"], [[0.1, 0.2, 0.6, 0.9], [0.1, 0.2, 0.7, 0.9]]
    )  # persons without an action
    # A key frame that has only those is trained on, as in SlowFast.
    assert len(train) == len(before) + 1 == len(train.images_with_objects().records)
    assert len(replace(train, proposals=train.proposals[:0]).images_with_objects().records) == 24
    random_view = TrainCrop(TrainCrop.Config(size=60, short_side=(60, 60)))
    for persons, count in ((before, 2), (train, 4)):
        sample = KeyFrameDataset(replace(persons, times=persons.times), CLIP, 64).sample(0, 0)[1]
        assert len(sample["labels"]) == (count if persons is before else 1)
        labels = np.concatenate(
            [KeyFrameDataset(persons, CLIP, random_view, s).sample(0, 0)[1]["labels"] for s in range(4)]
        )
        assert (labels.sum(axis=1) == 0).any() == (persons is train)
    assert len(val) == 9 and val.times.tolist() == [1] * 8 + [2]
    assert np.allclose(val.proposals["box"], [[0.1, 0.2, 0.5, 0.9], [0.2, 0.2, 0.5, 1.0]])
    assert np.shares_memory(val.proposals_of(0), val.proposals)  # no search in all of them
    assert val.proposals_of(1).shape == (0, 4) and val.counts()["proposals"] == 2
    kept = val.rows([8, 0])
    assert np.array_equal(kept.proposals["box"], val.proposals["box"]) and kept.proposals_of(0).shape == (1, 4)
    tested, trained = (
        KeyFrameDataset(val, CLIP, view) for view in (64, TrainCrop(TrainCrop.Config(size=64, short_side=(64, 64))))
    )
    assert tested.sample(0, 0)[1]["boxes"].shape == (1, 4) and not tested.sample(0, 0)[1]["labels"].any()
    assert len(trained.sample(0, 0)[1]["labels"]) <= 2 and trained.sample(0, 0)[1]["labels"].any()


MISTAKES = [
    ("train_v2.2.csv", None, "movie-0,0901,0.1,0.2\n", "ava_train_v2.2.csv:1: 'movie-0,0901,0.1,0.2' is"),
    ("train_v2.2.csv", ",1,", ",2,", "action 2 is not one of the 3 of the set"),
    ("val_v2.2.csv", "movie", "film", "val: 8 of 8 movies are not in"),
    ("val_v2.2.csv", "0901,0", "0901,nan,0", "is not video"),
    ("val_v2.2.csv", ",0901,", ",0905,", "is 2 s long, and its last key frame is second"),
    ("val_excluded_timestamps_v2.2.csv", None, "a,b,c\n", "'a,b,c' is not video,second"),
    ("action_list_v2.2.pbtxt", None, "", "names no actions"),
    ("action_list_v2.2_for_activitynet_2020.pbtxt", None, "", "has 2 files ava_action_list_v2.2_for"),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), MISTAKES)
def test_errors_of_prepare_are_one_line(movies, tmp_path, name, old, new, message):
    with pytest.raises(DataError, match=r"^[^\n]*$") as error:
        prepare_ava(movies / "videos", tmp_path / "out", change(movies, tmp_path, name, old, new))
    assert message in str(error.value) and not (tmp_path / "out").exists()


def test_options_and_files_must_fit(movies, tmp_path):
    """Seconds 1 to 2 of a movie are in its file; with --start 0 the key frame at second 901 is not."""
    official, detected = movies / "annotations", tmp_path / "detected.csv"
    moved = change(movies, tmp_path, "train_v2.2.csv", ",0901,", ",0002,")
    unfit = r"detected.csv: no box of \d is of a val movie with score 0.8"
    for annotations, rows, options, message in (
        (official, "", {"start": 0.0}, r"movie-0.mp4 is 2 s long, .* 901 s after the start 0: set start=SECONDS"),
        (moved, "", {"start": 1.0}, r"is 2 s long, and its last key frame is second 2 of the movie, 1 s after"),
        (official, "", {"max_missing": 2}, r"max_missing 2, min_score 0\.8 are in"),
        (official, "movie-0,0901,0.1,0.2,0.5,0.9,,0.95\n", {"proposals": detected}, unfit),
        (official, "movie-24,0901,0.1,0.2,0.5,0.9,,0.5\n", {"proposals": detected}, unfit),
        (official, "", {"proposals": detected}, unfit),
    ):
        detected.write_text(rows)
        with pytest.raises((ConfigError, DataError), match=message):
            prepare_ava(movies / "videos", tmp_path / "out", annotations, **options)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["images"][0].update(height=0), "the height or width of an image: 0 is not in 1"),
        (
            lambda c: c.update(categories=[], proposals=[{"image_id": 1, "bbox": [0, 0, 1, 1]}]),
            "is not a list of boxes",
        ),
        (lambda c: c["images"][0].pop("time"), "an image has no time"),
    ],
)
def test_lists_that_cannot_be_right(movies, tmp_path, edit, message):
    content = json.loads((movies / "lists/val.json").read_text())
    edit(content)
    (tmp_path / "list.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"^[^\n]*$") as error:
        read_boxes([tmp_path / "list.json"], movies / "videos")
    assert message in str(error.value)


def test_folders_of_frames(movies, tmp_path):
    """Movies as folders of frames at a given rate give the same clips as the files."""
    for path in sorted((movies / "videos").iterdir()):
        with vidssl.open_video(path) as video:
            (tmp_path / path.stem).mkdir()
            for n, image in enumerate(video.iter_frames(), 1):
                cv2.imwrite(str(tmp_path / path.stem / f"{path.stem}_{n:06d}.png"), image[:, :, ::-1])
    prepare_ava(tmp_path, tmp_path / "lists", movies / "annotations", fps=12.0)
    one, other = (read_boxes([folder / "lists/val.json"]) for folder in (movies, tmp_path))
    for n in range(2):
        a, b = (KeyFrameDataset(each, CLIP, 64).sample(0, n) for each in (one, other))
        assert np.array_equal(a[0], b[0]) and np.array_equal(a[1]["boxes"], b[1]["boxes"])


def test_the_frames_of_a_clip():
    """At 30 frames a second 8 frames over 64 / 30 s are 8 apart and have the key frame as the fifth, as in SlowFast."""
    meta = VideoMeta(900, 30.0, 48, 64)
    assert clip_frames(meta, 10.0, 8, 64 / 30).tolist() == [*range(300 - 32, 300 + 32, 8)]
    assert clip_frames(meta, 0.0, 4, 1.0).tolist() == [0, 0, 0, 8]
    assert clip_frames(meta, 30.0, 4, 1.0).tolist() == [885, 892, 899, 899]


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_boxes_follow_the_pixels(movies, flip):
    """Each disc has its colour: where it is in the key frame of the view, there is its box."""
    persons = read_boxes([movies / "lists/train.json"])
    crop = TrainCrop(TrainCrop.Config(size=60, short_side=(64, 70), flip_probability=flip))
    seen = 0
    for view in (crop, 96):
        for index in range(4):
            clip, target, _ = KeyFrameDataset(persons, CLIP, view).sample(0, index)
            assert clip.shape == ((8, 60, 60, 3) if view is crop else (8, 96, 144, 3))
            shown = np.abs(clip[4, :, :, 0].astype(int) - clip[4, :, :, 2]) > 60
            for x1, y1, x2, y2 in np.rint(target["boxes"]).astype(int):
                if x1 == 0 or x2 == clip.shape[2]:
                    continue  # cut by the crop
                actual = shown[max(y1 - 3, 0) : y2 + 3, max(x1 - 3, 0) : x2 + 3].nonzero()
                left, top = max(x1 - 3, 0) + actual[1].min(), max(y1 - 3, 0) + actual[0].min()
                assert abs(left - x1) < 3 and abs(top - y1) < 3
                assert abs(np.ptp(actual[1]) + 1 - (x2 - x1)) < 4 and abs(np.ptp(actual[0]) + 1 - (y2 - y1)) < 4
                seen += 1
    assert seen >= 10


def test_key_frames_outside_of_the_file(movies):
    persons = read_boxes([movies / "lists/train.json"])
    for time in (-0.1, 3.5):
        with pytest.raises(
            DataError, match=r"movie-0.mp4: the key frame at .* lies outside of the file, .* another start"
        ):
            KeyFrameDataset(replace(persons, times=persons.times * 0 + time), CLIP, 64).sample(0, 0)


def detector(**settings):
    torch.manual_seed(0)
    backbone = build_backbone("resnet3d18", width=8, zero_init=False)
    return ActionDetector(ActionDetectorSettings(dropout=0.0, **settings), backbone, classes=3)


def batch(sizes=((64, 64), (48, 80)), persons=(2, 1)):
    torch.manual_seed(1)
    clips, targets = [], []
    for (height, width), count in zip(sizes, persons, strict=True):
        clips.append(torch.randn(3, 4, height, width))
        low = torch.rand(count, 2) * 20
        labels = (torch.rand(count, 3) > 0.5).float()
        targets.append({"boxes": torch.cat([low, low + 20], dim=1), "labels": labels})
    return DetectionBatch(tuple(clips), tuple(targets), torch.arange(len(clips)))


def test_scores_are_those_of_one_person_at_a_time():
    """Clips of several sizes in a batch, and the head: RoIAlign of the mean over time, maximum, linear, sigmoid."""
    network, data = detector().eval(), batch()
    detections = network.detect(data)
    for clip, target, one in zip(data.images, data.targets, detections, strict=True):
        (maps,) = network.backbone.features(clip[None], ("layer4",))
        assert maps.shape[3:] == (-(-clip.shape[2] // 16), -(-clip.shape[3] // 16))
        for n, box in enumerate(target["boxes"]):
            region = roi_align(maps.mean(dim=2), [box[None]], 7, 1 / 16, aligned=True)
            scores = torch.sigmoid(network.head(region.flatten(2).max(dim=2).values))[0]
            rows = slice(3 * n, 3 * n + 3)
            assert torch.allclose(one["scores"][rows], scores, atol=1e-6)
            assert one["labels"][rows].tolist() == [1, 2, 3] and torch.equal(one["boxes"][rows], box.expand(3, 4))


def test_the_last_stage_is_dilated_by_its_weights():
    """The dilated stage on maps whose odd rows and columns are cut is the original stage with stride 1."""
    network = detector()
    torch.manual_seed(0)
    plain = build_backbone("resnet3d18", width=8, zero_init=False)
    last, reference = network.backbone.net.blocks[-1].eval(), plain.net.blocks[-1].eval()
    for module in reference.modules():
        if isinstance(module, nn.Conv3d):
            module.stride = (1, 1, 1)
    maps = torch.randn(1, 32, 2, 12, 12)
    assert torch.allclose(last(maps)[..., ::2, ::2], reference(maps[..., ::2, ::2]), atol=1e-5)
    assert {*network.backbone.state_dict()} == {*plain.state_dict()}


def test_the_loss_is_the_mean_over_persons_and_actions():
    network, data = detector(), batch()
    network.eval()
    probabilities = torch.cat([one["scores"].view(-1, 3) for one in network.detect(data)])
    labels = torch.cat([target["labels"] for target in data.targets])
    expected = -(labels * probabilities.log() + (1 - labels) * (1 - probabilities).log()).mean()
    assert torch.allclose(network(data)["loss"], expected, atol=1e-5)
    network.train()
    network(data)["loss"].backward()
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in network.parameters())
    nobody = network(batch(persons=(0, 0)))["loss"]
    nobody.backward()
    assert nobody.item() == 0 and network.eval().detect(batch(persons=(0, 1)))[0]["scores"].shape == (0,)


def test_detections_are_in_the_units_of_the_list():
    """Key frames have a height and width of 1: their boxes are fractions."""
    clip = DetectionBatch((torch.zeros(3, 4, 40, 80),), ({},), torch.tensor([0]))
    detected = {"boxes": torch.tensor([[8.0, 10, 40, 20]]), "labels": torch.tensor([1]), "scores": torch.tensor([0.5])}
    (in_list,) = _in_files(clip, [detected], SimpleNamespace(sizes=np.array([[1, 1]])))
    assert np.allclose(in_list.boxes, [[0.1, 0.25, 0.5, 0.5]]) and in_list.labels.tolist() == [0]


def test_the_backbone_must_be_3d():
    with pytest.raises(ConfigError, match=r"needs a 3D ResNet, got ResNet2D.*: set backbone.name"):
        ActionDetector(ActionDetectorSettings(), build_backbone("resnet18"), 3)


def test_a_toy_runs_resumes_and_is_tested(toy, movies, tmp_path, monkeypatch, capsys):
    straight = torch.load(train(toy("straight")), weights_only=True)
    train(toy("stopped", "data.workers=1"), until=3)
    last = train(toy("stopped"))
    resumed = torch.load(last, weights_only=True)
    assert resumed["classes"] == ["rise", "sink", "be red"]
    for name, weight in straight["method"].items():
        assert name == "_extra_state" or torch.equal(weight, resumed["method"][name]), name
    results = json.loads((tmp_path / "stopped/results.json").read_text())
    assert results["images"] == 8 and results["proposals"] == 0 and 0 <= results["numbers"]["AP50"] <= 1
    options = ["--checkpoint", str(last), "--out", str(tmp_path / "test"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["vidssl", "test", str(movies / "lists/val.json"), *options])
    main()
    assert "AP50" in capsys.readouterr().out
    assert json.loads((tmp_path / "test/results.json").read_text())["numbers"] == results["numbers"]
    assert vidssl.load_backbone(last).dim == 64


def test_mistakes_are_found_before_training(toy, shapes, movies):
    for setting, message in (
        (f"data.train={shapes}/lists/voc/trainval.json", "lists images: action_detector needs key frames"),
        ("detector.name=fpn", "set one of detector and action_detector"),
        ("action_detector.drop=0.1", r"action_detector.drop: unknown key"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(toy("a", setting))
    images = [f"data.train={movies}/lists/train.json", f"output={movies}/never", "evaluate.list=null"]
    with pytest.raises(ConfigError, match="detector needs a list of images"):
        train(bind_run(read(TOY.parent / "toy.yaml", images), str(TOY.parent / "toy.yaml")))


@pytest.mark.long
def test_it_learns_motion_and_colour(toy, tmp_path):
    """Trained on four videos, it separates rising from sinking discs in two others; one frame does not show it."""
    train(
        toy(
            "learned",
            "steps=150",
            "data.frames=8",
            "evaluate.batch_size=2",
            "log_every=50",
            "optimizer.lr=0.002",
            "seed=2",
        )
    )
    assert json.loads((tmp_path / "learned/results.json").read_text())["numbers"]["AP50"] > 0.9
