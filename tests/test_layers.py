"""A folder of the core imports folders before it; nothing imports an app, and no app another: each can be removed."""

import ast
import importlib
import pkgutil
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


class Absent:
    """Lets modules be missing."""

    def __init__(self, packages):
        self.packages = packages

    def find_spec(self, name, path=None, target=None):
        if any(f"{name}.".startswith(f"{package}.") for package in self.packages):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def import_without(apps):
    """Import vidssl anew, with all of its public names, as if the folders of apps were not there; give its commands."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "vidssl"]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Absent)]
    sys.meta_path.insert(0, Absent([f"vidssl.apps.{app}" for app in apps]))
    package, cli = importlib.import_module("vidssl"), importlib.import_module("vidssl.cli")
    cli.list_jobs("commands", cli.COMMANDS)  # what --help prints
    for name in dir(package):
        getattr(package, name)
    return {*cli.COMMANDS}


def commands_without_each():
    return {app: import_without([app]) for app in NAMES}


def work_without_all(videos, out):
    """Import all of the core, train, extract and test on six small videos."""
    import_without(NAMES)
    package, cli = importlib.import_module("vidssl"), importlib.import_module("vidssl.cli")
    for module in pkgutil.walk_packages(package.__path__, "vidssl.", onerror=lambda name: None):
        if module.name not in OPTIONAL and not module.name.startswith("vidssl.apps."):
            importlib.import_module(module.name)
    data = [videos, "data.moving_digits=null", f"output={out}/run", "steps=1", "batch_size=2"]
    cli.run("train", ["--cfg", str(ROOT / "configs/toy/sce.yaml"), *data])
    network = ["--checkpoint", f"{out}/run", "--clips", "1", "--crops", "1", "--workers", "0", "--device", "cpu"]
    cli.run("extract", [f"{videos}/test.csv", *network, "--out", f"{out}/features"])
    lists = [f"{videos}/test.csv", "--train-list", f"{videos}/train.csv"]
    cli.run("test", [*lists, *network, "--protocol", "retrieval", "--out", f"{out}/test"])
    return [name for name in sys.modules if name.startswith("vidssl.apps.")]


OPTIONAL = ("vidssl.__main__", "vidssl.models.external.load_transformers")


def test_without_the_folder_of_an_app_the_rest_is_there(run_world):
    (commands,) = run_world(1, commands_without_each)
    for app, listed in commands.items():
        own = {name for name, module in APPS["command"].items() if part_of(module) == f"apps.{app}"}
        assert listed == {*COMMANDS} - own - ({"analyze"} if app == "analysis" else set()), app


def test_without_the_folders_of_all_apps_the_core_works(run_world, tmp_path):
    (imported_apps,) = run_world(1, work_without_all, str(ROOT / "tests/data/six_videos"), str(tmp_path / "out"))
    assert imported_apps == [] and (tmp_path / "out/test/results.json").is_file()
