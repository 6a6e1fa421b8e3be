"""The command show: the views are those of training, and the page and its numbers are right."""

import json
import re
import runpy
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch

import vidssl
from vidssl import cli
from vidssl.apps.show import show_clips, show_run, show_views
from vidssl.base.errors import ConfigError
from vidssl.base.types import Tracks, VideoRecord
from vidssl.data.loader import eval_loader, keys_of_step
from vidssl.data.track_files import tracks_file, write_tracks
from vidssl.data.video_list import read_list
from vidssl.engine import run_setup as engine
from vidssl.engine.run_config import load_run
from vidssl.jobs.load_network import load_subject

TOYS = runpy.run_path(str(Path(__file__).parents[2] / "toys.py"))


@pytest.fixture
def toy(digits, tmp_path):
    """Bind a toy config with settings."""

    def bind(name, *settings):
        placed = TOYS["placed"](name, digits, tmp_path / "run")
        return load_run(TOYS["CONFIGS"] / f"{name}.yaml", [*placed, *settings])

    return bind


def trained_on(run, epochs, monkeypatch):
    """The samples that training would use: (epoch, row) to views, the row used, and boxes."""
    monkeypatch.setattr(engine, "Feed", lambda loader, *_: loader)
    collected = {}
    with ExitStack() as stack:
        training = engine.Training(run, None, stack)
        if training.tracks.due(0):
            training.tracks.make(0, training.method.target_backbone, training.device, training.request)
        loader = training.new_feed()
        for keys, batch in zip(loader.batches, loader, strict=True):
            for n, key in enumerate(keys):
                boxes = None if batch.boxes is None else batch.boxes[n].numpy()
                collected[key] = [view[n].numpy() for view in batch.views], int(batch.index[n]), boxes
            if all(epoch >= epochs for epoch, _ in keys):
                break
            del batch
    return collected


def assert_trained_on(samples, trained):
    assert samples
    for sample in samples:
        views, used, boxes = trained[sample.epoch, sample.row]
        assert sample.used == used and len(sample.views) == len(views)
        for n, (view, other) in enumerate(zip(sample.views, views, strict=True)):
            assert np.array_equal(view.frames, other)
            assert (view.box is None) == (boxes is None) and (boxes is None or np.array_equal(view.box, boxes[n]))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("moco_four_clips", ["data.workers=2"]),  # RGB difference
        ("cmc", ["seed=5"]),
    ],
)
def test_views_are_those_of_training(toy, monkeypatch, name, settings):
    run = toy(name, "steps=20", "data.moving_digits.train=40", *settings)
    samples = [sample for each in show_views(run, videos=6, draws=2) for sample in each]
    assert [sample.epoch for sample in samples] == [0, 1] * 6
    trained = trained_on(run, 2, monkeypatch)
    assert [sample.row for sample in samples[::2]] == [row for _, row in [*trained][:6]]  # the first ones of training
    assert_trained_on(samples, trained)
    differences = any(view.difference for sample in samples for view in sample.views)
    assert differences == any(view.difference > 0 for view in run.data.views)


def fixed(root, **data):
    """Settings that train on a list without augmentation, in batches of 2."""
    views = "[{name: center_crop, size: 32}, {name: center_crop, size: 32}]"
    chosen = {"train": root / "list.csv", "moving_digits": "null", "views": views, **data}
    return ["batch_size=2", "steps=6", *(f"data.{name}={value}" for name, value in chosen.items())]


def test_indices_are_the_frames_of_the_views(toy, tmp_path, write_video, number_of, numbered):
    """In videos that show the number of each frame, of a span that starts at frame 20."""
    frames = np.repeat(numbered(80), 2, axis=1)  # 64 x 64
    for name in "abc":
        write_video(tmp_path / f"{name}.mp4", frames)
    (tmp_path / "list.csv").write_text("path,start,end\na.mp4,0.8,2.4\nb.mp4,0.8,2.4\nc.mp4,0.8,2.4\n")
    sampler = "{name: random, frames: 5, sampling_rate: 3, reverse: 0.5}"
    run = toy(
        "sce", *fixed(tmp_path, sampler=sampler, views="[{name: center_crop, size: 64}, {name: center_crop, size: 64}]")
    )
    shown = [sample for each in show_views(run, videos=9, draws=4) for sample in each]
    assert len(shown) == 12
    for sample in shown:
        assert (sample.offset, sample.meta.num_frames) == (20, 40)
        for view in sample.views:
            assert number_of(view.frames[:, :, 16:]) == view.indices.tolist()
            assert view.first == min(view.indices) and view.last == max(view.indices) and view.last - view.first == 12
    reverse = {bool(view.indices[0] > view.indices[-1]) for sample in shown for view in sample.views}
    assert reverse == {False, True}
    path = show_run(run, tmp_path / "out", 3, 2)
    page = path.read_text()
    assert page.count("reversed") >= 1 and "a span of its file" in page
    assert page.count(">0.80 s<") == page.count(">2.40 s<") == 6  # the ends of the time lines
    bars = re.findall(
        r'aria-label="clip \d: ([\d.]+) to ([\d.]+) s">\s*<rect x="([\d.]+)" y="0" width="([\d.]+)"', page
    )
    assert len(bars) == 12 and page.count("<line ") == 60
    for first, end, x, width in np.array(bars, float):
        assert end - first == pytest.approx(13 / 25, abs=0.006)
        assert x == pytest.approx(1000 * (first - 0.8) / 1.6, abs=7) and width == pytest.approx(1000 * 13 / 40, abs=0.1)


