"""Registries: names in order, one import at the first look-up, the nearest name for one that is not there."""

import importlib.util
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vidssl.base.errors import ConfigError
from vidssl.base.registry import APPS, Registry, did_you_mean


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose modules register entries in its own registry."""
    folder = tmp_path / "plugins_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from vidssl.base.registry import Registry\nTHINGS = Registry('thing', 'plugins_of_a_test')\n"
    )
    for name in ("pear", "apple"):
        (folder / f"{name}.py").write_text(
            f"from plugins_of_a_test import THINGS\n@THINGS.register('{name}')\nclass {name.title()}: pass\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [n for n in sys.modules if n.startswith("plugins_of_a_test")]:
        del sys.modules[name]


def test_modules_are_imported_at_the_first_look_up_only(package):
    from plugins_of_a_test import THINGS

    assert "plugins_of_a_test.pear" not in sys.modules
    assert list(THINGS) == ["apple", "pear"]
    assert "plugins_of_a_test.pear" in sys.modules
    assert THINGS["pear"].__name__ == "Pear"
    assert "apple" in THINGS and "plum" not in THINGS


def test_the_closest_name_is_suggested(package):
    from plugins_of_a_test import THINGS

    with pytest.raises(ConfigError, match=r"^no thing 'aple' \(did you mean 'apple'\?\); there are: apple, pear$"):
        THINGS["aple"]


KNOWN = (
    "--out",
    "--clips",
    "--crops",
    "--checkpoint",
    "--batch-size",
    "--trust-checkpoint",
    "--size",
    "--one-per-video",
)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        *(
            ("--output", "--out"),
            ("--ot", "--out"),
            ("oit", "--out"),
            ("--clip", "--clips"),
            ("--checkpiont", "--checkpoint"),
        ),
        *(("--batchsize", "--batch-size"), ("--batch", "--batch-size"), ("--trust", "--trust-checkpoint")),
        ("--clips-per-video", "--clips"),
        *((name, None) for name in ("--nosuch", "--no-such-option", "--n", "--o", "--silent", "--lr", "--input")),
        *((name, None) for name in ("--device", "--videos", "--model")),
    ],
)
def test_only_a_near_name_is_suggested(name, near):
    assert did_you_mean(name, KNOWN) == (f" (did you mean '{near}'?)" if near else "")


def test_a_plug_in_that_cannot_be_imported_is_named_at_every_look_up(package, tmp_path):
    from plugins_of_a_test import THINGS

    broken = "from plugins_of_a_test import THINGS\nTHINGS.register('fig')(int)\nimport there_is_no_such_module\n"
    (tmp_path / "plugins_of_a_test" / "fig.py").write_text(broken)
    for look_up in (lambda: THINGS["pear"], lambda: list(THINGS), lambda: "fig" in THINGS):
        with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
            look_up()


def test_a_name_is_registered_once():
    registry = Registry("thing", "vidssl.base.errors")
    assert registry.register("one")(int) is int
    with pytest.raises(ConfigError, match="thing 'one' is registered twice: choose another name"):
        registry.register("one")(float)
    assert registry["one"] is int


THREADS = """
import os, threading, warnings
from concurrent.futures import ThreadPoolExecutor
from vidssl.models.backbones import BACKBONES
{setup}
start = threading.Barrier(8)

def first_use(number):
    start.wait()
    {use}

with ThreadPoolExecutor(8) as pool:
    results = list(pool.map(first_use, range(8)))
assert len(results) == 8 and all(each == results[0] for each in results), results
assert ("ignore", None, Warning, None, 0) not in warnings.filters, "that of an import is still there"
"""
USES = {
    "extract": ("import vidssl", "return vidssl.extract('vidssl-small', FILE, progress=False, workers=0).x.tolist()"),
    "registries": (
        "from vidssl.data.clip_samplers import SAMPLERS\nfrom vidssl.evaluation.protocols import PROTOCOLS\n"
        "from vidssl.methods.base import METHODS\nfrom vidssl.transforms.recipes import RECIPES\n"
        "ALL = [BACKBONES, METHODS, PROTOCOLS, RECIPES, SAMPLERS]",
        "return [sorted(ALL[(n + number) % 5]) for n in range(5)] and [sorted(each) for each in ALL]",
    ),
    "a fork meanwhile": (
        "",
        """if number == 0:
        child = os.fork()
        if child == 0:
            os._exit(0 if "resnet3d18" in BACKBONES else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return "resnet3d18" in BACKBONES""",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("use", USES)
def test_eight_threads_may_be_first(use):
    """In a process of its own, in which nothing is loaded."""
    setup, line = USES[use]
    file = Path(__file__).parents[1] / "video" / "files" / "xvid_b_frames.avi"
    code = textwrap.dedent(THREADS).format(setup=f"FILE = {str(file)!r}\n{setup}", use=line)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_threads_wait_until_a_package_is_imported(package, tmp_path):
    from plugins_of_a_test import THINGS

    slow = "import time\ntime.sleep(0.3)\nfrom plugins_of_a_test import THINGS\nTHINGS.register('fig')(int)\n"
    (tmp_path / "plugins_of_a_test" / "fig.py").write_text(slow)
    with ThreadPoolExecutor(8) as pool:
        assert {*pool.map(lambda _: tuple(THINGS), range(8))} == {("apple", "fig", "pear")}


def test_names_of_apps_are_known_without_importing_them():
    code = """
import sys
from vidssl.jobs import doctor
from vidssl.base.config import bind_choice
from vidssl.base.errors import ConfigError
from vidssl.evaluation.protocols import PROTOCOLS
from vidssl.methods import METHODS
from vidssl.models.backbones import BACKBONES
from vidssl.base.registry import APPS
for registry in (BACKBONES, METHODS, PROTOCOLS):
    kind, names = registry.kind, APPS[registry.kind]
    listed = getattr(doctor, f"list_{kind}s")()
    assert {*names} < {*listed} and all(name in registry for name in names)
    for name in names:
        try:
            registry[name + "x"]
        except ConfigError as error:
            assert f"did you mean '{name}'" in str(error)
assert not [module for module in sys.modules if module.startswith("vidssl.apps.")]
for registry in (BACKBONES, METHODS, PROTOCOLS):
    for name, module in APPS[registry.kind].items():
        assert registry[name].__module__ == module and module in sys.modules
        assert bind_choice(registry, {"name": name}, "test").name == name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_plug_in_cannot_take_the_name_of_an_app():
    with pytest.raises(ConfigError, match="method 'cmc' is registered twice: choose another name"):
        Registry("method", "vidssl.methods").register("cmc")(type("Other", (), {}))


def test_the_modules_of_apps_are_there():
    for name, module in [entry for names in APPS.values() for entry in names.items()]:
        assert importlib.util.find_spec(module) is not None, (name, module)
