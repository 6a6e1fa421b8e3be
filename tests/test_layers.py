"""Imports point down only, never sideways between packages of one layer."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = (
    {
        "types",
        "registry",
        "distributed",
        "keyed_generators",
        "errors",
        "keep_memory",
        "atomic",
        "progress",
        "running_command",
        "plugins",
        "untrusted_files",
        "version",
    },
    {"config", "output_folder", "worker_pool"},
    {"schedule", "losses", "video", "transforms", "models"},
    {"data"},
    {"methods", "prepare", "evaluation", "tracking", "analysis", "viz"},
    {"engine"},
    {"api"},
    {"commands"},
    {"projects"},
    {"tools", "datasets", "benchmarks", "examples", "__main__"},
)
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
FILES = [
    path
    for top in ("vidssl", *sorted(LAYERS[-1]))
    for path in sorted((ROOT / top).rglob("*.py"))
    if path != ROOT / "vidssl" / "__init__.py"  # the public names, from anywhere
]
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "functions"}


def package_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "vidssl" else parts[0]


def imported_packages(source: str) -> list[tuple[int, str]]:
    """(line, package) of each import from vidssl, wherever it stands in a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = [node.module] if node.module != "vidssl" else [f"vidssl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        packages = [name.split(".")[1] for name in names if name.startswith("vidssl.")]
        found += [(node.lineno, package) for package in packages if package in LAYER or not package.startswith("_")]
    return found


def offences(package: str, source: str) -> list[str]:
    return [
        f"line {line}: {package} (layer {LAYER[package]}) imports {other} (layer {LAYER[other]})"
        for line, other in imported_packages(source)
        if other != package and LAYER[other] >= LAYER[package] > 0
    ] + [
        f"line {line}: {package} imports {other}"
        for line, other in imported_packages(source)
        if LAYER[package] == 0 and (other, LAYER[other]) not in {("errors", 0), (package, 0)}
    ]


def test_imports_point_down():
    found = {
        str(path.relative_to(ROOT)): offences(package_of(path), path.read_text(encoding="utf-8")) for path in FILES
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_what_is_forbidden_is_found():
    forbidden = [
        ("losses", "from vidssl import schedule"),
        ("methods", "def f():\n    from vidssl.evaluation.metrics import recall"),
        ("data", "import vidssl.methods.base"),
        ("config", "from vidssl.schedule import Schedule"),
        ("types", "from vidssl.config import Settings"),
        ("engine", "from vidssl.api.test import test"),
        ("api", "def f():\n    from vidssl.commands import run"),
        ("commands", "import vidssl.projects.slurm"),
        ("version", "from vidssl.registry import Registry"),
        ("tools", "import vidssl.benchmarks"),
    ]
    assert [(package, source) for package, source in forbidden if not offences(package, source)] == []


def test_what_is_allowed_is_not():
    assert not offences(
        "methods", "from vidssl import losses, distributed\nfrom vidssl.methods.base import Method\nimport torch"
    )
    assert not offences("evaluation", "from vidssl.data.video_list import VideoList\nimport torch")
    assert not offences("projects", "from vidssl.commands import run\nfrom vidssl.api.extract import extract")
    assert not imports_itself("from vidssl import distributed\nfrom vidssl.version import __version__")


def imports_itself(source: str) -> list[int]:
    """Lines that import the package, for its version or a public name, which are loaded from anywhere."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(alias.name == "vidssl" for alias in node.names):
            found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "vidssl":
            found += [node.lineno for alias in node.names if alias.name not in LAYER]
    return found


def test_the_package_does_not_import_itself():
    """Not even for its version, which is in `vidssl.version`."""
    package = [path for path in FILES if (ROOT / "vidssl") in path.parents]
    found = {str(path.relative_to(ROOT)): imports_itself(path.read_text(encoding="utf-8")) for path in package}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_imports_of_the_package_are_found():
    assert imports_itself("import vidssl") == [1]
    assert imports_itself("def f():\n    from vidssl import __version__, distributed") == [2]


def test_every_package_has_a_layer():
    assert FILES and {package_of(path) for path in FILES} <= set(LAYER)


def test_no_vague_module_names():
    assert not [path for path in (ROOT / "vidssl").rglob("*") if path.stem.lower() in VAGUE]
