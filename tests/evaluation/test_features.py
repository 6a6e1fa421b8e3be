"""Extraction: the average over all crops of all clips, once for each video, and no trace left behind."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vidssl import comm
from vidssl.data.records import read_list
from vidssl.data.samplers import ClipSettings
from vidssl.data.video import open_video
from vidssl.errors import DataError
from vidssl.evaluation.features import TestClips, extract
from vidssl.models.backbones import build_backbone

CPU = torch.device("cpu")


def clips(**changes):
    settings = {
        "clip": ClipSettings(frames=3, seconds=0.4),
        "clips": 10,
        "crops": 3,
        "size": 24,
        "mean": (0.4, 0.5, 0.6),
        "std": (0.2, 0.25, 0.3),
        "batch_size": 3,
        "workers": 0,
    }
    return TestClips(**{**settings, **changes})


@pytest.fixture
def few(digits, tmp_path):
    """A list of five test videos."""
    lines = (digits / "motion/test.csv").read_text().splitlines()[:6]
    (tmp_path / "few.csv").write_text("\n".join(lines) + "\n")
    return read_list(tmp_path / "few.csv", root=digits)


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return build_backbone("resnet3d18", width=8).eval()


class Pixels(nn.Module):
    """A backbone whose features are the first frame's central pixels and the mean: easy to compute by hand."""

    dim = 4

    def forward(self, x):
        return torch.cat([x[:, :, 0, 12, 12], x.mean(dim=(1, 2, 3, 4))[:, None]], dim=1)


def test_features_are_the_average_of_thirty_crops(tmp_path, write_video):
    random = np.random.Generator(np.random.PCG64(0))
    # 24 high, so that nothing is resized; crops of 24 start at 0, 12 and 24 of 48.
    videos = []
    for n, count in enumerate((11, 25, 60)):
        noise = random.integers(0, 255, (count, 6, 12, 3)).astype(np.uint8)
        write_video(tmp_path / f"{n}.mp4", noise.repeat(4, axis=1).repeat(4, axis=2))
        videos.append(f"{n}.mp4,{n}")
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *videos]) + "\n")
    listed = read_list(tmp_path / "list.csv")
    found = extract(Pixels(), listed, clips(), CPU)
    assert found.x.shape == (3, 4) and found.x.dtype == torch.float32
    assert found.index.tolist() == found.label.tolist() == [0, 1, 2]
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.25, 0.3])
    for row, record, count in zip(found.x, listed.records, (11, 25, 60), strict=True):
        with open_video(record.path) as video:
            frames = (video.frames(range(count)).transpose(0, 2, 3, 1) / 255 - mean) / std  # (T, H, W, C)
        views = []
        for n in range(10):
            start = round((count - 10) * n / 9)  # the clip spans 10 frames and keeps 0, 4 and 9
            for left in (0, 12, 24):
                view = frames[[start, start + 4, start + 9], :, left : left + 24]
                views.append([*view[0, 12, 12], view.mean()])
        assert len(views) == 30
        np.testing.assert_allclose(row.numpy(), np.mean(views, axis=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (2, 1), (5, 2), (50, 0)])
def test_batches_and_workers_change_nothing(few, backbone, batch_size, workers):
    settings = {"clips": 2, "crops": 3}
    expected = extract(backbone, few, clips(**settings), CPU)
    found = extract(backbone, few, clips(**settings, batch_size=batch_size, workers=workers), CPU)
    assert torch.equal(found.index, expected.index) and torch.equal(found.label, expected.label)
    torch.testing.assert_close(found.x, expected.x, rtol=1e-5, atol=1e-6)
    assert expected.label.tolist() == [record.label for record in few.records]
    assert expected.index.tolist() == list(range(5))
    assert torch.pdist(expected.x).min() > 1e-3  # they do differ