def test_boxes_of_tracks(toy, tmp_path, monkeypatch, write_video):
    lines = ["path"]
    for n in range(4):
        frames = np.zeros((40, 64, 64, 3), np.uint8)
        corners = np.stack([10 + np.arange(40) / 2, np.full(40, 20.0)], axis=1)
        for image, (x, y) in zip(frames, corners.astype(int), strict=True):
            image[y : y + 20, x : x + 20] = 250
        write_video(tmp_path / f"{n}.mp4", frames)
        boxes = np.concatenate([corners, corners + 20], axis=1).astype(np.float32)
        tracks = Tracks(np.arange(40), boxes, np.ones(40, np.float32), np.zeros(40, np.int64))
        write_tracks(tracks_file(tmp_path / "found", f"{n}.mp4", VideoRecord(f"{n}.mp4")), tracks, {})
        lines.append(f"{n}.mp4")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    views = "[{name: weak, size: 32, area: [0.3, 0.9]}, {name: weak, size: 32, area: [0.3, 0.9]}]"
    options = fixed(tmp_path, views=views)
    run = toy("frame_invariance_tracks", *options, f"tracks={{folder: {tmp_path / 'found'}}}")
    samples = [sample for each in show_views(run, videos=4, draws=2) for sample in each]
    assert_trained_on(samples, trained_on(run, 2, monkeypatch))
    seen = 0
    for sample in samples:
        for view in sample.views:
            left, top, right, bottom = np.clip(view.box, 0, 32).round().astype(int)
            if tuple(view.box) != (0, 0, 32, 32):
                seen += 1
                assert view.frames[0, 0, top + 2 : bottom - 2, left + 2 : right - 2].mean() > 200  # the square
    page = show_run(run, tmp_path / "out", 4, 2).read_text()
    assert page.count('class="box"') == seen > 0
    assert page.count("no common track") == 16 - seen


def test_tracks_that_the_run_makes(toy, digits, tmp_path, monkeypatch):
    """Those of the first step, by one of two streams; one of the videos is broken, and replaced by the next."""
    listed = vidssl.read_input(digits / "motion/train.csv")
    paths = [record.path for record in listed.records][:9]
    paths[3] = str(tmp_path / "broken.mp4")
    Path(paths[3]).write_bytes(b"no video")
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(paths))
    data = ["data.moving_digits=null", f"data.train={tmp_path / 'list.csv'}", "data.allow_external=true"]
    tracks = toy("frame_invariance_tracks").model_dump(mode="json", include={"tracks"})["tracks"]
    sampler = "{name: tracked_pair, frames: 3, sampling_rate: 1, min_gap: 12, untracked: pair}"
    data += [f"tracks={json.dumps(tracks)}", f"data.sampler={sampler}"]
    run = toy("two_streams", *data, "data.max_broken=0.5", "batch_size=2", "steps=20")
    rows = [row for _, row in keys_of_step(0, 9, 9, run.seed)]
    shown = rows.index(3) + 1  # the broken one is the last
    assert shown > 2 and 4 not in rows[:shown]
    state = torch.get_rng_state()
    samples = [sample for each in show_views(run, videos=shown, draws=2) for sample in each]
    assert torch.equal(torch.get_rng_state(), state) and not Path(run.output).exists()
    assert [sample.used for sample in samples[-2:]] == [4, 4]
    assert_trained_on(samples, trained_on(run, 2, monkeypatch))
    assert sum(tuple(view.box) != (0, 0, 32, 32) for sample in samples for view in sample.views) > shown
    page = show_run(run, tmp_path / "out", shown, 1).read_text()
    assert "those of the first step; training renews them every 1.5 epochs" in page and 'class="box"' in page


