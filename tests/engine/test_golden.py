"""Losses of the toy configs stay what they were; `make golden` renews them."""

import json
import runpy
from pathlib import Path

import pytest

GOLDEN = runpy.run_path(str(Path(__file__).with_name("golden.py")))
# Relative. Processors differ in the last bits, and a step multiplies that up to hundredfold at the high rates of the
# toy configs, as units of a ReLU change sides. From the fifth step on, losses of two processors stay finite, and do
# not double.
PLACES = [1e-4, 1e-3, 1e-2, 1e-1, *[1.0] * 8]


@pytest.mark.parametrize("name", GOLDEN["TOYS"])
def test_losses_are_those_of_the_golden_file(name, straight):
    path = GOLDEN["golden_file"](name)
    assert path.exists(), f"run: python tests/engine/golden.py {name}"
    expected = json.loads(path.read_text())["loss"]
    assert len(expected) == 12 and len(set(expected)) == 12
    for actual, needed, places in zip(GOLDEN["logged_losses"](straight(name)), expected, PLACES, strict=True):
        assert actual == pytest.approx(needed, rel=places)


def test_every_golden_file_has_its_config():
    assert {path.stem for path in GOLDEN["golden_file"]("x").parent.glob("*.json")} <= set(GOLDEN["TOYS"])
