"""The commands of the README and of docs/start.md with the package as pip installs it, outside of the checkout."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
COVERS = pytest.mark.covers("vidssl/api", "vidssl/commands", "vidssl/weights", "configs", "README.md", "docs/start.md")
FREE = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*words, cwd):
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**FREE, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def bin_folder(tmp_path_factory):
    """The `bin` of an environment with the wheel installed, and the other packages of the tests' environment."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    folder = tmp_path_factory.mktemp("installed")
    source = folder / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(TOP / name, source)
    for name in ("vidssl", "configs"):
        shutil.copytree(TOP / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    configs = [path.relative_to(TOP).as_posix() for path in (TOP / "configs").rglob("*.yaml")]
    weights = [f"weights/{path.name}" for path in (TOP / "vidssl/weights").iterdir()]
    assert {f"vidssl/{name}" for name in (*configs, *weights)} <= {*names}
    assert not [name for name in names if name.startswith("tests")]
    shutil.rmtree(source)
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env/lib").glob("python*/site-packages")
    run(*pip, "--python", folder / "env/bin/python", "install", "--quiet", "--no-deps", wheel, cwd=folder)
    others = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    (site / "others.pth").write_text(f"{others}\n")  # after the environment's own packages
    return folder / "env/bin"


@pytest.fixture(scope="module")
def folder(digits, tmp_path_factory):
    """A folder of 24 videos in folders of their classes."""
    folder = tmp_path_factory.mktemp("videos")
    for line in (digits / "motion/train.csv").read_text().splitlines()[1:25]:
        path, label = line.split(",")[:2]
        target = folder / f"class{label}" / f"person{Path(path).stem}.mp4"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(digits / path, target)
    return folder


def commands_of(page, heading, folder):
    """The commands of the first block of code below a heading, with the folder of videos."""
    text = (TOP / page).read_text(encoding="utf-8").split(heading, 1)[1]
    block = re.sub(r"\\\n", " ", text.split("```sh\n", 1)[1].split("```", 1)[0])
    block = re.sub("/data/(videos|actions)", str(folder), block)
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines() if line.startswith("vidssl ")]


def smaller(name, words):
    """Shorten a command."""
    if name == "train":
        return [*words, "steps=2", "batch_size=4", "data.workers=0"]
    if name in ("test", "retrieval", "extract", "map"):
        words = [*words, "--clips", "1", "--crops", "1", "--workers", "0"]
    if name == "test":  # too few videos for cross-validation
        words[words.index("svm")] = "uniformity"
    return words


@COVERS
@pytest.mark.long
def test_the_commands_of_the_readme(bin_folder, folder, tmp_path):
    pytest.importorskip("onnxruntime")
    code = "import vidssl; print(vidssl.__file__, vidssl.load_backbone('vidssl-small').dim)"
    assert str(bin_folder.parent) in run(bin_folder / "python", "-c", code, cwd=tmp_path)
    commands = [*commands_of("README.md", "## Try it", folder), *commands_of("README.md", "## Your own videos", folder)]
    assert [words[0] for words in commands] == ["retrieval", "train", "retrieval", "map", "export"]
    for name, *words in commands:
        run(bin_folder / "vidssl", name, *smaller(name, words), cwd=tmp_path)
    for made in ("search/index.html", "mine/search/index.html", "mine/map/index.html", "mine/backbone.onnx"):
        assert (tmp_path / "output" / made).exists()


@COVERS
@pytest.mark.long
def test_the_commands_for_own_videos_with_labels(bin_folder, folder, tmp_path):
    commands = commands_of("docs/start.md", "## Your own videos", folder)
    assert [words[0] for words in commands] == ["prepare", "train", "test", "retrieval", "extract"]
    for name, *words in commands:
        run(bin_folder / "vidssl", name, *smaller(name, words), cwd=tmp_path)
    for made in ("test/results.json", "retrieval/index.html", "features/features.npy"):
        assert (tmp_path / "output/mine" / made).exists()
