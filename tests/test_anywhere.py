"""The tests see the package of their own checkout, in a folder named vidssl, with blanks, with any letters."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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


BUILD = """
from setuptools import build_meta
build_meta.build_editable("editable")
build_meta.build_wheel("wheel")
"""
# As Python adds an installed .pth file: after the working folder.
IMPORT = "import site; site.addsitedir('vidssl/editable'); import vidssl; print(vidssl.__file__)"


def test_an_editable_install_is_not_hidden_by_a_folder_of_its_name(tmp_path):
    """A program above a checkout called vidssl imports the package, not the checkout; a wheel has the configs."""
    pytest.importorskip("setuptools", minversion="70.1")  # builds wheels itself
    checkout = tmp_path / "vidssl"
    files = {
        "vidssl/__init__.py": "",
        "vidssl/version.py": "__version__ = '1'",
        "configs/a/b.yaml": "",
        "README.md": "",
    }
    files |= {name: (TOP / name).read_text(encoding="utf-8") for name in ("setup.py", "pyproject.toml", "MANIFEST.in")}
    for name, text in files.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text, encoding="utf-8")
    for folder in ("editable", "wheel"):
        (checkout / folder).mkdir()
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=checkout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (checkout / "wheel").iterdir()
    assert "vidssl/configs/a/b.yaml" in zipfile.ZipFile(wheel).namelist()
    (editable,) = (checkout / "editable").iterdir()
    zipfile.ZipFile(editable).extractall(editable.parent)
    words = [sys.executable, "-S", "-c", IMPORT]
    done = subprocess.run(words, cwd=tmp_path, env={}, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(checkout / "vidssl" / "__init__.py"), done.stderr


def test_make_needs_no_folder_without_blanks():
    """Names of folders in recipes are relative, or in quotes."""
    text = (TOP / "Makefile").read_text(encoding="utf-8")
    used = [line for line in text.splitlines() if "CURDIR" in line or "VIDEOS)" in line]
    assert used and all(line.startswith("export ") or '"$(VIDEOS)"' in line for line in used)
    done = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "demo"], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and str(TOP) not in done.stdout, done.stderr
