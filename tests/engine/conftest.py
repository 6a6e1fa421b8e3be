"""One small rendered set for all tests of the engine, and runs on it."""

import runpy
from pathlib import Path

import pytest

from vidssl.data.synthetic.moving_digits import MovingDigits, ensure
from vidssl.engine.config_schema import load_run

TOYS = runpy.run_path(str(Path(__file__).parents[1] / "toys.py"))
EQUAL = runpy.run_path(str(Path(__file__).parents[1] / "equal.py"))


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory):
    """A folder whose `data` is the set that the toy configs ask for."""
    folder = tmp_path_factory.mktemp("toy")
    ensure(folder / "data", MovingDigits(train=40, test=16, frames=24, size=48, masks=True))
    return folder


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
