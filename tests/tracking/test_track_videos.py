"""Whole lists: files written and kept, frame numbers, and videos that cannot be read or crash the worker."""

import faulthandler
import os
import signal
import time

import numpy as np
import pytest
import torch

from vidssl.base.errors import ConfigError
from vidssl.data import read_list
from vidssl.data.track_files import read_tracks, write_tracks
from vidssl.models import build_backbone
from vidssl.models.backbones import Backbone
from vidssl.tracking import Search, Tracker, TrackerSettings, track_list, track_videos
from vidssl.tracking.proposals import propose
from vidssl.video import open_video
from vidssl.video.reader import DecodeSettings

SEARCH = Search(short_side=32)
CONFIG = TrackerSettings(search=SEARCH, frames=12, chunks=2, min_gap=8, size=32, variant="best", top=3)
ON_CPU = {"device": torch.device("cpu"), "mean": [0.45], "std": [0.225]}


@pytest.fixture(scope="module")
def backbone():
    torch.manual_seed(0)
    return build_backbone("resnet3d18", width=8, zero_init=False).eval()


def draw_frames(count, shift, mark=0):
    """A bright square that walks over stripes; a corner is marked."""
    frames = np.empty((count, 48, 64, 3), np.uint8)
    frames[:] = (np.arange(64) // 8 % 2 * 40 + 60)[None, None, :, None]
    for t in range(count):
        x = (2 * t + shift) % 48
        frames[t, 16:32, x : x + 16] = (240, 200, 40)
    frames[:, :8, :8] += np.uint8(mark)
    return frames


@pytest.fixture
def folder(tmp_path, write_video):
    for n, count in enumerate((30, 12, 10, 5)):
        write_video(tmp_path / f"{n}.mp4", draw_frames(count, 5 * n))
    return tmp_path


@pytest.fixture
def track(folder, backbone):
    """Track a list of these rows into `out`."""

    def run(rows, out="out", config=CONFIG, backbone=backbone, weights="a", **options):
        (folder / "list.csv").write_text("\n".join(rows) + "\n")
        tracker, videos = Tracker(backbone, config, **ON_CPU), read_list(folder / "list.csv")
        return track_list(tracker, videos, DecodeSettings(), folder / out, {"weights": weights}, **options)

    return run


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("frames", "boxes", "scores", "track")
    )


def test_each_chunk_is_tracked_on_its_own_and_frames_count_from_the_record(folder, backbone, track):
    done = track(["path,start,end", "0.mp4,0.2,1.0", "1.mp4,,"], workers=0)
    assert done.made == ["0.mp4", "1.mp4"] and not done.left_out
    tracks, _ = read_tracks(folder / "out" / "tracks" / "0.mp4@0.200-1.000.npz")
    expected = []
    for start in (0, 8):  # frames 5 to 24 are meant: 20, in which two chunks of 12 begin at 0 and at 8
        with open_video(folder / "0.mp4") as video:
            frames = video.frames(5 + start + np.arange(12))
        boxes = [propose(np.ascontiguousarray(image), SEARCH) for image in frames.transpose(0, 2, 3, 1)]
        actual = Tracker(backbone, CONFIG, **ON_CPU).track(frames, boxes)
        expected.append((start + actual.frames, actual.boxes, actual.scores))
    for n, array in enumerate((tracks.frames, tracks.boxes, tracks.scores)):
        np.testing.assert_array_equal(array, np.concatenate([each[n] for each in expected]))
    assert set(tracks.frames[tracks.track == 0]) <= set(range(12))
    assert 16 <= tracks.frames.max() < 20
    assert done.tracks == sum(
        len(np.unique(read_tracks(path)[0].track)) for path in (folder / "out" / "tracks").glob("*.npz")
    )
    assert done.frames == 20 + 12 and "32 frames" in str(done)


def test_workers_do_not_change_results_and_existing_tracks_are_kept(folder, track):
    rows = ["path", "0.mp4", "1.mp4", "2.mp4"]
    track(rows, workers=0)
    track(rows, "two", workers=2)
    files = sorted((folder / "out" / "tracks").iterdir())
    assert [file.name for file in files] == ["0.mp4.npz", "1.mp4.npz", "2.mp4.npz"]
    for file in files:
        assert same(read_tracks(file)[0], read_tracks(folder / "two" / "tracks" / file.name)[0])
    files[1].unlink()
    files[2].write_bytes(b"PK damaged")
    before = files[0].stat().st_mtime_ns
    done = track(rows, workers=0)
    assert done.kept == 1 and done.made == ["1.mp4", "2.mp4"] and files[0].stat().st_mtime_ns == before
    assert track(rows, workers=0).kept == 3
    assert track(rows, workers=0, weights="b").kept == 0
    assert track(rows, workers=0, weights="b", config=CONFIG.model_copy(update={"top": 2})).kept == 0


