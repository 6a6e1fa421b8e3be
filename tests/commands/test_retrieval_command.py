"""The tool retrieval from its command line: an index, one video, mistakes in one line."""

import json
import shutil
from pathlib import Path

import pytest

from vidssl import cli
from vidssl.data.dataset import ClipDataset

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "supervised.yaml"
UNTRAINED = ("--checkpoint", "random", "--cfg", TOY, "data.moving_digits=null", "--clips", "1", "--workers", "0")


@pytest.fixture
def run_tool(capsys):
    """Run the tool; give what it prints and its exit status."""

    def run(*given):
        capsys.readouterr()
        try:
            cli.guarded(lambda: cli.run("retrieval", [str(word) for word in (*UNTRAINED, *given)]))
        except SystemExit as end:
            message = capsys.readouterr().err
            return message[message.rindex("error: ") :].rstrip("\n"), end.code
        return capsys.readouterr().out.rstrip("\n"), 0

    return run


def test_an_index_is_made_once_and_then_enough(run_tool, digits, tmp_path):
    lists = ("--gallery", digits / "motion/train.csv", "--query", digits / "motion/test.csv")
    index, rest = ("--index", tmp_path / "g"), ("--page-queries", "2", "--out", tmp_path / "out")
    made, status = run_tool(*lists, *index, *rest)
    assert status == 0 and made.splitlines()[2].startswith("plain") and (tmp_path / "g").exists()
    assert run_tool(*lists[2:], *index, *rest) == run_tool(*lists, *rest) == (made, 0)
    video = digits / "videos/test/00000.mp4"
    out, status = run_tool("--query", video, *index, "--k", "3", "--out", tmp_path / "one")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 6 and lines[0].startswith(f"{video}: 40 in the gallery")
    assert lines[-1] == f"{tmp_path}/one/index.html"
    near = json.loads((tmp_path / "one/results.json").read_text())["neighbours"]
    assert [line.split()[-1] for line in lines[2:5]] == [hit["path"] for hit in near]


def test_mistakes(run_tool, digits, tmp_path):
    video, out = digits / "videos/test/00000.mp4", ("--out", tmp_path / "out")
    lists = ("--gallery", digits / "motion/train.csv")
    for given, named in (
        (("--query", video), "give --gallery LIST, --index FOLDER or both"),
        (("--query", video, *lists, "--center"), "the mean of one video is the video itself"),
        (("--query", tmp_path / "none.mp4", *lists), "none.mp4 does not exist"),
        (("--query", tmp_path / "none.csv", *lists), "cannot read list"),
        (("--query", video, "--index", tmp_path / "none"), "extract it with --gallery"),
    ):
        line, status = run_tool(*given, *out)
        assert status == 2 and named in line and "\n" not in line
    assert not (tmp_path / "out").exists()


@pytest.fixture
def copies(digits, tmp_path):
    """A folder of six videos: one is a copy of another, and one is broken."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for n in (0, 1, 2, 3):
        shutil.copy(digits / f"videos/test/{n:05d}.mp4", folder / f"{n}.mp4")
    shutil.copy(folder / "1.mp4", folder / "copy.mp4")
    (folder / "broken.mp4").write_bytes(b"no video" * 99)
    return folder


@pytest.mark.parametrize("index", [False, True])
def test_a_folder_in_itself_is_read_once(index, run_tool, copies, tmp_path, caplog, monkeypatch, search_page):
    decoded, plan = [], ClipDataset.plan  # the frames of a video are planned, then decoded
    monkeypatch.setattr(ClipDataset, "plan", lambda self, key, meta: decoded.append(key) or plan(self, key, meta))
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in copies.iterdir():
        (linked / file.name).hardlink_to(file)
    found = {}
    for name, other in (("same", copies / ".." / "videos"), ("two", linked)):
        decoded.clear()
        caplog.clear()
        more = ("--index", tmp_path / f"{name}.features") if index else ()
        given = ("--gallery", other, "--query", copies, "--out", tmp_path / name, *more)
        assert run_tool(*given)[1] == 0
        found[name] = json.loads((tmp_path / name / "results.json").read_text())
        assert len(decoded) == (5 if name == "same" else 10)
        assert caplog.text.count("left out:") == 1 and caplog.text.count("broken.mp4: ") == len(decoded) / 5
        assert found[name]["num_queries"] == found[name]["num_gallery"] == 5
        assert len(found[name]["missing_queries"]) == len(found[name]["missing_gallery"]) == 1
    assert found["same"]["duplicates"] == 1
    page = (tmp_path / "same" / "index.html").read_text()
    assert "1 video cannot be read<" in page and "<li>1.mp4 = copy.mp4</li>" in page
    shown = [(video.name, hit.name) for video, hits in search_page(tmp_path / "same") for hit in hits if hit.is_copy]
    assert shown == [("1.mp4", "copy.mp4"), ("copy.mp4", "1.mp4")]
    page = (tmp_path / "two" / "index.html").read_text()  # names that both folders have are not enough
    assert f"<li>{copies}/0.mp4 = {linked}/0.mp4</li>" in page


def test_more_neighbours_than_videos_are_noted(run_tool, digits, tmp_path):
    lists = ("--gallery", digits / "motion/train.csv", "--query", digits / "motion/test.csv", "--page-queries", "1")
    out, _ = run_tool(*lists, "--k", "41", "--out", tmp_path)
    note = "R@50, knn: all 40 videos of the gallery, which are fewer than k"
    assert note in out.splitlines() and note in (tmp_path / "index.html").read_text()
    out, _ = run_tool(*lists, "--k", "40", "--out", tmp_path)
    assert "R@50: all 40 videos of the gallery, which are fewer than k" in out.splitlines()
