"""A network of two streams in the commands: features, single streams, layers, Grad-CAM, exports, tracks."""

import json
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import vidssl
from vidssl import cli
from vidssl.base.config import dump
from vidssl.base.errors import ConfigError, VidsslError
from vidssl.data.clip_samplers import ClipSettings
from vidssl.data.video_list import read_list
from vidssl.engine.run_config import load_run
from vidssl.engine.train import train
from vidssl.evaluation.features import TestClips, encode_videos, extract_features
from vidssl.jobs.grad_cam import layers_of_maps
from vidssl.jobs.load_network import load_subject
from vidssl.models import build_backbone

NAMES = ("rgb", "differences")
TRACKER = "{search: {short_side: 32}, size: 32, frames: 8, chunks: 1, min_gap: 4}"


@pytest.fixture(scope="module")
def settings(digits):
    overrides = [f"data.train={digits}/motion/train.csv", "data.moving_digits=null", "data.workers=0", "device=cpu"]
    return [*overrides, "evaluate.clips=3", "evaluate.crops=1"]


@pytest.fixture(scope="module")
def run_folder(made_once, settings):
    """A run of four steps."""
    return made_once(
        "two_streams_run",
        lambda path: train(load_run("configs/toy/two_streams.yaml", [*settings, "steps=4", f"output={path}"])),
    )


@pytest.fixture(scope="module")
def subject(run_folder):
    return load_subject(run_folder, {"device": "cpu", "workers": 0})


@pytest.fixture(scope="module")
def query(digits):
    return read_list(digits / "motion" / "test.csv")


def of_each_clip(subject, videos):
    """Features (N, clips, D) of single clips, as the networks give them."""
    columns, _ = encode_videos(
        subject.backbone,
        subject.test.dataset(videos),
        subject.test,
        subject.device,
        lambda batch, features: (torch.stack([*features], dim=1),),
        "clips",
    )
    return columns[1]


def test_features_are_averaged_over_clips_and_then_made_unit_vectors(subject, query):
    clips = of_each_clip(subject, query)
    rgb, differences = clips.mean(dim=1).split(subject.backbone.dims, dim=1)
    expected = torch.cat([normalize(rgb, dim=1), normalize(differences, dim=1)], dim=1)
    features = extract_features(subject.encoder, query, subject.test, subject.device, reverse=True)
    torch.testing.assert_close(features.x, expected)
    assert features.reverse is not None
    for part in features.reverse.split(subject.backbone.dims, dim=1):
        torch.testing.assert_close(part.norm(dim=1), torch.ones(len(part)))
    assert not torch.allclose(features.reverse, features.x, atol=1e-3)


def test_a_stream_and_a_layer_of_it(run_folder, subject, query, digits, tmp_path):
    stream = "differences"
    first = vidssl.extract(run_folder, digits / "motion" / "test.csv", device="cpu", stream=stream, workers=0)
    place = NAMES.index(stream)
    mean = of_each_clip(subject, query).mean(dim=1).split(subject.backbone.dims, dim=1)[place]
    torch.testing.assert_close(first.x, mean)
    with_stream = vidssl.extract(run_folder, query, device="cpu", stream=stream, layer="layer2", workers=0)
    without = vidssl.extract(run_folder, query, device="cpu", layer=f"{stream}.layer2", workers=0)
    assert torch.equal(with_stream.x, without.x)
    arguments = [f"{digits}/motion/test.csv", "--checkpoint", str(run_folder), "--workers", "0", "--device", "cpu"]
    cli.run("extract", [*arguments, "--quiet", "--stream", stream, "--out", str(tmp_path / "features")])
    assert np.array_equal(np.load(tmp_path / "features" / "features.npy"), first.x.numpy())
    assert json.loads((tmp_path / "features" / "meta.json").read_text())["request"]["protocol"]["stream"] == stream


