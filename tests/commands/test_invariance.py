"""Invariance of networks on real files: the numbers against a loop by hand, what is written, and what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vidssl.apps.analysis.invariance import analyze_invariance, class_invariance, firing_invariance, invariance_summary
from vidssl.base.errors import ConfigError, DataError
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.load_network import load_subject
from vidssl.models.backbones import Backbone
from vidssl.transforms import center_crop
from vidssl.transforms.invariance_changes import CORRUPTIONS
from vidssl.video.reader import open_video

TOY = Path(__file__).parents[2] / "configs" / "toy" / "sce.yaml"
TOLD = ("data.moving_digits=null", "data.train=none.csv")
FEW = {"transformations": ("occlusion", "blur", "reverse"), "top_k": 5}
BLUR = {"transformations": ("blur",), "top_k": 5}


def measure(model, videos, out, **options):
    """Measure one network."""
    (found,) = analyze_invariance(model, videos, out=out, **options).values()
    return found


@pytest.fixture
def options():
    return {"cfg": TOY, "settings": TOLD, "size": 24, "batch_size": 4, "workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    given = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    return train(load_run(TOY, [*given, f"output={tmp_path_factory.mktemp('a')}/trained", "steps=2"]))


def by_hand(options, videos):
    """Features of the middle clip of each video and of its versions, one at a time."""
    subject = load_subject("random", options)
    clip, test = subject.test.clip, subject.test

    def encode(frames):
        x = torch.from_numpy(np.ascontiguousarray(frames)).float() / 255
        x = (x - torch.tensor(test.mean).view(-1, 1, 1)) / torch.tensor(test.std).view(-1, 1, 1)
        with torch.no_grad():
            return subject.backbone(x.transpose(0, 1)[None])[0].numpy()

    features, versions = [], []
    for record in videos.records:
        with open_video(record.path) as video:
            span = clip.span(video.meta)
            numbers = (video.meta.num_frames - span) // 2 + np.arange(clip.frames) * (span - 1) // (clip.frames - 1)
            view = center_crop(video.frames(numbers), 24).frames
        kinds = (CORRUPTIONS["occlusion"], CORRUPTIONS["blur"])
        changed = [*(kind.apply(view, amount) for kind in kinds for amount in kind.amounts), view[::-1]]
        features.append(encode(view))
        versions.append([encode(frames) for frames in changed])
    return np.array(features), np.array(versions)


def test_the_numbers_are_those_by_hand(options, digits, tmp_path):
    path = digits / "motion/train.csv"
    videos = read_list(path)
    features, versions = by_hand(options, videos)
    labels = np.array([record.label for record in videos.records])
    places = {"occlusion": slice(0, 4), "blur": slice(4, 7), "reverse": slice(7, 8)}
    for variant, population in (("class", "all"), ("class", "samples"), ("goodfellow", "all")):
        asked = FEW | {"variant": variant, "population": population}
        found = analyze_invariance("random", path, out=tmp_path / variant / population, **asked, **options)
        results = found["random"]
        for name, place in places.items():
            given = {"top_k": 5, "population": population}
            if variant == "class":
                wanted = class_invariance(features, versions[:, place], labels, **given)
            else:
                wanted = firing_invariance(features, versions[:, place], **given)
            # Rounding may move a value across a threshold: one version in so many.
            assert results[f"invariance_{name}"] == pytest.approx(wanted.score, abs=0.02 * wanted.ceiling)
            details = results["details"][name]
            assert (details["versions"], details["unchanged_versions"]) == (wanted.versions, 0)
            assert details["ceiling"] == wanted.ceiling
        scores = [results[f"invariance_{name}"] for name in places]
        assert results["invariance_mean"] == pytest.approx(np.mean(scores))
    assert results["invariance_unchanged"] == pytest.approx(results["invariance_ceiling"])  # of goodfellow


def test_what_is_written(options, checkpoint, digits, tmp_path):
    path, out = digits / "motion/test.csv", tmp_path / "out"
    found = analyze_invariance(["random", checkpoint], path, out=out, **FEW, **options)
    assert list(found) == ["random", "trained"]
    png = (out / "invariance.png").read_bytes()
    assert png[:4] == b"\x89PNG"
    for name, results in found.items():
        written = json.loads((out / name / "results.json").read_text())
        assert written == results
        numbers = {key for key, value in written.items() if isinstance(value, float)}
        assert numbers == {
            f"invariance_{n}" for n in ("occlusion", "blur", "reverse", "mean", "unchanged", "shuffled", "ceiling")
        }
        assert written["invariance_ceiling"] == 8 and written["num_videos"] == written["num_samples"] == 16
        assert set(written["details"]["blur"]["per_class"]) == set(read_list(path).classes)
        assert (written["protocol"]["clips"], written["protocol"]["crops"]) == (1, 1)
        assert written["measure"]["transformations"]["blur"] == [1 / 80, 1 / 40, 1 / 20]
        assert written["versions"].keys() == {"vidssl", "torch"}
    assert found["trained"]["checkpoint"]["step"] == 2 and found["random"]["checkpoint"]["path"] == "random"
    lines = found.text.splitlines()
    assert (
        "; the 5 best of" in lines[0]
        and lines[0].startswith("16 videos, 16 clips; 1 clip x 1 crop of ")
        and lines[1].split() == ["random", "trained"]
    )
    table = {line.split()[0]: line.split()[1:] for line in lines[2:]}
    for name in ("unchanged", "occlusion", "blur", "reverse", "mean", "shuffled"):
        assert table[name] == [f"{results[f'invariance_{name}']:.2f}" for results in found.values()]


def test_what_is_there_is_not_measured_again(options, digits, tmp_path, monkeypatch):
    asked = {"videos": digits / "motion/test.csv", "out": tmp_path / "out", **BLUR, **options}
    first = measure("random", **asked)
    assert measure("random", **asked | {"top_k": 6})["measure"]["top_k"] == 6
    measure("random", **asked)
    monkeypatch.setattr("vidssl.apps.analysis.invariance.encode_videos", None)
    again = measure("random", **asked)
    assert {**again, "date": ""} == {**first, "date": ""}
    shutil.copytree(digits / "videos/test", tmp_path / "moved/videos/test")  # other files of the same names
    with pytest.raises(TypeError, match="not callable"):
        measure("random", **asked, root=tmp_path / "moved")


@pytest.fixture
def inputs():
    """What a backbone gets first, and whether it runs in half precision."""
    found = []

    def note(module, args):
        if isinstance(module, Backbone):
            found.append((args[0][0, :, 0].clone(), torch.is_autocast_enabled("cpu")))

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    yield found
    handle.remove()


@pytest.mark.parametrize(("short_side", "precision"), [(None, None), (40, None), (None, "bfloat16")])
def test_the_short_side_and_the_precision_are_those_asked_for(options, digits, tmp_path, inputs, short_side, precision):
    given = options | {"short_side": short_side, "precision": precision, "batch_size": 1}
    path = digits / "motion/test.csv"
    results = measure("random", path, tmp_path / "out", **BLUR, **given)
    assert results["protocol"]["short_side"] == short_side
    assert {half for _, half in inputs} == {precision == "bfloat16"}
    clip = load_subject("random", given).test.clip
    with open_video(read_list(path).records[0].path) as video:
        first = (video.meta.num_frames - clip.span(video.meta)) // 2
        wanted = center_crop(video.frames([first]), 24, short_side).frames[0]
    # In bfloat16 the sizes of the convolutions are looked up first, with an empty clip.
    shown = next(frame for frame, _ in inputs if frame.any()) * 0.225 + 0.45
    torch.testing.assert_close(shown, torch.from_numpy(wanted.copy()).float() / 255)


def test_left_out_transformations_are_named(options, digits, tmp_path):
    path, sampler = digits / "motion/test.csv", "{name: random, frames: 1, sampling_rate: 1}"
    one = options | {"settings": (*TOLD, f"data.sampler={sampler}")}
    found = measure("random", path, tmp_path / "out", top_k=5, **one)
    assert set(found["left_out"]) == {"shift", "speed", "reverse", "instance"}
    assert "invariance_reverse" not in found and "invariance_gap" in found
    assert "not measured: speed (a clip of one frame has no motion)" in invariance_summary({"random": found})
    asked = {"transformations": ("instance", "gap"), "top_k": 5, "boxes": digits / "boxes.csv"}
    found = measure("random", path, tmp_path / "boxes", **asked, **options)
    assert found["details"]["instance"]["versions"] == 48 and "invariance_instance" in found
    # Of 24 frames no clip has room for most of the gaps.
    gap = found["details"].get("gap", {"unchanged_versions": 64})
    assert gap["unchanged_versions"] >= 48


def test_several_clips_are_several_samples(options, digits, tmp_path):
    found = measure("random", digits / "motion/test.csv", tmp_path / "o", clips=3, **BLUR, **options)
    assert (found["num_videos"], found["num_samples"]) == (16, 48)


def test_broken_videos(options, digits, tmp_path):
    source = read_list(digits / "motion/test.csv")
    for n, record in enumerate(source.records):
        shutil.copy(record.path, tmp_path / f"{n}.mp4")
    (tmp_path / "3.mp4").write_bytes(b"nothing")
    rows = [f"{n}.mp4,{record.label}\n" for n, record in enumerate(source.records)]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(rows))
    asked = {"videos": tmp_path / "list.csv", "out": tmp_path / "out", **BLUR, **options}
    with pytest.raises(DataError, match=r"3\.mp4"):
        measure("random", **asked)
    found = measure("random", **asked, allow_missing=True)
    assert found["num_videos"] == 15 and [m["path"] for m in found["missing"]] == [str(tmp_path / "3.mp4")]
    assert invariance_summary({"random": found}).startswith("15 of 16 (1 missing) videos")


def test_what_is_refused(options, checkpoint, digits, tmp_path):
    path, out = digits / "motion/test.csv", tmp_path / "out"
    names = read_list(path).names
    root = read_list(path).root
    unlabelled, alike = tmp_path / "unlabelled.csv", tmp_path / "alike.csv"
    unlabelled.write_text("path\n" + "".join(f"{name}\n" for name in names))
    alike.write_text("path,label\n" + "".join(f"{name},0\n" for name in names))
    with pytest.raises(DataError, match=r'variant="class" needs labels of two classes .*variant="goodfellow"'):
        measure("random", unlabelled, out, root=root, **FEW, **options)
    with pytest.raises(DataError, match="two classes or more"):
        measure("random", alike, out, root=root, **FEW, **options)
    with pytest.raises(ConfigError, match="top_k=4000 is more than the 64 units of random"):
        measure("random", path, out, **FEW | {"top_k": 4000}, **options)
    with pytest.raises(ConfigError, match="crops=3: only the central square is measured"):
        measure("random", path, out, crops=3, **FEW, **options)
    with pytest.raises(ConfigError, match="names a network twice"):
        measure(["random", "random"], path, out, **FEW, **options)
    with pytest.raises(ConfigError, match="brings its own config: leave out cfg=FILE"):
        measure(checkpoint, path, out, **FEW, **options)
    with pytest.raises(ConfigError, match=r"instance: it needs boxes=FILE"):
        measure("random", path, out, transformations=("instance",), **options)
    assert not [*out.glob("[!.]*")]
    found = measure("random", unlabelled, out, root=root, variant="goodfellow", **FEW, **options)
    assert found["details"]["blur"]["per_class"] == {}


def test_seeds_give_mean_and_spread(options, digits, tmp_path):
    path = digits / "motion/test.csv"

    def seeded(seed, out, **splits):
        return measure("random", path, out, **FEW, **options | {"settings": (*TOLD, f"seed={seed}")}, **splits)

    found = seeded("{split}", tmp_path / "seeds", splits=(3, 4))
    alone = [seeded(n, tmp_path / str(n)) for n in (3, 4)]
    for name in ("invariance_blur", "invariance_mean", "invariance_unchanged"):
        values = [results[name] for results in alone]
        assert found["mean"][name] == pytest.approx(np.mean(values)) and values[0] != values[1]
        assert found["spread"][name] == pytest.approx(np.std(values, ddof=1))
        assert [found["splits"][n][name] for n in ("3", "4")] == values
    assert json.loads((tmp_path / "seeds/results.json").read_text()) == found
    lines = invariance_summary({"random": found}).splitlines()
    assert "mean ± standard deviation of 2 splits" in lines[0]
    assert f"{found['mean']['invariance_blur']:.2f} ± {found['spread']['invariance_blur']:.2f}" in invariance_summary(
        {"r": found}
    )
    with pytest.raises(ConfigError, match="all splits would be the same"):
        measure("random", path, tmp_path / "same", splits=(3, 4), **FEW, **options)


def test_seeds_of_an_untrained_network_beside_trained_ones(options, checkpoint, digits, tmp_path):
    """The config and its seed are for the untrained one; the others bring their own."""
    given = {**FEW, **options, "settings": (*TOLD, "seed={split}")}
    path, names = digits / "motion/test.csv", [tmp_path / f"trained{n}.pt" for n in (3, 4)]
    for name in names:
        shutil.copy(checkpoint, name)
    several = [str(tmp_path / "trained{split}.pt"), "random"]
    found = analyze_invariance(several, path, out=tmp_path / "out", splits=(3, 4), **given)
    trained, untrained = found.values()
    assert trained["spread"]["invariance_blur"] == 0 and untrained["spread"]["invariance_blur"] > 0
    own = {name: value for name, value in given.items() if name not in ("cfg", "settings")}
    for name, value in measure(checkpoint, path, tmp_path / "1", **own).items():
        assert name not in trained["mean"] or trained["mean"][name] == value
    with pytest.raises(ConfigError, match="all splits would be the same"):
        analyze_invariance([checkpoint, "random"], path, out=tmp_path / "same", splits=(3, 4), **given)
    with pytest.raises(ConfigError, match=r"name the splits or seeds: splits=N"):
        measure("random", path, tmp_path / "unsplit", **given)


def test_there_is_no_mean_of_different_transformations():
    def results(**scores):
        numbers = {f"invariance_{name}": score for name, score in scores.items()}
        given = {"measure": {"top_k": 1}, "num_units": 2, "num_videos": 3, "num_samples": 3, "missing": []}
        protocol = {"clips": 1, "crops": 1, "size": 32 if "reverse" in scores else 24}
        return {**numbers, "invariance_ceiling": 2.0, "left_out": {}, "protocol": protocol, **given}

    clips = results(blur=1.5, reverse=1.9, mean=1.7, unchanged=2, shuffled=1)
    frames = results(blur=1.5, mean=1.5, unchanged=2, shuffled=1) | {"left_out": {"reverse": "one frame"}}
    lines = invariance_summary({"clips": clips, "frames": frames}).splitlines()
    assert "; clips 1 clip x 1 crop of 32², frames 1 clip x 1 crop of 24²; " in lines[0]  # of different tests
    assert [line.split()[0] for line in lines[2:6]] == ["unchanged", "blur", "reverse", "shuffled"]
    assert lines[6:] == [
        "not measured of frames: reverse (one frame)",
        "no mean: the networks were not measured with the same transformations",
    ]
    assert any(line.startswith("mean") for line in invariance_summary({"a": clips, "b": clips}).splitlines())
