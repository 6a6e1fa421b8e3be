"""The job from a checkpoint to files of tracks: what is in them, and wrong arguments."""

from pathlib import Path

import numpy as np
import pytest

from vidssl import cli
from vidssl.base.errors import ConfigError
from vidssl.data import read_list
from vidssl.data.track_files import read_tracks, tracks_file
from vidssl.jobs.track import track
from vidssl.jobs.track import tracker_settings as settings
from vidssl.tracking import TrackerSettings
from vidssl.video import open_video

CFG = Path(__file__).parents[2] / "configs" / "toy" / "moco.yaml"
QUICK = ["search.short_side=72", "size=32", "min_gap=12", "top=2"]


def options(digits):
    return {"cfg": CFG, "settings": ["data.moving_digits=null"], "root": digits, "workers": 0}


@pytest.fixture
def few(digits, tmp_path):
    names = read_list(digits / "motion/test.csv").names[:3]
    (tmp_path / "few.csv").write_text("\n".join(["path", *names]) + "\n")
    return tmp_path / "few.csv"


def test_tracks_overlays_and_what_they_were_made_with(digits, few, tmp_path):
    out = tmp_path / "out"
    done = track("random", few, out=out, tracker=QUICK, overlay=2, **options(digits))
    listed = read_list(few, digits)
    assert tuple(done.made) == listed.names and not done.left_out
    for name, record in zip(listed.names, listed.records, strict=True):
        tracks, meta = read_tracks(tracks_file(out, name, record))
        assert meta["tracker"] == settings(QUICK).model_dump(mode="json") and meta["weights"]["seed"] == 0
        gaps = tracks.frames[1::2] - tracks.frames[::2]
        assert len(gaps) and gaps.min() >= 12 and tracks.frames.max() < 24
        assert tracks.boxes.min() >= 0 and tracks.boxes.max() <= 48
    drawn = sorted((out / "overlays").rglob("*.mp4"))
    assert [str(path.relative_to(out / "overlays")) for path in drawn] == sorted(listed.names[:2])
    tracks, _ = read_tracks(tracks_file(out, listed.names[0], listed.records[0]))
    pairs = len(np.unique(tracks.frames.reshape(-1, 2), axis=0))
    with open_video(out / "overlays" / listed.names[0]) as video:  # two frames of 48 pixels, enlarged, side by side
        assert video.meta.num_frames == min(pairs, 24) and video.meta.height == 384 < video.meta.width / 2
    again = track("random", few, out=out, tracker=QUICK, **options(digits))
    assert again.kept == 3 and not again.made


def test_best_paths_are_drawn_frame_by_frame(digits, few, tmp_path):
    paths = ["search.short_side=72", "size=32", "min_gap=6", "variant=best"]
    track("random", few, out=tmp_path / "out", tracker=paths, overlay=1, **options(digits))
    listed = read_list(few, digits)
    tracks, _ = read_tracks(tracks_file(tmp_path / "out", listed.names[0], listed.records[0]))
    with open_video(tmp_path / "out" / "overlays" / listed.names[0]) as video:
        assert video.meta.num_frames == len(np.unique(tracks.frames)) > 6
        assert (video.meta.height, video.meta.width) == (384, 384)


def test_settings_are_read_as_those_of_a_config(few):
    assert settings([]) == TrackerSettings()
    overrides = settings(["variant=best", "max_step=null", "search.mode=quality"])
    assert overrides.variant == "best" and overrides.max_step is None and overrides.search.mode == "quality"
    with pytest.raises(ConfigError, match="min_gap"):
        settings(["min_gab=3"])


def test_other_networks_are_refused(digits, few, tmp_path):
    other = {**options(digits), "settings": ["data.moving_digits=null", "backbone={name: r2plus1d_18}"]}
    with pytest.raises(ConfigError, match="no layer 3"):
        track("random", few, out=tmp_path / "out", tracker=QUICK, **other)


def test_the_command(digits, tmp_path, capsys):
    """Parts, a resumed run, overlays, and the exit status."""
    names = [*read_list(digits / "motion/test.csv").names[:2], "gone.mp4"]
    (tmp_path / "few.csv").write_text("\n".join(["path", *names]) + "\n")
    words = [tmp_path / "few.csv", "--checkpoint", "random", "--cfg", CFG, "data.moving_digits=null", "--workers", 0]
    words += ["--root", digits, "--out", tmp_path / "out", "--tracker", *QUICK]

    def run(*more):
        status = 0
        try:
            cli.guarded(lambda: cli.run("track", [str(word) for word in (*words, *more)]))
        except SystemExit as end:
            status = end.code
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    status, printed = run("--shard", "1/3")
    assert status == 0 and "1 videos: 1 tracked" in printed and "frames/s" in printed
    status, printed = run("--overlay", "1")
    assert status == 1 and "3 videos: 1 tracked, 1 kept, 1 left out" in printed
    assert "left out: gone.mp4: No such file" in printed
    assert len(list((tmp_path / "out" / "overlays").rglob("*.mp4"))) == 1
    assert run("--allow-missing")[0] == 0
    mistakes = {
        ("--shard", "3/3"): "3/3",
        ("--clips", "3"): "leave out clips",
        ("--overlay", "-1"): "-1 is less than 1",
    }
    for more, reason in mistakes.items():
        status, printed = run(*more)
        assert status == 2 and "error: " in printed.strip().splitlines()[-1] and reason in printed
