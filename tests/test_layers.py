"""A folder of the core imports folders before it; nothing imports an app, and no app another: each can be removed."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vidssl.base.registry import APPS
from vidssl.cli import COMMANDS

ROOT = Path(__file__).parents[1]
ORDER = (
    *(
        "version",
        "base",
        "video",
        "transforms",
        "data",
        "models",
        "tracking",
        "losses",
        "methods",
        "page",
        "evaluation",
    ),
    *("engine", "jobs", "cli", "__main__"),
)
FILES = [path for path in sorted((ROOT / "vidssl").rglob("*.py")) if path != ROOT / "vidssl" / "__init__.py"]
NAMES = sorted(path.name for path in (ROOT / "vidssl" / "apps").iterdir() if (path / "__init__.py").is_file())
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "functions"}


def part_of(module: str) -> str:
    """`vidssl.data.loader` is of `data`, `vidssl.apps.map.page` of `apps.map`."""
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[0] == "apps" else 1])


def imported(source: str) -> list[tuple[int, str]]:
    """(line, part) of each import from vidssl, wherever it stands in a file."""
    places = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            short = node.module in ("vidssl", "vidssl.apps")
            names = [f"{node.module}.{alias.name}" for alias in node.names] if short else [node.module]
        elif isinstance(node, ast.Import):
            names = [f"{alias.name}." if alias.name == "vidssl" else alias.name for alias in node.names]
        places += [(node.lineno, part_of(name)) for name in names if name.startswith("vidssl.")]
    return places


def offences(part: str, source: str) -> list[str]:
    places = {**{name: place for place, name in enumerate(ORDER)}, part: len(ORDER)}
    own = places[part] if part.startswith("apps") else ORDER.index(part)
    return [
        f"line {line}: {part} imports {other or 'vidssl'}"
        for line, other in imported(source)
        if other != part and places.get(other, len(ORDER)) >= own
    ]


def test_imports_point_up_the_list():
    wrong = {}
    for path in FILES:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if lines := offences(part_of(module), path.read_text(encoding="utf-8")):
            wrong[module] = lines
    assert wrong == {}


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("losses", "from vidssl.methods import base"),
        ("methods", "def f():\n    from vidssl.evaluation.metrics import recall"),
        ("data", "import vidssl.methods.base"),
        ("base", "from vidssl.video import open_video"),
        ("engine", "from vidssl.jobs.test import test"),
        ("cli", "import vidssl.apps.cluster.training_on_slurm"),
        ("jobs", "from vidssl.apps import map"),
        ("apps.map", "from vidssl.apps.search.page import search_page"),
        ("apps.map", "from vidssl import __version__"),
        ("data", "import vidssl"),
    ],
)
def test_what_is_forbidden_is_found(part, source):
    assert offences(part, source)


def test_what_is_allowed_is_not():
    assert not offences("methods", "from vidssl import losses\nfrom vidssl.methods.base import Method\nimport torch")
    assert not offences("apps.map", "from vidssl.apps.map.page import x\nfrom vidssl.jobs.job import job")


def test_no_vague_module_names():
    assert not [path for path in (ROOT / "vidssl").rglob("*") if path.stem.lower() in VAGUE]


HOOKS = {"bind_run", "bind_stored", "train", "test", "export", "version"}  # of apps, see the table in registry.py


def test_a_public_name_stands_for_one_thing():
    modules = {}
    for path in FILES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
            for name in [
                getattr(node, "name", "_"),
                *(target.id for target in targets if isinstance(target, ast.Name)),
            ]:
                if not name.startswith("_") and name not in HOOKS:
                    modules.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    assert {name: places for name, places in modules.items() if len(places) > 1} == {}


WITHOUT = """
import importlib, json, pkgutil, sys
from pathlib import Path

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "vidssl.apps.{app}" or name.startswith("vidssl.apps.{app}."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
import vidssl
from vidssl.cli import COMMANDS, list_jobs, run

for module in pkgutil.walk_packages(vidssl.__path__, "vidssl.", onerror=lambda name: None):
    if not (module.name + ".").startswith("vidssl.apps.{app}.") and module.name not in {optional!r}:
        importlib.import_module(module.name)
videos, out = {videos!r}, Path({out!r})
list_jobs("commands", COMMANDS)  # what --help prints
print(json.dumps([*COMMANDS]))
data = [videos, "data.moving_digits=null", f"output={{out}}/run", "steps=1", "batch_size=2"]
run("train", ["--cfg", {config!r}, *data])
network = ["--checkpoint", f"{{out}}/run", "--clips", "1", "--crops", "1", "--workers", "0", "--device", "cpu"]
run("extract", [f"{{videos}}/test.csv", *network, "--out", f"{{out}}/features"])
lists = [f"{{videos}}/test.csv", "--train-list", f"{{videos}}/train.csv"]
run("test", [*lists, *network, "--protocol", "retrieval", "--out", f"{{out}}/test"])
for name in dir(vidssl):
    getattr(vidssl, name)
"""


@pytest.mark.parametrize("app", NAMES)
def test_without_the_folder_of_an_app_the_rest_works(app, tmp_path):
    """It imports, lists its commands, trains, extracts and tests on six small videos."""
    videos = ROOT / "tests" / "data" / "six_videos"
    code = WITHOUT.format(
        app=app,
        videos=str(videos),
        out=str(tmp_path / "out"),
        config=str(ROOT / "configs" / "toy" / "sce.yaml"),
        optional=("vidssl.__main__", "vidssl.models.external.load_transformers", "vidssl.apps.cluster.commands_on_ray"),
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    own = {name for name, module in APPS["command"].items() if part_of(module) == f"apps.{app}"}
    listed = {*json.loads(result.stdout.splitlines()[0])}
    assert listed == {*COMMANDS} - own - ({"analyze"} if app == "analysis" else set())
    assert (tmp_path / "out" / "test" / "results.json").is_file()