def test_tracks_of_another_file_are_made_again(folder, track, write_video, caplog):
    """Of the same name, in place of the one that was tracked, or under another root."""
    rows = ["path", "0.mp4", "1.mp4"]
    track(rows)
    before = read_tracks(folder / "out/tracks/0.mp4.npz")[0]
    write_video(folder / "0.mp4", draw_frames(30, 25))
    again = track(rows)
    assert (again.made, again.kept) == (["0.mp4"], 1)
    path = folder / "out/tracks/0.mp4.npz"
    assert f"1 files of tracks are made again: the first, {path}, was made with another video." in caplog.text
    assert not np.array_equal(read_tracks(path)[0].boxes, before.boxes)
    caplog.clear()
    assert track(rows).kept == 2 and not caplog.messages
    tracks, made_with = read_tracks(path)
    del made_with["video"]  # as an earlier version wrote it
    write_tracks(path, tracks, made_with)
    assert track(rows).made == ["0.mp4"] and "another video" in caplog.text


def test_proposals_are_searched_once_for_all_networks_and_copies(folder, track, monkeypatch):
    rows = ["path", "1.mp4"]
    track(rows, workers=0)

    def refuse(*_):
        raise AssertionError("searched again")

    monkeypatch.setattr(track_videos, "propose", refuse)
    os.utime(folder / "1.mp4", (1, 1))
    assert track(rows, workers=0).kept == 1
    assert track(rows, workers=0, weights="b").made == ["1.mp4"]
    wider = CONFIG.model_copy(update={"search": Search(short_side=40)})
    with pytest.raises(AssertionError, match="searched again"):
        track(rows, workers=0, config=wider)


def test_shards_together_are_the_list(folder, track):
    rows = ["path", "0.mp4", "1.mp4", "2.mp4"]
    assert track(rows, shard=(0, 2), workers=0).made == ["0.mp4", "2.mp4"]
    assert track(rows, shard=(1, 2), workers=0).made == ["1.mp4"]
    assert track(rows, workers=0).kept == 3


def test_short_videos_have_files_without_tracks_and_are_counted(folder, track):
    done = track(["path", "3.mp4"], workers=0)
    assert done.made == done.untracked == ["3.mp4"] and "1 without a track" in str(done)
    assert len(read_tracks(folder / "out" / "tracks" / "3.mp4.npz")[0].frames) == 0


def test_30_a_crash_or_a_hang_in_the_search_costs_one_video(folder, track, monkeypatch, write_video):
    real = propose

    write_video(folder / "crash.mp4", draw_frames(12, 0, mark=70))
    write_video(folder / "hang.mp4", draw_frames(12, 0, mark=140))

    def break_down(image, search):
        mark = image[:8, :8].mean()
        if 115 < mark < 160:
            faulthandler.disable()  # pytest would print the stack of every thread
            os.kill(os.getpid(), signal.SIGSEGV)
        if mark > 160:
            time.sleep(60)
        return real(image, search)

    monkeypatch.setattr(track_videos, "propose", break_down)
    done = track(["path", "crash.mp4", "0.mp4", "hang.mp4"], workers=2, timeout=2.0)
    assert "signal 11" in done.left_out["crash.mp4"] and "timed out after 2 s, twice" in done.left_out["hang.mp4"]
    assert len(done.left_out) == 2 and done.made == ["0.mp4"]
    assert [path.name for path in (folder / "out" / "tracks").iterdir()] == ["0.mp4.npz"]
    assert "left out: crash.mp4: its worker" in str(done)


def test_unreadable_videos_are_reported_and_left_out(folder, track):
    (folder / "bad.mp4").write_bytes(b"nothing")
    done = track(["path", "bad.mp4", "gone.mp4", "1.mp4"], workers=0)
    assert done.made == ["1.mp4"] and set(done.left_out) == {"bad.mp4", "gone.mp4"}
    assert done.left_out["gone.mp4"].startswith("No such file")
    assert str(folder) not in done.left_out["bad.mp4"]


def test_an_opencv_error_costs_one_video(track, monkeypatch):
    import cv2

    class Engine:
        def setBaseImage(self, image):
            raise cv2.error("no memory")

    module = track_videos.selective_search()
    monkeypatch.setattr(module, "createSelectiveSearchSegmentation", Engine)
    done = track(["path", "1.mp4"], workers=0)
    assert "selective search fails on a frame of 64x48" in done.left_out["1.mp4"]


def test_rows_of_one_video_are_tracked_once(track):
    done = track(["path,mask", "1.mp4,a.png", "1.mp4,b.png"], workers=0)
    assert done.made == ["1.mp4"] and done.kept == 0


def test_check_is_called_before_each_video_and_may_stop(folder, track):
    asked = []

    def check():
        asked.append(len(list((folder / "out").rglob("tracks/*.npz"))))
        if len(asked) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        track(["path", "0.mp4", "1.mp4", "2.mp4"], workers=0, check=check)
    assert asked == [0, 1, 2]


def test_a_network_without_a_third_stage_is_refused_before_any_work(folder, track):
    with pytest.raises(ConfigError, match="no layer 3"):
        track(["path", "1.mp4"], backbone=Backbone(), workers=0)
    differences = build_backbone("resnet3d18", width=4, frame_differences=True)
    with pytest.raises(ConfigError, match="encodes differences: name a stream"):
        track(["path", "1.mp4"], backbone=differences, workers=0)
    assert not (folder / "out").exists()
