"""The table of colours: what is written where, and that darker is better."""

import pytest

from vidssl.base.errors import DataError
from vidssl.page.charts import severity_map

ROWS = {"noise": ["shot_noise"], "time": ["drop", "freeze"]}
NUMBERS = {"shot_noise": (0.8, 0.1), "drop": (0.7, 0.2), "freeze": (0.6, 0.0)}


def test_numbers_and_colours():
    figure = severity_map(ROWS, ["1", "5"], {"a$b": (0.8, NUMBERS), "other": (0.0, NUMBERS)}, "title")
    first, second = figure.axes
    texts = [text.get_text() for text in first.texts]
    assert texts == ["80.0", "10.0", "70.0", "20.0", "60.0", "0.0"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["shot noise", "drop", "freeze"]
    assert first.get_title() == "a$b\nclean 80.0"
    lightness = [sum(patch.get_facecolor()[:3]) for patch in first.patches]
    assert lightness[0] < lightness[2] < lightness[4] < lightness[5]
    assert len({patch.get_facecolor() for patch in second.patches}) == 1  # nothing is relative to 0


def test_nothing_to_draw():
    with pytest.raises(DataError, match="no corruption was measured"):
        severity_map({}, ["1"], {"a": (0.5, {})}, "title")
