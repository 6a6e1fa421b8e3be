"""Windows of long videos on the command line: against files that were cut, in parts, again; moments that are found."""

import csv
import json
import os

import av
import cv2
import numpy as np
import pytest

import vidssl
from vidssl import cli
from vidssl.base.errors import ConfigError
from vidssl.base.keyed_generators import generator
from vidssl.base.types import VideoRecord
from vidssl.page.previews import middle_frames, preview
from vidssl.video import open_video

NETWORK = ("--checkpoint", "random", "--cfg", "toy/supervised", "data.moving_digits=null", "--clips", "1")
NETWORK = (*NETWORK, "--crops", "1", "--size", "24", "--workers", "0", "--quiet")


@pytest.fixture
def run(capsys):
    """Run a command and give the last line that it prints, of an error too."""

    def call(command, *arguments):
        capsys.readouterr()
        try:
            cli.guarded(lambda: cli.run(command, [str(word) for word in (*arguments, *NETWORK)]))
        except SystemExit as end:
            assert end.code == 2
            return capsys.readouterr().err.splitlines()[-1]
        return capsys.readouterr().out.splitlines()[-1]

    return call


@pytest.fixture
def folder(tmp_path, write_video):
    """Two long videos of smooth noise, another scene every 0.4 s: 10 s and 2.04 s."""
    for number, (name, count) in enumerate((("long", 250), ("short", 51))):
        rng = generator(number)
        scenes = [cv2.resize(rng.integers(0, 255, (3, 4, 3), np.uint8), (64, 48)) for _ in range(-(-count // 10))]
        write_video(tmp_path / f"videos/{name}.mp4", np.stack([scenes[n // 10] for n in range(count)]), gop=40)
    return tmp_path / "videos"


def rows_of(features):
    with open(features / "rows.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_windows_equal_files_that_were_cut(run, folder, tmp_path):
    line = run("extract", folder, "--window", 1.2, "--stride", 0.7, "--out", tmp_path / "w")
    rows, x = rows_of(tmp_path / "w"), np.load(tmp_path / "w/features.npy")
    assert line.startswith(f"{len(rows)} windows x {x.shape[1]} features of 2 files in ") and len(rows) == 13 + 1 + 3
    assert [int(row["index"]) for row in rows] == list(range(len(rows)))
    assert [float(row["start"]) for row in rows if row["path"] == "short.mp4"] == [0, 0.72, 0.84]
    assert rows[-1]["end"] == "2.04" and rows[1]["start"] == "0.72"  # 17.5 frames are 18
    # The frames of each window as files of their own, PNG, which is exact.
    for n, row in enumerate(rows):
        first, stop = (round(float(row[name]) * 25) for name in ("start", "end"))
        assert stop - first == 30
        with av.open(str(folder / row["path"])) as file:
            images = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)][first:stop]
        (tmp_path / f"cut/{n:03d}").mkdir(parents=True)
        for number, image in enumerate(images):
            cv2.imwrite(str(tmp_path / f"cut/{n:03d}/{number:05d}.png"), image[..., ::-1])
    lines = ["path,fps", *(f"{n:03d},25" for n in range(len(rows)))]
    (tmp_path / "cut/list.csv").write_text("\n".join(lines))
    run("extract", tmp_path / "cut/list.csv", "--out", tmp_path / "c")
    assert np.array_equal(x, np.load(tmp_path / "c/features.npy"))
    assert len(np.unique(x.round(5), axis=0)) > len(rows) // 2  # they differ
    # And as a list of spans; the stride is the window by default.
    lines = ["path,label,start,end", *(f"{row['path']},-1,{row['start']},{row['end']}" for row in rows)]
    (folder / "spans.csv").write_text("\n".join(lines))
    run("extract", folder / "spans.csv", "--out", tmp_path / "s")
    assert np.array_equal(x, np.load(tmp_path / "s/features.npy")) and rows_of(tmp_path / "s") == rows
    run("extract", folder / "short.mp4", "--window", 1, "--out", tmp_path / "d")
    assert [row["start"] for row in rows_of(tmp_path / "d")] == ["0.0", "1.0", "1.04"]


def test_parts_and_other_windows(run, folder, tmp_path, capsys):
    arguments = (folder, "--window", 0.4, "--stride", 0.12)  # 81 windows, and 15
    run("extract", *arguments, "--out", tmp_path / "whole")
    parts = [run("extract", *arguments, "--out", tmp_path / "x", "--shard", f"{n}/2") for n in range(2)]
    assert [int(line.split()[0]) for line in parts] == [64 + 15, 17]
    cli.run("merge", ["--out", str(tmp_path / "x"), "--quiet"])
    assert capsys.readouterr().out.startswith("96 windows x ")
    whole, merged = (np.load(tmp_path / name / "features.npy") for name in ("whole", "x"))
    np.testing.assert_allclose(whole, merged, rtol=0, atol=1e-6)
    assert rows_of(tmp_path / "whole") == rows_of(tmp_path / "x") and len(rows_of(tmp_path / "x")) == 96
    for other in (("--window", 0.4, "--stride", 0.2), ("--window", 0.2, "--stride", 0.12), ()):
        line = run("extract", folder, *other, "--out", tmp_path / "x")
        assert line.startswith("error: ") and "windows" in line and "stored" in line
    assert "needs a window" in run("extract", folder, "--stride", 1, "--out", tmp_path / "y")


def test_a_video_that_cannot_be_read_is_one_missing_row(run, folder, tmp_path):
    (folder / "broken.mp4").write_bytes(b"no video")
    line = run("extract", folder, "--window", 1, "--out", tmp_path / "w")
    assert ", 1 file could not be read" in line and len(rows_of(tmp_path / "w")) == 13
    (folder / "another.mp4").write_bytes(b"no video")  # files are counted, not windows
    line = run("extract", folder, "--window", 1, "--out", tmp_path / "v")
    assert line.startswith("13 windows x 64 features of 2 files in ") and ", 2 files could not be read" in line


@pytest.fixture
def query(folder, tmp_path, write_video):
    """The frames 103-132 of the long video, as a file of another folder, nearly without loss."""
    with open_video(folder / "long.mp4") as video:
        frames = video.frames(range(103, 133)).transpose(0, 2, 3, 1)
    return write_video(tmp_path / "queries/moment.mp4", frames)


def test_a_moment_is_found_and_played(run, folder, query, tmp_path, search_page):
    windows = ("--window", 1.2, "--stride", 0.4)
    line = run("retrieval", "--gallery", folder, "--query", query, *windows, "--k", 4, "--out", tmp_path / "r")
    assert line == f"{tmp_path}/r/index.html"
    results = json.loads((tmp_path / "r/results.json").read_text())
    assert results["windows"] == {"window": 1.2, "stride": 0.4} and results["num_gallery"] == 23 + 4
    best, *others = results["neighbours"]
    assert (best["path"], best["start"], best["end"]) == ("long.mp4", 4.0, 5.2)  # 4.12 is nearer to 4.0 than to 4.4
    spans = [(hit["path"], hit["start"], hit["end"]) for hit in (best, *others)]
    for n, (path, start, end) in enumerate(spans):
        assert not any(p == path and s < end and start < e for p, s, e in spans[:n])
    page = (tmp_path / "r/index.html").read_text()
    assert "1.2 s, one every 0.4 s" in page and "27 windows" in page
    ((asked, hits),) = search_page(tmp_path / "r")
    assert hits[0].name == "long.mp4 4-5.2 s" and asked.name == "moment.mp4"
    assert hits[0].link == f"{os.path.relpath(folder, tmp_path / 'r')}/long.mp4#t=4,5.2"
    with open_video(folder / "long.mp4") as video:
        frames = video.frames(range(100, 130))
    shown = middle_frames(VideoRecord(str(folder / "long.mp4"), start=4.0, end=5.2))
    assert np.array_equal(shown, frames[np.arange(8) * 30 // 8])
    assert hits[0].preview == preview(shown).jpeg
    # With an index, also of `extract`, and without the list.
    run("extract", folder, *windows, "--out", tmp_path / "i")
    for name, arguments in (("a", ("--gallery", folder, *windows)), ("b", ())):
        run("retrieval", "--index", tmp_path / "i", *arguments, "--query", query, "--k", 4, "--out", tmp_path / name)
        again = json.loads((tmp_path / name / "results.json").read_text())
        assert again["neighbours"] == results["neighbours"] and again["windows"] == results["windows"]
    line = run("retrieval", "--index", tmp_path / "i", "--query", query, *windows, "--out", tmp_path / "e")
    assert "leave window out, or give --gallery LIST" in line


def test_one_hit_for_each_video(run, folder, query, tmp_path):
    windows = ("--window", 1.2, "--stride", 0.4, "--one-per-video")
    run("retrieval", "--gallery", folder, "--query", query, *windows, "--out", tmp_path / "r")
    hits = [hit["path"] for hit in json.loads((tmp_path / "r/results.json").read_text())["neighbours"]]
    assert hits == ["long.mp4", "short.mp4"]


def test_a_query_does_not_find_itself(run, folder, tmp_path, search_page):
    """A span of a video of the gallery finds no window that overlaps it; the whole video none of its windows."""
    (folder / "spans.csv").write_text("path,start,end\nlong.mp4,4,5\nshort.mp4,0,0.8\n")
    windows = ("--window", 0.8, "--stride", 0.4)
    run("retrieval", "--gallery", folder, "--query", folder / "long.mp4", *windows, "--out", tmp_path / "r")
    stored = json.loads((tmp_path / "r/results.json").read_text())["neighbours"]
    assert {hit["path"] for hit in stored} == {"short.mp4"} and 2 <= len(stored) <= 3
    run("retrieval", "--gallery", folder, "--query", folder / "spans.csv", *windows, "--out", tmp_path / "l")
    (one, hits), (other, _) = search_page(tmp_path / "l")
    assert (one.name, other.name) == ("long.mp4 4-5 s", "short.mp4 0-0.8 s")
    names = {hit.name for hit in hits}
    assert names & {"long.mp4 3.2-4 s", "long.mp4 5.2-6 s", "long.mp4 0-0.8 s"}
    assert not names & {f"long.mp4 {start:g}-{start + 0.8:g} s" for start in (3.6, 4, 4.4, 4.8)}  # they overlap 4-5 s


# In Python --------------------------------------------------------------------------------------------------

CLIPS = {"cfg": "toy/supervised", "clips": 1, "crops": 1, "size": 24, "workers": 0, "progress": False}


def test_windows_that_are_searched_in_each_other(folder):
    """Each is a query: it finds neither itself nor a window that overlaps it, and no two that overlap."""
    windows = vidssl.extract("random", folder, window=0.8, stride=0.4, **CLIPS)
    neighbours = vidssl.search(windows, k=5)
    for row, hits in enumerate(neighbours.index.tolist()):
        kept = [windows.records[n] for n in (row, *hits)]
        for n, one in enumerate(kept):
            assert not any(
                one.path == other.path and one.start < other.end and other.start < one.end for other in kept[:n]
            )
    with pytest.raises(ConfigError, match="one_per_video needs the files of the gallery"):
        vidssl.search(windows.x, k=5, one_per_video=True)


def test_windows_of_image_folders_keep_their_rate(run, tmp_path, search_page):
    """An index holds the frame rates of its list: without them a moment would be shown at another place."""
    for number in range(40):
        (tmp_path / "images/v").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / f"images/v/{number:03d}.png"), np.full((32, 32, 3), 6 * number, np.uint8))
    (tmp_path / "images/list.csv").write_text("path,fps\nv,10\n")
    run("extract", tmp_path / "images/list.csv", "--window", 1, "--out", tmp_path / "i")
    rows = rows_of(tmp_path / "i")
    assert [(row["start"], row["end"], row["fps"]) for row in rows] == [
        (f"{n}.0", f"{n + 1}.0", "10.0") for n in range(4)
    ]
    cv2.imwrite(str(tmp_path / "query.png"), np.full((32, 32, 3), 90, np.uint8))
    run("retrieval", "--index", tmp_path / "i", "--query", tmp_path / "query.png", "--out", tmp_path / "r")
    ((_, hits),) = search_page(tmp_path / "r")
    record = VideoRecord(str(tmp_path / "images/v"), start=1.0, end=2.0, fps=10)
    assert middle_frames(record)[:, 0, 0, 0].tolist() == [6 * (10 + n * 10 // 8) for n in range(8)]
    assert preview(middle_frames(record)).jpeg in [hit.preview for hit in hits]