def test_streams_that_are_not_there(run_folder, query, tmp_path):
    with pytest.raises(ConfigError, match="no stream 'flow': the backbone has rgb, differences"):
        vidssl.extract(run_folder, query, device="cpu", stream="flow", workers=0)
    with pytest.raises(ConfigError, match='ResNet3D18 has no streams: leave stream="rgb" out'):
        vidssl.extract("random", query, cfg="toy/sce", device="cpu", stream="rgb", workers=0)
    with pytest.raises(ConfigError, match="name a stream, such as --stream rgb"):
        arguments = [str(query.path), "--checkpoint", str(run_folder), "--workers", "0", "--device", "cpu"]
        cli.run("track", [*arguments, "--out", str(tmp_path / "tracks")])


def test_a_classifier_of_all_streams_is_not_that_of_one(settings, digits, tmp_path):
    """With one loss for both streams; with a loss for each, the classifier of a stream is its own."""
    head = "{name: supervised, classes: 8}"
    arguments = [f"{digits}/motion/test.csv", "--workers", "0", "--device", "cpu", "--quiet"]
    for name, method in (("joint", head), ("each", f"{{name: two_streams, method: {head}}}")):
        overrides = [*settings, "steps=1", f"output={tmp_path}/{name}", f"method={method}"]
        checkpoint = str(train(load_run("configs/toy/two_streams.yaml", overrides)))
        subject = load_subject(checkpoint, {"device": "cpu", "stream": "rgb"})
        assert subject.classes == (8 if name == "each" else 0)
        assert load_subject(checkpoint, {"device": "cpu"}).classes == 8
        protocol = ["--protocol", "accuracy", "--stream", "rgb", "--out", f"{tmp_path}/{name}-test"]
        if name == "each":
            cli.run("test", [*arguments, "--checkpoint", checkpoint, *protocol])
        else:
            with pytest.raises(ConfigError):
                cli.run("test", [*arguments, "--checkpoint", checkpoint, *protocol])


