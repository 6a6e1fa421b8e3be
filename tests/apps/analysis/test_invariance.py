"""Invariance of networks on real files: the numbers against a loop by hand, what is written, and what is refused."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vidssl import cli
from vidssl.apps.analysis import invariance as module
from vidssl.apps.analysis.evidence import Evidence
from vidssl.apps.analysis.invariance import (
    MOVES,
    TRANSFORMATIONS,
    Invariance,
    TrajectoryFeatures,
    analyze_invariance,
    choose_transformations,
    class_invariance,
    firing_invariance,
    invariance_section,
    shuffled_scores,
)
from vidssl.base.errors import ConfigError, DataError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import ClipSettings, Uniform
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.jobs.load_network import load_subject
from vidssl.transforms import center_crop
from vidssl.transforms.invariance_changes import CORRUPTIONS
from vidssl.video.reader import open_video

TOY = Path(__file__).parents[3] / "configs" / "toy" / "sce.yaml"
TOLD = ("data.moving_digits=null", "data.train=none.csv")
FEW = {"transformations": ("occlusion", "blur", "reverse"), "top_k": 5}


def measure(model, videos, out, **options):
    """Measure one network."""
    (results,) = analyze_invariance(model, videos, out=out, **options).values()
    return results


@pytest.fixture
def options():
    return {"cfg": TOY, "settings": TOLD, "size": 24, "batch_size": 4, "workers": 0, "device": "cpu"}


@pytest.fixture(scope="module")
def checkpoint(digits, tmp_path_factory):
    settings = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    return train(load_run(TOY, [*settings, f"output={tmp_path_factory.mktemp('a')}/trained", "steps=2"]))


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
    path = digits / "motion/test.csv"
    videos = read_list(path)
    features, versions = by_hand(options, videos)
    labels = np.array([record.label for record in videos.records])
    places = {"occlusion": slice(0, 4), "blur": slice(4, 7), "reverse": slice(7, 8)}
    for variant, population in (("class", "all"), ("class", "samples"), ("goodfellow", "all")):
        asked = FEW | {"variant": variant, "population": population}
        measured = analyze_invariance("random", path, out=tmp_path / variant / population, **asked, **options)
        results = measured["random"]
        for name, place in places.items():
            arguments = {"top_k": 5, "population": population}
            if variant == "class":
                expected = class_invariance(features, versions[:, place], labels, **arguments)
            else:
                expected = firing_invariance(features, versions[:, place], **arguments)
            # Rounding may move a value across a threshold: one version in so many.
            assert results[f"invariance_{name}"] == pytest.approx(expected.score, abs=0.02 * expected.ceiling)
            details = results["details"][name]
            assert (details["versions"], details["unchanged_versions"]) == (expected.versions, 0)
            assert details["ceiling"] == expected.ceiling
        scores = [results[f"invariance_{name}"] for name in places]
        assert results["invariance_mean"] == pytest.approx(np.mean(scores))
    assert results["invariance_unchanged"] == pytest.approx(results["invariance_ceiling"])  # of goodfellow


def test_what_is_written(options, checkpoint, digits, tmp_path):
    path, out = digits / "motion/test.csv", tmp_path / "out"
    measured = analyze_invariance(["random", checkpoint], path, out=out, **FEW, **options)
    assert list(measured) == ["random", "trained"]
    page = (out / "index.html").read_text()
    for name, results in measured.items():
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
        assert f"{results['invariance_blur']:.2f}" in page
    assert measured["trained"]["checkpoint"]["step"] == 2 and measured["random"]["checkpoint"]["path"] == "random"
    lines = measured.text.splitlines()
    assert lines[0] == "16 videos; 1 clip x 1 crop of 24²; 16 clips; the 5 best of 64 units"
    assert lines[1].split() == ["Invariance", "score", "random", "trained"]
    rows = {"unchanged": "unchanged", "partly covered (occlusion)": "occlusion", "blurred (blur)": "blur"}
    rows |= {"reversed (reverse)": "reverse", "mean of the changes": "mean", "shuffled labels": "shuffled"}
    for line, (title, name) in zip(lines[2:8], rows.items(), strict=True):
        values = [f"{results[f'invariance_{name}']:.2f}" for results in measured.values()]
        assert line.startswith(title) and line.split()[-2:] == values


def test_the_command(digits, tmp_path, capsys):
    words = [str(digits / "motion/test.csv"), "--checkpoint", "random", "--cfg", str(TOY), *TOLD, "--top-k", "4"]
    words += ["--transformations", "instance", "colour", "--boxes", str(digits / "boxes.csv"), "--size", "24"]
    cli.run("analyze", ["invariance", *words, "--workers", "0", "--device", "cpu", "--out", str(tmp_path / "out")])
    lines = capsys.readouterr().out.splitlines()
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert "; the 4 best of" in lines[0] and lines[-1] == f"{tmp_path}/out/index.html"
    assert [line.split()[-1] for line in lines[3:5]] == [
        f"{results[f'invariance_{name}']:.2f}" for name in ("colour", "instance")
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--transformations", "colur"], "no transformation 'colur' (did you mean 'colour'?)"),
        (["--variant", "other"], "invalid choice: 'other'"),
        (["--top-k", "0"], "0 is less than 1"),
        (["--boxes", "nowhere.csv"], "nowhere.csv"),
        (["--crops", "2"], "--crops 2: only the central square is measured"),
    ],
)
def test_mistakes_are_one_line(words, message, digits, tmp_path, capsys):
    arguments = [f"{digits}/motion/test.csv", "--checkpoint", "random", "--cfg", str(TOY), *TOLD]
    with pytest.raises(SystemExit) as end:
        cli.guarded(lambda: cli.run("analyze", ["invariance", *arguments, "--out", f"{tmp_path}/out", *words]))
    printed = capsys.readouterr()
    assert end.value.code == 2 and message in printed.err.splitlines()[-1] and not printed.out
    assert not (tmp_path / "out").exists()


def test_left_out_transformations_are_named(options, digits, tmp_path):
    path, sampler = digits / "motion/test.csv", "{name: random, frames: 1, sampling_rate: 1}"
    one = options | {"settings": (*TOLD, f"data.sampler={sampler}")}
    results = measure("random", path, tmp_path / "out", top_k=5, **one)
    assert set(results["left_out"]) == {"shift", "speed", "reverse", "instance"}
    assert "invariance_reverse" not in results and "invariance_gap" in results
    notes = invariance_section(Evidence({"random": results})).notes
    assert "not measured: speed (a clip of one frame has no motion)" in notes
    asked = {"transformations": ("instance", "gap"), "top_k": 5, "boxes": digits / "boxes.csv"}
    results = measure("random", path, tmp_path / "boxes", **asked, **options)
    assert results["details"]["instance"]["versions"] == 48 and "invariance_instance" in results
    # Of 24 frames no clip has room for most of the gaps.
    gap = results["details"].get("gap", {"unchanged_versions": 64})
    assert gap["unchanged_versions"] >= 48


@pytest.mark.parametrize(
    ("model", "labels", "asked", "error", "message"),
    [
        ("random", None, {}, DataError, r'variant="class" needs two labelled classes .*variant="goodfellow"'),
        ("random", 0, {}, DataError, "two labelled classes"),
        ("random", 1, {"top_k": 4000}, ConfigError, "top_k=4000 is more than the 64 units of random"),
        ("random", 1, {"crops": 3}, ConfigError, "crops=3: only the central square is measured"),
        (["random", "random"], 1, {}, ConfigError, "names a network twice"),
        ("trained", 1, {}, ConfigError, "brings its own config: leave out cfg=FILE"),
        ("random", 1, {"transformations": ("instance",)}, ConfigError, r"instance: it needs boxes=FILE"),
    ],
)
def test_what_is_refused(options, checkpoint, digits, tmp_path, model, labels, asked, error, message):
    listed = read_list(digits / "motion/test.csv")
    header, end = ("path", "") if labels is None else ("path,label", f",{labels}")
    rows = [f"{name}{end if n else end.replace('1', '0')}" for n, name in enumerate(listed.names)]
    (tmp_path / "list.csv").write_text("\n".join([header, *rows]) + "\n")
    with pytest.raises(error, match=message):
        network = checkpoint if model == "trained" else model
        asked = {**FEW, **asked, **options, "root": listed.root}
        analyze_invariance(network, tmp_path / "list.csv", out=tmp_path / "out", **asked)
    assert not [*(tmp_path / "out").glob("[!.]*")]


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
    section = invariance_section(Evidence({"random": found}))
    assert section.setting.endswith("; mean ± standard deviation of 2 splits; the 5 best of 64 units")
    cells = {row[0]: row[1] for row in section.quantities[0].table}
    assert (
        cells["blurred (blur)"] == f"{found['mean']['invariance_blur']:.2f} ± {found['spread']['invariance_blur']:.2f}"
    )
    with pytest.raises(ConfigError, match="all splits would be the same"):
        measure("random", path, tmp_path / "same", splits=(3, 4), **FEW, **options)


def test_seeds_of_an_untrained_network_beside_trained_ones(options, checkpoint, digits, tmp_path):
    """The config and its seed are for the untrained one; the others bring their own."""
    arguments = {**FEW, **options, "settings": (*TOLD, "seed={split}")}
    path, names = digits / "motion/test.csv", [tmp_path / f"trained{n}.pt" for n in (3, 4)]
    for name in names:
        shutil.copy(checkpoint, name)
    several = [str(tmp_path / "trained{split}.pt"), "random"]
    results = analyze_invariance(several, path, out=tmp_path / "out", splits=(3, 4), **arguments)
    trained, untrained = results.values()
    assert trained["spread"]["invariance_blur"] == 0 and untrained["spread"]["invariance_blur"] > 0
    own = {name: value for name, value in arguments.items() if name not in ("cfg", "settings")}
    for name, value in measure(checkpoint, path, tmp_path / "1", **own).items():
        assert name not in trained["mean"] or trained["mean"][name] == value
    with pytest.raises(ConfigError, match="all splits would be the same"):
        analyze_invariance([checkpoint, "random"], path, out=tmp_path / "same", splits=(3, 4), **arguments)
    with pytest.raises(ConfigError, match=r"name the splits or seeds: splits=N"):
        measure("random", path, tmp_path / "unsplit", **arguments)


def test_there_is_no_mean_of_different_transformations():
    def results(**scores):
        numbers = {f"invariance_{name}": score for name, score in scores.items()}
        options = {"measure": {"top_k": 1}, "num_units": 2, "num_videos": 3, "num_samples": 3, "missing": []}
        protocol = {"clips": 1, "crops": 1, "size": 32 if "reverse" in scores else 24}
        return {**numbers, "invariance_ceiling": 2.0, "left_out": {}, "protocol": protocol, **options}

    clips = results(blur=1.5, reverse=1.9, mean=1.7, unchanged=2, shuffled=1)
    frames = results(blur=1.5, mean=1.5, unchanged=2, shuffled=1) | {"left_out": {"reverse": "one frame"}}
    section = invariance_section(Evidence({"clips": clips, "frames": frames}))
    assert "; clips 1 clip x 1 crop of 32², frames 1 clip x 1 crop of 24²; " in section.setting  # of different tests
    assert [*section.quantities[0].rows] == ["unchanged", "blurred (blur)", "reversed (reverse)", "shuffled labels"]
    assert section.notes[1:] == [
        "not measured of frames: reverse (one frame)",
        "no mean: the networks were not measured with the same transformations",
    ]
    assert "mean of the changes" in invariance_section(Evidence({"a": clips, "b": clips})).quantities[0].rows


def test_choice_of_transformations():
    every, left_out = choose_transformations(None, 8, boxes=True)
    assert every == tuple(TRANSFORMATIONS) and not left_out
    chosen, left_out = choose_transformations(None, 1, boxes=False)
    assert set(left_out) == {"shift", "speed", "reverse", "instance"} and "gap" in chosen
    assert choose_transformations(("blur", "occlusion"), 8, False)[0] == ("occlusion", "blur")
    with pytest.raises(ConfigError, match=r"no transformation is left .*speed: a clip of one frame"):
        choose_transformations(("speed",), 1, False)


# What units reach by chance: labels that are exchanged between recordings ------------------------------------

LABELS = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 1])
GROUPS = np.array([0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8])  # three of two videos, the others of one
VIDEOS = SimpleNamespace(labels=LABELS)


def clips(x):
    return TrajectoryFeatures(x, x[:, None], np.ones((len(x), 1), bool), np.arange(len(x)))


def test_recordings_exchange_their_labels(monkeypatch):
    seen = []

    def scored(x, versions, labels, **options):
        seen.append(labels.copy())
        return class_invariance(x, versions, labels, **options)

    monkeypatch.setattr(module, "class_invariance", scored)
    x = generator(0).normal(size=(12, 5)).astype(np.float32)
    scores = shuffled_scores(clips(x), VIDEOS, Invariance(top_k=2), GROUPS, 20)
    assert len(scores) == 20 and len({*scores}) > 10
    for labels, score in zip(seen, scores, strict=True):
        assert np.bincount(labels).tolist() == [4, 5, 3]  # classes keep their sizes
        pairs = [tuple(labels[group == GROUPS]) for group in (0, 2, 5)]
        assert sorted(pairs) == [(0, 0), (1, 1), (2, 2)]  # recordings stay together
        expected = class_invariance(x, x[:, None], labels, top_k=2, population="samples").score
        assert score == pytest.approx(expected)
    assert any(tuple(labels) != tuple(LABELS) for labels in seen)
    assert scores == shuffled_scores(clips(x), VIDEOS, Invariance(top_k=2), GROUPS, 20)


def test_units_that_know_the_classes_are_above_all_of_them():
    rng = generator(1)
    x = (np.eye(3)[LABELS] + 0.2 * rng.random((12, 3))).astype(np.float32)
    scores = shuffled_scores(clips(x), VIDEOS, Invariance(top_k=1), np.arange(12), 39)
    own = class_invariance(x, x[:, None], LABELS, top_k=1, population="samples").score
    assert max(scores) < own == pytest.approx(np.mean([3, 12 / 5, 4]))


# Moved clips: their frames, and the unchanged clip where the video is too short -------------------------------

SETTINGS = ClipSettings(frames=4, sampling_rate=3)  # spans 10 frames


def moves(name, num_frames, settings=SETTINGS, clips=1):
    """The numbers of a clip and those of its versions; None: the clip itself came back."""
    meta = VideoMeta(num_frames, 25.0, 8, 8)
    sampler = Uniform(Uniform.Config(**settings.model_dump(), clips=clips))
    distances = []
    for clip in sampler(meta, ()):
        moved = [MOVES[name].apply(settings, meta, clip, amount) for amount in MOVES[name].amounts]
        for other in moved:
            assert other is clip or (other.indices.min() >= 0 and other.indices.max() < num_frames)
        distances.append(
            (
                clip.indices.tolist(),
                [None if np.array_equal(m.indices, clip.indices) else m.indices.tolist() for m in moved],
            )
        )
    return distances if clips > 1 else distances[0]


def test_shift_moves_by_fractions_of_the_span():
    own, moved = moves("shift", 30)
    assert own == [10, 13, 16, 19]
    assert [m[0] - 10 for m in moved] == [-5, -2, 2, 5]  # a quarter of 10 is rounded to the even 2
    assert all(np.diff(m).tolist() == [3, 3, 3] for m in moved)
    assert moves("shift", 14)[1] == [None, [0, 3, 6, 9], [4, 7, 10, 13], None]
    assert moves("shift", 9)[1] == [None] * 4  # shorter than a clip: it is played in a loop


def test_gap_counts_from_the_end_of_the_clip():
    own, moved = moves("gap", 60)
    assert own == [25, 28, 31, 34]
    assert moved == [[39, 42, 45, 48], [44, 47, 50, 53], None, None]  # 34 + 20 + 9 > 59 and 25 - 20 - 9 < 0
    first, last = moves("gap", 60, clips=2)
    assert first[1][3] == [49, 52, 55, 58] and last[1][3] == [1, 4, 7, 10]  # 40 after 9, 40 before 50
    one = ClipSettings(frames=1, sampling_rate=1)
    own, moved = moves("gap", 90, one)
    assert [m[0] - own[0] for m in moved] == [5, 10, 20, 40]


def test_speed_stretches_the_span_about_its_centre():
    own, moved = moves("speed", 40)
    assert own == [15, 18, 21, 24]
    assert [m[-1] - m[0] + 1 for m in moved] == [5, 8, 15, 20]  # 7.5 is rounded to the even 8
    assert all(abs((m[0] + m[-1]) / 2 - 19.5) <= 0.5 for m in moved)
    assert moves("speed", 19)[1][3] is None and moves("speed", 9)[1] == [None] * 4
    seconds = ClipSettings(frames=4, seconds=0.4)
    assert moves("speed", 40, seconds) == moves("speed", 40)
    at_start = moves("speed", 40, clips=2)[0]
    assert at_start[1][3] == [0, 6, 12, 19]  # moved inside


def test_reverse():
    assert moves("reverse", 30) == ([10, 13, 16, 19], [[19, 16, 13, 10]])


def test_moves_that_need_motion():
    assert [name for name, move in MOVES.items() if move.needs_motion] == ["shift", "speed", "reverse"]
    for name in ("shift", "reverse"):
        moved = moves(name, 50, ClipSettings(frames=1, sampling_rate=1))[1]
        assert moved == [None] * len(MOVES[name].amounts)
