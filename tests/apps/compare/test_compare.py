"""Encoders compared on the digits: what is kept, joined, left out and said; predictions: leave_recording_out."""

import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.apps import compare as job
from vidssl.apps.compare import features_and_predictions as encoder_scores
from vidssl.apps.predict.trust import measure_trust
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.evaluation import leave_recording_out
from vidssl.video.write import encode

TOP = Path(__file__).parents[3]
TOY = TOP / "configs" / "toy" / "supervised.yaml"
OPTIONS = {"cfg": str(TOY), "clips": 1, "workers": 0, "settings": ["data.moving_digits=null"]}
GROUP = r"\d\d\d$|\d(?=\.mp4)"  # the last digit: ten recordings
FLOORS = ("thumbnails", "differences")


@pytest.fixture(scope="module", autouse=True)
def few_fits():
    """Fit little, and measure two floors: all of them are in one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leave_recording_out, "FEW_LABEL_DRAWS", 1)
        patch.setattr(job, "FLOORS", FLOORS)
        yield


def compare(digits, out, *, model=("random",), **more):
    options = {"group": GROUP, "shots": (1,), "limit": 12, **OPTIONS, **more}
    return vidssl.compare(digits / "motion/train.csv", model=list(model), out=out, **options)


@pytest.fixture(scope="module")
def compared(digits, tmp_path_factory):
    """All floors, two lists of labels, 40 videos."""
    out = tmp_path_factory.mktemp("compare") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "FLOORS", (*FLOORS, "motion", "untrained"))
        return compare(digits, out, more_labels=[digits / "colour/train.csv"], limit=None), out


def test_numbers_are_those_of_the_predictions(compared):
    results, out = compared
    group = np.array(results["groups"]["number"])
    assert len(np.unique(group)) == 10
    assert {*results["encoders"]} == {"random", "thumbnails", "differences", "motion", "untrained"}
    assert [section["name"] for section in results["sections"]] == ["motion", "colour"]
    for section in results["sections"]:
        label = np.array(section["labels"])
        for name, accuracy in section["accuracy"].items():
            predicted = section["predicted"][name]
            assert (group[predicted["nearest"]] != group).all()
            for measure in ("knn", "chosen"):
                recall = [np.mean(np.array(predicted[measure])[label == class_] == class_) for class_ in {*label}]
                assert accuracy[measure] == pytest.approx(np.mean(recall))
            low, high = section["intervals"][name]
            assert low < accuracy["knn"] < high
            assert accuracy["R@1"] == pytest.approx(np.mean(label[predicted["nearest"]] == label))
        kept = vidssl.load_features(out / results["encoders"]["random"]["features"])
        stated = measure_trust(kept.x, label, group, [*map(str, range(8))], "video", 0.05)  # by vidssl predict
        assert section["accuracy"]["random"]["chosen"] == pytest.approx(stated["recall"]["value"])
        counts = np.unique(label, return_counts=True)[1]
        majority = pytest.approx(counts.max() / len(label))
        assert section["guessing"] == dict.fromkeys(accuracy, majority) | dict.fromkeys(
            ("knn", "chosen"), pytest.approx(1 / len(counts))
        )
        assert len(section["pairs"]) == 10 and section["neighbours"] == min(20, int(np.median(counts)) - 1)


def test_what_is_written(compared):
    results, out = compared
    assert json.loads((out / "results.json").read_text())["sections"] == results["sections"]
    page = (out / "index.html").read_text()
    for section in results["sections"]:
        assert section["verdict"]["answer"] in page and section["name"] in page
    text = str(results)
    assert text.startswith("motion:\nlabels: the list's, 8 classes\n")
    for section, table in zip(results["sections"], text.split("\n\nmotion:")[-1].split("colour:"), strict=True):
        assert f"kNN, k = {section['neighbours']}" in table and f"kNN, k = {section['neighbours']}<small>" in page
        names = [line.split()[0] for line in table.splitlines() if line.split(" ")[0] in section["accuracy"]]
        assert names[:5] == sorted(names[:5], key=lambda name: -section["accuracy"][name]["knn"]) and len(names) >= 5
    assert "colour:\nlabels: train.csv, 6 classes\n" in text and "Labels: train.csv, 6 classes." in page
    for facts in results["encoders"].values():
        assert facts["seconds_per_video"] > 0 and facts["peak_megabytes"] > 100
    assert results["encoders"]["thumbnails"]["floor"] and not results["encoders"]["random"]["floor"]


def test_the_command(digits, tmp_path, capsys):
    """Two encoders and all options; the list of what to label next holds what both predict."""
    words = [digits / "motion/train.csv", "--checkpoint", "floor:thumbnails", "vidssl-small", "--limit", "12"]
    words += ["--more-labels", digits / "colour/train.csv", "--group", GROUP, "--shots", "1", "--clips", "1"]
    words += ["--workers", "0", "--quiet", "--out", tmp_path / "out"]
    with pytest.raises(SystemExit):
        cli.guarded(lambda: cli.run("compare", [str(words[0]), "--out", str(tmp_path / "out")]))
    assert "the following arguments are required: --checkpoint" in capsys.readouterr().err
    cli.run("compare", [*map(str, words)])
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["sections"][0]["verdict"]["answer"] in capsys.readouterr().out
    counts = Counter(results["sections"][0]["labels"])
    assert len(results["videos"]) == 12 and max(counts.values()) - min(counts.values()) <= 1
    assert results["encoders"]["vidssl-small"]["checkpoint"]["licence"] == "research only"
    assert not (tmp_path / "out/disagreements.csv").exists()  # of one encoder that is no floor


def test_one_more_encoder_costs_only_itself(compared, digits, monkeypatch):
    results, out = compared
    extracted, original = [], encoder_scores.extract_to

    def counted(subject, *arguments, **more):
        if not arguments[2].exists():
            extracted.append(more["title"])
        return original(subject, *arguments, **more)

    predicted, predict = [], encoder_scores.predict_left_out
    monkeypatch.setattr(encoder_scores, "extract_to", counted)
    monkeypatch.setattr(encoder_scores, "predict_left_out", lambda *a, **k: predicted.append(a) or predict(*a, **k))
    labels = [digits / "colour/train.csv"]
    again = compare(digits, out, model=("random", "vidssl-small"), more_labels=labels, limit=None)
    assert extracted == ["vidssl-small"] and len(predicted) == 2  # once for each list of labels
    for old, new in zip(results["sections"], again["sections"], strict=True):
        assert new["accuracy"]["random"] == old["accuracy"]["random"] and new["folds"] == old["folds"]
    lines = (out / "disagreements.csv").read_text().splitlines()
    section = again["sections"][0]
    one, two = (section["predicted"][name]["knn"] for name in ("random", "vidssl-small"))
    differ = [again["videos"][n] for n, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1]]
    assert lines[0] == "path,label,entropy,random,vidssl-small,thumbnails,differences"
    assert sorted(line.split(",")[0] for line in lines[1:]) == sorted(differ)
    page = (out / "index.html").read_text()
    assert "on which the encoders disagree" in page and lines[1].split(",")[0] in page


def test_the_same_command_goes_on(digits, tmp_path, monkeypatch):
    original = encoder_scores._extract

    def stopped(name, *arguments):
        if name == "differences":
            raise KeyboardInterrupt
        return original(name, *arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(encoder_scores, "_extract", stopped)
        compare(digits, tmp_path / "out", size=24, crops=3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/features").iterdir() if path.is_dir()}
    assert len(before) == 2  # random and thumbnails
    results = compare(digits, tmp_path / "out", size=24, crops=3)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    sizes = {name: encoder["protocol"]["size"] for name, encoder in results["encoders"].items()}
    assert sizes == {"random": 24, "thumbnails": 64, "differences": 64}  # floors stay as they are
    assert results["failed"] == {} and results["encoders"]["random"]["gigaflops_per_video"] > 0


def test_the_same_clips_for_all_beside_the_own_ones(digits, tmp_path):
    """Each encoder is there twice, a sum too; of the second all clips span what was asked for, from the same times."""
    model = ("floor:thumbnails", "vidssl-small", "vidssl-small+floor:thumbnails")
    results = compare(digits, tmp_path / "out", same_clips=0.4, model=model[::2])
    encoders = results["encoders"]
    assert {*encoders} == {name + kind for name in (*model, "differences") for kind in ("", ", same clips")}
    assert {name for name, facts in encoders.items() if facts["part"]} == {model[1], f"{model[1]}, same clips"}
    for name in ("vidssl-small", "floor:thumbnails", "differences"):
        own, same = (encoders[name + kind]["protocol"] for kind in ("", ", same clips"))
        assert own["clip"].get("seconds") != 0.4 == same["clip"]["seconds"]
        assert (same["clips"], same["crops"]) == (encoder_scores.SAME_CLIPS, 1)
        assert same["clip"]["frames"] == own["clip"]["frames"]
    for kind in ("", ", same clips"):
        whole, *parts = (encoders[name + kind] for name in (model[2], model[1], model[0]))
        assert whole["features"] == " + ".join(part["features"] for part in parts)
        assert whole["dimension"] == sum(part["dimension"] for part in parts)
        assert whole["seconds_per_video"] == pytest.approx(sum(part["seconds_per_video"] for part in parts))
        assert parts[0]["gigaflops_per_video"] > 0
        assert parts[1]["gigaflops_per_video"] is whole["gigaflops_per_video"] is None  # of one it is not counted
    test = vidssl.TestClips(
        clip={"frames": 4, "seconds": 0.4}, clips=4, crops=1, size=64, mean=(0.45,), std=(0.225,), workers=0
    )
    names = [line.split(",")[0] for line in (digits / "motion/train.csv").read_text().splitlines()[1:]]
    rows = [names.index(name) for name in results["videos"]]
    expected = vidssl.extract(vidssl.load_backbone("vidssl-small"), digits / "motion/train.csv", test=test).x[rows]
    kept = vidssl.load_features(tmp_path / "out" / encoders["vidssl-small, same clips"]["features"]).x
    np.testing.assert_allclose(kept, expected, atol=1e-6)


def test_videos_without_labels(digits, tmp_path):
    """Nothing is called best, and what is measured is there for each encoder."""
    videos, out = digits / "videos/test", tmp_path / "out"
    results = vidssl.compare(videos, model=["vidssl-small", "floor:thumbnails"], out=out, clips=1, workers=0)
    assert results["sections"] == [] and str(results)
    said = " ".join(results["without_labels"]["sentences"])
    page = re.sub(r"<(script|style).*?</\1>", "", (out / "index.html").read_text(), flags=re.S)
    assert "vidssl-small" in said and said.split(". ")[0] in page and not re.search(r"\bbest\b", said + page)
    assert len([*(out / "features").glob("*/rows.csv")]) == len(results["encoders"])  # each is extracted once
    pairs = {(pair["first"], pair["second"]): pair["fraction"] for pair in results["common_neighbours"]}
    assert len(pairs) == 3 and all(0 <= fraction <= 1 for fraction in pairs.values())


OWN = """
import torch


