"""Registries: names in order, one import at the first look-up, the nearest name for one that is not there."""

import sys

import pytest

from vidssl.errors import ConfigError
from vidssl.registry import Registry, did_you_mean


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose modules register entries in its own registry."""
    folder = tmp_path / "plugins_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from vidssl.registry import Registry\nTHINGS = Registry('thing', 'plugins_of_a_test')\n"
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
    with pytest.raises(ConfigError, match=r"^no thing 'xyz'; there are: apple, pear$"):
        THINGS["xyz"]


def test_a_plug_in_that_cannot_be_imported_is_named_at_every_look_up(package, tmp_path):
    from plugins_of_a_test import THINGS

    broken = "from plugins_of_a_test import THINGS\nTHINGS.register('fig')(int)\nimport there_is_no_such_module\n"
    (tmp_path / "plugins_of_a_test" / "fig.py").write_text(broken)
    for look_up in (lambda: THINGS["pear"], lambda: list(THINGS), lambda: "fig" in THINGS):
        with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
            look_up()


def test_a_name_is_registered_once():
    registry = Registry("thing", "vidssl.errors")
    assert registry.register("one")(int) is int
    with pytest.raises(ConfigError, match="thing 'one' is registered twice: choose another name"):
        registry.register("one")(float)
    assert registry["one"] is int


def test_did_you_mean():
    assert did_you_mean("temprature", ["queue", "temperature"]) == " (did you mean 'temperature'?)"
    assert did_you_mean("zzz", ["queue", "temperature"]) == ""
