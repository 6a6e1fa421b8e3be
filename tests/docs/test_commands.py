"""The commands of the pages: all parse, and those of the README run.

A block is run by bash, outside of the checkout; a command in the text is run after the blocks, if it is complete. The
tables below are all that is changed.
"""

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

from vidssl.cli import parser_of

TOP = Path(__file__).parents[2]
HOME = "docs/builder/home.html"  # the start page of the site
ALL_PAGES = ["README.md", HOME, *sorted(path.relative_to(TOP).as_posix() for path in (TOP / "docs").glob("*.md"))]
FAST = "--clips 1 --crops 1 --workers 0"
# Appended to a command, so that it takes seconds.
SHORTER = {
    "train": "steps=2 batch_size=4 data.workers=0",
    "test|retrieval|extract|analyze": FAST,
    "map": f"{FAST} --layout pca",  # UMAP compiles for half of a minute
    "compare": "--clips 1 --workers 0 --shots 1",
}
# Commands that reach out of this machine: what stands for them here.
STAND_INS = {
    "git": "ln -sfn . vidssl",  # clone: the work goes on in the same folder
    "python3": 'mkdir -p "$3/bin" && touch "$3/bin/activate"',  # -m venv
    "pip": "true",
}


def run(*words, cwd, **environment):
    free = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**free, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.long
def test_pip_installs_all_that_the_package_needs(tmp_path):
    """A wheel has the configs and the networks, and its command runs."""
    pytest.importorskip("setuptools", reason="setuptools is not installed")
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(TOP / name, source)
    for name in ("vidssl", "configs"):
        shutil.copytree(TOP / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, source, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    configs = [path.relative_to(TOP).as_posix() for path in (TOP / "configs").rglob("*.yaml")]
    weights = [f"weights/{path.name}" for path in (TOP / "vidssl/weights").iterdir()]
    assert {f"vidssl/{name}" for name in (*configs, *weights)} <= {*names}
    assert not [name for name in names if name.startswith("tests")]
    shutil.rmtree(source)
    venv.create(tmp_path / "env", with_pip=False)
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    run(*pip, "--python", tmp_path / "env/bin/python", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    others = next(path for path in map(Path, sys.path) if (path / "torch").is_dir())
    (site / "others.pth").write_text(f"{others}\n")  # after the environment's own packages
    code = "import vidssl; print(vidssl.__file__, vidssl.load_backbone('vidssl-small').dim)"
    assert str(tmp_path / "env") in run(tmp_path / "env/bin/python", "-c", code, cwd=tmp_path)
    assert "self-supervised" in run(tmp_path / "env/bin/vidssl", "--help", cwd=tmp_path).lower()


@pytest.fixture
def shims(forked_python, tmp_path):
    """A folder for PATH: `vidssl`, which makes commands shorter, and what stands for others."""
    cases = "".join(f'{names}) set -- "$@" {more} ;;\n' for names, more in SHORTER.items())
    vidssl = (
        'case "$*" in\n'
        'map*vidssl-default*) set -- "$@" --workers 0 --layout pca ;;\n'  # a sum has the clips of its parts
        '*vidssl-default*) set -- "$@" --workers 0 ;;\n'
        f'*) case "$1" in\n{cases}esac ;;\nesac\n'
    )
    folder = tmp_path / "shims"
    folder.mkdir()
    for name, text in {**STAND_INS, "vidssl": f'{vidssl}exec {forked_python} -m vidssl "$@"'}.items():
        (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def work(digits, tmp_path):
    """A folder with videos as people name them, the labels of every second one, and videos of five persons."""
    rows = ["file,label"]
    for line in (digits / "motion/train.csv").read_text().splitlines()[1:]:
        path, label = line.split(",")[:2]
        if int(label) < 3:
            target = tmp_path / "work/data/videos" / f"class {label}" / f"clip {Path(path).stem}'s ピアノ.mp4"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(digits / path, target)
            rows.append(f"{target.name},motion {label}")
            action = tmp_path / "work/data/actions" / f"class {label}" / f"person{len(rows) % 5} {len(rows)}.mp4"
            action.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(digits / path, action)
    (tmp_path / "work/labels.csv").write_text("\n".join([rows[0], *rows[1::2]]), encoding="utf-8")
    return tmp_path / "work"


def blocks_of(page):
    """The blocks of a page in bash."""
    block = r"<code>(.*?)</code>" if page == HOME else r"^```sh\n(.*?)^```"
    return re.findall(block, (TOP / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands_in(page):
    """The commands in the text of a page that are complete."""
    text = re.sub(r"^```.*?^```", "", (TOP / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(vidssl [^`]*)`", text)
    return [one for one in inline if not re.search(r"…|\b[A-Z]{3,}\b", one) and re.search(r"[/=]| -h|--help", one)]


def run_all(commands, shims, cwd):
    assert commands
    for command in commands:
        shorter = command.replace(" /data/", f" {cwd}/data/").replace("--window 2.56", "--window 0.4")
        path = f"{shims}:{os.environ['PATH']}"
        run("bash", "-euo", "pipefail", "-c", shorter, cwd=cwd, PATH=path, PYTHONPATH=str(TOP))


@pytest.mark.long
def test_the_readme(shims, work):
    pytest.importorskip("onnxruntime")
    (work / "data/videos/class 0/broken.mp4").write_bytes(b"\0" * 3000)
    (work / "data/videos/notes.txt").write_text("holidays")
    run_all(blocks_of("README.md"), shims, work)
    for made in ("search/index.html", "search/features/features.npy", "mine/map/index.html", "mine/backbone.onnx"):
        assert (work / "output" / made).exists()


@pytest.mark.long
def test_the_start_page(shims, work):
    run_all(blocks_of("docs/start.md"), shims, work)
    assert (work / "output/actions/test/results.json").exists()


PLACEHOLDER = re.compile(r"--help|--version|…|\[|\b[A-Z]{3,}\b|\$|<")


def written_commands():
    """Each complete command of vidssl on a page, as words."""
    for page in ALL_PAGES:
        lines = "".join(blocks_of(page)).replace("\\\n", " ").splitlines()
        for line in [*lines, *commands_in(page)]:
            line = line.partition(" #")[0].partition(" | ")[0].partition(" && ")[0]
            if line.startswith("vidssl ") and " --" in line and not PLACEHOLDER.search(line):
                yield page, shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("page", "words"), [*written_commands()], ids=lambda value: value if isinstance(value, str) else ""
)
def test_commands_parse(page, words):
    _, parser, arguments = parser_of(words[0], words[1:])
    try:
        parser.parse_args(arguments)
    except SystemExit as end:
        assert end.code == 0, (page, words)