class Own(torch.nn.Module):
    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, x):
        return self.change(x.mean(dim=(3, 4)).flatten(1))


def fails(x):
    if len(x) > 1:
        raise RuntimeError("no such kernel")
    return x


def not_finite(x):
    return x / 0 if len(x) > 1 else x


STATED = {"size": 16, "frames": 2, "seconds": 0.5}


def good():
    return Own(lambda x: x), STATED


def failing():
    return Own(fails), STATED


def infinite():
    return Own(not_finite), STATED
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_of_compare.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield "python:own_of_compare"
    sys.modules.pop("own_of_compare", None)


def test_code_that_fails_loses_no_other_encoder(own, digits, tmp_path):
    model = [f"{own}:{name}" for name in ("failing", "good", "infinite")]
    model.append("python:nothing.here:load")
    results = compare(digits, tmp_path / "out", model=model)
    assert {*results["encoders"]} == {model[1], *FLOORS}
    assert "nothing" in str(results) and "nothing" in results["failed"].pop(model[3])
    assert results["failed"] == {
        model[0]: "Own fails for clips (4, 3, 2, 16, 16): RuntimeError: no such kernel",
        model[2]: f"{results['failed'][model[2]].partition(':')[0]}: a feature is not finite: the weights or the "
        "normalisation are damaged",
    }
    assert "no such kernel" in (tmp_path / "out/index.html").read_text()
    with pytest.raises(ConfigError, match=r"no such kernel$"):
        compare(digits, tmp_path / "other", model=model[:1])