def test_exports_say_how_to_join_the_streams(run_folder, subject, query, tmp_path):
    cli.run("export", [str(run_folder), "--to", "folder", "--out", str(tmp_path / "exported"), "--quiet"])
    described = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert described["training"]["method"] == "two_streams of frame_invariance"
    assert described["streams"] == {"rgb": 64, "differences": 64} and described["num_features"] == 128
    assert described["test"]["pooling"].endswith(", then the part of each stream scaled to length 1")
    again = vidssl.extract(tmp_path / "exported", query, device="cpu", workers=0)
    assert torch.equal(again.x, extract_features(subject.encoder, query, subject.test, subject.device).x)
    cli.run("export", [str(run_folder), "--to", "pt2", "--out", str(tmp_path / "a.pt2"), "--quiet"])
    graph = torch.export.load(tmp_path / "a.pt2").module()
    clips = torch.randn(3, 3, 4, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(graph(clips), subject.backbone(clips))


def test_a_run_with_tracks_of_a_stream(settings, digits, tmp_path):
    """Patch pairs of both streams, whose tracks the network of one makes."""
    inner = "{name: frame_invariance, patch_weight: 0.5, queue: 16, projector: {layers: 1, out: 16}}"
    sampler = "{name: tracked_pair, frames: 1, sampling_rate: 1, min_gap: 4, untracked: pair}"
    small = tmp_path / "list.csv"
    videos = read_list(digits / "motion" / "train.csv")
    small.write_text("path\n" + "".join(f"{name}\n" for name in videos.names[:8]))
    (tmp_path / "root.txt").write_text(f"{videos.root}\n")
    streams = "{rgb: {name: resnet3d18, width: 4}, other: {name: resnet3d18, width: 4}}"
    overrides = [*settings, "steps=2", f"data.train={small}", f"output={tmp_path}/run", f"data.sampler={sampler}"]
    overrides += [
        f"method={{name: two_streams, tracks: other, method: {inner}}}",
        f"tracks={{refresh: 1.0, tracker: {TRACKER}}}",
    ]
    train(load_run("configs/toy/two_streams.yaml", [*overrides, f"backbone={{name: two_streams, streams: {streams}}}"]))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {"rgb.tracked", "other.tracked"} <= lines[-1].keys()
    assert (tmp_path / "run" / "tracks").is_dir()


def test_a_stream_without_named_layers_has_a_map_too():
    streams = {"frames": {"name": "s3d"}, "motion": {"name": "resnet3d18", "width": 4}}
    backbone = build_backbone("two_streams", streams=streams)
    test = TestClips(clip=ClipSettings(frames=4, seconds=1.0), size=32)
    subject = SimpleNamespace(encoder=backbone, test=test, device=torch.device("cpu"), name="two")
    assert layers_of_maps(subject, None) == ["frames.net.features", "motion.layer2"]
    assert backbone.layer_module("frames.net.features") is not None
    streams = {"frames": {"name": "resnet3d18", "width": 4}, "other": {"name": "convnet_lstm"}}
    subject.encoder = build_backbone("two_streams", streams=streams)  # one states no layer at all
    assert layers_of_maps(subject, None) == ["frames.layer2"]


def test_a_run_that_is_measured_on_a_layer_of_a_stream(settings, query, tmp_path):
    overrides = [*settings, "steps=1", f"output={tmp_path}/run", "evaluate.layer=rgb.layer3"]
    run = str(train(load_run("configs/toy/two_streams.yaml", overrides)))
    options = {"device": "cpu", "workers": 0}
    whole = vidssl.extract(run, query, **options).x
    for more in ({"stream": "rgb"}, {"stream": "rgb", "layer": "rgb.layer3"}, {"stream": "rgb", "layer": "layer3"}):
        assert torch.equal(vidssl.extract(run, query, **options, **more).x, whole), more
    with pytest.raises(
        ConfigError, match=r"measured on rgb.layer3, which is no layer of differences: name one of diff"
    ):
        vidssl.extract(run, query, **options, stream="differences")
    with pytest.raises(ConfigError, match="no stream 'flow': the backbone has"):
        vidssl.extract(run, query, **options, stream="flow")
    assert vidssl.extract(run, query, **options, stream="differences", layer="layer3").x.shape[1] == 32


def test_a_backbone_is_saved_with_the_config_that_it_was_built_from(subject, run_folder, tmp_path):
    one = subject.backbone.stream("differences")
    passed = {"width": 8, "zero_init": False}
    cfg = tmp_path / "one.yaml"
    cfg.write_text(dump(load_run("configs/toy/sce.yaml", [f"backbone={json.dumps({'name': 'resnet3d18', **passed})}"])))
    with pytest.raises(ConfigError, match="gives other features than the backbone resnet3d18 of the config"):
        vidssl.save_backbone(one, tmp_path / "one.safetensors", cfg=cfg)
    assert not (tmp_path / "one.safetensors").exists()
    vidssl.save_backbone(subject.backbone.stream("rgb"), tmp_path / "rgb.safetensors", cfg=cfg)
    clips = torch.rand(2, 3, 4, 32, 32)
    with torch.no_grad():
        actual = vidssl.load_backbone(tmp_path / "rgb.safetensors")(clips)
        torch.testing.assert_close(actual, subject.backbone.stream("rgb")(clips))


def test_remedies_fit_two_streams(run_folder, settings, tmp_path, caplog):
    """What cannot be loaded is not a remedy; the network of a stream is loaded as the documentation says."""
    caplog.set_level(logging.INFO)
    checkpoint, toy = f"{run_folder}/checkpoints/last.pt", "configs/toy/two_streams.yaml"
    train(load_run(toy, [*settings, "steps=1", f"output={tmp_path}/a", f"init={checkpoint}", "data.mean=[0.3]"]))
    assert "another mean and std: set 'data.mean=[0.45]'" in caplog.text
    one = [*settings, "steps=1", "backbone={name: resnet3d18, width: 8, zero_init: false}"]
    with pytest.raises(VidsslError, match="does not fit the backbone: none of 100 weights fit") as caught:
        train(load_run("configs/toy/moco.yaml", [*one, f"output={tmp_path}/b", f"init={checkpoint}"]))
    assert "partial" not in str(caught.value)
    keys = '{method.backbone.encoders.rgb.: ""}'
    train(
        load_run("configs/toy/moco.yaml", [*one, f"output={tmp_path}/c", f"init={{file: {checkpoint}, keys: {keys}}}"])
    )
    assert f"{checkpoint}: all " in caplog.text
