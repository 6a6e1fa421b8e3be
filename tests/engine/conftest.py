"""Runs of the toy configs for all tests of the engine."""

import runpy
from pathlib import Path

import pytest

from vidssl.engine.run_config import load_run

TOYS = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))
EQUAL = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))
GOLDEN = runpy.run_path(str(Path(__file__).with_name("golden.py")))


@pytest.fixture(scope="session")
def toy_folder(digits):
    """A folder whose `data` is the set that the toy configs ask for."""
    return digits.parent


@pytest.fixture(scope="session")
def straight(made_once, digits):
    """The folder of a run of 12 steps that nothing interrupted, `straight("sce")`; not to be changed by a test."""

    def run(name):
        return made_once(f"toys/golden/{name}", lambda _: GOLDEN["losses"](name, digits.parent))

    return run


@pytest.fixture
def toy_run(toy_folder, tmp_path):
    """Bind a toy config: `toy_run("sce", "a", "steps=3")` writes to tmp_path / "a"."""
    data = toy_folder / "data"

    def bind(name, output, *overrides):
        where = TOYS["placed"](name, data, tmp_path / output)
        return load_run(TOYS["CONFIGS"] / f"{name}.yaml", [*where, *overrides])

    return bind


@pytest.fixture
def metrics(tmp_path):
    """Read what a run logged, less time and speed: `metrics("a")`."""

    def read(output, key="loss"):
        return [line for line in EQUAL["logged"](tmp_path / output) if key in line]

    return read