class Brightness(torch.nn.Module):
    """Features are the mean and the spread of the pixels."""

    def __init__(self, wide: bool = False) -> None:
        super().__init__()
        self.wide = wide

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(x.mean(dim=2), 4 if self.wide else 1).flatten(1)


CLIPS = vidssl.TestClips(clip={"frames": 2, "seconds": 0.2}, clips=1, crops=1, size=16, workers=0)


def test_modules_have_the_names_that_a_mapping_gives_them(digits, tmp_path):
    """Two of them are one network: equal, and said to be. Neither of them costs operations that are counted."""
    model = {"mean": Brightness(), "the same": Brightness(), "thumbnails": Brightness(wide=True)}
    videos = digits / "motion/train.csv"
    results = vidssl.compare(videos, model=model, out=tmp_path / "out", test=CLIPS, group=GROUP, shots=(1, 20))
    assert {name for name, facts in results["encoders"].items() if not facts["floor"]} == {*model}
    (section,) = results["sections"]
    reasons = {(pair["first"], pair["second"]): pair["reason"] for pair in section["pairs"]}
    assert reasons["mean", "the same"] == "equal"
    assert "mean and the same have the same weights and clips." in section["verdict"]["doubts"]
    assert "at most 20 per class" in results.text and "1 per class" in results.text and "guessing" in results.text
    assert results["encoders"]["thumbnails"]["floor"] is False and results["encoders"]["floor:thumbnails"]["floor"]
    assert results["encoders"]["mean"]["gigaflops_per_video"] is None  # torch sees none
    kept = [results["encoders"][name]["features"] for name in model]
    assert kept[0] == kept[1] != kept[2]  # whatever a module has but its weights: how it pools
    with pytest.raises(ConfigError, match="names no encoder"):
        vidssl.compare(videos, model={}, out=tmp_path / "none", test=CLIPS)


