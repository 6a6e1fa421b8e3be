"""The tool from its command line: parts, resuming, overlays, and its exit status."""

from pathlib import Path

import pytest

from vidssl import cli
from vidssl.data.video_list import read_list

TOP = Path(__file__).parents[2]
TOY = TOP / "configs" / "toy" / "moco.yaml"


@pytest.fixture
def run(digits, tmp_path, capsys):
    """Run the tool on three videos, one of which may be missing; give what it prints and its exit status."""

    def run(*given, broken=False):
        names = [*read_list(digits / "motion/test.csv").names[:2], "gone.mp4"][: 3 if broken else 2]
        (tmp_path / "few.csv").write_text("\n".join(["path", *names]) + "\n")
        words = [tmp_path / "few.csv", "--checkpoint", "random", "--cfg", TOY, "data.moving_digits=null"]
        words += ["--root", digits, "--out", tmp_path / "out", "--workers", "1", *given]
        words += ["--tracker", "search.short_side=72", "size=32", "min_gap=12"]
        capsys.readouterr()
        try:
            cli.guarded(lambda: cli.run("track", [str(word) for word in words]))
        except SystemExit as end:
            printed = capsys.readouterr()
            return printed.out + printed.err, end.code
        return capsys.readouterr().out, 0

    return run


def test_parts_resume_and_overlays(run, tmp_path):
    printed, status = run("--shard", "1/2")
    assert status == 0 and "1 videos: 1 tracked" in printed
    printed, status = run("--overlay", "1")
    assert status == 0 and "2 videos: 1 tracked, 1 kept, 0 left out" in printed
    assert "frames/s" in printed
    assert len(list((tmp_path / "out" / "overlays").rglob("*.mp4"))) == 1
    printed, status = run("--overlay")
    assert status == 0 and "0 tracked, 2 kept" in printed
    assert len(list((tmp_path / "out" / "overlays").rglob("*.mp4"))) == 2


def test_what_was_left_out_shows_in_the_exit_status(run):
    printed, status = run(broken=True)
    assert status == 1 and "left out: gone.mp4: No such file" in printed and "2 tracked" in printed
    assert run("--allow-missing", broken=True)[1] == 0


def test_a_mistake_is_one_line(run, tmp_path):
    printed, status = run("--shard", "2/2")
    assert status == 2 and printed.strip().splitlines()[-1].startswith("error: ") and "2/2" in printed
    printed, status = run("--clips", "3")  # of what is tracked there are none
    assert status == 2 and "leave out clips" in printed and not (tmp_path / "out").exists()
    printed, status = run("--overlay", "-1")
    assert status == 2 and "-1 is less than 1" in printed
