"""Tracks that a run makes by itself: what becomes of videos in which that fails, and of what is not needed any more."""

import pytest
import torch

from vidssl.base.errors import ConfigError, DataError
from vidssl.data.track_files import read_tracks, tracks_file
from vidssl.data.video_list import read_list
from vidssl.engine.interrupt import StopRequest
from vidssl.engine.refresh_tracks import RunTracks
from vidssl.engine.train import train
from vidssl.models import build_backbone
from vidssl.tracking.proposals import whole_frame

TRACKER = "{frames: 12, stride: 6, min_gap: 6, size: 32, center: false, max_step: null, threshold: 0.0}"


def test_a_chunk_that_fails_does_not_cost_the_others_of_its_video_their_tracks(
    toy_run, toy_folder, tmp_path, monkeypatch, caplog
):
    listed = tmp_path / "chunks.csv"
    listed.write_text(
        "path,start,end\n" + "".join(f"videos/train/00000.mp4,{n / 25},{(n + 12) / 25}\n" for n in (0, 12))
    )
    (tmp_path / "root.txt").write_text(f"{toy_folder / 'data'}\n")
    videos, seen = read_list(listed), []

    def propose(image, search):
        seen.append(image)
        if len(seen) > 2:  # of the second chunk
            raise DataError("selective search fails")
        return whole_frame(*image.shape[:2])

    monkeypatch.setattr("vidssl.tracking.track_videos.propose", propose)
    run = toy_run("frame_invariance_tracks", "run", f"tracks.tracker={TRACKER}")
    tracks, network = RunTracks(run, videos), build_backbone("resnet3d18", width=4)
    left_out = tracks.make(0, network, torch.device("cpu"), StopRequest())
    files = [tracks_file(tracks.folder(0), n, r) for n, r in zip(videos.names, videos.records, strict=True)]
    assert [len(read_tracks(file)[0].frames) for file in files] == [2, 0]
    assert left_out == {"videos/train/00000.mp4@0.480-0.960": "selective search fails"}
    assert caplog.text.count("no tracks: videos/train/00000.mp4@0.480-0.960: selective search fails") == 1


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "toy, differences", [("sce", "backbone.frame_differences=true"), ("two_streams", "method.tracks=differences")]
)
def test_a_network_that_cannot_track_is_refused_before_the_first_step(toy, differences, given, toy_run, tmp_path):
    """Where tracks are given its first own tracks would come after epochs."""
    folder = f", folder: {tmp_path}" if given else ""
    run = toy_run(toy, tmp_path / "run", differences, f"tracks={{refresh: 1.0{folder}, tracker: {TRACKER}}}")
    with pytest.raises(ConfigError, match="this one encodes differences: name a stream"):
        train(run)
    assert not (tmp_path / "run/metrics.jsonl").exists()