def spans(digits, folder, name, lines):
    (folder / name).mkdir()
    root = (digits / "motion" / (digits / "motion/root.txt").read_text().strip()).resolve()
    (folder / name / "root.txt").write_text(f"{root}\n")
    (folder / name / "list.csv").write_text("\n".join(["path,label,start,end", *lines]) + "\n")
    return folder / name / "list.csv"


def test_labels_of_another_list_are_those_of_the_same_span(digits, tmp_path):
    """Two spans a video, of other labels: in another order, and with the numbers written otherwise."""
    paths = [line.split(",")[0] for line in (digits / "motion/train.csv").read_text().splitlines()[1:13]]
    early, late = [f"{path},0,0.0,0.2" for path in paths], [f"{path},1,0.2,0.40" for path in paths]
    first = spans(digits, tmp_path, "first", [*early, *late])
    other = [f"./{path},{number},{span}" for path in paths for number, span in ((1, ".20,0.4"), (0, "0,0.2"))]
    second = spans(digits, tmp_path, "second", other)
    options = {"model": {"mean": Brightness()}, "test": CLIPS, "group": GROUP, "shots": (1,)}
    results = vidssl.compare(first, more_labels=[second], out=tmp_path / "out", **options)
    own, joined = (section["labels"] for section in results["sections"])
    assert own == joined and sorted({*own}) == [0, 1]
    double = spans(digits, tmp_path, "double", [*early, *late, f"./{paths[0]},1,0.0,0.2"])
    with pytest.raises(DataError, match=r"has the label '1', in .* '0'"):
        vidssl.compare(first, more_labels=[double], out=tmp_path / "other", **options)
    with pytest.raises(DataError, match="has labels of spans, which are rows of their own: give it as labels="):
        whole = digits / "motion/train.csv"
        vidssl.compare(whole, more_labels=[second], out=tmp_path / "other", **options)