def test_broken_videos_are_named(toy, tmp_path, monkeypatch, write_video, numbered, caplog):
    for n in range(4):
        write_video(tmp_path / f"{n}.mp4", numbered(40))
    (tmp_path / "2.mp4").write_bytes(b"<script>no video")
    (tmp_path / "list.csv").write_text("path\n" + "".join(f"{n}.mp4\n" for n in (*range(4), "missing<b>")))
    run = toy("sce", *fixed(tmp_path, max_broken=0.5))
    samples = [sample for each in show_views(run, videos=5, draws=2) for sample in each]
    assert {(sample.row, sample.used) for sample in samples} == {(0, 0), (1, 1), (2, 3), (3, 3), (4, 0)}
    assert all("2.mp4" in sample.replaced[0][1] for sample in samples if sample.row == 2)
    assert_trained_on(samples, trained_on(run, 2, monkeypatch))
    page = show_run(run, tmp_path / "out", 5, 2).read_text()
    assert page.count("training uses 3.mp4 instead") == page.count("training uses 0.mp4 instead") == 2
    assert "missing&lt;b&gt;.mp4: No such file" in page and "<b>.mp4" not in page
    run = toy("sce", *fixed(tmp_path, max_broken=0))
    page = show_run(run, tmp_path / "out", 5, 1).read_text()
    assert page.count("training stops here") == 2 and page.count('<figure class="c') == 6


def test_the_clips_of_a_network(tmp_path, write_video, numbered, number_of):
    """They are spread over each video; one that cannot be read is named, and has none."""
    for n in range(2):
        write_video(tmp_path / f"in/{n}.mp4", np.repeat(numbered(80), 2, axis=1))  # 64 x 64
    (tmp_path / "in/2.mp4").write_bytes(b"no video")
    options = {"cfg": "toy/sce", "settings": ["evaluate.clips=3", "evaluate.size=64", "data.workers=0"]}
    subject = load_subject("random", options)
    shown = [*show_clips(subject, vidssl.read_input(tmp_path / "in"), videos=5)]
    assert [(len(sample.views), len(sample.replaced)) for sample in shown] == [(3, 0), (3, 0), (0, 1)]
    for sample in shown[:2]:
        for view in sample.views:
            assert number_of(view.frames[:, :, 16:]) == view.indices.tolist()
        assert sample.views[0].first == 0 and sample.views[-1].last == 79
    (batch,) = eval_loader(subject.test.dataset(vidssl.read_input(tmp_path / "in/0.mp4")), 1, 0)  # what it encodes
    encoded = [view.numpy()[0] for view in batch.views]
    assert all(np.array_equal(view.frames, other) for view, other in zip(shown[0].views, encoded, strict=True))
    settings = [*options["settings"], "evaluate.crops=1"]
    page = vidssl.show("toy/sce", *settings, model="random", videos=tmp_path / "in", out=tmp_path / "out").read_text()
    assert page.count('<figure class="c') == 6 and "3 of 4 frames" in page and "training" not in page
    assert re.search(r'class="notice">[^<]*2\.mp4: not a video', page)


def test_a_config_or_a_network_is_needed(digits, tmp_path):
    with pytest.raises(ConfigError, match=r"give cfg=FILE or model=NAME$"):
        vidssl.show(out=tmp_path / "out")
    with pytest.raises(ConfigError, match="give a list, a folder or files"):
        vidssl.show(model="vidssl-small", out=tmp_path / "out")


def test_the_command(digits, tmp_path, capsys):
    """Of a folder, whose list is written beside the page; and a page that loads nothing."""
    words = [str(digits / "videos/test"), f"output={tmp_path / 'run'}", "data.workers=0", "seed=3"]
    cli.run(
        "show", ["--cfg", "toy/sce", *words, "--limit", "2", "--draws", "2", "--out", str(tmp_path / "a"), "--quiet"]
    )
    assert capsys.readouterr().out == f"{tmp_path}/a/index.html\n"
    assert not (tmp_path / "run").exists() and len(read_list(tmp_path / "a/videos/train.csv").records) == 16
    page = (tmp_path / "a/index.html").read_text()
    assert page.count('<li class="video card">') == 2 and page.count("<h3>Epoch 1</h3>") == 2
    assert "Views of sce" in page and '<h3>recipe 1</h3><pre tabindex="0">' in page and "\nname: strong_beta\n" in page
    assert not re.search(r"(src|href|url)\s*[=(]\s*[\"']?(https?:|//|file:)", page)
    assert not (tmp_path / "a/views.png").exists()
    with pytest.raises(ConfigError, match="one input is possible, got a and b: "):
        cli.run("show", ["--cfg", "toy/sce", "a", "b", "--out", str(tmp_path / "b")])
