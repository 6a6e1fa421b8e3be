"""Losses of the toy configs stay what they were; `make golden` renews them."""

import json
import runpy
from pathlib import Path

import pytest

GOLDEN = runpy.run_path(str(Path(__file__).with_name("golden.py")))
PLACES = 2e-3  # relative: processors differ in the last bits, and 12 steps make more of it


@pytest.mark.parametrize("name", GOLDEN["TOYS"])
def test_losses_are_those_of_the_golden_file(name, toy_folder):
    path = GOLDEN["golden_file"](name)
    assert path.exists(), f"run: python tests/engine/golden.py {name}"
    expected = json.loads(path.read_text())["loss"]
    assert len(expected) == 12 and len(set(expected)) == 12
    assert GOLDEN["losses"](name, toy_folder) == pytest.approx(expected, rel=PLACES)


def test_every_golden_file_has_its_config():
    assert {path.stem for path in GOLDEN["golden_file"]("x").parent.glob("*.json")} <= set(GOLDEN["TOYS"])