def test_classes_of_one_recording_are_named_and_left_out_of_the_mean(digits, tmp_path):
    """They are not found with their recording left out, by any encoder."""
    paths = [line.split(",")[0] for line in (digits / "motion/train.csv").read_text().splitlines()[1:21]]
    listed = spans(digits, tmp_path, "alone", [f"{path},{n % 2 if n else 2},," for n, path in enumerate(paths)])
    options = {"model": {"mean": Brightness()}, "test": CLIPS, "shots": (1,)}
    results = vidssl.compare(listed, out=tmp_path / "out", **options)
    (section,) = results["sections"]
    assert "Classes of one recording are left out of kNN's mean over classes: 2." in section["verdict"]["doubts"]
    assert "There are only 19 recordings of classes that have two or more: " in " ".join(section["verdict"]["doubts"])
    label, predicted = np.array(section["labels"]), np.array(section["predicted"]["mean"]["knn"])
    recall = [np.mean(predicted[label == one] == one) for one in (0, 1)]
    assert section["accuracy"]["mean"]["knn"] == pytest.approx(np.mean(recall))
    assert section["guessing"]["knn"] == 0.5 and section["guessing"]["R@1"] == pytest.approx(10 / 20)
    two = [f"{paths[n]},{n},{start},{start + 0.2}" for n in (0, 1) for start in (0, 0.2)]
    with pytest.raises(DataError, match="no class has videos of two recordings: add videos, or see group=REGEX"):
        vidssl.compare(spans(digits, tmp_path, "two", two), out=tmp_path / "other", **options)


@pytest.mark.parametrize("counts", [(1, 2), (2, 2, 1)])
def test_very_few_videos(own, digits, tmp_path, counts):
    videos = iter(sorted((digits / "videos/train").rglob("*.mp4")))
    for label, count in enumerate(counts):
        (tmp_path / f"videos/class{label}").mkdir(parents=True)
        for n in range(count):
            shutil.copy(next(videos), tmp_path / f"videos/class{label}/{n}.mp4")
    results = vidssl.compare(tmp_path / "videos", model=f"{own}:good", out=tmp_path / "out", workers=0)
    assert len(results["videos"]) == sum(counts) and str(results)


def test_a_video_beside_class_folders_has_no_label(own, digits, tmp_path):
    names = ("a/1.mp4", "a/2.mp4", "b/1.mp4", "b/2.mp4", "loose.mp4")
    for name, video in zip(names, sorted((digits / "videos/train").rglob("*.mp4")), strict=False):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(video, tmp_path / "videos" / name)
    results = vidssl.compare(tmp_path / "videos", model=f"{own}:good", out=tmp_path / "out", workers=0)
    assert results["labels"] == "labels: the 2 folders a, b, 4 of 5 videos; other classes: labels=FILE"
    assert results["videos"] == [*names[:4]] and results["sections"][0]["labels"] == [0, 0, 1, 1]
    assert f"L{results['labels'][1:]}." in (tmp_path / "out" / "index.html").read_text()


def test_lists_of_one_folder_have_names_of_their_own(digits, tmp_path):
    videos = read_list(digits / "motion/train.csv")
    one, two = (replace(videos, path=tmp_path / f"{name}.csv") for name in ("first", "second"))
    assert job._names([one]) == [tmp_path.name]
    assert job._names([one, two]) == [f"{tmp_path.name}/first", f"{tmp_path.name}/second"]
    assert job._names([videos, read_list(digits / "colour/train.csv")]) == ["motion", "colour"]


