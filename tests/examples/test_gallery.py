"""The examples of the gallery: each runs, makes its image, and prints what its page shows."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "gallery").glob("*.py"))
STORED = ROOT / "docs" / "images" / "gallery"
RUN = runpy.run_path(str(ROOT / "docs" / "builder" / "run_gallery.py"))
# Replaced in an example, so that it takes seconds.
SHORTER = {
    '"--train", "240", "--test", "80"': '"--train", "40", "--test", "16"',
    **{f"steps={steps}": "steps=6" for steps in (40, 60, 80, 120)},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The examples share the videos."""
    return tmp_path_factory.mktemp("gallery")


@pytest.mark.long
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_example(script, folder, forked_python, monkeypatch):
    text = script.read_text(encoding="utf-8")
    for whole, part in SHORTER.items():
        text = text.replace(whole, part)
    shorter = folder / script.name
    shorter.write_text(text, encoding="utf-8")
    monkeypatch.setattr("sys.executable", str(forked_python))
    printed = RUN["run_example"](shorter, folder, videos=(40, 16))
    made, shown = (
        Image.open(path) for path in (folder / "output/gallery" / f"{script.stem}.png", STORED / f"{script.stem}.png")
    )
    assert made.size == shown.size
    assert np.asarray(made.convert("L")).std() > 10  # not empty
    numbers = re.compile(r"[\d.]+")
    stored = (STORED / f"{script.stem}.txt").read_text(encoding="utf-8")
    # The numbers are others, and may differ between machines.
    assert numbers.sub("0", printed).split() == numbers.sub("0", stored).split()


def test_there_are_eight_short_ones_and_all_are_listed():
    assert len(EXAMPLES) == 8
    listed = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    for script in EXAMPLES:
        assert len(script.read_text(encoding="utf-8").splitlines()) <= 80
        assert f"(../examples/gallery/{script.name})" in listed and (STORED / f"{script.stem}.png").is_file()
