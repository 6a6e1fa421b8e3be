"""The tests see the package of their own checkout, in a folder named vidssl, with blanks, with any letters."""

import subprocess
import sys
from pathlib import Path

import vidssl
from vidssl.video import open_video

TOP = Path(__file__).parents[1]


def test_the_package_is_that_of_the_checkout():
    assert Path(vidssl.__file__).resolve() == (TOP / "vidssl" / "__init__.py").resolve()


def test_a_command_and_a_video_in_the_checkout(tmp_path):
    """A list, a file of the checkout and an output in folders with blanks and other letters."""
    folder = tmp_path / "ein vidssl ключ" / "vidssl"
    folder.mkdir(parents=True)
    (folder / "b frames.avi").write_bytes((TOP / "tests" / "video" / "files" / "xvid_b_frames.avi").read_bytes())
    assert len(open_video(folder / "b frames.avi").frames([0, 3])) == 2
    words = [sys.executable, "-m", "vidssl", "check", str(folder), "--out", str(folder / "geprüft.csv")]
    done = subprocess.run(words, cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_make_needs_no_folder_without_blanks():
    """Names of folders in recipes are relative, or in quotes."""
    text = (TOP / "Makefile").read_text(encoding="utf-8")
    used = [line for line in text.splitlines() if "CURDIR" in line or "VIDEOS)" in line]
    assert used and all(line.startswith("export ") or '"$(VIDEOS)"' in line for line in used)
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo"], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and str(TOP) not in done.stdout, done.stderr