def test_what_cannot_be_compared_is_said_at_once(own, digits, tmp_path, monkeypatch):
    """Before an encoder is loaded."""
    monkeypatch.setattr(encoder_scores, "load_subject", None)
    head, *rows = (digits / "motion/train.csv").read_text().splitlines()
    paths = [row.split(",")[0] for row in rows]
    lists = {
        "several": ["path,labels", *(f"{path},0 1" for path in paths)],
        "none": ["path", *paths],
        "some": ["path,label", f"{paths[0]},0", *(f"{path},-1" for path in paths[1:])],
        "alone": ["path,label", *(f"{path},{n}" for n, path in enumerate(paths))],
        "one": [head, rows[0]],
    }
    for name, lines in lists.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "list.csv").write_text("\n".join(lines) + "\n")
        root = (digits / "motion" / (digits / "motion/root.txt").read_text().strip()).resolve()
        (tmp_path / name / "root.txt").write_text(f"{root}\n")
    own_list = digits / "motion/train.csv"
    for videos, options, named in (
        (tmp_path / "several/list.csv", {}, "has several labels per video: a comparison needs one of each"),
        (own_list, {"more_labels": [tmp_path / "none/list.csv"]}, "none/list.csv:1: header 'path' has no column label"),
        (tmp_path / "some/list.csv", {}, "some/list.csv: a comparison needs two videos or more with labels"),
        (tmp_path / "alone/list.csv", {}, "no class has two videos, of 40 with labels: label more"),
        (own_list, {"limit": 1}, "a comparison needs two videos or more"),
        (tmp_path / "one/list.csv", {}, "a comparison needs two videos or more"),
        (own_list, {"same_clips": -1.0}, "same_clips"),
        (
            own_list,
            {"more_labels": [digits / "motion/test.csv"]},
            r"motion/test.csv has no label of a video .*: it names ",
        ),
        (own_list, {"group": "("}, r"group='\(' is not a regular expression"),
        (own_list, {"group": "nothing"}, r"group='nothing' matches nothing in all 40 paths"),
    ):
        with pytest.raises((ConfigError, DataError), match=named) as caught:
            vidssl.compare(videos, model=f"{own}:good", out=tmp_path / "out", workers=0, **options)
        assert "\n" not in str(caught.value)


def test_a_list_that_somebody_has_labelled_is_not_written_over(compared, digits):
    _, out = compared
    labelled = out / "disagreements.csv"
    labelled.write_text("path,label\n")
    for option in ({"labels": labelled}, {"more_labels": [labelled]}):
        with pytest.raises(DataError, match="is an input, and an output could replace it"):
            compare(digits, out, **option)
    assert labelled.read_text() == "path,label\n"


def test_near_copies_are_joined_into_one_recording(digits, tmp_path):
    """Of a class each: three clips, and the first one again, encoded at half the rate without its first frames."""
    for name in read_list(digits / "motion/train.csv").names[:6]:
        source, folder = digits / name, tmp_path / "videos" / ("a" if len({*tmp_path.rglob("*.mp4")}) < 4 else "b")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder)
        if len([*folder.iterdir()]) == 1:
            with vidssl.open_video(source) as video:
                frames = video.frames(range(2, len(video), 2)).transpose(0, 2, 3, 1)
                encode(folder / "copy.mp4", frames, Fraction(video.meta.fps / 2).limit_denominator(1001))
    options = {key: value for key, value in OPTIONS.items() if key != "clips"}
    results = vidssl.compare(tmp_path / "videos", model=["random"], out=tmp_path / "out", shots=(1,), **options)
    copies = [{Path(first).name, Path(second).name} for first, second in results["near_copies"]]
    assert len(copies) == 2 and all("copy.mp4" in pair for pair in copies)
    assert results["groups"]["count"] == 6 and "near copies too (2)" in results["groups"]["how"]
