"""The views of a video: which versions they are, that they depend on seed and row only, and how they are averaged."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vidssl.apps.analysis.corrupted_clips import (
    COMPRESSIONS,
    ROBUSTNESS,
    TIME_CORRUPTIONS,
    CorruptedClips,
    choose_corruptions,
    compress,
    compressed,
)
from vidssl.base.errors import ConfigError
from vidssl.base.types import VideoMeta
from vidssl.data.clip_samplers import Clip, ClipSettings, Uniform
from vidssl.data.video_list import read_list
from vidssl.jobs.grad_cam_of_videos import with_versions
from vidssl.transforms import center_crop
from vidssl.transforms.gamma_and_shuffles import gamma
from vidssl.video.reader import DecodeSettings, Video, open_video

CLIP = ClipSettings(frames=4, sampling_rate=3)


@pytest.fixture(scope="module")
def videos(digits):
    return read_list(digits / "motion/test.csv")


def views(videos, names, row=0, severities=(1, 2, 3, 4, 5), clips=1, seed=0):
    """The frames of a sample by version, of the first clip."""
    settings = CorruptedClips(CLIP, clips, 32, tuple(name for name in ROBUSTNESS if name in names), severities)
    sample = settings.dataset(videos, DecodeSettings(), seed)[0, row]
    features = (torch.tensor([[n]]).float() for n in range(len(sample.views)))
    batch = SimpleNamespace(index=[row])
    place = settings.average(batch, features)[0, :, 0]  # the mean position of the views of each version
    found = dict(zip(settings.versions, place.tolist(), strict=True))
    return found if clips > 1 else {version: sample.views[int(n)] for version, n in found.items()}


def test_versions_do_not_depend_on_what_else_is_measured(videos):
    everything = views(videos, ROBUSTNESS)
    assert len(everything) == 1 + 5 * len(ROBUSTNESS)
    for names in (["rain"], ["shuffle", "drop"], ["h264_rate"], ["local_shuffle", "freeze"]):
        for version, frames in views(videos, names, severities=(2, 5)).items():
            np.testing.assert_array_equal(frames, everything[version], str(version))


def test_compression_is_deterministic(videos):
    """Whatever lies in the memory that the encoder gets."""
    first = views(videos, COMPRESSIONS)
    for n in range(8):
        held = [bytes([n + 1]) * size for size in range(1000, 300_000, 13_000 + n)]
        again = views(videos, COMPRESSIONS)
        del held
        for version, frames in first.items():
            np.testing.assert_array_equal(again[version], frames, str(version))


def test_draws_depend_on_seed_and_row(videos):
    names = ["gaussian_noise", "global_shuffle", "shuffle"]
    first, again, other_seed = (views(videos, names, seed=seed) for seed in (0, 0, 1))
    for version in list(first)[1:]:
        assert np.array_equal(first[version], again[version])
        assert (first[version] != other_seed[version]).any() or version == ("shuffle", 1)
    noise = [views(videos, names, row=row) for row in (0, 1)]
    added = [one["gaussian_noise", 1].astype(int) - one["", 0] for one in noise]
    assert (added[0] != added[1]).mean() > 0.5


def test_views_are_the_corruptions_of_the_central_square(videos):
    found = views(videos, ["gamma_dark", "reverse"])
    with open_video(videos.records[0].path) as video:
        (clip,) = Uniform(Uniform.Config(**dict(CLIP), clips=1))(video.meta, ())
        square = center_crop(video.frames(clip.indices), 32).frames
    np.testing.assert_array_equal(found["", 0], square)
    np.testing.assert_array_equal(found["gamma_dark", 5], gamma(square, 2.5))
    np.testing.assert_array_equal(found["reverse", 5], square[::-1])


def test_features_are_averaged_over_the_clips(videos):
    """Views: two squares with their gamma, then the reversed versions of both clips."""
    found = views(videos, ["gamma_dark", "reverse"], severities=(5,), clips=2)
    assert found == {("", 0): (0 + 2) / 2, ("gamma_dark", 5): (1 + 3) / 2, ("reverse", 5): (4 + 5) / 2}


def test_a_video_is_decoded_once(videos, monkeypatch):
    opened, decoded = [], []
    original = Video.frames
    monkeypatch.setattr(Video, "frames", lambda self, indices: decoded.append(len(indices)) or original(self, indices))
    before = DecodeSettings.open
    monkeypatch.setattr(DecodeSettings, "open", lambda self, record: opened.append(record) or before(self, record))
    views(videos, [name for name in ROBUSTNESS if not name.startswith("h264")])
    assert len(opened) == len(decoded) == 1


def test_compressed_copies_are_frames_of_one_video(write_video, numbered, number_of, tmp_path):
    path = write_video(tmp_path / "a.mp4", numbered(70))
    record = SimpleNamespace(path=str(path), fps=None)
    clip = Clip(np.array([40, 3, 69]), 3, 69)
    copies = [compressed(clip, "h264_crf", amount) for amount in (23, 37)]
    with with_versions(DecodeSettings(), compress).open(record) as video:
        frames = video.frames(np.concatenate([clip.indices, *(copy.indices for copy in copies)]))
        np.testing.assert_array_equal(frames[:3], open_video(path).frames(clip.indices))
    assert number_of(frames) == [40, 3, 69] * 3
    errors = [np.abs(frames[:3].astype(int) - frames[n : n + 3]).mean() for n in (3, 6)]
    assert 0 < errors[0] < errors[1]


def test_what_does_not_apply_is_left_out():
    names, left_out = choose_corruptions(None, 1, 31)
    assert {*left_out} == {*TIME_CORRUPTIONS, "global_shuffle", "local_shuffle"} and not {*names} & {*left_out}
    assert choose_corruptions(["rain", "fog"], 8, 32) == (("fog", "rain"), {})
    with pytest.raises(ConfigError, match=r"no corruption 'freze' \(did you mean 'freeze'\?\)"):
        choose_corruptions(["freze"], 8, 32)
    with pytest.raises(ConfigError, match=r"no corruption is left to measure .*freeze: a clip of one frame"):
        choose_corruptions(["freeze"], 1, 32)


@pytest.mark.parametrize(("height", "width", "rate"), [(48, 48, 64_000), (256, 340, 64_000), (512, 680, 256_000)])
def test_bit_rates_grow_with_the_frame(height, width, rate):
    options = COMPRESSIONS["h264_rate"].apply(VideoMeta(10, 25.0, height, width), 64)
    assert {*options.values()} == {str(rate)}
