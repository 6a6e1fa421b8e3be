"""The plan of the house: imports point down only, never sideways between rooms of one layer."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = (
    {"types", "registry", "comm", "randomness", "errors", "files", "progress", "workers"},
    {"config"},
    {"schedule", "losses", "transforms", "models"},
    {"data"},
    {"methods", "evaluation", "tracking", "analysis", "viz"},
    {"engine"},
    {"jobs"},
    {"arguments"},
    {"analyses"},
    {"cli"},
    {"launch"},
    {"tools", "datasets", "benchmarks", "examples"},
)
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
FILES = [
    path
    for top in ("vidssl", *sorted(LAYERS[-1]))
    for path in sorted((ROOT / top).rglob("*.py"))
    if path != ROOT / "vidssl" / "__init__.py"  # the public names, from anywhere
]
VAGUE = {"utils", "util", "helpers", "helper", "misc", "common", "tools", "functions"}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "vidssl" else parts[0]


def imported_rooms(source: str) -> list[tuple[int, str]]:
    """(line, room) of each import from vidssl, wherever it stands in a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: imports are absolute"
            names = (
                [node.module] if node.module != "vidssl" else [f"vidssl.{alias.name}" for alias in node.names]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        rooms = [name.split(".")[1] for name in names if name.startswith("vidssl.")]
        found += [(node.lineno, room) for room in rooms if room in LAYER or not room.startswith("_")]
    return found


def offences(room: str, source: str) -> list[str]:
    return [
        f"line {line}: {room} (layer {LAYER[room]}) imports {other} (layer {LAYER[other]})"
        for line, other in imported_rooms(source)
        if other != room and LAYER[other] >= LAYER[room] > 0
    ] + [
        f"line {line}: {room} imports {other}"
        for line, other in imported_rooms(source)
        if LAYER[room] == 0 and (other, LAYER[other]) not in {("errors", 0), (room, 0)}
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    assert not offences(room_of(path), path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("losses", "from vidssl import schedule"),
        ("methods", "def f():\n    from vidssl.evaluation.metrics import recall"),
        ("data", "import vidssl.methods.base"),
        ("config", "from vidssl.schedule import Schedule"),
        ("types", "from vidssl.config import Settings"),
        ("engine", "from vidssl.jobs import report"),
        ("tools", "import vidssl.benchmarks"),
    ],
)
def test_what_is_forbidden_is_found(room, source):
    assert offences(room, source)


def test_what_is_allowed_is_not():
    assert not offences(
        "methods", "from vidssl import losses, comm\nfrom vidssl.methods.base import Method\nimport torch"
    )
    assert not offences("evaluation", "from vidssl.data.records import VideoList\nimport vidssl")


def test_every_room_has_a_layer():
    assert FILES and {room_of(path) for path in FILES} <= set(LAYER)


def test_every_file_says_what_it_holds():
    assert not [path for path in (ROOT / "vidssl").rglob("*") if path.stem.lower() in VAGUE]
