"""What commands import: the help of each needs no torch, and a run no library that it does not use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vidssl
from vidssl.apps.analysis.invariance import TRANSFORMATIONS
from vidssl.apps.prepare import FORMS
from vidssl.cli import ANALYSES, COMMANDS, DATA_SETS
from vidssl.evaluation import PROTOCOLS

TOP = Path(__file__).parents[2]
HEAVY = (
    *("torch", "torchvision", "sklearn", "matplotlib", "scipy", "tensorboard", "pytorchvideo", "av", "cv2"),
    *("pydantic", "ruamel.yaml"),
)
SCRIPTS = [str(path) for kind in ("tools", "datasets") for path in (TOP / kind).glob("*.py")]

# Runs commands one after another in one process: nothing heavy may be there after the last, so after none.
RUN = """
import contextlib, io, json, runpy, sys
shown = {}
for words in json.loads(sys.argv[1]):
    sys.argv = list(words)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            if words[0].endswith(".py"):
                runpy.run_path(words[0], run_name="__main__")
            elif words[0] == "vidssl":
                from vidssl.cli import main
                main()
            else:
                runpy.run_module(words[0], run_name="__main__")
        except SystemExit as end:
            assert not end.code, (words, end.code)
    shown[" ".join(words)] = out.getvalue()
print(json.dumps([shown, [name for name in HEAVY if name in sys.modules]]))
"""


def python(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd="/",  # the package that is tested here, whatever lies in the current folder
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(vidssl.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def helps():
    """What each command prints with --help, and the heavy modules that are there after all of them."""
    words = [["vidssl", "--help"], ["vidssl", "--version"], ["vidssl.__main__", "--help"]]
    words += [["vidssl", name, "--help"] for name in COMMANDS]
    words += [["vidssl", "analyze", name, "--help"] for name in ANALYSES.jobs]
    words += [["vidssl", "prepare", name, "--help"] for name in DATA_SETS.jobs]
    words += [[script, "--help"] for script in SCRIPTS]
    return python(RUN.replace("HEAVY", repr(HEAVY)), json.dumps(words))


def test_help_imports_nothing_heavy(helps):
    shown, heavy = helps
    jobs = len(ANALYSES.jobs) + len(DATA_SETS.jobs)
    assert len(SCRIPTS) >= 17 and len(shown) == 3 + len(COMMANDS) + jobs + len(SCRIPTS)
    assert heavy == []


def test_a_command_names_itself(helps):
    for words, text in helps[0].items():
        if words != "vidssl --version":
            name = words.removesuffix(" --help").rpartition("/")[2]
            name = "vidssl" if name == "vidssl.__main__" else name
            assert text.startswith((f"usage: {name} [-h]", f"usage: {name}\n")), words


def test_help_lists_what_registries_have(helps):
    shown = {words: " ".join(text.split()) for words, text in helps[0].items()}
    assert ", ".join(PROTOCOLS) in shown["vidssl test --help"]
    assert ", ".join(TRANSFORMATIONS) in shown["vidssl analyze invariance --help"]
    assert all(form in shown[f"{TOP}/datasets/prepare_list.py --help"] for form in FORMS)


def test_a_run_imports_what_it_uses(digits, tmp_path):
    """Names of the package load when they are used; `torch._dynamo` takes a second, and torchvision imports it."""
    code = """
import json, sys
import vidssl, vidssl.cli.options_from_signatures
def heavy(*names):
    return [name for name in names if name in sys.modules]
assert not heavy("torch")
assert {"open_video", "load_backbone", "build_backbone"} <= {*dir(vidssl)} & {*vidssl._HOMES}
from vidssl import cli, open_video
import vidssl.video
assert open_video is vidssl.open_video is vidssl.video.open_video
try:
    vidssl.open_vidoe
except AttributeError as error:
    assert str(error) == "module 'vidssl' has no attribute 'open_vidoe'"
extract, train = json.loads(sys.argv[1])
cli.run("extract", extract)
assert not heavy("torch._dynamo", "torchvision")
cli.run("train", train)
print(json.dumps(heavy("sklearn", "scipy")))
"""
    words = ["--checkpoint", "floor:motion", "--workers", "0", "--out", str(tmp_path / "o")]
    extract = [str(digits / "motion/test.csv"), *words]
    train = ["--cfg", str(TOP / "configs/toy/supervised.yaml"), f"data.train={digits}/motion/train.csv", "steps=1"]
    train += ["data.moving_digits=null", f"output={tmp_path}/run", "data.workers=0", "device=cpu"]
    assert python(code, json.dumps([extract, train])) == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_leaves_byte_code_where_commands_find_it(tmp_path):
    """pip compiles what it installs, but into a folder of make's if make sets one: then a user's first command does."""
    for name in ("Makefile", "setup.py", "pyproject.toml"):
        shutil.copy(TOP / name, tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$*: prefix=$PYTHONPYCACHEPREFIX" >> calls\n')
    python.chmod(0o755)
    free = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MAKE"))}
    subprocess.run(["make", ".venv/.installed"], cwd=tmp_path, env=free, capture_output=True, check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert any("pip install" in call and "--editable" in call for call in calls)
    assert all(call.endswith("prefix=") and "--no-compile" not in call for call in calls)
