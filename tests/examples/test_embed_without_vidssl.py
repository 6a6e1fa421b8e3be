"""examples/embed_without_vidssl.py: its frames, crops and features are vidssl's, by the metadata of the file alone."""

import json
import runpy
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import vidssl
from vidssl.apps.export import describe_clips_of_graph
from vidssl.data.clip_samplers import ClipSettings, Uniform
from vidssl.models import build_backbone
from vidssl.transforms.crops import uniform_crops

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "embed_without_vidssl.py"))
VARIABLE = np.cumsum([40] * 20 + [125] * 10 + [16] * 30 + [900] + [40] * 12)  # milliseconds


@pytest.fixture(scope="module")
def videos(tmp_path_factory, write_video):
    """A video with B-frames, one of a variable rate, a still, and one of nine frames."""
    folder, pixels = tmp_path_factory.mktemp("videos"), np.random.RandomState(0).randint(0, 256, (80, 72, 96, 3))
    pixels = pixels.astype(np.uint8)
    write_video(folder / "regular.mp4", pixels, fps=Fraction(30000, 1001), b_frames=2)
    write_video(folder / "variable.mkv", pixels[: len(VARIABLE)], ticks=VARIABLE.tolist(), base=Fraction(1, 1000))
    assert vidssl.open_video(folder / "variable.mkv").meta.times is not None
    write_video(folder / "still.mp4", pixels[:1])
    write_video(folder / "small.mp4", pixels[:9, :, :50])
    return folder


@pytest.mark.parametrize(
    "clip",
    [
        {"seconds": 1.28},
        {"seconds": 2.7},
        {"seconds": 60.0},
        {"seconds": 60.0, "short_video": "hold"},
        {"seconds": "whole"},
        {"sampling_rate": 2},
        {"sampling_rate": 13, "short_video": "hold"},
        {"sampling_rate": 4, "target_fps": 30.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("clips", [1, 4])
def test_frames_are_those_of_the_sampler(clip, clips, videos):
    for count in (1, 4, 8):
        settings = ClipSettings(frames=count, **clip)
        test = vidssl.TestClips(clip=settings, clips=clips, size=32)
        about = json.loads(json.dumps(describe_clips_of_graph(test, build_backbone("resnet3d18", width=4))))
        for path in sorted(videos.iterdir()):
            sampler = Uniform(Uniform.Config(**dict(settings), clips=clips))
            expected = [clip.indices.tolist() for clip in sampler(vidssl.open_video(path).meta, [])]
            assert EXAMPLE["choose_frames"](str(path), about).tolist() == expected, path


@pytest.mark.parametrize("shape", [(72, 96), (97, 61), (64, 64), (240, 321), (64, 130), (200, 128)])
def test_crops_are_those_of_vidssl(shape):
    image = np.random.RandomState(0).randint(0, 256, (*shape, 3)).astype(np.uint8)
    frame = SimpleNamespace(to_ndarray=lambda format: image, side_data={})
    for short, crops in ((32, 1), (40, 3), (64, 2), (47, 1)):
        views = uniform_crops(image.transpose(2, 0, 1)[None], 32, crops, short)
        expected = [view.frames[0].transpose(1, 2, 0) for view in views]
        np.testing.assert_array_equal(EXAMPLE["crop"](frame, 32, short, crops), expected)


@pytest.mark.long  # torch.onnx
def test_features_are_those_of_vidssl(videos, tmp_path, real):
    onnxruntime = pytest.importorskip("onnxruntime")
    vidssl.export("vidssl-small", to="onnx", out=tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    about = {key: json.loads(text) for key, text in session.get_modelmeta().custom_metadata_map.items()}
    names = ("containers/video_90.mov", "containers/h265_10bits.mp4", "cases/hflip.mp4", "cases/vfr.mp4")
    paths = [*sorted(videos.iterdir()), *(real / name for name in names)]
    expected = vidssl.extract("vidssl-small", paths, workers=0).x.numpy()
    x = np.stack([EXAMPLE["embed"](session, about, str(path)) for path in paths])
    np.testing.assert_allclose(x, expected, atol=1e-5)