def test_one_crop_and_one_clip(few):
    found = extract(
        Pixels(), few, clips(clips=1, crops=1, size=48, clip=ClipSettings(frames=2, sampling_rate=3)), CPU
    )
    for row, record in zip(found.x, few.records, strict=True):
        with open_video(record.path) as video:
            frame = video.frames([10])[0].transpose(1, 2, 0) / 255  # 24 frames, span 4: starts at 10
        expected = (frame[12, 12] - [0.4, 0.5, 0.6]) / [0.2, 0.25, 0.3]
        np.testing.assert_allclose(row[:3].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_left_behind(few, backbone, training):
    backbone.train(training)
    expected = {key: value.clone() for key, value in backbone.state_dict().items()}
    torch.manual_seed(7)
    state = torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    first = extract(backbone, few, clips(clips=1, crops=1, workers=1), CPU)
    assert backbone.training is training
    assert all(module.training is training for module in backbone.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002
    assert all(torch.equal(value, expected[key]) for key, value in backbone.state_dict().items())
    backbone.eval()
    again = extract(backbone, few, clips(clips=1, crops=1), CPU)  # eval mode was on both times
    torch.testing.assert_close(first.x, again.x, rtol=1e-5, atol=1e-6)
    assert not first.x.requires_grad


def test_4_a_broken_video_is_an_error(digits, tmp_path):
    (tmp_path / "broken.mp4").write_text("<html>")
    (tmp_path / "good.mp4").write_bytes((digits / "videos/test/00000.mp4").read_bytes())
    (tmp_path / "list.csv").write_text("path,label\ngood.mp4,0\nbroken.mp4,1\n")
    for workers in (0, 2):
        with pytest.raises(DataError, match=r"^\S+broken\.mp4: not a video[^\n]*$"):
            extract(Pixels(), read_list(tmp_path / "list.csv"), clips(workers=workers, clips=1), CPU)


@pytest.fixture
def gaps(digits, tmp_path):
    """A list of nine videos of which the first, three in a row, and one that is not there are missing."""
    sources = read_list(digits / "motion/test.csv").records[:9]
    rows = ["path,label"]
    for n, record in enumerate(sources):
        content = Path(record.path).read_bytes()
        if n != 7:
            (tmp_path / f"{n}.mp4").write_bytes(content[:900] if n in (0, 3, 4, 5) else content)
        rows.append(f"{n}.mp4,{record.label}")
    (tmp_path / "gaps.csv").write_text("\n".join(rows) + "\n")
    return read_list(tmp_path / "gaps.csv")


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (3, 2), (50, 1)])
def test_4_allow_missing_gives_features_of_the_others(gaps, digits, batch_size, workers, caplog):
    settings = {"clips": 2, "batch_size": batch_size, "workers": workers}
    found = extract(Pixels(), gaps, clips(**settings, allow_missing=True), CPU)
    there = [1, 2, 6, 8]
    assert found.index.tolist() == there
    assert found.label.tolist() == [gaps.records[n].label for n in there]
    whole = extract(Pixels(), read_list(digits / "motion/test.csv"), clips(clips=2), CPU)
    torch.testing.assert_close(found.x, whole.x[there], rtol=1e-5, atol=1e-6)
    assert [Path(path).name for path, _ in found.missing] == ["0.mp4", "3.mp4", "4.mp4", "5.mp4", "7.mp4"]
    assert "not a video" in found.missing[0][1] and "No such file" in found.missing[-1][1]
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"left out: {reason}" for _, reason in found.missing]
    assert whole.missing == ()
    with pytest.raises(DataError, match=r"^\S+0\.mp4: not a video[^\n]*$"):
        extract(Pixels(), gaps, clips(**settings), CPU)


@pytest.mark.parametrize("world", [2, 4, 9, 12])
def test_4_missing_videos_are_gathered_over_processes(gaps, world, monkeypatch):
    settings = clips(clips=2, allow_missing=True, batch_size=2)
    alone = extract(Pixels(), gaps, settings, CPU)
    monkeypatch.setattr(comm, "world", lambda: world)
    parts = []

    def give(part):
        parts.append(part)
        raise InterruptedError

    monkeypatch.setattr(comm, "gather_objects", give)
    for rank in range(world):
        monkeypatch.setattr(comm, "rank", lambda rank=rank: rank)
        with pytest.raises(InterruptedError):
            extract(Pixels(), gaps, settings, CPU)
    assert len(parts) == world
    monkeypatch.setattr(comm, "gather_objects", lambda part: parts)
    together = extract(Pixels(), gaps, settings, CPU)
    assert torch.equal(together.index, alone.index) and torch.equal(together.label, alone.label)
    torch.testing.assert_close(together.x, alone.x, rtol=1e-5, atol=1e-6)
    assert together.missing == alone.missing


def test_4_nothing_that_can_be_read(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_text("<html>")
    (tmp_path / "list.csv").write_text("path,label\na.mp4,0\nb.mp4,1\n")
    with pytest.raises(
        DataError, match=r"none of the 2 videos of \S+list\.csv can be read; .*a\.mp4: not a video"
    ):
        extract(Pixels(), read_list(tmp_path / "list.csv"), clips(clips=1, allow_missing=True), CPU)
