"""Charts of sweeps: what is drawn is what was given."""

import sys
from pathlib import Path

import numpy as np
import pytest

from vidssl.page.figure_style import png

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sweep_chart import sweep_chart

sys.path.pop(0)

MEASURED = {
    "I_NCE": [[1.0, 2.0], [4.0, 3.0], [0.5]],
    "kNN": [[20.0, 30.0], [50.0, 40.0], [10.0]],
    "linear": [[], [], []],
}


def lines(axes):
    """Lines of means, without the dots of seeds."""
    return [line for line in axes.get_lines() if line.get_linestyle() == "-"]


def drawn(figure, title):
    (axes,) = [axes for axes in figure.axes if axes.get_title(loc="left") == title]
    return axes


def test_means_and_seeds_are_drawn_in_the_order_of_the_knob():
    figure = sweep_chart("sigma", [2.0, 1.0, 4.0], MEASURED, "2 seeds")
    bound, accuracy, path = (drawn(figure, title) for title in ("Shared information", "kNN", "kNN over I_NCE"))
    for axes, name, row in ((bound, "I_NCE", [3.5, 1.5, 0.5]), (accuracy, "kNN", [45.0, 25.0, 10.0])):
        (line,) = lines(axes)
        np.testing.assert_array_equal(line.get_xydata(), np.column_stack([[1.0, 2.0, 4.0], row]))
        dots = np.concatenate([dot.get_ydata() for dot in axes.get_lines() if dot.get_linestyle() == "None"])
        assert sorted(dots) == sorted(x for each in MEASURED[name] for x in each)
        assert axes.get_xlabel() == "sigma" and [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4"]
    assert accuracy.get_ylabel() == path.get_ylabel() == "kNN (%)"
    (line,) = path.get_lines()
    np.testing.assert_array_equal(line.get_xydata(), [[3.5, 45.0], [1.5, 25.0], [0.5, 10.0]])
    assert line.get_linestyle() == ":" and [text.get_text() for text in path.texts] == ["1", "2", "4"]
    assert figure.get_supxlabel() == "small dots: 2 seeds; large dots: their means"
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("values", "scale", "places", "joined", "label"),
    [
        ([0.0, 0.5, 1.0], "linear", [0.0, 0.5, 1.0], "-", "beta"),
        ([0.1, 1.0, 10.0], "log", [0.1, 1.0, 10.0], "-", "beta"),
        ([0.0, 1.0, 4.0], "linear", [0, 1, 2], "--", "beta (not to scale)"),
        ([1.0, 2.0, 1000.0], "linear", [0, 1, 2], "--", "beta (not to scale)"),
    ],
)
def test_unevenly_spaced_values_are_drawn_at_equal_distances(values, scale, places, joined, label):
    figure = sweep_chart("beta", values, {"kNN": [[1.0], [2.0], [3.0]], "linear": [[2.0], [3.0], [4.0]]}, "1 seed")
    axes = drawn(figure, "Accuracy")
    of_means = [line for line in axes.get_lines() if line.get_linestyle() != "None"]
    assert [line.get_linestyle() for line in of_means] == [joined] * 2 and axes.get_xscale() == scale
    assert [*of_means[0].get_xdata()] == places and axes.get_xlabel() == label
    assert [text.get_text() for text in axes.get_xticklabels()] == [f"{value:g}" for value in values]
