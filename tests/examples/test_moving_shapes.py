"""examples/two_streams/moving_shapes.py: videos that move, are a function of the seed, and can be trained on."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import vidssl
from vidssl.data.video_list import read_list

SCRIPT = Path(__file__).parents[2] / "examples" / "two_streams" / "moving_shapes.py"


def test_the_script_writes_a_list(tmp_path, monkeypatch):
    out = tmp_path / "shapes"
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), str(out), "--count", "2"])
    script = runpy.run_path(str(SCRIPT), run_name="__main__")
    videos = read_list(out / "train.csv")
    assert len(videos) == 2 and videos.labels.tolist() == [-1, -1]
    with vidssl.open_video(videos.records[1].path) as video:
        assert (len(video), video.meta.fps, video.meta.height) == (60, 25, 80)
        frames = video.frames([0, 59]).transpose(0, 2, 3, 1).astype(int)
        assert np.abs(frames - script["render"](0, 1)[[0, 59]]).mean() < 8, "but for compression"
    with pytest.raises(FileExistsError):
        runpy.run_path(str(SCRIPT), run_name="__main__")
