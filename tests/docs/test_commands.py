"""The commands of the pages: all parse, and those of the README are run with the package as pip installs it.

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
ALL_PAGES = ["README.md", *sorted(path.relative_to(TOP).as_posix() for path in (TOP / "docs").glob("*.md"))]
FAST = ["--clips", "1", "--crops", "1", "--workers", "0"]
# Appended to a command, so that it takes seconds.
SHORTER = {
    "train": ["steps=2", "batch_size=4", "data.workers=0"],
    "test": FAST,
    "retrieval": FAST,
    "extract": FAST,
    "map": FAST,
    "analyze": FAST,
    "compare": ["--clips", "1", "--workers", "0", "--shots", "1"],
}
# Replaced in a page: what needs a large machine, a download or long videos.
REPLACED = {
    " /data/": " {work}/data/",
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--cfg sce_r3d50_k400": "--cfg toy/sce",
    "--cfg finetune/ucf101 ": "--cfg toy/supervised ",
    "--cfg small_gpu": "--cfg small_cpu",
    "init=output/sce_r3d50_k400/": (
        "seed={{split}} evaluate.query=output/toy/data/motion/test.csv output=output/finetuned init=output/toy/sce/"
    ),
    "torchvision:r3d_18 ": "torchvision:r3d_18@none ",
    "--window 2.56": "--window 0.4",
    "--stride 1.28": "--stride 0.2",
}
# Commands that other tests run, or that reach out of this machine: what stands for them here.
STAND_INS = {
    "git": "ln -sfn . vidssl",  # clone: the work goes on in the same folder
    "python3": 'mkdir -p "$3/bin" && touch "$3/bin/activate"',  # -m venv
    "pip": "true",  # the wheel is installed
    "make": "true",  # test_demo.py and the site of CI
    "srun": "true",  # only looked for
    "sbatch": 'echo "Submitted batch job 77"',  # test_training_on_slurm.py
}
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
    code = "import vidssl; print(vidssl.__file__, vidssl.load_backbone('vidssl-small').dim)"
    assert str(folder / "env") in run(folder / "env/bin/python", "-c", code, cwd=folder)
    return folder / "env/bin"


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture(scope="module")
def shims(bin_folder, tmp_path_factory):
    """A folder for PATH: `vidssl`, which makes commands shorter, and what stands for others."""
    folder = tmp_path_factory.mktemp("shims")
    for name, text in STAND_INS.items():
        write_script(folder / name, f"#!/usr/bin/env bash\n{text}\n")
    # A sum has the clips of its parts.
    shorter = f"{SHORTER!r}.get(sys.argv[1], []) if 'vidssl-default' not in sys.argv else ['--workers', '0']"
    program = f"import sys\nsys.argv += {shorter}\nfrom vidssl.cli import main\nmain()\n"
    write_script(folder / "vidssl", f"#!{bin_folder}/python\n{program}")
    write_script(
        folder / "torchrun",
        f'#!/usr/bin/env bash\n{bin_folder}/python -m torch.distributed.run "$@" steps=2 output=output/torchrun\n',
    )
    write_script(folder / "python", f'#!/usr/bin/env bash\nexec {bin_folder}/python "$@"\n')
    return folder


@pytest.fixture
def work(digits, tmp_path):
    """A folder with videos, whose names are as people give them."""
    for line in (digits / "motion/train.csv").read_text().splitlines()[1:]:
        path, label = line.split(",")[:2]
        if int(label) < 3:
            for name, stem in (("videos", f"clip {Path(path).stem}'s ピアノ"), ("actions", f"person{Path(path).stem}")):
                target = tmp_path / "data" / name / f"class {label}" / f"{stem}.mp4"
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(digits / path, target)
    return tmp_path


def blocks_of(page):
    """The blocks of a page in bash."""
    return re.findall(r"^```sh\n(.*?)^```", (TOP / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands_in(page):
    """The commands in the text of a page that are complete."""
    text = re.sub(r"^```.*?^```", "", (TOP / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    inline = re.findall(r"`(vidssl [^`]*)`", text)
    return [one for one in inline if not re.search(r"…|\b[A-Z]{3,}\b", one) and re.search(r"[/=]| -h|--help", one)]


def run_all(commands, shims, cwd):
    environment = {**FREE, "OMP_NUM_THREADS": "1", "PATH": f"{shims}:{os.environ['PATH']}"}
    environment |= {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_COUNT": "1"}
    assert commands
    for command in commands:
        for old, new in REPLACED.items():
            command = command.replace(old, new.format(work=cwd))
        words = ["bash", "-euo", "pipefail", "-c", command]
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"


@pytest.mark.long
def test_the_readme(shims, work):
    pytest.importorskip("onnxruntime")
    (work / "data/videos/class 0/broken.mp4").write_bytes(b"\0" * 3000)
    (work / "data/videos/notes.txt").write_text("holidays")
    run_all(blocks_of("README.md"), shims, work)
    (work / "data/videos/class 0/broken.mp4").unlink()  # accuracies of lists with labels need all of their videos
    run_all(commands_in("README.md"), shims, work)
    for made in ("search/index.html", "mine/search/index.html", "mine/map/index.html", "mine/backbone.onnx"):
        assert (work / "output" / made).exists()


PLACEHOLDER = re.compile(r"own_toy|--help|--version|…|\[|\b[A-Z]{3,}\b|\$|<")


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
