"""`analyze gradcam` and `retrieval --gradcam`: numbers, files, pages, and what is refused."""

import csv
import json
from collections import defaultdict
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from vidssl import cli
from vidssl.apps.analysis.gradcam import analyze_gradcam
from vidssl.apps.search import retrieval
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.read_instance_boxes import read_instance_boxes
from vidssl.data.video_list import read_list
from vidssl.evaluation.features import TestClips
from vidssl.jobs.grad_cam import box_masks, class_maps, one_clip, pair_maps
from vidssl.jobs.load_network import load_subject

TOY = Path(__file__).parents[3] / "configs" / "toy" / "supervised.yaml"
OPTIONS = {"workers": 0, "device": "cpu"}
TOLD = ("data.moving_digits=null", "data.train=none.csv")


def measure(model, videos, out, **options):
    """Measure one network, on the CPU."""
    (results,) = analyze_gradcam(model, videos, out=out, **OPTIONS, **options).values()
    return results


def test_untrained_beside_trained(trained, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["gradcam", str(digits / "motion/test.csv"), "--checkpoint", "random", trained, "--cfg", str(TOY), *TOLD]
    words += ["--target", "similarity", "--layer", "layer2", "--boxes", str(digits / "boxes.csv"), "--limit", "6"]
    cli.run("analyze", [*words, "--overlays", "2", "--workers", "0", "--device", "cpu", "--quiet", "--out", "out"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "6 videos; 1 clip x 1 crop of 32²" and lines[-1] == "out/index.html"
    page = (tmp_path / "out/index.html").read_text()
    shown = {line.rpartition("  ")[0].strip(): line for line in lines[2:5]}
    for place, name in enumerate(("random", "run")):
        stored = json.loads((tmp_path / "out" / name / "results.json").read_text())
        assert stored["num_videos"] == len(stored["videos"]) == 6 and stored["cells"] == [4, 4, 4]
        assert f"{name}: maps of layer2, 4 x 4 x 4 cells, for the similarity." in lines
        masses = np.array([*stored["mass_of_video"].values()])
        assert [stored["mass_in_box"], stored["box_area"]] == pytest.approx(masses.mean(axis=0))
        assert 0 < stored["box_area"] < stored["mass_limit"] < 1
        for line, key in zip(shown.values(), ("mass_in_box", "box_area", "mass_limit"), strict=True):
            assert line.split()[-2 + place] == f"{100 * stored[key]:.1f}"
        assert all(one["neighbour"] != one["path"] and -1 <= one["similarity"] <= 1 for one in stored["videos"])
        files = sorted((tmp_path / "out" / name / "overlays").iterdir())
        assert len(files) == 2 and all(f"{name}/overlays/{file.name}" in page for file in files)
        with av.open(str(files[0])) as video:
            assert sum(1 for _ in video.decode(video=0)) == 4


def test_a_class_and_untrained_stages(trained, digits, tmp_path):
    options = {"layer": "layer3", "limit": 3, "overlays": 0, "randomize": True}
    results = measure(trained, digits / "motion/test.csv", tmp_path, **options)
    assert [*results["randomized"]] == ["layer4", "layer3", "layer2", "layer1", "stem"]
    assert all(abs(value) < 0.9 for value in results["randomized"].values()) and results["target"] == "class"
    subject = one_clip(load_subject(trained, OPTIONS))
    listed = read_list(digits / "motion/test.csv")
    features = {}
    for n, clip, label, probability in class_maps(subject, listed, "layer3"):
        view = torch.from_numpy(clip.frames).float().permute(1, 0, 2, 3)[None] / 255
        x = (view - torch.tensor(subject.test.mean).view(1, -1, 1, 1, 1)) / torch.tensor(subject.test.std).view(
            1, -1, 1, 1, 1
        )
        with torch.no_grad():
            expected = subject.classify(subject.backbone(x))[0]
        assert label == expected.argmax() and probability == pytest.approx(expected.max().item(), abs=1e-5)
        features[listed.names[n]] = listed.class_name(label)
    assert all(one["predicted"] == features[one["path"]] for one in results["videos"])


def test_masks_follow_the_boxes_into_the_clip(trained, digits):
    subject, listed = one_clip(load_subject(trained, OPTIONS)), read_list(digits / "motion/test.csv")
    rows = defaultdict(dict)
    with open(digits / "boxes.csv") as file:
        for row in csv.DictReader(file):
            rows[row["path"]][int(row["frame"])] = [float(row[key]) for key in ("x1", "y1", "x2", "y2")]
    seen = 0
    span, frames = round(0.6 * 25), 4  # of the toy config
    start = (24 - span) // 2
    for n, mask in box_masks(subject, listed, read_instance_boxes(digits / "boxes.csv", listed)):
        for t in range(frames):
            box = np.array(rows[listed.names[n]][start + t * (span - 1) // (frames - 1)]) * 32 / 48
            columns, lines = (np.flatnonzero(mask[t].any(axis=axis)) for axis in (0, 1))
            edges = [columns[0], lines[0], columns[-1] + 1, lines[-1] + 1]
            assert np.abs(edges - box).max() <= 1.5
            assert mask[t].sum() == pytest.approx((box[2] - box[0]) * (box[3] - box[1]), rel=0.1)
            seen += 1
    assert seen == 16 * frames


def test_pairs_without_a_video_that_cannot_be_read(trained, digits, tmp_path):
    listed = read_list(digits / "motion/test.csv")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    others = tmp_path / "others.csv"
    names = [str(record.path) for record in listed.records[:5]]
    names[2] = str(tmp_path / "broken.mp4")
    others.write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    options = {**OPTIONS, "batch_size": 2}
    subject = one_clip(load_subject(trained, {**options, "allow_missing": True}))
    actual = list(pair_maps(subject, listed.rows(range(5)), read_list(others, None, True), "layer3"))
    assert [n for n, *_ in actual] == [0, 1, 3, 4]
    for _, mine, theirs, similarity in actual:  # each is beside itself
        assert similarity == pytest.approx(1, abs=1e-5) and np.array_equal(mine.frames, theirs.frames)
    strict = one_clip(load_subject(trained, options))
    with pytest.raises(DataError, match="broken"):
        list(pair_maps(strict, listed.rows(range(5)), read_list(others, None, True), "layer3"))


def test_the_retrieval_page_shows_maps(trained, digits, tmp_path, search_page, monkeypatch):
    options = {"gallery": digits / "motion/train.csv", "query": digits / "motion/test.csv", **OPTIONS}
    plain = retrieval(trained, out=tmp_path / "plain", page_queries=2, page_hits=3, **options)
    mapped = retrieval(trained, out=tmp_path / "mapped", page_queries=2, page_hits=3, gradcam="layer2", **options)
    assert {**plain, "date": ""} == {**mapped, "date": ""}
    before, shown = (search_page(tmp_path / name) for name in ("plain", "mapped"))
    assert {len(hit.maps) for _, hits in before for hit in hits} == {0}
    maps = [hit.maps for _, hits in shown for hit in hits]
    assert len(maps) == 6 and len({*maps}) == 6 and {len(pair) for pair in maps} == {2}
    assert [[hit._replace(maps=()) for hit in hits] for _, hits in shown] == [hits for _, hits in before]
    monkeypatch.setattr("vidssl.apps.search.MAPPED_QUERIES", 1)
    retrieval(trained, out=tmp_path / "default", page_hits=1, gradcam="layer2", **options)
    assert (
        len(search_page(tmp_path / "default")) == 1
        and "1 of 16 queries" in (tmp_path / "default/index.html").read_text()
    )


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("random", {"target": "class", "cfg": TOY, "settings": TOLD}, "no classifier with logits"),
        ("trained", {"gallery": "LIST"}, 'is for target="similarity"'),
        ("trained", {"layer": "layer5"}, "no module 'layer5'"),
        ("torchvision:r3d_18@none", {}, r"^torchvision:r3d_18@none states no layer with maps: .* layer=PATH$"),
    ],
)
def test_what_is_refused(trained, digits, tmp_path, model, options, message):
    options = {name: digits / "motion/test.csv" if value == "LIST" else value for name, value in options.items()}
    with pytest.raises(ConfigError, match=message):
        measure(trained if model == "trained" else model, digits / "motion/test.csv", tmp_path / "o", **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradcam": "layer5"}, "no module 'layer5'"),
        ({"center": True, "gradcam": True}, r"gradcam=True explains .*: leave it out"),
    ],
)
def test_what_a_search_refuses(trained, digits, tmp_path, options, message):
    path = digits / "motion/test.csv"
    with pytest.raises(ConfigError, match=message):
        retrieval(trained, gallery=path, query=path, out=tmp_path / "r", **options, **OPTIONS)


def test_maps_of_a_search_with_a_module_without_layers_are_an_error_before_the_search(digits, tmp_path):
    query = digits / "motion" / "test.csv"
    clip = ClipSettings(frames=4, seconds=1.0)
    options = {"test": TestClips(clip=clip, size=16, workers=0), "device": "cpu"}
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool3d(1), torch.nn.Flatten())
    with pytest.raises(ConfigError, match="states no layer with maps: name a module of it with layer=PATH"):
        retrieval(module, query=query, gallery=query, out=tmp_path / "out", gradcam=True, **options)
    assert not (tmp_path / "out" / "results.json").exists()
