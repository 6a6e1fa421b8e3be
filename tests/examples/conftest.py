"""Loads the plug-in examples/part_segmentation for a test module, and removes it from vidssl afterwards."""

import importlib
import sys
from pathlib import Path

import pytest

from vidssl.data.dataset import ClipDataset
from vidssl.methods import METHODS

EXAMPLE = Path(__file__).parents[2] / "examples" / "part_segmentation"
MODULES = ("part_segmentation", "part_maps", "measure", "prepare_pascal_parts", "prepare_nyu_depth")


def remove():
    for name in MODULES:
        sys.modules.pop(name, None)  # benchmarks/ has a module `measure` too
    METHODS._entries.pop("part_segmentation", None)
    ClipDataset.read_mask = None


@pytest.fixture(scope="module")
def plug_in():
    """Import a module of the example: `plug_in("measure")`."""
    remove()
    list(METHODS)  # the methods of vidssl first
    sys.path.insert(0, str(EXAMPLE))
    importlib.import_module("part_segmentation")
    yield importlib.import_module
    sys.path.remove(str(EXAMPLE))
    remove()


@pytest.fixture(scope="session")
def digit_parts(digits):
    """The set of the toy config, with masks."""
    return digits
